//! Where in a text no literal can begin (Wu and Manber, TR-94-17): a window as long as the shortest literal is laid on the text, and
//! its last three bytes say how far it may be moved. Most of a text is never looked at.
//!
//! It is an aid of the automaton, not a search: it is asked only while the automaton is in its start state, and what it leaves out
//! cannot be the beginning of a match.

/// How far the window may be moved, by a hash of its last three bytes.
#[derive(Debug)]
pub(super) struct Skip {
    window: usize,
    /// Sets the bit in which upper and lower case differ, where case does not matter.
    fold: u32,
    /// 32 less the bits of a hash.
    shift: u32,
    table: Box<[u8]>,
}

/// Bytes by which a window is moved.
const BLOCK: usize = 3;
/// A shorter window is no gain: three bytes are read for each byte passed.
const WINDOW_MIN: usize = 5;
const WINDOW_MAX: usize = 32;
/// Blocks of all literals at most. More of them fill the table so that nothing is passed.
const BLOCKS_MAX: usize = 1 << 16;
/// Bits of a hash: between a first-level cache's worth and a part of a second level's.
const BITS: core::ops::RangeInclusive<u32> = 12..=18;
/// Entries for each block, so that few of a text's blocks meet one by chance.
const SPARSE: usize = 4;
/// What asking costs, in bytes through the automaton.
const PRICE: usize = 4;
/// So much may asking cost beyond its gain before it is left for the rest of a chunk.
const CREDIT: usize = 256;

/// Whether asking is worth it in the chunk at hand.
#[derive(Debug)]
pub(super) struct Worth(usize);

impl Worth {
    pub(super) const fn new() -> Self {
        Self(CREDIT)
    }

    /// Whether to ask again.
    pub(super) const fn asks(&self) -> bool {
        self.0 >= PRICE
    }

    /// So many bytes were passed by one question.
    pub(super) fn note(&mut self, passed: usize) {
        self.0 = (self.0 + passed - PRICE.min(self.0)).min(2 * CREDIT);
    }
}

impl Skip {
    /// For these literals; None: they are too short or too many.
    pub(super) fn new(patterns: &[&[u8]], any_case: bool) -> Option<Self> {
        let shortest = patterns.iter().map(|pattern| pattern.len()).min()?;
        let blocks = BLOCKS_MAX / patterns.len();
        let window = shortest.min(WINDOW_MAX).min(blocks + BLOCK - 1);
        if window < WINDOW_MIN {
            return None;
        }
        let entries = patterns.len() * (window - BLOCK + 1) * SPARSE;
        let bits = entries
            .next_power_of_two()
            .trailing_zeros()
            .clamp(*BITS.start(), *BITS.end());
        let far = u8::try_from(window - BLOCK + 1).ok()?;
        let mut made = Self {
            window,
            fold: if any_case { 0x0020_2020 } else { 0 },
            shift: 32 - bits,
            table: vec![far; 1 << bits].into_boxed_slice(),
        };
        for pattern in patterns {
            let blocks = pattern.get(..window)?.windows(BLOCK);
            for (behind, block) in (0..far).rev().zip(blocks) {
                let [first, second, third] = *block else {
                    continue;
                };
                let place = made.place(u32::from_le_bytes([first, second, third, 0]));
                let entry = made.table.get_mut(place)?;
                *entry = behind.min(*entry);
            }
        }
        Some(made)
    }

    /// Where in `bytes`, from `at` on, a literal may begin for the first time. What is behind is too short to tell.
    pub(super) fn next(&self, bytes: &[u8], mut at: usize) -> usize {
        // The four last bytes of the window, of which the first does not matter.
        while let Some(&[_, first, second, third]) = bytes
            .get(at + self.window - BLOCK - 1..)
            .and_then(<[u8]>::first_chunk)
        {
            let place = self.place(u32::from_le_bytes([first, second, third, 0]));
            let Some(&move_by) = self.table.get(place) else {
                break;
            };
            if move_by == 0 {
                break;
            }
            at += usize::from(move_by);
        }
        at.min(bytes.len())
    }

    const fn place(&self, block: u32) -> usize {
        ((block | self.fold).wrapping_mul(0x9e37_79b1) >> self.shift) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_beginning_of_a_literal_is_passed() {
        let patterns: &[&[u8]] = &[b"forbidden", b"unwanted-word", b"abcabc"];
        let skip = Skip::new(patterns, false).unwrap();
        for (number, pattern) in patterns.iter().enumerate() {
            for at in 0..80 {
                let mut text = vec![b'x'; at];
                text.extend_from_slice(pattern);
                text.extend_from_slice(b"ycabyabca");
                assert!(skip.next(&text, 0) <= at, "{number} at {at}");
                assert_eq!(skip.next(&text, at), at);
            }
        }
    }

    #[test]
    fn a_text_without_them_is_passed_by_whole_windows() {
        let skip = Skip::new(&[b"forbidden-word"], true).unwrap();
        let text = vec![b'z'; 1000];
        // The last window does not fit any more.
        assert!((1000 - 14..=1000).contains(&skip.next(&text, 0)));
        assert_eq!(skip.next(b"short", 0), 0, "what does not fit is not judged");
        assert_eq!(skip.next(b"xFoRbiddEN-wordy", 0), 1);
    }

    #[test]
    fn short_and_numerous_literals_have_none() {
        assert!(Skip::new(&[b"abcd", b"much-longer"], false).is_none());
        assert!(Skip::new(&vec![b"forbidden".as_slice(); 100_000], false).is_none());
        assert!(Skip::new(&[], false).is_none());
    }

    #[test]
    fn asking_in_vain_ends() {
        let mut worth = Worth::new();
        let mut asked = 0;
        while worth.asks() {
            worth.note(0);
            asked += 1;
        }
        assert_eq!(asked, CREDIT / PRICE);
        let mut worth = Worth::new();
        for _ in 0..1000 {
            worth.note(12);
        }
        assert!(worth.asks());
    }
}
