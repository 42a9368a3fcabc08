//! Byte histogram and entropy: tells encrypted and compressed payload from text.

use super::chunk::Chunk;
use super::kernel::{Finding, KernelState, PayloadKernel};

/// The kernel `stats`: read-only. One histogram over all flows of its rule, and how many chunks looked random.
#[derive(Debug)]
pub(super) struct Stats {
    histogram: [u64; 256],
    /// Chunks of at least [`SAMPLE_MIN`] bytes.
    sampled: u64,
    /// Of those, chunks with at least [`RANDOM_BITS`] bits a byte.
    random: u64,
}

impl Default for Stats {
    fn default() -> Self {
        Self {
            histogram: [0; 256],
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
        if chunk.bytes.len() >= SAMPLE_MIN {
            self.sampled += 1;
            self.random += u64::from(entropy(&histogram) >= RANDOM_BITS);
        }
        Finding::NOTHING
    }

    fn report(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        let text = self.histogram.iter().skip(0x20).take(0x5f).sum();
        visit("payload_stats_bytes", self.histogram.iter().sum());
        visit("payload_stats_bytes_printable", text);
        visit("payload_stats_chunks_sampled", self.sampled);
        visit("payload_stats_chunks_random", self.random);
    }
}

/// Shannon entropy in bits a byte, 0 to 8.
fn entropy(histogram: &[u32; 256]) -> f64 {
    let total: f64 = histogram.iter().map(|count| f64::from(*count)).sum();
    histogram
        .iter()
        .filter(|count| **count > 0)
        .map(|count| {
            let share = f64::from(*count) / total;
            -share * share.log2()
        })
        .sum()
}

/// A shorter chunk cannot show more than its own length.
const SAMPLE_MIN: usize = 512;
/// 512 random bytes have about 7.55 bits a byte, text and code below 6.5.
const RANDOM_BITS: f64 = 7.2;

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
        assert!(entropy(&[1; 256]) > 7.999);
        let mut two = [0; 256];
        (two[0], two[255]) = (7, 7);
        assert!((entropy(&two) - 1.0).abs() < 1e-9);
    }
}
