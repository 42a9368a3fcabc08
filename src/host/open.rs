//! From a config to an open port and the stack that drives it.

use core::net::Ipv4Addr;
use std::path::PathBuf;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::config::{Buffers, Config, PortChoice, Vdev, VdevArgs};
use crate::device::plugin::{PluginConfig, PluginDevice, PortSelector, vdev_for_netdev};
use crate::device::rss::KEY_BYTES;
use crate::device::{Device, open_builtin};
use crate::errno::Errno;
use crate::preflight::install::Places;
use crate::preflight::{self, Machine, Severity};
use crate::stack::{Interface4, PortWalk, Route4, StackConfig};

/// How received flows are spread.
#[derive(Clone, Debug)]
pub(super) struct Spread {
    /// Lcores, each of which takes a queue pair where the port has so many.
    pub(super) lcores: usize,
    /// The key of the hash by which they are spread.
    pub(super) key: [u8; KEY_BYTES],
}

/// Opens the port of `config`; `cpu` is what EAL calls its lcore 0. `inside` a program the plug-in does not lie beside the
/// running binary, and others print as well.
///
/// # Errors
/// One line for the operator.
pub(super) fn device(
    config: &Config,
    cpu: u32,
    inside: Option<&Option<PathBuf>>,
    spread: &Spread,
) -> Result<Box<dyn Device>, String> {
    let mtu = usize::from(config.network.mtu);
    match &config.port {
        PortChoice::Vdev(Vdev::KnetUnix(args)) => builtin("knet_unix", args, config, mtu),
        PortChoice::Vdev(Vdev::KnetPair(args)) => builtin("knet_pair", args, config, mtu),
        PortChoice::Vdev(Vdev::Eal(text)) => {
            check_machine(config)?;
            clear_dead_socket(text);
            plugin(
                PortSelector::Vdev(text.clone()),
                config,
                cpu,
                inside,
                spread,
            )
        }
        PortChoice::Bdf(bdf) => {
            check_machine(config)?;
            plugin(
                PortSelector::Bdf(bdf.to_string()),
                config,
                cpu,
                inside,
                spread,
            )
        }
        PortChoice::Netdev(name) => {
            check_machine(config)?;
            plugin(
                PortSelector::Vdev(vdev_for_netdev(name)),
                config,
                cpu,
                inside,
                spread,
            )
        }
    }
}

fn builtin(
    name: &str,
    args: &VdevArgs,
    config: &Config,
    mtu: usize,
) -> Result<Box<dyn Device>, String> {
    let mac = config
        .network
        .mac
        .unwrap_or_else(|| local_mac(first_address(config)));
    open_builtin(name, &args.0, mac, mtu).map_err(|error| error.message)
}

/// A locally administered address (IEEE 802 section 8.2) that no other host of the network makes.
fn local_mac(address: Ipv4Addr) -> [u8; 6] {
    let [a, b, c, d] = address.octets();
    [0x02, 0x6b, a, b, c, d]
}

fn first_address(config: &Config) -> Ipv4Addr {
    config
        .network
        .addresses
        .first()
        .map_or(Ipv4Addr::UNSPECIFIED, |(address, _)| *address)
}

/// vhost does not begin at a path where the socket of a process lies that was killed.
fn clear_dead_socket(vdev: &str) {
    let mut parts = vdev.split(',');
    let is_vhost = parts
        .next()
        .is_some_and(|name| name.starts_with("net_vhost"));
    let mut path = None;
    for part in parts {
        path = part.strip_prefix("iface=").or(path);
        if part == "client=1" {
            return;
        }
    }
    let (true, Some(path)) = (is_vhost, path) else {
        return;
    };
    let refused = SocketAddrUnix::new(path).and_then(|address| {
        let flags = SocketFlags::CLOEXEC;
        let probe = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        Ok(rustix::net::connect(&probe, &address) == Err(Errno::CONNREFUSED))
    });
    if refused == Ok(true) {
        // What is in the way for another reason is told by the driver.
        let removed = rustix::fs::unlink(path).is_ok();
        crate::info!("socket={path} event=was_dead removed={removed}");
    }
}

/// Receive descriptors of a port. A ring that the kernel fills for a thread which may have to wait for its CPU must hold
/// what comes meanwhile, a request of each of a thousand clients: a lost one costs its client 200 ms. It takes no buffers
/// of ours to be longer.
fn rx_entries(port: &PortSelector, wanted: u32) -> u32 {
    match port {
        PortSelector::Vdev(vdev)
            if vdev.starts_with("net_af_packet") || vdev.starts_with("net_af_xdp") =>
        {
            wanted.max(KERNEL_RING_ENTRIES)
        }
        _ => wanted,
    }
}

/// As many as af_xdp puts into its fill ring.
const KERNEL_RING_ENTRIES: u32 = 2_048;

