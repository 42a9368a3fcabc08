//! One attached program family as the lcore sees it.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::counters::LcoreCounters;
use super::latency::Latency;
use super::memory::Memory;
use super::object::{Record, Role};
use super::patience::Patience;
use super::peers::Peers;
use super::segments::Segments;
use super::status::LcoreStatus;
use super::summons::Summons;
use super::table::Table;
use crate::channel::cell::{ObjectCell, herald, host_state, kind, process};
use crate::channel::layout::{EPOLLS, PROCS, SLOTS};
use crate::channel::sync::Ordering;
use crate::device::TxQueue;
use crate::errno::Errno;
use crate::gpu::StreamStage;
use crate::id::FlowId;
use crate::readiness::{self, FIRST_LCORE, News};
use crate::stack::{Owner, Stack};
use crate::time::Instant;

/// Doorbells of a family answered in a turn at most.
const BELLS_MAX: usize = 128;

/// An attached family.
#[derive(Debug)]
pub(super) struct Family {
    owner: Owner,
    /// The lcore that we are.
    me: u32,
    /// User id of its programs.
    user: u32,
    segments: Arc<Segments>,
    records: Table<Record>,
    /// Process cells that have a living process, as the control thread says.
    live: Vec<u32>,
    /// Eventfds: the sleeping threads' slots, behind them the epolls' heralds.
    waiters: Vec<Option<Arc<OwnedFd>>>,
    /// Slots to be woken at the end of the turn.
    wakes: Vec<u32>,
    /// Pipes for signals.
    summons: Summons,
    rung: Vec<u32>,
    /// Where the next round of doorbells begins.
    cursor: u32,
    /// No process is left: nothing is held.
    detached: bool,
    /// Objects that are not idle.
    busy: u32,
    /// See [`Family::mute`].
    muted: bool,
}

/// What a turn works with, for one family.
pub(super) struct Work<'a> {
    pub(super) now: Instant,
    pub(super) owner: Owner,
    pub(super) user: u32,
    pub(super) segments: &'a Segments,
    pub(super) records: &'a mut Table<Record>,
    pub(super) live: &'a [u32],
    pub(super) wakes: &'a mut Vec<u32>,
    pub(super) summons: &'a mut Summons,
    pub(super) detached: bool,
    pub(super) busy: &'a mut u32,
    pub(super) shared: Shared<'a>,
}

/// What all families share.
pub(super) struct Shared<'a> {
    pub(super) stack: &'a mut Stack,
    pub(super) memory: &'a mut Memory,
    pub(super) tx: &'a mut (dyn TxQueue + 'static),
    pub(super) counters: &'a LcoreCounters,
    pub(super) latency: &'a mut Latency,
    pub(super) held: &'a mut Patience,
    pub(super) offers: &'a mut Patience,
    /// What looks at payload, if anything does.
    pub(super) stage: Option<&'a mut StreamStage>,
    /// `net.core.somaxconn`.
    pub(super) somaxconn: u32,
    /// The lcore that we are.
    pub(super) me: u32,
    /// The others, if there are any.
    pub(super) peers: Option<&'a mut Peers>,
}

impl Family {
    pub(super) fn new(owner: Owner, user: u32, me: u32, segments: Arc<Segments>) -> Self {
        let mut waiters = Vec::new();
        waiters.resize_with((SLOTS + EPOLLS) as usize, || None);
        segments
            .control
            .header()
            .host_state
            .store(host_state::RUNNING, Ordering::Release);
        Self {
            owner,
            user,
            me,
            records: Table::new(segments.layout(), me),
            segments,
            live: Vec::new(),
            waiters,
            wakes: Vec::with_capacity(SLOTS as usize),
            summons: Summons::default(),
            rung: Vec::with_capacity(BELLS_MAX),
            cursor: 0,
            detached: false,
            busy: 0,
            muted: false,
        }
    }

    /// Whether what belongs to no lcore is ours to see to.
    pub(super) const fn is_first(&self) -> bool {
        self.me == FIRST_LCORE
    }

    pub(super) fn segments(&self) -> &Segments {
        &self.segments
    }

    /// The family taken apart for a turn's work.
    pub(super) fn work<'a>(&'a mut self, now: Instant, shared: Shared<'a>) -> Work<'a> {
        Work {
            now,
            owner: self.owner,
            user: self.user,
            segments: &self.segments,
            records: &mut self.records,
            live: &self.live,
            wakes: &mut self.wakes,
            summons: &mut self.summons,
            detached: self.detached,
            busy: &mut self.busy,
            shared,
        }
    }

