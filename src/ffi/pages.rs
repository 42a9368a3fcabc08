//! Private anonymous memory for tables that are too large for a stack, without malloc.
//!
//! # Safety
//! A mapping belongs to one [`Pages`] (or, leaked, to nobody) and is as long as `count` elements, all of them
//! written before a slice of them is made.

#![allow(unsafe_code)]

use core::ptr::NonNull;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use rustix::mm::{MapFlags, ProtFlags};

use crate::errno::{Errno, Result};

/// Zeroed private memory.
pub(super) fn map(bytes: usize) -> Result<NonNull<u8>> {
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a new mapping at an address of the kernel's choice aliases nothing.
    let base =
        unsafe { rustix::mm::mmap_anonymous(core::ptr::null_mut(), bytes, protection, flags) }?;
    NonNull::new(base.cast::<u8>()).ok_or(Errno::NOMEM)
}

/// As [`map`], of pages of 2 MiB, which the machine must have reserved; whole ones.
pub(super) fn map_huge(bytes: usize) -> Result<NonNull<u8>> {
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::PRIVATE | MapFlags::HUGETLB | MapFlags::HUGE_2MB;
    // SAFETY: a new mapping at an address of the kernel's choice aliases nothing.
    let base =
        unsafe { rustix::mm::mmap_anonymous(core::ptr::null_mut(), bytes, protection, flags) }?;
    NonNull::new(base.cast::<u8>()).ok_or(Errno::NOMEM)
}

/// `count` copies of a value in memory of their own, unmapped on drop.
#[derive(Debug)]
pub struct Pages<T: Copy> {
    base: NonNull<T>,
    count: usize,
}

impl<T: Copy> Pages<T> {
    /// Maps room for `count` values and fills it with `value`.
    ///
    /// # Errors
    /// ENOMEM.
    pub fn filled(count: usize, value: T) -> Result<Self> {
        const { assert!(align_of::<T>() <= 4_096) };
        let bytes = count.max(1).checked_mul(size_of::<T>().max(1));
        let base = map(bytes.ok_or(Errno::NOMEM)?)?.cast::<T>();
        for index in 0..count {
            // SAFETY: index < count, for which the mapping has room.
            let place = unsafe { base.add(index) };
            // SAFETY: inside the mapping, which is page aligned and ours.
            unsafe { place.write(value) };
        }
        Ok(Self { base, count })
    }

    /// The values.
    pub fn as_mut_slice(&mut self) -> &mut [T] {
        // SAFETY: `filled` wrote all of them; the borrow of self is unique.
        unsafe { core::slice::from_raw_parts_mut(self.base.as_ptr(), self.count) }
    }
}

impl<T: Copy> Drop for Pages<T> {
    fn drop(&mut self) {
        let bytes = self.count.max(1) * size_of::<T>().max(1);
        // SAFETY: the range that `filled` mapped; no reference outlives self.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), bytes) };
    }
}

/// Keeps a value for ever, in a page of its own.
///
/// # Errors
/// ENOMEM.
pub fn keep<T: Sync>(value: T) -> Result<&'static T> {
    const { assert!(align_of::<T>() <= 4_096) };
    let place = map(size_of::<T>().max(1))?.cast::<T>();
    // SAFETY: a mapping of our own, as long as the value and page aligned.
    unsafe { place.write(value) };
    // SAFETY: written above, and never unmapped or written again.
    Ok(unsafe { place.as_ref() })
}

/// A reference that can be there or not, and can be replaced by another one.
#[derive(Debug)]
pub struct LastingRef<T: Sync + 'static> {
    /// Null, or what a `&'static T` was made into.
    place: AtomicPtr<T>,
}

impl<T: Sync + 'static> LastingRef<T> {
    /// None.
    #[must_use]
    pub const fn none() -> Self {
        Self {
            place: AtomicPtr::new(core::ptr::null_mut()),
        }
    }

    /// The last one that was put.
    #[inline]
    pub fn get(&self) -> Option<&'static T> {
        // Acquire: pairs with `put`.
        let place = self.place.load(Ordering::Acquire);
        // SAFETY: null, or made of a reference that is valid for ever and shared.
        unsafe { place.as_ref() }
    }

    /// Puts another one.
    pub fn put(&self, value: &'static T) {
        self.place
            .store(core::ptr::from_ref(value).cast_mut(), Ordering::Release);
    }
}

/// Zero words for ever, mapped when first asked for; pages that nobody touches cost nothing.
#[derive(Debug)]
pub struct LazyWords {
    /// Null, or a mapping whose first word counts the words behind it.
    base: AtomicPtr<AtomicU32>,
}

