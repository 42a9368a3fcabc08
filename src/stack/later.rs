//! Acknowledgements that wait for the program: with inline progress it runs between two turns, and what it sends carries them.
//!
//! The end of a handshake that we began, a first request, a peer's FIN. They wait while the program has something else to do, for
//! [`LONGEST`] at most; a turn that finds nothing to do sends them.

use core::time::Duration;
use std::collections::VecDeque;

use super::api::FlowState;
use crate::time::Instant;

/// What is a moment for a peer, and work on tens of connections for a program.
const LONGEST: Duration = Duration::from_millis(1);

/// Flows whose acknowledgement waits.
#[derive(Debug, Default)]
pub(crate) struct Later {
    /// The program runs between two turns.
    on: bool,
    /// Since when, the longest first.
    waiting: VecDeque<(Instant, u32)>,
}

impl Later {
    /// From now on they wait.
    pub(crate) fn begin(&mut self) {
        self.on = true;
    }

    /// When the first one has waited long enough.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.waiting.front().map(|(since, _)| *since + LONGEST)
    }

    /// Whether what a segment has made of a flow in state `was` is acknowledged later: `first` when it carried the first bytes.
    pub(crate) fn takes(&self, was: FlowState, is: FlowState, first: bool) -> bool {
        use FlowState::{CloseWait, Established, SynReceived, SynSent};

        self.on
            && match (was, is) {
                (SynSent, Established) | (Established, CloseWait) => true,
                (SynReceived | Established, Established) => first,
                _ => false,
            }
    }

    /// The flow waits from `now` on.
    pub(crate) fn push(&mut self, now: Instant, index: u32) {
        self.waiting.push_back((now, index));
    }

    /// The next flow that has waited long enough.
    pub(crate) fn pop(&mut self, now: Instant) -> Option<u32> {
        if self.next_due()? > now {
            return None;
        }
        self.waiting.pop_front().map(|(_, index)| index)
    }

    /// The next flow, however long it has waited.
    pub(crate) fn pop_any(&mut self) -> Option<u32> {
        self.waiting.pop_front().map(|(_, index)| index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_waits_where_the_program_runs_beside_the_loop() {
        let mut later = Later::default();
        let ask = |later: &Later| later.takes(FlowState::SynSent, FlowState::Established, false);
        assert!(!ask(&later));
        later.begin();
        assert!(ask(&later));
    }

    #[test]
    fn what_waits_is_sent_after_a_millisecond_in_order() {
        let mut later = Later::default();
        let at = |micros: u64| Instant::from_nanos(micros * 1_000);
        later.push(at(10), 7);
        later.push(at(20), 8);
        assert_eq!(later.next_due(), Some(at(1_010)));
        assert_eq!(later.pop(at(1_009)), None);
        assert_eq!(
            (later.pop(at(1_010)), later.pop(at(1_010))),
            (Some(7), None)
        );
        assert_eq!((later.pop_any(), later.pop_any()), (Some(8), None));
        assert_eq!(later.next_due(), None);
    }
}
