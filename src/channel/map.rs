//! Mapping the channel: the only file that turns its memory into references and copies ring bytes.
//!
//! # Safety
//! Invariants that all blocks below rest on:
//! - a mapping is as long as its [`Layout`] says, checked against the memfd's size, and the memfd is
//!   sealed against shrinking and growing, so that every offset computed by `Layout` for an index below its bound lies
//!   inside and stays valid until the mapping is dropped;
//! - cells consist of atomics only (any bit pattern is valid), so shared references to memory that other
//!   processes change are sound;
//! - ring bytes are never seen through a slice that another process may write at the same time: they are
//!   copied by pointer, except for a flow's receive ring in the host, which the program maps read-only and the
//!   host lends to exactly one owner ([`Receive::lend`]).

#![allow(unsafe_code)]

use core::ptr::NonNull;

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::mm::{Advice, MapFlags, ProtFlags};

use super::bitmap::Bitmap;
use super::byte_ring::{Range, Span};
use super::cell::{EpollCell, Header, ObjectCell, ProcCell, SlotCell, process};
use super::layout::{EPOLLS, Layout, PROCS, SLOTS};
use super::sync::{AtomicU32, AtomicU64, Ordering};
use super::{ABI, MAGIC};
use crate::errno::{Errno, Result};
use crate::prefetch;

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
fn sealed(name: &str, bytes: u64) -> Result<OwnedFd> {
    let fd = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    rustix::fs::ftruncate(&fd, bytes)?;
    rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(fd)
}

/// Control memory, mapped read-write.
#[derive(Debug)]
pub struct Control {
    map: Mapping,
    layout: Layout,
}

impl Control {
    /// Makes control memory (host side) and returns it with its descriptor.
    ///
    /// # Errors
    /// What memfd_create, ftruncate or mmap say: EMFILE, ENOMEM, EPERM.
    pub fn create(layout: Layout) -> Result<(Self, OwnedFd)> {
        let fd = sealed("knet-control", layout.control_bytes())?;
        let map = Mapping::new(fd.as_fd(), layout.control_bytes(), true)?;
        let control = Self { map, layout };
        let header = control.header();
        header.objects.store(layout.objects, Ordering::Relaxed);
        header
            .rx_ring_bytes
            .store(layout.rx_ring_bytes, Ordering::Relaxed);
        header
            .tx_ring_bytes
            .store(layout.tx_ring_bytes, Ordering::Relaxed);
        header.lcores.store(layout.lcores, Ordering::Relaxed);
        header
            .large_ring_bytes
            .store(layout.large_ring_bytes, Ordering::Relaxed);
        header.size.store(header_size(), Ordering::Relaxed);
        header.abi.store(ABI, Ordering::Relaxed);
        header.magic.store(MAGIC, Ordering::Release);
        Ok((control, fd))
    }

    /// Lets go of the memory, in this process only: everything in it is zero from now on.
    pub fn wipe(&self) {
        self.map.wipe();
    }

    /// Maps control memory that the host has sent (program side).
    ///
    /// # Errors
    /// EPROTO when the header is not ours or the size is not what it says, else what mmap says.
    pub fn attach(fd: BorrowedFd<'_>) -> Result<Self> {
        let size = u64::try_from(rustix::fs::fstat(fd)?.st_size).map_err(|_| Errno::PROTO)?;
        let head = Mapping::new(fd, size.min(u64::from(header_size())), true)?;
        let header = head.cell::<Header>(0).ok_or(Errno::PROTO)?;
        let layout = Layout {
            objects: header.objects.load(Ordering::Relaxed),
            rx_ring_bytes: header.rx_ring_bytes.load(Ordering::Relaxed),
            tx_ring_bytes: header.tx_ring_bytes.load(Ordering::Relaxed),
            lcores: header.lcores.load(Ordering::Relaxed),
            large_ring_bytes: header.large_ring_bytes.load(Ordering::Relaxed),
        };
        let ours = header.magic.load(Ordering::Acquire) == MAGIC
            && header.abi.load(Ordering::Relaxed) == ABI
            && header.size.load(Ordering::Relaxed) == header_size();
        if !ours || !layout.is_valid() || size != layout.control_bytes() {
            return Err(Errno::PROTO);
        }
        Ok(Self {
            map: Mapping::new(fd, size, true)?,
            layout,
        })
    }

    /// The layout.
    #[must_use]
    pub const fn layout(&self) -> Layout {
        self.layout
    }

    /// The header.
    #[must_use]
    pub fn header(&self) -> &Header {
        // SAFETY: the header lies at offset 0 of a mapping that is at least `table_bytes` long, page aligned,
        // and consists of atomics only.
        unsafe { self.map.base.cast::<Header>().as_ref() }
    }

    /// A slot.
    #[must_use]
    pub fn slot(&self, index: u32) -> Option<&SlotCell> {
        (index < SLOTS).then_some(())?;
        self.map
            .cell(self.layout.slots_at() + u64::from(index) * size_of::<SlotCell>() as u64)
    }

