//! The sleep of an lcore: by its own thread, or by whoever drives it from outside.

use core::time::Duration;
use std::os::fd::AsRawFd;

use super::family::Family;
use super::idle::{self, Next};
use super::peers::Peers;
use super::worker::Lcore;
use crate::time::{self, Instant};

impl Lcore {
    /// Sleeps until a frame, a doorbell, a message or a timer; returns how long that was meant to be at most.
    pub(super) fn sleep(&mut self) -> Duration {
        let mut slept = Duration::ZERO;
        if self.fall_asleep(time::monotonic()) {
            slept = self.doze();
        }
        self.wake_up();
        slept
    }

    /// Tells everybody that the loop sleeps, arms the port, and looks once more. False = something came up.
    fn fall_asleep(&mut self, now: Instant) -> bool {
        self.set_sleeping(true);
        self.rx.arm(true);
        // Whoever did something before it saw the flag is seen now.
        let slept = core::mem::take(&mut self.slept);
        let quiet = self.turn(now, slept) == 0
            && !self.mailbox.has_mail()
            && !self.peers.as_mut().is_some_and(Peers::has_any)
            && !self.families.iter().flatten().any(Family::is_calling);
        if quiet {
            self.status.counters.sleeps.raise();
        }
        quiet
    }

    fn wake_up(&mut self) {
        self.in_vain = None;
        self.rx.arm(false);
        self.set_sleeping(false);
    }

    /// How long there is nothing to do; None = no timer runs.
    fn rest_limit(&self) -> Option<Duration> {
        let now = self.clock.now();
        let stage = self.stage.as_ref().and_then(|stage| stage.next_due(now));
        let packets = self.packets_due(now);
        let due = [
            self.stack.next_timer(),
            self.memory.next_due(),
            self.rx.next_due(),
            self.held.next_due(),
            self.offers.next_due(),
            stage,
            packets,
        ];
        due.into_iter().flatten().min().map(|due| due.since(now))
    }

    fn doze(&self) -> Duration {
        let limit = self.rest_limit();
        let began = time::monotonic();
        match idle::sleep(self.mailbox.wakers(), self.rx.as_ref(), limit) {
            Ok(true) => self.mailbox.drain(),
            Ok(false) => {}
            // Then it polls: slower for others, but nothing is lost.
            Err(errno) => crate::error!("event=no_sleep errno={errno}"),
        }
        let passed = time::monotonic().since(began);
        limit.map_or(passed, |limit| limit.min(passed))
    }

    fn set_sleeping(&self, sleeping: bool) {
        for family in self.families.iter().flatten() {
            family.set_sleeping(sleeping);
        }
        if let Some(peers) = &self.peers {
            peers.set_asleep(sleeping);
        }
    }

    /// The calling thread drives from now on, until [`Lcore::leave`]: with inline progress each thread of the program in turn.
    pub fn enter(&mut self) {
        self.stack.await_program();
        self.in_vain = None;
        self.rx.enter();
    }

    /// Undoes [`Lcore::enter`].
    pub fn leave(&mut self) {
        self.rx.leave();
    }

    /// A turn for who drives from outside, and what the idle policy says then.
    pub fn drive(&mut self, now: Instant) -> (usize, Next) {
        let slept = core::mem::take(&mut self.slept);
        let work = self.turn(now, slept);
        let next = self.idle.next(self.clock.now(), work > 0, true);
        (work, next)
    }

    /// Prepares a sleep that somebody else takes: the bell's, the mail's and the port's descriptors, and how long at most. None = something
    /// came up. Ends with [`Lcore::end_rest`].
    pub fn begin_rest(&mut self, now: Instant) -> Option<([i32; 3], Option<Duration>)> {
        let port = self.rx.wait_fd().map(|fd| fd.as_raw_fd());
        if !self.fall_asleep(now) {
            self.wake_up();
            return None;
        }
        let mut limit = self.rest_limit();
        if port.is_none() {
            // vhost before its peer is there, which is looked for.
            limit = Some(limit.map_or(NO_PORT_SLICE, |limit| limit.min(NO_PORT_SLICE)));
        }
        self.resting = Some((now, limit));
        let [bell, mail] = self.mailbox.wakers().map(|fd| fd.as_raw_fd());
        Some(([bell, mail, port.unwrap_or(-1)], limit))
    }

    /// The loop is awake.
    pub fn end_rest(&mut self, now: Instant) {
        self.wake_up();
        if let Some((began, limit)) = self.resting.take() {
            let passed = now.since(began);
            self.idle.slept(passed);
            self.slept = limit.map_or(passed, |limit| limit.min(passed));
        }
    }

    /// The bell's or the mail's eventfd was seen.
    pub fn hear(&self) {
        self.mailbox.drain();
    }
}

/// How long who drives from outside sleeps where the port has no descriptor to wait on.
const NO_PORT_SLICE: Duration = Duration::from_millis(1);
