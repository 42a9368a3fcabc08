//! Initial sequence numbers: RFC 6528, and how smoltcp is made to use them.

use super::demux::FlowKey;
use super::siphash::siphash;
use crate::time::Instant;

/// Keeps what is hashed here apart from other uses of the same secret.
const DOMAIN: u8 = b'i';

/// ISN = M + F(local address, local port, remote address, remote port, secret) (RFC 6528 section
/// 3); M is a clock that ticks every 4 microseconds.
#[must_use]
#[allow(clippy::cast_possible_truncation)] // both the clock and the hash are taken modulo 2^32
pub fn isn(now: Instant, key: FlowKey, secret: &[u8; 16]) -> u32 {
    let clock = (now.micros() / 4) as u32;
    let [a, b, c, d, e, f, g, h, i, j, k, l] = key.to_bytes();
    let hash = siphash(secret, &[a, b, c, d, e, f, g, h, i, j, k, l, DOMAIN]);
    clock.wrapping_add(hash as u32)
}

/// The seed with which a new smoltcp `Interface` gives exactly `isn` to the next connection that it
/// makes.
///
/// smoltcp draws an ISN from a 64-bit linear congruential generator, after `Interface::new` has
/// drawn the first IPv4 identification from it (again while that is 0). So the generator's second
/// state is chosen such that its output is `isn` and its first output no zero identification, and
/// then run backwards. This rests on smoltcp 0.14.0 with the features that we build; a test watches
/// it.
#[must_use]
pub fn seed_for(isn: u32) -> u64 {
    // The output is the state shifted right by 29 less its top three bits; with those zero, by 29.
    let base = u64::from(isn) << OUTPUT_SHIFT;
    let first_states = (0..1 << OUTPUT_SHIFT).map(|low| step_back(base | low));
    // Each misses with a chance of 2^-16, so the search is short, and it cannot come back empty.
    let first = first_states
        .into_iter()
        .find(|state| identification(*state) != 0);
    step_back(first.unwrap_or(base))
}

const MULTIPLIER: u64 = 0xbb2e_fcec_3c39_611d;
const INCREMENT: u64 = 0x7590_ef39;
const INVERSE: u64 = inverse(MULTIPLIER);
const OUTPUT_SHIFT: u32 = 29;

/// The state before `state`.
const fn step_back(state: u64) -> u64 {
    state.wrapping_sub(INCREMENT).wrapping_mul(INVERSE)
}

/// The 16 bits that a state gives when an identification is drawn.
#[allow(clippy::cast_possible_truncation)] // the generator's output is cut twice by definition
const fn identification(state: u64) -> u16 {
    let output = (state >> (OUTPUT_SHIFT as u64 - (state >> 61))) as u32;
    (output ^ (output >> 16)) as u16
}

/// The inverse of an odd number modulo 2^64, by Newton's iteration: each step doubles the right
/// bits.
const fn inverse(odd: u64) -> u64 {
    let mut inverse = odd;
    let mut step = 0;
    while step < 6 {
        inverse = inverse.wrapping_mul(2_u64.wrapping_sub(odd.wrapping_mul(inverse)));
        step += 1;
    }
    inverse
}

#[cfg(test)]
mod tests;
