//! The consequences of a segment: what the engine has become, told on.

use super::api::FlowState;
use super::flow_parts::{Flags, Phase};
use super::sequence::rcv_nxt;
use super::stack::{Io, Stack};
use super::tracker::distance;
use crate::errno::Errno;

impl Stack {
    /// Draws the consequences of what the socket became.
    pub(crate) fn settle(&mut self, io: &mut Io<'_>, index: u32) {
        let Some((hot, cold)) = self.table.parts(index) else {
            return;
        };
        if hot.flags.has(Flags::DETACHED) {
            return;
        }
        // Changed here and written once: a byte that was just stored makes the next load of the word wait for memory.
        let mut flags = hot.flags.get();
        let facts = hot.engine.facts();
        let was = cold.state;
        let rx_total = cold.consumed + facts.rx_queue as u64;
        let tx_acked = cold.tx_total.saturating_sub(facts.tx_queue as u64);
        let mut changed = facts.state != was || rx_total != cold.rx_total;
        if tx_acked != cold.tx_acked {
            cold.tx_acked = tx_acked;
            cold.soft_error = None;
            cold.watchdog.delivered(io.now);
            cold.recovery.advanced(io.now);
            cold.meter.backoff = 0;
            changed = true;
            if flags.has(Flags::URGENT) {
                self.urgent.settle(hot, cold, index);
            }
        }
        if cold.meter.peer_window == 0 && cold.meter.came > 0 && cold.options.user_timeout_ms == 0 {
            // The peer is alive and lets us wait.
            cold.watchdog.progressed();
        }
        if rx_total != cold.rx_total {
            flags.set(Flags::UNANSWERED);
        }
        let is_first = cold.rx_total == 0 && rx_total != 0;
        cold.rx_total = rx_total;
        if flags.has(Flags::GAP) && distance(cold.gap_end, rcv_nxt(hot, cold)) >= 0 {
            flags.clear(Flags::GAP);
        }
        cold.state = facts.state;
        match facts.state {
            FlowState::CloseWait | FlowState::Closing | FlowState::LastAck => {
                cold.rx_finished = true
            }
            FlowState::FinWait2 => cold.meter.tx_finished = true,
            FlowState::TimeWait => (cold.rx_finished, cold.meter.tx_finished) = (true, true),
            _ => {}
        }
        if facts.state != was {
            flags.set(Flags::STIRRED);
            self.sweep.stir(io.now);
            if matches!(was, FlowState::FinWait1 | FlowState::Closing) {
                cold.watchdog.progressed();
            }
        }
        hot.flags.put(flags);
        if hot.phase == Phase::Orphan && facts.rx_queue > 0 && facts.state != FlowState::Closed {
            // Nobody will read it (RFC 1122 4.2.2.13; Linux counts TCPAbortOnData).
            self.counters.flows_reset_data_after_close.raise();
            hot.engine.abort();
            cold.state = FlowState::Closed;
            return self.mark_dirty(index);
        }
        let is_active = flags.has(Flags::ACTIVE);
        let finishes = cold.meter.finishes;
        self.grow(io, index);
        match facts.state {
            FlowState::Closed => return self.settle_closed(io, index, was),
            FlowState::TimeWait => return self.enter_time_wait(io, index),
            FlowState::Established | FlowState::CloseWait => {
                // Both ends may have sent a SYN; passive flows are counted where they are accepted.
                let met = was == FlowState::SynReceived && is_active;
                if was == FlowState::SynSent || met {
                    self.counters.flows_connected.raise();
                }
                self.settle_open(index);
            }
            _ => {}
        }
        if changed {
            self.note_change(index);
        }
        if finishes {
            self.finish_later(io.now, index);
        }
        if facts.tx_queue == 0 && self.later.takes(was, facts.state, is_first) {
            if let Some((hot, _)) = self.table.parts(index) {
                hot.waits = true;
            }
            return self.later.push(io.now, index);
        }
        self.mark_dirty(index);
    }

    /// The socket is closed: by the last acknowledgement, or because the peer refuses.
    fn settle_closed(&mut self, io: &mut Io<'_>, index: u32, was: FlowState) {
        let Some((hot, cold)) = self.table.parts(index) else {
            return;
        };
        if hot.engine.owes_reset() {
            return self.mark_dirty(index);
        }
        if was == FlowState::SynSent {
            self.counters.flows_refused.raise();
            cold.error.get_or_insert(Errno::CONNREFUSED);
        } else {
            cold.meter.tx_finished = true;
        }
        self.end(io, index);
    }

    /// The peer's reset is believed. smoltcp need not see it.
    pub(crate) fn reset_by_peer(&mut self, io: &mut Io<'_>, index: u32) {
        self.counters.flows_reset_by_peer.raise();
        if let Some((_, cold)) = self.table.parts(index) {
            // As Linux tells it (`tcp_reset`).
            let error = if cold.state == FlowState::CloseWait {
                Errno::PIPE
            } else {
                Errno::CONNRESET
            };
            cold.error.get_or_insert(error);
            cold.state = FlowState::Closed;
        }
        self.end(io, index);
    }
}
