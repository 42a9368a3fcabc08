//! The memory of what allocates in the preloaded object, apart from libc's.
//!
//! With inline progress a turn runs in a thread of the program, also in a signal handler that has interrupted malloc and calls
//! poll or recv, which POSIX lets it. A turn allocates (a new connection), so it must not come to libc's heap, whose lock or
//! half-made change the interrupted malloc holds. This heap's lock is held with signals blocked: a turn runs so, a thread of
//! ours has none, and any other caller blocks them. So nobody finds his own thread at it.
//!
//! Blocks are of the sizes 16, 32, 48, 64, 96, 128, 192 and so on up to [`LARGEST`], carved from pieces that are never given
//! back; larger ones are mappings of their own.
//!
//! # Safety
//! [`State`] is reached under its lock only. A block is of its layout's size class, so that it goes back to where it came from;
//! the free ones of a class are a list that lies in them.

#![allow(unsafe_code)]

use core::alloc::{GlobalAlloc, Layout};
use core::cell::UnsafeCell;
use core::ptr;
use core::sync::atomic::{AtomicU32, Ordering};

use rustix::mm::{MapFlags, MremapFlags, ProtFlags};

use super::signals::{self, Saved};
use super::thread_words;

/// The heap of the preloaded object.
#[derive(Debug, Default)]
pub struct Heap;

/// The largest block of a piece.
const LARGEST: usize = 64 << 10;
/// Size classes: 16, then two for each power of two.
const CLASSES: usize = 24;
/// Bytes that are mapped at a time.
const PIECE: usize = 512 << 10;
/// A page.
const PAGE: usize = 4_096;

#[derive(Clone, Copy)]
struct Class {
    /// The first free block, in whose first word the next one's address is.
    free: *mut u8,
    /// What is left of the piece.
    fresh: *mut u8,
    left: usize,
}

struct State {
    lock: AtomicU32,
    classes: UnsafeCell<[Class; CLASSES]>,
    /// The mask of who holds the lock over a fork.
    forking: UnsafeCell<Option<Saved>>,
}

// SAFETY: the cells are reached by who holds the lock only.
unsafe impl Sync for State {}

static STATE: State = State {
    lock: AtomicU32::new(0),
    classes: UnsafeCell::new(
        [Class {
            free: ptr::null_mut(),
            fresh: ptr::null_mut(),
            left: 0,
        }; CLASSES],
    ),
    forking: UnsafeCell::new(None),
};

/// Bytes of a class.
const fn size_of_class(class: usize) -> usize {
    match class {
        0 => 16,
        _ if class % 2 == 1 => 32 << (class / 2),
        _ => 48 << (class / 2 - 1),
    }
}

const _: () = assert!(size_of_class(CLASSES - 1) == LARGEST);

/// The class whose blocks are large enough and lie right; None: a mapping of its own.
fn class_of(layout: Layout) -> Option<usize> {
    let size = layout.size().max(16);
    if size > LARGEST || layout.align() > PAGE {
        return None;
    }
    let power = size.next_power_of_two();
    // 2^k has the class 2k - 9 (32 has 1), three quarters of it the one before.
    let whole = match power {
        16 => 0,
        _ => (power.trailing_zeros() as usize) * 2 - 9,
    };
    let smaller =
        (size > 32 && size <= power / 4 * 3 && layout.align() <= power / 4).then(|| whole - 1);
    let class = smaller.unwrap_or(whole);
    // A block lies at a multiple of its size: a large alignment needs as large a block.
    let mut class = class;
    while class < CLASSES && !size_of_class(class).is_multiple_of(layout.align()) {
        class += 1;
    }
    (class < CLASSES).then_some(class)
}

/// The lock, and the mask to go back to.
struct Held(Option<Saved>);

fn hold() -> Held {
    let role = thread_words::with(|words| words.role.load(Ordering::Relaxed));
    let saved = (role == thread_words::PROGRAM).then(signals::block);
    lock();
    Held(saved)
}

