//! How long things take, measured while somebody asks.
//!
//! Three times: a turn of the loop that did something; from the turn that fetched a frame to the program's read of its
//! bytes; from a program's write to the port. The last cannot be seen from here, so its bound is taken: since the look at
//! the doorbells before the one that found it. No clock is read that the loop does not read anyway.

use core::time::Duration;

use super::object::Token;
use crate::time::Instant;

/// Counts by size: four buckets for each power of two of nanoseconds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Histogram {
    counts: Box<[u64; BUCKETS]>,
}

/// Up to 2^40 ns, which is 18 minutes.
const BUCKETS: usize = 4 * 40;

impl Default for Histogram {
    fn default() -> Self {
        Self {
            counts: Box::new([0; BUCKETS]),
        }
    }
}

impl Histogram {
    /// Counts one.
    pub fn record(&mut self, span: Duration) {
        let nanos = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX).max(4);
        let power = nanos.ilog2();
        // The two bits behind the first one.
        let quarter = (nanos >> (power - 2)) & 3;
        let place = (power as usize) * 4 + usize::try_from(quarter).unwrap_or(0);
        if let Some(count) = self.counts.get_mut(place.min(BUCKETS - 1)) {
            *count += 1;
        }
    }

    /// Adds what was counted elsewhere.
    pub fn add(&mut self, other: &Self) {
        for (sum, more) in self.counts.iter_mut().zip(&*other.counts) {
            *sum += more;
        }
    }

    /// Buckets that hold something: the first number of nanoseconds beyond it, and its count.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.counts
            .iter()
            .enumerate()
            .filter(|(_, count)| **count > 0)
            .map(|(place, count)| {
                let (power, quarter) = (place / 4, place as u64 % 4);
                ((5 + quarter) << power >> 2, *count)
            })
    }
}

/// What is measured.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Latencies {
    /// Turns that did something.
    pub turn: Histogram,
    /// From the fetch of a frame to the program's read; a sample of the flows.
    pub rx_to_app: Histogram,
    /// From a program's write to the port, at most.
    pub app_to_tx: Histogram,
}

impl Latencies {
    /// Adds what another lcore has measured.
    pub fn add(&mut self, other: &Self) {
        self.turn.add(&other.turn);
        self.rx_to_app.add(&other.rx_to_app);
        self.app_to_tx.add(&other.app_to_tx);
    }
}

/// Bytes that a program has not read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pending {
    pub(super) token: Token,
    /// Read when the program's position reaches this.
    pub(super) position: u64,
    since: Instant,
}

/// Nothing while nobody asks.
#[derive(Debug, Default)]
pub(super) struct Latency(Option<Box<Meter>>);

#[derive(Debug)]
struct Meter {
    until: Instant,
    measured: Latencies,
    pending: Vec<Pending>,
    /// The start of this turn, and of the one before unless the lcore slept between.
    turn: Instant,
    before: Option<Instant>,
    /// This turn did something; took bytes from a program.
    worked: bool,
    pulled: bool,
}

/// Measuring ends when nobody has asked for so long.
const KEEP: Duration = Duration::from_secs(10);
/// Flows that are watched at a time.
const SAMPLE: usize = 16;
/// Bytes that are not read within this are forgotten.
const FORGET: Duration = Duration::from_secs(1);

impl Latency {
    /// Measures from now on; what was measured so far.
    pub(super) fn ask(&mut self, now: Instant) -> Latencies {
        let meter = self.0.get_or_insert_with(|| {
            Box::new(Meter {
                until: now,
                measured: Latencies::default(),
                pending: Vec::with_capacity(SAMPLE),
                turn: now,
                before: None,
                worked: false,
                pulled: false,
            })
        });
        meter.until = now + KEEP;
        meter.measured.clone()
    }

    /// Whether bytes are watched: then the lcore polls on.
    pub(super) fn is_watching(&self) -> bool {
        self.0
            .as_ref()
            .is_some_and(|meter| !meter.pending.is_empty())
    }

