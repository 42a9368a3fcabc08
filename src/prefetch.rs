//! Hints to the memory system: what will be needed soon, what will not, and which tables deserve huge pages.
//!
//! # Safety
//! No hint changes what a program computes, whatever address it names: a prefetch neither faults nor has an effect that can be
//! seen (AMD64 manual volume 3, PREFETCHlevel), and MADV_HUGEPAGE changes neither contents nor protection of a mapping. Memory is
//! forgotten through a unique slice only, like being overwritten.

#![allow(unsafe_code)]

/// Bytes of a cache line.
const LINE: usize = 64;
/// Bytes of a page.
const PAGE: usize = 4096;
/// Bytes of a huge page.
const HUGE: usize = 2 << 20;
/// Tables below this are not worth rounding up to whole huge pages.
const HUGE_FROM: usize = 8 * HUGE;

/// Fetches the cache line at `address`.
#[inline]
pub fn line(address: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let place = core::ptr::without_provenance::<i8>(address);
        // SAFETY: a prefetch of any address is a hint without an effect.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(place) };
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = address;
}

/// Fetches every line of `bytes` bytes from `address` on.
#[inline]
pub fn lines(address: usize, bytes: usize) {
    let first = address & !(LINE - 1);
    let last = address.saturating_add(bytes);
    for at in (first..last).step_by(LINE) {
        line(at);
    }
}

/// Fetches every line of a value.
#[inline]
pub fn value<T>(value: &T) {
    lines(core::ptr::from_ref(value).addr(), size_of::<T>());
}

/// Asks for huge pages behind the memory of a large table, `bytes` bytes from `address` on, before it is touched.
pub fn huge(address: usize, bytes: usize) {
    if bytes < HUGE_FROM {
        return;
    }
    // Whole pages inside of it only.
    let begin = address.next_multiple_of(HUGE);
    let bytes = address.wrapping_add(bytes).saturating_sub(begin) / HUGE * HUGE;
    let place = core::ptr::without_provenance_mut::<core::ffi::c_void>(begin);
    // SAFETY: the advice changes no byte and no right of whatever lies there.
    let done = unsafe { rustix::mm::madvise(place, bytes, rustix::mm::Advice::LinuxHugepage) };
    if let Err(errno) = done {
        crate::debug!("no huge pages for a table bytes={bytes} errno={errno}");
    }
}

/// Gives whole pages of `bytes` back to the kernel. What they hold afterwards has no meaning: zeros, in memory of the heap.
pub fn forget(bytes: &mut [u8]) {
    let begin = bytes.as_mut_ptr().addr();
    let first = begin.next_multiple_of(PAGE);
    let end = begin.wrapping_add(bytes.len()) & !(PAGE - 1);
    let Some(count) = end.checked_sub(first).filter(|count| *count > 0) else {
        return;
    };
    let place = bytes.as_mut_ptr().wrapping_add(first - begin);
    // SAFETY: whole pages inside a slice that is ours alone for the call; the mapping stays, and any bytes are a valid slice.
    let done =
        unsafe { rustix::mm::madvise(place.cast(), count, rustix::mm::Advice::LinuxDontNeed) };
    if let Err(errno) = done {
        crate::debug!("memory not returned bytes={count} errno={errno}");
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn whole_pages_are_forgotten_and_their_neighbours_stay() {
        let mut bytes = vec![7_u8; 5 * super::PAGE];
        let skip = bytes.as_ptr().align_offset(super::PAGE);
        super::forget(&mut bytes[skip + 10..skip + 3 * super::PAGE + 10]);
        assert!(bytes[..skip + super::PAGE].iter().all(|byte| *byte == 7));
        let inner = &bytes[skip + super::PAGE..skip + 3 * super::PAGE];
        assert!(cfg!(miri) || inner.iter().all(|byte| *byte == 0));
        assert!(
            bytes[skip + 3 * super::PAGE..]
                .iter()
                .all(|byte| *byte == 7)
        );
        super::forget(&mut bytes[1..2]);
        super::forget(&mut []);
    }

    #[test]
    fn a_hint_may_name_anything() {
        super::lines(usize::MAX - 10, 5);
        super::line(0);
        super::value(&[1_u8; 300]);
        let table: Vec<u64> = Vec::with_capacity(4 << 20);
        super::huge(table.as_ptr().addr(), table.capacity() * 8);
    }
}