fn lock() {
    let mut tries = 0_u32;
    while STATE
        .lock
        .compare_exchange_weak(0, 1, Ordering::Acquire, Ordering::Relaxed)
        .is_err()
    {
        tries += 1;
        // Held for some instructions, unless its holder was put off the CPU.
        if tries.is_multiple_of(64) {
            rustix::thread::sched_yield();
        } else {
            core::hint::spin_loop();
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        STATE.lock.store(0, Ordering::Release);
        if let Some(saved) = &self.0 {
            signals::restore(saved);
        }
    }
}

/// Before a fork: nobody is in the middle of a change.
pub fn before_fork() {
    let saved = signals::block();
    lock();
    // SAFETY: under the lock.
    unsafe { *STATE.forking.get() = Some(saved) };
}

/// Behind a fork, in parent and child.
pub fn after_fork() {
    // SAFETY: under the lock, since `before_fork`.
    let saved = unsafe { (*STATE.forking.get()).take() };
    STATE.lock.store(0, Ordering::Release);
    if let Some(saved) = &saved {
        signals::restore(saved);
    }
}

fn map(bytes: usize) -> *mut u8 {
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a new mapping at an address of the kernel's choice aliases nothing.
    let made = unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), bytes, protection, flags) };
    made.map_or(ptr::null_mut(), <*mut core::ffi::c_void>::cast)
}

fn unmap(place: *mut u8, bytes: usize) {
    if bytes > 0 {
        // SAFETY: a part of a mapping of this heap that nobody uses any more.
        let _ = unsafe { rustix::mm::munmap(place.cast(), bytes) };
    }
}

fn pages(bytes: usize) -> usize {
    bytes.div_ceil(PAGE) * PAGE
}

/// A mapping for one block.
fn map_one(layout: Layout) -> *mut u8 {
    let (bytes, align) = (pages(layout.size()), layout.align());
    if align <= PAGE {
        return map(bytes);
    }
    let Some(room) = bytes.checked_add(align) else {
        return ptr::null_mut();
    };
    let base = map(room);
    if base.is_null() {
        return base;
    }
    let before = base.align_offset(align);
    unmap(base, before);
    // SAFETY: inside the mapping, which is `align` longer than the block.
    let block = unsafe { base.add(before) };
    // SAFETY: as above.
    let behind = unsafe { block.add(bytes) };
    unmap(behind, room - before - bytes);
    block
}

fn take(class: usize) -> *mut u8 {
    let size = size_of_class(class);
    let _held = hold();
    // SAFETY: under the lock.
    let classes = unsafe { &mut *STATE.classes.get() };
    let Some(class) = classes.get_mut(class) else {
        return ptr::null_mut();
    };
    if !class.free.is_null() {
        let block = class.free;
        // SAFETY: a free block, in whose first word `give` wrote the next one's address.
        class.free = unsafe { block.cast::<*mut u8>().read() };
        return block;
    }
    if class.left < size {
        let piece = map(PIECE);
        if piece.is_null() {
            return piece;
        }
        // What is left of the piece before is less than a block: it is never used.
        (class.fresh, class.left) = (piece, PIECE);
    }
    let block = class.fresh;
    // SAFETY: the piece has room for a block there.
    class.fresh = unsafe { block.add(size) };
    class.left -= size;
    block
}

fn give(class: usize, block: *mut u8) {
    let _held = hold();
    // SAFETY: under the lock.
    let classes = unsafe { &mut *STATE.classes.get() };
    if let Some(class) = classes.get_mut(class) {
        // SAFETY: the block is the caller's no more, at least 16 bytes and aligned to 16.
        unsafe { block.cast::<*mut u8>().write(class.free) };
        class.free = block;
    }
}

