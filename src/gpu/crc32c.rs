//! CRC-32C (Castagnoli) of each direction of each stream: the digest of storage protocols (RFC 3720 section 12.1).

use super::chunk::Chunk;
use super::kernel::{Finding, KernelState, PayloadKernel};

/// The kernel `crc32c`. Its state is the digest of all bytes so far.
#[derive(Debug, Default)]
pub(super) struct Crc32c {
    /// Digest of the chunk that came last.
    last: u32,
}

impl PayloadKernel for Crc32c {
    fn name(&self) -> &'static str {
        "crc32c"
    }

    fn run(&mut self, chunk: &mut Chunk<'_>, state: &mut KernelState) -> Finding {
        let [digest, _] = &mut state.0;
        // It was put there as 32 bits.
        let before = u32::try_from(*digest).unwrap_or(0);
        self.last = crc32c::crc32c_append(before, chunk.bytes);
        *digest = u64::from(self.last);
        Finding {
            aux: *digest,
            ..Finding::NOTHING
        }
    }

    fn device_params(&mut self) -> Result<Vec<u8>, String> {
        Ok(Vec::new())
    }

    fn settle(&mut self, _: usize, finding: &Finding) {
        self.last = u32::try_from(finding.aux).unwrap_or(self.last);
    }

    fn report(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        visit("payload_crc32c_last", u64::from(self.last));
    }
}

#[cfg(test)]
mod tests {
    use super::super::chunk::tests::chunk;
    use super::*;

    #[test]
    fn the_digest_is_that_of_the_whole_stream_wherever_it_is_cut() {
        for cut in 0..=9 {
            let mut kernel = Crc32c::default();
            let mut state = KernelState::default();
            let mut bytes = *b"123456789";
            let (first, second) = bytes.split_at_mut(cut);
            for part in [first, second].into_iter().filter(|part| !part.is_empty()) {
                kernel.run(&mut chunk(0, part), &mut state);
            }
            // The check value of the CRC catalogue.
            assert_eq!(state.0[0], 0xe306_9283);
        }
    }
}
