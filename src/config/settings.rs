//! The checked config: types that cannot be wrong, so that nobody checks again.

use core::net::{Ipv4Addr, Ipv6Addr, SocketAddrV4};
use core::time::Duration;
use std::path::PathBuf;

use super::address::Route;
use super::error::Remark;
use super::payload::Gpu;
use super::port::PortChoice;
use crate::id::CpuId;
use crate::telemetry::Level;

/// A whole, accepted config.
#[derive(Clone, Debug)]
pub struct Config {
    /// Path of the file, as it was given.
    pub file: String,
    /// [`super::config_hash`] of the file's bytes.
    pub hash: u64,
    /// `common.mode`
    pub mode: Mode,
    /// `common.log_level`
    pub log_level: Level,
    /// `common.on_error`
    pub on_error: OnError,
    /// `common.on_host_lost`
    pub on_host_lost: OnHostLost,
    /// `common.accelerate`
    pub accelerate: Accelerate,
    /// How the loop is driven and idles.
    pub run: Run,
    /// `common.linger_s`: a host with no client and no flow stays this long.
    pub linger: Duration,
    /// `common.linger_max_s`: what programs left behind is given up after this.
    pub linger_max: Duration,
    /// The port.
    pub port: PortChoice,
    /// `interface.exclusive`: a netdev is taken although it carries the default route or other addresses.
    pub exclusive: bool,
    /// The network on the port.
    pub network: Network,
    /// `hw_offload`
    pub offload: Offload,
    /// `proto_stack`, what TCP needs.
    pub tcp: Tcp,
    /// `proto_stack`, socket buffers.
    pub buffers: Buffers,
    /// `dpdk`
    pub dpdk: Dpdk,
    /// `common.metrics`
    pub metrics: Option<MetricsAt>,
    /// `gpu`, or None when it is not enabled.
    pub gpu: Option<Gpu>,
    /// What an operator should know about the file.
    pub remarks: Vec<Remark>,
}

/// `common.mode`
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// 0: a program family starts its own host.
    Private,
    /// 1: the system's host serves all.
    Shared,
}

/// `common.on_error`
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OnError {
    /// Kernel sockets where the kernel can serve.
    Kernel,
    /// Refuse.
    Fail,
}

/// `common.on_host_lost`
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OnHostLost {
    /// New sockets go to the kernel.
    Kernel,
    /// New sockets wait.
    Wait,
}

/// `common.metrics`
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MetricsAt {
    /// A stream socket at an absolute path.
    Unix(PathBuf),
    /// A loopback address and port of the kernel.
    Loopback(SocketAddrV4),
}

/// `common.accelerate`: an empty list means all.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Accelerate {
    /// Program names without a slash, or absolute paths.
    pub programs: Vec<String>,
    /// Local ports of listeners and remote ports of connections.
    pub ports: Vec<u16>,
    /// Some of our addresses.
    pub addresses: Vec<Ipv4Addr>,
}

/// How the loop is driven and idles.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run {
    /// `common.progress`, or `cothread_enable`
    pub progress: Progress,
    /// `common.idle`
    pub idle: Idle,
    /// `common.spin_us`
    pub spin: Duration,
    /// `common.budget_us`
    pub budget: Duration,
    /// `common.inline_grace_us`
    pub inline_grace: Duration,
}

/// `common.progress`
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// The host's lcores poll their cores.
    Dedicated,
    /// The program's own thread drives the loop while it waits.
    Inline,
}

/// `common.idle`
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Idle {
    /// Never sleep.
    Spin,
    /// Poll for `spin`, then sleep until something happens.
    Adaptive,
}

/// The network on the port.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Network {
    /// `interface.mac`; None: the port's own.
    pub mac: Option<[u8; 6]>,
    /// `interface.ip` with its netmask, then `interface.addresses`: at least one, each once.
    pub addresses: Vec<(Ipv4Addr, u8)>,
    /// `interface.ip6`: not served by this version.
    pub addresses6: Vec<(Ipv6Addr, u8)>,
    /// `interface.gateway`, inside one of our networks.
    pub gateway: Option<Ipv4Addr>,
    /// `interface.routes`, each next hop inside one of our networks.
    pub routes: Vec<Route>,
    /// `interface.vlan`, 1 to 4094.
    pub vlan: Option<u16>,
    /// `interface.mtu`, 256 to 9600 bytes.
    pub mtu: u16,
}

