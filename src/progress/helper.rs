//! The helper: drives when no thread of the program has done so for a grace, and sleeps on the port when there is nothing to do.
//!
//! While threads of the program drive it looks at their stamp once a grace. While one of them sleeps on the port it sleeps
//! too, but for a look now and then: a handler may have torn that thread out of its sleep by a long jump.

use core::sync::atomic::Ordering;
use core::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};

use super::place::{self, HELPER, Loop, Next, Rest, WORDS};
use crate::ffi::descriptor;
use crate::thread;
use crate::time::monotonic;

/// Between two looks while a thread of the program sleeps on the port.
pub(super) const LOST: Duration = Duration::from_millis(250);

/// Looks that found somebody driving (one that did not halves them) before the helper looks seldom, and once in how many
/// graces then: timers and acknowledgements can wait for a few, and each look takes the CPU from the program.
const SELDOM: (u32, u32) = (4, 5);
/// The same for a program that nearly always comes back in time.
const RARE: (u32, u32) = (24, 20);
/// More such looks say nothing.
const ENOUGH: u32 = 48;
/// Empty turns before the helper sleeps: it works on a CPU that the program needs.
const EMPTY_TURNS: u32 = 2;

pub(super) fn body() {
    if let Err(errno) = rustix::thread::set_name(c"knet-helper") {
        crate::debug!("event=no_title errno={errno}");
    }
    let me = thread::id();
    HELPER.store(me, Ordering::Relaxed);
    let mut fresh = 0_u32;
    loop {
        place::wait_timer();
        if place::is_over() {
            return;
        }
        let due = if WORDS.helper_paces() {
            let due = monotonic().since(place::stamped()) >= place::grace();
            fresh = if due {
                fresh / 2
            } else {
                (fresh + 1).min(ENOUGH)
            };
            if let Some(graces) = seldom(fresh) {
                place::look_seldom(graces);
            }
            due
        } else {
            is_lost()
        };
        if due && WORDS.driver() == 0 {
            watch(me);
        }
    }
}

/// Once in how many graces to look after `fresh` looks that found somebody driving.
fn seldom(fresh: u32) -> Option<u32> {
    [RARE, SELDOM]
        .into_iter()
        .find_map(|(looks, graces)| (fresh >= looks).then_some(graces))
}

/// Whether nobody comes for what the thread that sleeps on the port should have been woken by.
fn is_lost() -> bool {
    let last = place::stamped();
    let rest = place::slept_on();
    let calls = || {
        let source = |fd| {
            let fd = descriptor::lend(fd).ok()?;
            Some(PollFd::from_borrowed_fd(fd, PollFlags::IN))
        };
        let mut sources: Vec<_> = rest.on.into_iter().filter_map(source).collect();
        let overdue = rest.until.is_some_and(|until| until < monotonic());
        overdue || rustix::event::poll(&mut sources, Some(&NOW)).is_ok_and(|count| count > 0)
    };
    if !calls() {
        return false;
    }
    // It may just be on its way.
    place::pause(ON_ITS_WAY);
    place::stamped() == last && !WORDS.helper_paces() && calls()
}

const NOW: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 0,
};
/// How long a woken thread may take to come to the loop.
const ON_ITS_WAY: Duration = Duration::from_millis(20);

/// Drives until somebody else does.
fn watch(me: u32) {
    let mut rang = false;
    while let Some(taken) = WORDS.take_to_watch(me) {
        let Some(mut guard) = place::borrow() else {
            return WORDS.give();
        };
        let Some(it) = guard.as_mut() else {
            return WORDS.give();
        };
        it.enter();
        if taken.was_asleep {
            it.wake();
        }
        if core::mem::take(&mut rang) {
            it.hear();
        }
        let rest = drive(it.as_mut());
        it.leave();
        drop(guard);
        match rest {
            Some(rest) => {
                place::disarm(&rest);
                WORDS.fall_asleep(true);
                WORDS.give();
                rang = sleep(rest);
                if WORDS.helper_paces() {
                    // The program drives, or has driven a moment ago.
                    return;
                }
            }
            // Wanted by the program, or a port that cannot be slept on: once a grace.
            None => {
                WORDS.pace();
                place::arm(place::grace());
                return WORDS.give();
            }
        }
    }
}

/// Turns until there is nothing to do. None = leaves it to the timer.
fn drive(it: &mut dyn Loop) -> Option<Rest> {
    let mut empty = 0;
    loop {
        let now = monotonic();
        let turned = it.turn(now);
        place::stamp(now);
        if turned.next == Next::Over || WORDS.is_wanted() || place::is_over() {
            return None;
        }
        if turned.worked {
            empty = 0;
            continue;
        }
        empty += 1;
        if empty < EMPTY_TURNS {
            core::hint::spin_loop();
            continue;
        }
        if let Some(rest) = it.rest(monotonic()) {
            return Some(rest);
        }
        if empty > EMPTY_TURNS + 1 {
            return None;
        }
    }
}

/// Sleeps on the port, the ringers, the next timer, and the helper's own one. Says whether a ringer was readable.
fn sleep(rest: Rest) -> bool {
    let source = |fd: i32| {
        let fd = descriptor::lend(fd).ok()?;
        Some(PollFd::from_borrowed_fd(fd, PollFlags::IN))
    };
    let [bell, mail, port] = rest.on.map(source);
    let (Some(bell), Some(mail), Some(timer)) = (bell, mail, source(place::timer())) else {
        return false;
    };
    let port = port.unwrap_or_else(|| bell.clone());
    let mut sources = [bell, mail, port, timer];
    let limit = rest.until.map(|until| until.since(monotonic()));
    let limit = limit.map(place::spec);
    // Whatever ended it, the loop is looked at; an error means a descriptor that was closed behind our back.
    if let Err(errno) = rustix::event::poll(&mut sources, limit.as_ref()) {
        crate::debug!("inline helper cannot sleep errno={errno}");
        place::pause(Duration::from_millis(1));
    }
    let [bell, mail, ..] = &sources;
    !bell.revents().is_empty() || !mail.revents().is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_comes_back_in_time_is_looked_at_ever_more_seldom() {
        let asked: Vec<_> = [0, 3, 4, 23, 24, ENOUGH].map(seldom).into();
        let (some, few) = (Some(SELDOM.1), Some(RARE.1));
        assert_eq!(asked, [None, None, some, some, few, few]);
    }
}
