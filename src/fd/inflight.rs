//! Blocking calls hold their object, as a system call holds its file: a close by another thread takes effect when the call
//! has returned.
//!
//! Each such hold stands in a small table, so that a close in a signal handler finds that of the call it interrupted. A
//! forked child has none of those threads, and none of their holds.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::Socket;
use super::table::Entry;
use crate::socket::hold;
use crate::thread;

/// Calls of a process that can hold their object at the same time; more go without.
const CALLS: usize = 256;

static TABLE: [AtomicU64; CALLS] = [const { AtomicU64::new(0) }; CALLS];
/// The thread of each call.
static THREADS: [AtomicU32; CALLS] = [const { AtomicU32::new(0) }; CALLS];
/// A place whose hold was given back while the call goes on; as an entry it is nothing.
const GIVEN_BACK: u64 = 1 << 61;

/// The hold of one call; given back on drop, also when the thread is cancelled in the wait.
#[derive(Debug)]
pub struct InFlight(&'static AtomicU64);

impl InFlight {
    /// Holds the object for a call, unless it cannot wait.
    #[must_use]
    pub fn when_waiting(socket: &Socket, nonblocking: bool) -> Option<Self> {
        if nonblocking { None } else { Self::of(socket) }
    }

    /// Holds the object for a call that may wait; None when that cannot be counted, and the call goes without.
    #[must_use]
    pub fn of(socket: &Socket) -> Option<Self> {
        let word = socket.entry().pack();
        // Threads begin at different places, so that they seldom meet.
        let start = thread::id() as usize % CALLS;
        let (before, behind) = TABLE.split_at_checked(start)?;
        let (first, last) = THREADS.split_at_checked(start)?;
        let mut places = behind.iter().zip(last).chain(before.iter().zip(first));
        let (place, thread) = places.find(|(place, _)| {
            place
                .compare_exchange(0, word, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
        })?;
        thread.store(thread::id(), Ordering::Release);
        if hold::add(socket.link, socket.object).is_err() {
            place.store(0, Ordering::Release);
            return None;
        }
        Some(Self(place))
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        super::release(Entry::unpack(self.0.swap(0, Ordering::AcqRel)));
    }
}

/// This thread closes a descriptor of `entry`. When it does so in a signal handler that interrupted its own call, the
/// call's hold goes too: Linux begins the call anew behind the handler, and finds the number closed. Says whether it did.
pub fn give_back_own(entry: Entry) -> bool {
    let mut interrupted = false;
    let mine = thread::id();
    for (place, thread) in TABLE.iter().zip(&THREADS) {
        if thread.load(Ordering::Acquire) == mine
            && place
                .compare_exchange(
                    entry.pack(),
                    GIVEN_BACK,
                    Ordering::AcqRel,
                    Ordering::Relaxed,
                )
                .is_ok()
        {
            super::release(entry);
            interrupted = true;
        }
    }
    interrupted
}

/// In a forked child: the calls were the parent's, and so were their holds.
pub(super) fn forget_parents() {
    for place in &TABLE {
        if place.load(Ordering::Relaxed) != 0 {
            place.store(0, Ordering::Relaxed);
        }
    }
}
