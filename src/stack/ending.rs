//! How flows end: let go of, refused, killed, over; and the record that TIME-WAIT leaves.

use super::api::{Change, FlowMemory, FlowState};
use super::flow_parts::{Flags, Phase};
use super::segment::ControlSegment;
use super::sequence::rcv_nxt;
use super::stack::{Close, Io, Stack};
use super::time_wait::TimeWait;
use crate::device::TxQueue;
use crate::errno::Errno;
use crate::id::{FlowId, ListenerId};
use crate::time::Instant;

impl Stack {
    /// Ends to listen: half-open and waiting flows are reset, as Linux does. Looks at those alone.
    pub fn unlisten(
        &mut self,
        now: Instant,
        id: ListenerId,
        memory: &mut dyn FlowMemory,
        tx: &mut dyn TxQueue,
    ) {
        let mut io = Io { now, memory, tx };
        let Some(listener) = self.listeners.remove(id) else {
            return;
        };
        for flow in listener.into_waiting() {
            let waits =
                self.table.is_in(flow, Phase::HalfOpen) || self.table.is_in(flow, Phase::Queued);
            if let Some(index) = self.table.resolve(flow).filter(|_| waits) {
                self.let_go(now, index, Close::Abort);
                self.work_on(&mut io, index);
            }
        }
    }

    /// Notes that the program let go of a flow; what it still sends leaves with [`Stack::transmit`].
    pub fn close(&mut self, now: Instant, flow: FlowId, how: Close) {
        if let Some(index) = self.table.resolve(flow) {
            self.let_go(now, index, how);
        }
    }

    /// Notes that the program let go of a flow whose last bytes are still to be handed to [`Stack::send`]: its time as an
    /// orphan begins, so that a peer that never opens its window does not keep it for ever. [`Stack::close`] follows.
    pub fn leave(&mut self, now: Instant, flow: FlowId) {
        let Some(index) = self.table.resolve(flow) else {
            return;
        };
        if let Some((hot, cold)) = self.table.parts(index)
            && !hot.flags.has(Flags::LEFT)
        {
            hot.flags.set(Flags::LEFT);
            cold.watchdog.orphan(now);
            self.mark_dirty(index);
        }
    }

    /// Sends what of the flow's bytes may leave now, before a [`Stack::close`] that throws the rest away: Linux sends them
    /// in send(2) itself.
    pub fn send_now(
        &mut self,
        now: Instant,
        flow: FlowId,
        memory: &mut dyn FlowMemory,
        tx: &mut dyn TxQueue,
    ) {
        if let Some(index) = self.table.resolve(flow) {
            self.work_on(&mut Io { now, memory, tx }, index);
        }
    }

    /// Lets go of a flow that is over, and frees it at once, so that its ring can be lent again.
    pub fn forget(
        &mut self,
        now: Instant,
        flow: FlowId,
        memory: &mut dyn FlowMemory,
        tx: &mut dyn TxQueue,
    ) {
        if let Some(index) = self.table.resolve(flow) {
            self.let_go(now, index, Close::Abort);
            self.work_on(&mut Io { now, memory, tx }, index);
        }
    }

    fn let_go(&mut self, now: Instant, index: u32, how: Close) {
        let Some((hot, cold)) = self.table.parts(index) else {
            return;
        };
        let was = hot.phase;
        if was == Phase::Orphan {
            // An abort may follow a graceful close: its program's time is over.
            if how == Close::Abort && !hot.flags.has(Flags::DETACHED) {
                self.counters.flows_reset_by_close.raise();
                hot.engine.abort();
                cold.state = FlowState::Closed;
                self.mark_dirty(index);
            }
            return;
        }
        hot.phase = Phase::Orphan;
        cold.watchdog.orphan(now);
        let listener = cold.listener.and_then(|id| self.listeners.at_mut(id));
        match (was, listener) {
            (Phase::HalfOpen, Some(listener)) => listener.give_up(),
            (Phase::Queued, Some(listener)) => listener.leave_queue(),
            _ => {}
        }
        let unread = cold.rx_total > cold.consumed;
        if hot.flags.has(Flags::DETACHED) {
            // Nothing is sent any more; transmit frees it.
        } else if cold.state == FlowState::SynSent {
            // Nobody has heard of us: RFC 9293 section 3.10.4 deletes the connection.
            self.table.detach(index);
        } else if how == Close::Abort || unread {
            self.counters.flows_reset_by_close.raise();
            hot.engine.abort();
            cold.state = FlowState::Closed;
        } else {
            self.finish(now, index);
        }
        self.mark_dirty(index);
    }

