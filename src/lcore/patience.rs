//! Objects that something is due for after a wait of equal length: bytes held back, connections that were offered.

use core::time::Duration;
use std::collections::VecDeque;

use super::object::Token;
use crate::time::Instant;

/// The objects and when each one's time is over, the oldest first.
#[derive(Debug)]
pub(super) struct Patience {
    wait: Duration,
    queue: VecDeque<(Instant, Token)>,
}

impl Patience {
    /// Nobody waits yet; each will for `wait`.
    pub(super) const fn new(wait: Duration) -> Self {
        Self {
            wait,
            queue: VecDeque::new(),
        }
    }

    /// An object waits from `now` on, until what this gives. Who asks sees to it that it waits once.
    pub(super) fn begin(&mut self, now: Instant, token: Token) -> Instant {
        let due = now + self.wait;
        self.queue.push_back((due, token));
        due
    }

    /// When the first one's time is over.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.queue.front().map(|(due, _)| *due)
    }

    /// Takes one whose time is over.
    pub(super) fn pop(&mut self, now: Instant) -> Option<Token> {
        self.next_due().filter(|due| *due <= now)?;
        self.queue.pop_front().map(|(_, token)| token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stack::Owner;

    #[test]
    fn each_waits_as_long_and_comes_out_in_order() {
        let at = Instant::from_millis;
        let token = |object| Token {
            owner: Owner(0),
            object,
        };
        let mut patience = Patience::new(Duration::from_millis(5));
        assert!(patience.next_due().is_none() && patience.pop(at(9)).is_none());
        patience.begin(at(1), token(7));
        patience.begin(at(3), token(8));
        assert_eq!(patience.next_due(), Some(at(6)));
        assert!(patience.pop(at(5)).is_none());
        let mut due = |ms| patience.pop(at(ms)).map(|token| token.object);
        assert_eq!(
            (due(7), due(7), due(8), due(9)),
            (Some(7), None, Some(8), None)
        );
    }
}
