//! What is seldom asked for: a cell of its own, so that only those pay for it about whom somebody asks.

use crate::channel::sync::{AtomicU32, AtomicU64, Ordering};

/// Words of a SYN's headers: Ethernet, and the largest of IP and TCP (60 bytes each).
pub const SYN_WORDS: usize = 34;
/// Bytes of them.
pub const SYN_BYTES: usize = 4 * SYN_WORDS;

/// Answers about a flow. Written by the lcore, which leaves the cell alone until somebody asks: then TCP_INFO, and from the SYN on
/// its headers, when the listener was told to keep them (TCP_SAVE_SYN).
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct AnswerCell {
    /// The last [`super::WishLine::info`] that was answered, and above it the [`super::HostLine::generation`] of whom it concerns;
    /// written after all other words of it.
    pub told: AtomicU64,
    /// Bytes sent and not acknowledged.
    pub in_flight: AtomicU32,
    /// Bytes taken by the stack that have not left.
    pub unsent: AtomicU32,
    /// Segments sent.
    pub segments: AtomicU32,
    /// Milliseconds since the peer's last segment.
    pub silent_ms: AtomicU32,
    /// The path's MTU in bytes.
    pub mtu: AtomicU32,
    /// The receive window advertised last, in bytes.
    pub window: AtomicU32,
    /// The scale of its field.
    pub window_shift: AtomicU32,
    /// Bytes of the receive ring.
    pub ring: AtomicU32,
    /// Bytes of it that have memory.
    pub backed: AtomicU32,
    /// The congestion window in bytes when it was in the way last; 0 = it never was.
    pub congestion_window: AtomicU32,
    /// Mean deviation of the round-trip time in microseconds.
    pub rttvar_us: AtomicU32,
    /// Retransmission time-out in microseconds.
    pub rto_us: AtomicU32,
    /// The slow start threshold in bytes; 0 = nothing was ever lost.
    pub slow_start_threshold: AtomicU32,
    /// Segments sent that had bytes.
    pub data_segments: AtomicU32,
    /// Segments received.
    pub came: AtomicU32,
    /// Of those, with bytes.
    pub data_came: AtomicU32,
    /// Bytes sent again.
    pub again_bytes: AtomicU32,
    /// Milliseconds since bytes left last, or since the connection began.
    pub quiet_ms: AtomicU32,
    /// The smallest round-trip time in microseconds; 0 = none is known.
    pub min_rtt_us: AtomicU32,
    /// Retransmission time-outs in a row.
    pub backoff: AtomicU32,
    /// The peer's receive window in bytes.
    pub peer_window: AtomicU32,
    /// The scale of its field.
    pub peer_shift: AtomicU32,
    /// Bytes of the SYN's headers that are kept; the program that takes them swaps it to 0. Has a meaning with
    /// [`super::flag::SYN_SAVED`] only.
    pub syn_bytes: AtomicU32,
    /// Those bytes, four a word as they lie in memory.
    pub syn: SynWords,
}

/// The words of [`AnswerCell::syn`].
#[repr(transparent)]
#[derive(Debug)]
pub struct SynWords([AtomicU32; SYN_WORDS]);

impl Default for SynWords {
    fn default() -> Self {
        Self(core::array::from_fn(|_| AtomicU32::new(0)))
    }
}

impl AnswerCell {
    /// How many numbers TCP_INFO is made of.
    pub const NUMBERS: usize = 22;

    /// All numbers of TCP_INFO.
    #[must_use]
    pub const fn numbers(&self) -> [&AtomicU32; Self::NUMBERS] {
        [
            &self.in_flight,
            &self.unsent,
            &self.segments,
            &self.silent_ms,
            &self.mtu,
            &self.window,
            &self.window_shift,
            &self.ring,
            &self.backed,
            &self.congestion_window,
            &self.rttvar_us,
            &self.rto_us,
            &self.slow_start_threshold,
            &self.data_segments,
            &self.came,
            &self.data_came,
            &self.again_bytes,
            &self.quiet_ms,
            &self.min_rtt_us,
            &self.backoff,
            &self.peer_window,
            &self.peer_shift,
        ]
    }

    /// [`AnswerCell::told`] of question `asked` about an object of `generation`.
    #[must_use]
    pub const fn told_word(generation: u32, asked: u32) -> u64 {
        (generation as u64) << 32 | asked as u64
    }

    /// The generation and the question of [`AnswerCell::told`].
    #[must_use]
    #[allow(clippy::cast_possible_truncation)] // the lower half is wanted
    pub const fn told_of(word: u64) -> (u32, u32) {
        ((word >> 32) as u32, word as u32)
    }

    /// Keeps the headers of a SYN: `link` (of Ethernet, or nothing) and `packet` (of IP and TCP). Whoever is told of it later sees all.
    pub fn keep_syn(&self, link: &[u8], packet: &[u8]) {
        let mut bytes = link.iter().chain(packet).copied();
        let mut kept = 0;
        for word in &self.syn.0 {
            let mut part = [0; 4];
            let filled = part
                .iter_mut()
                .zip(&mut bytes)
                .map(|(place, byte)| *place = byte)
                .count();
            kept += filled;
            word.store(u32::from_ne_bytes(part), Ordering::Relaxed);
        }
        // At most four bytes a word.
        let kept = u32::try_from(kept).unwrap_or(0);
        self.syn_bytes.store(kept, Ordering::Release);
    }

    /// The bytes of the SYN that are kept.
    #[must_use]
    pub fn syn(&self) -> [u8; SYN_BYTES] {
        let mut bytes = [0; SYN_BYTES];
        for (place, word) in bytes.chunks_exact_mut(4).zip(&self.syn.0) {
            place.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
        }
        bytes
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn a_syn_is_kept_whole_and_longer_ones_are_cut() {
        let cell = AnswerCell::default();
        let packet: Vec<u8> = (1..=61).collect();
        cell.keep_syn(&[7; 14], &packet);
        assert_eq!(cell.syn_bytes.load(Ordering::Relaxed), 75);
        assert_eq!(cell.syn()[..14], [7; 14]);
        assert_eq!(cell.syn()[14..75], packet[..]);
        cell.keep_syn(&[], &[9; 1_000]);
        assert_eq!(cell.syn_bytes.load(Ordering::Relaxed), 136);
    }

    #[test]
    fn a_question_and_whom_it_concerns_go_into_one_word() {
        for (generation, asked) in [(0, 0), (1, u32::MAX), (u32::MAX, 3)] {
            let word = AnswerCell::told_word(generation, asked);
            assert_eq!(AnswerCell::told_of(word), (generation, asked));
        }
    }
}
