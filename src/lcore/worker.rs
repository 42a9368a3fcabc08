//! The lcore: a turn on one screen, and the thread that repeats it.

use core::sync::atomic::Ordering;
use core::time::Duration;
use std::sync::Arc;

use super::clock::Clock;
use super::family::{Family, Shared};
use super::held::HELD_FOR;
use super::idle::{Idle, IdleConfig, Next};
use super::latency::Latency;
use super::mailbox::{Mail, Mailbox};
use super::memory::Memory;
use super::object::Token;
use super::offers::OFFERED_FOR;
use super::patience::Patience;
use super::payload::held::goes_on;
use super::payload::packet::{JudgedTx, SharedSent, lock, passes};
use super::peers::{Peers, Taker};
use super::status::LcoreStatus;
use super::watch::Watch;
use crate::device::{Keeps, RxFrame, RxQueue, TxQueue};
use crate::gpu::{Ends, PacketStage, Pipeline, StreamStage};
use crate::id::{CpuId, FlowId};
use crate::readiness::FIRST_LCORE;
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
    /// The CPU of its thread; None: it has no thread of its own.
    pub cpu: Option<CpuId>,
    /// `net.core.somaxconn`.
    pub somaxconn: u32,
    /// The other lcores, if there are any.
    pub peers: Option<Peers>,
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

/// An lcore: everything that one polling thread owns.
pub struct Lcore {
    /// Dropped before `memory`, whose rings it borrows.
    pub(super) stack: Stack,
    pub(super) memory: Memory,
    pub(super) families: Vec<Option<Family>>,
    pub(super) rx: Box<dyn RxQueue>,
    pub(super) tx: Box<dyn TxQueue>,
    pub(super) mailbox: Arc<Mailbox>,
    pub(super) status: Arc<LcoreStatus>,
    pub(super) mail: Vec<Mail>,
    pub(super) changes: Vec<Change>,
    pub(super) stage: Option<StreamStage>,
    pub(super) packet_rx: Option<PacketStage>,
    pub(super) packet_tx: Option<SharedSent>,
    /// Ends of flows that a verdict on a segment has ended.
    pub(super) resets: Vec<Ends>,
    /// Flows whose bytes have come back from the GPU.
    pub(super) landed: Vec<(FlowId, u32)>,
    /// Tickets of frames that the stage of received segments lets go.
    pub(super) tickets: Vec<u32>,
    /// Which of the host's lcores it is.
    pub(super) me: u32,
    /// See [`LcoreConfig::cpu`].
    pub(super) cpu: Option<CpuId>,
    pub(super) peers: Option<Peers>,
    pub(super) clock: Clock,
    pub(super) latency: Latency,
    /// Connections that somebody watches; empty nearly always.
    pub(super) watches: Vec<Watch>,
    /// Objects with bytes that are held back.
    pub(super) held: Patience,
    /// Listeners with connections that somebody was told of.
    pub(super) offers: Patience,
    pub(super) idle: Idle,
    pub(super) somaxconn: u32,
    pub(super) stopped: bool,
    /// When a planned sleep began, and how long it was to be at most.
    pub(super) resting: Option<(Instant, Option<Duration>)>,
    /// Sleep behind us that the next turn's clock must know of.
    pub(super) slept: Duration,
    /// Somebody was woken since the loop asked.
    woke: bool,
    /// When the last turn began, if it found nothing and the loop has done nothing but turns since.
    pub(super) in_vain: Option<Instant>,
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
        let mut packet_rx = config.pipeline.packet_rx;
        if let Some(stage) = &mut packet_rx {
            stage.hold_at_most(config.rx.keeps());
        }
        let (mut stack, peers) = (config.stack, config.peers);
        let me = peers.as_ref().map_or(FIRST_LCORE, Peers::me);
        if let Some(peers) = &peers {
            stack.steer(Arc::clone(peers.steering()), me);
        }
        Self {
            stack,
            me,
            peers,
            memory: Memory::new(me, Arc::clone(&config.status.counters)),
            families: Vec::new(),
            rx: config.rx,
            tx,
            mailbox: config.mailbox,
            status: config.status,
            mail: Vec::new(),
            changes: Vec::with_capacity(CHANGES_EXPECTED),
            stage: config.pipeline.stream,
            packet_rx,
            packet_tx,
            resets: Vec::new(),
            landed: Vec::new(),
            tickets: Vec::new(),
            clock: Clock::new(config.now),
            latency: Latency::default(),
            watches: Vec::new(),
            held: Patience::new(HELD_FOR),
            offers: Patience::new(OFFERED_FOR),
            cpu: config.cpu,
            idle: Idle::new(config.idle, config.shares_cpu, config.now),
            somaxconn: config.somaxconn,
            stopped: false,
            resting: None,
            slept: Duration::ZERO,
            woke: false,
            in_vain: None,
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
        if let Some(began) = self.in_vain.take() {
            let took = real.nanos().saturating_sub(began.nanos());
            let took = took.min(IDLE_TURN_MOST_NS);
            self.status.counters.turns_idle_ns.add(took);
        }
        let families = &self.families;
        self.latency.begin(real, slept > Duration::ZERO, |token| {
            let family = families.get(token.owner.0 as usize)?.as_ref()?;
            family.position(token.object)
        });
        let now = self.clock.now();
        self.memory.sweep(now);
        let mut work = self.receive(now);
        work += self.commands(now);
        work += self.release(now);
        self.watch(now, false);
        work += self.stack.expire(now, &mut self.memory, self.tx.as_mut());
        work += self.land(now);
        work += self.packets_out();
        // The program works on what came while the answers of others leave: a burst to the kernel takes its time.
        work += self.publish(now);
        work += self.wake();
        if work == 0 {
            work += usize::from(self.stack.await_no_more());
        }
        work += self.stack.transmit(now, &mut self.memory, self.tx.as_mut());
        self.watch(now, true);
        self.tx.flush(now);
        // What became different by sending; nothing in nearly every turn.
        if self.stack.has_changes() {
            work += self.publish(now);
            work += self.wake();
        }
        self.status.counters.turns.raise();
        if work == 0 {
            self.status.counters.turns_idle.raise();
            self.in_vain = Some(real);
        } else {
            self.latency.worked();
        }
        work
    }

