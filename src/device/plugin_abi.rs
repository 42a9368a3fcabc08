//! The table between the host and the DPDK plug-in: the one definition of it.
//!
//! The host compiles this file as `device::plugin_abi`, the plug-in through member `dpdk-sys` by
//! `#[path]`, so that the plug-in needs no other line of this crate. Both sides may come from different
//! builds: the host compares [`Table::abi`] and [`Table::size`] before it calls anything. Each change
//! of a layout or of a meaning raises [`ABI`].

use core::ffi::{c_char, c_void};

/// The version of everything in this file.
pub const ABI: u32 = 5;

/// The name of the plug-in's only exported symbol, a [`Table`].
pub const SYMBOL: &core::ffi::CStr = c"knet_dpdk_table";

/// Slots moved by one call at most; equals `device::BURST_MAX` and `KNET_BURST_MAX` of the C file.
pub const SLOTS_MAX: u32 = 32;

/// A received slot: header and payload checksums were verified.
pub const RX_CHECKSUM_GOOD: u16 = 1;
/// A received slot: a checksum is wrong.
pub const RX_CHECKSUM_BAD: u16 = 2;
/// A received slot: the checksum is partial, the data never left this machine.
pub const RX_CHECKSUM_PARTIAL: u16 = 4;

/// A slot to send: the port (or the C file) fills in IPv4 and TCP checksums.
pub const TX_CHECKSUM: u16 = 1;

/// Wish and fact: received checksums are verified by the port.
pub const OFFLOAD_RX_CHECKSUM: u32 = 1;
/// Wish and fact: sent checksums are filled in by the port.
pub const OFFLOAD_TX_CHECKSUM: u32 = 2;
/// Wish and fact: TCP super-frames are cut by the port; by one whose peer decides only while [`Table::tx_cuts`] says so.
pub const OFFLOAD_TSO: u32 = 4;
/// Wish and fact: received TCP segments are merged by the port.
pub const OFFLOAD_LRO: u32 = 8;
/// Fact: a received frame may carry a partial checksum and nothing tells (packet sockets).
pub const TRUST_CHECKSUM: u32 = 16;

/// One frame. Received: `len` bytes at `data`. To send: `tx_alloc` gives the room in `len`, the caller
/// puts the length there before `tx_burst`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Slot {
    /// The mbuf; nothing but the plug-in looks into it.
    pub handle: *mut c_void,
    /// First byte of the frame.
    pub data: *mut u8,
    /// Bytes of the frame, or of room.
    pub len: u32,
    /// `RX_*` or `TX_*` bits.
    pub flags: u16,
    /// To send: cut the TCP payload into pieces of this many bytes; 0 = leave it.
    pub segment_bytes: u16,
}

const _: () = assert!(size_of::<Slot>() == 24);

impl Slot {
    /// A slot that holds nothing.
    pub const EMPTY: Self = Self {
        handle: core::ptr::null_mut(),
        data: core::ptr::null_mut(),
        len: 0,
        flags: 0,
        segment_bytes: 0,
    };
}

/// A queue pair of the plug-in.
#[repr(C)]
#[derive(Debug)]
pub struct Queue {
    opaque: [u8; 0],
}

/// What the plug-in dropped on one queue pair.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct QueueStats {
    /// Received chains that fitted into no single buffer.
    pub rx_dropped_chained: u64,
    /// Frames that the driver refused to prepare.
    pub tx_dropped_refused: u64,
    /// Frames whose headers do not allow the offload that was asked for.
    pub tx_dropped_malformed: u64,
}

const _: () = assert!(size_of::<QueueStats>() == 24);

/// Counters of the port since its start.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Stats {
    /// Frames received.
    pub rx_frames: u64,
    /// Frames sent.
    pub tx_frames: u64,
    /// Frames dropped for want of a fetch or of a buffer.
    pub rx_missed: u64,
    /// Frames received with an error.
    pub rx_errors: u64,
    /// Frames that the driver could not send.
    pub tx_errors: u64,
    /// What the plug-in itself dropped, all queues.
    pub dropped: QueueStats,
    /// Buffers of all pools.
    pub buffers: u64,
    /// Of them, those that nobody holds.
    pub buffers_free: u64,
    /// Bytes of all buffers, their headers included.
    pub buffer_bytes: u64,
    /// Bytes of the free ones.
    pub buffer_bytes_free: u64,
}

const _: () = assert!(size_of::<Stats>() == 40 + 24 + 32);

/// How to start. Strings end with NUL and are borrowed for the call.
#[repr(C)]
#[derive(Debug)]
pub struct StartArgs {
    /// EAL's argument vector, the program name first.
    pub eal_argv: *const *const c_char,
    /// Arguments in `eal_argv`.
    pub eal_argc: u32,
    /// Largest IP packet in bytes.
    pub mtu: u32,
    /// The port's EAL name: a BDF, or a vdev's name up to the comma.
    pub port_name: *const c_char,
    /// Queue pairs; a port that has fewer is opened with one.
    pub queues: u32,
    /// Receive descriptors a queue.
    pub rx_ring_entries: u32,
    /// Transmit descriptors a queue.
    pub tx_ring_entries: u32,
    /// Buffers in the pool.
    pub pool_mbufs: u32,
    /// Bytes of a frame that fit into a buffer of the pool.
    pub mbuf_room: u32,
    /// Buffers in the pool for super-frames; 0 = no such pool.
    pub large_mbufs: u32,
    /// Buffers of that size in a pool of their own, which frames are received into; 0 = those of the usual pool are.
    pub rx_large_mbufs: u32,
    /// Bytes of a frame that fit into a buffer for super-frames.
    pub large_room: u32,
    /// Wished `OFFLOAD_*` bits.
    pub offloads: u32,
    /// The MAC address to set.
    pub mac: [u8; 6],
    /// 1 = set `mac`, 0 = keep the port's own.
    pub mac_set: u8,
    /// 1 = nobody else prints in this process, so that what DPDK's libraries print may be caught.
    pub own_process: u8,
    /// The key by which received flows are spread over several queues; a port takes as much of it as it uses.
    pub rss_key: [u8; RSS_KEY_BYTES],
}

