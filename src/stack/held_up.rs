//! A port that does not take what is sent: a peer of vhost that has gone, a full ring.
//!
//! Nothing tells when it takes frames again, so that it is asked now and then. Without a pause the loop would ask for ever and
//! never sleep, and with it a connection to a peer that is no more would keep a core busy until it times out.

use core::time::Duration;

use crate::time::Instant;

/// When to offer again what the port refused.
#[derive(Debug, Default)]
pub(crate) struct HeldUp {
    /// None = it took everything.
    due: Option<Instant>,
    /// Times in a row that it took nothing.
    refusals: u32,
}

impl HeldUp {
    /// Frames were offered: some of them were `sent`, some are `left`.
    pub(crate) fn note(&mut self, now: Instant, sent: bool, left: bool) {
        if sent || !left {
            self.refusals = 0;
        }
        if !left {
            self.due = None;
            return;
        }
        if self.due.is_some_and(|due| due > now && self.refusals > 0) {
            // Asked before its time, because something else woke the loop.
            return;
        }
        self.due = Some(now + PAUSE * (1 << self.refusals.min(DOUBLINGS)));
        self.refusals += 1;
    }

    /// When to offer again.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.due
    }
}

/// A ring that is full for a moment is read long before; the lcore polls meanwhile, and sleeps only behind that.
const PAUSE: Duration = Duration::from_millis(1);
/// 32 ms at most: 30 looks a second do not show.
const DOUBLINGS: u32 = 5;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_limit_and_begin_again_with_what_goes() {
        let mut held_up = HeldUp::default();
        let mut now = Instant::from_millis(1_000);
        let mut pauses = Vec::new();
        for _ in 0..8 {
            held_up.note(now, false, true);
            // A look before the time moves nothing.
            let due = held_up.next_due().unwrap();
            held_up.note(now, false, true);
            assert_eq!(held_up.next_due(), Some(due));
            pauses.push(due.since(now).as_millis());
            now = due;
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 32, 32]);
        held_up.note(now, true, true);
        assert_eq!(held_up.next_due(), Some(now + PAUSE));
        held_up.note(now, true, false);
        assert_eq!(held_up.next_due(), None);
    }
}
