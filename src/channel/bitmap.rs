//! A two-level bitmap over object indices: doorbells, ready maps, held objects, taken indices.
//!
//! Leaf words first, then one summary bit per leaf word. Setting a bit that is set costs one atomic
//! operation; finding the set bits costs one word per 4 096 objects.

use core::ops::Range;

use super::sync::{AtomicU64, Ordering};

/// A view of a two-level bitmap.
#[derive(Clone, Copy, Debug)]
pub struct Bitmap<'a> {
    leaves: &'a [AtomicU64],
    summary: &'a [AtomicU64],
}

impl<'a> Bitmap<'a> {
    /// Sees `words` (leaf words, then summary words) as a bitmap of `leaves` leaf words.
    ///
    /// Returns None when there are too few summary words.
    #[must_use]
    pub fn new(words: &'a [AtomicU64], leaves: usize) -> Option<Self> {
        let (leaves, summary) = words.split_at_checked(leaves)?;
        (summary.len() >= leaves.len().div_ceil(64)).then_some(Self { leaves, summary })
    }

    /// Indices that fit.
    #[must_use]
    pub fn len(&self) -> u32 {
        u32::try_from(self.leaves.len() * 64).unwrap_or(u32::MAX)
    }

    /// Whether no index fits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.leaves.is_empty()
    }

    /// Sets the bit of `index` (ignored when out of range); says whether it was clear.
    ///
    /// SeqCst: the writes before it are visible to who takes the bit, and it takes part in the sleep protocol.
    pub fn set(&self, index: u32) -> bool {
        let leaf = index as usize / 64;
        let Some(word) = self.leaves.get(leaf) else {
            return false;
        };
        let bit = 1 << (index % 64);
        if word.fetch_or(bit, Ordering::SeqCst) & bit != 0 {
            return false;
        }
        let hint = 1 << (leaf % 64);
        if let Some(summary) = self.summary.get(leaf / 64)
            && summary.load(Ordering::SeqCst) & hint == 0
        {
            summary.fetch_or(hint, Ordering::SeqCst);
        }
        true
    }

    /// Clears the bit of `index`; says whether it was set. The summary bit stays (it is a hint).
    pub fn clear(&self, index: u32) -> bool {
        let Some(word) = self.leaves.get(index as usize / 64) else {
            return false;
        };
        let bit = 1 << (index % 64);
        word.fetch_and(!bit, Ordering::SeqCst) & bit != 0
    }

    /// Whether the bit of `index` is set.
    #[must_use]
    pub fn has(&self, index: u32) -> bool {
        self.leaves
            .get(index as usize / 64)
            .is_some_and(|word| word.load(Ordering::SeqCst) & (1 << (index % 64)) != 0)
    }

    /// Whether some bit may be set (a summary bit is).
    #[must_use]
    pub fn may_have_any(&self) -> bool {
        // Eight words a look: a branch each costs more than the loads.
        self.summary.chunks(8).any(|words| {
            words
                .iter()
                .fold(0, |all, word| all | word.load(Ordering::SeqCst))
                != 0
        })
    }

    /// Takes set bits out and visits them until `visit` says false (the bit it refused is set again).
    ///
    /// Begins at `from` and goes round once: a bit that `visit` sets again is not met twice. The one taker of the
    /// doorbells is the lcore; a ready map has several, each bit goes to one of them.
    pub fn take(&self, from: u32, mut visit: impl FnMut(u32) -> bool) {
        let words = self.summary.len();
        if words == 0 {
            return;
        }
        let from = if from < self.len() { from } else { 0 };
        // The leaf at `from` is visited in two parts: what is behind `from` first, what is before it last.
        let split = Split {
            leaf: from as usize / 64,
            before: (1 << (from % 64)) - 1,
        };
        if !self.take_leaf(split.leaf, !split.before, &mut visit) {
            return;
        }
        let next = split.leaf + 1;
        let round = |at: usize| if at < words { at } else { at - words };
        let start = round(next / 64);
        for step in 0..=words {
            let at = round(start + step);
            // The first word is visited twice as well.
            let (low, high) = match step {
                0 => (next % 64, 64),
                _ if step == words => (0, next % 64),
                _ => (0, 64),
            };
            if !self.take_word(at, span(low, high), &split, &mut visit) {
                return;
            }
        }
    }

    fn take_word(
        &self,
        at: usize,
        window: u64,
        split: &Split,
        visit: &mut impl FnMut(u32) -> bool,
    ) -> bool {
        let Some(summary) = self.summary.get(at) else {
            return true;
        };
        if summary.load(Ordering::SeqCst) & window == 0 {
            return true;
        }
        // Cleared before the leaves are looked at: who sets a leaf bit later sets it again.
        let mut hints = summary.fetch_and(!window, Ordering::SeqCst) & window;
        while hints != 0 {
            let bit = hints & hints.wrapping_neg();
            let leaf = at * 64 + hints.trailing_zeros() as usize;
            let part = if leaf == split.leaf {
                split.before
            } else {
                u64::MAX
            };
            if !self.take_leaf(leaf, part, visit) {
                summary.fetch_or(hints, Ordering::SeqCst);
                return false;
            }
            if part != u64::MAX && self.leaf(leaf) != 0 {
                summary.fetch_or(bit, Ordering::SeqCst);
            }
            hints &= !bit;
        }
        true
    }

    fn leaf(&self, leaf: usize) -> u64 {
        self.leaves
            .get(leaf)
            .map_or(0, |word| word.load(Ordering::SeqCst))
    }

    /// Takes the bits of `part` out of a leaf. Its summary bit is the caller's.
    fn take_leaf(&self, leaf: usize, part: u64, visit: &mut impl FnMut(u32) -> bool) -> bool {
        let Some(word) = self.leaves.get(leaf) else {
            return true;
        };
        if part == 0 || word.load(Ordering::SeqCst) & part == 0 {
            return true;
        }
        let mut bits = word.fetch_and(!part, Ordering::SeqCst) & part;
        while bits != 0 {
            let bit = bits.trailing_zeros();
            let index = u32::try_from(leaf * 64).unwrap_or(u32::MAX) + bit;
            if !visit(index) {
                word.fetch_or(bits, Ordering::SeqCst);
                return false;
            }
            bits &= bits - 1;
        }
        true
    }

    /// Sets the summary bit of every leaf that has bits: repairs what a killed setter left undone.
    pub fn repair(&self) {
        for (leaf, word) in self.leaves.iter().enumerate() {
            if word.load(Ordering::SeqCst) != 0
                && let Some(summary) = self.summary.get(leaf / 64)
            {
                summary.fetch_or(1 << (leaf % 64), Ordering::SeqCst);
            }
        }
    }

    /// Finds a clear bit in a range of whole leaf words, sets it and returns its index. Starts `hint` bits from its start.
    pub fn claim(&self, hint: u32, range: Range<u32>) -> Option<u32> {
        let first = range.start as usize / 64;
        let leaves = (range.end as usize / 64)
            .min(self.leaves.len())
            .saturating_sub(first);
        let start = if leaves == 0 {
            0
        } else {
            hint as usize / 64 % leaves
        };
        for step in 0..leaves {
            let leaf = first + (start + step) % leaves;
            let Some(word) = self.leaves.get(leaf) else {
                continue;
            };
            let mut seen = word.load(Ordering::SeqCst);
            while seen != u64::MAX {
                let bit = seen.trailing_ones();
                let before = word.fetch_or(1 << bit, Ordering::SeqCst);
                if before & (1 << bit) == 0 {
                    return u32::try_from(leaf * 64).ok().map(|base| base + bit);
                }
                seen = before;
            }
        }
        None
    }

    /// Copies all bits into `other` (a fork gives the child what the parent holds).
    pub fn copy_to(&self, other: &Bitmap<'_>) {
        for (from, to) in self.leaves.iter().zip(other.leaves) {
            to.store(from.load(Ordering::SeqCst), Ordering::SeqCst);
        }
        other.repair();
    }

    /// Visits the bits that are set at this moment, in order.
    pub fn for_each(&self, mut visit: impl FnMut(u32)) {
        for (base, word) in (0u32..).step_by(64).zip(self.leaves) {
            let mut bits = word.load(Ordering::SeqCst);
            while bits != 0 {
                visit(base + bits.trailing_zeros());
                bits &= bits - 1;
            }
        }
    }

    /// Whether `is_it` says so of some bit that is set at this moment. Takes nothing; looks where the summary says.
    pub fn any(&self, mut is_it: impl FnMut(u32) -> bool) -> bool {
        for (first, summary) in (0..).step_by(64).zip(self.summary) {
            let mut hints = summary.load(Ordering::SeqCst);
            while hints != 0 {
                let leaf = first + hints.trailing_zeros() as usize;
                hints &= hints - 1;
                let mut bits = self.leaf(leaf);
                while bits != 0 {
                    let index = u32::try_from(leaf * 64).unwrap_or(u32::MAX);
                    if is_it(index + bits.trailing_zeros()) {
                        return true;
                    }
                    bits &= bits - 1;
                }
            }
        }
        false
    }

    /// Clears everything.
    pub fn clear_all(&self) {
        for word in self.leaves.iter().chain(self.summary) {
            word.store(0, Ordering::SeqCst);
        }
    }
}

