//! What an lcore does when a turn found nothing: spin, yield, or sleep.

use core::time::Duration;
use std::os::fd::BorrowedFd;

use rustix::event::{PollFd, PollFlags, Timespec};

use crate::device::RxQueue;
use crate::errno::{Errno, Result};
use crate::time::Instant;

/// `common.idle`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IdlePolicy {
    /// Never sleep.
    Spin,
    /// Poll for a while, then sleep until something happens.
    Adaptive,
}

/// How an lcore idles.
#[derive(Clone, Copy, Debug)]
pub struct IdleConfig {
    /// The policy.
    pub policy: IdlePolicy,
    /// How long an adaptive lcore polls before it sleeps.
    pub spin: Duration,
}

/// What to do after a turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// Another turn at once.
    Turn,
    /// Let others of the CPU run first.
    Yield,
    /// Sleep until something happens.
    Sleep,
}

/// The idle state of an lcore.
#[derive(Debug)]
pub(super) struct Idle {
    config: IdleConfig,
    /// Others run on its CPU.
    shared: bool,
    last_work: Instant,
    /// How well polling longer than it was told does; it does so while there is some of it.
    credit: u32,
    /// Short sleeps before it is tried again.
    held_off: u32,
    /// It has slept since the last work, which it then has not found by polling.
    rested: bool,
    /// Somebody was woken with the last work, and will answer.
    expecting: bool,
    /// When it looked last.
    looked: Instant,
    /// It let others run then.
    yielded: bool,
    /// So many times in a row no answer came while it was polled for.
    vain: u32,
    /// So many were woken since, without being polled for.
    skipped: u32,
}

/// A loop that polls longer does so for so many times as long.
const STRETCH: u32 = 4;
/// So many times in vain, and it is given up, where it has found work before.
const CREDIT: u32 = 8;
/// And where it has not.
const TRIAL: u32 = 2;
/// What finding work by it is worth.
const FOUND: u32 = 2;
/// So many short sleeps pass before it is tried again: on a CPU that both ends share nothing comes while one of them polls.
const HOLD_OFF: u32 = 16;

impl Idle {
    pub(super) const fn new(config: IdleConfig, shared: bool, now: Instant) -> Self {
        Self {
            config,
            shared,
            last_work: now,
            credit: 0,
            held_off: 0,
            rested: false,
            expecting: false,
            looked: now,
            yielded: false,
            vain: 0,
            skipped: 0,
        }
    }

    /// Somebody else runs on the CPU.
    pub(super) const fn share(&mut self) {
        self.shared = true;
    }

    /// How long it polls. Falling asleep and waking up takes both ends longer than many a wait: where work comes that soon, polling
    /// on is cheaper (as the halt polling of KVM).
    fn spin(&self) -> Duration {
        if self.credit > 0 || self.expecting {
            self.config.spin * STRETCH
        } else {
            self.config.spin
        }
    }

    /// Learns from a sleep of `passed` that is over. Told of what who drives from outside sleeps: an lcore that has its own CPU, or
    /// yields, polls as long as it was told to.
    pub(super) fn slept(&mut self, passed: Duration) {
        self.rested = true;
        if self.credit > 0 {
            self.credit -= 1;
            self.held_off = HOLD_OFF;
        } else if passed < self.config.spin * STRETCH {
            self.held_off = self.held_off.saturating_sub(1);
            if self.held_off == 0 {
                self.credit = TRIAL;
            }
        }
    }

    /// The last turn has woken a program, whose answer is polled for as long as it takes two CPUs to wake up: asleep by then, the loop
    /// would have to be woken for it. A program that does not answer that soon is not waited for, nor any on a CPU that others want, but
    /// tried again now and then.
    pub(super) const fn expect_answer(&mut self) {
        if self.vain >= TRIAL {
            self.skipped += 1;
            if self.skipped < HOLD_OFF {
                return;
            }
            self.skipped = 0;
            self.vain = TRIAL - 1;
        }
        self.expecting = true;
    }

