//! Buffers that the GPU reaches: a chunk lies in one from its copy out of a ring until it is acted upon.
//!
//! Their number is fixed, so memory is bounded whatever the GPU does: one that a late kernel may still write to is missing
//! until the GPU gives it back.

use super::ring::PACKET_BYTES_MAX;
use crate::ffi::cuda::{DevicePointer, Driver, Fault, Registered};

/// The buffers of one lcore.
#[derive(Debug)]
pub(super) struct Pool {
    memory: Registered,
    count: usize,
    /// The warmest last.
    free: Vec<u32>,
}

/// 16 MiB.
pub(super) const BUFFERS_MAX: usize = 1_024;

impl Pool {
    /// At most `wanted` buffers.
    ///
    /// # Errors
    /// The driver's.
    pub(super) fn new(driver: &Driver, wanted: usize) -> Result<Self, Fault> {
        let count = wanted.clamp(1, BUFFERS_MAX);
        let memory = Registered::new(driver, count * PACKET_BYTES_MAX)?;
        Ok(Self {
            memory,
            count,
            free: (0..u32::try_from(count).unwrap_or(1)).rev().collect(),
        })
    }

    /// Buffers that nobody has.
    pub(super) const fn free(&self) -> usize {
        self.free.len()
    }

    /// Buffers that somebody has.
    pub(super) const fn out(&self) -> usize {
        self.count - self.free.len()
    }

    /// Copies `bytes`, at most [`PACKET_BYTES_MAX`], into a buffer; None when there is none.
    pub(super) fn store(&mut self, bytes: &[u8]) -> Option<u32> {
        let buffer = self.free.pop()?;
        if bytes.len() <= PACKET_BYTES_MAX && self.memory.put(at(buffer), bytes) {
            return Some(buffer);
        }
        self.free.push(buffer);
        None
    }

    /// Copies what lies in a buffer from `skip` on to `to`.
    #[must_use]
    pub(super) fn load(&self, buffer: u32, skip: usize, to: &mut [u8]) -> bool {
        skip + to.len() <= PACKET_BYTES_MAX && self.memory.take(at(buffer) + skip, to)
    }

    /// Copies `bytes` back to the beginning of a buffer.
    pub(super) fn update(&mut self, buffer: u32, bytes: &[u8]) -> bool {
        bytes.len() <= PACKET_BYTES_MAX && self.memory.put(at(buffer), bytes)
    }

    /// How the GPU calls a buffer.
    pub(super) const fn device(&self, buffer: u32) -> DevicePointer {
        self.memory.device(at(buffer))
    }

    /// Nobody uses the buffer any more.
    pub(super) fn give_back(&mut self, buffer: u32) {
        self.free.push(buffer);
    }
}

const fn at(buffer: u32) -> usize {
    buffer as usize * PACKET_BYTES_MAX
}
