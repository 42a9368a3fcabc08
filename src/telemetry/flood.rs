//! Floods of one line: what a place in the code says too often is counted, and told as one number.
//!
//! Each place that writes lines has a [`Site`]. Of its lines [`BURST`] in [`WINDOW`] are written; the others are held back.
//! The next line that is written says how many there were; [`Flood::drain`] tells it also when no line follows. Only atomics
//! and no wait: a signal handler may write a line.

use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use core::time::Duration;
use std::sync::OnceLock;

use crate::time::Instant;

/// Lines of one place that are written in a [`WINDOW`]. More than the faults of a config, which come at once.
pub const BURST: u64 = 64;
/// How long a place is held back.
pub const WINDOW: Duration = Duration::from_secs(10);

/// A place in the code that writes lines; a static of it stands in each of the macros.
#[derive(Debug)]
pub struct Site {
    /// The line before its values are filled in.
    line: &'static str,
    /// When the window began, in nanoseconds; 0 = never.
    began: AtomicU64,
    /// Lines in this window.
    count: AtomicU64,
    /// Lines that were held back and not told of yet.
    held: AtomicU64,
    /// It is in the list of [`Flood`].
    listed: AtomicBool,
}

/// What becomes of a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Passage {
    /// It is written, and says that so many before it were not.
    Written {
        /// How many.
        held: u64,
    },
    /// It is held back.
    Held,
}

impl Site {
    /// A place that has said nothing yet.
    #[must_use]
    pub const fn new(line: &'static str) -> Self {
        Self {
            line,
            began: AtomicU64::new(0),
            count: AtomicU64::new(0),
            held: AtomicU64::new(0),
            listed: AtomicBool::new(false),
        }
    }

    /// Whether a line may be written now. Threads that ask at once may each have one more than is meant.
    pub fn pass(&self, now: Instant) -> Passage {
        // Relaxed throughout: these are counts, and nothing else is published by them.
        if self.is_over(now) {
            self.began.store(now.nanos().max(1), Ordering::Relaxed);
            self.count.store(0, Ordering::Relaxed);
        }
        if self.count.fetch_add(1, Ordering::Relaxed) < BURST {
            let held = self.held.swap(0, Ordering::Relaxed);
            return Passage::Written { held };
        }
        self.held.fetch_add(1, Ordering::Relaxed);
        Passage::Held
    }

    /// Whether the window is over, or has never begun.
    fn is_over(&self, now: Instant) -> bool {
        let began = self.began.load(Ordering::Relaxed);
        began == 0 || now.since(Instant::from_nanos(began)) >= WINDOW
    }
}

/// Places that are listed at most; those beyond tell with their next line only.
const PLACES: usize = 256;

/// The places that have held lines back.
#[derive(Debug)]
pub struct Flood {
    used: AtomicUsize,
    /// Each is set by the one thread that took its number.
    places: [OnceLock<&'static Site>; PLACES],
}

/// Those of this process.
pub static FLOOD: Flood = Flood::new();

impl Flood {
    const fn new() -> Self {
        Self {
            used: AtomicUsize::new(0),
            places: [const { OnceLock::new() }; PLACES],
        }
    }

    /// Lists a place that holds lines back.
    pub fn add(&self, site: &'static Site) {
        if !site.listed.swap(true, Ordering::Relaxed) {
            let place = self.used.fetch_add(1, Ordering::Relaxed);
            if let Some(place) = self.places.get(place) {
                // Nobody else has this number.
                let _ = place.set(site);
            }
        }
    }

    /// Tells what was held back by places whose window is over, or by all of them. True: some still hold lines back.
    pub fn drain(&self, now: Option<Instant>, tell: &mut dyn FnMut(&'static str, u64)) -> bool {
        let mut rest = false;
        for site in self.places.iter().filter_map(OnceLock::get) {
            if now.is_none_or(|now| site.is_over(now)) {
                let held = site.held.swap(0, Ordering::Relaxed);
                if held > 0 {
                    tell(site.line, held);
                }
            } else {
                rest |= site.held.load(Ordering::Relaxed) > 0;
            }
        }
        rest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_held_back_counted_and_told() {
        static SITE: Site = Site::new("event=flood number={number}");
        let flood = Flood::new();
        let second = |second: u64| Instant::from_millis(second * 1_000);
        for _ in 0..BURST {
            assert_eq!(SITE.pass(second(5)), Passage::Written { held: 0 });
        }
        for _ in 0..1_000 {
            assert_eq!(SITE.pass(second(14)), Passage::Held);
            flood.add(&SITE);
        }
        let mut told = Vec::new();
        let mut drain = |now| flood.drain(now, &mut |line, count| told.push((line, count)));
        assert!(drain(Some(second(14))), "its window runs");
        assert!(!drain(Some(second(15))));
        assert!(!drain(Some(second(16))), "told once");
        assert_eq!(told, [("event=flood number={number}", 1_000)]);
        // A new window, whose first line has nothing to tell any more.
        assert_eq!(SITE.pass(second(15)), Passage::Written { held: 0 });
    }

    #[test]
    fn the_next_line_says_what_was_held_back_before_it() {
        static SITE: Site = Site::new("event=flood");
        for _ in 0..BURST + 7 {
            SITE.pass(Instant::from_millis(1));
        }
        let later = Instant::from_millis(1) + WINDOW;
        assert_eq!(SITE.pass(later), Passage::Written { held: 7 });
        assert_eq!(SITE.pass(later), Passage::Written { held: 0 });
    }
}
