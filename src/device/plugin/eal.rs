//! What the operator wants of DPDK, as EAL's argument vector: pure text, no DPDK in it.

use std::path::PathBuf;

use crate::device::DeviceError;
use crate::device::plugin_abi::RSS_KEY_BYTES;

/// Which port.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PortSelector {
    /// A PCI device by its address, `0000:04:00.0`.
    Bdf(String),
    /// A virtual device with its arguments, `net_af_packet0,iface=veth0`.
    Vdev(String),
}

impl core::fmt::Display for PortSelector {
    fn fmt(&self, out: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Bdf(text) | Self::Vdev(text) => out.write_str(text),
        }
    }
}

/// How to open a DPDK port.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PluginConfig {
    /// The plug-in's file; None looks beside the running program, then on the library path.
    pub library: Option<PathBuf>,
    /// More EAL arguments, passed on as they are, last.
    pub eal_args: Vec<String>,
    /// The port.
    pub port: PortSelector,
    /// Largest IP packet in bytes.
    pub mtu: usize,
    /// Queue pairs, one an lcore.
    pub queues: usize,
    /// The key by which the port spreads received flows over several queues.
    pub rss_key: [u8; RSS_KEY_BYTES],
    /// Receive descriptors a queue.
    pub rx_ring_entries: u32,
    /// Transmit descriptors a queue.
    pub tx_ring_entries: u32,
    /// Packet buffers in the pool (K-NET `max_mbuf`).
    pub pool_mbufs: u32,
    /// A MAC address to set; None keeps the port's own.
    pub mac: Option<[u8; 6]>,
    /// Use checksum offloads where the port has them.
    pub want_checksum: bool,
    /// Use TCP segmentation offload where the port has it.
    pub want_tso: bool,
    /// Use receive merging where the port has it.
    pub want_lro: bool,
    /// The CPU that EAL calls its lcore 0.
    pub lcore_cpu: u32,
    /// EAL's file prefix, unique on the machine: `knet-PID`.
    pub file_prefix: String,
    /// A driver to load (`librte_net_x.so`; K-NET `external_driver`, with or without its `-d`).
    pub external_driver: Option<String>,
    /// A hugetlbfs folder (K-NET `huge_dir`), used with hugepages.
    pub huge_dir: Option<String>,
    /// Where EAL maps its memory, in hexadecimal (K-NET `base-virtaddr`).
    pub base_virtaddr: Option<String>,
    /// Megabytes of hugepages for each NUMA node (K-NET `socket_mem`, without the option's name).
    pub socket_mem: Option<String>,
    /// The same, as a limit (K-NET `socket_limit`).
    pub socket_limit: Option<String>,
    /// Open DPDK's telemetry socket.
    pub telemetry: bool,
    /// The process is the host's own, so that what DPDK's libraries print while they start may be
    /// caught; false where the host runs inside a program that prints as well.
    pub own_process: bool,
}

impl PluginConfig {
    /// The defaults for `port`: one queue pair, MTU 1500, 8191 buffers, rings of 512, all offloads.
    #[must_use]
    pub fn new(port: PortSelector, file_prefix: String) -> Self {
        Self {
            library: None,
            eal_args: Vec::new(),
            port,
            mtu: DEFAULT_MTU,
            queues: 1,
            rss_key: [0; RSS_KEY_BYTES],
            rx_ring_entries: 512,
            tx_ring_entries: 512,
            pool_mbufs: 8191,
            mac: None,
            want_checksum: true,
            want_tso: false,
            want_lro: false,
            lcore_cpu: 0,
            file_prefix,
            external_driver: None,
            huge_dir: None,
            base_virtaddr: None,
            socket_mem: None,
            socket_limit: None,
            telemetry: false,
            own_process: true,
        }
    }

