//! What of the config a program must know, and how large its channel is.

use core::sync::atomic::Ordering;

use crate::channel::layout::{LARGE_OBJECTS, Layout};
use crate::channel::policy::{ADDRESSES_MAX, PORT_RANGES_MAX, PolicyPage, policy_flag};
use crate::config::{Config, OnError, OnHostLost, Policy, PortChoice, Progress};
use crate::lcore::Share;

/// The layout of a family's channel.
pub(super) fn layout(config: &Config) -> Layout {
    let buffers = config.buffers;
    let usual = |send| Layout::for_flows(config.tcp.max_connections, buffers.receive_ring(), send);
    match config.run.progress {
        Progress::Dedicated => usual(buffers.send_ring()).with_large_rings(buffers.large_ring()),
        // Who waits drives: what is sent is received in the same turn, and a larger ring only takes more cache.
        Progress::Inline => usual(buffers.inline_send_ring()),
    }
}

/// What the families of a system's host share: every connection of the config, and half of the memory that can be had
/// now (`available`), no more than all connections can fill.
pub(super) fn share(config: &Config, available: Option<u64>) -> Share {
    let buffers = config.buffers;
    let full = u64::from(buffers.receive_ring()) + u64::from(buffers.send_ring());
    let connections = config.tcp.max_connections;
    let few = u64::from(connections.min(2 * LARGE_OBJECTS));
    let more = (2 * u64::from(buffers.large_ring())).saturating_sub(full);
    let all = full.saturating_mul(u64::from(connections)) + few * more;
    Share {
        flows: config.tcp.max_connections,
        ring_bytes: available.map_or(all, |available| all.min(available / 2)),
    }
}

/// Why the page cannot say what the config says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct TooMany(pub(super) String);

/// Fills the page for the program at `program` (its absolute path).
///
/// # Errors
/// When addresses or port ranges do not fit.
pub(super) fn fill(page: &PolicyPage, config: &Config, program: &str) -> Result<(), TooMany> {
    let policy = Policy::from(config);
    let mut flags = 0;
    if policy.on_error == OnError::Fail {
        flags |= policy_flag::ON_ERROR_FAIL;
    }
    if policy.on_host_lost == OnHostLost::Wait {
        flags |= policy_flag::ON_HOST_LOST_WAIT;
    }
    if !policy.covers_program(program) {
        flags |= policy_flag::PROGRAM_EXCLUDED;
    }
    let addresses: Vec<u32> = policy
        .addresses
        .iter()
        .map(|(address, _)| *address)
        .filter(|address| policy.covers_address(*address))
        .map(core::net::Ipv4Addr::to_bits)
        .collect();
    let ranges = port_ranges(&policy.accelerate.ports);
    if addresses.len() > ADDRESSES_MAX {
        return Err(TooMany(format!(
            "interface.addresses: {} addresses, at most {ADDRESSES_MAX} can be served",
            addresses.len()
        )));
    }
    if ranges.len() > PORT_RANGES_MAX {
        return Err(TooMany(format!(
            "common.accelerate.ports: {} separate ranges, at most {PORT_RANGES_MAX} can be served",
            ranges.len()
        )));
    }
    for (place, address) in page.addresses.iter().zip(&addresses) {
        place.store(*address, Ordering::Relaxed);
    }
    for (place, (first, last)) in page.ports.iter().zip(&ranges) {
        place.store(
            u32::from(*first) << 16 | u32::from(*last),
            Ordering::Relaxed,
        );
    }
    let count = |len: usize| u32::try_from(len).unwrap_or(0);
    page.address_count
        .store(count(addresses.len()), Ordering::Relaxed);
    page.port_range_count
        .store(count(ranges.len()), Ordering::Relaxed);
    page.max_recvbuf
        .store(policy.buffers.receive_max, Ordering::Relaxed);
    page.max_sendbuf
        .store(policy.buffers.send_max, Ordering::Relaxed);
    page.interface
        .store(interface(&config.port), Ordering::Relaxed);
    page.flags.store(flags, Ordering::Relaxed);
    Ok(())
}

/// The number of the kernel's interface that is the port.
fn interface(port: &PortChoice) -> u32 {
    let PortChoice::Netdev(name) = port else {
        return 0;
    };
    let number = std::fs::read_to_string(format!("/sys/class/net/{name}/ifindex"));
    number
        .ok()
        .and_then(|number| number.trim().parse().ok())
        .unwrap_or(0)
}