impl LazyWords {
    /// Nothing mapped yet.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            base: AtomicPtr::new(core::ptr::null_mut()),
        }
    }

    /// The words; `count` of them when this is the first call.
    ///
    /// # Errors
    /// ENOMEM.
    pub fn words(&self, count: u32) -> Result<&'static [AtomicU32]> {
        // Acquire: pairs with the exchange below; the count is written before.
        let mut base = self.base.load(Ordering::Acquire);
        if base.is_null() {
            let bytes = (count as usize + 1).checked_mul(4).ok_or(Errno::NOMEM)?;
            let fresh = map(bytes)?.cast::<AtomicU32>().as_ptr();
            // SAFETY: the first word of a mapping that nobody else has seen.
            unsafe { &*fresh }.store(count, Ordering::Relaxed);
            base = match self.base.compare_exchange(
                core::ptr::null_mut(),
                fresh,
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Ok(_) => fresh,
                Err(other) => {
                    // SAFETY: nobody has seen this mapping.
                    let _ = unsafe { rustix::mm::munmap(fresh.cast(), bytes) };
                    other
                }
            };
        }
        // SAFETY: not null: a mapping that is never unmapped and begins with its count.
        let count = unsafe { &*base }.load(Ordering::Relaxed) as usize;
        // SAFETY: the mapping holds one word more than it counts.
        let first = unsafe { base.add(1) };
        // SAFETY: zeroed by the kernel, aligned, `count` words long, never unmapped.
        Ok(unsafe { core::slice::from_raw_parts(first, count) })
    }
}

impl LazyWords {
    /// Makes all words zero, without touching pages that nobody has touched. Nobody else uses them meanwhile.
    pub fn clear(&self) {
        const PAGE: usize = 4_096;
        let base = self.base.load(Ordering::Acquire);
        if base.is_null() {
            return;
        }
        let Ok(words) = self.words(0) else { return };
        // The first page holds the count.
        let (first, rest) = words.split_at(words.len().min(PAGE / 4 - 1));
        let mut by_hand = [first, rest];
        if !rest.is_empty() {
            // SAFETY: one page behind the start of a mapping that is longer than a page.
            let second = unsafe { base.add(PAGE / 4) };
            let bytes = size_of_val(rest);
            let advice = rustix::mm::Advice::LinuxDontNeed;
            // SAFETY: private anonymous pages of the mapping read as zero afterwards, which is a value of the words.
            if unsafe { rustix::mm::madvise(second.cast(), bytes, advice) }.is_ok() {
                by_hand = [first, &[]];
            }
        }
        for word in by_hand.into_iter().flatten() {
            word.store(0, Ordering::Relaxed);
        }
    }
}

impl Default for LazyWords {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lasting_reference_is_the_one_that_was_put_last() {
        static PLACE: LastingRef<AtomicU32> = LastingRef::none();
        assert!(PLACE.get().is_none());
        let first = keep(AtomicU32::new(1)).unwrap();
        PLACE.put(first);
        PLACE.put(keep(AtomicU32::new(2)).unwrap());
        first.store(3, Ordering::Relaxed);
        let last = PLACE.get().unwrap();
        assert_eq!(last.load(Ordering::Relaxed), 2);
        assert_eq!(first.load(Ordering::Relaxed), 3);
    }

    #[test]
    fn memory_is_filled_and_words_begin_at_zero() {
        let mut pages = Pages::filled(10_000, 7_u64).unwrap();
        assert!(pages.as_mut_slice().iter().all(|&value| value == 7));
        let lazy = LazyWords::new();
        let words = lazy.words(5).unwrap();
        assert!(words.iter().all(|word| word.load(Ordering::Relaxed) == 0));
        words[4].store(9, Ordering::Relaxed);
        let again = lazy.words(70).unwrap();
        assert_eq!((again.len(), again[4].load(Ordering::Relaxed)), (5, 9));
    }

    #[test]
    fn cleared_words_are_zero_and_as_many() {
        for count in [5, 1_023, 1_024, 10_000] {
            let lazy = LazyWords::new();
            for word in lazy.words(count).unwrap() {
                word.store(7, Ordering::Relaxed);
            }
            lazy.clear();
            let words = lazy.words(1).unwrap();
            assert_eq!(words.len(), count as usize);
            assert!(words.iter().all(|word| word.load(Ordering::Relaxed) == 0));
        }
    }
}