// SAFETY: a block comes from its class or a mapping, is as large and lies as its layout says, and is nobody else's.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        class_of(layout).map_or_else(|| map_one(layout), take)
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        match class_of(layout) {
            Some(class) => give(class, block),
            None => unmap(block, pages(layout.size())),
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let Some(class) = class_of(layout) else {
            return map_one(layout);
        };
        let block = take(class);
        if !block.is_null() {
            // SAFETY: as large as the layout says.
            unsafe { ptr::write_bytes(block, 0, layout.size()) };
        }
        block
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller promises that the size is one of a layout.
        let new = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        match (class_of(layout), class_of(new)) {
            (Some(before), Some(behind)) if before == behind => block,
            (None, None) if layout.align() <= PAGE => {
                let (old, new) = (pages(layout.size()), pages(size));
                // SAFETY: a mapping of this heap, which is the caller's.
                let moved =
                    unsafe { rustix::mm::mremap(block.cast(), old, new, MremapFlags::MAYMOVE) };
                moved.map_or(ptr::null_mut(), <*mut core::ffi::c_void>::cast)
            }
            _ => {
                // SAFETY: a layout.
                let place = unsafe { self.alloc(new) };
                if !place.is_null() {
                    let count = layout.size().min(size);
                    // SAFETY: two blocks of at least so many bytes.
                    unsafe { ptr::copy_nonoverlapping(block, place, count) };
                    // SAFETY: the caller's block, which is not used again.
                    unsafe { self.dealloc(block, layout) };
                }
                place
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_size_has_the_smallest_class_that_fits() {
        for class in 0..CLASSES {
            let size = size_of_class(class);
            let of = |size, align| class_of(Layout::from_size_align(size, align).unwrap());
            assert_eq!(of(size, 8), Some(class), "{size}");
            let next = (class + 1 < CLASSES).then_some(class + 1);
            assert_eq!(of(size + 1, 8), next, "{size}");
        }
        let of = |size, align| class_of(Layout::from_size_align(size, align).unwrap());
        assert_eq!(of(40, 64).map(size_of_class), Some(64));
        assert_eq!(of(10, 4_096).map(size_of_class), Some(4_096));
        assert_eq!(of(10, 8_192), None);
    }

    #[test]
    fn blocks_keep_what_is_in_them_and_lie_as_asked() {
        fn work(seed: u64) {
            let mut state = seed;
            let mut draw = |below: usize| {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                (state >> 33) as usize % below
            };
            let mut live: Vec<(*mut u8, Layout, u8)> = Vec::new();
            let check = |(block, layout, mark): (*mut u8, Layout, u8)| {
                assert_eq!(block as usize % layout.align(), 0);
                // SAFETY: a live block of so many bytes, all written.
                let bytes = unsafe { core::slice::from_raw_parts(block, layout.size()) };
                assert!(bytes.iter().all(|byte| *byte == mark));
            };
            for turn in 0..4_000_u32 {
                if live.len() > 60 || (draw(3) == 0 && !live.is_empty()) {
                    let one = live.swap_remove(draw(live.len()));
                    check(one);
                    // SAFETY: live, of this layout, and not used again.
                    unsafe { Heap.dealloc(one.0, one.1) };
                    continue;
                }
                let most = [100, 2_000, 100_000][draw(3)];
                let layout = Layout::from_size_align(1 + draw(most), 1 << draw(14)).unwrap();
                let mark = turn.to_le_bytes()[0];
                // SAFETY: not empty.
                let mut block = unsafe { Heap.alloc_zeroed(layout) };
                check((block, layout, 0));
                let mut layout = layout;
                if draw(4) == 0 {
                    let size = 1 + draw(most);
                    // SAFETY: live, of this layout.
                    block = unsafe { Heap.realloc(block, layout, size) };
                    layout = Layout::from_size_align(size, layout.align()).unwrap();
                }
                // SAFETY: as large.
                unsafe { ptr::write_bytes(block, mark, layout.size()) };
                live.push((block, layout, mark));
            }
            live.into_iter().for_each(check);
        }
        let threads: Vec<_> = (1..4)
            .map(|seed| std::thread::spawn(move || work(seed)))
            .collect();
        threads
            .into_iter()
            .for_each(|thread| thread.join().unwrap());
    }

    #[test]
    fn a_fork_finds_nobody_at_the_lock() {
        before_fork();
        let waits = std::thread::spawn(|| {
            // SAFETY: not empty.
            let block = unsafe { Heap.alloc(Layout::new::<u64>()) };
            assert!(!block.is_null());
        });
        assert_eq!(STATE.lock.load(Ordering::Relaxed), 1);
        after_fork();
        waits.join().unwrap();
    }
}
