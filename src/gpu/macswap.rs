//! Swaps the two addresses at the front of an Ethernet frame: of the benchmark only, for comparison with l2fwd-nv.

use super::chunk::Chunk;
use super::kernel::{Finding, KernelState, PayloadKernel};

/// The kernel `macswap`; a chunk is a frame.
#[derive(Debug)]
pub(super) struct MacSwap;

impl PayloadKernel for MacSwap {
    fn name(&self) -> &'static str {
        "macswap"
    }

    fn run(&mut self, chunk: &mut Chunk<'_>, _: &mut KernelState) -> Finding {
        if let Some(addresses) = chunk.bytes.first_chunk_mut::<12>() {
            addresses.rotate_left(6);
        }
        Finding::NOTHING
    }

    fn device_params(&mut self) -> Result<Vec<u8>, String> {
        Ok(Vec::new())
    }
}

#[cfg(test)]
mod tests {
    use super::super::chunk::tests::chunk;
    use super::*;

    #[test]
    fn the_addresses_change_places() {
        let mut frame = *b"\x01\x02\x03\x04\x05\x06\x11\x12\x13\x14\x15\x16\x08\x00";
        MacSwap.run(&mut chunk(0, &mut frame), &mut KernelState::default());
        assert_eq!(
            &frame,
            b"\x11\x12\x13\x14\x15\x16\x01\x02\x03\x04\x05\x06\x08\x00"
        );
    }
}
