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

/// The errno that the last failed libc call left; EIO when it left none (which no call of libc does).
#[must_use]
pub fn last() -> Errno {
    let number = save();
    if (1..4_096).contains(&number) {
        Errno::from_raw_os_error(number)
    } else {
        Errno::IO
    }
}

/// The number as it is, to be put back by [`restore`]: a call that succeeds leaves errno alone.
#[must_use]
pub fn save() -> i32 {
    let place = place();
    // SAFETY: this thread's own word.
    unsafe { *place }
}

/// Puts back what [`save`] gave.
pub fn restore(number: i32) {
    let place = place();
    // SAFETY: this thread's own word.
    unsafe { *place = number };
}

/// Sets errno.
pub fn set(errno: Errno) {
    restore(errno.raw_os_error());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errno_is_kept() {
        set(Errno::NOTSOCK);
        assert_eq!(last(), Errno::NOTSOCK);
        restore(0);
        assert_eq!((save(), last()), (0, Errno::IO));
    }
}
