//! Devices: where frames come from and go to.
//!
//! Owns the seam between the stack and a port. May use `base`, `telemetry`, `config` types and `ffi`.
//! Runs on the lcore thread that owns the queue pair. Invariant: a frame is lent for one call, unless its
//! receiver keeps it, and a transmit buffer is filled in place, so nothing is copied here, and nothing here blocks.
//!
//! A port is opened as one queue pair per lcore, split into a receive half and a transmit half so that
//! a reply can be written while a received frame is still being looked at.

pub mod builtin;
pub mod fault;
pub mod frame;
mod kept;
pub mod pair;
pub mod pcap;
pub mod plugin;
pub mod plugin_abi;
pub mod port_counters;
pub mod rss;
pub mod shared_queue;
mod tx_batch;
pub mod unix;

pub use builtin::open_builtin;
pub use kept::Keeps;

use core::any::Any;
use std::os::fd::BorrowedFd;

use crate::errno::Errno;
use crate::ffi::cuda::Lasting;
use crate::time::Instant;

/// Frames moved by one device call at most.
pub const BURST_MAX: usize = 32;

/// What the port says about a received frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RxMeta {
    /// IPv4 header and TCP checksum were verified by the port; otherwise the stack verifies them.
    pub checksum_good: bool,
    /// The port found a checksum to be wrong.
    pub checksum_bad: bool,
    /// The checksum is only partial because the frame never left this machine (veth, virtio).
    pub checksum_partial: bool,
}

/// One received Ethernet frame, lent for the call.
#[derive(Debug)]
pub struct RxFrame<'a> {
    /// The frame from the destination MAC on, without FCS.
    pub bytes: &'a mut [u8],
    /// What the port says about it.
    pub meta: RxMeta,
}

/// What the port must still do to a frame that is sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TxMeta {
    /// Fill in the IPv4 header checksum and the TCP checksum (only where the port can).
    pub checksum_offload: bool,
    /// Cut a TCP super-frame into segments of this many payload bytes; 0 = leave it.
    pub segment_bytes: u16,
}

/// What a port can do, known after it is open.
#[derive(Clone, Debug, Default)]
pub struct Capabilities {
    /// The port's MAC address.
    pub mac: [u8; 6],
    /// Largest IP packet in bytes (MTU) that the port sends and receives.
    pub mtu: usize,
    /// The port checks IPv4 and TCP checksums of received frames.
    pub rx_checksum: bool,
    /// The port fills in IPv4 and TCP checksums of sent frames.
    pub tx_checksum: bool,
    /// The port cuts TCP super-frames of up to this many bytes; 0 = it does not.
    pub tso_bytes: usize,
    /// A received frame may legally carry a partial checksum: its peer is a kernel on this machine (veth with offloads
    /// on).
    pub trust_checksum: bool,
    /// Queue pairs that it was opened with.
    pub queues: usize,
    /// The port spreads received flows by the key that it was given, over a table of so many entries; 0 = it does not, or not so
    /// that it could be foretold.
    pub rss_entries: u32,
    /// One line for people: driver and name.
    pub description: String,
}

/// Counters of a port, read seldom.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PortStats {
    /// Frames received.
    pub rx_frames: u64,
    /// Frames sent.
    pub tx_frames: u64,
    /// Frames that the port dropped because nobody fetched them, or it had no buffer.
    pub rx_missed: u64,
    /// Frames that could not be sent and were dropped.
    pub tx_dropped: u64,
    /// Buffers in the port's pools; 0 = it has none of its own.
    pub buffers: u64,
    /// Buffers of the pools that nobody holds, neither a ring of the port nor the stack.
    pub buffers_free: u64,
    /// Bytes of all buffers.
    pub buffer_bytes: u64,
    /// Bytes of the free ones.
    pub buffer_bytes_free: u64,
}

