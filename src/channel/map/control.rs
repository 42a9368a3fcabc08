//! Control memory: cells, maps and transmit rings.
//!
//! # Safety
//! The invariants of [`super`].

#![allow(unsafe_code)]

use core::ptr::NonNull;

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::mm::Advice;

use super::{Mapping, parts, sealed, sealed_size};
use crate::channel::bitmap::Bitmap;
use crate::channel::byte_ring::{Range, Span};
use crate::channel::cell::{
    AnswerCell, EpollCell, Header, ObjectCell, ProcCell, SlotCell, process,
};
use crate::channel::layout::{EPOLLS, Layout, PROCS, SLOTS};
use crate::channel::sync::{AtomicU64, Ordering};
use crate::channel::{ABI, MAGIC};
use crate::errno::{Errno, Result};
use crate::prefetch;

/// Where the parts of control memory lie that every call of a program asks for, computed once.
#[derive(Debug)]
struct Places {
    doorbells: u64,
    ready: u64,
    /// Bytes from one bitmap to the next.
    map_bytes: u64,
    /// Words of a bitmap, and those of them that are leaves.
    words: (usize, usize),
    objects: u64,
    answers: u64,
    /// The usual transmit rings.
    rings: u64,
}

impl Places {
    fn of(layout: &Layout) -> Self {
        Self {
            doorbells: layout.doorbells_at(0),
            ready: layout.ready_at(0),
            map_bytes: layout.ready_at(1) - layout.ready_at(0),
            words: (layout.map_words(), layout.object_words()),
            objects: layout.objects_at(),
            answers: layout.answers_at(),
            rings: layout.table_bytes(),
        }
    }
}

/// Control memory, mapped read-write.
#[derive(Debug)]
pub struct Control {
    map: Mapping,
    layout: Layout,
    places: Places,
}

impl Control {
    /// Makes control memory (host side) and returns it with its descriptor.
    ///
    /// # Errors
    /// What memfd_create, ftruncate or mmap say: EMFILE, ENOMEM, EPERM.
    pub fn create(layout: Layout) -> Result<(Self, OwnedFd)> {
        let fd = sealed(c"knet-control", layout.control_bytes())?;
        let map = Mapping::new(fd.as_fd(), layout.control_bytes(), true)?;
        let places = Places::of(&layout);
        let control = Self {
            map,
            layout,
            places,
        };
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
    /// EPROTO when the header is not ours, or the size is not what it says or can change, else what mmap says.
    pub fn attach(fd: BorrowedFd<'_>) -> Result<Self> {
        let size = sealed_size(fd)?;
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
            places: Places::of(&layout),
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
            .cell(self.places.objects + u64::from(index) * size_of::<ObjectCell>() as u64)
    }

    /// What is answered about an object; a look at it puts memory there.
    #[must_use]
    pub fn answer(&self, index: u32) -> Option<&AnswerCell> {
        (index < self.layout.objects).then_some(())?;
        self.map
            .cell(self.places.answers + u64::from(index) * size_of::<AnswerCell>() as u64)
    }

    fn bitmap(&self, offset: u64) -> Option<Bitmap<'_>> {
        let (words, leaves) = self.places.words;
        Bitmap::new(self.map.words::<AtomicU64>(offset, words)?, leaves)
    }

    /// The doorbells of an lcore, one an object.
    #[must_use]
    pub fn doorbells(&self, lcore: u32) -> Option<Bitmap<'_>> {
        (lcore < self.layout.lcores).then_some(())?;
        self.bitmap(self.places.doorbells + self.places.map_bytes * u64::from(lcore))
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
        self.bitmap(self.places.ready + self.places.map_bytes * u64::from(index))
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
        let ring = if self.layout.is_large(object) {
            self.layout.tx_ring_at(object)
        } else {
            self.places.rings + u64::from(self.layout.tx_ring_bytes) * u64::from(object)
        };
        self.map
            .at(ring + u64::from(span.offset), u64::from(span.len))
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
