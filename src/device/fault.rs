//! Simulated faults: a wire that loses, doubles, reorders, damages and delays frames, all from one seed.

use core::cmp::Ordering;
use core::time::Duration;
use std::collections::BinaryHeap;

use super::DeviceError;
use super::frame::{Frame, FramePool};
use crate::time::Instant;

/// Probabilities count in millionths.
pub const CERTAIN: u32 = 1_000_000;

/// Frames that a line holds at most.
pub const LINE_FRAMES: usize = 4096;

/// The longest simulated delay, in microseconds.
const DELAY_MAX_US: u32 = 10_000_000;

/// A reordered frame is passed by one to this many later frames.
const OVERTAKERS_MAX: u32 = 8;

/// A reordered frame that nobody overtakes arrives this much late.
const REORDER_HOLD: Duration = Duration::from_millis(1);

/// Frames that are held for reordering at once; a further one keeps its place.
const HELD_MAX: usize = 16;

/// What a line does to frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FaultConfig {
    /// A frame is dropped, in millionths.
    pub loss: u32,
    /// A frame arrives twice, in millionths.
    pub duplicate: u32,
    /// A frame is overtaken by later ones, in millionths.
    pub reorder: u32,
    /// One bit of a frame is inverted, in millionths.
    pub corrupt: u32,
    /// Shortest delay in microseconds.
    pub delay_min_us: u32,
    /// Longest delay in microseconds, at least the shortest. A delay that varies does not reorder.
    pub delay_max_us: u32,
    /// Where the random numbers start.
    pub seed: u64,
}

impl FaultConfig {
    /// The keys that [`FaultConfig::set`] knows.
    pub const KEYS: &'static str = "loss, dup, reorder, corrupt, delay_us, seed";

    /// A line without faults.
    #[must_use]
    pub const fn none() -> Self {
        Self {
            loss: 0,
            duplicate: 0,
            reorder: 0,
            corrupt: 0,
            delay_min_us: 0,
            delay_max_us: 0,
            seed: 0,
        }
    }

    /// Reads all of `args`: `loss`, `dup`, `reorder`, `corrupt` (0 to 1), `delay_us` (`50` or `20-80`), `seed`.
    ///
    /// # Errors
    /// A line that names the key and its range.
    pub fn parse(args: &[(String, String)]) -> Result<Self, DeviceError> {
        let mut config = Self::none();
        for (key, value) in args {
            if !config.set(key, value)? {
                return Err(DeviceError {
                    message: format!("unknown fault key {key}; known keys: {}", Self::KEYS),
                });
            }
        }
        Ok(config)
    }