    /// What to do after a turn that ended at `now` and did something or not. A port without a descriptor to wait on
    /// must be polled.
    pub(super) fn next(&mut self, now: Instant, worked: bool, can_sleep: bool) -> Next {
        let away = now.since(core::mem::replace(&mut self.looked, now));
        let yielded = core::mem::take(&mut self.yielded);
        if self.expecting && away >= self.config.spin && (yielded || !worked) {
            // Somebody else had the CPU meanwhile: nothing else takes as long but work. Who is woken gets it at once, who yields waits for its turn.
            self.expecting = false;
            self.vain = TRIAL;
        }
        if worked {
            let rested = core::mem::take(&mut self.rested);
            if !rested && self.credit > 0 && now.since(self.last_work) >= self.config.spin {
                self.credit = (self.credit + FOUND).min(CREDIT);
            }
            if core::mem::take(&mut self.expecting) {
                self.vain = 0;
            }
            self.last_work = now;
            return Next::Turn;
        }
        let rested = now.since(self.last_work) >= self.spin();
        if rested && core::mem::take(&mut self.expecting) {
            self.vain += 1;
        }
        let next = match self.config.policy {
            IdlePolicy::Adaptive if rested && can_sleep => Next::Sleep,
            IdlePolicy::Adaptive if rested => Next::Yield,
            _ if self.shared => Next::Yield,
            _ => Next::Turn,
        };
        self.yielded = next == Next::Yield;
        next
    }
}