    /// The port's EAL name: the BDF, or the virtual device's name up to the comma.
    #[must_use]
    pub fn port_name(&self) -> &str {
        match &self.port {
            PortSelector::Bdf(bdf) => bdf,
            PortSelector::Vdev(vdev) => vdev.split(',').next().unwrap_or(vdev),
        }
    }

    /// Bytes of a frame that fit into one buffer.
    pub(super) fn mbuf_room(&self) -> usize {
        // af_packet copies out of its ring and wants room for a whole ring frame.
        let ring_frame = match &self.port {
            PortSelector::Vdev(vdev) => self.vdev_argument(vdev, "framesz").unwrap_or(0),
            PortSelector::Bdf(_) => 0,
        };
        // Some drivers put a header of their own in front (virtio 12 bytes), and refuse a buffer that does not hold both.
        let frame = self.mtu.saturating_add(FRAME_OVERHEAD + DRIVER_HEADER);
        DEFAULT_ROOM.max(frame).max(ring_frame)
    }

    /// Buffers in the pool. af_xdp takes 2048 a queue for its fill ring before it receives anything.
    pub(super) fn mbufs(&self) -> u32 {
        match &self.port {
            PortSelector::Vdev(vdev) if vdev.starts_with("net_af_xdp") => {
                let queues = u32::try_from(self.queues).unwrap_or(u32::MAX);
                self.pool_mbufs
                    .max(queues.saturating_mul(2 * XDP_FILL_MBUFS))
            }
            _ => self.pool_mbufs,
        }
    }

    /// Buffers for super-frames; none when neither TSO nor LRO is wanted.
    pub(super) fn large_mbufs(&self) -> usize {
        if self.want_tso || self.want_lro {
            self.queues.saturating_mul(LARGE_MBUFS)
        } else {
            0
        }
    }

    /// Large buffers to receive into, where a super-frame would come as a chain of usual ones and have to be copied together.
    pub(super) fn rx_large_mbufs(&self) -> usize {
        let peer_sends_large = self.is_vdev("net_vhost") && (self.want_tso || self.want_lro);
        if peer_sends_large || self.lays_out_large() {
            self.queues.saturating_mul(RX_LARGE_MBUFS)
        } else {
            0
        }
    }

    /// What each half of a queue may keep, by the pool that its frames lie in; `merged`: super-frames may come as chains, which are
    /// joined in the large buffers to send from.
    pub(super) fn shares(&self, merged: bool) -> Shares {
        let share = |frames: usize, part: usize| frames / part / self.queues.max(1);
        let usual = share(self.mbufs() as usize, KEPT_SHARE);
        let large = share(self.large_mbufs(), LARGE_KEPT_SHARE);
        let received = match self.rx_large_mbufs() {
            0 if merged => usual.min(large),
            0 => usual,
            frames => share(frames, KEPT_SHARE),
        };
        Shares {
            received,
            sent: usual,
            sent_large: large,
        }
    }

    /// Receive descriptors a queue.
    pub(super) fn rx_entries(&self) -> u32 {
        if self.lays_out_large() {
            self.rx_ring_entries.min(RX_LARGE_ENTRIES)
        } else {
            self.rx_ring_entries
        }
    }

    /// Bytes of the largest super-frame to send.
    pub(super) fn super_bytes(&self) -> usize {
        if self.is_vdev("net_vhost") || self.is_vdev("net_virtio_user") {
            COPIED_SUPER_BYTES
        } else {
            LARGE_ROOM
        }
    }

    /// Super-frames are wanted of a port whose peer is to be asked whether it takes any.
    pub(super) fn wants_to_ask_peer(&self) -> bool {
        self.is_vdev("net_vhost") && self.want_tso && self.want_checksum
    }

    /// The driver fills its ring with large buffers beforehand.
    fn lays_out_large(&self) -> bool {
        self.is_vdev("net_virtio_user") && self.want_lro
    }

    fn is_vdev(&self, driver: &str) -> bool {
        matches!(&self.port, PortSelector::Vdev(vdev) if vdev.starts_with(driver))
    }

