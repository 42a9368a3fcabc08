//! The attach lock: one thread of a process speaks with the host at a time.
//!
//! A word with the thread's id, slept on with a futex in slices. A signal handler that finds its own
//! thread inside gets no lock, and an owner that is gone (also in a forked child) is replaced.

use core::sync::atomic::{AtomicU32, Ordering};

use rustix::thread::futex;
use rustix::time::Timespec;

use crate::ffi::process;
use crate::thread;
use crate::time::{Instant, monotonic};

/// A lock that nobody can hang in.
#[derive(Debug)]
pub(super) struct Lock(AtomicU32);

/// The right to be inside; given back on drop.
#[derive(Debug)]
pub(super) struct Inside<'a>(&'a AtomicU32);

/// How long a sleeper waits before it looks whether the owner still lives (design D8).
const SLICE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 5_000_000,
};

impl Lock {
    pub(super) const fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Waits for the lock; None when this thread holds it already.
    pub(super) fn enter(&self) -> Option<Inside<'_>> {
        self.enter_until(None)
    }

    /// As [`Lock::enter`], until `deadline` at most: None then as well.
    pub(super) fn enter_until(&self, deadline: Option<Instant>) -> Option<Inside<'_>> {
        let mine = thread::id();
        let mut expected = 0;
        loop {
            if expected == 0 && deadline.is_some_and(|deadline| monotonic() >= deadline) {
                return None;
            }
            // Acquire: sees what the last owner did.
            match self
                .0
                .compare_exchange(expected, mine, Ordering::Acquire, Ordering::Relaxed)
            {
                Ok(_) => return Some(Inside(&self.0)),
                Err(owner) if owner == mine => return None,
                Err(0) => expected = 0,
                Err(owner) if !process::thread_lives(thread::process(), owner) => expected = owner,
                Err(owner) => {
                    expected = 0;
                    // Woken, timed out, interrupted or changed: the loop looks again in each case.
                    let _ = futex::wait(&self.0, futex::Flags::PRIVATE, owner, Some(&SLICE));
                }
            }
        }
    }
}

impl Inside<'_> {
    /// Keeps the lock beyond this value; [`Lock::leave`] gives it back.
    pub(super) fn keep(self) {
        core::mem::forget(self);
    }
}

impl Lock {
    /// Gives the lock back, whoever took it: after fork the child's thread has another id.
    pub(super) fn leave(&self) {
        drop(Inside(&self.0));
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Release);
        // Nobody asleep, or the sleeper wakes at the end of its slice.
        let _ = futex::wake(self.0, futex::Flags::PRIVATE, 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lock_is_exclusive_refuses_nesting_and_replaces_the_dead() {
        static LOCK: Lock = Lock::new();
        static INSIDE: AtomicU32 = AtomicU32::new(0);
        let threads: Vec<_> = (0..4)
            .map(|_| {
                std::thread::spawn(|| {
                    for _ in 0..200 {
                        let inside = LOCK.enter().unwrap();
                        assert_eq!(INSIDE.fetch_add(1, Ordering::SeqCst), 0);
                        assert!(LOCK.enter().is_none());
                        INSIDE.fetch_sub(1, Ordering::SeqCst);
                        drop(inside);
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        let inside = LOCK.enter().unwrap();
        let late = || LOCK.enter_until(Some(monotonic())).is_none();
        assert!(std::thread::scope(|scope| scope
            .spawn(late)
            .join()
            .unwrap()));
        drop(inside);
        let dead = std::thread::spawn(|| LOCK.enter().unwrap().keep());
        dead.join().unwrap();
        drop(LOCK.enter().unwrap());
    }
}
