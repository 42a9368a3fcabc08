//! The communication ring between the host and a GPU kernel: what both sides read and write, byte for byte.
//!
//! `cuda/knet_ring.h` is the same for the kernels, and says who writes what in which order; a test compares the two. One line
//! a packet each way, not an array a field: the warp that works on a packet fetches one line over PCIe and not seven.

use core::mem::offset_of;
use core::sync::atomic::AtomicU32;

/// The version of everything in this file.
pub const RING_ABI: u32 = 1;

/// States of a slot: gpudev's, with its numbers.
pub mod status {
    /// The host's.
    pub const FREE: u32 = 0;
    /// The GPU's.
    pub const READY: u32 = 1;
    /// The host's: results are there.
    pub const DONE: u32 = 2;
    /// The host's: [`super::BatchDescriptor::error`] says why.
    pub const ERROR: u32 = 3;
}

/// What a kernel says of a packet.
pub mod verdict {
    /// The host's mark, an error when it comes back.
    pub const NOT_WRITTEN: u32 = 0;
    /// Nothing was found.
    pub const PASS: u32 = 1;
    /// What is looked for was found: `value` says what.
    pub const MATCH: u32 = 2;
    /// A user's function says: drop.
    pub const DROP: u32 = 3;
    /// A user's function says: reset.
    pub const RESET: u32 = 4;
    /// A user's function says: mark, with the number in `value`.
    pub const MARK: u32 = 5;
    /// A user's function says: mirror.
    pub const MIRROR: u32 = 6;
    /// The kernel could not work on it: the bytes must not go on.
    pub const FAILED: u32 = 7;
}

/// `flags` of a packet: the program sends it.
pub const SENT: u32 = 1;
/// `flags` of a packet: attach point `packet`.
pub const SEGMENT: u32 = 2;

/// Packets of a batch at most.
pub const BATCH_MAX: usize = 1_024;
/// Bytes of a packet at most.
pub const PACKET_BYTES_MAX: usize = 16 << 10;
/// Bytes of device memory that a batch works with.
pub const BATCH_SCRATCH_BYTES: usize = 64;
/// Bytes of device memory that a persistent kernel works with.
pub const RING_SCRATCH_BYTES: usize = 4_096;

/// One packet, in: `struct knet_packet`.
#[repr(C, align(64))]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PacketRecord {
    /// Device pointer to the payload.
    pub addr: u64,
    /// Bytes of it.
    pub len: u32,
    /// [`SENT`], [`SEGMENT`].
    pub flags: u32,
    /// Stream offset of the first byte.
    pub offset: u64,
    /// The same number for the packets of a flow of this batch.
    pub flow: u32,
    /// Sender's and receiver's address, sender's and receiver's port, as on the wire.
    pub ends: [u32; 3],
    /// What the kernel keeps of this direction of the flow.
    pub state: [u64; 2],
    /// Zero.
    pub reserved: u64,
}

impl PacketRecord {
    /// As it lies in the ring.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; 64] {
        let mut bytes = [0; 64];
        let words = [
            (offset_of!(Self, addr), self.addr),
            (offset_of!(Self, offset), self.offset),
            (offset_of!(Self, state), self.state[0]),
            (offset_of!(Self, state) + 8, self.state[1]),
        ];
        for (at, word) in words {
            if let Some(place) = bytes.get_mut(at..at + 8) {
                place.copy_from_slice(&word.to_ne_bytes());
            }
        }
        let halves = [
            (offset_of!(Self, len), self.len),
            (offset_of!(Self, flags), self.flags),
            (offset_of!(Self, flow), self.flow),
            (offset_of!(Self, ends), self.ends[0]),
            (offset_of!(Self, ends) + 4, self.ends[1]),
            (offset_of!(Self, ends) + 8, self.ends[2]),
        ];
        for (at, half) in halves {
            if let Some(place) = bytes.get_mut(at..at + 4) {
                place.copy_from_slice(&half.to_ne_bytes());
            }
        }
        bytes
    }
}

/// One packet, out: `struct knet_result`.
#[repr(C, align(32))]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PacketResult {
    /// One of [`verdict`].
    pub verdict: u32,
    /// What was found, or the mark.
    pub value: u32,
    /// Of the kernel's own.
    pub aux: u64,
    /// What it keeps now.
    pub state: [u64; 2],
}

impl PacketResult {
    /// As it lies in the ring.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; 32]) -> Self {
        let half = |at: usize| {
            let part = bytes.get(at..at + 4).and_then(|part| part.try_into().ok());
            u32::from_ne_bytes(part.unwrap_or_default())
        };
        let word = |at: usize| {
            let part = bytes.get(at..at + 8).and_then(|part| part.try_into().ok());
            u64::from_ne_bytes(part.unwrap_or_default())
        };
        let state = offset_of!(Self, state);
        Self {
            verdict: half(offset_of!(Self, verdict)),
            value: half(offset_of!(Self, value)),
            aux: word(offset_of!(Self, aux)),
            state: [word(state), word(state + 8)],
        }
    }
}

