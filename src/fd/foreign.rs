//! What a child that shares our memory (vfork, posix_spawn's own) does to its descriptors, which are its own.
//!
//! The table says what the parent's numbers stand for, and must go on saying it. What the child puts at a number before it
//! executes a program is noted here, so that the program gets it. The thread that made the child is suspended meanwhile, and
//! the child runs on its words: the pair (thread, process) is the child.

use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};

use super::table::{self, Entry};
use crate::ffi::process;
use crate::thread;

/// Numbers that all such children can have changed at a time.
const PLACES: usize = 64;

#[derive(Debug)]
struct Place {
    /// Thread (bits 32 to 63) and process; 0 = free.
    child: AtomicU64,
    fd: AtomicI32,
    entry: AtomicU64,
}

static PLACED: [Place; PLACES] = [const {
    Place {
        child: AtomicU64::new(0),
        fd: AtomicI32::new(-1),
        entry: AtomicU64::new(0),
    }
}; PLACES];

/// Whether there ever was such a child that changed something.
static USED: AtomicBool = AtomicBool::new(false);

/// See [`USED`]: most programs have none.
#[must_use]
pub(super) fn is_used() -> bool {
    USED.load(Ordering::Relaxed)
}

fn child() -> u64 {
    u64::from(thread::mark()) << 32 | u64::from(process::pid())
}

/// `fd` stands for `entry` in this child. Without a place left it is the kernel's there.
pub(super) fn put(fd: i32, entry: Entry) {
    USED.store(true, Ordering::Relaxed);
    let mine = child();
    let is_mine = |place: &&Place| {
        place.child.load(Ordering::Relaxed) == mine && place.fd.load(Ordering::Relaxed) == fd
    };
    // A child before this one of the same thread has executed its program or is gone.
    let take = |place: &&Place| {
        let old = place.child.load(Ordering::Relaxed);
        (old == 0 || (old >> 32 == mine >> 32 && old != mine))
            && place
                .child
                .compare_exchange(old, mine, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
    };
    let place = PLACED.iter().find(is_mine);
    if let Some(place) = place.or_else(|| PLACED.iter().find(take)) {
        place.entry.store(entry.pack(), Ordering::Relaxed);
        place.fd.store(fd, Ordering::Relaxed);
    }
}

/// `copy` became a duplicate of `fd` in this child.
pub(super) fn duplicate(fd: i32, copy: i32) {
    let new = entry(fd);
    if new != Entry::Kernel || entry(copy) != Entry::Kernel {
        put(copy, new);
    }
}

/// What `fd` stands for in this child.
#[must_use]
pub fn entry(fd: i32) -> Entry {
    let mut found = None;
    for_each(|number, entry| {
        if number == fd {
            found = Some(entry);
        }
    });
    found.unwrap_or_else(|| table::entry(fd))
}

/// Visits the numbers that this child has changed.
pub(super) fn for_each(mut visit: impl FnMut(i32, Entry)) {
    let mine = child();
    for place in &PLACED {
        if place.child.load(Ordering::Acquire) == mine {
            visit(
                place.fd.load(Ordering::Relaxed),
                Entry::unpack(place.entry.load(Ordering::Relaxed)),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fd::table::Record;

    #[test]
    fn what_a_child_puts_at_a_number_is_its_own() {
        let entry_at = Entry::Epoll(Record {
            index: 3,
            generation: 9,
        });
        put(5, entry_at);
        assert_eq!(entry(5), entry_at);
        put(5, Entry::Kernel);
        assert_eq!(entry(5), Entry::Kernel);
        let mut seen = 0;
        for_each(|_, _| seen += 1);
        assert_eq!(seen, 1);
        let other = std::thread::spawn(|| {
            let mut seen = 0;
            for_each(|_, _| seen += 1);
            seen
        });
        assert_eq!(other.join().unwrap(), 0);
        // The next child of this thread begins anew.
        for place in &PLACED {
            if place.child.load(Ordering::Relaxed) == child() {
                place.child.store(child() ^ 1, Ordering::Relaxed);
            }
        }
        put(6, entry_at);
        assert_eq!(entry(6), entry_at);
        assert_eq!(
            PLACED
                .iter()
                .filter(|it| it.child.load(Ordering::Relaxed) >> 32 == child() >> 32)
                .count(),
            1
        );
    }
}
