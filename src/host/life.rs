//! How long a host lives: pure decisions over what the control thread sees.

use core::time::Duration;

use crate::time::Instant;

/// What a host should do now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    /// Go on until something changes; look again at this time, if any.
    Stay(Option<Instant>),
    /// Nobody is served and nothing is left: end.
    End,
}

/// What the control thread sees.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Seen {
    /// Control sockets of processes.
    pub(super) clients: usize,
    /// Families that have not ended.
    pub(super) families: usize,
    /// Flows, those in TIME-WAIT among them.
    pub(super) flows: usize,
}

/// The life of a host.
#[derive(Debug)]
pub(super) struct Life {
    /// A private host ends by itself.
    private: bool,
    linger: Duration,
    linger_max: Duration,
    /// Since when there is no client.
    alone_since: Option<Instant>,
    /// Since when there is neither client nor flow.
    empty_since: Option<Instant>,
    /// An orderly end was asked for.
    ending: bool,
}

/// How much longer than the flows of its programs a lonely host lives: they are reset first.
const GRACE: Duration = Duration::from_millis(100);

impl Life {
    pub(super) const fn new(private: bool, linger: Duration, linger_max: Duration) -> Self {
        Self {
            private,
            linger,
            linger_max,
            alone_since: None,
            empty_since: None,
            ending: false,
        }
    }

    /// The times of the config, once it is known.
    pub(super) const fn set_times(&mut self, linger: Duration, linger_max: Duration) {
        self.linger = linger;
        self.linger_max = linger_max;
    }

    /// SIGTERM: says whether it is obeyed. A private host with clients belongs to them (a stop of their whole unit must
    /// not take the stack away before they have ended).
    pub(super) const fn terminate(&mut self, clients: usize) -> bool {
        if self.private && clients > 0 {
            return false;
        }
        self.ending = true;
        true
    }

    /// Whether an orderly end is under way.
    pub(super) const fn is_ending(&self) -> bool {
        self.ending
    }

    /// How long what a program left behind is served.
    pub(super) const fn linger_max(&self) -> Duration {
        self.linger_max
    }

    /// What to do at `now`.
    pub(super) fn decide(&mut self, now: Instant, seen: Seen) -> Verdict {
        let alone = seen.clients == 0;
        let empty = alone && seen.families == 0 && seen.flows == 0;
        self.alone_since = since(self.alone_since, alone, now);
        self.empty_since = since(self.empty_since, empty, now);
        if self.ending && alone && seen.families == 0 {
            // TIME-WAIT is given up: the operator wants the end.
            return Verdict::End;
        }
        if !self.private {
            return Verdict::Stay(None);
        }
        let empty_until = self.empty_since.map(|since| since + self.linger);
        // Flows were reset at linger_max; whatever is left then is not waited for.
        let limit = self.linger_max.max(self.linger).saturating_add(GRACE);
        let alone_until = self.alone_since.map(|since| since + limit);
        let until = empty_until.into_iter().chain(alone_until).min();
        if until.is_some_and(|until| now >= until) {
            return Verdict::End;
        }
        Verdict::Stay(until)
    }
}

fn since(before: Option<Instant>, holds: bool, now: Instant) -> Option<Instant> {
    holds.then(|| before.unwrap_or(now))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVED: Seen = Seen {
        clients: 1,
        families: 1,
        flows: 3,
    };
    const LEFT: Seen = Seen {
        clients: 0,
        families: 1,
        flows: 3,
    };
    const EMPTY: Seen = Seen {
        clients: 0,
        families: 0,
        flows: 0,
    };

    fn life(private: bool) -> Life {
        Life::new(private, Duration::from_secs(5), Duration::from_secs(120))
    }

    fn at(seconds: u64) -> Instant {
        Instant::from_millis(seconds * 1_000)
    }

    #[test]
    fn a_private_host_ends_after_linger_without_client_and_flow() {
        let mut life = life(true);
        assert_eq!(life.decide(at(0), SERVED), Verdict::Stay(None));
        // It sleeps until the time is over or its lcore has news.
        let end = at(130) + GRACE;
        assert_eq!(life.decide(at(10), LEFT), Verdict::Stay(Some(end)));
        assert_eq!(life.decide(at(60), LEFT), Verdict::Stay(Some(end)));
        assert_eq!(life.decide(at(61), EMPTY), Verdict::Stay(Some(at(66))));
        assert_ne!(life.decide(at(65), EMPTY), Verdict::End);
        assert_eq!(life.decide(at(66), EMPTY), Verdict::End);
    }

    #[test]
    fn a_client_that_comes_back_starts_the_count_again() {
        let mut life = life(true);
        assert_ne!(life.decide(at(0), EMPTY), Verdict::End);
        assert_eq!(life.decide(at(4), SERVED), Verdict::Stay(None));
        assert_ne!(life.decide(at(6), EMPTY), Verdict::End);
        assert_ne!(life.decide(at(10), EMPTY), Verdict::End);
        assert_eq!(life.decide(at(11), EMPTY), Verdict::End);
    }

    #[test]
    fn flows_that_never_end_are_not_waited_for_for_ever() {
        let mut life = life(true);
        assert_ne!(life.decide(at(0), LEFT), Verdict::End);
        assert_ne!(life.decide(at(119), LEFT), Verdict::End);
        assert_eq!(life.decide(at(121), LEFT), Verdict::End);
    }

    #[test]
    fn a_private_host_with_clients_ignores_sigterm_and_a_system_one_obeys() {
        let mut private = life(true);
        assert!(!private.terminate(1));
        assert!(private.terminate(0));
        assert_eq!(private.decide(at(0), EMPTY), Verdict::End);
        let mut system = life(false);
        assert_eq!(system.decide(at(0), EMPTY), Verdict::Stay(None));
        assert_eq!(system.decide(at(1_000), EMPTY), Verdict::Stay(None));
        assert_eq!(system.decide(at(1_000), SERVED), Verdict::Stay(None));
        assert_eq!(system.decide(at(1_000), LEFT), Verdict::Stay(None));
        assert!(system.terminate(3));
        assert_ne!(system.decide(at(1_001), LEFT), Verdict::End);
        assert_eq!(system.decide(at(1_002), EMPTY), Verdict::End);
    }
}
