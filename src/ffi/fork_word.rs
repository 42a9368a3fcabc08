//! A word that the kernel empties in a child, however that child was made (MADV_WIPEONFORK, madvise(2)).
//!
//! # Safety
//! The page is mapped once and for ever, and any contents of the word are valid.

#![allow(unsafe_code)]

use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags};

/// The page. Null until [`map`].
static PAGE: AtomicPtr<AtomicU32> = AtomicPtr::new(ptr::null_mut());

/// Maps the page, once; without it nothing is remembered.
pub fn map() {
    if !PAGE.load(Ordering::Acquire).is_null() {
        return;
    }
    let bytes = 4_096;
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new private mapping at an address of the kernel's choice aliases nothing.
    let mapped = unsafe {
        rustix::mm::mmap_anonymous(ptr::null_mut(), bytes, protection, MapFlags::PRIVATE)
    };
    let Ok(page) = mapped else { return };
    // SAFETY: the range was just mapped.
    let wiped = unsafe { rustix::mm::madvise(page, bytes, Advice::LinuxWipeOnFork) };
    let lost = wiped.is_err()
        || PAGE
            .compare_exchange(
                ptr::null_mut(),
                page.cast(),
                Ordering::AcqRel,
                Ordering::Relaxed,
            )
            .is_err();
    if lost {
        // SAFETY: nobody has seen this mapping.
        let _ = unsafe { rustix::mm::munmap(page, bytes) };
    }
}

/// The word: 0 in a process that has not written it. None before [`map`], or when there is no such page.
#[must_use]
pub fn word() -> Option<&'static AtomicU32> {
    let page = PAGE.load(Ordering::Acquire);
    if page.is_null() {
        return None;
    }
    // SAFETY: mapped for ever by `map`; any contents are valid.
    Some(unsafe { &*page })
}
