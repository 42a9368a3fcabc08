//! A port that takes nothing: how long the loop may rest before it asks again.
//!
//! What cannot leave is due at once, for ever, while the peer of a vhost port is gone or a ring is not drained. Nothing tells
//! when there is room again, so that the loop asks, ever more seldom.

use core::time::Duration;

use crate::time::Instant;

/// After the first refusal: a ring that is merely full is drained in the meantime.
const FIRST: Duration = Duration::from_micros(100);
/// At most; as long as a delayed acknowledgement, so that timers of flows are late by no more than they are elsewhere.
const LAST: Duration = Duration::from_millis(10);

/// Whether the port refused what there was to send, and until when it is not asked again.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Stall {
    until: Instant,
    span: Duration,
}

impl Stall {
    /// Nothing could be sent at `now`.
    pub(crate) fn refused(&mut self, now: Instant) {
        if now < self.until {
            // Asked for another reason; it was not its turn.
            return;
        }
        self.span = (self.span * 2).clamp(FIRST, LAST);
        self.until = now + self.span;
    }

    /// Whether the port has refused for so long that what waits for it must be watched.
    pub(crate) fn is_long(&self) -> bool {
        self.span == LAST
    }

    /// Something was sent.
    pub(crate) fn over(&mut self) {
        *self = Self::default();
    }

    /// The later of `due` and the end of the pause.
    #[must_use]
    pub(crate) fn delays(&self, due: Instant) -> Instant {
        due.max(self.until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_that_never_takes_anything_is_asked_ever_more_seldom() {
        let mut stall = Stall::default();
        let mut now = Instant::from_millis(5);
        let mut pauses = Vec::new();
        for _ in 0..12 {
            stall.refused(now);
            let next = stall.delays(Instant::ZERO);
            pauses.push(next.since(now));
            assert_eq!(stall.is_long(), pauses.last() == Some(&LAST));
            now = next;
        }
        assert_eq!(pauses.first(), Some(&FIRST));
        assert_eq!(pauses.last(), Some(&LAST));
        assert!(pauses.is_sorted());
    }

    #[test]
    fn being_asked_between_does_not_make_the_pause_longer() {
        let mut stall = Stall::default();
        stall.refused(Instant::from_millis(5));
        let next = stall.delays(Instant::ZERO);
        for _ in 0..100 {
            stall.refused(Instant::from_millis(5));
        }
        assert_eq!(stall.delays(Instant::ZERO), next);
    }

    #[test]
    fn what_is_due_later_than_the_pause_keeps_its_time() {
        let mut stall = Stall::default();
        stall.refused(Instant::from_millis(5));
        let due = Instant::from_millis(90);
        assert_eq!(stall.delays(due), due);
    }

    #[test]
    fn one_frame_that_leaves_ends_the_pause() {
        let mut stall = Stall::default();
        for now in 5..20 {
            stall.refused(Instant::from_millis(now));
        }
        stall.over();
        assert_eq!(stall.delays(Instant::ZERO), Instant::ZERO);
        stall.refused(Instant::from_millis(30));
        assert_eq!(
            stall.delays(Instant::ZERO),
            Instant::from_millis(30) + FIRST
        );
    }
}
