//! A set of up to 256 small numbers in four words: epolls or slots.

use super::sync::{AtomicU64, Ordering};

/// Words of a mask: 256 numbers, or 64 where loom follows every atomic.
const WORDS: usize = if cfg!(loom) { 1 } else { 4 };

/// A set of numbers 0 to 255. All operations are SeqCst: they take part in the sleep protocol
/// ([`crate::readiness`]).
#[repr(C)]
#[derive(Debug, Default)]
pub struct Mask {
    words: [AtomicU64; WORDS],
}

impl Mask {
    fn place(&self, number: u32) -> Option<(&AtomicU64, u64)> {
        self.words
            .get(number as usize / 64)
            .map(|word| (word, 1 << (number % 64)))
    }

    /// Adds `number` (ignored above 255); says whether it was absent.
    pub fn add(&self, number: u32) -> bool {
        self.place(number)
            .is_some_and(|(word, bit)| word.fetch_or(bit, Ordering::SeqCst) & bit == 0)
    }

    /// Removes `number`; says whether it was present.
    pub fn remove(&self, number: u32) -> bool {
        self.place(number)
            .is_some_and(|(word, bit)| word.fetch_and(!bit, Ordering::SeqCst) & bit != 0)
    }

    /// Whether `number` is in.
    #[must_use]
    pub fn has(&self, number: u32) -> bool {
        self.place(number)
            .is_some_and(|(word, bit)| word.load(Ordering::SeqCst) & bit != 0)
    }

    /// Whether nothing is in.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.words
            .iter()
            .all(|word| word.load(Ordering::SeqCst) == 0)
    }

    /// Removes everything.
    pub fn clear(&self) {
        for word in &self.words {
            word.store(0, Ordering::SeqCst);
        }
    }

    /// Visits the members at this moment, in order.
    pub fn for_each(&self, mut visit: impl FnMut(u32)) {
        for (base, word) in (0u32..).step_by(64).zip(&self.words) {
            let mut bits = word.load(Ordering::SeqCst);
            while bits != 0 {
                visit(base + bits.trailing_zeros());
                bits &= bits - 1;
            }
        }
    }

    /// Removes the members and visits them, in order.
    pub fn drain(&self, mut visit: impl FnMut(u32)) {
        for (base, word) in (0u32..).step_by(64).zip(&self.words) {
            if word.load(Ordering::SeqCst) == 0 {
                continue;
            }
            let mut bits = word.swap(0, Ordering::SeqCst);
            while bits != 0 {
                visit(base + bits.trailing_zeros());
                bits &= bits - 1;
            }
        }
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn members_come_back_in_order_and_only_once() {
        let mask = Mask::default();
        for number in [255, 0, 64, 63, 256, 1_000] {
            mask.add(number);
        }
        let mut seen = Vec::new();
        mask.drain(|number| seen.push(number));
        assert_eq!(seen, [0, 63, 64, 255]);
        assert!(mask.is_empty());
        assert!(!mask.remove(0));
    }
}
