//! Memory of others that a GPU reads: mapped until the process ends, and registered once.
//!
//! # Safety
//! [`Lasting::new`] has the promise that the memory stays mapped. Nobody here makes a reference to it or touches it, and kernels that
//! are given addresses of it only read: so whoever owns it may go on using it.

#![allow(unsafe_code)]

use core::ptr::NonNull;

use super::{DevicePointer, Driver, Fault};

/// Where such memory lies.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Lasting {
    /// First byte and length of each chunk.
    chunks: Vec<(usize, usize)>,
}

impl Lasting {
    /// These chunks: first byte, length.
    ///
    /// # Safety
    /// The pages that they lie in are mapped until the process ends.
    #[must_use]
    pub const unsafe fn new(chunks: Vec<(usize, usize)>) -> Self {
        Self { chunks }
    }

    /// Whole pages that hold all chunks: begin and end. Each chunk lies in one of them.
    fn spans(&self) -> Vec<(usize, usize)> {
        let whole = |&(start, bytes): &(usize, usize)| {
            let end = start.saturating_add(bytes).checked_next_multiple_of(PAGE);
            (start / PAGE * PAGE, end.unwrap_or(0))
        };
        let mut spans: Vec<_> = self.chunks.iter().map(whole).collect();
        spans.retain(|(start, end)| start < end && *start != 0);
        spans.sort_unstable();
        let mut merged: Vec<(usize, usize)> = Vec::with_capacity(spans.len());
        for (start, end) in spans {
            match merged.last_mut() {
                // They share a page, which can be registered once.
                Some((_, last)) if start < *last => *last = end.max(*last),
                _ => merged.push((start, end)),
            }
        }
        merged
    }
}

/// Memory that was registered, and how the GPU calls it.
#[derive(Debug)]
pub struct Lent {
    /// Begin, end and the GPU's name of the begin, in order.
    parts: Vec<(usize, usize, DevicePointer)>,
}

/// What the driver wants to be whole.
const PAGE: usize = 4_096;

impl Lent {
    /// Registers all of it, chunk by chunk.
    ///
    /// # Errors
    /// The driver's. What was registered before stays so.
    pub fn new(driver: &Driver, memory: &Lasting) -> Result<Self, Fault> {
        let mut parts = Vec::new();
        for (start, end) in memory.spans() {
            let Some(base) = NonNull::new(core::ptr::with_exposed_provenance_mut(start)) else {
                continue;
            };
            // SAFETY: whole pages that stay mapped, as `Lasting::new` says; kernels only read there.
            let device = unsafe { driver.register(base, end - start) }?;
            parts.push((start, end, device));
        }
        Ok(Self { parts })
    }

    /// How the GPU calls `bytes` bytes at `address`; None when they are not all in one part.
    #[must_use]
    pub fn device(&self, address: usize, bytes: usize) -> Option<DevicePointer> {
        let behind = self
            .parts
            .partition_point(|(start, _, _)| *start <= address);
        let (start, end, device) = self.parts.get(behind.checked_sub(1)?)?;
        let last = address.checked_add(bytes)?;
        (last <= *end).then(|| device.plus(address - start))
    }

    /// Bytes of all parts.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.parts.iter().map(|(start, end, _)| end - start).sum()
    }
}

#[cfg(test)]
impl Lasting {
    /// Memory of a test's own, which nobody ever gives back.
    pub(crate) fn leaked(bytes: usize) -> (Self, &'static mut [u8]) {
        let all = Box::leak(vec![0; bytes + 2 * PAGE].into_boxed_slice());
        let skip = all.as_ptr().addr().next_multiple_of(PAGE) - all.as_ptr().addr();
        let memory = all.get_mut(skip..skip + bytes).unwrap_or_default();
        // SAFETY: leaked.
        let lasting = unsafe { Self::new(vec![(memory.as_ptr().expose_provenance(), bytes)]) };
        (lasting, memory)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spans(chunks: &[(usize, usize)]) -> Vec<(usize, usize)> {
        // SAFETY: nothing is registered.
        unsafe { Lasting::new(chunks.to_vec()) }.spans()
    }

    #[test]
    fn chunks_become_whole_pages_and_no_page_is_in_two() {
        assert_eq!(spans(&[]), []);
        assert_eq!(spans(&[(0, 100), (4_096, 0)]), []);
        assert_eq!(spans(&[(4_100, 1)]), [(4_096, 8_192)]);
        // Neighbours stay apart, those that share a page do not.
        assert_eq!(
            spans(&[(12_288, 4_096), (4_096, 4_096), (8_192, 10)]),
            [(4_096, 8_192), (8_192, 12_288), (12_288, 16_384)]
        );
        assert_eq!(spans(&[(8_200, 5_000), (4_096, 4_200)]), [(4_096, 16_384)]);
        assert_eq!(spans(&[(4_096, 20_000), (8_192, 10)]), [(4_096, 24_576)]);
        assert_eq!(spans(&[(usize::MAX - 5, 5)]), []);
    }

    #[test]
    fn an_address_is_found_in_its_part_and_nowhere_else() {
        let at = |start, end, device| (start, end, DevicePointer(device));
        let lent = Lent {
            parts: vec![at(4_096, 8_192, 100_000), at(12_288, 16_384, 200_000)],
        };
        assert_eq!(lent.device(4_096, 4_096), Some(DevicePointer(100_000)));
        assert_eq!(lent.device(12_300, 84), Some(DevicePointer(200_012)));
        for (address, bytes) in [
            (4_095, 1),
            (8_190, 3),
            (8_192, 1),
            (16_384, 1),
            (usize::MAX, 2),
        ] {
            assert_eq!(lent.device(address, bytes), None, "{address} {bytes}");
        }
        assert_eq!(lent.bytes(), 8_192);
    }
}