fn plugin(
    port: PortSelector,
    config: &Config,
    cpu: u32,
    inside: Option<&Option<PathBuf>>,
    spread: &Spread,
) -> Result<Box<dyn Device>, String> {
    let dpdk = &config.dpdk;
    let megabytes = |list: &Option<Vec<u32>>| {
        list.as_ref().map(|list| {
            let texts: Vec<String> = list.iter().map(u32::to_string).collect();
            texts.join(",")
        })
    };
    let mut wanted = PluginConfig::new(port, format!("knet-{}", std::process::id()));
    wanted.mtu = usize::from(config.network.mtu);
    wanted.queues = spread.lcores;
    wanted.rss_key = spread.key;
    wanted.rx_ring_entries = rx_entries(&wanted.port, u32::from(dpdk.rx_descriptors));
    wanted.tx_ring_entries = u32::from(dpdk.tx_descriptors);
    wanted.pool_mbufs = dpdk.mbufs;
    wanted.mac = config.network.mac;
    wanted.want_checksum = config.offload.tcp_checksum;
    wanted.want_tso = config.offload.tso;
    wanted.want_lro = config.offload.lro;
    wanted.lcore_cpu = cpu;
    wanted.external_driver = dpdk.external_driver.clone();
    wanted.huge_dir = dpdk.huge_dir.clone();
    wanted.base_virtaddr = dpdk.base_virtaddr.map(|at| format!("{at:#x}"));
    wanted.socket_mem = megabytes(&dpdk.socket_mem_mb);
    wanted.socket_limit = megabytes(&dpdk.socket_limit_mb);
    wanted.telemetry = dpdk.telemetry;
    if let Some(library) = inside {
        wanted.library.clone_from(library);
        wanted.own_process = false;
    }
    PluginDevice::open(&wanted)
        .map(|device| Box::new(device) as Box<dyn Device>)
        .map_err(|error| error.message)
}

/// What preflight says of a kernel interface, that it is ours alone (design D4), and of the privileges that the port asks
/// for.
fn check_machine(config: &Config) -> Result<(), String> {
    let places = Places::of_this_process().map_err(|error| format!("own path unknown: {error}"))?;
    let machine = Machine::gather(config, &places);
    let errors: Vec<String> = preflight::check(config, &machine)
        .iter()
        .filter(|finding| finding.severity == Severity::Error)
        .filter(|finding| {
            finding.subject.starts_with("interface") || finding.subject == "privileges"
        })
        .map(ToString::to_string)
        .collect();
    if errors.is_empty() {
        Ok(())
    } else {
        Err(errors.join("; "))
    }
}

/// Bytes of memory that can be had; None when the machine does not tell.
pub(super) fn memory_available(config: &Config) -> Option<u64> {
    let places = Places::of_this_process().ok()?;
    Machine::gather(config, &places).memory_available
}

/// What the stack must be told for this port; `secret` is random.
pub(super) fn stack(
    config: &Config,
    device: &dyn Device,
    walk: PortWalk,
    secret: [u8; 16],
) -> StackConfig {
    let port = device.capabilities();
    let network = &config.network;
    StackConfig {
        mac: network.mac.unwrap_or(port.mac),
        mtu: port.mtu.min(usize::from(network.mtu)),
        vlan: network.vlan,
        addresses: network
            .addresses
            .iter()
            .map(|&(address, prefix_len)| Interface4 {
                address,
                prefix_len,
            })
            .collect(),
        gateway: network.gateway,
        routes: network
            .routes
            .iter()
            .map(|route| Route4 {
                destination: route.destination,
                prefix_len: route.prefix_len,
                gateway: route.gateway,
            })
            .collect(),
        rx_checksum_offload: port.rx_checksum,
        tx_checksum_offload: port.tx_checksum,
        tso_bytes: port.tso_bytes,
        trust_checksum: port.trust_checksum,
        max_flows: config.tcp.max_connections as usize,
        max_neighbors: config.tcp.max_neighbors as usize,
        msl: config.tcp.msl,
        fin_timeout: config.tcp.fin_timeout,
        synack_retries: config.tcp.synack_retries,
        syn_retries: SYN_RETRIES,
        user_timeout: USER_TIMEOUT,
        orphan_timeout: config.linger_max,
        ephemeral_ports: config.tcp.ephemeral_ports,
        tx_buffer_bytes: Buffers::UNACKNOWLEDGED as usize,
        walk,
        secret,
    }
}

/// Linux `net.ipv4.tcp_syn_retries`.
const SYN_RETRIES: u8 = 6;
/// What Linux `net.ipv4.tcp_retries2` = 15 comes to.
const USER_TIMEOUT: core::time::Duration = core::time::Duration::from_millis(924_600);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dead_vhost_socket_is_cleared_and_a_live_one_is_not() {
        let path = std::env::temp_dir().join(format!("knet-vhost-{}", std::process::id()));
        let text = format!("net_vhost0,iface={},tso=1", path.display());
        let live = std::os::unix::net::UnixListener::bind(&path).unwrap();
        clear_dead_socket(&text);
        assert!(path.exists());
        drop(live);
        clear_dead_socket(&format!("{text},client=1"));
        clear_dead_socket(&text.replace("net_vhost", "net_virtio_user"));
        assert!(path.exists());
        clear_dead_socket(&text);
        assert!(!path.exists());
    }

    #[test]
    fn rings_that_the_kernel_fills_are_long() {
        let entries = |vdev: &str, wanted| rx_entries(&PortSelector::Vdev(vdev.to_owned()), wanted);
        assert_eq!(entries("net_af_xdp0,iface=v0", 256), 2_048);
        assert_eq!(entries("net_af_packet0,iface=v0", 4_096), 4_096);
        assert_eq!(entries("net_vhost0,iface=s", 256), 256);
        assert_eq!(
            rx_entries(&PortSelector::Bdf("0000:04:00.0".to_owned()), 256),
            256
        );
    }
}
