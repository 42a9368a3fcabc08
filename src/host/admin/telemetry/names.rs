//! K-NET's statistics by name, and which counters of ours stand behind each.
//!
//! Order and spelling are K-NET's. A counter of the lcore is written `lcore.NAME`, one of the port `port.NAME`, what is there
//! now `now.NAME`, one of the stack plainly. A name without a counter has no counterpart here and is 0.

mod abnormal;
mod memory;
mod packet;
#[cfg(test)]
mod page;
mod socket;
mod tcp;

pub(super) use abnormal::ABNORMAL;
pub(super) use memory::{BUFFERS, MEMORY};
pub(super) use packet::PACKETS;
pub(super) use socket::{CONNECTIONS, INTERNET, SOCKET, TCP_BASE, TCP_TRANSMISSION};
pub(super) use tcp::TCP;

/// A statistic: its name, and the counters that add up to it.
pub(super) type Name = (&'static str, &'static [&'static str]);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lcore::LcoreCounters;
    use crate::stack::StackCounters;
    use std::collections::BTreeSet;

    fn path(name: &str) -> std::path::PathBuf {
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
    }

    #[test]
    fn names_are_those_of_knet_in_its_order() {
        let text = std::fs::read_to_string(path("tests/fixtures/knet_keys.txt")).unwrap();
        let wanted = |group: &str| -> Vec<String> {
            let lines = text.lines().filter_map(|line| line.split_once(' '));
            let of = lines.filter(|(other, _)| *other == group);
            of.map(|(_, name)| name.to_owned()).collect()
        };
        let first = |names: &[Name]| names.iter().map(|(name, _)| *name).collect::<Vec<_>>();
        assert_eq!(first(TCP), wanted("tcp_stat"));
        assert_eq!(first(PACKETS), wanted("pkt_stat"));
        assert_eq!(first(ABNORMAL), wanted("abn_stat"));
        assert_eq!(first(MEMORY), wanted("mem_stat"));
        assert_eq!(first(BUFFERS), wanted("pbuf_stat"));
        for (names, group) in [
            (CONNECTIONS, "conn_stat"),
            (SOCKET, "SockInfo"),
            (INTERNET, "InetSkInfo"),
            (TCP_BASE, "TcpBaseInfo"),
            (TCP_TRANSMISSION, "TcpTransInfo"),
        ] {
            assert_eq!(names, wanted(group), "{group}");
        }
    }

    #[test]
    fn every_counter_behind_a_name_exists() {
        let own = "port.rx_frames port.tx_frames port.buffer_bytes port.buffer_bytes_free now.channel_bytes now.ring_bytes \
                   now.send_buffer_bytes now.send_buffer_bytes_free flows.segments_to_send flows.segments_to_read";
        let mut known: BTreeSet<String> = own.split_whitespace().map(str::to_owned).collect();
        StackCounters::new().for_each(|name, _| {
            known.insert(name.to_owned());
        });
        LcoreCounters::new().for_each(|name, _| {
            known.insert(format!("lcore.{name}"));
        });
        for (name, counters) in [TCP, PACKETS, ABNORMAL, MEMORY, BUFFERS].concat() {
            for counter in counters {
                assert!(known.contains(*counter), "{name}: {counter}");
            }
        }
    }

    #[test]
    fn the_page_is_the_codes() {
        let made = page::reference();
        let page = path("docs/telemetry.md");
        if std::env::var_os("KNET_BLESS").is_some() {
            std::fs::write(&page, &made).unwrap();
        }
        assert_eq!(
            std::fs::read_to_string(page).unwrap(),
            made,
            "KNET_BLESS=1 writes it"
        );
    }
}
