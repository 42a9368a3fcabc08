//! The lcore's clock: real time without the gaps in which nobody could have acted.

use core::time::Duration;

use crate::time::Instant;

/// A longer gap between two turns is a stopped process or machine (design D12).
const GAP: Duration = Duration::from_millis(500);

/// Maps real time to stack time.
#[derive(Debug)]
pub(super) struct Clock {
    real: Instant,
    stack: Instant,
}

impl Clock {
    /// A clock that is right at `real`.
    pub(super) const fn new(real: Instant) -> Self {
        Self { real, stack: real }
    }

    /// Stack time at the last advance.
    pub(super) const fn now(&self) -> Instant {
        self.stack
    }

    /// Advances to `real`, of which `slept` was planned sleep; says whether there was a gap. A gap advances stack time by
    /// 500 ms only, so that no timer of a peer that had no chance to answer expires.
    pub(super) fn advance(&mut self, real: Instant, slept: Duration) -> bool {
        let passed = real.since(self.real);
        self.real = self.real.max(real);
        let allowed = GAP.saturating_add(slept);
        let gap = passed > allowed;
        self.stack = self.stack + if gap { allowed } else { passed };
        gap
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_counts_half_a_second_and_a_planned_sleep_is_none() {
        let mut clock = Clock::new(Instant::from_millis(1_000));
        assert!(!clock.advance(Instant::from_millis(1_400), Duration::ZERO));
        assert_eq!(clock.now(), Instant::from_millis(1_400));
        assert!(clock.advance(Instant::from_millis(61_400), Duration::ZERO));
        assert_eq!(clock.now(), Instant::from_millis(1_900));
        assert!(!clock.advance(Instant::from_millis(121_400), Duration::from_secs(60)));
        assert_eq!(clock.now(), Instant::from_millis(61_900));
        assert!(!clock.advance(Instant::from_millis(3), Duration::ZERO));
        assert_eq!(clock.now(), Instant::from_millis(61_900));
    }
}
