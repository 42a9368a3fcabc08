//! Time as a value: below the loop it is an argument, and nobody reads a clock.

use core::ops::{Add, Sub};
use core::time::Duration;

/// A point on the stack's monotonic clock, in nanoseconds since an arbitrary start.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Instant {
    nanos: u64,
}

impl Instant {
    /// The start of the clock.
    pub const ZERO: Self = Self { nanos: 0 };

    /// Makes an instant from nanoseconds since the start of the clock.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self { nanos }
    }

    /// Makes an instant from microseconds since the start of the clock.
    #[must_use]
    pub const fn from_micros(micros: u64) -> Self {
        Self {
            nanos: micros.saturating_mul(1_000),
        }
    }

    /// Makes an instant from milliseconds since the start of the clock.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Self {
            nanos: millis.saturating_mul(1_000_000),
        }
    }

    /// Nanoseconds since the start of the clock.
    #[must_use]
    pub const fn nanos(self) -> u64 {
        self.nanos
    }

    /// Whole microseconds since the start of the clock.
    #[must_use]
    pub const fn micros(self) -> u64 {
        self.nanos / 1_000
    }

    /// Whole milliseconds since the start of the clock.
    #[must_use]
    pub const fn millis(self) -> u64 {
        self.nanos / 1_000_000
    }

    /// The time from `earlier` to `self`, zero when `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.nanos.saturating_sub(earlier.nanos))
    }
}

impl Add<Duration> for Instant {
    type Output = Self;

    /// Adds a span; saturates at the end of the clock (584 years).
    fn add(self, span: Duration) -> Self {
        let nanos = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        Self {
            nanos: self.nanos.saturating_add(nanos),
        }
    }
}

impl Sub for Instant {
    type Output = Duration;

    /// The same as [`Instant::since`].
    fn sub(self, earlier: Self) -> Duration {
        self.since(earlier)
    }
}

/// The earlier of two times, of which each may never come.
///
/// For what happens for each segment: `min` over an array of options builds an iterator in memory and moves it.
#[must_use]
pub fn sooner(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

/// Reads CLOCK_MONOTONIC. Only a loop, a wait of the program side or a tool calls this.
#[must_use]
pub fn monotonic() -> Instant {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let secs = u64::try_from(now.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(now.tv_nsec).unwrap_or(0);
    Instant::from_nanos(secs.saturating_mul(1_000_000_000).saturating_add(nanos))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn never_is_later_than_any_time() {
        let (early, late) = (Instant::from_millis(1), Instant::from_millis(3));
        assert_eq!(sooner(Some(late), Some(early)), Some(early));
        assert_eq!(sooner(None, Some(late)), Some(late));
        assert_eq!(sooner(Some(late), None), Some(late));
        assert_eq!(sooner(None, None), None);
    }

    #[test]
    fn a_span_never_goes_below_zero() {
        let early = Instant::from_millis(1);
        let late = Instant::from_millis(3);
        assert_eq!(late.since(early), Duration::from_millis(2));
        assert_eq!(early.since(late), Duration::ZERO);
    }

    #[test]
    fn the_monotonic_clock_does_not_go_back() {
        let first = monotonic();
        assert!(monotonic() >= first);
    }
}
