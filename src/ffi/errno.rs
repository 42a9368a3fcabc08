//! libc's errno of the calling thread.
//!
//! # Safety
//! `__errno_location` gives an address that is valid as long as the thread.

#![allow(unsafe_code)]

use crate::errno::Errno;

fn place() -> *mut i32 {
    // SAFETY: no arguments; see the module.
    unsafe { libc::__errno_location() }
}

/// The errno that the last failed libc call left.
#[must_use]
pub fn last() -> Errno {
    let place = place();
    // SAFETY: this thread's own word.
    Errno::from_raw_os_error(unsafe { *place })
}

/// Sets errno.
pub fn set(errno: Errno) {
    let place = place();
    // SAFETY: this thread's own word.
    unsafe { *place = errno.raw_os_error() };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errno_is_kept() {
        set(Errno::NOTSOCK);
        assert_eq!(last(), Errno::NOTSOCK);
    }
}
