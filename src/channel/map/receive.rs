//! Receive memory: the rings of flows and the accept queues of listeners; and the host's second view of it.
//!
//! # Safety
//! The invariants of [`super`].

#![allow(unsafe_code)]

use core::ptr::NonNull;

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};

use super::{Mapping, parts, sealed, sealed_size};
use crate::channel::byte_ring::{Range, Span};
use crate::channel::layout::Layout;
use crate::channel::sync::{AtomicU32, Ordering};
use crate::errno::{Errno, Result};
use crate::prefetch;

/// Receive memory: read-only in a program, read-write in the host.
#[derive(Debug)]
pub struct Receive {
    map: Mapping,
    layout: Layout,
}

impl Receive {
    /// Makes receive memory (host side) and returns it with its descriptor.
    ///
    /// # Errors
    /// As [`super::Control::create`].
    pub fn create(layout: Layout) -> Result<(Self, OwnedFd)> {
        let fd = sealed(c"knet-receive", layout.receive_bytes())?;
        Ok((
            Self {
                map: Mapping::new(fd.as_fd(), layout.receive_bytes(), true)?,
                layout,
            },
            fd,
        ))
    }

    /// Lets go of the memory, in this process only: everything in it is zero from now on. Not for the host, whose stack
    /// has slices of it.
    pub fn wipe(&self) {
        self.map.wipe();
    }

    /// Maps receive memory that the host has sent (program side), read-only.
    ///
    /// # Errors
    /// EPROTO when its size is not what `layout` says or can change, else what mmap says.
    pub fn attach(fd: BorrowedFd<'_>, layout: Layout) -> Result<Self> {
        if sealed_size(fd)? != layout.receive_bytes() {
            return Err(Errno::PROTO);
        }
        Ok(Self {
            map: Mapping::new(fd, layout.receive_bytes(), false)?,
            layout,
        })
    }

    fn place(&self, object: u32, span: Span) -> Option<NonNull<u8>> {
        (object < self.layout.objects).then_some(())?;
        let end = span.offset.checked_add(span.len)?;
        (end <= self.layout.rx_bytes(object)).then_some(())?;
        self.map.at(
            self.layout.rx_ring_at(object) + u64::from(span.offset),
            u64::from(span.len),
        )
    }

    /// Fetches the first lines of what waits in a receive ring.
    pub fn fetch(&self, object: u32, range: Range) {
        let first = Span {
            offset: range.first.offset,
            len: range.first.len.min(FETCHED_BYTES),
        };
        if let Some(place) = self.place(object, first) {
            prefetch::lines(place.as_ptr().addr(), first.len as usize);
        }
    }

    /// Copies bytes of a flow's receive ring out; false when the lengths differ or the range is out of bounds.
    #[must_use]
    pub fn copy_out(&self, object: u32, range: Range, to: &mut [u8]) -> bool {
        let Some((first, second)) =
            parts(range, to.len()).and_then(|at| to.split_at_mut_checked(at))
        else {
            return false;
        };
        for (span, bytes) in [(range.first, first), (range.second, second)] {
            let Some(place) = self.place(object, span) else {
                return false;
            };
            // SAFETY: inside the mapping, lengths equal. The lcore may reuse the place when another reader has
            // taken these bytes meanwhile; then `byte_ring::take` fails and the copy is thrown away.
            unsafe {
                core::ptr::copy_nonoverlapping(place.as_ptr(), bytes.as_mut_ptr(), bytes.len())
            };
        }
        true
    }

    /// The entries of the accept queue that `lcore` has of a listener; the queues of all lcores lie in the listener's ring, one
    /// behind the other.
    #[must_use]
    pub fn accept_entries(&self, object: u32, lcore: u32) -> Option<&[AtomicU32]> {
        (object < self.layout.objects && lcore < self.layout.lcores).then_some(())?;
        let entries = self.layout.accept_entries();
        let from = u64::from(lcore) * u64::from(entries) * 4;
        self.map
            .words(self.layout.rx_ring_at(object) + from, entries as usize)
    }

    /// Lends a flow's whole receive ring to smoltcp (host side).
    ///
    /// # Safety
    /// The caller owns the ring of `object` (it hands each index to one flow at a time), uses it for no
    /// accept queue meanwhile, and drops the slice before this mapping. No process maps it writable but the host.
    #[must_use]
    pub unsafe fn lend(&self, object: u32) -> Option<&'static mut [u8]> {
        let len = self.layout.rx_bytes(object);
        let place = self.place(object, Span { offset: 0, len })?;
        // SAFETY: inside the mapping; unique and outlived by the mapping as the caller promises.
        Some(unsafe { core::slice::from_raw_parts_mut(place.as_ptr(), len as usize) })
    }
}

/// A second mapping of receive memory in the host, through which received bytes are looked at and changed before the
/// program is told of them. Nothing of it is ever lent for longer than a call.
#[derive(Debug)]
pub struct Staging {
    map: Mapping,
    layout: Layout,
}

impl Staging {
    /// Maps receive memory once more.
    ///
    /// # Errors
    /// What mmap says.
    pub fn new(fd: BorrowedFd<'_>, layout: Layout) -> Result<Self> {
        Ok(Self {
            map: Mapping::new(fd, layout.receive_bytes(), true)?,
            layout,
        })
    }

    /// A span of a flow's receive ring. Its pages must have memory. The caller is the lcore that owns the flow: nobody else
    /// writes there, and the stack itself does so only in its own calls.
    pub fn bytes_mut(&mut self, object: u32, span: Span) -> Option<&mut [u8]> {
        (object < self.layout.objects).then_some(())?;
        let end = span.offset.checked_add(span.len)?;
        (end <= self.layout.rx_bytes(object)).then_some(())?;
        let place = self.map.at(
            self.layout.rx_ring_at(object) + u64::from(span.offset),
            u64::from(span.len),
        )?;
        // What the stack wrote through its own mapping comes first, for the compiler; it is the same memory for the CPU.
        core::sync::atomic::compiler_fence(Ordering::SeqCst);
        // SAFETY: inside the mapping; the borrow of self makes it the only reference through this mapping, programs map the
        // memory read-only, and the lcore that calls is the thread of the stack, which is in no call now.
        Some(unsafe { core::slice::from_raw_parts_mut(place.as_ptr(), span.len as usize) })
    }
}

/// Bytes of a receive ring that are worth fetching ahead: a small request.
const FETCHED_BYTES: u32 = 128;