    /// Megabytes that EAL needs: a page for a usual buffer, and its own tables.
    #[must_use]
    pub fn memory_mb(&self) -> usize {
        // Without hugepages DPDK lets no buffer cross a page, so that each takes whole ones.
        let pages = |room: usize| (room + MBUF_OVERHEAD).next_multiple_of(PAGE_BYTES);
        let pool = (self.mbufs() as usize).saturating_mul(pages(self.mbuf_room()));
        let large = self.large_mbufs().saturating_add(self.rx_large_mbufs());
        let large = large.saturating_mul(pages(LARGE_ROOM));
        let megabytes = pool
            .saturating_add(large)
            .div_ceil(MEGABYTE)
            .saturating_add(EAL_MB);
        megabytes.next_multiple_of(2)
    }

    /// The virtual device with what it needs for the MTU and the queues.
    fn vdev(&self, vdev: &str) -> String {
        let mut text = vdev.to_owned();
        if let Some(bytes) = self.jumbo_ring_frame(vdev) {
            text.push_str(&format!(",framesz={bytes},blocksz={}", bytes * 2));
        }
        let entries = self.rx_ring_entries.max(self.tx_ring_entries);
        let packet = vdev.starts_with("net_af_packet") && argument(vdev, "framecnt").is_none();
        if packet && entries > PACKET_RING_FRAMES {
            // Two frames make a block at least; a ring has whole blocks.
            let frames = entries.min(PACKET_RING_FRAMES_MAX).next_multiple_of(2);
            text.push_str(&format!(",framecnt={frames}"));
        }
        let queues = QUEUE_ARGUMENTS
            .iter()
            .find(|(driver, _)| vdev.starts_with(driver));
        if let Some((_, name)) = queues.filter(|(_, name)| argument(vdev, name).is_none())
            && self.queues > 1
        {
            text.push_str(&format!(",{name}={}", self.queues));
        }
        text
    }

    /// A numeric argument of the virtual device, also one that we add.
    fn vdev_argument(&self, vdev: &str, name: &str) -> Option<usize> {
        argument(vdev, name)
            .and_then(|text| text.parse().ok())
            .or_else(|| self.jumbo_ring_frame(vdev))
    }

    /// The size of an af_packet ring frame for more than a usual MTU: two fit into whole pages.
    fn jumbo_ring_frame(&self, vdev: &str) -> Option<usize> {
        let jumbo = self.mtu > DEFAULT_MTU && vdev.starts_with("net_af_packet");
        (jumbo && argument(vdev, "framesz").is_none())
            .then(|| (self.mtu + FRAME_OVERHEAD + PACKET_RING_OVERHEAD).next_multiple_of(2048))
    }
}

const DEFAULT_MTU: usize = 1500;
/// Ethernet header, VLAN tag and FCS.
const FRAME_OVERHEAD: usize = 14 + 4 + 4;
/// What a driver may put in front of a frame.
const DRIVER_HEADER: usize = 64;
/// The header of a TPACKET_V2 ring frame, with its alignment.
const PACKET_RING_OVERHEAD: usize = 128;
/// Frames of an af_packet ring unless it is told; it does not look at the ring entries of a queue.
const PACKET_RING_FRAMES: u32 = 512;
/// More is memory that the kernel would hold for nothing.
const PACKET_RING_FRAMES_MAX: u32 = 32 * 1024;
/// Bytes of a frame in a usual buffer.
const DEFAULT_ROOM: usize = 2048;
/// The mbuf's header, headroom and the pool's share.
const MBUF_OVERHEAD: usize = 512;
/// Bytes of a super-frame; the segment length of an mbuf has 16 bits, headroom included.
pub(super) const LARGE_ROOM: usize = 65_535 - 128;
/// Bytes of a super-frame to a peer that copies it: twelve segments of 1500, two of 9000. A ring of longer ones, and the buffers of a
/// burst of them, leave the second-level cache before they are read.
const COPIED_SUPER_BYTES: usize = 18 * 1024;
/// Receive descriptors where each holds a super-frame: they are used in turns, so that all of them walk through the caches.
const RX_LARGE_ENTRIES: u32 = 64;
/// Large buffers to receive into, a queue: those in the ring, a burst in hand, and what lies in an lcore's cache.
const RX_LARGE_MBUFS: usize = 160;
/// ETH_AF_XDP_DFLT_NUM_DESCS of the driver.
const XDP_FILL_MBUFS: u32 = 2048;
/// Buffers for super-frames, a queue.
const LARGE_MBUFS: usize = 128;

