//! The first pages of control memory: what they are laid out for, the host, its lcores, the policy.

use super::epoll::SpillItem;
use crate::channel::layout::LCORES_MAX;
use crate::channel::mask::Mask;
use crate::channel::policy::PolicyPage;
use crate::channel::sync::AtomicU32;

/// Interest items of the family beyond the inline ones.
#[cfg(not(loom))]
pub const SPILL_ITEMS: usize = 1_024;
/// Few, because loom follows every atomic.
#[cfg(loom)]
pub const SPILL_ITEMS: usize = 1;

/// Values of [`Header::host_state`].
pub mod host_state {
    /// Attached, no device yet.
    pub const IDLE: u32 = 1;
    /// The lcore runs.
    pub const RUNNING: u32 = 2;
    /// Gone, or about to go: every object is reset.
    pub const DEAD: u32 = 3;
}

/// The first pages of control memory.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Header {
    /// [`crate::channel::MAGIC`].
    pub magic: AtomicU32,
    /// [`crate::channel::ABI`].
    pub abi: AtomicU32,
    /// Bytes of this struct.
    pub size: AtomicU32,
    /// See [`crate::channel::layout::Layout`].
    pub objects: AtomicU32,
    /// See [`crate::channel::layout::Layout`].
    pub rx_ring_bytes: AtomicU32,
    /// See [`crate::channel::layout::Layout`].
    pub tx_ring_bytes: AtomicU32,
    /// See [`crate::channel::layout::Layout`].
    pub lcores: AtomicU32,
    /// Process id of the host.
    /// 0 once a program has told that it is gone.
    pub host_pid: AtomicU32,
    /// See [`host_state`].
    pub host_state: AtomicU32,
    /// See [`crate::channel::layout::Layout`].
    pub large_ring_bytes: AtomicU32,
    /// See [`crate::channel::map::Control::processes`].
    pub processes: AtomicU32,
    /// A line of each lcore.
    pub lcores_asleep: [LcoreLine; LCORES_MAX as usize],
    /// Epolls whose sleepers the program asks the host to wake.
    pub kicks: KickLine,
    /// What the program side must know of the config.
    pub policy: PolicyPage,
    /// Interest items beyond the inline ones.
    pub spill: [SpillItem; SPILL_ITEMS],
}

/// Whether an lcore sleeps: rung bells must then also write its eventfd.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct LcoreLine {
    /// 1 while the lcore sleeps or is about to; who swaps it to 0 writes the lcore's eventfd.
    pub sleeping: AtomicU32,
    /// The CPU that it is pinned to, plus one; 0 = whoever waits drives.
    pub cpu: AtomicU32,
}

/// See [`Header::kicks`].
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct KickLine {
    /// One bit an epoll.
    pub epolls: Mask,
    /// One bit a slot, whose `sleeping` the program has already taken: the host writes its eventfd.
    pub slots: Mask,
}
