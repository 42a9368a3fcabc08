//! How many events a wait hands out when the program's own threads drive the loop.
//!
//! What a program sends leaves with the first turn of its next wait. Were it given everything that is ready, both ends would
//! take turns: one works through a long list while the other one has nothing to do, falls asleep, and must be woken. So it gets
//! what it is likely to work through within a budget, as the last batches show; the rest stands first in the next wait.

use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;

use crate::channel::layout::EPOLLS;
use crate::time::Instant;

/// What is known of the program's work on one epoll's events. Several threads may wait there: then it is a guess, and
/// costs at most a wait.
#[derive(Debug)]
struct Pace {
    /// When the last batch was handed out, in nanoseconds; 0 = its time is not taken.
    handed_at: AtomicU64,
    /// Events in it.
    handed: AtomicU64,
    /// What an event takes the program, in nanoseconds, averaged.
    cost: AtomicU64,
}

impl Pace {
    const fn new() -> Self {
        Self {
            handed_at: AtomicU64::new(0),
            handed: AtomicU64::new(0),
            cost: AtomicU64::new(0),
        }
    }

    /// Notes that the program is back at `now`, and says how many events it gets at most.
    fn limit(&self, now: Instant, budget: Duration) -> usize {
        let budget = u64::try_from(budget.as_nanos()).unwrap_or(u64::MAX);
        let handed_at = self.handed_at.load(Ordering::Relaxed);
        let mut cost = self.cost.load(Ordering::Relaxed);
        if handed_at != 0 {
            let span = now.since(Instant::from_nanos(handed_at)).as_nanos();
            let handed = self.handed.load(Ordering::Relaxed).max(1);
            let span = u64::try_from(span).unwrap_or(u64::MAX) / handed;
            // A program that was taken off its CPU has not worked so long.
            let span = span.min(budget.saturating_mul(LONGEST));
            cost = cost - cost / WEIGHT + span / WEIGHT;
            self.cost.store(cost, Ordering::Relaxed);
            self.handed_at.store(0, Ordering::Relaxed);
        }
        let limit = budget.checked_div(cost).unwrap_or(u64::MAX);
        usize::try_from(limit).unwrap_or(usize::MAX).max(LEAST)
    }

    /// Notes that `count` events are handed out. `clock` is read only when that says something.
    fn hand(&self, count: usize, clock: impl FnOnce() -> Instant) {
        if count >= LEAST {
            self.handed.store(count as u64, Ordering::Relaxed);
            self.handed_at.store(clock().nanos(), Ordering::Relaxed);
        }
    }
}

/// Events that a wait hands out whatever they cost: fewer, and the wait costs more than it gains.
const LEAST: usize = 4;
/// A batch counts as so many budgets at most.
const LONGEST: u64 = 2;
/// The last batch counts as one of so many.
const WEIGHT: u64 = 8;

static PACES: [Pace; EPOLLS as usize] = [const { Pace::new() }; EPOLLS as usize];

/// How many events the wait on `epoll` that turned at `now` hands out at most.
pub(super) fn limit(epoll: u32, now: Instant, budget: Duration) -> usize {
    let pace = PACES.get(epoll as usize);
    pace.map_or(usize::MAX, |pace| pace.limit(now, budget))
}

/// The wait on `epoll` hands out `count` events.
pub(super) fn hand(epoll: u32, count: usize, clock: impl FnOnce() -> Instant) {
    if let Some(pace) = PACES.get(epoll as usize) {
        pace.hand(count, clock);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUDGET: Duration = Duration::from_micros(50);

    /// Hands out batches of `count` events on which the program works for `each`.
    fn work(pace: &Pace, batches: u32, count: usize, each: Duration) -> usize {
        let mut now = Instant::from_millis(1);
        let mut limit = pace.limit(now, BUDGET);
        for _ in 0..batches {
            let handed = count.min(limit);
            pace.hand(handed, || now);
            now = now + each * u32::try_from(handed).unwrap();
            limit = pace.limit(now, BUDGET);
        }
        limit
    }

    #[test]
    fn a_program_gets_what_it_works_through_within_a_budget() {
        let pace = Pace::new();
        assert_eq!(pace.limit(Instant::from_millis(1), BUDGET), usize::MAX);
        let quick = work(&pace, 100, 50, Duration::from_micros(1));
        assert!((45..=60).contains(&quick), "{quick}");
        let slow = work(&pace, 100, 50, Duration::from_micros(5));
        assert!((9..=12).contains(&slow), "{slow}");
        let quick = work(&pace, 100, 50, Duration::from_micros(1));
        assert!((45..=60).contains(&quick), "{quick}");
    }

    #[test]
    fn a_program_that_was_away_gets_a_few_and_soon_many_again() {
        let pace = Pace::new();
        work(&pace, 100, 50, Duration::from_micros(1));
        assert_eq!(work(&pace, 100, 8, Duration::from_secs(1)), LEAST);
        let quick = work(&pace, 100, 50, Duration::from_micros(1));
        assert!((45..=60).contains(&quick), "{quick}");
    }

    #[test]
    fn what_a_few_events_take_is_not_timed() {
        let pace = Pace::new();
        pace.hand(LEAST - 1, || unreachable!("the clock is not read"));
        assert_eq!(pace.limit(Instant::from_millis(1), BUDGET), usize::MAX);
    }
}