/// Of the buffers that received frames come from an eighth may be kept, and as many of those that usual frames are sent from: the
/// rings of the port must not run dry for what waits elsewhere.
const KEPT_SHARE: usize = 8;

/// Of the large buffers to send from a quarter may be kept by each half: no ring is filled from them.
const LARGE_KEPT_SHARE: usize = 4;

/// Frames that the halves of a queue may keep.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Shares {
    pub(super) received: usize,
    pub(super) sent: usize,
    /// Of those sent, in large buffers.
    pub(super) sent_large: usize,
}
/// What EAL and a driver need apart from the buffers.
const EAL_MB: usize = 8;
const MEGABYTE: usize = 1 << 20;
const PAGE_BYTES: usize = 4096;

/// What drivers call their number of queue pairs.
const QUEUE_ARGUMENTS: [(&str, &str); 3] = [
    ("net_af_packet", "qpairs"),
    ("net_vhost", "queues"),
    ("net_virtio_user", "queues"),
];

fn argument<'a>(vdev: &'a str, name: &str) -> Option<&'a str> {
    vdev.split(',')
        .find_map(|part| part.strip_prefix(name)?.strip_prefix('='))
}

/// The virtual device for a kernel interface.
#[must_use]
pub fn vdev_for_netdev(name: &str) -> String {
    format!("net_af_packet0,iface={name},qdisc_bypass=1")
}

/// EAL's argument vector for `config`, the program name first.
///
/// Hugepages mean `--in-memory` (no file is left behind), otherwise `--no-huge`; never both, EAL refuses
/// that. One lcore, on the CPU that was asked for, so that no thread is moved anywhere else.
#[must_use]
pub fn eal_args(config: &PluginConfig, hugepages: bool) -> Vec<String> {
    let more = |names: &[&str]| {
        config
            .eal_args
            .iter()
            .any(|arg| names.contains(&arg.split('=').next().unwrap_or(arg)))
    };
    let hugepages = (hugepages || more(&["--in-memory"])) && !more(&["--no-huge"]);
    let mut args = vec!["knet".to_owned()];
    if !more(&["-l", "-c", "--lcores"]) {
        args.extend(["--lcores".to_owned(), format!("0@{}", config.lcore_cpu)]);
    }
    args.push(format!("--file-prefix={}", config.file_prefix));
    args.push("--log-level=warning".to_owned());
    if !config.telemetry {
        args.push("--no-telemetry".to_owned());
    }
    memory_args(config, hugepages, &mut args);
    if let Some(address) = &config.base_virtaddr {
        args.push(format!("--base-virtaddr={address}"));
    }
    if let Some(driver) = &config.external_driver {
        args.extend(["-d".to_owned(), driver.trim_start_matches("-d").to_owned()]);
    }
    match &config.port {
        PortSelector::Bdf(bdf) => args.extend(["-a".to_owned(), bdf.clone()]),
        PortSelector::Vdev(vdev) => {
            args.extend([
                "--no-pci".to_owned(),
                format!("--vdev={}", config.vdev(vdev)),
            ]);
        }
    }
    // The operator's own memory wish was followed above and stands there already.
    let memory = |arg: &&String| *arg != "--in-memory" && *arg != "--no-huge";
    args.extend(config.eal_args.iter().filter(memory).cloned());
    args
}