    /// Answers doorbells and kicks; returns how many.
    pub(super) fn commands(&mut self, now: Instant, shared: Shared<'_>) -> usize {
        let kicks = self.kicks();
        let Some(bells) = self.segments.control.doorbells(self.me) else {
            return kicks;
        };
        if !bells.may_have_any() {
            return kicks;
        }
        let mut rung = core::mem::take(&mut self.rung);
        let cursor = &mut self.cursor;
        bells.take(*cursor, |object| {
            if rung.len() == BELLS_MAX {
                *cursor = object;
                return false;
            }
            rung.push(object);
            true
        });
        let count = rung.len();
        shared.counters.bells.add(count as u64);
        let mut work = self.work(now, shared);
        // With many flows nearly every line is a miss: each step fetches what the next one reads.
        for &object in &rung {
            if let Some(flow) = work.flow_of(object) {
                work.shared.stack.fetch(flow);
            }
        }
        for &object in &rung {
            if let Some(flow) = work.flow_of(object) {
                work.shared.stack.fetch_send(flow);
            }
        }
        // Who asks comes behind who lets go: a port that was closed a moment ago can be listened on, whichever index it had.
        for &object in &rung {
            if !work.asks(object) {
                work.bell(object);
            }
        }
        for object in rung.drain(..) {
            if work.asks(object) {
                work.bell(object);
            }
        }
        self.rung = rung;
        kicks + count
    }

    fn kicks(&mut self) -> usize {
        if self.me != FIRST_LCORE {
            return 0;
        }
        let control = &self.segments.control;
        let kicks = &control.header().kicks;
        let wakes = &mut self.wakes;
        let mut count = 0;
        if !kicks.epolls.is_empty() {
            kicks.epolls.drain(|epoll| {
                count += 1;
                readiness::wake_epoll(control, epoll, |slot| wakes.push(slot));
            });
        }
        if !kicks.slots.is_empty() {
            // The program has taken their `sleeping` itself.
            kicks.slots.drain(|slot| {
                count += 1;
                wakes.push(slot);
            });
        }
        count
    }

    /// How far the program has read `object`, while that is a stream.
    pub(super) fn position(&self, object: u32) -> Option<u64> {
        let cell = self.segments.control.object(object)?;
        let is_stream = cell.host.kind.load(Ordering::Relaxed) == kind::STREAM;
        is_stream.then(|| cell.read.rx_head.load(Ordering::Relaxed))
    }

    /// Whether the program has rung or kicked.
    pub(super) fn is_calling(&self) -> bool {
        let control = &self.segments.control;
        let kicks = &control.header().kicks;
        control
            .doorbells(self.me)
            .is_some_and(|bells| bells.may_have_any())
            || (self.me == FIRST_LCORE && !(kicks.epolls.is_empty() && kicks.slots.is_empty()))
    }

    /// Says whether the lcore sleeps or is about to.
    pub(super) fn set_sleeping(&self, sleeping: bool) {
        let control = &self.segments.control;
        if sleeping {
            readiness::begin_lcore_sleep(control, self.me);
        } else {
            readiness::end_lcore_sleep(control, self.me);
        }
    }

    /// Writes one eventfd for each slot that was asleep; returns how many.
    pub(super) fn wake(&mut self, status: &LcoreStatus) -> usize {
        let mut count = self.wakes.len();
        let mut is_held_up = false;
        if self.summons.are_wanted() {
            let (signals, free) = self.summons.send(status);
            count += signals;
            is_held_up = !free;
        }
        for slot in self.wakes.drain(..) {
            match self.waiters.get(slot as usize).and_then(Option::as_ref) {
                Some(eventfd) if !is_held_up => {
                    is_held_up = !signal(eventfd, status);
                    status.counters.wakeups.raise();
                }
                // It is woken when its descriptor comes.
                _ => status.counters.wakeups_dropped_no_waiter.raise(),
            }
        }
        if is_held_up {
            self.mute(status);
        }
        count
    }

    /// Whether nobody of it is woken any more.
    pub(super) const fn is_muted(&self) -> bool {
        self.muted
    }

    /// A program has made an eventfd or a pipe of its own blocking, and held the lcore up: nobody of it is woken any more.
    fn mute(&mut self, status: &LcoreStatus) {
        crate::error!(
            "family={} event=muted reason=\"its eventfd or pipe blocks\"",
            self.owner.0
        );
        status.counters.families_muted.raise();
        self.muted = true;
        self.waiters.fill_with(|| None);
        self.summons = Summons::default();
    }