/// Where a round of [`Bitmap::take`] began.
struct Split {
    leaf: usize,
    /// The bits of the leaf that come last.
    before: u64,
}

/// Bits `low` to `high - 1`.
fn span(low: usize, high: usize) -> u64 {
    let below = |n: usize| if n >= 64 { u64::MAX } else { (1u64 << n) - 1 };
    below(high) & !below(low)
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    fn words(leaves: usize) -> Vec<AtomicU64> {
        (0..leaves + leaves.div_ceil(64))
            .map(|_| AtomicU64::new(0))
            .collect()
    }

    #[test]
    fn taking_goes_round_from_the_cursor_and_puts_back_what_was_refused() {
        let memory = words(128);
        let map = Bitmap::new(&memory, 128).unwrap();
        for index in [5, 70, 4_095, 4_096, 8_191] {
            assert!(map.set(index));
            assert!(!map.set(index));
        }
        let mut seen = Vec::new();
        map.take(4_000, |index| {
            seen.push(index);
            seen.len() < 4
        });
        assert_eq!(seen, [4_095, 4_096, 8_191, 5]);
        let mut rest = Vec::new();
        map.take(0, |index| {
            rest.push(index);
            true
        });
        assert_eq!(rest, [5, 70]);
        assert!(!map.may_have_any());
    }

    #[test]
    fn neighbours_of_one_word_take_turns() {
        let memory = words(65);
        let map = Bitmap::new(&memory, 64).unwrap();
        let mut cursor = 0;
        let mut seen = Vec::new();
        for _ in 0..6 {
            for index in [3, 4, 4_095] {
                map.set(index);
            }
            map.take(cursor, |index| {
                if cursor == u32::MAX {
                    return false;
                }
                seen.push(index);
                cursor = u32::MAX;
                true
            });
            cursor = seen.last().unwrap() + 1;
        }
        assert_eq!(seen, [3, 4, 4_095, 3, 4, 4_095]);
    }

    #[test]
    fn a_bit_that_is_set_again_is_met_once_a_round() {
        let memory = words(65);
        let map = Bitmap::new(&memory, 64).unwrap();
        for from in [0, 1, 5, 6, 63, 64, 70, 4_095, 9_999] {
            for index in [0, 5, 64, 4_095] {
                map.set(index);
            }
            let mut seen = Vec::new();
            map.take(from, |index| {
                seen.push(index);
                map.set(index);
                true
            });
            seen.sort_unstable();
            assert_eq!(seen, [0, 5, 64, 4_095], "from {from}");
            assert!(map.may_have_any());
        }
        let mut rest = 0;
        map.take(77, |_| {
            rest += 1;
            true
        });
        assert_eq!(rest, 4);
        assert!(!map.may_have_any());
    }

    #[test]
    fn claims_are_unique_until_the_end() {
        let memory = words(2);
        let map = Bitmap::new(&memory, 2).unwrap();
        let mut claimed: Vec<_> = (0..64).map(|_| map.claim(100, 0..64).unwrap()).collect();
        claimed.sort_unstable();
        assert_eq!(claimed, (0..64).collect::<Vec<_>>());
        assert_eq!(map.claim(0, 0..64), None);
        assert_eq!(map.claim(3, 64..128), Some(64));
        assert_eq!(map.claim(0, 128..128), None);
    }

    #[test]
    fn a_setter_killed_half_way_is_repaired() {
        let memory = words(64);
        let map = Bitmap::new(&memory, 64).unwrap();
        memory[3].store(1, Ordering::SeqCst);
        map.take(0, |_| panic!("the summary does not know it yet"));
        map.repair();
        let mut seen = 0;
        map.take(0, |index| {
            seen = index;
            true
        });
        assert_eq!(seen, 192);
    }
}
