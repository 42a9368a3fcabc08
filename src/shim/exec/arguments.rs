//! The arguments of execl and its kin.
//!
//! # Safety
//! A va_list is read by the rules of the two machines (System V AMD64 section 3.5.7, AAPCS64 appendix B).

#![allow(unsafe_code)]

use core::ffi::{c_char, c_int, c_void};
use core::ptr;

use super::List;
use crate::ffi::errno;
use crate::iomux::scratch::Scratch;

/// The arguments of a call with a variable number of them, as the compiler of C leaves them (va_list).
#[cfg(target_arch = "x86_64")]
#[repr(C)]
#[derive(Clone, Copy)]
struct Arguments {
    integers: u32,
    vectors: u32,
    stack: *const *const c_char,
    saved: *const u8,
}

#[cfg(target_arch = "x86_64")]
impl Arguments {
    /// # Safety
    /// There is a next one.
    unsafe fn next(&mut self) -> *const c_char {
        if self.integers < 48 {
            // SAFETY: the save area has six words for integers.
            let place = unsafe { self.saved.add(self.integers as usize) };
            self.integers += 8;
            // SAFETY: one of them.
            return unsafe { place.cast::<*const c_char>().read() };
        }
        let place = self.stack;
        // SAFETY: as the caller promises.
        self.stack = unsafe { place.add(1) };
        // SAFETY: as above.
        unsafe { place.read() }
    }
}

/// As above, of AAPCS64.
#[cfg(target_arch = "aarch64")]
#[repr(C)]
#[derive(Clone, Copy)]
struct Arguments {
    stack: *const *const c_char,
    integers_end: *const u8,
    vectors_end: *const u8,
    integers: i32,
    vectors: i32,
}

#[cfg(target_arch = "aarch64")]
impl Arguments {
    /// # Safety
    /// There is a next one.
    unsafe fn next(&mut self) -> *const c_char {
        if self.integers < 0 {
            // SAFETY: the save area ends there and has a word for each register.
            let place = unsafe { self.integers_end.offset(self.integers as isize) };
            self.integers += 8;
            // SAFETY: one of them.
            return unsafe { place.cast::<*const c_char>().read() };
        }
        let place = self.stack;
        // SAFETY: as the caller promises.
        self.stack = unsafe { place.add(1) };
        // SAFETY: as above.
        unsafe { place.read() }
    }
}

/// Calls `exec` with `first` and the arguments that follow it up to a null pointer, and what stands behind that.
///
/// # Safety
/// `list` is the va_list of such a call.
pub(super) unsafe fn with_arguments(
    first: *const c_char,
    list: *mut c_void,
    exec: impl FnOnce(List, &mut dyn FnMut() -> *const c_char) -> c_int,
) -> c_int {
    // SAFETY: as the caller promises.
    let start = unsafe { list.cast::<Arguments>().read() };
    let mut count = 2;
    let mut arguments = start;
    // SAFETY: not behind the null pointer.
    while !first.is_null() && !unsafe { arguments.next() }.is_null() {
        count += 1;
    }
    let mut place = match Scratch::filled(count, ptr::null()) {
        Ok(place) => place,
        Err(error) => {
            errno::set(error);
            return -1;
        }
    };
    let mut arguments = start;
    let argv = place.as_mut_slice();
    let mut entry = first;
    for slot in argv.iter_mut() {
        *slot = entry;
        if entry.is_null() {
            break;
        }
        // SAFETY: not behind the null pointer.
        entry = unsafe { arguments.next() };
    }
    // SAFETY: what the caller has behind the null pointer, if `exec` asks for it.
    exec(argv.as_ptr(), &mut || unsafe { arguments.next() })
}
