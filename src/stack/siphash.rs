//! SipHash-2-4 (Aumasson and Bernstein, 2012): a keyed hash that a peer cannot predict.

/// The hash of `bytes` under `key`.
#[must_use]
pub fn siphash(key: &[u8; 16], bytes: &[u8]) -> u64 {
    let key = u128::from_le_bytes(*key);
    let mut state = State::new(key);
    let mut words = bytes.chunks_exact(8);
    for word in words.by_ref() {
        state.compress(
            word.first_chunk()
                .map_or(0, |word| u64::from_le_bytes(*word)),
        );
    }
    // The last word holds what is left and, on top, the length modulo 256.
    let mut last = [0_u8; 8];
    for (to, from) in last.iter_mut().zip(words.remainder()) {
        *to = *from;
    }
    let [length, ..] = bytes.len().to_le_bytes();
    last[7] = length;
    state.compress(u64::from_le_bytes(last));
    state.finish()
}

/// The hash of the twelve bytes that `first` and `rest` are, each little-endian: what [`siphash`] says of them, without a way
/// through memory.
#[must_use]
#[inline]
pub(crate) fn siphash_of_12(key: &[u8; 16], first: u64, rest: u32) -> u64 {
    let mut state = State::new(u128::from_le_bytes(*key));
    state.compress(first);
    state.compress(u64::from(rest) | 12 << 56);
    state.finish()
}

struct State {
    v0: u64,
    v1: u64,
    v2: u64,
    v3: u64,
}

impl State {
    #[allow(clippy::cast_possible_truncation)] // each half of the key is taken
    const fn new(key: u128) -> Self {
        let (k0, k1) = (key as u64, (key >> 64) as u64);
        // The initial words of the specification: "somepseudorandomlygeneratedbytes".
        Self {
            v0: k0 ^ 0x736f_6d65_7073_6575,
            v1: k1 ^ 0x646f_7261_6e64_6f6d,
            v2: k0 ^ 0x6c79_6765_6e65_7261,
            v3: k1 ^ 0x7465_6462_7974_6573,
        }
    }

    const fn compress(&mut self, word: u64) {
        self.v3 ^= word;
        self.round();
        self.round();
        self.v0 ^= word;
    }

    const fn finish(mut self) -> u64 {
        self.v2 ^= 0xff;
        self.round();
        self.round();
        self.round();
        self.round();
        self.v0 ^ self.v1 ^ self.v2 ^ self.v3
    }

    const fn round(&mut self) {
        self.v0 = self.v0.wrapping_add(self.v1);
        self.v1 = self.v1.rotate_left(13) ^ self.v0;
        self.v0 = self.v0.rotate_left(32);
        self.v2 = self.v2.wrapping_add(self.v3);
        self.v3 = self.v3.rotate_left(16) ^ self.v2;
        self.v0 = self.v0.wrapping_add(self.v3);
        self.v3 = self.v3.rotate_left(21) ^ self.v0;
        self.v2 = self.v2.wrapping_add(self.v1);
        self.v1 = self.v1.rotate_left(17) ^ self.v2;
        self.v2 = self.v2.rotate_left(32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_vectors_hold() {
        let key = core::array::from_fn(|at| u8::try_from(at).unwrap());
        let message: Vec<u8> = (0..64).collect();
        // Appendix A of the paper, and the reference implementation's table.
        assert_eq!(siphash(&key, &message[..15]), 0xa129_ca61_49be_45e5);
        assert_eq!(siphash(&key, &[]), 0x726f_db47_dd0e_0e31);
        assert_eq!(siphash(&key, &message[..1]), 0x74f8_39c5_93dc_67fd);
        assert_eq!(siphash(&key, &message[..8]), 0x93f5_f579_9a93_2462);
    }

    #[test]
    fn twelve_bytes_as_words_have_the_hash_of_the_bytes() {
        let key = core::array::from_fn(|at| u8::try_from(at).unwrap());
        for first in [0, 1, 0x0102_0304_0506_0708, u64::MAX] {
            for rest in [0, 0x0a0b_0c0d, u32::MAX] {
                let bytes = [&first.to_le_bytes()[..], &rest.to_le_bytes()].concat();
                let hash = siphash_of_12(&key, first, rest);
                assert_eq!(hash, siphash(&key, &bytes), "{first:x} {rest:x}");
            }
        }
    }

    #[test]
    #[allow(deprecated)]
    fn every_length_agrees_with_the_standard_library() {
        use core::hash::Hasher;
        let key = [0x5a; 16];
        let half = u64::from_le_bytes([0x5a; 8]);
        let bytes: Vec<u8> = (0..200).collect();
        for len in 0..bytes.len() {
            let mut theirs = core::hash::SipHasher::new_with_keys(half, half);
            theirs.write(&bytes[..len]);
            assert_eq!(siphash(&key, &bytes[..len]), theirs.finish(), "{len} bytes");
        }
    }
}
