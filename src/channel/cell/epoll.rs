//! An epoll instance, and its interest in objects.

use crate::channel::mask::Mask;
use crate::channel::owner::OwnerWord;
use crate::channel::sync::{AtomicU32, AtomicU64, Ordering};

/// One registration of an object in an epoll, as epoll_ctl gave it.
///
/// Free while `epoll` is 0; claimed by compare-and-swap to [`item::CLAIMED`].
#[repr(C)]
#[derive(Debug, Default)]
pub struct Item {
    /// Epoll index plus 1 (bits 0 to 8) and the low 23 bits of its generation: an item that outlives its epoll by eight million
    /// others of the same index would be taken for theirs.
    pub epoll: AtomicU32,
    /// The descriptor it was added under.
    pub fd: AtomicU32,
    /// EPOLLIN and so on with ET, ONESHOT; 0 after a one-shot fired.
    pub events: AtomicU32,
    /// The edge that was reported last.
    pub seen_edge: AtomicU32,
    /// The program's data.
    pub data: AtomicU64,
}

/// Values of [`Item::epoll`] that are not an epoll.
pub mod item {
    /// Nobody's.
    pub const FREE: u32 = 0;
    /// Being filled in.
    pub const CLAIMED: u32 = INDEX;
    /// Bits of the index plus 1.
    const INDEX_BITS: u32 = 9;
    const INDEX: u32 = (1 << INDEX_BITS) - 1;
    const _: () = assert!(crate::channel::layout::EPOLLS < INDEX);
    /// EPOLLEXCLUSIVE, in [`super::Item::events`].
    pub const EXCLUSIVE: u32 = 1 << 28;

    /// The word that names the epoll with this index and cell.
    #[must_use]
    pub fn word(epoll: u32, cell: &super::EpollCell) -> u32 {
        (epoll + 1) | cell.generation.load(super::Ordering::Acquire) << INDEX_BITS
    }

    /// The epoll that a word names; None for the values above.
    #[must_use]
    pub const fn epoll(word: u32) -> Option<u32> {
        if word == CLAIMED {
            return None;
        }
        (word & INDEX).checked_sub(1)
    }
}

/// An interest item that found no place in its object's cell.
#[repr(C)]
#[derive(Debug, Default)]
pub struct SpillItem {
    /// Object index.
    pub object: AtomicU32,
    /// The object's generation.
    pub generation: AtomicU32,
    /// The interest.
    pub item: Item,
}

/// Values of [`EpollCell::herald`]. An epoll that lies in another epoll, or is asked about by poll, has an eventfd in its kernel
/// epoll that is readable while an accelerated socket of it has events ([`crate::readiness::herald`]).
pub mod herald {
    /// It has none.
    pub const NONE: u32 = 0;
    /// Somebody has taken it to write the eventfd; nobody else does until it is settled.
    pub const RUNG: u32 = 1;
    /// To be rung; the eventfd may be readable.
    pub const DIRTY: u32 = 2;
    /// To be rung; the eventfd is not readable.
    pub const CLEAN: u32 = 3;
    /// Nobody asks any more; the eventfd is not readable.
    pub const MUTE: u32 = 4;
}

/// An epoll instance of the family.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct EpollCell {
    /// Slots that sleep in epoll_wait on it.
    pub slots: Mask,
    /// 0 = free; else how many processes hold it (kept exact by `ProcCell::epolls`).
    pub used: AtomicU32,
    /// Raised when it is freed.
    pub generation: AtomicU32,
    /// Kernel descriptors registered in the kernel epoll, so that an empty one is never asked.
    pub kernel_items: AtomicU32,
    /// Where the next collection begins, for fairness (an object index).
    pub cursor: AtomicU32,
    /// See [`herald`].
    pub herald: AtomicU32,
    /// Who collects or settles the herald, once there is one.
    pub turn: OwnerWord,
    /// The descriptor that it has in the process which joined it last, plus one; 0 = not told. For people only.
    pub fd: AtomicU32,
}