    /// A turn begins at real time `now`; `slept` says whether the lcore slept before it. `position` tells how far a program
    /// has read, None when the object is another's by now.
    pub(super) fn begin(
        &mut self,
        now: Instant,
        slept: bool,
        position: impl Fn(Token) -> Option<u64>,
    ) {
        let Some(meter) = &mut self.0 else {
            return;
        };
        if meter.until < now {
            self.0 = None;
            return;
        }
        let length = now.since(meter.turn);
        if !slept {
            if meter.worked {
                meter.measured.turn.record(length);
            }
            if meter.pulled {
                let since = meter.before.unwrap_or(meter.turn);
                meter.measured.app_to_tx.record(now.since(since));
            }
        }
        meter.before = (!slept).then_some(meter.turn);
        meter.turn = now;
        (meter.worked, meter.pulled) = (false, false);
        let measured = &mut meter.measured;
        meter
            .pending
            .retain(|pending| match position(pending.token) {
                Some(position) if position >= pending.position => {
                    measured.rx_to_app.record(now.since(pending.since));
                    false
                }
                Some(_) => now.since(pending.since) < FORGET,
                None => false,
            });
    }

    /// The turn did something.
    pub(super) fn worked(&mut self) {
        if let Some(meter) = &mut self.0 {
            meter.worked = true;
        }
    }

    /// Bytes were taken from a program's ring.
    pub(super) fn pulled(&mut self) {
        if let Some(meter) = &mut self.0 {
            meter.pulled = true;
        }
    }

    /// Bytes up to stream position `position` can be read.
    pub(super) fn arrived(&mut self, token: Token, position: u64) {
        if let Some(meter) = &mut self.0
            && meter.pending.len() < SAMPLE
            && meter.pending.iter().all(|pending| pending.token != token)
        {
            meter.pending.push(Pending {
                token,
                position,
                since: meter.turn,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stack::Owner;

    #[test]
    fn a_bucket_is_at_most_a_quarter_wide() {
        let mut last = 0;
        for nanos in [
            1_u64,
            4,
            5,
            99,
            1_000,
            1_023,
            1_024,
            1_279,
            1_280,
            65_537,
            1 << 39,
            u64::MAX,
        ] {
            let mut histogram = Histogram::default();
            histogram.record(Duration::from_nanos(nanos));
            let (beyond, count) = histogram.buckets().next().unwrap();
            assert_eq!(count, 1);
            assert!(beyond >= last, "{nanos}");
            last = beyond;
            if (4..1 << 39).contains(&nanos) {
                assert!(
                    beyond > nanos && beyond <= nanos + nanos / 4 + 1,
                    "{nanos} {beyond}"
                );
            }
        }
    }

    #[test]
    fn spans_are_those_of_the_turns() {
        let at = Instant::from_micros;
        let token = Token {
            owner: Owner(1),
            object: 7,
        };
        let read = core::cell::Cell::new(0);
        let position = |_: Token| Some(read.get());
        let only = |histogram: &Histogram| {
            histogram
                .buckets()
                .map(|(beyond, _)| beyond)
                .collect::<Vec<_>>()
        };
        let mut latency = Latency::default();
        latency.begin(at(0), false, position);
        latency.arrived(token, 5);
        assert!(!latency.is_watching(), "nobody asks");
        latency.ask(at(1));
        latency.begin(at(10), false, position);
        latency.arrived(token, 5);
        latency.worked();
        latency.begin(at(20), false, position);
        read.set(5);
        latency.pulled();
        latency.begin(at(30), false, position);
        assert!(!latency.is_watching());
        let measured = latency.ask(at(30));
        assert_eq!(only(&measured.turn), [10_240]);
        assert_eq!(only(&measured.rx_to_app), [20_480]);
        // Since the look before the one that found it.
        assert_eq!(only(&measured.app_to_tx), [20_480]);
        // What is never read is forgotten, and so is everything when nobody asks any more.
        latency.arrived(token, 50);
        latency.begin(at(1_100_000), true, position);
        assert!(!latency.is_watching());
        latency.begin(at(20_000_000), false, position);
        assert_eq!(latency.ask(at(20_000_001)), Latencies::default());
    }
}