    /// Takes over one key; false when it is not a fault key.
    ///
    /// # Errors
    /// A line that names the key and its range.
    pub fn set(&mut self, key: &str, value: &str) -> Result<bool, DeviceError> {
        match key {
            "loss" => self.loss = probability(key, value)?,
            "dup" => self.duplicate = probability(key, value)?,
            "reorder" => self.reorder = probability(key, value)?,
            "corrupt" => self.corrupt = probability(key, value)?,
            "delay_us" => (self.delay_min_us, self.delay_max_us) = delay(key, value)?,
            "seed" => {
                self.seed = value.parse().map_err(|_| DeviceError {
                    message: format!("{key}: {value} is not an integer from 0 to {}", u64::MAX),
                })?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Whether frames pass unchanged and at once.
    #[must_use]
    pub const fn is_clear(&self) -> bool {
        self.loss == 0
            && self.duplicate == 0
            && self.reorder == 0
            && self.corrupt == 0
            && self.delay_max_us == 0
    }
}

/// Reads a probability written in decimals, without rounding.
fn probability(key: &str, value: &str) -> Result<u32, DeviceError> {
    let wrong = || DeviceError {
        message: format!(
            "{key}: {value} is not a probability from 0 to 1 with at most six decimals"
        ),
    };
    let (whole, part) = value.split_once('.').unwrap_or((value, "0"));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || !digits(part) || part.len() > 6 {
        return Err(wrong());
    }
    let whole: u32 = whole.parse().map_err(|_| wrong())?;
    let part: u32 = format!("{part:0<6}").parse().map_err(|_| wrong())?;
    whole
        .checked_mul(CERTAIN)
        .and_then(|millionths| millionths.checked_add(part))
        .filter(|millionths| *millionths <= CERTAIN)
        .ok_or_else(wrong)
}

/// Reads `50` or `20-80`.
fn delay(key: &str, value: &str) -> Result<(u32, u32), DeviceError> {
    let (shortest, longest) = value.split_once('-').unwrap_or((value, value));
    match (shortest.parse::<u32>(), longest.parse::<u32>()) {
        (Ok(shortest), Ok(longest)) if shortest <= longest && longest <= DELAY_MAX_US => {
            Ok((shortest, longest))
        }
        _ => Err(DeviceError {
            message: format!(
                "{key}: {value} is neither microseconds from 0 to {DELAY_MAX_US} nor a range such as 20-80"
            ),
        }),
    }
}

/// What happened on a line. At all times
/// `pushed + duplicated == delivered + lost + overflowed + frames still on the line`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FaultCounts {
    /// Frames put on the line.
    pub pushed: u64,
    /// Frames taken off the line.
    pub delivered: u64,
    /// Frames lost by the dice.
    pub lost: u64,
    /// Copies made.
    pub duplicated: u64,
    /// Frames held back so that others pass.
    pub reordered: u64,
    /// Frames with an inverted bit.
    pub corrupted: u64,
    /// Frames dropped because the line was full.
    pub overflowed: u64,
}

/// A bounded queue of frames with due times. The same seed and the same calls give the same trace.
///
/// Each frame draws the same number of random numbers whatever happens to it, so raising one
/// probability leaves the other decisions where they were.
#[derive(Debug)]
pub struct FaultLine {
    config: FaultConfig,
    random: Random,
    pool: FramePool,
    waiting: BinaryHeap<Waiting>,
    held: Vec<Held>,
    /// Ties of due time go in order of arrival.
    arrivals: u64,
    last_due: Instant,
    counts: FaultCounts,
}

impl FaultLine {
    /// An empty line for frames of up to `frame_bytes`.
    #[must_use]
    pub fn new(config: FaultConfig, frame_bytes: usize) -> Self {
        Self {
            config,
            random: Random::new(config.seed),
            pool: FramePool::new(frame_bytes),
            waiting: BinaryHeap::new(),
            held: Vec::with_capacity(HELD_MAX),
            arrivals: 0,
            last_due: Instant::ZERO,
            counts: FaultCounts::default(),
        }
    }

    /// Puts a frame on the line at `now`.
    pub fn push(&mut self, now: Instant, mut frame: Frame) {
        let dice = Dice::roll(&mut self.random);
        self.counts.pushed += 1;
        self.release_overdue(now);
        if dice.loss < self.config.loss {
            self.counts.lost += 1;
            self.pool.recycle(frame);
            return;
        }
        if dice.corrupt < self.config.corrupt && invert_bit(&mut frame, dice.place) {
            self.counts.corrupted += 1;
        }
        let due = self.due(now, dice.delay);
        let copy = (dice.duplicate < self.config.duplicate).then(|| self.copy(&frame));
        if dice.reorder < self.config.reorder && self.held.len() < HELD_MAX && self.has_room() {
            self.counts.reordered += 1;
            self.held.push(Held {
                until: due + REORDER_HOLD,
                overtakers: 1 + scale(dice.passed, OVERTAKERS_MAX),
                frame,
            });
        } else {
            self.enqueue(due, frame);
            self.overtake(due);
        }
        if let Some(copy) = copy {
            self.counts.duplicated += 1;
            self.enqueue(due, copy);
        }
    }

    /// Takes the next frame off the line that is due at `now`. Give it back with [`FaultLine::recycle`].
    pub fn pop_due(&mut self, now: Instant) -> Option<Frame> {
        self.release_overdue(now);
        if self.waiting.peek()?.due > now {
            return None;
        }
        let next = self.waiting.pop()?;
        self.counts.delivered += 1;
        Some(next.frame)
    }

    /// When the next frame is due, or None when the line is empty.
    #[must_use]
    pub fn next_due(&self) -> Option<Instant> {
        let waiting = self.waiting.peek().map(|next| next.due);
        let held = self.held.iter().map(|held| held.until);
        held.chain(waiting).min()
    }

    /// Frames on the line.
    #[must_use]
    pub fn len(&self) -> usize {
        self.waiting.len() + self.held.len()
    }

    /// Whether no frame is on the line.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What the line does.
    #[must_use]
    pub fn config(&self) -> &FaultConfig {
        &self.config
    }

    /// What happened so far.
    #[must_use]
    pub fn counts(&self) -> FaultCounts {
        self.counts
    }

    /// An empty frame to fill and push.
    #[must_use]
    pub fn take(&mut self) -> Frame {
        self.pool.take()
    }

    /// An empty frame if one was returned.
    #[must_use]
    pub fn take_returned(&mut self) -> Option<Frame> {
        self.pool.take_returned()
    }

    /// Takes back a frame that was popped.
    pub fn recycle(&mut self, frame: Frame) {
        self.pool.recycle(frame);
    }

    fn has_room(&self) -> bool {
        self.len() < LINE_FRAMES
    }

    fn copy(&mut self, frame: &Frame) -> Frame {
        let mut copy = self.pool.take();
        // Frames of one line have one size, but a caller may push a larger one: it is cut.
        let bytes = frame.bytes();
        let fits = bytes.get(..copy.capacity()).unwrap_or(bytes);
        let _ = copy.copy_from(fits);
        copy
    }

    /// A delay that varies keeps the order, as a queue does.
    fn due(&mut self, now: Instant, roll: u32) -> Instant {
        let spread = self
            .config
            .delay_max_us
            .saturating_sub(self.config.delay_min_us);
        let micros = self.config.delay_min_us + scale(roll, spread.saturating_add(1));
        let due = now + Duration::from_micros(u64::from(micros));
        self.last_due = self.last_due.max(due);
        self.last_due
    }

    fn enqueue(&mut self, due: Instant, frame: Frame) {
        if !self.has_room() {
            self.counts.overflowed += 1;
            self.pool.recycle(frame);
            return;
        }
        let arrival = self.arrivals;
        self.arrivals += 1;
        self.waiting.push(Waiting {
            due,
            arrival,
            frame,
        });
    }

    /// A frame due at `due` passed all held ones; those that were passed often enough follow it.
    fn overtake(&mut self, due: Instant) {
        for held in &mut self.held {
            held.overtakers = held.overtakers.saturating_sub(1);
        }
        while let Some(index) = self.held.iter().position(|held| held.overtakers == 0) {
            let released = self.held.remove(index);
            self.enqueue(due, released.frame);
            // It passes those that have been held for longer.
            for held in self.held.iter_mut().take(index) {
                held.overtakers = held.overtakers.saturating_sub(1);
            }
        }
    }

    /// Called before anything else happens at `now`, so that the trace does not depend on how often
    /// the line is polled.
    fn release_overdue(&mut self, now: Instant) {
        while let Some(index) = self.held.iter().position(|held| held.until <= now) {
            let held = self.held.remove(index);
            self.enqueue(held.until, held.frame);
        }
    }
}

/// Inverts one bit that `roll` chooses; false for an empty frame.
fn invert_bit(frame: &mut Frame, roll: u64) -> bool {
    let bytes = frame.bytes_mut();
    let Some(bits) = u64::try_from(bytes.len()).ok().filter(|len| *len > 0) else {
        return false;
    };
    let place = usize::try_from((roll >> 3) % bits).unwrap_or(0);
    match bytes.get_mut(place) {
        Some(byte) => {
            *byte ^= 1 << (roll & 7);
            true
        }
        None => false,
    }
}

/// Maps a roll from 0 to one million onto 0 to `sides` - 1.
fn scale(roll: u32, sides: u32) -> u32 {
    let side = u64::from(roll) * u64::from(sides) / u64::from(CERTAIN);
    u32::try_from(side).unwrap_or(0)
}

#[derive(Debug)]
struct Waiting {
    due: Instant,
    arrival: u64,
    frame: Frame,
}

#[derive(Debug)]
struct Held {
    until: Instant,
    overtakers: u32,
    frame: Frame,
}

impl Waiting {
    fn key(&self) -> (Instant, u64) {
        (self.due, self.arrival)
    }
}

impl PartialEq for Waiting {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Waiting {}

impl PartialOrd for Waiting {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Waiting {
    /// Reversed, because the heap gives its greatest first.
    fn cmp(&self, other: &Self) -> Ordering {
        other.key().cmp(&self.key())
    }
}

/// The random numbers of one frame; all but `place` from 0 to one million.
struct Dice {
    loss: u32,
    duplicate: u32,
    reorder: u32,
    corrupt: u32,
    delay: u32,
    passed: u32,
    place: u64,
}

impl Dice {
    fn roll(random: &mut Random) -> Self {
        Self {
            loss: random.millionth(),
            duplicate: random.millionth(),
            reorder: random.millionth(),
            corrupt: random.millionth(),
            delay: random.millionth(),
            passed: random.millionth(),
            place: random.next(),
        }
    }
}

/// SplitMix64 (Steele, Lea, Flood 2014): any seed will do, and it is not for secrets.
#[derive(Debug)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// 0 to 999 999, each equally likely (to within 2^-44).
    fn millionth(&mut self) -> u32 {
        u32::try_from(self.next() % u64::from(CERTAIN)).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests;