/// Sleeps until one of `wakers` is readable, a frame may be there, or for `limit`; says whether a waker was.
///
/// # Errors
/// What ppoll says but EINTR, which ends the sleep.
pub(super) fn sleep(
    wakers: [BorrowedFd<'_>; 2],
    queue: &dyn RxQueue,
    limit: Option<Duration>,
) -> Result<bool> {
    let source = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
    let [bell, mail] = wakers;
    let mut sources = [
        source(bell),
        source(mail),
        source(queue.wait_fd().unwrap_or(mail)),
    ];
    let limit = limit.map(|limit| Timespec {
        tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(limit.subsec_nanos()),
    });
    match rustix::event::poll(&mut sources, limit.as_ref()) {
        Ok(_) => {
            let [bell, mail, _] = &sources;
            Ok(!bell.revents().is_empty() || !mail.revents().is_empty())
        }
        Err(Errno::INTR) => Ok(false),
        Err(errno) => Err(errno),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_adaptive_lcore_polls_then_sleeps_and_a_shared_one_yields() {
        let config = IdleConfig {
            policy: IdlePolicy::Adaptive,
            spin: Duration::from_micros(50),
        };
        let at = Instant::from_micros;
        let mut idle = Idle::new(config, false, at(0));
        assert_eq!(idle.next(at(10), true, true), Next::Turn);
        assert_eq!(idle.next(at(59), false, true), Next::Turn);
        assert_eq!(idle.next(at(60), false, true), Next::Sleep);
        assert_eq!(idle.next(at(60), false, false), Next::Yield);
        idle.share();
        assert_eq!(idle.next(at(20), false, true), Next::Yield);
        let spin = IdleConfig {
            policy: IdlePolicy::Spin,
            ..config
        };
        let mut idle = Idle::new(spin, false, at(0));
        assert_eq!(idle.next(at(1_000_000), false, true), Next::Turn);
    }

    #[test]
    fn a_loop_polls_longer_while_that_finds_work() {
        let config = IdleConfig {
            policy: IdlePolicy::Adaptive,
            spin: Duration::from_micros(50),
        };
        let at = Instant::from_micros;
        let (short, long) = (Duration::from_micros(120), Duration::from_millis(5));
        let mut idle = Idle::new(config, false, at(0));
        let mut now = 0;
        let mut polls = |idle: &mut Idle| {
            assert_eq!(idle.next(at(now), true, true), Next::Turn);
            let mut asleep = |after: u64| idle.next(at(now + after), false, true) == Next::Sleep;
            let longest = [50, 200].into_iter().find(|&after| asleep(after));
            now += 1_000;
            longest
        };
        // What comes late is slept for.
        for _ in 0..100 {
            assert_eq!(polls(&mut idle), Some(50));
            idle.slept(long);
        }
        // Where it comes soon, polling on is tried now and then.
        idle.slept(short);
        for _ in 0..3 {
            for _ in 0..TRIAL {
                assert_eq!(polls(&mut idle), Some(200));
                idle.slept(short);
            }
            for _ in 0..HOLD_OFF {
                assert_eq!(polls(&mut idle), Some(50), "nothing was found");
                idle.slept(short);
            }
        }
        assert_eq!(polls(&mut idle), Some(200));
        // Found by it, so that it goes on.
        idle.slept(short);
        for found in 0..CREDIT {
            let at = at(100_000 + u64::from(found) * 120);
            assert_eq!(idle.next(at, true, true), Next::Turn);
        }
        for _ in 1..CREDIT {
            idle.slept(long);
            assert_eq!(polls(&mut idle), Some(200));
        }
        idle.slept(long);
        assert_eq!(polls(&mut idle), Some(50));
    }

    #[test]
    fn the_answer_of_who_was_woken_is_polled_for_while_it_comes_soon() {
        let config = IdleConfig {
            policy: IdlePolicy::Adaptive,
            spin: Duration::from_micros(50),
        };
        let at = Instant::from_micros;
        let mut idle = Idle::new(config, false, at(0));
        let mut now = 1_000;
        // A turn that wakes somebody, who answers after so long or not at all: how long it was polled for.
        let mut wakes = |answer: Option<u64>, step: usize| {
            now += 100_000;
            assert_eq!(idle.next(at(now), true, true), Next::Turn);
            idle.expect_answer();
            for after in (0..300).step_by(step) {
                if answer == Some(after) {
                    assert_eq!(idle.next(at(now + after), true, true), Next::Turn);
                    return None;
                }
                if idle.next(at(now + after), false, true) == Next::Sleep {
                    return Some(after);
                }
            }
            unreachable!("it never sleeps");
        };
        for _ in 0..10 {
            assert_eq!(wakes(Some(120), 10), None);
        }
        for _ in 0..TRIAL {
            assert_eq!(wakes(None, 10), Some(200));
        }
        for _ in 0..3 {
            for _ in 1..HOLD_OFF {
                assert_eq!(wakes(None, 10), Some(50));
            }
            assert_eq!(wakes(None, 10), Some(200), "tried again");
        }
        for _ in 1..HOLD_OFF {
            assert_eq!(wakes(Some(120), 10), Some(50));
        }
        for _ in 0..10 {
            assert_eq!(wakes(Some(120), 10), None);
        }
        // Others have the CPU after each yield.
        assert_eq!(wakes(Some(120), 60), Some(60));
        assert_eq!(wakes(Some(120), 10), Some(50));
        // What comes when nobody was woken is none.
        assert_eq!(idle.next(at(9_000_000), true, true), Next::Turn);
        assert_eq!(idle.next(at(9_000_050), false, true), Next::Sleep);
    }

    #[test]
    fn a_turn_that_works_for_long_is_not_taken_for_somebody_else_on_the_cpu() {
        let config = IdleConfig {
            policy: IdlePolicy::Adaptive,
            spin: Duration::from_micros(50),
        };
        let at = Instant::from_micros;
        // How long the next answer is polled for after one that came `busy` us after the look before.
        let polls = |shared: bool, worked: bool, busy: u64| {
            let mut idle = Idle::new(config, shared, at(0));
            assert_eq!(idle.next(at(10), true, true), Next::Turn);
            idle.expect_answer();
            idle.next(at(20), false, true);
            idle.next(at(20 + busy), worked, true);
            idle.next(at(5_000), true, true);
            idle.expect_answer();
            (0..300).find(|after| idle.next(at(5_000 + after), false, true) == Next::Sleep)
        };
        assert_eq!(polls(false, true, 120), Some(200), "it worked");
        assert_eq!(polls(false, false, 120), Some(50), "it did not");
        assert_eq!(polls(true, true, 120), Some(50), "it yielded before");
        assert_eq!(polls(true, true, 30), Some(200), "not for long");
    }
}
