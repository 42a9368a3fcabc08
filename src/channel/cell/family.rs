//! The members of the family: its processes, and their threads that sleep.

use crate::channel::mask::Mask;
use crate::channel::sync::{AtomicU32, AtomicU64};

/// A thread that sleeps. It is woken through an eventfd that it has sent to the host.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct SlotCell {
    /// Process id (bits 32 to 63) and thread id (bits 0 to 30) of the user, and whether that thread sleeps (bit 31); 0 = free.
    pub user: AtomicU64,
    /// 1 while it sleeps or is about to; who swaps it to 0 writes the eventfd.
    pub sleeping: AtomicU32,
    /// Raised when another thread takes the slot.
    pub generation: AtomicU32,
    /// Sleeps that the user has begun and not ended: more than one when a signal handler sleeps inside a sleep.
    pub depth: AtomicU32,
}

/// Values of [`ProcCell::state`].
pub mod process {
    /// Nobody's.
    pub const FREE: u32 = 0;
    /// Reserved by a parent about to fork.
    pub const FORKING: u32 = 1;
    /// A living process.
    pub const LIVE: u32 = 2;
}

/// A process of the family; its held objects are a bitmap of its own ([`crate::channel::layout::Layout::held_at`]).
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct ProcCell {
    /// Epolls that the process holds.
    pub epolls: Mask,
    /// See [`process`].
    pub state: AtomicU32,
    /// Its process id (its parent's while FORKING).
    pub pid: AtomicU32,
}
