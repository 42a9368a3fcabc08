//! The lcore: a turn on one screen, and the thread that repeats it.

use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use core::time::Duration;
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex, PoisonError};

use super::clock::Clock;
use super::counters::LcoreCounters;
use super::family::{Family, Shared};
use super::held::Held;
use super::idle::{self, Idle, IdleConfig, Next};
use super::latency::Latency;
use super::look::{Counted, LOOK_PLACES, Look, Seen};
use super::mailbox::{Mail, Mailbox, Report};
use super::memory::Memory;
use super::object::{FAMILIES_MAX, Token};
use super::payload::packet::{JudgedTx, SharedSent, lock, passes};
use crate::capture::{self, Closed, Recorder};
use crate::device::{RxFrame, RxQueue, TxQueue};
use crate::gpu::{Ends, PacketStage, Pipeline, StreamStage};
use crate::id::FlowId;
use crate::stack::demux::{Class, FlowKey};
use crate::stack::{Change, Owner, Stack};
use crate::time::{self, Instant};

/// What an lcore is made of.
pub struct LcoreConfig {
    /// The protocol.
    pub stack: Stack,
    /// The receive half of its queue pair.
    pub rx: Box<dyn RxQueue>,
    /// The transmit half.
    pub tx: Box<dyn TxQueue>,
    /// How the control thread speaks to it.
    pub mailbox: Arc<Mailbox>,
    /// What the control thread may see of it.
    pub status: Arc<LcoreStatus>,
    /// What looks at payload, if anything does.
    pub pipeline: Pipeline,
    /// How it idles.
    pub idle: IdleConfig,
    /// Others run on its CPU.
    pub shares_cpu: bool,
    /// `net.core.somaxconn`.
    pub somaxconn: u32,
    /// The time at the start.
    pub now: Instant,
}

impl core::fmt::Debug for LcoreConfig {
    fn fmt(&self, out: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        out.debug_struct("LcoreConfig")
            .field("idle", &self.idle)
            .field("shares_cpu", &self.shares_cpu)
            .finish_non_exhaustive()
    }
}

/// What the control thread may see of an lcore at any time.
#[derive(Debug, Default)]
pub struct LcoreStatus {
    /// Counters.
    pub counters: Arc<LcoreCounters>,
    /// Flows of the stack, those in TIME-WAIT among them.
    pub flows: AtomicUsize,
    /// Of them, those that can still carry bytes or wait for a FIN.
    pub live_flows: AtomicUsize,
    ended: Mutex<Vec<Owner>>,
    /// The lcore's thread; 0 = it does not run.
    thread: AtomicU32,
    /// Number of the wake-up that is being written; 0 = none.
    writing: AtomicU64,
}