fn memory_args(config: &PluginConfig, hugepages: bool, args: &mut Vec<String>) {
    let megabytes = || ["-m".to_owned(), config.memory_mb().to_string()];
    if !hugepages {
        // No shared configuration file: several hosts coexist, and nothing is left behind.
        args.extend(["--no-huge".to_owned(), "--no-shconf".to_owned()]);
        args.extend(megabytes());
        return;
    }
    match &config.huge_dir {
        // Files in a hugetlbfs of the operator's, removed at once.
        Some(folder) => args.extend([
            format!("--huge-dir={folder}"),
            "--huge-unlink".to_owned(),
            "--no-shconf".to_owned(),
        ]),
        None => args.push("--in-memory".to_owned()),
    }
    match &config.socket_mem {
        Some(list) => args.push(format!("--socket-mem={list}")),
        None => args.extend(megabytes()),
    }
    if let Some(list) = &config.socket_limit {
        args.push(format!("--socket-limit={list}"));
    }
    // A vhost-user peer maps our memory and takes few regions.
    let vhost_user = ["net_vhost", "net_virtio_user"];
    if vhost_user
        .iter()
        .any(|driver| config.port_name().starts_with(driver))
    {
        args.push("--single-file-segments".to_owned());
    }
}

/// Whether enough hugepages are free for `config`.
#[must_use]
pub fn hugepages_suffice(config: &PluginConfig) -> bool {
    let needed = config.socket_mem.as_deref().map_or_else(
        || config.memory_mb(),
        |list| {
            list.split(',')
                .filter_map(|part| part.trim().parse::<usize>().ok())
                .sum()
        },
    );
    // EAL's memory comes from one page size or the other; a machine seldom has both.
    ["2048", "1048576"].iter().any(|kilobytes| {
        let pages = free_pages(kilobytes);
        let page_mb = kilobytes.parse::<usize>().unwrap_or(0) / 1024;
        pages > 0 && pages.saturating_mul(page_mb) >= needed.next_multiple_of(page_mb.max(1))
    })
}

/// Free pages of a size that nobody reserved.
fn free_pages(kilobytes: &str) -> usize {
    let read = |name: &str| {
        std::fs::read_to_string(format!(
            "/sys/kernel/mm/hugepages/hugepages-{kilobytes}kB/{name}"
        ))
        .ok()
        .and_then(|text| text.trim().parse::<usize>().ok())
        .unwrap_or(0)
    };
    read("free_hugepages").saturating_sub(read("resv_hugepages"))
}

/// Raises the soft limits that EAL and af_xdp run into, and says when a hard one is too low.
///
/// # Errors
/// RLIMIT_FSIZE below what EAL maps: `ftruncate` of its memory file would raise SIGXFSZ.
pub(super) fn raise_limits(config: &PluginConfig, hugepages: bool) -> Result<(), DeviceError> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    // What a program may write to its files is its own affair.
    let ours: &[Resource] = if config.own_process {
        &[Resource::Memlock, Resource::Fsize]
    } else {
        &[Resource::Memlock]
    };
    for &resource in ours {
        let limit = getrlimit(resource);
        let raised = Rlimit {
            current: limit.maximum,
            maximum: limit.maximum,
        };
        // A soft limit may always go up to the hard one.
        if limit.current != limit.maximum && setrlimit(resource, raised).is_err() {
            crate::warn!("device=dpdk limit={resource:?} event=not_raised");
        }
    }
    let needed = config.memory_mb().saturating_mul(MEGABYTE) as u64;
    match getrlimit(Resource::Fsize).current {
        Some(bytes) if !hugepages && bytes < needed => Err(DeviceError {
            message: format!(
                "the file size limit (RLIMIT_FSIZE) is {bytes} bytes, DPDK's memory needs {needed}; \
                 raise it (ulimit -f unlimited, systemd LimitFSIZE=infinity)"
            ),
        }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
