//! Listeners that are watched with EPOLLEXCLUSIVE: one sleeper is told of a connection. When it is still there a moment later and
//! that one has not run, he was stopped, and all are told: Linux takes a stopped sleeper off its list, here nobody sees it stop.

use core::time::Duration;

use super::family::Work;
use super::object::Token;
use crate::channel::accept_ring;
use crate::channel::sync::Ordering;
use crate::readiness;

/// How long the one who was told has it for himself: longer than a thread that can run waits for its turn, as a rule.
pub(super) const OFFERED_FOR: Duration = Duration::from_millis(5);

impl Work<'_> {
    /// Notes that somebody was told of a connection of `listener`, if it is one that tells one at a time.
    pub(super) fn note_offer(&mut self, listener: u32) {
        let is_exclusive = self
            .cell(listener)
            .is_some_and(|cell| cell.read.exclusive.load(Ordering::Relaxed) != 0);
        let Some(record) = self.records.at_mut(listener).filter(|_| is_exclusive) else {
            return;
        };
        if !core::mem::replace(&mut record.offered, true) {
            let token = Token {
                owner: self.owner,
                object: listener,
            };
            self.shared.offers.begin(self.now, token);
        }
    }

    /// The time of who was told of a connection of `listener` is over.
    pub(super) fn insist(&mut self, listener: u32) {
        let (Some(cell), Some(record)) = (self.cell(listener), self.records.at_mut(listener))
        else {
            return;
        };
        let was_offered = core::mem::replace(&mut record.offered, false);
        let waits = was_offered && accept_ring::queued(&cell.queue) > 0;
        if waits && readiness::has_unheard(&self.segments.control, listener) {
            self.shared.counters.offers_repeated.raise();
            self.remind(listener);
        }
    }
}
