//! Byte histogram and entropy: tells encrypted and compressed payload from text.

use super::chunk::Chunk;
use super::kernel::{Finding, KernelState, PayloadKernel};

/// The kernel `stats`: read-only. One histogram over all flows of its rule, and how many chunks looked random.
#[derive(Debug)]
pub(super) struct Stats {
    /// Of what was counted here; a GPU adds to one of its own.
    histogram: [u64; 256],
    bytes: u64,
    /// Bytes of ASCII that can be seen, the blank among them.
    printable: u64,
    /// Chunks of at least [`SAMPLE_MIN`] bytes.
    sampled: u64,
    /// Of those, chunks with at least 7.2 bits a byte.
    random: u64,
}

impl Default for Stats {
    fn default() -> Self {
        Self {
            histogram: [0; 256],
            bytes: 0,
            printable: 0,
            sampled: 0,
            random: 0,
        }
    }
}

impl PayloadKernel for Stats {
    fn name(&self) -> &'static str {
        "stats"
    }

    fn run(&mut self, chunk: &mut Chunk<'_>, _: &mut KernelState) -> Finding {
        let mut histogram = [0_u32; 256];
        for byte in &*chunk.bytes {
            if let Some(count) = histogram.get_mut(usize::from(*byte)) {
                *count = count.saturating_add(1);
            }
        }
        for (total, count) in self.histogram.iter_mut().zip(histogram) {
            *total += u64::from(count);
        }
        let length = chunk.bytes.len() as u64;
        let entropy = entropy_q16(&histogram);
        let random = chunk.bytes.len() >= SAMPLE_MIN && entropy >= RANDOM_Q16 * length;
        let printable: u64 = histogram
            .iter()
            .skip(0x20)
            .take(0x5f)
            .map(|count| u64::from(*count))
            .sum();
        let finding = Finding {
            figure: entropy
                .checked_div(length)
                .map_or(0, |bits| u32::try_from(bits).unwrap_or(u32::MAX)),
            aux: printable | u64::from(random) << 32,
            ..Finding::NOTHING
        };
        self.settle(chunk.bytes.len(), &finding);
        finding
    }

    fn device_params(&mut self) -> Result<Vec<u8>, String> {
        Ok(self
            .histogram
            .iter()
            .flat_map(|n| n.to_le_bytes())
            .collect())
    }

    fn settle(&mut self, bytes: usize, finding: &Finding) {
        self.bytes += bytes as u64;
        self.printable += finding.aux & u64::from(u32::MAX);
        self.sampled += u64::from(bytes >= SAMPLE_MIN);
        self.random += finding.aux >> 32 & 1;
    }

    fn report(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        visit("payload_stats_bytes", self.bytes);
        visit("payload_stats_bytes_printable", self.printable);
        visit("payload_stats_chunks_sampled", self.sampled);
        visit("payload_stats_chunks_random", self.random);
    }
}

/// Shannon entropy of all bytes together, in bits with 16 binary places. Whole numbers, so that a GPU comes to the same.
fn entropy_q16(histogram: &[u32; 256]) -> u64 {
    let weigh = |count: u32| u64::from(count) * u64::from(log2_q16(count));
    let total = histogram
        .iter()
        .fold(0_u32, |sum, count| sum.saturating_add(*count));
    let known: u64 = histogram.iter().map(|count| weigh(*count)).sum();
    weigh(total).saturating_sub(known)
}

/// log2 with 16 binary places, rounded down; 0 for 0. `cuda/stats.cuh` has the same steps.
fn log2_q16(value: u32) -> u32 {
    let known = LOG2_Q16.get(value as usize);
    known.copied().unwrap_or_else(|| steps_to_log2_q16(value))
}

/// Most counts of a packet are small.
static LOG2_Q16: [u32; 512] = {
    let mut table = [0; 512];
    let mut value = 0;
    while value < 512 {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::indexing_slicing,
            reason = "below 512, and at compile time"
        )]
        {
            table[value] = steps_to_log2_q16(value as u32);
        }
        value += 1;
    }
    table
};

const fn steps_to_log2_q16(value: u32) -> u32 {
    let Some(whole) = value.checked_ilog2() else {
        return 0;
    };
    let mut rest = (value as u64) << (31 - whole);
    let mut result = whole;
    let mut place = 0;
    while place < 16 {
        rest = (rest * rest) >> 31;
        let bit = if rest >> 32 != 0 { 1 } else { 0 };
        rest >>= bit;
        result = result << 1 | bit;
        place += 1;
    }
    result
}

/// A shorter chunk cannot show more than its own length.
const SAMPLE_MIN: usize = 512;
/// 7.2 bits a byte, with 16 binary places: 512 random bytes have about 7.55, text and code below 6.5.
const RANDOM_Q16: u64 = 471_859;

#[cfg(test)]
mod tests {
    use super::super::chunk::tests::chunk;
    use super::*;

    fn run(bytes: &mut [u8]) -> Stats {
        let mut stats = Stats::default();
        stats.run(&mut chunk(0, bytes), &mut KernelState::default());
        stats
    }

    #[test]
    fn text_and_noise_are_told_apart() {
        let mut text = b"GET /index.html HTTP/1.1\r\nHost: example.org\r\n".repeat(16);
        let seen = run(&mut text);
        assert_eq!((seen.sampled, seen.random), (1, 0));
        let mut word = 1_u64;
        let mut noise: Vec<u8> = (0..1024)
            .map(|_| {
                word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                word.to_be_bytes()[0]
            })
            .collect();
        let seen = run(&mut noise);
        assert_eq!((seen.sampled, seen.random), (1, 1));
    }

    #[test]
    fn entropy_has_its_known_values() {
        assert_eq!(entropy_q16(&[1; 256]), (256 * 8) << 16);
        let mut two = [0; 256];
        (two[0], two[255]) = (7, 7);
        // 14 bits, less what the 16 places cut off.
        let bits = entropy_q16(&two);
        assert!(bits.abs_diff(14 << 16) < 14, "{bits}");
        assert_eq!(entropy_q16(&[0; 256]), 0);
        assert_eq!(log2_q16(10), 217_705); // 3.32192809
        assert_eq!(log2_q16(512), 9 << 16);
        assert_eq!((log2_q16(0), log2_q16(1)), (0, 0));
    }
}
