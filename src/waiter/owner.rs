//! Taking an owner word, with the sleep and the dead-owner check that the word itself leaves out.
//!
//! The word is held over a copy or an update, never over a wait of the program's, so these sleeps are short.

use core::time::Duration;

use rustix::thread::futex;
use rustix::time::Timespec;

use super::counters::COUNTERS;
use crate::attach::Link;
use crate::channel::cell::process as state;
use crate::channel::owner::{BusyOwner, OwnerWord, Taken};
use crate::channel::sync::Ordering;
use crate::ffi::{handler, process};
use crate::thread;

/// A sleep on an owner word ends after this to look whether the owner still lives (design D8).
const SLICE: Duration = Duration::from_millis(5);
/// Slices after which a process leader without a process cell counts as dead: a zombie answers signals.
const ZOMBIE_SLICES: u32 = 40;

/// How the word was taken; each needs its [`release`], except `Nested`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Held {
    /// From nobody.
    Free,
    /// From a thread that is gone: what it left undone must be forgotten.
    FromDead,
    /// It was this thread's already: we run in a signal handler that interrupted the owner.
    Nested,
}

/// Takes `word`, waiting for its owner. Not a cancellation point.
pub fn take(link: &Link, word: &OwnerWord) -> Held {
    let me = thread::id();
    let mut taken = word.take(me);
    let mut slices = 0;
    loop {
        match taken {
            Taken::Owned => return Held::Free,
            Taken::Nested => return Held::Nested,
            Taken::Busy(busy) => {
                if slices > 0 && is_gone(link, busy.thread, slices) && word.take_over(busy, me) {
                    COUNTERS.owners_replaced.raise();
                    return Held::FromDead;
                }
                if wait(word, busy) {
                    slices += 1;
                }
            }
        }
        taken = word.take_after_sleep(me);
    }
}

/// Sleeps until the word changes; says whether a whole slice went by.
fn wait(word: &OwnerWord, busy: BusyOwner) -> bool {
    let Some(value) = word.announce_sleep(busy) else {
        return false;
    };
    let slice = Timespec {
        tv_sec: 0,
        tv_nsec: i64::from(SLICE.subsec_nanos()),
    };
    // Shared: the owner may be in another process. Woken, interrupted or changed meanwhile: look again.
    let result = futex::wait(word.word(), futex::Flags::empty(), value, Some(&slice));
    result == Err(rustix::io::Errno::TIMEDOUT)
}

/// Gives `word` back after `publish` (see [`OwnerWord::release`]) and wakes one sleeper.
pub fn release(word: &OwnerWord, publish: impl FnMut()) {
    if word.release(thread::id(), publish) {
        // Nobody there to wake is right as well.
        let _ = futex::wake(word.word(), futex::Flags::empty(), 1);
    }
}

fn is_gone(link: &Link, owner: u32, slices: u32) -> bool {
    if !handler::any_thread_lives(owner) {
        return true;
    }
    // A killed process that nobody has waited for still answers; the host has freed its cell by now.
    slices >= ZOMBIE_SLICES
        && process::thread_lives(owner, owner)
        && !link.control.processes().any(|index| {
            link.control.process(index).is_some_and(|cell| {
                cell.state.load(Ordering::Acquire) != state::FREE
                    && cell.pid.load(Ordering::Relaxed) == owner
            })
        })
}