/// A batch: `struct knet_batch`.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct BatchDescriptor {
    /// One of [`status`].
    pub status: AtomicU32,
    /// Packets of it.
    pub count: u32,
    /// Counts the batches of the ring from 1.
    pub seq: u64,
    /// [`RING_ABI`].
    pub abi: u32,
    /// Why the kernel says [`status::ERROR`].
    pub error: u32,
    /// Device pointer to the kernel's parameters.
    pub params: u64,
    /// Device pointer to [`BATCH_SCRATCH_BYTES`].
    pub scratch: u64,
    /// Device pointer to the [`PacketRecord`]s.
    pub packets: u64,
    /// Device pointer to the [`PacketResult`]s.
    pub results: u64,
    /// Zero.
    pub reserved: u64,
}

/// What a persistent kernel is started with: `struct knet_ring`.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct RingDescriptor {
    /// [`RING_ABI`].
    pub abi: u32,
    /// Slots of the ring.
    pub slots: u32,
    /// Device pointer to the batch of slot 0.
    pub batches: u64,
    /// Bytes from batch to batch.
    pub stride: u64,
    /// Device pointer to [`RING_SCRATCH_BYTES`].
    pub scratch: u64,
    /// 1: end when no slot is ready; 2: end at once.
    pub quit: AtomicU32,
    /// Zero.
    pub reserved: [u32; 7],
    /// The kernel counts up while it polls.
    pub heartbeat: core::sync::atomic::AtomicU64,
    /// The kernel's last store: 1.
    pub ended: core::sync::atomic::AtomicU64,
    /// Zero.
    pub reserved2: [u64; 6],
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// `static_assert`s that a C compiler checks against the header.
    fn asserts() -> String {
        let mut text = "#include <stddef.h>\n#include \"knet_ring.h\"\n".to_owned();
        let mut check = |left: &str, right: usize| {
            text.push_str(&format!(
                "_Static_assert({left} == {right}, \"{}\");\n",
                left.replace('"', "")
            ));
        };
        macro_rules! layout {
            ($rust:ty, $c:literal, $($field:ident),+) => {
                check(concat!("sizeof(struct ", $c, ")"), size_of::<$rust>());
                $(check(
                    concat!("offsetof(struct ", $c, ", ", stringify!($field), ")"),
                    offset_of!($rust, $field),
                );)+
            };
        }
        layout!(
            PacketRecord,
            "knet_packet",
            addr,
            len,
            flags,
            offset,
            flow,
            ends,
            state,
            reserved
        );
        layout!(PacketResult, "knet_result", verdict, value, aux, state);
        layout!(
            BatchDescriptor,
            "knet_batch",
            status,
            count,
            seq,
            abi,
            error,
            params,
            scratch,
            packets,
            results,
            reserved
        );
        layout!(
            RingDescriptor,
            "knet_ring",
            abi,
            slots,
            batches,
            stride,
            scratch,
            quit,
            reserved,
            heartbeat,
            ended,
            reserved2
        );
        for (name, value) in [
            ("RING_ABI", RING_ABI),
            ("FREE", status::FREE),
            ("READY", status::READY),
            ("DONE", status::DONE),
            ("ERROR", status::ERROR),
            ("NOT_WRITTEN", verdict::NOT_WRITTEN),
            ("PASS", verdict::PASS),
            ("MATCH", verdict::MATCH),
            ("DROP", verdict::DROP),
            ("RESET", verdict::RESET),
            ("MARK", verdict::MARK),
            ("MIRROR", verdict::MIRROR),
            ("FAILED", verdict::FAILED),
            ("SENT", SENT),
            ("SEGMENT", SEGMENT),
        ] {
            check(&format!("KNET_{name}"), value as usize);
        }
        check("KNET_BATCH_MAX", BATCH_MAX);
        check("KNET_PACKET_BYTES_MAX", PACKET_BYTES_MAX);
        check("KNET_RING_SCRATCH_BYTES", RING_SCRATCH_BYTES);
        text
    }

    #[test]
    fn the_header_of_the_kernels_says_the_same() {
        let file = std::env::temp_dir().join(format!("knet-ring-layout-{}.c", std::process::id()));
        std::fs::write(&file, asserts()).unwrap();
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/gpu/cuda");
        let status = Command::new("cc")
            .args(["-std=c11", "-fsyntax-only", "-I", folder])
            .arg(&file)
            .status()
            .unwrap();
        std::fs::remove_file(&file).unwrap();
        assert!(status.success());
    }
}
