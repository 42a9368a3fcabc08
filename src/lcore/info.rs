//! What TCP_INFO tells: written when a program asks, so that nobody else pays for it.

use core::time::Duration;

use super::family::Work;
use super::object::Role;
use crate::channel::cell::ObjectCell;
use crate::channel::sync::Ordering;
use crate::id::FlowId;

impl Work<'_> {
    /// Answers a question about `object`, if there is one that was not answered.
    pub(super) fn answer_info(&mut self, object: u32, cell: &ObjectCell) {
        let asked = cell.wish.info.load(Ordering::Acquire);
        let Some(record) = self.records.at_mut(object) else {
            return;
        };
        if record.info == asked {
            return;
        }
        record.info = asked;
        let role = record.role;
        if let Role::Flow(flow) = role {
            self.describe(flow, cell);
        }
        // Release: the numbers are there before the answer.
        cell.info.told.store(asked, Ordering::Release);
    }

    #[cold]
    fn describe(&self, flow: FlowId, cell: &ObjectCell) {
        let Some(view) = self.shared.stack.view_of(self.now, flow) else {
            return;
        };
        let size = |bytes: usize| u32::try_from(bytes).unwrap_or(u32::MAX);
        let (window, shift) = view.window;
        let silent = u32::try_from(view.silent.as_millis()).unwrap_or(u32::MAX);
        let micros = |span: Duration| u32::try_from(span.as_micros()).unwrap_or(u32::MAX);
        let (facts, info) = (&view.facts, &cell.info);
        for (word, value) in [
            (&info.in_flight, view.in_flight),
            (&info.unsent, facts.unsent),
            (&info.segments, view.segments),
            (&info.silent_ms, silent),
            (&info.mtu, size(view.mtu)),
            (&info.window, u32::from(window) << shift),
            (&info.window_shift, u32::from(shift)),
            (&info.ring, size(view.ring.0)),
            (&info.backed, size(view.ring.1)),
            (&info.congestion_window, view.congestion_window.unwrap_or(0)),
            (&info.rttvar_us, view.rttvar_us),
            (&info.rto_us, micros(view.rto)),
            (
                &info.slow_start_threshold,
                view.slow_start_threshold.unwrap_or(0),
            ),
        ] {
            word.store(value, Ordering::Relaxed);
        }
        let fact = &cell.fact;
        fact.srtt_us.store(facts.srtt_us, Ordering::Relaxed);
        fact.retransmits.store(facts.retransmits, Ordering::Relaxed);
    }
}