/// Bytes of a key for receive-side scaling.
pub const RSS_KEY_BYTES: usize = 52;

/// What the started port is.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PortFacts {
    /// Queue pairs.
    pub queues: u32,
    /// Largest IP packet in bytes.
    pub mtu: u32,
    /// `OFFLOAD_*` and `TRUST_CHECKSUM` bits that hold.
    pub offloads: u32,
    /// Largest super-frame in bytes, headers included; 0 = none.
    pub tso_bytes: u32,
    /// The port's MAC address.
    pub mac: [u8; 6],
    /// Entries of the table by which the port spreads flows over its queues, entry `i` to queue `i % queues`; 0 = it does not, or
    /// not by our key.
    pub rss_entries: u16,
    /// Driver and name for people, ends with NUL.
    pub description: [u8; 128],
}

impl PortFacts {
    /// Nothing known.
    pub const EMPTY: Self = Self {
        queues: 0,
        mtu: 0,
        offloads: 0,
        tso_bytes: 0,
        mac: [0; 6],
        rss_entries: 0,
        description: [0; 128],
    };
}

/// A chunk of memory.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Chunk {
    /// Its first byte.
    pub start: *mut u8,
    /// How long it is.
    pub bytes: u64,
}

const _: () = assert!(size_of::<Chunk>() == 16);

impl Chunk {
    /// Nowhere.
    pub const EMPTY: Self = Self {
        start: core::ptr::null_mut(),
        bytes: 0,
    };
}

/// Chunks that the pools of a port may have at most to be told.
pub const CHUNKS_MAX: usize = 4_096;

/// Why something failed: text that ends with NUL.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ErrorText {
    /// The text, cut where it does not fit.
    pub bytes: [u8; 1024],
}

impl ErrorText {
    /// No text.
    pub const EMPTY: Self = Self { bytes: [0; 1024] };
}

/// The plug-in's calls. None of them unwinds. `start` and `stop` may block; the others do not.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Table {
    /// [`ABI`] of the plug-in's build. First, so that it can be read from any version.
    pub abi: u32,
    /// `size_of::<Table>()` of the plug-in's build.
    pub size: u32,
    /// Starts EAL and the port. Once a process: a second call fails, also after a failure. 0, or a
    /// negative errno with the reason in the last argument.
    pub start: unsafe extern "C" fn(*const StartArgs, *mut PortFacts, *mut ErrorText) -> i32,
    /// Gives a queue pair of the started port, or null.
    pub queue: unsafe extern "C" fn(u32) -> *mut Queue,
    /// Makes the calling thread known to DPDK; each thread does it before its first burst.
    pub thread_enter: unsafe extern "C" fn() -> i32,
    /// Undoes `thread_enter`.
    pub thread_leave: unsafe extern "C" fn(),
    /// Lets the calling thread use the one number that threads of a program share which drive a queue pair in turn, one at a
    /// time. Never fails: without a number DPDK works without its per-thread caches.
    pub thread_borrow: unsafe extern "C" fn(),
    /// Undoes `thread_borrow`.
    pub thread_return: unsafe extern "C" fn(),
    /// Receives at most the third argument of frames and returns their number.
    pub rx_burst: unsafe extern "C" fn(*mut Queue, *mut Slot, u32) -> u32,
    /// Gives slots back, received ones or such from `tx_alloc` that were not sent.
    pub free: unsafe extern "C" fn(*mut Queue, *const Slot, u32),
    /// Allocates up to the third argument of buffers with room for the fourth of bytes.
    pub tx_alloc: unsafe extern "C" fn(*mut Queue, *mut Slot, u32, u32) -> u32,
    /// Sends from the front; returns how many slots are done with, the rest stays the caller's.
    pub tx_burst: unsafe extern "C" fn(*mut Queue, *const Slot, u32) -> u32,
    /// 1: super-frames can be sent now. One that is sent in spite of a 0 is dropped.
    pub tx_cuts: unsafe extern "C" fn(*mut Queue) -> u32,
    /// A descriptor that becomes readable when a frame arrives, or -1 (perhaps only for now).
    pub wait_fd: unsafe extern "C" fn(*mut Queue) -> i32,
    /// Arms (1) or disarms (0) the wake-up behind `wait_fd`. 0 or a negative errno.
    pub arm: unsafe extern "C" fn(*mut Queue, u32) -> i32,
    /// Reads the counters.
    pub stats: unsafe extern "C" fn(*mut Stats),
    /// 1 up, 0 down.
    pub link_up: unsafe extern "C" fn() -> i32,
    /// Stops and closes the port, frees the memory of its frames and cleans EAL up. No other call may be running or follow.
    pub stop: unsafe extern "C" fn(),
    /// Tells the chunks of memory in which the port's frames lie: fills at most the second argument of places and returns how many
    /// chunks there are. From then on `stop` leaves that memory mapped, until the process ends: somebody else may read it.
    pub memory: unsafe extern "C" fn(*mut Chunk, u32) -> u32,
}

/// `size_of::<Table>()`, for [`Table::size`].
pub const TABLE_BYTES: u32 = 8 + 17 * POINTER_BYTES;

const POINTER_BYTES: u32 = usize::BITS / 8;

const _: () = assert!(size_of::<Table>() == TABLE_BYTES as usize);
