//! The words by which driving threads, the helper and sleepers agree. Plain stores of numbers: who may do what stands here, and
//! loom checks that no bell is left to nobody.

use crate::channel::sync::{AtomicU32, Ordering};

/// What the helper thread does.
mod helper {
    /// Somebody drives, or has driven a moment ago: it looks at the stamp once a grace.
    pub(super) const PACES: u32 = 0;
    /// A thread of the program sleeps on the port: it sleeps until it is armed.
    pub(super) const SLEEPS: u32 = 1;
    /// It drives, or sleeps on the port itself.
    pub(super) const WATCHES: u32 = 2;
}

/// See the module.
#[derive(Debug)]
pub struct Words {
    /// The loop token: the thread that drives; 0 = nobody.
    driver: AtomicU32,
    /// 1 while the loop sleeps: bells and the port must wake whoever is the sentinel. Changed under the token only.
    asleep: AtomicU32,
    /// See [`helper`]. Changed under the token only.
    helper: AtomicU32,
    /// 1: a thread of the program wants the token that the helper has.
    wanted: AtomicU32,
}

/// How the token was taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Taken {
    /// The loop slept: it must be told that it is awake.
    pub was_asleep: bool,
    /// The helper does not pace: its timer must be armed.
    pub must_arm: bool,
}

impl Words {
    /// Nobody drives, and the helper paces.
    #[must_use]
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        Self {
            driver: AtomicU32::new(0),
            asleep: AtomicU32::new(0),
            helper: AtomicU32::new(helper::PACES),
            wanted: AtomicU32::new(0),
        }
    }

    #[cfg(loom)]
    pub(super) fn new() -> Self {
        Self {
            driver: AtomicU32::new(0),
            asleep: AtomicU32::new(0),
            helper: AtomicU32::new(helper::PACES),
            wanted: AtomicU32::new(0),
        }
    }

    /// The thread that drives; 0 = nobody.
    #[must_use]
    pub fn driver(&self) -> u32 {
        self.driver.load(Ordering::Relaxed)
    }

    /// Takes the token for thread `me` if nobody has it.
    fn take(&self, me: u32) -> bool {
        // Acquire: everything that the last driver did to the loop.
        self.driver.load(Ordering::Relaxed) == 0
            && self
                .driver
                .compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed)
                .is_ok()
    }

    /// Takes the token for a thread of the program. Whatever it does next, the helper paces from here on, so that the
    /// loop is never left to nobody.
    #[must_use]
    pub fn take_to_drive(&self, me: u32) -> Option<Taken> {
        if !self.take(me) {
            return None;
        }
        let must_arm = self.helper.load(Ordering::Relaxed) != helper::PACES;
        if must_arm {
            self.helper.store(helper::PACES, Ordering::Relaxed);
        }
        Some(Taken {
            was_asleep: self.wake_up(),
            must_arm,
        })
    }

    /// Takes the token for the helper, whose timer must not run any more.
    #[must_use]
    pub fn take_to_watch(&self, me: u32) -> Option<Taken> {
        if !self.take(me) {
            return None;
        }
        self.helper.store(helper::WATCHES, Ordering::Relaxed);
        Some(Taken {
            was_asleep: self.wake_up(),
            must_arm: false,
        })
    }

    fn wake_up(&self) -> bool {
        let was_asleep = self.asleep.load(Ordering::Relaxed) != 0;
        if was_asleep {
            self.asleep.store(0, Ordering::Relaxed);
        }
        was_asleep
    }

    /// Gives the token back.
    pub fn give(&self) {
        // Release: the next driver sees everything that this one did to the loop.
        self.driver.store(0, Ordering::Release);
    }

    /// Under the token, behind a last look that found nothing: the loop sleeps, and the caller gives the token back and sleeps
    /// on the port and the bell. A thread of the program (not `by_helper`) must stop the helper's timer first.
    pub fn fall_asleep(&self, by_helper: bool) {
        let helper = if by_helper {
            helper::WATCHES
        } else {
            helper::SLEEPS
        };
        self.helper.store(helper, Ordering::Relaxed);
        self.asleep.store(1, Ordering::Relaxed);
    }

    /// Under the token: the helper leaves the loop to its timer, which it arms.
    pub fn pace(&self) {
        self.helper.store(helper::PACES, Ordering::Relaxed);
    }

    /// Whether the helper looks at the stamp once a grace.
    #[must_use]
    pub fn helper_paces(&self) -> bool {
        self.helper.load(Ordering::Relaxed) == helper::PACES
    }

    /// Asks the helper for the token.
    pub fn want(&self) {
        self.wanted.store(1, Ordering::Relaxed);
    }

    /// Whether somebody asked for it since the last call.
    #[must_use]
    pub fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::Relaxed) != 0 && self.wanted.swap(0, Ordering::Relaxed) != 0
    }
}

#[cfg(not(loom))]
impl Default for Words {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn one_drives_and_the_helper_paces_behind_him() {
        let words = Words::new();
        assert_eq!(
            words.take_to_drive(7),
            Some(Taken {
                was_asleep: false,
                must_arm: false
            })
        );
        assert_eq!(
            (words.take_to_drive(8), words.take_to_watch(9)),
            (None, None)
        );
        words.fall_asleep(false);
        words.give();
        assert!(!words.helper_paces());
        assert_eq!(
            words.take_to_drive(8),
            Some(Taken {
                was_asleep: true,
                must_arm: true
            })
        );
        words.give();
        assert!(words.helper_paces());
        assert_eq!(
            words.take_to_watch(9),
            Some(Taken {
                was_asleep: false,
                must_arm: false
            })
        );
        words.want();
        assert!(words.is_wanted() && !words.is_wanted());
        words.fall_asleep(true);
        words.give();
        assert_eq!(
            words.take_to_drive(7),
            Some(Taken {
                was_asleep: true,
                must_arm: true
            })
        );
    }
}

#[cfg(test)]
#[cfg(loom)]
mod loom_handover;
