//! Host memory that a GPU reads and writes as well.
//!
//! # Safety
//! The mapping is private, whole pages, and never unmapped: a kernel that did not end in time may still write there. Nobody has a
//! reference to it but to aligned atomic words; all else is copied in and out, inside the bounds, by whoever owns the value.

#![allow(unsafe_code)]

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, AtomicU64};
use core::time::Duration;

use super::super::pages;
use super::{DevicePointer, Driver, Fault};
use crate::time::monotonic;

/// Memory registered with the driver, zero at the beginning.
#[derive(Debug)]
pub struct Registered {
    base: NonNull<u8>,
    bytes: usize,
    device: DevicePointer,
}

// SAFETY: plain memory that is never unmapped; one thread at a time copies, as `&mut self` says, and words are atomics.
unsafe impl Send for Registered {}

/// What the driver wants to be whole.
const PAGE: usize = 4_096;
const HUGE_PAGE: usize = 2 << 20;

impl Registered {
    /// Maps and registers at least `bytes`.
    ///
    /// # Errors
    /// The driver's; code 2, out of memory, also where the kernel has none.
    pub fn new(driver: &Driver, bytes: usize) -> Result<Self, Fault> {
        let bytes = bytes.max(1).next_multiple_of(PAGE);
        let base = pages::map(bytes).map_err(|errno| unmapped(&errno))?;
        // SAFETY: mapped above, whole pages, never unmapped; no reference but to atomics is ever made.
        let device = unsafe { driver.register(base, bytes) }?;
        Ok(Self {
            base,
            bytes,
            device,
        })
    }

    /// As [`Registered::new`], of pages that are there already, small ones or of 2 MiB; says how long the driver took for them.
    ///
    /// # Errors
    /// As there.
    pub fn timed(driver: &Driver, bytes: usize, is_huge: bool) -> Result<(Self, Duration), Fault> {
        let bytes = bytes.max(1).next_multiple_of(HUGE_PAGE);
        let mapped = if is_huge {
            pages::map_huge(bytes)
        } else {
            pages::map(bytes)
        };
        let base = mapped.map_err(|errno| unmapped(&errno))?;
        for page in (0..bytes).step_by(PAGE) {
            // SAFETY: inside the mapping.
            let place = unsafe { base.add(page) };
            // SAFETY: nobody else knows of the mapping.
            unsafe { place.write_volatile(1) };
        }
        let begin = monotonic();
        // SAFETY: as in `new`.
        let device = unsafe { driver.register(base, bytes) }?;
        let took = monotonic().since(begin);
        Ok((
            Self {
                base,
                bytes,
                device,
            },
            took,
        ))
    }

    /// Whether the GPU calls it by our own addresses.
    #[must_use]
    pub fn has_own_name(&self) -> bool {
        self.device.0 == self.base.addr().get() as u64
    }

    /// How long it is.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// How the GPU calls the byte at `offset`.
    #[must_use]
    pub const fn device(&self, offset: usize) -> DevicePointer {
        self.device.plus(offset)
    }

    fn at(&self, offset: usize, bytes: usize) -> Option<NonNull<u8>> {
        let end = offset.checked_add(bytes)?;
        // SAFETY: the range lies inside the mapping.
        (end <= self.bytes).then(|| unsafe { self.base.add(offset) })
    }

    /// The 32-bit word at `offset`, which is a multiple of 4; None outside.
    #[must_use]
    pub fn word(&self, offset: usize) -> Option<&AtomicU32> {
        let place = self.at(offset, 4).filter(|_| offset.is_multiple_of(4))?;
        // SAFETY: inside the mapping, aligned, lives as long as self, and only ever used as an atomic.
        Some(unsafe { place.cast::<AtomicU32>().as_ref() })
    }

    /// The 64-bit word at `offset`, which is a multiple of 8; None outside.
    #[must_use]
    pub fn word64(&self, offset: usize) -> Option<&AtomicU64> {
        let place = self.at(offset, 8).filter(|_| offset.is_multiple_of(8))?;
        // SAFETY: as for `word`.
        Some(unsafe { place.cast::<AtomicU64>().as_ref() })
    }

    /// Copies `from` to `offset`; false, and nothing done, when it does not fit.
    #[must_use]
    pub fn put(&mut self, offset: usize, from: &[u8]) -> bool {
        let Some(place) = self.at(offset, from.len()) else {
            return false;
        };
        // SAFETY: both sides are as long, and the slice is not in the mapping, to which nobody has a reference.
        unsafe { core::ptr::copy_nonoverlapping(from.as_ptr(), place.as_ptr(), from.len()) };
        true
    }

    /// Copies what lies at `offset` to `to`; false, and nothing done, when there is less.
    #[must_use]
    pub fn take(&self, offset: usize, to: &mut [u8]) -> bool {
        let Some(place) = self.at(offset, to.len()) else {
            return false;
        };
        // SAFETY: as for `put`.
        unsafe { core::ptr::copy_nonoverlapping(place.as_ptr(), to.as_mut_ptr(), to.len()) };
        true
    }
}

fn unmapped(errno: &crate::errno::Errno) -> Fault {
    Fault {
        call: "mmap",
        code: 2,
        name: errno.to_string(),
    }
}
