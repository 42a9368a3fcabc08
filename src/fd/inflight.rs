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

/// A call that holds its object.
#[derive(Debug)]
struct Place {
    /// Its thread; 0 = nobody's. Written before and behind the entry: who finds an entry beside his own id has put it there.
    thread: AtomicU32,
    /// The packed entry of the object.
    entry: AtomicU64,
}

static TABLE: [Place; CALLS] = [const {
    Place {
        thread: AtomicU32::new(0),
        entry: AtomicU64::new(0),
    }
}; CALLS];
/// A place whose hold was given back while the call goes on; as an entry it is nothing.
const GIVEN_BACK: u64 = 1 << 61;

/// The hold of one call; given back on drop, also when the thread is cancelled in the wait.
#[derive(Debug)]
pub struct InFlight(&'static Place);

impl InFlight {
    /// Holds the object for a call, unless it cannot wait.
    #[must_use]
    pub fn when_waiting(socket: &Socket, nonblocking: bool) -> Option<Self> {
        if nonblocking { None } else { Self::of(socket) }
    }

    /// Holds the object for a call that may wait; None when that cannot be counted, and the call goes without.
    #[must_use]
    pub fn of(socket: &Socket) -> Option<Self> {
        let mine = thread::id();
        // Threads begin at different places, so that they seldom meet.
        let (before, behind) = TABLE.split_at_checked(mine as usize % CALLS)?;
        let place = behind.iter().chain(before).find(|place| {
            place
                .thread
                .compare_exchange(0, mine, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
        })?;
        if hold::add(socket.link, socket.object).is_err() {
            place.thread.store(0, Ordering::Release);
            return None;
        }
        place.entry.store(socket.entry().pack(), Ordering::Release);
        thread::begin_call();
        Some(Self(place))
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let entry = self.0.entry.swap(0, Ordering::AcqRel);
        self.0.thread.store(0, Ordering::Release);
        thread::end_call();
        super::release(Entry::unpack(entry));
    }
}

/// This thread closes a descriptor of `entry`. When it does so in a signal handler that interrupted its own call, the
/// call's hold goes too: Linux begins the call anew behind the handler, and finds the number closed. Says whether it did.
pub fn give_back_own(entry: Entry) -> bool {
    // Most closes: nothing is interrupted, and the table is not looked at.
    if thread::calls() == 0 {
        return false;
    }
    let mut interrupted = false;
    let mine = thread::id();
    for place in &TABLE {
        if place.thread.load(Ordering::Acquire) == mine
            && place
                .entry
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
        if place.thread.load(Ordering::Relaxed) != 0 {
            place.entry.store(0, Ordering::Relaxed);
            place.thread.store(0, Ordering::Relaxed);
        }
    }
}