/// Ports as ascending ranges, neighbours joined.
fn port_ranges(ports: &[u16]) -> Vec<(u16, u16)> {
    let mut sorted = ports.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    let mut ranges: Vec<(u16, u16)> = Vec::new();
    for port in sorted {
        match ranges.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(port) => *last = port,
            _ => ranges.push((port, port)),
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::load_bytes;

    fn config(common: &str) -> Config {
        let text = format!(
            r#"{{"interface": {{"vdevs": ["knet_unix,path=/x"], "ip": "10.0.0.1",
            "netmask": "255.255.255.0"}}, "common": {{{common}}}}}"#
        );
        load_bytes("test", text.as_bytes()).unwrap_or_else(|faults| panic!("{faults}"))
    }

    #[test]
    fn rings_to_send_from_are_shorter_where_a_program_drives_and_never_longer_than_asked_for() {
        let of = |progress: &str, buffers: &str| {
            let text = format!(
                r#"{{"interface": {{"vdevs": ["knet_unix,path=/x"], "ip": "10.0.0.1",
                "netmask": "255.255.255.0"}}, "common": {{"progress": "{progress}"}},
                "proto_stack": {{{buffers}}}}}"#
            );
            let config =
                load_bytes("test", text.as_bytes()).unwrap_or_else(|faults| panic!("{faults}"));
            layout(&config)
        };
        assert_eq!(of("dedicated", "").tx_ring_bytes, 256 << 10);
        let inline = of("inline", "");
        assert_eq!(
            (inline.rx_ring_bytes, inline.tx_ring_bytes),
            (256 << 10, 128 << 10)
        );
        assert_eq!(
            of("inline", r#""def_sendbuf": 1048576"#).tx_ring_bytes,
            1 << 20
        );
        assert_eq!(
            of("inline", r#""max_sendbuf": 65536"#).tx_ring_bytes,
            64 << 10
        );
    }

    #[test]
    fn the_page_says_what_the_config_says() {
        let page = PolicyPage::default();
        let wanted = config(
            r#""on_error": "fail", "accelerate": {"programs": ["redis-server"], "ports": [80, 82, 81, 443]}"#,
        );
        fill(&page, &wanted, "/usr/bin/redis-server").unwrap();
        assert!(page.is_ours([10, 0, 0, 1].into()) && !page.is_ours([10, 0, 0, 2].into()));
        assert!(page.accelerates_port(81) && page.accelerates_port(443));
        assert!(!page.accelerates_port(83));
        assert_eq!(page.port_range_count.load(Ordering::Relaxed), 2);
        assert!(page.has(policy_flag::ON_ERROR_FAIL));
        assert!(!page.has(policy_flag::PROGRAM_EXCLUDED));
        fill(&page, &wanted, "/usr/bin/nginx").unwrap();
        assert!(page.has(policy_flag::PROGRAM_EXCLUDED));
    }

    #[test]
    fn a_port_that_is_an_interface_has_its_number() {
        assert_eq!(interface(&PortChoice::Netdev("lo".to_owned())), 1);
        assert_eq!(interface(&PortChoice::Netdev("nosuch0".to_owned())), 0);
        let page = PolicyPage::default();
        fill(&page, &config(""), "/x").unwrap();
        assert_eq!(page.interface.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_config_that_does_not_fit_is_refused() {
        let ports: Vec<String> = (1..=33).map(|port| (port * 2).to_string()).collect();
        let wanted = config(&format!(
            r#""accelerate": {{"ports": [{}]}}"#,
            ports.join(", ")
        ));
        assert!(fill(&PolicyPage::default(), &wanted, "/x").is_err());
    }

    #[test]
    fn families_share_what_there_is() {
        let wanted = config("");
        let shared = share(&wanted, None);
        assert_eq!(shared.flows, 4_096);
        // 128 of them may have 2 MiB each way.
        let more = 128 * ((4 << 20) - (512 << 10));
        assert_eq!(shared.ring_bytes, 4_096 * (512 << 10) + more);
        assert_eq!(share(&wanted, Some(1 << 30)).ring_bytes, 512 << 20);
    }

    #[test]
    fn rings_hold_a_window_whatever_k_net_calls_the_default() {
        let layout = layout(&config(""));
        assert_eq!(layout.rx_ring_bytes, 256 << 10);
        assert_eq!(layout.objects, 8_192);
        assert_eq!(layout.rx_bytes(64), 256 << 10);
        assert_eq!(
            (layout.rx_bytes(63), layout.tx_bytes(4_096)),
            (2 << 20, 2 << 20)
        );
        let inline = super::layout(&config(r#""progress": "inline""#));
        assert_eq!(inline.rx_bytes(0), 256 << 10);
    }
}
