//! The herald of an epoll that lies in another epoll, or that poll or select ask about.
//!
//! The kernel sees the kernel descriptors of an epoll, and none of its accelerated sockets. A herald is an eventfd in the kernel
//! epoll that stands for them: the kernel's own nesting, poll and select then see the epoll readable. Whoever would wake the
//! epoll's sleepers rings it; whoever asks the kernel about an outer epoll settles it first, so that it is readable exactly
//! when there is something to report. An edge between two settlings rings once, as Linux tells a poller of an epoll.
//!
//! | state | eventfd | an edge |
//! |---|---|---|
//! | CLEAN | not readable | rings: RUNG |
//! | DIRTY | readable, or was | rings: RUNG |
//! | RUNG | readable, or soon | nothing |
//! | MUTE, NONE | not readable | nothing |
//!
//! Only who has [`EpollCell::turn`] leaves RUNG or drains the eventfd.

use crate::channel::cell::{EpollCell, herald};
use crate::channel::layout::SLOTS;
use crate::channel::sync::{Ordering, fence};

/// The number under which the herald of `epoll` stands among the slots that are woken.
#[must_use]
pub const fn slot(epoll: u32) -> u32 {
    SLOTS.saturating_add(epoll)
}

/// The epoll whose herald stands under this number; None for the slot of a thread.
#[must_use]
pub const fn epoll(slot: u32) -> Option<u32> {
    slot.checked_sub(SLOTS)
}

/// Says whether the caller must write the eventfd. The new state is written and a fence is behind it.
#[must_use]
pub fn ring(cell: &EpollCell) -> bool {
    let mut state = cell.herald.load(Ordering::SeqCst);
    while state == herald::DIRTY || state == herald::CLEAN {
        match cell
            .herald
            .compare_exchange(state, herald::RUNG, Ordering::SeqCst, Ordering::SeqCst)
        {
            Ok(_) => return true,
            Err(now) => state = now,
        }
    }
    false
}

/// What a settling does to the eventfd.
pub trait Eventfd {
    /// Makes it readable.
    fn write(&self);
    /// Makes it unreadable.
    fn drain(&self);
    /// Returns once it is readable; somebody is about to write it, and may be killed before.
    fn await_write(&self);
}

/// Rounds of a settling; more are needed only while edges come that nobody asked for.
const ROUNDS: u32 = 4;

/// Makes the eventfd readable if the epoll has events, else not, and lets the next edge ring. The caller has
/// [`EpollCell::turn`].
pub fn settle(cell: &EpollCell, mut has_events: impl FnMut() -> bool, eventfd: &impl Eventfd) {
    let change = |from, to| {
        cell.herald
            .compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst)
            .is_ok()
    };
    let mut is_drained = false;
    for _ in 0..ROUNDS {
        let before = cell.herald.load(Ordering::SeqCst);
        if before == herald::NONE || before == herald::MUTE {
            return;
        }
        if before == herald::RUNG && !change(herald::RUNG, herald::DIRTY) {
            continue;
        }
        // Pairs with the fence of `alert`: it sees that it is to ring, or we see the state.
        fence(Ordering::SeqCst);
        if has_events() {
            match before {
                // Our drain may have taken the ringer's write.
                herald::RUNG if is_drained => eventfd.write(),
                herald::RUNG => eventfd.await_write(),
                herald::CLEAN if change(herald::CLEAN, herald::RUNG) => eventfd.write(),
                _ => {}
            }
            return;
        }
        if before == herald::CLEAN {
            return;
        }
        eventfd.drain();
        is_drained = true;
        // What came since is found in the next round.
        if change(herald::DIRTY, herald::CLEAN) {
            fence(Ordering::SeqCst);
        }
    }
    // It may be rung, with the write drained: readable for nothing is settled next time, unreadable for good is not.
    eventfd.write();
}

/// Nobody asks about the epoll any more. The caller has [`EpollCell::turn`].
pub fn mute(cell: &EpollCell, eventfd: &impl Eventfd) {
    if cell.herald.load(Ordering::SeqCst) != herald::NONE {
        cell.herald.store(herald::MUTE, Ordering::SeqCst);
        eventfd.drain();
    }
}

/// Somebody asks about the epoll: its herald, whose eventfd the host has, is to be rung from now on. The caller has
/// [`EpollCell::turn`].
pub fn arm(cell: &EpollCell, eventfd: &impl Eventfd) {
    let state = cell.herald.load(Ordering::SeqCst);
    if state == herald::NONE || state == herald::MUTE {
        eventfd.drain();
        cell.herald.store(herald::CLEAN, Ordering::SeqCst);
    }
}
