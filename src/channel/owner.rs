//! The owner word: which thread may reserve in a transmit ring or change interest items.
//!
//! A thread takes it by compare-and-swap and sleeps on it with a futex; one that finds the owner dead
//! takes it over, because nothing needs repair (bytes are published by one store). A signal handler
//! that finds its own thread the owner is *nested*: it works behind the interrupted call, which
//! publishes both.

use super::sync::{AtomicU32, Ordering};

/// Somebody sleeps on the word.
const WAITED: u32 = 1 << 31;
/// A nested call has added to what the owner must publish.
const NESTED: u32 = 1 << 30;
/// The thread id (Linux gives at most 2^22).
const THREAD: u32 = NESTED - 1;

/// The owner word; 0 = free.
#[repr(transparent)]
#[derive(Debug, Default)]
pub struct OwnerWord(AtomicU32);

/// What [`OwnerWord::take`] found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Taken {
    /// The word is now ours.
    Owned,
    /// The word is already this thread's: a signal handler interrupted the owner.
    Nested,
    /// Another thread owns it.
    Busy(BusyOwner),
}

/// The owner that was in the way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BusyOwner {
    /// Its thread id.
    pub thread: u32,
    /// The word as seen with the waited bit set: what a futex wait compares.
    pub word: u32,
}

impl OwnerWord {
    /// A free word.
    #[cfg(not(loom))]
    #[must_use]
    pub const fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Tries to make `thread` the owner. Acquire: sees what the last owner wrote.
    pub fn take(&self, thread: u32) -> Taken {
        match self
            .0
            .compare_exchange(0, thread & THREAD, Ordering::Acquire, Ordering::Relaxed)
        {
            Ok(_) => Taken::Owned,
            Err(word) if word & THREAD == thread & THREAD => Taken::Nested,
            Err(word) => Taken::Busy(BusyOwner {
                thread: word & THREAD,
                word,
            }),
        }
    }

    /// As [`OwnerWord::take`] for a thread that has slept: others may sleep still, so its release wakes one.
    pub fn take_after_sleep(&self, thread: u32) -> Taken {
        let mine = thread & THREAD | WAITED;
        match self
            .0
            .compare_exchange(0, mine, Ordering::Acquire, Ordering::Relaxed)
        {
            Ok(_) => Taken::Owned,
            Err(_) => self.take(thread),
        }
    }

    /// Says that this thread is going to sleep until the word changes; returns the value to sleep on, or None
    /// when the owner changed meanwhile (try again).
    pub fn announce_sleep(&self, busy: BusyOwner) -> Option<u32> {
        let wanted = busy.word | WAITED;
        match self
            .0
            .compare_exchange(busy.word, wanted, Ordering::Relaxed, Ordering::Relaxed)
        {
            Ok(_) => Some(wanted),
            Err(word) if word == wanted => Some(wanted),
            Err(_) => None,
        }
    }

    /// Takes the word from `dead`, which is known to be no thread any more. Another waiter may be quicker.
    pub fn take_over(&self, dead: BusyOwner, thread: u32) -> bool {
        let mine = thread & THREAD | WAITED;
        let current = self.0.load(Ordering::Relaxed);
        current & THREAD == dead.thread
            && self
                .0
                .compare_exchange(current, mine, Ordering::Acquire, Ordering::Relaxed)
                .is_ok()
    }

    /// Marks that a nested call left something for the owner to publish.
    pub fn mark_nested(&self) {
        self.0.fetch_or(NESTED, Ordering::Release);
    }

    /// Gives the word back after `publish` has run; runs it again for each nested call that came in between.
    ///
    /// Returns whether a sleeper must be woken (futex wake of one on [`OwnerWord::word`]).
    pub fn release(&self, thread: u32, mut publish: impl FnMut()) -> bool {
        publish();
        let mut expected = thread & THREAD;
        loop {
            match self
                .0
                .compare_exchange(expected, 0, Ordering::Release, Ordering::Acquire)
            {
                Ok(word) => return word & WAITED != 0,
                Err(word) if word & THREAD != thread & THREAD => return false,
                Err(word) if word & NESTED != 0 => {
                    self.0.fetch_and(!NESTED, Ordering::Acquire);
                    publish();
                    expected = word & !NESTED;
                }
                Err(word) => expected = word,
            }
        }
    }

    /// The raw word, for the futex.
    #[must_use]
    pub fn word(&self) -> &AtomicU32 {
        &self.0
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn a_nested_call_makes_the_owner_publish_again() {
        let owner = OwnerWord::default();
        assert_eq!(owner.take(7), Taken::Owned);
        assert_eq!(owner.take(7), Taken::Nested);
        owner.mark_nested();
        let mut published = 0;
        assert!(!owner.release(7, || published += 1));
        assert_eq!(published, 2);
        assert_eq!(owner.take(8), Taken::Owned);
    }

    #[test]
    fn a_sleeper_is_announced_and_a_dead_owner_replaced() {
        let owner = OwnerWord::default();
        assert_eq!(owner.take(7), Taken::Owned);
        let Taken::Busy(busy) = owner.take(8) else {
            panic!("7 owns it")
        };
        assert!(owner.announce_sleep(busy).is_some());
        assert!(owner.take_over(busy, 8));
        assert!(!owner.take_over(busy, 9));
        assert!(owner.release(8, || ()));
        assert!(!owner.release(7, || ()), "the dead owner changes nothing");
    }
}
