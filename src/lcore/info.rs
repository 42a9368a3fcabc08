//! What TCP_INFO tells: written when a program asks, so that nobody else pays for it.

use core::time::Duration;

use super::family::Work;
use super::object::Role;
use crate::channel::cell::{AnswerCell, ObjectCell};
use crate::channel::sync::{AtomicU32, Ordering};
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
        let Some(answer) = self.segments.control.answer(object) else {
            return;
        };
        let generation = cell.host.generation.load(Ordering::Relaxed);
        let (of, _) = AnswerCell::told_of(answer.told.load(Ordering::Relaxed));
        if of != generation {
            // They tell of who had the index before, and a flow that is gone leaves them as they are.
            for word in answer.numbers() {
                word.store(0, Ordering::Relaxed);
            }
        }
        if let Role::Flow(flow) = role {
            self.describe(flow, cell, answer);
        }
        // Release: the numbers are there before the answer.
        answer
            .told
            .store(AnswerCell::told_word(generation, asked), Ordering::Release);
    }

    #[cold]
    fn describe(&self, flow: FlowId, cell: &ObjectCell, answer: &AnswerCell) {
        let Some(view) = self.shared.stack.view_of(self.now, flow) else {
            return;
        };
        let size = |bytes: usize| u32::try_from(bytes).unwrap_or(u32::MAX);
        let (window, shift) = view.window;
        let (peer_window, peer_shift) = view.peer_window;
        let silent = u32::try_from(view.silent.as_millis()).unwrap_or(u32::MAX);
        let micros = |span: Duration| u32::try_from(span.as_micros()).unwrap_or(u32::MAX);
        let facts = &view.facts;
        let threshold = view.slow_start_threshold.unwrap_or(0);
        let numbers: [(&AtomicU32, u32); AnswerCell::NUMBERS] = [
            (&answer.in_flight, view.in_flight),
            (&answer.unsent, facts.unsent),
            (&answer.segments, view.segments),
            (&answer.silent_ms, silent),
            (&answer.mtu, size(view.mtu)),
            (&answer.window, u32::from(window) << shift),
            (&answer.window_shift, u32::from(shift)),
            (&answer.ring, size(view.ring.0)),
            (&answer.backed, size(view.ring.1)),
            (
                &answer.congestion_window,
                view.congestion_window.unwrap_or(0),
            ),
            (&answer.rttvar_us, view.rttvar_us),
            (&answer.rto_us, micros(view.rto)),
            (&answer.slow_start_threshold, threshold),
            (&answer.data_segments, view.data_segments),
            (&answer.came, view.came),
            (&answer.data_came, view.data_came),
            (&answer.again_bytes, view.again_bytes),
            (&answer.quiet_ms, view.quiet_ms),
            (&answer.min_rtt_us, view.min_rtt_us),
            (&answer.backoff, view.backoff.into()),
            (&answer.peer_window, peer_window),
            (&answer.peer_shift, peer_shift.into()),
        ];
        for (word, value) in numbers {
            word.store(value, Ordering::Relaxed);
        }
        let fact = &cell.fact;
        fact.srtt_us.store(facts.srtt_us, Ordering::Relaxed);
        fact.retransmits.store(facts.retransmits, Ordering::Relaxed);
    }
}