impl LcoreStatus {
    /// Takes the families that have ended since the last call: their numbers may be used again.
    #[must_use]
    pub fn take_ended(&self) -> Vec<Owner> {
        core::mem::take(&mut *self.ended.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The wake-up that is being written now, and the thread that writes it. The same one after a while: it waits.
    #[must_use]
    pub fn held_up(&self) -> Option<(u64, u32)> {
        match self.writing.load(Ordering::Relaxed) {
            0 => None,
            number => Some((number, self.thread.load(Ordering::Relaxed))),
        }
    }

    /// A sleeper's eventfd is about to be written.
    pub(super) fn begin_write(&self) {
        let number = self.counters.wakeups.value() + 1;
        self.writing.store(number, Ordering::Relaxed);
    }

    /// It was written.
    pub(super) fn end_write(&self) {
        self.writing.store(0, Ordering::Relaxed);
    }

    fn push_ended(&self, owner: Owner) {
        self.ended
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(owner);
    }
}

/// An lcore: everything that one polling thread owns.
pub struct Lcore {
    /// Dropped before `memory`, whose rings it borrows.
    stack: Stack,
    memory: Memory,
    families: Vec<Option<Family>>,
    rx: Box<dyn RxQueue>,
    tx: Box<dyn TxQueue>,
    mailbox: Arc<Mailbox>,
    status: Arc<LcoreStatus>,
    mail: Vec<Mail>,
    changes: Vec<Change>,
    stage: Option<StreamStage>,
    packet_rx: Option<PacketStage>,
    packet_tx: Option<SharedSent>,
    /// Ends of flows that a verdict on a segment has ended.
    resets: Vec<Ends>,
    /// Flows whose bytes have come back from the GPU.
    landed: Vec<(FlowId, u32)>,
    clock: Clock,
    latency: Latency,
    held: Held,
    idle: Idle,
    somaxconn: u32,
    stopped: bool,
    /// When a planned sleep began, and how long it was to be at most.
    resting: Option<(Instant, Option<Duration>)>,
    /// Sleep behind us that the next turn's clock must know of.
    slept: Duration,
}

impl core::fmt::Debug for Lcore {
    fn fmt(&self, out: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        out.debug_struct("Lcore")
            .field("families", &self.families.len())
            .field("stopped", &self.stopped)
            .finish_non_exhaustive()
    }
}

impl Lcore {
    /// An lcore without a family.
    #[must_use]
    pub fn new(config: LcoreConfig) -> Self {
        let (mut tx, mut packet_tx) = (config.tx, None);
        if let Some(stage) = config.pipeline.packet_tx {
            let (judged, sent) = JudgedTx::new(tx, stage);
            (tx, packet_tx) = (Box::new(judged), Some(sent));
        }
        Self {
            stack: config.stack,
            memory: Memory::new(Arc::clone(&config.status.counters)),
            families: Vec::new(),
            rx: config.rx,
            tx,
            mailbox: config.mailbox,
            status: config.status,
            mail: Vec::new(),
            changes: Vec::with_capacity(CHANGES_EXPECTED),
            stage: config.pipeline.stream,
            packet_rx: config.pipeline.packet_rx,
            packet_tx,
            resets: Vec::new(),
            landed: Vec::new(),
            clock: Clock::new(config.now),
            latency: Latency::default(),
            held: Held::default(),
            idle: Idle::new(config.idle, config.shares_cpu, config.now),
            somaxconn: config.somaxconn,
            stopped: false,
            resting: None,
            slept: Duration::ZERO,
        }
    }

    /// Says on the wire who we are (gratuitous ARP). Called once, before the first turn.
    pub fn announce(&mut self) {
        let now = self.clock.now();
        self.stack.announce(now, self.tx.as_mut());
        self.tx.flush(now);
    }

    /// One turn at real time `real`, of which `slept` was planned sleep. Returns how much was done; never blocks.
    pub fn turn(&mut self, real: Instant, slept: Duration) -> usize {
        if self.clock.advance(real, slept) {
            self.status.counters.time_gaps.raise();
        }
        let families = &self.families;
        self.latency.begin(real, slept > Duration::ZERO, |token| {
            let family = families.get(token.owner.0 as usize)?.as_ref()?;
            family.position(token.object)
        });
        let now = self.clock.now();
        let mut work = self.receive(now);
        work += self.commands(now);
        work += self.release(now);
        work += self.stack.expire(now, &mut self.memory, self.tx.as_mut());
        work += self.land(now);
        // The program works on what came while the answers of others leave: a burst to the kernel takes its time.
        work += self.publish(now);
        work += self.wake();
        work += self.stack.transmit(now, &mut self.memory, self.tx.as_mut());
        self.tx.flush(now);
        // What became different by sending; nothing in nearly every turn.
        work += self.publish(now);
        work += self.wake();
        self.status.counters.turns.raise();
        if work == 0 {
            self.status.counters.turns_idle.raise();
        } else {
            self.latency.worked();
        }
        work
    }

    fn receive(&mut self, now: Instant) -> usize {
        let Self {
            rx,
            tx,
            stack,
            memory,
            packet_rx,
            resets,
            ..
        } = self;
        let work = rx.rx_burst(now, &mut |frames| {
            let Some(stage) = packet_rx else {
                return stack.ingress(now, frames, memory, tx.as_mut());
            };
            let mut keep = |stack: &Stack, class: &Class, frame: &mut RxFrame<'_>| {
                passes(stage, stack, class, frame, resets)
            };
            stack.ingress_if(now, frames, memory, tx.as_mut(), Some(&mut keep));
        });
        self.reset_denied(now);
        work
    }

    /// Resets the flows that a verdict on one of their segments has ended.
    fn reset_denied(&mut self, now: Instant) {
        if let Some(sent) = &self.packet_tx {
            self.resets.append(&mut lock(sent).resets);
        }
        while let Some(Ends { local, remote }) = self.resets.pop() {
            let Some((flow, token)) = self.stack.find(FlowKey { local, remote }) else {
                continue;
            };
            let Token { owner, object } = Token::unpack(token);
            self.with(owner.0 as usize, |family, shared| {
                family.work(now, shared).deny(object, flow);
            });
        }
    }

    /// Hands over to the GPU what came, and goes on with what it has judged.
    fn land(&mut self, now: Instant) -> usize {
        let Some(stage) = &mut self.stage else {
            return 0;
        };
        let work = stage.step(now);
        let mut landed = core::mem::take(&mut self.landed);
        stage.take_woken(&mut landed);
        for (flow, token) in landed.drain(..) {
            let Token { owner, object } = Token::unpack(token);
            self.with(owner.0 as usize, |family, shared| {
                family.work(now, shared).changed(object, flow);
            });
        }
        self.landed = landed;
        work
    }

    fn commands(&mut self, now: Instant) -> usize {
        let mut work = 0;
        if self.mailbox.has_mail() {
            let mut mail = core::mem::take(&mut self.mail);
            self.mailbox.take(&mut mail);
            work += mail.len();
            for one in mail.drain(..) {
                self.open(now, one);
            }
            self.mail = mail;
        }
        for place in 0..self.families.len() {
            work += self
                .with(place, |family, shared| family.commands(now, shared))
                .unwrap_or(0);
        }
        work
    }

    /// Lets go of bytes that were held back for long enough.
    fn release(&mut self, now: Instant) -> usize {
        let mut work = 0;
        while let Some(Token { owner, object }) = self.held.pop(now) {
            self.with(owner.0 as usize, |family, shared| {
                family.work(now, shared).release_held(object);
            });
            work += 1;
        }
        work
    }

    /// Runs `act` on the family at `place` with everything else of the lcore.
    fn with<T>(
        &mut self,
        place: usize,
        act: impl FnOnce(&mut Family, Shared<'_>) -> T,
    ) -> Option<T> {
        let family = self.families.get_mut(place)?.as_mut()?;
        let shared = Shared {
            stack: &mut self.stack,
            memory: &mut self.memory,
            tx: self.tx.as_mut(),
            counters: &self.status.counters,
            latency: &mut self.latency,
            held: &mut self.held,
            stage: self.stage.as_mut(),
            somaxconn: self.somaxconn,
        };
        Some(act(family, shared))
    }

    fn open(&mut self, now: Instant, mail: Mail) {
        match mail {
            Mail::Attach {
                owner,
                user,
                segments,
            } => {
                let place = owner.0 as usize;
                if owner.0 >= FAMILIES_MAX {
                    return crate::error!("families_max={FAMILIES_MAX} family={place} refused");
                }
                if place >= self.families.len() {
                    self.families.resize_with(place + 1, || None);
                }
                self.memory.attach(owner, Arc::clone(&segments));
                if let Some(family) = self.families.get_mut(place) {
                    *family = Some(Family::new(owner, user, segments));
                }
            }
            Mail::Process { owner, cell } => {
                self.with(owner.0 as usize, |family, _| family.add_process(cell));
            }
            Mail::Waiter {
                owner,
                slot,
                eventfd,
            } => {
                let status = Arc::clone(&self.status);
                self.with(owner.0 as usize, |family, _| {
                    family.add_waiter(slot, eventfd, &status);
                });
            }
            Mail::ProcessGone { owner, cell, pid } => {
                self.with(owner.0 as usize, |family, shared| {
                    family.process_gone(now, shared, cell, pid);
                });
            }
            Mail::Detach { owner } => {
                self.with(owner.0 as usize, |family, shared| {
                    family.detach(now, shared);
                });
            }
            Mail::Abandon { owner } => {
                self.with(owner.0 as usize, |family, shared| {
                    family.work(now, shared).abandon();
                });
            }
            Mail::Desert { owner } => {
                let place = owner.0 as usize;
                self.with(place, |family, shared| family.work(now, shared).abandon());
                // Its memory stays: the stack has rings of it.
                if let Some(family) = self.families.get_mut(place) {
                    *family = None;
                }
            }
            Mail::Share { share } => self.memory.share_out(share),
            Mail::Report { to } => {
                // Nobody waits any more: then nobody wants it.
                let _ = to.try_send(self.report());
            }
            Mail::Look { at, to } => {
                // As for a report.
                let _ = to.try_send(self.look(now, at));
            }
            Mail::Capture { recorder } => self.capture(recorder),
            Mail::Mtu { mtu } => self.stack.set_port_mtu(mtu),
            Mail::Neighbour => self.idle.share(),
            Mail::Stop => self.stopped = true,
        }
    }

    /// Puts a tap in front of the port, or takes it away. Between bursts no buffer is lent.
    fn capture(&mut self, recorder: Option<Box<Recorder>>) {
        let rx = core::mem::replace(&mut self.rx, Box::new(Closed));
        let tx = core::mem::replace(&mut self.tx, Box::new(Closed));
        let plain = capture::untap((rx, tx));
        (self.rx, self.tx) = match recorder {
            Some(recorder) => capture::tap(plain, *recorder),
            None => plain,
        };
    }

    fn look(&mut self, now: Instant, at: Look) -> Seen {
        match at {
            Look::Counters => Seen::Counters(self.count()),
            Look::Flows { from } => Seen::Flows(self.stack.view_flows(now, from, LOOK_PLACES)),
            Look::Flow { local, remote } => Seen::Flow(self.stack.view_one(now, local, remote)),
            Look::Listeners { from } => {
                Seen::Listeners(self.stack.view_listeners(from, LOOK_PLACES))
            }
            Look::Latency => Seen::Latency(self.latency.ask(time::monotonic())),
            Look::Resting { from } => {
                Seen::Resting(self.stack.view_resting(now, from, LOOK_PLACES))
            }
        }
    }

    fn count(&self) -> Counted {
        let mut counted = Counted {
            gauges: vec![
                ("flows", self.stack.live_flows() as u64),
                ("flows_resting", self.stack.resting_flows() as u64),
                ("flows_max", self.stack.config().max_flows as u64),
                ("neighbors", self.stack.neighbor_count() as u64),
                ("families", self.families.iter().flatten().count() as u64),
                ("ring_bytes", self.memory.ring_bytes()),
                ("send_buffer_bytes", self.memory.send_bytes().0),
                ("send_buffer_bytes_free", self.memory.send_bytes().1),
            ],
            ..Counted::default()
        };
        let lcore = &mut counted.lcore;
        self.status
            .counters
            .for_each(|name, value| lcore.push((name, value)));
        let stack = &mut counted.stack;
        self.stack
            .counters()
            .for_each(|name, value| stack.push((name, value)));
        let gpu = &mut counted.gpu;
        self.report_stages(&mut |name, value| gpu.push((name, value)));
        counted
    }

    fn report(&self) -> Report {
        let mut report = vec![
            ("flows", self.stack.live_flows() as u64),
            ("flows_resting", self.stack.resting_flows() as u64),
        ];
        let mut add = |name, value| report.push((name, value));
        self.status.counters.for_each(&mut add);
        self.stack.counters().for_each(&mut add);
        self.report_stages(&mut add);
        report
    }

    /// What the payload stages count. A kernel may be in several of them: each name stands once, with the sum.
    fn report_stages(&self, add: &mut impl FnMut(&'static str, u64)) {
        let mut sums: Vec<(&'static str, u64)> = Vec::new();
        let mut note = |name, value| match sums.iter_mut().find(|(known, _)| *known == name) {
            Some((_, sum)) => *sum += value,
            None => sums.push((name, value)),
        };
        if let Some(stage) = &self.stage {
            stage.report(&mut note);
        }
        if let Some(stage) = &self.packet_rx {
            stage.report(&mut note);
        }
        if let Some(sent) = &self.packet_tx {
            lock(sent).stage.report(&mut note);
        }
        for (name, value) in sums {
            add(name, value);
        }
    }

    /// Tells the programs what became different.
    fn publish(&mut self, now: Instant) -> usize {
        let mut changes = core::mem::take(&mut self.changes);
        self.stack.take_changes(&mut changes);
        let count = changes.len();
        for change in changes.drain(..) {
            let (Change::Accepted { token, .. }
            | Change::Flow { token, .. }
            | Change::Gone { token, .. }) = change;
            let Token { owner, object } = Token::unpack(token);
            self.with(owner.0 as usize, |family, shared| {
                let mut work = family.work(now, shared);
                match change {
                    Change::Accepted { listener, flow, .. } => {
                        work.accepted(object, listener, flow);
                    }
                    Change::Flow { flow, .. } => work.changed(object, flow),
                    Change::Gone { flow, .. } => work.gone(object, flow),
                }
            });
            if let (Change::Gone { flow, .. }, Some(stage)) = (change, &mut self.stage) {
                stage.forget(flow);
            }
        }
        self.changes = changes;
        count
    }

    /// One eventfd write for each sleeper, and the end of families that are over.
    fn wake(&mut self) -> usize {
        let mut work = 0;
        for (place, slot) in (0u32..).zip(&mut self.families) {
            let Some(family) = slot else {
                continue;
            };
            work += family.wake(&self.status);
            if family.is_over() && self.memory.detach(Owner(place)) {
                *slot = None;
                self.status.push_ended(Owner(place));
                self.mailbox.tell();
            }
        }
        let live = self.stack.live_flows();
        self.status.live_flows.store(live, Ordering::Relaxed);
        let flows = live + self.stack.resting_flows();
        if flows == 0 && self.status.flows.load(Ordering::Relaxed) != 0 {
            self.status.flows.store(0, Ordering::Relaxed);
            self.mailbox.tell();
        }
        self.status.flows.store(flows, Ordering::Relaxed);
        work
    }

    /// Repeats turns until [`Mail::Stop`]; the body of the lcore thread.
    pub fn run(&mut self) {
        self.status.thread.store(
            rustix::thread::gettid()
                .as_raw_nonzero()
                .get()
                .unsigned_abs(),
            Ordering::Relaxed,
        );
        self.announce();
        let mut slept = Duration::ZERO;
        while !self.stopped {
            let work = self.turn(time::monotonic(), slept);
            slept = Duration::ZERO;
            let can_sleep = self.rx.wait_fd().is_some() && !self.latency.is_watching();
            match self.idle.next(self.clock.now(), work > 0, can_sleep) {
                Next::Turn => core::hint::spin_loop(),
                Next::Yield => rustix::thread::sched_yield(),
                Next::Sleep => slept = self.sleep(),
            }
        }
    }

    /// Sleeps until a frame, a doorbell, a message or a timer; returns how long that was meant to be at most.
    fn sleep(&mut self) -> Duration {
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
            && !self.families.iter().flatten().any(Family::is_calling);
        if quiet {
            self.status.counters.sleeps.raise();
        }
        quiet
    }

    fn wake_up(&mut self) {
        self.rx.arm(false);
        self.set_sleeping(false);
    }

    /// How long there is nothing to do; None = no timer runs.
    fn rest_limit(&self) -> Option<Duration> {
        let now = self.clock.now();
        let stage = self.stage.as_ref().and_then(|stage| stage.next_due(now));
        let due = [
            self.stack.next_timer(),
            self.rx.next_due(),
            self.held.next_due(),
            stage,
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
    }

    /// The calling thread drives from now on, until [`Lcore::leave`]: with inline progress each thread of the program in turn.
    pub fn enter(&mut self) {
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
            self.slept = limit.map_or(passed, |limit| limit.min(passed));
        }
    }

    /// The bell's or the mail's eventfd was seen.
    pub fn hear(&self) {
        self.mailbox.drain();
    }

    /// Whether [`Mail::Stop`] has come.
    #[must_use]
    pub const fn is_stopped(&self) -> bool {
        self.stopped
    }

    /// The loop has ended for good: every program is told and woken.
    pub fn die(&self) {
        for family in self.families.iter().flatten() {
            family.die(&self.status);
        }
    }
}

/// How long who drives from outside sleeps where the port has no descriptor to wait on.
const NO_PORT_SLICE: Duration = Duration::from_millis(1);
/// Changes between two turns that need no allocation.
const CHANGES_EXPECTED: usize = 256;
