//! Mapping the channel: the only place where its memory becomes references and ring bytes are copied.
//!
//! This file knows what a mapping is; `control` and `receive` know what lies in it.
//!
//! # Safety
//! Invariants that all blocks here and in those two rest on:
//! - a mapping is as long as its [`Layout`](super::layout::Layout) says, checked against the memfd's size, and the memfd is
//!   sealed against shrinking and growing, so that every offset computed by `Layout` for an index below its bound lies
//!   inside and stays valid until the mapping is dropped;
//! - cells consist of atomics only (any bit pattern is valid), so shared references to memory that other
//!   processes change are sound;
//! - ring bytes are never seen through a slice that another process may write at the same time: they are
//!   copied by pointer, except for a flow's receive ring in the host, which the program maps read-only and the
//!   host lends to exactly one owner ([`Receive::lend`]).

#![allow(unsafe_code)]

mod control;
mod receive;
#[cfg(test)]
#[cfg(not(loom))]
mod tests;

use core::ffi::CStr;
use core::ptr::NonNull;

use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::mm::{Advice, MapFlags, ProtFlags};

use super::byte_ring::Range;
use crate::errno::{Errno, Result};
use crate::file_limit;

pub use control::Control;
pub use receive::{Receive, Staging};

/// A shared mapping, unmapped on drop.
#[derive(Debug)]
struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a mapping is plain memory; all access goes through atomics or the ring protocols.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(fd: BorrowedFd<'_>, bytes: u64, writable: bool) -> Result<Self> {
        let bytes = usize::try_from(bytes).map_err(|_| Errno::NOMEM)?;
        let protection = if writable {
            ProtFlags::READ | ProtFlags::WRITE
        } else {
            ProtFlags::READ
        };
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice aliases nothing.
        let base =
            unsafe { rustix::mm::mmap(core::ptr::null_mut(), bytes, protection, flags, fd, 0) }?;
        // SAFETY: the range was just mapped; DONTDUMP changes no contents. A kernel that refuses it only makes
        // core dumps larger.
        let _ = unsafe { rustix::mm::madvise(base, bytes, Advice::LinuxDontDump) };
        let base = NonNull::new(base.cast::<u8>()).ok_or(Errno::NOMEM)?;
        Ok(Self { base, bytes })
    }

    /// Puts zeros of this process alone into the place of what is mapped, and so lets go of its memory.
    fn wipe(&self) {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
        let base = self.base.as_ptr().cast();
        // SAFETY: the range of this mapping, which stays mapped at every moment. References into it are to atomics, for
        // which any contents do, and ring bytes are copied by pointer. A refusal changes nothing.
        let _ = unsafe { rustix::mm::mmap_anonymous(base, self.bytes, protection, flags) };
    }

    /// A pointer to `len` bytes at `offset`, or None when they are not inside.
    fn at(&self, offset: u64, len: u64) -> Option<NonNull<u8>> {
        let end = offset.checked_add(len)?;
        if end > self.bytes as u64 {
            return None;
        }
        let offset = usize::try_from(offset).ok()?;
        // SAFETY: offset <= bytes, which is the length of one mapping.
        Some(unsafe { self.base.add(offset) })
    }

    /// A cell at `offset`. `T` consists of atomics only; offsets come from `Layout`, which aligns them.
    fn cell<T>(&self, offset: u64) -> Option<&T> {
        let place = self.at(offset, size_of::<T>() as u64)?.cast::<T>();
        if !place.is_aligned() {
            return None;
        }
        // SAFETY: inside the mapping and aligned; made of atomics, so any contents and any concurrent writer
        // are allowed; the borrow of self keeps it mapped.
        Some(unsafe { place.as_ref() })
    }

    /// `count` atomics at `offset`.
    fn words<T>(&self, offset: u64, count: usize) -> Option<&[T]> {
        let len = count.checked_mul(size_of::<T>())?;
        let place = self.at(offset, len as u64)?.cast::<T>();
        if !place.is_aligned() {
            return None;
        }
        // SAFETY: as in `cell`, for `count` of them.
        Some(unsafe { core::slice::from_raw_parts(place.as_ptr(), count) })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `new` and every reference into it borrows self.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

/// A memfd of `bytes` bytes that can neither shrink nor grow.
///
/// # Errors
/// What memfd_create(2) and ftruncate(2) say; EFBIG behind the file size limit, which a host inside a program shares with it.
pub fn sealed(name: &CStr, bytes: u64) -> Result<OwnedFd> {
    file_limit::check(bytes)?;
    let fd = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    rustix::fs::ftruncate(&fd, bytes)?;
    rustix::fs::fcntl_add_seals(&fd, FIXED | SealFlags::SEAL)?;
    Ok(fd)
}

/// The size of memory that somebody else has made: it stays what it is, so that no touch of it is a SIGBUS.
///
/// # Errors
/// EPROTO when its size can change, or it is no memory.
pub fn sealed_size(fd: BorrowedFd<'_>) -> Result<u64> {
    let seals = rustix::fs::fcntl_get_seals(fd).map_err(|_| Errno::PROTO)?;
    if !seals.contains(FIXED) {
        return Err(Errno::PROTO);
    }
    u64::try_from(rustix::fs::fstat(fd)?.st_size).map_err(|_| Errno::PROTO)
}

/// Its size stays.
const FIXED: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

/// Where to split a buffer of `len` bytes for `range`; None when the lengths differ.
fn parts(range: Range, len: usize) -> Option<usize> {
    (range.len() as usize == len).then_some(range.first.len as usize)
}

/// Puts memory behind `bytes` bytes at `offset` of a memfd, so that a later touch cannot fail.
///
/// # Errors
/// ENOSPC or ENOMEM when there is none.
pub fn back(fd: BorrowedFd<'_>, offset: u64, bytes: u64) -> Result<()> {
    rustix::fs::fallocate(fd, FallocateFlags::KEEP_SIZE, offset, bytes)
}

/// Takes the memory behind `bytes` bytes at `offset` of a memfd away; they read as zero afterwards.
///
/// # Errors
/// What fallocate says.
pub fn unback(fd: BorrowedFd<'_>, offset: u64, bytes: u64) -> Result<()> {
    rustix::fs::fallocate(
        fd,
        FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
        offset,
        bytes,
    )
}
