//! The Internet checksum (RFC 1071) and its incremental update (RFC 1624).
//!
//! A *sum* here is the folded one's complement sum in host order; the checksum in a header is its
//! complement.

use core::net::Ipv4Addr;

/// The one's complement sum of `bytes` as big-endian 16-bit words, folded to 16 bits.
///
/// A last odd byte is padded with zero on the right, so only the last of several pieces may be odd.
#[must_use]
pub fn sum(bytes: &[u8]) -> u16 {
    // Words are added in the byte order of memory: the sum is independent of byte order up to one
    // swap at the end, and of the width of the words, because 2^32 is 1 modulo 0xffff (RFC 1071
    // section 2). Halves of 32 bits cannot overflow 64 bits below 4 GiB of input.
    let mut lanes = [0_u64; 4];
    let mut blocks = bytes.chunks_exact(32);
    for block in blocks.by_ref() {
        for (lane, word) in lanes.iter_mut().zip(block.chunks_exact(8)) {
            let word = word
                .first_chunk()
                .map_or(0, |word| u64::from_ne_bytes(*word));
            *lane += (word & 0xffff_ffff) + (word >> 32);
        }
    }
    let mut total: u64 = lanes.iter().sum();
    let mut words = blocks.remainder().chunks_exact(4);
    for word in words.by_ref() {
        total += word
            .first_chunk()
            .map_or(0, |word| u64::from(u32::from_ne_bytes(*word)));
    }
    total += u64::from(match *words.remainder() {
        [a, b, c] => u32::from_ne_bytes([a, b, c, 0]),
        [a, b] => u32::from(u16::from_ne_bytes([a, b])),
        [a] => u32::from(u16::from_ne_bytes([a, 0])),
        _ => 0,
    });
    u16::from_be(fold(total))
}

/// Adds two sums.
#[must_use]
pub fn add(left: u16, right: u16) -> u16 {
    let (sum, carry) = left.overflowing_add(right);
    sum + u16::from(carry)
}

/// The sum of the pseudo header of TCP and UDP over IPv4 (RFC 9293 section 3.1, RFC 768).
#[must_use]
pub fn pseudo_header(source: Ipv4Addr, destination: Ipv4Addr, protocol: u8, length: u16) -> u16 {
    let total = add(word_sum(source.to_bits()), word_sum(destination.to_bits()));
    add(add(total, u16::from(protocol)), length)
}

/// The checksum field of a header whose other words are `bytes` (its own field being zero).
#[must_use]
pub fn checksum(bytes: &[u8]) -> u16 {
    !sum(bytes)
}

/// Whether `bytes`, checksum field included, sum up right.
#[must_use]
pub fn verify(bytes: &[u8]) -> bool {
    sum(bytes) == 0xffff
}

/// The checksum after one covered 16-bit word changed from `old` to `new` (RFC 1624 equation 3).
///
/// A word that begins at an odd offset of the covered bytes is passed with both values
/// byte-swapped.
#[must_use]
pub fn update(checksum: u16, old: u16, new: u16) -> u16 {
    !add(add(!checksum, !old), new)
}

/// The sum of the two halves of a 32-bit word.
fn word_sum(word: u32) -> u16 {
    fold(u64::from(word))
}

/// Folds carries back until 16 bits are left: each step halves the bits above, and the last adds
/// the one carry that may be left.
#[allow(clippy::cast_possible_truncation)] // 16 bits are left
const fn fold(total: u64) -> u16 {
    let total = (total & 0xffff_ffff) + (total >> 32);
    let total = (total & 0xffff) + (total >> 16 & 0xffff) + (total >> 32);
    let total = (total & 0xffff) + (total >> 16);
    let total = (total & 0xffff) + (total >> 16);
    total as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seeded::Seeded;

    /// Word by word, as RFC 1071 section 4.1 states it.
    fn plain(bytes: &[u8]) -> u16 {
        let mut total = 0_u32;
        for pair in bytes.chunks(2) {
            total += u32::from(pair[0]) << 8;
            total += u32::from(*pair.get(1).unwrap_or(&0));
            total = (total & 0xffff) + (total >> 16);
        }
        u16::try_from(total).unwrap()
    }

    #[test]
    fn the_example_of_rfc_1071_sums_to_ddf2() {
        assert_eq!(
            sum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]),
            0xddf2
        );
        assert_eq!(sum(&[]), 0);
    }

    #[test]
    fn a_known_ipv4_header_verifies() {
        let mut header = [
            0x45, 0x00, 0x00, 0x73, 0x00, 0x00, 0x40, 0x00, 0x40, 0x11, 0xb8, 0x61, 0xc0, 0xa8,
            0x00, 0x01, 0xc0, 0xa8, 0x00, 0xc7,
        ];
        assert!(verify(&header));
        header[10..12].fill(0);
        assert_eq!(checksum(&header), 0xb861);
        header[3] ^= 1;
        assert!(!verify(&header));
    }

    #[test]
    fn folding_keeps_the_value_modulo_0xffff() {
        let mut random = Seeded::new(32);
        let edges = [
            0,
            1,
            0xffff,
            0x1_0000,
            0xffff_ffff,
            1 << 32,
            u64::MAX - 1,
            u64::MAX,
        ];
        for total in edges.into_iter().chain((0..10_000).map(|_| random.bits())) {
            let folded = u64::from(fold(total));
            assert_eq!(folded % 0xffff, total % 0xffff, "{total:#x}");
            assert_eq!(folded == 0, total == 0, "{total:#x}");
        }
    }

    #[test]
    fn every_length_and_offset_agrees_with_the_plain_sum() {
        let mut random = Seeded::new(1);
        let bytes: Vec<u8> = (0..300).map(|_| random.byte()).collect();
        for start in 0..9 {
            for end in start..bytes.len() {
                assert_eq!(
                    sum(&bytes[start..end]),
                    plain(&bytes[start..end]),
                    "{start}..{end}"
                );
            }
        }
        let ones = vec![0xff_u8; 70_000];
        assert_eq!(sum(&ones), 0xffff);
    }

    #[test]
    fn the_pseudo_header_is_the_sum_of_its_bytes() {
        let source = Ipv4Addr::new(10, 77, 0, 1);
        let destination = Ipv4Addr::new(192, 168, 255, 254);
        let bytes = [10, 77, 0, 1, 192, 168, 255, 254, 0, 6, 0x12, 0x34];
        assert_eq!(pseudo_header(source, destination, 6, 0x1234), plain(&bytes));
    }

    #[test]
    fn an_update_equals_the_checksum_made_anew() {
        let mut random = Seeded::new(2);
        for _ in 0..10_000 {
            let mut bytes = [0_u8; 21];
            bytes.fill_with(|| random.byte());
            let before = checksum(&bytes);
            let at = random.below(20);
            let old = u16::from_be_bytes([bytes[at], bytes[at + 1]]);
            let new = if random.below(8) == 0 {
                0
            } else {
                random.word()
            };
            bytes[at..at + 2].copy_from_slice(&new.to_be_bytes());
            let after = if at.is_multiple_of(2) {
                update(before, old, new)
            } else {
                update(before, old.swap_bytes(), new.swap_bytes())
            };
            // The two forms of zero are the same sum; RFC 1624 picks the one that a receiver
            // accepts.
            assert_eq!(add(after, sum(&bytes)), 0xffff, "seed 2, word at {at}");
        }
    }
}
