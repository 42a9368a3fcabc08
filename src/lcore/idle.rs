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
    /// It polls longer than it was told, because its last sleep was not worth it.
    stretched: bool,
    /// Short sleeps before it polls longer again.
    held_off: u32,
}

/// A loop whose sleep was short polls so many times as long before the next one.
const STRETCH: u32 = 4;
/// Where that did not help, so many short sleeps pass before it is tried again: on a CPU that both ends share nothing comes while
/// one of them polls.
const HOLD_OFF: u32 = 16;

impl Idle {
    pub(super) const fn new(config: IdleConfig, shared: bool, now: Instant) -> Self {
        Self {
            config,
            shared,
            last_work: now,
            stretched: false,
            held_off: 0,
        }
    }

    /// Somebody else runs on the CPU.
    pub(super) const fn share(&mut self) {
        self.shared = true;
    }

    fn spin(&self) -> Duration {
        if self.stretched {
            self.config.spin * STRETCH
        } else {
            self.config.spin
        }
    }

    /// Learns from a sleep that is over. Falling asleep and waking up takes both ends longer than many a sleep: where work comes
    /// that soon, polling on is cheaper (as the halt polling of KVM).
    pub(super) fn slept(&mut self, passed: Duration) {
        let short = passed < self.config.spin * STRETCH;
        let failed = short && self.stretched;
        if failed {
            self.held_off = HOLD_OFF;
        }
        self.stretched = short && self.held_off == 0;
        if short {
            self.held_off = self.held_off.saturating_sub(1);
        }
    }

    /// What to do after a turn that ended at `now` and did something or not. A port without a descriptor to wait on
    /// must be polled.
    pub(super) fn next(&mut self, now: Instant, worked: bool, can_sleep: bool) -> Next {
        if worked {
            self.last_work = now;
            return Next::Turn;
        }
        let rested = now.since(self.last_work) >= self.spin();
        match self.config.policy {
            IdlePolicy::Adaptive if rested && can_sleep => Next::Sleep,
            IdlePolicy::Adaptive if rested => Next::Yield,
            _ if self.shared => Next::Yield,
            _ => Next::Turn,
        }
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
    fn a_loop_that_slept_for_a_moment_polls_longer_unless_that_does_not_help() {
        let config = IdleConfig {
            policy: IdlePolicy::Adaptive,
            spin: Duration::from_micros(50),
        };
        let at = Instant::from_micros;
        let short = Duration::from_micros(120);
        let mut idle = Idle::new(config, false, at(0));
        idle.slept(short);
        assert_eq!(idle.next(at(199), false, true), Next::Turn);
        assert_eq!(idle.next(at(200), false, true), Next::Sleep);
        // Nothing came while it polled, but soon after it fell asleep.
        for _ in 0..HOLD_OFF {
            idle.slept(short);
            assert_eq!(idle.next(at(50), false, true), Next::Sleep);
        }
        idle.slept(short);
        assert_eq!(idle.next(at(199), false, true), Next::Turn);
        idle.slept(Duration::from_millis(5));
        assert_eq!(idle.next(at(50), false, true), Next::Sleep);
        idle.slept(short);
        assert_eq!(idle.next(at(199), false, true), Next::Turn);
    }
}