    /// The connection is over without a word to the peer, or with a reset.
    pub(crate) fn kill(&mut self, io: &mut Io<'_>, index: u32, error: Errno, reset: bool) {
        let Some((hot, cold)) = self.table.parts(index) else {
            return;
        };
        if hot.flags.has(Flags::DETACHED) {
            return;
        }
        // A reset that found no room since the last time is not waited for.
        let owed = cold.state == FlowState::Closed;
        cold.error.get_or_insert(error);
        cold.state = FlowState::Closed;
        hot.engine.abort();
        if reset && !owed && !hot.flags.has(Flags::UNRESOLVED) {
            self.note_change(index);
            return self.mark_dirty(index);
        }
        self.end(io, index);
    }

    /// Nothing is sent or received any more. The flow goes, or waits for the program to let go.
    pub(crate) fn end(&mut self, io: &mut Io<'_>, index: u32) {
        self.table.detach(index);
        if let Some(hot) = self.table.hot(index) {
            self.ports.leave(hot.key);
        }
        self.wheel.cancel(index);
        let Some(hot) = self.table.hot(index) else {
            return;
        };
        match hot.phase {
            Phase::Free => {}
            Phase::HalfOpen | Phase::Orphan => self.free(io, index),
            Phase::Queued | Phase::Owned => self.note_change(index),
        }
    }

    /// smoltcp panicked in this flow: it is reset, and the others live on.
    pub(crate) fn drop_broken(&mut self, io: &mut Io<'_>, index: u32) {
        self.counters.flows_dropped_panic.raise();
        let Some((hot, cold)) = self.table.parts(index) else {
            return;
        };
        let reply = ControlSegment::reset(hot.key, hot.track.snd_nxt, rcv_nxt(hot, cold));
        let (key, mac, looped) = (hot.key, cold.mac, hot.flags.has(Flags::LOOPED));
        hot.engine.clear();
        cold.error.get_or_insert(Errno::CONNRESET);
        cold.state = FlowState::Closed;
        // A peer that knows how to provoke it may do so at line rate; the log counts what it holds back.
        crate::error!(
            "event=flow_dropped_after_panic local={} remote={}",
            key.local,
            key.remote
        );
        self.send_control(io, &reply, mac, looped);
        self.end(io, index);
    }

    /// The flow is in TIME-WAIT: its last ACK leaves, then a small record stands for it.
    pub(crate) fn enter_time_wait(&mut self, io: &mut Io<'_>, index: u32) {
        if self.feed(io, index, None, None).is_err() {
            return self.drop_broken(io, index);
        }
        if let Some((hot, cold)) = self.table.parts(index) {
            let rest = TimeWait {
                key: hot.key,
                snd_nxt: hot.track.snd_nxt,
                rcv_nxt: rcv_nxt(hot, cold),
                window: cold.meter.window,
                source_mac: cold.mac,
                is_guest: hot.flags.has(Flags::GUEST),
            };
            // What comes again, and a SYN above all, is for the record.
            hot.flags.clear(Flags::GUEST);
            let dropped = self.time_wait.dropped_full();
            self.time_wait.insert(io.now, rest);
            let dropped = self.time_wait.dropped_full() - dropped;
            self.counters.time_wait_dropped_full.add(dropped);
            self.dismiss_rested();
        }
        self.counters.flows_time_wait.raise();
        self.end(io, index);
    }

    /// What was remembered of some guests is gone: their segments go where their hash leads.
    pub(crate) fn dismiss_rested(&mut self) {
        let over = self.time_wait.take_guests_over();
        if let Some(place) = &self.place {
            for key in over {
                place.steering.dismiss(key);
            }
        }
    }

    /// Frees a flow: the ring goes back, then the lcore hears its last word about the id.
    pub(crate) fn free(&mut self, io: &mut Io<'_>, index: u32) {
        let flow = self.table.id(index);
        let Some((hot, cold)) = self.table.parts(index) else {
            return;
        };
        if hot.phase == Phase::Free {
            return;
        }
        let listener = cold.listener.and_then(|id| self.listeners.at_mut(id));
        match (hot.phase, listener) {
            (Phase::HalfOpen, Some(listener)) => listener.give_up(),
            (Phase::Queued, Some(listener)) => listener.leave_queue(),
            _ => {}
        }
        let flags = hot.flags.get();
        let (held, backed) = (cold.held, cold.meter.backed as usize);
        if hot.flags.has(Flags::GUEST)
            && let Some(place) = &self.place
        {
            place.steering.dismiss(hot.key);
        }
        self.changes.gone(
            &mut cold.mark,
            Change::Gone {
                flow,
                token: cold.token,
            },
        );
        self.wheel.cancel(index);
        self.urgent.forget(flags, index);
        // The socket is dropped here, and with it the last use of the ring's memory.
        self.table.remove(index);
        held.give_back(io.memory, backed);
        self.counters.flows_freed.raise();
    }
}
