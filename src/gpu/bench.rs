//! CPU versions of the kernels that only the benchmark has (`cuda/bench.cuh`).

use super::chunk::Chunk;
use super::kernel::{Finding, KernelState, PayloadKernel};

/// One of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Bench {
    /// Swaps the two addresses at the front of an Ethernet frame.
    Macswap,
    /// Sums all bytes up.
    Peek,
    /// Turns every bit.
    Poke,
    /// What docs/examples/count_zeros.cu does, once more: `user` with that function.
    CountZeros,
}

impl PayloadKernel for Bench {
    fn name(&self) -> &'static str {
        match self {
            Self::Macswap => "macswap",
            Self::Peek => "peek",
            Self::Poke => "poke",
            Self::CountZeros => "user",
        }
    }

    fn run(&mut self, chunk: &mut Chunk<'_>, state: &mut KernelState) -> Finding {
        let mut finding = Finding::NOTHING;
        match self {
            Self::Macswap => {
                if let Some(addresses) = chunk.bytes.first_chunk_mut::<12>() {
                    addresses.rotate_left(6);
                }
            }
            Self::Peek => finding.aux = chunk.bytes.iter().map(|byte| u64::from(*byte)).sum(),
            Self::Poke => chunk.bytes.iter_mut().for_each(|byte| *byte = !*byte),
            Self::CountZeros => {
                let zeros = chunk.bytes.iter().filter(|byte| **byte == 0).count();
                state.0[0] += zeros as u64;
                finding.figure = u32::try_from(zeros).unwrap_or(u32::MAX);
                finding.matched = (zeros * 4 > chunk.bytes.len()).then_some(finding.figure);
                finding.aux = state.0[0];
            }
        }
        finding
    }

    fn device_params(&mut self) -> Result<Vec<u8>, String> {
        match self {
            Self::CountZeros => Ok(vec![0; super::user::PARAMS_BYTES]),
            Self::Macswap | Self::Peek | Self::Poke => Ok(Vec::new()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::chunk::tests::chunk;
    use super::*;

    #[test]
    fn each_does_what_it_says() {
        let mut frame = *b"\x01\x02\x03\x04\x05\x06\x11\x12\x13\x14\x15\x16\x08\x00";
        let mut run = |kernel: Bench| {
            let mut kernel = kernel;
            kernel.run(&mut chunk(0, &mut frame), &mut KernelState::default())
        };
        assert_eq!(
            run(Bench::Peek).aux,
            1 + 2 + 3 + 4 + 5 + 6 + 6 * 17 + 15 + 8
        );
        run(Bench::Macswap);
        run(Bench::Poke);
        assert_eq!(
            &frame,
            b"\xee\xed\xec\xeb\xea\xe9\xfe\xfd\xfc\xfb\xfa\xf9\xf7\xff"
        );
    }
}
