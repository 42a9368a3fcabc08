//! Segments out, bytes in from the program, and time.

use super::api::{FlowMemory, FlowState};
use super::ceiling::{Ceiling, owe_window};
use super::flow::{Due, Engine};
use super::flow_parts::{Cold, Flags, Hot, Phase};
use super::input::ACK_DELAY;
use super::mend::mend_at;
use super::neighbor::Resolution;
use super::sequence::{rcv_nxt, snd_una};
use super::stack::{Io, Stack};
use super::tracker::{ahead, distance};
use super::watchdog::{Verdict, Watched};
use crate::device::{BURST_MAX, TxQueue};
use crate::errno::Errno;
use crate::id::FlowId;
use crate::time::{Instant, sooner};

/// How far a flow came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Progress {
    /// It has nothing more to send now.
    Idle,
    /// It used up its share of this turn.
    More,
    /// The port takes no more.
    NoRoom,
}

impl Stack {
    /// Copies bytes into the flow's send buffer and returns how many were taken; they leave with
    /// [`Stack::transmit`].
    pub fn send(&mut self, now: Instant, flow: FlowId, bytes: &[u8]) -> usize {
        self.hand(now, flow, |engine| engine.send(bytes))
    }

    /// As [`Stack::send`], but the bytes are written by `fill` straight into the send buffer: it is called with each
    /// contiguous part, `want` bytes at most in all.
    pub fn send_with(
        &mut self,
        now: Instant,
        flow: FlowId,
        want: usize,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> usize {
        self.hand(now, flow, |engine| engine.send_with(want, fill))
    }

    /// Lets `take` move bytes into the flow's send buffer, and notes how many those were.
    fn hand(
        &mut self,
        now: Instant,
        flow: FlowId,
        take: impl FnOnce(&mut Engine) -> usize,
    ) -> usize {
        let Some(index) = self.table.resolve(flow) else {
            return 0;
        };
        let Some((hot, cold)) = self.table.parts(index) else {
            return 0;
        };
        if hot.flags.has(Flags::DETACHED) || hot.phase == Phase::Orphan {
            return 0;
        }
        let taken = take(&mut hot.engine);
        if taken > 0 {
            cold.tx_total += taken as u64;
            hot.flags.set(Flags::STIRRED);
            hot.flags.set(Flags::HANDED);
            self.sweep.stir(now);
            self.mark_dirty(index);
        }
        taken
    }

    /// Notes that the program read everything below stream offset `total`. What is not true is ignored: an offset
    /// beyond what was received counts as that, one below the last counts as the last.
    pub fn consumed(&mut self, _now: Instant, flow: FlowId, total: u64) {
        let Some(index) = self.table.resolve(flow) else {
            return;
        };
        let Some((hot, cold)) = self.table.parts(index) else {
            return;
        };
        let total = total.min(cold.rx_total);
        let fresh = total.saturating_sub(cold.consumed);
        if fresh == 0 {
            return;
        }
        if hot.flags.has(Flags::DETACHED) {
            cold.consumed = total;
            return;
        }
        let done = hot
            .engine
            .consume(usize::try_from(fresh).unwrap_or(usize::MAX));
        cold.consumed += done as u64;
        owe_window(hot, cold);
        self.mark_dirty(index);
    }

    /// Sends a FIN after everything sent so far (shutdown(2) with SHUT_WR).
    pub fn shutdown_write(&mut self, now: Instant, flow: FlowId) {
        let Some(index) = self.table.resolve(flow) else {
            return;
        };
        let Some((hot, cold)) = self.table.parts(index) else {
            return;
        };
        if hot.flags.has(Flags::DETACHED) || cold.state == FlowState::SynSent {
            return;
        }
        self.finish(now, index);
        self.note_change(index);
        self.mark_dirty(index);
    }

    /// Lets every dirty flow send until it has nothing more or the port is full; returns the work done. A few
    /// descriptors stay free for replies to received frames.
    pub fn transmit(
        &mut self,
        now: Instant,
        memory: &mut dyn FlowMemory,
        tx: &mut dyn TxQueue,
    ) -> usize {
        while let Some(index) = self.later.pop(now) {
            self.acknowledge_now(index);
        }
        if self.dirty.is_empty() && self.looped.len() == 0 {
            return 0;
        }
        self.tx_slots = self.tx_slots.max(tx.room());
        let mut io = Io { now, memory, tx };
        let mut work = 0;
        for _ in 0..LOOP_ROUNDS {
            work += self.send_dirty(&mut io);
            if self.looped.len() == 0 {
                break;
            }
            work += self.receive_looped(&mut io, LOOP_BUDGET);
        }
        work
    }

    fn send_dirty(&mut self, io: &mut Io<'_>) -> usize {
        let mut work = 0;
        for _ in 0..self.dirty.len() {
            if work >= TURN_SEGMENTS {
                break;
            }
            let Some(index) = self.dirty.pop_front() else {
                break;
            };
            let Some((hot, _)) = self.table.parts(index) else {
                continue;
            };
            if !hot.flags.has(Flags::DIRTY) {
                continue;
            }
            hot.flags.clear(Flags::DIRTY);
            let (mut sent, mut progress) = self.send_from(io, index);
            while progress == Progress::NoRoom
                && work + sent < TURN_SEGMENTS
                && io.tx.flush(io.now) > 0
            {
                let (more, then) = self.send_from(io, index);
                (sent, progress) = (sent + more, then);
            }
            work += sent;
            if sent > 0 {
                self.stall.over();
            }
            match progress {
                Progress::Idle => {}
                Progress::More => self.mark_dirty(index),
                Progress::NoRoom => {
                    if let Some((hot, _)) = self.table.parts(index)
                        && !hot.flags.has(Flags::DIRTY)
                    {
                        hot.flags.set(Flags::DIRTY);
                        self.dirty.push_front(index);
                    }
                    self.counters.transmits_stopped_no_room.raise();
                    self.stall.refused(io.now);
                    if self.stall.is_long() {
                        self.watch_waiting(io.now);
                    }
                    break;
                }
            }
        }
        work
    }

    /// Keeps the clocks of flows that wait for a port that takes nothing: they are given up as if what they send were lost.
    fn watch_waiting(&mut self, now: Instant) {
        for _ in 0..self.dirty.len().min(TIMER_BUDGET) {
            let Some(index) = self.dirty.pop_front() else {
                break;
            };
            self.dirty.push_back(index);
            let waits = self
                .table
                .hot(index)
                .is_some_and(|hot| hot.phase != Phase::Free && !hot.flags.has(Flags::DETACHED));
            if waits {
                self.arm(now, index, Due::Ingress);
            }
        }
    }

    /// Works on one flow now; what does not fit leaves later.
    pub(crate) fn work_on(&mut self, io: &mut Io<'_>, index: u32) {
        if self.send_from(io, index).1 != Progress::Idle {
            self.mark_dirty(index);
        }
    }

    /// Sends what a flow has, at most its share, and arms its timer.
    fn send_from(&mut self, io: &mut Io<'_>, index: u32) -> (usize, Progress) {
        let mut sent = 0;
        let mut quiet = 0;
        loop {
            let Some((hot, cold)) = self.table.parts(index) else {
                return (sent, Progress::Idle);
            };
            if hot.phase == Phase::Free {
                return (sent, Progress::Idle);
            }
            if hot.flags.has(Flags::DETACHED) {
                if hot.phase == Phase::Orphan {
                    self.free(io, index);
                }
                return (sent, Progress::Idle);
            }
            if hot.flags.has(Flags::UNRESOLVED) {
                self.arm(io.now, index, Due::Ingress);
                return (sent, Progress::Idle);
            }
            let class = cold.meter.mtu_class;
            let before = hot.track.snd_nxt;
            let resent = (cold.meter.retransmits, cold.meter.behind);
            let Some(interface) = self.interfaces.of(class) else {
                return (sent, Progress::Idle);
            };
            let due = if hot.flags.has(Flags::HANDED) {
                hot.flags.clear(Flags::HANDED);
                Due::Now
            } else {
                hot.engine.poll_at(interface, io.now)
            };
            match due {
                Due::Now if sent >= FLOW_SEGMENTS => return (sent, Progress::More),
                Due::Now if quiet < QUIET_ROUNDS => {}
                due => {
                    if due != Due::Now {
                        note_congestion(hot, cold);
                    }
                    self.pay_ack(io, index, sent);
                    self.arm(io.now, index, due);
                    return (sent, Progress::Idle);
                }
            }
            if !self.has_room(io, index) {
                return (sent, Progress::NoRoom);
            }
            match self.feed(io, index, None, None) {
                Ok(0) => quiet += 1,
                Ok(count) => {
                    sent += count;
                    self.forget_wait(index);
                    self.note_manner(io.now, index, before);
                    self.note_loss(io.now, index, resent);
                }
                Err(_) => {
                    self.drop_broken(io, index);
                    return (sent, Progress::Idle);
                }
            }
            self.after_egress(io, index);
        }
    }

    /// A segment has left, and carried what waits.
    fn forget_wait(&mut self, index: u32) {
        if let Some((hot, _)) = self.table.parts(index) {
            hot.waits = false;
        }
    }

    /// Learns from what left whether the program answers what it receives (Linux `tcp_event_data_sent`). A mere
    /// acknowledgement says that it did not.
    fn note_manner(&mut self, now: Instant, index: u32, before: u32) {
        let Some((hot, cold)) = self.table.parts(index) else {
            return;
        };
        if hot.track.snd_nxt == before {
            hot.flags.clear(Flags::INTERACTIVE);
            return;
        }
        cold.recovery.left(now, before == snd_una(cold));
        if hot.flags.has(Flags::UNANSWERED) && cold.watchdog.since_heard(now) <= ACK_DELAY {
            hot.flags.set(Flags::INTERACTIVE);
        }
        hot.flags.clear(Flags::UNANSWERED);
    }

    /// Learns from what left whether a loss is being mended; `before` is what of it was known before.
    pub(crate) fn note_loss(
        &mut self,
        now: Instant,
        index: u32,
        (retransmits, behind): (u32, bool),
    ) {
        let Some((hot, cold)) = self.table.parts(index) else {
            return;
        };
        let timed_out = core::mem::take(&mut cold.meter.timer_is_due);
        let is_first = timed_out || !behind;
        if cold.meter.retransmits != retransmits && is_first {
            let in_flight = ahead(snd_una(cold), hot.track.snd_nxt);
            cold.meter.note_loss(in_flight, timed_out);
            if timed_out {
                cold.recovery.timed_out(now);
            } else {
                cold.recovery.begin(now, hot.track.snd_nxt);
            }
        }
    }

    pub(crate) fn has_room(&mut self, io: &mut Io<'_>, index: u32) -> bool {
        let reserve = self.reserve();
        let looped = self
            .table
            .hot(index)
            .is_some_and(|hot| hot.flags.has(Flags::LOOPED));
        Self::outlet(
            &mut *io.tx,
            &mut self.looped,
            &self.counters,
            self.station,
            reserve,
        )
        .has_room(looped)
    }

    /// A reset that left ends the flow.
    fn after_egress(&mut self, io: &mut Io<'_>, index: u32) {
        let Some((hot, _)) = self.table.parts(index) else {
            return;
        };
        let over = hot.engine.facts().state == FlowState::Closed && !hot.engine.owes_reset();
        if over && !hot.flags.has(Flags::DETACHED) {
            self.end(io, index);
        }
    }

    /// Sends the acknowledgement that is owed, unless a segment carried it.
    fn pay_ack(&mut self, io: &mut Io<'_>, index: u32, sent: usize) {
        let Some((hot, cold)) = self.table.parts(index) else {
            return;
        };
        if !hot.flags.has(Flags::ACK_OWED) {
            return;
        }
        hot.flags.clear(Flags::ACK_OWED);
        let synchronised = !matches!(
            cold.state,
            FlowState::SynSent | FlowState::SynReceived | FlowState::Closed
        );
        if sent == 0 && synchronised {
            let next = rcv_nxt(hot, cold);
            let (seq, edge) = (
                hot.track.snd_nxt,
                cold.meter.open_edge(&hot.track, Ceiling::of(cold), next),
            );
            self.send_ack(io, index, seq, edge);
        }
    }

    /// Arms the flow's one timer for whatever comes first. Moving it later costs nothing (see the wheel).
    fn arm(&mut self, now: Instant, index: u32, due: Due) {
        let Some((hot, cold)) = self.table.parts(index) else {
            return;
        };
        let watched = watched(hot, cold);
        cold.watchdog.note(now, watched);
        let dog = cold.watchdog.next_due(watched, &cold.options, &self.config);
        let engine = match due {
            Due::At(at) => Some(at),
            // It wants to send and cannot: ask again soon.
            Due::Now => Some(now + RETRY),
            Due::Ingress => None,
        };
        let starved = hot.flags.has(Flags::STARVED).then(|| now + RETRY);
        let mend = mend_at(now, hot, cold, engine);
        match sooner(sooner(engine, mend), sooner(dog, starved)) {
            Some(at) => self.wheel.arm(index, at),
            None => self.wheel.cancel(index),
        }
    }

    /// Handles timers that are due, at most a budget; returns the work done.
    pub fn expire(
        &mut self,
        now: Instant,
        memory: &mut dyn FlowMemory,
        tx: &mut dyn TxQueue,
    ) -> usize {
        self.tx_slots = self.tx_slots.max(tx.room());
        let mut io = Io { now, memory, tx };
        let ports = &mut self.ports;
        let mut work = self
            .time_wait
            .expire(now, TIMER_BUDGET, |key| ports.leave(key));
        self.dismiss_rested();
        work += self.sweep(now, io.memory);
        work += self.poll_neighbors(&mut io);
        let mut due = core::mem::take(&mut self.due);
        self.wheel
            .expire(now, TIMER_BUDGET, &mut |index| due.push(index));
        for index in due.drain(..) {
            self.on_timer(&mut io, index);
            work += 1;
        }
        self.due = due;
        work
    }

    fn on_timer(&mut self, io: &mut Io<'_>, index: u32) {
        let Some((hot, cold)) = self.table.parts(index) else {
            return;
        };
        if hot.phase == Phase::Free || hot.flags.has(Flags::DETACHED) {
            return;
        }
        let watched = watched(hot, cold);
        cold.watchdog.note(io.now, watched);
        match cold
            .watchdog
            .check(io.now, watched, &cold.options, &self.config)
        {
            Verdict::Fine => {}
            Verdict::Probe => {
                self.counters.keepalive_probes_sent.raise();
                let (seq, edge) = (hot.track.snd_nxt.wrapping_sub(1), hot.track.edge);
                self.send_ack(io, index, seq, edge);
            }
            Verdict::TimedOut => {
                self.counters.flows_timed_out.raise();
                let error = cold.soft_error.unwrap_or(Errno::TIMEDOUT);
                return self.kill(io, index, error, false);
            }
            Verdict::Dead => {
                self.counters.flows_timed_out_keepalive.raise();
                return self.kill(io, index, Errno::TIMEDOUT, true);
            }
            Verdict::Orphaned => {
                self.counters.flows_timed_out_orphan.raise();
                return self.kill(io, index, Errno::TIMEDOUT, true);
            }
        }
        self.mend_in_time(io, index);
        if self.retry(io, index) {
            self.grow(io, index);
            self.mark_dirty(index);
        }
    }

    /// Gives up a handshake after its retries, and asks for the next hop again when data is sent again. False when
    /// the flow is over.
    fn retry(&mut self, io: &mut Io<'_>, index: u32) -> bool {
        let Some((hot, cold)) = self.table.parts(index) else {
            return false;
        };
        let Some(interface) = self.interfaces.of(cold.meter.mtu_class) else {
            return false;
        };
        if hot.engine.poll_at(interface, io.now) != Due::Now {
            return true;
        }
        let syns = cold.meter.syns;
        let own = cold.options.syn_count;
        let limit = |usual| if own == 0 { usual } else { own };
        match cold.state {
            FlowState::SynSent if syns > limit(self.config.syn_retries) => {
                self.counters.flows_timed_out_syn.raise();
                let error = cold.soft_error.unwrap_or(Errno::TIMEDOUT);
                self.kill(io, index, error, false);
                return false;
            }
            FlowState::SynReceived if syns > limit(self.config.synack_retries) => {
                self.counters.flows_timed_out_half_open.raise();
                self.kill(io, index, Errno::TIMEDOUT, false);
                return false;
            }
            _ => {}
        }
        cold.meter.timer_is_due = true;
        self.follow_next_hop(io.now, index);
        true
    }

    /// The peer may have moved to another MAC address (a changed gateway).
    pub(crate) fn follow_next_hop(&mut self, now: Instant, index: u32) {
        if let Some((hot, cold)) = self.table.parts(index)
            && !hot.flags.has(Flags::LOOPED)
            && let Resolution::Known(mac) = self.neighbors.resolve(now, cold.next_hop)
        {
            cold.mac = mac;
        }
    }
}

/// Learns the congestion window where it is what stops the engine, which has nothing to send now.
fn note_congestion(hot: &Hot, cold: &mut Cold) {
    let unacknowledged = cold.tx_total - cold.tx_acked;
    if unacknowledged == 0 {
        return;
    }
    let in_flight = ahead(snd_una(cold), hot.track.snd_nxt);
    let unsent = unacknowledged.saturating_sub(u64::from(in_flight));
    let window = cold.meter.congestion_window(in_flight, unsent);
    cold.meter.is_held_up = window.is_some();
    if let Some(window) = window {
        cold.congestion_window = window;
    }
}

/// What the watchdog must know of a flow.
fn watched(hot: &Hot, cold: &Cold) -> Watched {
    let facts = hot.engine.facts();
    let closing = matches!(
        facts.state,
        FlowState::FinWait1 | FlowState::Closing | FlowState::LastAck
    );
    let unacknowledged = distance(snd_una(cold), hot.track.snd_nxt) > 0;
    Watched {
        state: cold.state,
        outstanding: facts.tx_queue > 0
            || closing
            || unacknowledged && facts.state != FlowState::Closed,
        orphan: hot.phase == Phase::Orphan || hot.flags.has(Flags::LEFT),
    }
}

/// Segments that one flow may send before the others have their turn.
const FLOW_SEGMENTS: usize = 2 * BURST_MAX;
/// Segments that one call sends at most, so that received frames do not wait long.
const TURN_SEGMENTS: usize = 8 * BURST_MAX;
/// Calls in a row that may send nothing although the engine says "now": a timer that fires takes one.
const QUIET_ROUNDS: usize = 3;
/// Times that the loop to ourselves goes round in one call.
const LOOP_ROUNDS: usize = 8;
/// Looped frames in one round.
const LOOP_BUDGET: usize = 8 * BURST_MAX;
/// Timers in one call.
const TIMER_BUDGET: usize = 1024;
/// When to ask again for what was refused.
const RETRY: core::time::Duration = core::time::Duration::from_millis(10);