    /// A slot has sent its eventfd. It may have been woken in vain before, so it is woken now. A herald is written only when
    /// it was rung: readable says something.
    pub(super) fn add_waiter(&mut self, slot: u32, eventfd: Arc<OwnedFd>, status: &LcoreStatus) {
        if self.muted {
            return;
        }
        let epoll = readiness::herald::epoll(slot);
        let epoll = epoll.and_then(|epoll| self.segments.control.epoll(epoll));
        let wanted = epoll.is_none_or(|cell| cell.herald.load(Ordering::SeqCst) == herald::RUNG);
        if wanted && !signal(&eventfd, status) {
            return self.mute(status);
        }
        if let Some(place) = self.waiters.get_mut(slot as usize) {
            *place = Some(eventfd);
        }
    }

    pub(super) fn add_process(&mut self, cell: u32) {
        if cell < PROCS && !self.live.contains(&cell) {
            self.live.push(cell);
        }
    }

    pub(super) fn remove_process(&mut self, cell: u32) {
        self.live.retain(|&other| other != cell);
    }

    pub(super) fn is_live(&self, cell: u32) -> bool {
        self.live.contains(&cell)
    }

    /// Every object index that the lcore has a record of.
    pub(super) fn objects(&self) -> Vec<u32> {
        self.records.indices().collect()
    }

    pub(super) fn forget_waiter(&mut self, slot: u32) {
        if let Some(place) = self.waiters.get_mut(slot as usize) {
            *place = None;
        }
    }

    pub(super) fn set_detached(&mut self) {
        self.detached = true;
        self.live.clear();
    }

    /// Whether the family has ended: nobody holds it and no object is left.
    pub(super) fn is_over(&self) -> bool {
        self.detached && self.busy == 0
    }

    /// The lcore ends: the program learns it and everybody is woken.
    pub(super) fn die(&self, status: &LcoreStatus) {
        self.segments
            .control
            .header()
            .host_state
            .store(host_state::DEAD, Ordering::SeqCst);
        // Whoever settles a herald sees that we are gone.
        for eventfd in self.waiters.iter().take(SLOTS as usize).flatten() {
            if !signal(eventfd, status) {
                return;
            }
        }
    }
}

/// Writes a sleeper's eventfd. The program shares its open file, and may have made it blocking behind our back; the control
/// thread then ends the write ([`LcoreStatus::held_up`]), and this says false.
fn signal(eventfd: &OwnedFd, status: &LcoreStatus) -> bool {
    status.begin_write();
    let written = rustix::io::write(eventfd, &1_u64.to_ne_bytes());
    status.end_write();
    match written {
        // EAGAIN: the counter is full, so the sleeper wakes anyway.
        Ok(_) | Err(Errno::AGAIN) => true,
        Err(Errno::INTR) => false,
        Err(errno) => {
            crate::warn!("event=waiter_not_woken errno={errno}");
            true
        }
    }
}

impl<'a> Work<'a> {
    /// The cell of `object`, for as long as the family lives.
    pub(super) fn cell(&self, object: u32) -> Option<&'a ObjectCell> {
        self.segments.control.object(object)
    }

    /// The flow behind `object`.
    fn flow_of(&self, object: u32) -> Option<FlowId> {
        match self.records.at(object)?.role {
            Role::Flow(flow) => Some(flow),
            _ => None,
        }
    }

    /// Tells everybody who watches `object` that it changed.
    pub(super) fn alert(&mut self, object: u32) {
        self.alert_of(object, News::State);
    }

    /// As [`Self::alert`], to those whom the news concern.
    pub(super) fn alert_of(&mut self, object: u32, news: News) {
        let wakes = &mut *self.wakes;
        let wake = |slot| wakes.push(slot);
        readiness::alert(&self.segments.control, object, news, wake);
        if self.summons.are_wanted() {
            self.summons.note(object, false);
        }
    }

    /// Tells those who watch `object` once more.
    pub(super) fn remind(&mut self, object: u32) {
        let wakes = &mut *self.wakes;
        readiness::remind(&self.segments.control, object, |slot| wakes.push(slot));
    }

    /// Wakes somebody who sleeps on `epoll`.
    pub(super) fn wake_epoll(&mut self, epoll: u32) {
        let wakes = &mut *self.wakes;
        readiness::wake_epoll(&self.segments.control, epoll, |slot| wakes.push(slot));
    }

    /// Whether some process of the family holds `object`.
    pub(super) fn is_held(&self, object: u32) -> bool {
        if self.detached {
            return false;
        }
        let control = &self.segments.control;
        let holds = |cell: u32| control.held(cell).is_some_and(|held| held.has(object));
        if self.live.iter().any(|&cell| holds(cell)) {
            return true;
        }
        // A process may be in the middle of a fork that the control thread has not heard of.
        control.processes().any(|cell| {
            control
                .process(cell)
                .is_some_and(|it| it.state.load(Ordering::SeqCst) != process::FREE)
                && holds(cell)
        })
    }
}
