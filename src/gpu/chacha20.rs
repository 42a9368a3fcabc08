//! ChaCha20 (RFC 8439) by stream offset: the same bytes come out however the stream is cut and whatever is sent again.
//!
//! Both ends of a connection derive the same key stream for each direction: the nonce is made of the sender's and the
//! receiver's address and port. It hides, it does not authenticate, and a pair of ports that is used again uses its key
//! stream again: a demonstration of a kernel that writes, not a replacement for TLS.

use chacha20::ChaCha20;
use chacha20::cipher::{KeyIvInit, StreamCipher, StreamCipherSeek};

use super::chunk::Chunk;
use super::kernel::{Finding, KernelState, PayloadKernel};

/// The kernel `chacha20`.
pub(super) struct Cipher {
    key: [u8; 32],
}

impl core::fmt::Debug for Cipher {
    fn fmt(&self, out: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        out.debug_struct("Cipher").finish_non_exhaustive()
    }
}

impl Cipher {
    /// A cipher with `key`.
    pub(super) const fn new(key: [u8; 32]) -> Self {
        Self { key }
    }
}

impl PayloadKernel for Cipher {
    fn name(&self) -> &'static str {
        "chacha20"
    }

    fn run(&mut self, chunk: &mut Chunk<'_>, _: &mut KernelState) -> Finding {
        let (from, to) = (chunk.sender(), chunk.receiver());
        let [a, b, c, d] = from.ip().octets();
        let [e, f, g, h] = to.ip().octets();
        let [i, j] = from.port().to_be_bytes();
        let [k, l] = to.port().to_be_bytes();
        let nonce = [a, b, c, d, e, f, g, h, i, j, k, l];
        let mut cipher = ChaCha20::new(&self.key.into(), &nonce.into());
        // Behind the key stream's end nothing may leave as it is. A seek into the last block would wrap the counter, and
        // the cipher would begin anew without a word.
        let end = chunk.offset.checked_add(chunk.bytes.len() as u64);
        let done = end.is_some_and(|end| end <= STREAM_BYTES)
            && cipher.try_seek(chunk.offset).is_ok()
            && cipher.try_apply_keystream(chunk.bytes).is_ok();
        Finding {
            failed: !done,
            ..Finding::NOTHING
        }
    }

    fn device_params(&mut self) -> Result<Vec<u8>, String> {
        Ok(self.key.to_vec())
    }
}

/// Bytes of key stream: 2^32 blocks of 64 (RFC 8439 section 2.4) but for the last one. `cuda/chacha20.cuh` has the same.
const STREAM_BYTES: u64 = (1 << 38) - 64;

#[cfg(test)]
mod tests {
    use super::super::chunk::tests::chunk;
    use super::super::chunk::{Direction, Ends};
    use super::*;

    fn run(kernel: &mut Cipher, chunk: &mut Chunk<'_>) -> Finding {
        kernel.run(chunk, &mut KernelState::default())
    }

    #[test]
    fn any_cut_gives_the_bytes_of_the_whole() {
        let mut kernel = Cipher::new([7; 32]);
        let plain: Vec<u8> = (0..=255).cycle().take(1000).collect();
        let mut whole = plain.clone();
        assert_eq!(
            run(&mut kernel, &mut chunk(0, &mut whole)),
            Finding::NOTHING
        );
        assert_ne!(whole, plain);
        for cut in [1, 63, 64, 65, 128, 999] {
            let mut parts = plain.clone();
            let (first, second) = parts.split_at_mut(cut);
            // The later part first: order does not matter.
            run(&mut kernel, &mut chunk(cut as u64, second));
            run(&mut kernel, &mut chunk(0, first));
            assert_eq!(parts, whole, "cut at {cut}");
        }
    }

    #[test]
    fn the_other_end_takes_it_off_again() {
        let mut kernel = Cipher::new([9; 32]);
        let mut bytes = *b"attack at dawn";
        run(&mut kernel, &mut chunk(5, &mut bytes));
        let mut here = chunk(5, &mut bytes);
        here.direction = Direction::Tx;
        here.ends = Ends {
            local: here.ends.remote,
            remote: here.ends.local,
        };
        run(&mut kernel, &mut here);
        assert_eq!(&bytes, b"attack at dawn");
    }

    #[test]
    fn the_key_stream_is_that_of_the_rfc() {
        // RFC 8439 section 2.4.2 with its key, nonce and block 1.
        let key: [u8; 32] = core::array::from_fn(|at| u8::try_from(at).unwrap());
        let mut kernel = Cipher::new(key);
        let mut bytes = *b"Ladies and Gentl";
        let mut here = chunk(64, &mut bytes);
        here.ends = Ends {
            remote: "0.0.0.0:0".parse().unwrap(),
            local: "0.0.0.74:0".parse().unwrap(),
        };
        run(&mut kernel, &mut here);
        assert_eq!(
            bytes,
            [
                0x6e, 0x2e, 0x35, 0x9a, 0x25, 0x68, 0xf9, 0x80, 0x41, 0xba, 0x07, 0x28, 0xdd, 0x0d,
                0x69, 0x81
            ]
        );
    }

    #[test]
    fn nothing_leaves_in_clear_where_the_key_stream_ends() {
        let mut kernel = Cipher::new([1; 32]);
        let mut bytes = [0; 128];
        assert!(run(&mut kernel, &mut chunk((1 << 38) - 64, &mut bytes)).failed);
        for back in 0..192 {
            assert!(
                run(&mut kernel, &mut chunk((1 << 38) - back, &mut bytes)).failed,
                "{back}"
            );
        }
        for back in 192..320 {
            assert!(
                !run(&mut kernel, &mut chunk((1 << 38) - back, &mut bytes)).failed,
                "{back}"
            );
        }
    }

    /// `KNET_TEST_BULK_MIB` MiB, by default little enough for a debug build.
    #[test]
    fn a_long_stream_that_is_hidden_twice_is_itself() {
        let wanted = std::env::var("KNET_TEST_BULK_MIB").ok();
        let total = wanted.map_or(4, |text| text.parse().unwrap()) << 20;
        let mut kernel = Cipher::new([0x3c; 32]);
        let plain: Vec<u8> = (0..251).cycle().take(65_521 + 251).collect();
        let (mut offset, mut word, mut changed) = (0_u64, 1_u64, 0);
        while offset < total {
            word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let length = 1 + usize::try_from(word >> 33).unwrap() % 65_521;
            let from = usize::try_from(offset % 251).unwrap();
            let wanted = &plain[from..from + length];
            let mut bytes = wanted.to_vec();
            run(&mut kernel, &mut chunk(offset, &mut bytes));
            changed += usize::from(bytes != wanted);
            // The other way round, and cut elsewhere.
            let (first, second) = bytes.split_at_mut(length / 3);
            if !second.is_empty() {
                run(&mut kernel, &mut chunk(offset + first.len() as u64, second));
            }
            run(&mut kernel, &mut chunk(offset, first));
            assert!(bytes == wanted, "at {offset}");
            offset += length as u64;
        }
        assert!(changed > 10);
    }
}
