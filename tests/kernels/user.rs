//! What docs/examples/count_zeros.cu does, once more.

use knet::gpu::{Chunk, Finding, KernelState, PayloadKernel};

pub(crate) struct CountZeros;

impl PayloadKernel for CountZeros {
    fn name(&self) -> &'static str {
        "user"
    }

    fn run(&mut self, chunk: &mut Chunk<'_>, state: &mut KernelState) -> Finding {
        let zeros = chunk.bytes.iter().filter(|byte| **byte == 0).count();
        state.0[0] += zeros as u64;
        let many = zeros * 4 > chunk.bytes.len();
        Finding {
            matched: many.then_some(zeros as u32),
            figure: zeros as u32,
            aux: state.0[0],
            ..Finding::NOTHING
        }
    }

    fn device_params(&mut self) -> Result<Vec<u8>, String> {
        Ok(vec![0; 16])
    }
}
