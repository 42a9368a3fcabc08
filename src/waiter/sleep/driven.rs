//! A wait that drives the loop (design D7): turns until its own is there, sleeps on the port when there is nothing to do.

use core::time::Duration;

use super::super::slot::Slot;
use super::{OWN, POLLNVAL, Sleeping, Wake, Watch, conclude, look, wait_once};
use crate::attach::Link;
use crate::channel::sync::Ordering;
use crate::ffi::signals;
use crate::ffi::wait::{PollFd, SignalMask};
use crate::progress::{Drive, Next, RINGERS};
use crate::readiness;
use crate::time::Instant;

/// The arguments of a sleep.
pub(super) struct Wait<'a, 'b> {
    pub(super) link: &'a Link,
    pub(super) watch: Watch<'a>,
    pub(super) fds: &'b mut [PollFd],
    pub(super) deadline: Option<Instant>,
    pub(super) sigmask: Option<SignalMask>,
    pub(super) ready: &'b mut dyn FnMut() -> bool,
}

/// A thread that always finds work for others lets the token go this often: for a cancellation, and for others.
const STRETCH: Duration = Duration::from_millis(10);

/// How a stretch of turns ended.
enum Turns {
    /// The wait is over.
    Done(Wake),
    /// A signal waits that may run a handler.
    Signal,
    /// There is nothing to do: the loop may sleep.
    Idle,
    /// Somebody else may have the token.
    Pause,
}

impl Wait<'_, '_> {
    /// Runs the wait to its end. None: somebody else drives, who wakes us.
    pub(super) fn run(&mut self, drive: &mut Drive) -> Option<Wake> {
        loop {
            if (self.ready)() {
                return Some(Wake::Ready);
            }
            if !drive.begin() {
                drive.end();
                return None;
            }
            match self.turns(drive) {
                Turns::Done(wake) => return Some(wake),
                Turns::Pause => {
                    drive.end();
                    signals::cancellation_point();
                }
                Turns::Signal => {
                    if let Some(wake) = self.deliver(drive) {
                        return Some(wake);
                    }
                }
                Turns::Idle => match self.rest(drive) {
                    Some(Some(wake)) => return Some(wake),
                    Some(None) => {}
                    // No slot to be woken through.
                    None => {
                        drive.end();
                        return None;
                    }
                },
            }
        }
    }

    fn turns(&mut self, drive: &mut Drive) -> Turns {
        let mut began = None;
        let mut looked = Instant::ZERO;
        loop {
            let (now, turned) = drive.turn();
            if (self.ready)() {
                return Turns::Done(Wake::Ready);
            }
            let began = *began.get_or_insert(now);
            let over = self.deadline.is_some_and(|deadline| now >= deadline);
            // At once when there is nothing to do, then once a budget: signals and the kernel's descriptors.
            let due = now.since(looked) >= drive.budget() && (!turned.worked || now != began);
            if over || due {
                looked = now;
                if let Some(end) = self.look(drive, over) {
                    return end;
                }
                if now.since(began) >= STRETCH {
                    return Turns::Pause;
                }
            }
            match turned.next {
                Next::Turn => core::hint::spin_loop(),
                Next::Yield => rustix::thread::sched_yield(),
                Next::Sleep => return Turns::Idle,
                // The host is dead: `ready` says so, or the sleep.
                Next::Over => return Turns::Pause,
            }
        }
    }

    /// Asks the kernel.
    fn look(&mut self, drive: &Drive, over: bool) -> Option<Turns> {
        if drive.pending(self.sigmask).0 != 0 {
            return Some(Turns::Signal);
        }
        // An epoll that holds nothing of the kernel's is not asked; what another thread puts into it is found by the sleep.
        let is_empty = matches!(self.watch, Watch::Epoll(epoll) if self.link.control.epoll(epoll)
            .is_some_and(|cell| cell.kernel_items.load(Ordering::Relaxed) == 0));
        let theirs = self.fds.get_mut(OWN..).unwrap_or(&mut []);
        if !is_empty && theirs.iter().any(|entry| entry.fd >= 0) {
            match look(theirs, None) {
                Ok(0) => {}
                Ok(_) => return Some(Turns::Done(Wake::Kernel)),
                Err(error) => return Some(Turns::Done(Wake::Failed(error))),
            }
        }
        over.then_some(Turns::Done(Wake::Timeout))
    }

    /// Lets the signals in that wait. Some = a handler has run, so that the wait is over.
    fn deliver(&mut self, drive: &mut Drive) -> Option<Wake> {
        let acts = signals::any_acts(drive.pending(self.sigmask));
        let sigmask = self.sigmask;
        drive.end_with(|| {
            if sigmask.is_some() {
                // EINTR, which is what it is for.
                let _ = look(&mut [], sigmask);
            }
        });
        if !acts {
            return None;
        }
        // A state that came with the signal wins, as in the kernel.
        Some(if (self.ready)() {
            Wake::Ready
        } else {
            Wake::Interrupted
        })
    }

    /// Sleeps with the loop. None: no slot. Some(None): awake, and the wait goes on.
    fn rest(&mut self, drive: &mut Drive) -> Option<Option<Wake>> {
        let slot = Slot::take(self.link)?;
        let eventfd = slot.eventfd;
        let sleeping = Sleeping::begin(self.link, self.watch, slot);
        readiness::begin_sleep(sleeping.slot.cell, || {
            self.watch.add(self.link, sleeping.slot.index);
        });
        if (self.ready)() {
            return Some(Some(Wake::Ready));
        }
        let Some(resting) = drive.rest() else {
            return Some(None);
        };
        if (self.ready)() {
            drive.stay();
            return Some(Some(Wake::Ready));
        }
        drive.let_go();
        let rest = resting.rest;
        let until = rest.until.into_iter().chain(self.deadline).min();
        let mask = self.sigmask.unwrap_or(resting.mask);
        let result = wait_once(
            self.link,
            eventfd,
            rest.on,
            self.fds,
            until,
            None,
            Some(mask),
        );
        readiness::end_sleep(sleeping.slot.cell);
        let revents = |at: usize| self.fds.get(at).map_or(0, |entry| entry.revents);
        let own = revents(0);
        let rang = (2..2 + RINGERS).any(|at| revents(at) != 0);
        let is_ok = result.is_ok();
        // Before anything that ends the wait: somebody must be at the loop.
        drive.awake(is_ok && rang);
        if own & POLLNVAL != 0 {
            sleeping.slot.forget_eventfd(self.link);
        } else if own != 0 && is_ok {
            sleeping.slot.drain();
        }
        Some(conclude(
            self.link,
            self.fds,
            result,
            self.deadline,
            self.ready,
        ))
    }
}
