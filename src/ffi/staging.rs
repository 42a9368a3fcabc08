//! A few large buffers of the process, for calls that copy between a descriptor and a socket: too large for a thread's stack, and
//! malloc is not ours to call.
//!
//! # Safety
//! A buffer belongs to the one [`Staging`] whose claim of its owner word succeeded, until that is dropped. In a forked child the
//! parent's claims mean nothing.

#![allow(unsafe_code)]

use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use super::{pages, process};
use crate::errno::Result;

/// Bytes of a buffer.
pub const STAGING_BYTES: usize = 64 << 10;
/// Buffers of a process; who finds none makes one for its call.
const BUFFERS: usize = 4;

struct Buffer {
    /// Process that has a thread that uses it; 0 = free.
    owner: AtomicU32,
    /// Null = not mapped yet.
    base: AtomicPtr<u8>,
}

static BUFFERS_OF_PROCESS: [Buffer; BUFFERS] = [const {
    Buffer {
        owner: AtomicU32::new(0),
        base: AtomicPtr::new(core::ptr::null_mut()),
    }
}; BUFFERS];

/// A buffer for one call; given back on drop, also when the thread is cancelled.
#[derive(Debug)]
pub struct Staging {
    base: core::ptr::NonNull<u8>,
    /// None: mapped for this call alone.
    place: Option<usize>,
}

impl Staging {
    /// Takes a buffer.
    ///
    /// # Errors
    /// ENOMEM.
    pub fn take() -> Result<Self> {
        let me = process::pid();
        for (place, buffer) in BUFFERS_OF_PROCESS.iter().enumerate() {
            let owner = buffer.owner.load(Ordering::Relaxed);
            let claimed = owner != me
                && buffer
                    .owner
                    .compare_exchange(owner, me, Ordering::Acquire, Ordering::Relaxed)
                    .is_ok();
            if !claimed {
                continue;
            }
            let known = core::ptr::NonNull::new(buffer.base.load(Ordering::Acquire));
            let base = match known.map_or_else(|| pages::map(STAGING_BYTES), Ok) {
                Ok(base) => base,
                Err(error) => {
                    buffer.owner.store(0, Ordering::Release);
                    return Err(error);
                }
            };
            buffer.base.store(base.as_ptr(), Ordering::Release);
            return Ok(Self {
                base,
                place: Some(place),
            });
        }
        Ok(Self {
            base: pages::map(STAGING_BYTES)?,
            place: None,
        })
    }

    /// Its first `len` bytes, [`STAGING_BYTES`] at most.
    pub fn bytes(&mut self, len: usize) -> &mut [u8] {
        let len = len.min(STAGING_BYTES);
        // SAFETY: a mapping of STAGING_BYTES zeroed or written bytes that is ours alone; the borrow of self is unique.
        unsafe { core::slice::from_raw_parts_mut(self.base.as_ptr(), len) }
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        match self.place.and_then(|place| BUFFERS_OF_PROCESS.get(place)) {
            Some(buffer) => buffer.owner.store(0, Ordering::Release),
            None => {
                // SAFETY: mapped by `take` for this value, and no reference outlives it.
                let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), STAGING_BYTES) };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_ours_alone_and_come_back() {
        let mut taken: Vec<_> = (0..BUFFERS + 2).map(|_| Staging::take().unwrap()).collect();
        for (number, staging) in (0..).zip(&mut taken) {
            staging.bytes(usize::MAX).fill(number);
        }
        for (number, staging) in (0..).zip(&mut taken) {
            let bytes = staging.bytes(STAGING_BYTES);
            assert_eq!(bytes.len(), STAGING_BYTES);
            assert!(bytes.iter().all(|byte| *byte == number));
        }
        assert_eq!(taken.last().unwrap().place, None, "more than there are");
        taken.clear();
        assert!(Staging::take().unwrap().place.is_some());
    }
}
