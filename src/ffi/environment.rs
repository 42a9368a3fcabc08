//! The environment and the auxiliary vector, read without locks or copies.
//!
//! # Safety
//! `environ` is walked as getenv(3) walks it: valid as long as no other thread changes the environment at the same
//! time, which POSIX forbids to programs with threads.

#![allow(unsafe_code)]

use core::ffi::{CStr, c_char};
use core::ptr;

unsafe extern "C" {
    static mut environ: *const *const c_char;
}

/// Visits the entries `NAME=value` in order until `visit` says false.
pub fn for_each(mut visit: impl FnMut(&'static CStr) -> bool) {
    let place = &raw const environ;
    // SAFETY: reads the pointer variable of libc; see the module.
    let mut at = unsafe { ptr::read(place) };
    while !at.is_null() {
        // SAFETY: `at` points into a list of pointers that ends with a null.
        let entry = unsafe { *at };
        if entry.is_null() {
            return;
        }
        // SAFETY: each entry is a terminated string that lives as long as the environment.
        if !visit(unsafe { CStr::from_ptr(entry) }) {
            return;
        }
        // SAFETY: not the last one, so the next place is still in the list.
        at = unsafe { at.add(1) };
    }
}

/// The value of `name`, or None. Under secure-exec nothing is found, as with secure_getenv(3).
#[must_use]
pub fn secure_value(name: &[u8]) -> Option<&'static CStr> {
    if is_secure() {
        return None;
    }
    let mut found = None;
    for_each(|entry| {
        let bytes = entry.to_bytes_with_nul();
        let value = bytes
            .strip_prefix(name)
            .and_then(|rest| rest.strip_prefix(b"="))
            .and_then(|value| CStr::from_bytes_with_nul(value).ok());
        found = value;
        value.is_none()
    });
    found.filter(|value| !value.is_empty())
}

/// Whether the kernel started this program with more rights than its user has (AT_SECURE).
#[must_use]
pub fn is_secure() -> bool {
    // SAFETY: getauxval only reads a table of the process.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_found_by_its_whole_name() {
        assert!(secure_value(b"PATH").is_some());
        assert!(secure_value(b"PAT").is_none());
        assert!(!is_secure());
    }
}