    /// An epoll.
    #[must_use]
    pub fn epoll(&self, index: u32) -> Option<&EpollCell> {
        (index < EPOLLS).then_some(())?;
        self.map
            .cell(self.layout.epolls_at() + u64::from(index) * size_of::<EpollCell>() as u64)
    }

    /// A process.
    #[must_use]
    pub fn process(&self, index: u32) -> Option<&ProcCell> {
        (index < PROCS).then_some(())?;
        self.map
            .cell(self.layout.procs_at() + u64::from(index) * size_of::<ProcCell>() as u64)
    }

    /// The process cells that were ever taken: nearly always few of [`PROCS`].
    #[must_use]
    pub fn processes(&self) -> core::ops::Range<u32> {
        0..self.header().processes.load(Ordering::SeqCst).min(PROCS)
    }

    /// Process cell `index` is about to be taken.
    pub fn note_process(&self, index: u32) {
        let end = index.saturating_add(1);
        self.header().processes.fetch_max(end, Ordering::SeqCst);
    }

    /// Takes a free process cell for `state`.
    #[must_use]
    pub fn take_process(&self, state: u32) -> Option<u32> {
        (0..PROCS).find(|&index| {
            // Before it is taken: whoever asks who holds an object looks at all that are.
            self.note_process(index);
            let (free, order) = (process::FREE, Ordering::SeqCst);
            self.process(index).is_some_and(|cell| {
                cell.state
                    .compare_exchange(free, state, order, order)
                    .is_ok()
            })
        })
    }

    /// An object.
    #[must_use]
    pub fn object(&self, index: u32) -> Option<&ObjectCell> {
        (index < self.layout.objects).then_some(())?;
        self.map
            .cell(self.layout.objects_at() + u64::from(index) * size_of::<ObjectCell>() as u64)
    }

    fn bitmap(&self, offset: u64) -> Option<Bitmap<'_>> {
        let words = self
            .map
            .words::<AtomicU64>(offset, self.layout.map_words())?;
        Bitmap::new(words, self.layout.object_words())
    }

    /// The doorbells of an lcore, one an object.
    #[must_use]
    pub fn doorbells(&self, lcore: u32) -> Option<Bitmap<'_>> {
        (lcore < self.layout.lcores).then_some(())?;
        self.bitmap(self.layout.doorbells_at(lcore))
    }

    /// The lcore that an object belongs to.
    #[must_use]
    pub const fn lcore_of(&self, object: u32) -> u32 {
        self.layout.lcore_of(object)
    }

    /// The object indices that the program has handed out (only the lower half is used).
    #[must_use]
    pub fn taken(&self) -> Option<Bitmap<'_>> {
        self.bitmap(self.layout.taken_at())
    }

    /// The objects that are ready in epoll `index`.
    #[must_use]
    pub fn ready(&self, index: u32) -> Option<Bitmap<'_>> {
        (index < EPOLLS).then_some(())?;
        self.bitmap(self.layout.ready_at(index))
    }

    /// The objects that process `index` holds.
    #[must_use]
    pub fn held(&self, index: u32) -> Option<Bitmap<'_>> {
        (index < PROCS).then_some(())?;
        self.bitmap(self.layout.held_at(index))
    }

    fn tx_place(&self, object: u32, span: Span) -> Option<NonNull<u8>> {
        (object < self.layout.objects).then_some(())?;
        let end = span.offset.checked_add(span.len)?;
        (end <= self.layout.tx_bytes(object)).then_some(())?;
        self.map.at(
            self.layout.tx_ring_at(object) + u64::from(span.offset),
            u64::from(span.len),
        )
    }

    /// Puts memory behind the first `bytes` bytes of a transmit ring (program side), so that a touch cannot fail; false when there
    /// is none, or the kernel cannot do it (before Linux 5.14).
    #[must_use]
    pub fn tx_populate(&self, object: u32, bytes: u32) -> bool {
        let span = Span {
            offset: 0,
            len: bytes,
        };
        let Some(place) = self.tx_place(object, span) else {
            return false;
        };
        // SAFETY: inside the mapping; pages that are there keep their bytes, others come as zeros.
        let done = unsafe {
            rustix::mm::madvise(
                place.as_ptr().cast(),
                bytes as usize,
                Advice::LinuxPopulateWrite,
            )
        };
        done.is_ok()
    }

    /// Fetches the start of a transmit ring, where the bytes of who writes into an empty one go.
    pub fn tx_fetch(&self, object: u32) {
        let start = Span { offset: 0, len: 1 };
        if let Some(place) = self.tx_place(object, start) {
            prefetch::line(place.as_ptr().addr());
        }
    }

    /// Copies `from` into the transmit ring; copies nothing when `range` and `from` differ in length.
    pub fn tx_copy_in(&self, object: u32, range: Range, from: &[u8]) {
        let Some((first, second)) =
            parts(range, from.len()).and_then(|at| from.split_at_checked(at))
        else {
            return;
        };
        for (span, bytes) in [(range.first, first), (range.second, second)] {
            if let Some(place) = self.tx_place(object, span) {
                // SAFETY: `place` has span.len == bytes.len() bytes inside the mapping; the reservation gives the
                // caller the only right to write there; a program slice never overlaps our mapping.
                unsafe {
                    core::ptr::copy_nonoverlapping(bytes.as_ptr(), place.as_ptr(), bytes.len())
                };
            }
        }
    }

    /// Copies a span of the transmit ring out (host side). Bytes that a misbehaving program still writes come out as
    /// they are at the moment; returns false when the span or the length is out of bounds.
    #[must_use]
    pub fn tx_copy_out(&self, object: u32, span: Span, to: &mut [u8]) -> bool {
        if span.len as usize != to.len() {
            return false;
        }
        let Some(place) = self.tx_place(object, span) else {
            return false;
        };
        // SAFETY: inside the mapping, lengths equal; `to` is host memory. Concurrent writes by a misbehaving
        // program can only change the bytes copied.
        unsafe { core::ptr::copy_nonoverlapping(place.as_ptr(), to.as_mut_ptr(), to.len()) };
        true
    }
}

