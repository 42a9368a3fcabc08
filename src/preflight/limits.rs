//! Resource limits of this process, which programs and private hosts inherit.

use super::{Machine, Report, needs_dpdk};
use crate::config::{Config, Mode, PortChoice, Vdev};

/// Descriptors that a program needs beside one for each connection.
const OTHER_DESCRIPTORS: u64 = 64;
/// A segment of the channel (design D1).
const SEGMENT_BYTES: u64 = 64 << 20;
/// The address space of a host: EAL without hugepages, two segments, libraries.
const HOST_SPACE_BYTES: u64 = 512 << 20;
/// The address space that EAL reserves when it uses hugepages.
const HUGEPAGE_SPACE_BYTES: u64 = 136 << 30;
/// CAP_IPC_LOCK, which lifts RLIMIT_MEMLOCK.
const IPC_LOCK: u32 = 14;

pub(super) fn check(config: &Config, machine: &Machine, report: &mut Report) {
    let limits = machine.limits;
    let descriptors = u64::from(config.tcp.max_connections) + OTHER_DESCRIPTORS;
    if let Some(limit) = limits.nofile.filter(|limit| *limit < descriptors) {
        let what = format!(
            "{limit} descriptors: accept fails with EMFILE before max_tcpcb ({})",
            config.tcp.max_connections
        );
        report.warning(
            "ulimit -n",
            what,
            format!("at least {descriptors}, or a lower proto_stack.max_tcpcb"),
        );
    }
    // What follows binds the host, and with mode 1 that is not started from here.
    if config.mode == Mode::Shared {
        return;
    }
    if let Some(limit) = limits.fsize.filter(|limit| *limit < SEGMENT_BYTES) {
        let what = format!(
            "files end at {limit} bytes, and shared memory comes in segments of {SEGMENT_BYTES}"
        );
        report.error("ulimit -f", what, "ulimit -f unlimited");
    }
    if let Some(limit) = limits.address_space {
        let hugepages = machine.hugepages_free.iter().any(|free| *free > 0);
        if limit < HOST_SPACE_BYTES {
            let what = format!(
                "{} MiB of address space, {} needed",
                limit >> 20,
                HOST_SPACE_BYTES >> 20
            );
            report.error("ulimit -v", what, "ulimit -v unlimited");
        } else if needs_dpdk(config) && hugepages && limit < HUGEPAGE_SPACE_BYTES {
            let what = format!(
                "{} MiB of address space: too little for hugepages, of which EAL reserves 134 GB",
                limit >> 20
            );
            report.warning("ulimit -v", what, "ulimit -v unlimited");
        }
    }
    let locks = match &config.port {
        PortChoice::Bdf(_) => true,
        PortChoice::Vdev(Vdev::Eal(text)) => text.starts_with("net_af_xdp"),
        _ => false,
    };
    let wanted = u64::from(config.dpdk.mbufs) * 2_560;
    if let Some(limit) = limits
        .memlock
        .filter(|limit| locks && *limit < wanted && !machine.can(IPC_LOCK))
    {
        let what = format!("{limit} bytes of locked memory, {wanted} needed for packet buffers");
        report.error("ulimit -l", what, "ulimit -l unlimited, or CAP_IPC_LOCK");
    }
}
