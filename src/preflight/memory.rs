//! Memory needed against memory there is.

use super::{Machine, Report, needs_dpdk};
use crate::config::{Buffers, Config};

const MEBIBYTE: u64 = 1 << 20;
/// A packet buffer of 2 KiB with its header and its share of the pool.
const MBUF_BYTES: u64 = 2_560;
/// EAL and the host before any packet buffer.
const HOST_BYTES: u64 = 32 * MEBIBYTE;
/// A connection with one request and reply behind it (design section 5).
const CONNECTION_BYTES: u64 = 24 * 1024;

pub(super) fn check(config: &Config, machine: &Machine, report: &mut Report) {
    let pool = if needs_dpdk(config) {
        u64::from(config.dpdk.mbufs) * MBUF_BYTES
    } else {
        0
    };
    let hugepages: u64 = machine
        .hugepages_free
        .iter()
        .fold(0, |sum, node| sum.saturating_add(*node));
    let in_hugepages = needs_dpdk(config) && hugepages >= pool && pool > 0;
    let ordinary = HOST_BYTES + if in_hugepages { 0 } else { pool };
    let connections = u64::from(config.tcp.max_connections) * CONNECTION_BYTES;
    let buffers = config.buffers;
    let full = u64::from(config.tcp.max_connections)
        * (u64::from(buffers.receive_ring())
            + u64::from(buffers.send_ring())
            + u64::from(Buffers::UNACKNOWLEDGED));
    if let Some(available) = machine.memory_available {
        if ordinary > available {
            let what = format!("{} needed, {} available", show(ordinary), show(available));
            report.error("memory", what, "lower proto_stack.max_mbuf, or free memory");
        } else if ordinary + connections > available {
            let what = format!(
                "{} connections may need {} more, {} available",
                config.tcp.max_connections,
                show(connections),
                show(available)
            );
            report.warning("memory", what, "lower proto_stack.max_tcpcb, or add memory");
        } else {
            let what = format!(
                "{} for the host, {} for {} connections with short messages, {} with all their buffers full, {} available",
                show(ordinary),
                show(connections),
                config.tcp.max_connections,
                show(full),
                show(available)
            );
            report.info("memory", what, "");
        }
    }
    if needs_dpdk(config) {
        check_hugepages(config, machine, pool, hugepages, report);
    }
}

fn check_hugepages(config: &Config, machine: &Machine, pool: u64, free: u64, report: &mut Report) {
    let reserve = "dpdk-hugepages.py --setup SIZE, or echo PAGES > /proc/sys/vm/nr_hugepages";
    if let Some(wanted) = &config.dpdk.socket_mem_mb {
        for (node, megabytes) in wanted.iter().enumerate() {
            let wanted = u64::from(*megabytes) * MEBIBYTE;
            let free = machine.hugepages_free.get(node).copied().unwrap_or(0);
            if wanted > free {
                let what = format!(
                    "{} wanted on NUMA node {node}, {} of hugepages free: ordinary pages are used",
                    show(wanted),
                    show(free)
                );
                report.warning("dpdk.socket_mem", what, reserve);
            }
        }
        let node = machine.pci.as_ref().and_then(|pci| pci.node);
        if let Some(node) = node.filter(|node| wanted.get(*node).copied().unwrap_or(0) == 0) {
            let what = format!("none for NUMA node {node}, where the port is");
            report.warning(
                "dpdk.socket_mem",
                what,
                format!("--socket-mem={}MB", "0,".repeat(node)),
            );
        }
    } else if free < pool {
        let what = format!(
            "{} for packet buffers, {} of hugepages free: ordinary pages are used",
            show(pool),
            show(free)
        );
        report.info("hugepages", what, reserve);
    }
    if let Some(folder) = config
        .dpdk
        .huge_dir
        .as_deref()
        .filter(|folder| !std::path::Path::new(folder).is_dir())
    {
        report.error(
            "dpdk.huge_dir",
            format!("there is no folder {folder}"),
            "mount -t hugetlbfs hugetlbfs FOLDER, or leave it out",
        );
    }
}

fn show(bytes: u64) -> String {
    format!("{} MiB", bytes.div_ceil(MEBIBYTE))
}