fn header_size() -> u32 {
    u32::try_from(size_of::<Header>()).unwrap_or(u32::MAX)
}

/// Bytes of a receive ring that are worth fetching ahead: a small request.
const FETCHED_BYTES: u32 = 128;

/// Where to split a buffer of `len` bytes for `range`; None when the lengths differ.
fn parts(range: Range, len: usize) -> Option<usize> {
    (range.len() as usize == len).then_some(range.first.len as usize)
}

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
    /// As [`Control::create`].
    pub fn create(layout: Layout) -> Result<(Self, OwnedFd)> {
        let fd = sealed("knet-receive", layout.receive_bytes())?;
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
    /// EPROTO when its size is not what `layout` says, else what mmap says.
    pub fn attach(fd: BorrowedFd<'_>, layout: Layout) -> Result<Self> {
        let size = u64::try_from(rustix::fs::fstat(fd)?.st_size).map_err(|_| Errno::PROTO)?;
        if size != layout.receive_bytes() {
            return Err(Errno::PROTO);
        }
        Ok(Self {
            map: Mapping::new(fd, size, false)?,
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

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn both_sides_see_the_same_cells_and_rings() {
        let layout = Layout::for_flows(1, 4_096, 4_096);
        let (host, fd) = Control::create(layout).unwrap();
        let program = Control::attach(fd.as_fd()).unwrap();
        assert_eq!(program.layout(), layout);
        host.object(7)
            .unwrap()
            .host
            .rx_tail
            .store(42, Ordering::Release);
        assert_eq!(
            program
                .object(7)
                .unwrap()
                .host
                .rx_tail
                .load(Ordering::Acquire),
            42
        );
        assert!(program.object(layout.objects).is_none());
        program.doorbells(0).unwrap().set(9);
        assert!(host.doorbells(0).unwrap().has(9));

        let range = Range::new(4_094, 4, 4_096);
        program.tx_copy_in(3, range, b"abcd");
        let mut out = [0; 2];
        assert!(host.tx_copy_out(3, range.first, &mut out));
        assert_eq!(&out, b"ab");
        assert!(host.tx_copy_out(3, range.second, &mut out));
        assert_eq!(&out, b"cd");
        assert!(!host.tx_copy_out(
            3,
            Span {
                offset: 4_095,
                len: 2
            },
            &mut out
        ));
    }

    #[test]
    fn the_program_reads_what_the_host_lends_to_the_stack() {
        let layout = Layout::for_flows(1, 4_096, 4_096);
        let (host, fd) = Receive::create(layout).unwrap();
        let program = Receive::attach(fd.as_fd(), layout).unwrap();
        // SAFETY: the only lender in this test, dropped before the mapping.
        let ring = unsafe { host.lend(5) }.unwrap();
        ring[4_095] = b'x';
        ring[0] = b'y';
        let mut out = [0; 2];
        assert!(program.copy_out(5, Range::new(4_095, 2, 4_096), &mut out));
        assert_eq!(&out, b"xy");
        back(fd.as_fd(), layout.rx_ring_at(5), 4_096).unwrap();
        unback(fd.as_fd(), layout.rx_ring_at(5), 4_096).unwrap();
        assert!(program.copy_out(5, Range::new(4_095, 2, 4_096), &mut out));
        assert_eq!(out, [0, 0]);
    }

    #[test]
    fn memory_that_is_not_ours_is_refused() {
        let fd = sealed("other", 1 << 20).unwrap();
        assert_eq!(Control::attach(fd.as_fd()).err(), Some(Errno::PROTO));
        let layout = Layout::for_flows(1, 4_096, 4_096);
        assert_eq!(
            Receive::attach(fd.as_fd(), layout).err(),
            Some(Errno::PROTO)
        );
        assert!(rustix::fs::ftruncate(&fd, 0).is_err(), "sealed");
    }
}