    /// Answers what programs ask and no more, at real time `real`: a connect begins. What is to be sent leaves with the next turn.
    pub fn errand(&mut self, real: Instant) {
        if self.clock.advance(real, Duration::ZERO) {
            self.status.counters.time_gaps.raise();
        }
        self.commands(self.clock.now());
        self.wake();
    }

    /// How many are watched.
    #[cfg(test)]
    pub(super) fn watches(&self) -> usize {
        self.watches.len()
    }

    /// Looks at what is watched.
    fn watch(&mut self, now: Instant, sent: bool) {
        if !self.watches.is_empty() {
            let stack = &self.stack;
            // As a capture stamps frames: the turn's own time lies before all that it does.
            let at = time::monotonic();
            self.watches
                .retain_mut(|watch| watch.look(now, at, sent, stack));
        }
    }

    fn receive(&mut self, now: Instant) -> usize {
        if self.packet_rx.as_ref().is_some_and(PacketStage::flies) {
            return self.receive_aloft(now);
        }
        let Self {
            rx,
            tx,
            stack,
            memory,
            packet_rx,
            resets,
            peers,
            status,
            ..
        } = self;
        let mut entrance = Entrance {
            now,
            stack,
            memory,
            tx: tx.as_mut(),
            stage: packet_rx.as_mut(),
            resets,
        };
        let mut work = rx.rx_burst(now, &mut |mut frames| {
            if let Some(peers) = peers {
                let ours = peers.sort(frames, &status.counters);
                frames = frames.get_mut(..ours).unwrap_or_default();
            }
            entrance.take(frames);
        });
        if let Some(peers) = peers {
            peers.publish();
            work += peers.take(&mut entrance);
        }
        self.reset_denied(now);
        work
    }