/// `hw_offload`
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Offload {
    /// Segmentation; implies `tcp_checksum`.
    pub tso: bool,
    /// Receive merging; implies `tcp_checksum`.
    pub lro: bool,
    /// IPv4 and TCP checksums both ways.
    pub tcp_checksum: bool,
}

/// `proto_stack`, what TCP needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tcp {
    /// `max_tcpcb`
    pub max_connections: u32,
    /// `max_arp`
    pub max_neighbors: u32,
    /// `tcp_sack`
    pub sack: bool,
    /// `tcp_dack`
    pub delayed_ack: bool,
    /// `tcp_cookie`
    pub cookies: bool,
    /// `msl_time`
    pub msl: Duration,
    /// `fin_timeout`
    pub fin_timeout: Duration,
    /// `synack_retries`
    pub synack_retries: u8,
    /// `min_port` and `max_port`
    pub ephemeral_ports: (u16, u16),
}

/// `proto_stack`, socket buffers in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Buffers {
    /// `def_sendbuf`
    pub send_default: u32,
    /// `max_sendbuf`, not below `send_default`
    pub send_max: u32,
    /// `def_recvbuf`
    pub receive_default: u32,
    /// `max_recvbuf`, not below `receive_default`
    pub receive_max: u32,
}

/// A ring of a connection holds at least this (design D1), where `max_recvbuf` and `max_sendbuf` allow it.
const RING_BYTES_MIN: u32 = 256 << 10;
/// What a program writes is taken out of its ring in its next wait where its own threads drive, and a ring that is used walks out of
/// the second-level cache: more than this there is slower.
const INLINE_SEND_RING_BYTES: u32 = 128 << 10;
/// Where an lcore shares its CPU with others, each end waits for time slices of some milliseconds, in which this much should be under way.
const LARGE_RING_BYTES: u32 = 2 << 20;
/// Larger rings would not pay: the window beyond this is a matter of long fat pipes.
const RING_BYTES_MAX: u32 = 4 << 20;

impl Buffers {
    /// Bytes of a connection that may be unacknowledged at a time, besides those in its rings.
    pub const UNACKNOWLEDGED: u32 = 256 << 10;

    /// Bytes of the rings of the few connections that may have larger ones.
    #[must_use]
    pub fn large_ring(&self) -> u32 {
        LARGE_RING_BYTES.min(self.receive_max).min(self.send_max)
    }

    /// Bytes of a connection's receive ring.
    #[must_use]
    pub fn receive_ring(&self) -> u32 {
        ring(self.receive_default, self.receive_max)
    }

    /// Bytes of a connection's transmit ring.
    #[must_use]
    pub fn send_ring(&self) -> u32 {
        ring(self.send_default, self.send_max)
    }

    /// The same where the program's own threads drive.
    #[must_use]
    pub fn inline_send_ring(&self) -> u32 {
        self.send_default
            .max(INLINE_SEND_RING_BYTES)
            .min(self.send_ring())
    }
}

fn ring(default: u32, max: u32) -> u32 {
    default.max(RING_BYTES_MIN).min(max).min(RING_BYTES_MAX)
}

/// `dpdk`
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Dpdk {
    /// `core_list_global`, an lcore for each; None: one, whose CPU is chosen at run time.
    pub cores: Option<Vec<CpuId>>,
    /// Data-plane threads: as many as `cores`, else `max_worker_num`.
    pub workers: u32,
    /// `max_mbuf`
    pub mbufs: u32,
    /// `tx_cache_size`
    pub tx_descriptors: u16,
    /// `rx_cache_size`
    pub rx_descriptors: u16,
    /// `socket_mem`: MB for each NUMA node; None: as much as the port needs.
    pub socket_mem_mb: Option<Vec<u32>>,
    /// `socket_limit`: MB for each NUMA node at most.
    pub socket_limit_mb: Option<Vec<u32>>,
    /// `external_driver`: the library's name, for EAL's `-d`.
    pub external_driver: Option<String>,
    /// `telemetry`
    pub telemetry: bool,
    /// `huge_dir`: an absolute folder.
    pub huge_dir: Option<String>,
    /// `base-virtaddr`
    pub base_virtaddr: Option<u64>,
}
