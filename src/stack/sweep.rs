//! Memory of connections (design D1): it comes as the window grows, and of those that say nothing it goes back: pages of the rings
//! and of the send buffer.
//!
//! A flow *rests* when its rings hold nothing and nothing has come for a while. The window that it has advertised stands, so its
//! pages come back before a segment is taken: from the one in which its next byte lies, twice as many each time. A flow whose
//! ring holds bytes behind a gap never rests, because nobody else has those.

use core::time::Duration;

use super::api::{FlowMemory, FlowState};
use super::demux::TcpFrame;
use super::flow_parts::{Flags, Phase};
use super::sequence::rcv_nxt;
use super::stack::{Io, Stack};
use super::tracker::distance;
use crate::time::Instant;

/// Where the walk through the table stands.
#[derive(Debug, Default)]
pub(crate) struct Sweep {
    /// The next index to look at.
    at: u32,
    /// When to go on; None = nothing has happened since every flow rested.
    due: Option<Instant>,
    /// This pass met a flow that is not idle for long enough.
    young: bool,
}

impl Sweep {
    /// Something came or left: there will be something to sweep.
    pub(crate) fn stir(&mut self, now: Instant) {
        if self.due.is_none() {
            self.due = Some(now + REST_AFTER);
        }
    }

    /// When to go on.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.due
    }
}

impl Stack {
    /// Looks at some of the flows and lets idle ones rest; returns how many did.
    pub(crate) fn sweep(&mut self, now: Instant, memory: &mut dyn FlowMemory) -> usize {
        if self.sweep.due.is_none_or(|due| due > now) {
            return 0;
        }
        let end = self
            .sweep
            .at
            .saturating_add(SWEEP_FLOWS)
            .min(self.table.indices());
        let mut rested = 0;
        for index in self.sweep.at..end {
            match self.may_rest(now, index) {
                Rest::Ripe => rested += usize::from(self.rest(index, memory)),
                Rest::Young => self.sweep.young = true,
                Rest::No => {}
            }
        }
        self.sweep.at = end;
        self.sweep.due = if end < self.table.indices() {
            Some(now + SWEEP_PAUSE)
        } else {
            self.sweep.at = 0;
            core::mem::take(&mut self.sweep.young).then(|| now + REST_AFTER / 2)
        };
        rested
    }

    fn may_rest(&self, now: Instant, index: u32) -> Rest {
        let Some((hot, cold)) = self.table.look(index) else {
            return Rest::No;
        };
        let busy = [Flags::DETACHED, Flags::LEFT, Flags::GAP, Flags::STARVED];
        let open = matches!(cold.state, FlowState::Established | FlowState::CloseWait);
        if hot.phase != Phase::Owned
            || !open
            || !hot.flags.has(Flags::STIRRED)
            || busy.iter().any(|flag| hot.flags.has(*flag))
        {
            return Rest::No;
        }
        let idle = cold.consumed == cold.rx_total
            && cold.tx_acked == cold.tx_total
            && !hot.flags.has(Flags::DIRTY)
            && cold.watchdog.since_heard(now) >= REST_AFTER;
        if idle { Rest::Ripe } else { Rest::Young }
    }

    fn rest(&mut self, index: u32, memory: &mut dyn FlowMemory) -> bool {
        let Some((hot, cold)) = self.table.parts(index) else {
            return false;
        };
        if !memory.rest(cold.held.owner, cold.held.ring) {
            return false;
        }
        hot.engine.forget_send_buffer();
        hot.flags.set(Flags::RESTING);
        hot.flags.clear(Flags::STIRRED);
        cold.rest_at = cold.rx_total;
        cold.awake = 0;
        self.counters.flows_rested.raise();
        true
    }

    /// Puts memory where the payload of `frame` goes when the flow rests. False when there is none: then the segment is dropped.
    pub(crate) fn awake(&mut self, io: &mut Io<'_>, frame: &TcpFrame, index: u32) -> bool {
        let Some((hot, cold)) = self.table.parts(index) else {
            return false;
        };
        let ahead = distance(rcv_nxt(hot, cold), frame.seq)
            .saturating_add_unsigned(u32::try_from(frame.payload_len).unwrap_or(u32::MAX));
        let Ok(ahead) = u64::try_from(ahead) else {
            return true;
        };
        let capacity = u64::from(cold.meter.capacity);
        let start = cold.rest_at & !(PAGE - 1);
        let needed = (cold.rx_total + ahead)
            .saturating_sub(start)
            .next_power_of_two()
            .clamp(PAGE, capacity);
        let have = u64::from(cold.awake);
        if needed > have {
            let from = (start + have) % capacity;
            let place = (usize::try_from(from), usize::try_from(needed - have));
            let (Ok(from), Ok(bytes)) = place else {
                return false;
            };
            if !io
                .memory
                .back_part(cold.held.owner, cold.held.ring, from, bytes)
            {
                self.counters.ring_growth_refused.raise();
                return false;
            }
            cold.awake = u32::try_from(needed).unwrap_or(u32::MAX);
        }
        if needed == capacity {
            hot.flags.clear(Flags::RESTING);
            self.sweep.stir(io.now);
        }
        true
    }

    /// Puts memory behind more of the ring, before the window needs it.
    pub(crate) fn grow(&mut self, io: &mut Io<'_>, index: u32) {
        let Some((hot, cold)) = self.table.parts(index) else {
            return;
        };
        let meter = &mut cold.meter;
        while meter.is_clamped() && cold.rx_total > u64::from(meter.backed) / 2 {
            let wanted = (meter.backed * 2).min(meter.capacity);
            if !io
                .memory
                .back(cold.held.owner, cold.held.ring, wanted as usize)
            {
                self.counters.ring_growth_refused.raise();
                hot.flags.set(Flags::STARVED);
                return;
            }
            meter.backed = wanted;
            hot.flags.set(Flags::ACK_OWED);
        }
        hot.flags.clear(Flags::STARVED);
    }
}

enum Rest {
    /// Now.
    Ripe,
    /// Later, if it stays as it is.
    Young,
    /// It rests, or something else must happen first.
    No,
}

const PAGE: u64 = 4_096;
/// A flow of which nothing was heard for so long rests.
pub(crate) const REST_AFTER: Duration = Duration::from_secs(10);
/// Flows that one call looks at: some 20 us.
const SWEEP_FLOWS: u32 = 256;
/// Between two calls of one pass.
const SWEEP_PAUSE: Duration = Duration::from_millis(10);