    /// Resets the flows that a verdict on one of their segments has ended.
    pub(super) fn reset_denied(&mut self, now: Instant) {
        if let Some(sent) = &self.packet_tx {
            lock(sent).take_resets(&mut self.resets);
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

    /// Lets go of bytes that were held back for long enough, and tells everybody of connections that one has not taken.
    fn release(&mut self, now: Instant) -> usize {
        let mut work = 0;
        while let Some(Token { owner, object }) = self.held.pop(now) {
            self.with(owner.0 as usize, |family, shared| {
                family.work(now, shared).release_held(object);
            });
            work += 1;
        }
        while let Some(Token { owner, object }) = self.offers.pop(now) {
            self.with(owner.0 as usize, |family, shared| {
                family.work(now, shared).insist(object);
            });
            work += 1;
        }
        work
    }

    /// Runs `act` on the family at `place` with everything else of the lcore.
    pub(super) fn with<T>(
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
            offers: &mut self.offers,
            stage: self.stage.as_mut(),
            somaxconn: self.somaxconn,
            me: self.me,
            peers: self.peers.as_mut(),
        };
        Some(act(family, shared))
    }

    /// Tells the programs what became different.
    fn publish(&mut self, now: Instant) -> usize {
        if !self.stack.has_changes() {
            return 0;
        }
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
            let woken = family.wake(&self.status);
            self.woke |= woken > 0;
            work += woken;
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
        if self.me == FIRST_LCORE {
            self.announce();
        }
        let mut slept = Duration::ZERO;
        while !self.stopped {
            let work = self.turn(time::monotonic(), slept);
            slept = Duration::ZERO;
            let woke = core::mem::take(&mut self.woke);
            let can_sleep = self.rx.wait_fd().is_some() && !self.latency.is_watching();
            let next = self.idle.next(self.clock.now(), work > 0, can_sleep);
            if woke {
                self.idle.expect_answer();
            }
            match next {
                Next::Turn => core::hint::spin_loop(),
                Next::Yield => rustix::thread::sched_yield(),
                Next::Sleep => slept = self.sleep(),
            }
        }
    }

    /// Which of the host's lcores it is.
    #[must_use]
    pub const fn number(&self) -> u32 {
        self.me
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

/// Where frames that another lcore received come in.
pub(super) struct Entrance<'a> {
    pub(super) now: Instant,
    pub(super) stack: &'a mut Stack,
    pub(super) memory: &'a mut Memory,
    pub(super) tx: &'a mut dyn TxQueue,
    pub(super) stage: Option<&'a mut PacketStage>,
    pub(super) resets: &'a mut Vec<Ends>,
}

impl Entrance<'_> {
    /// Takes frames of the port, of which some may be kept.
    pub(super) fn admit(&mut self, frames: &mut [RxFrame<'_>], mut keeps: Option<&mut Keeps>) {
        let Some(stage) = &mut self.stage else {
            return self.stack.ingress(self.now, frames, self.memory, self.tx);
        };
        let now = self.now;
        let mut keep = |stack: &Stack, class: &Class, frame: &mut RxFrame<'_>| {
            if stage.flies() {
                goes_on(stage, stack, class, frame, (now, keeps.as_deref_mut()))
            } else {
                passes(stage, stack, class, frame, self.resets)
            }
        };
        self.stack
            .ingress_if(self.now, frames, self.memory, self.tx, Some(&mut keep));
    }
}

impl Taker for Entrance<'_> {
    fn take(&mut self, frames: &mut [RxFrame<'_>]) {
        self.admit(frames, None);
    }

    fn overhear(&mut self, frame: &mut [u8]) {
        self.stack.overhear(self.now, frame, self.memory, self.tx);
    }
}

/// More than this a turn that found nothing did not work for: somebody else had the CPU.
const IDLE_TURN_MOST_NS: u64 = 20_000;
/// Changes between two turns that need no allocation.
const CHANGES_EXPECTED: usize = 256;