/// The receive half of a queue pair.
pub trait RxQueue: Any + Send {
    /// Fetches at most [`BURST_MAX`] frames, lends them to `deliver` in one call (not called when there
    /// are none), frees them, and returns their number. Never blocks. `now` drives simulated faults.
    fn rx_burst(&mut self, now: Instant, deliver: &mut dyn FnMut(&mut [RxFrame<'_>])) -> usize;

    /// A descriptor that becomes readable when a frame arrives, or None when the port has none (then
    /// the lcore must poll). The descriptor is this process's and stays owned by the queue.
    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Arms (true) or disarms (false) the wake-up behind [`RxQueue::wait_fd`]; after arming the caller polls
    /// once more before it sleeps.
    fn arm(&mut self, _on: bool) {}

    /// The calling thread uses the queue pair from now on, until [`RxQueue::leave`]. Called only where several threads do so in
    /// turn, one at a time.
    fn enter(&mut self) {}

    /// Undoes [`RxQueue::enter`].
    fn leave(&mut self) {}

    /// The earliest time at which the queue wants to be polled although no descriptor says so: a frame
    /// held back by a simulated delay becomes due, or a lost link is to be looked for again.
    fn next_due(&self) -> Option<Instant> {
        None
    }

    /// Frames that may be kept beyond their burst at once: a share of the port's buffers. Tickets are below it; 0 = none can be
    /// kept.
    fn keeps(&self) -> usize {
        0
    }

    /// As [`RxQueue::rx_burst`], but the frames that `deliver` names are not freed: they stay where they lie, under their
    /// tickets, until [`RxQueue::free_kept`].
    fn rx_burst_keeping(
        &mut self,
        now: Instant,
        deliver: &mut dyn FnMut(&mut [RxFrame<'_>], &mut Keeps),
    ) -> usize {
        let mut none = Keeps::default();
        self.rx_burst(now, &mut |frames| deliver(frames, &mut none))
    }

    /// A kept frame.
    fn kept(&mut self, _ticket: u32) -> Option<&mut [u8]> {
        None
    }

    /// Lends kept frames, at most [`BURST_MAX`], to `deliver` in one call and in this order. What the port has said of them is
    /// not said again.
    fn lend_kept(&mut self, _tickets: &[u32], _deliver: &mut dyn FnMut(&mut [RxFrame<'_>])) {}

    /// Gives the buffer of a kept frame back to the port; nothing when there is none.
    fn free_kept(&mut self, _ticket: u32) {}
}

/// The transmit half of a queue pair. A frame is made by `alloc`, filled, then `commit`ted.
pub trait TxQueue: Any + Send {
    /// Lends a buffer of exactly `len` bytes (contents undefined), or None when the burst is full and
    /// nothing can be sent now. A second `alloc` without `commit` lends the same buffer again.
    fn alloc(&mut self, len: usize) -> Option<&mut [u8]>;

    /// Appends the first `len` bytes of the buffer lent last to the burst.
    fn commit(&mut self, len: usize, meta: TxMeta);

    /// Hands the burst to the port and returns how many frames went; the rest stays queued, in order.
    fn flush(&mut self, now: Instant) -> usize;

    /// Frames that can still be `alloc`ated before a `flush`.
    fn room(&self) -> usize;

    /// As [`RxQueue::keeps`].
    fn keeps(&self) -> usize {
        0
    }

    /// Whether the buffer lent last may be kept now: large ones are fewer.
    fn can_keep(&self) -> bool {
        self.keeps() > 0
    }

    /// Keeps the first `len` bytes of the buffer lent last under `ticket`, where they lie, instead of appending them to the
    /// burst. False when that cannot be done; then the buffer is as it was.
    fn keep(&mut self, _len: usize, _meta: TxMeta, _ticket: u32) -> bool {
        false
    }

    /// A kept frame.
    fn kept(&mut self, _ticket: u32) -> Option<&mut [u8]> {
        None
    }

    /// Appends a kept frame to the burst, or drops it when the port cannot send such a frame any more; its ticket names nothing
    /// from then on. False when there is no room now.
    fn commit_kept(&mut self, _ticket: u32) -> bool {
        false
    }

    /// As [`RxQueue::free_kept`].
    fn free_kept(&mut self, _ticket: u32) {}
}

/// The halves of a queue pair.
pub type QueuePair = (Box<dyn RxQueue>, Box<dyn TxQueue>);

/// An open port.
pub trait Device: Send {
    /// What the port can do.
    fn capabilities(&self) -> &Capabilities;

    /// Takes the queue pair of lcore `queue` (0-based). Each can be taken once.
    ///
    /// # Errors
    /// EINVAL when there is no such queue or it was taken.
    fn queue_pair(&mut self, queue: usize) -> Result<QueuePair, Errno>;

    /// Counters so far.
    fn stats(&self) -> PortStats;

    /// The memory in which its frames lie, where that is known and stays mapped until the process ends, so that a GPU may be
    /// given it. Called once at most.
    fn memory(&self) -> Option<Lasting> {
        None
    }

    /// Whether the link is up.
    fn link_up(&self) -> bool;
}

/// Why a device could not be opened: one line for the operator (what, where, what to do).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceError {
    /// The line, lower case, without a final period.
    pub message: String,
}

impl core::fmt::Display for DeviceError {
    fn fmt(&self, out: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        out.write_str(&self.message)
    }
}

impl core::error::Error for DeviceError {}
