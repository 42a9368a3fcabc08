//! Descriptor numbers: lent to rustix, closed by the raw call, moved up out of the program's way.
//!
//! # Safety
//! A number is only handed to the kernel, which answers EBADF when it is not open; no memory depends on it.

#![allow(unsafe_code)]

use core::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use rustix::fd::{BorrowedFd, IntoRawFd, OwnedFd};

use crate::errno::{Errno, Result};

/// Lends `fd` to a rustix call.
///
/// # Errors
/// EBADF when the number is negative.
pub fn lend(fd: i32) -> Result<BorrowedFd<'static>> {
    if fd < 0 {
        return Err(Errno::BADF);
    }
    // SAFETY: not -1; see the module.
    Ok(unsafe { BorrowedFd::borrow_raw(fd) })
}

/// Closes `fd` by the raw call, past the exported `close`.
pub fn close(fd: i32) {
    internal_forget(fd);
    if fd >= 0 {
        // SAFETY: the caller owns the number and does not use it again.
        unsafe { rustix::io::close(fd) };
    }
}

/// Puts `fd` in the place of `number`, past the exported `dup3`; what was there is closed.
///
/// # Errors
/// EBADF.
pub fn replace(fd: i32, number: i32, close_on_exec: bool) -> Result<()> {
    let flags = if close_on_exec { libc::O_CLOEXEC } else { 0 };
    // SAFETY: numbers only.
    let result = unsafe { libc::syscall(libc::SYS_dup3, fd, number, flags) };
    if result < 0 {
        Err(super::errno::last())
    } else {
        Ok(())
    }
}

/// Gives the number of `fd` to the caller, who ends it with [`close`] (a drop would call the exported `close`).
#[must_use]
pub fn raw(fd: OwnedFd) -> i32 {
    fd.into_raw_fd()
}

/// Numbers below this can be ours.
const INTERNAL_END: usize = 1 << 20;
/// The lowest number that we take where the limit allows it.
const FLOOR: i32 = 700;

static INTERNAL: [AtomicU64; INTERNAL_END / 64] = [const { AtomicU64::new(0) }; INTERNAL_END / 64];
/// 1 + the highest internal number ever, so that most calls look at one word.
static HIGHEST: AtomicI32 = AtomicI32::new(0);

fn place(fd: i32) -> Option<(&'static AtomicU64, u64)> {
    let number = usize::try_from(fd).ok()?;
    INTERNAL
        .get(number / 64)
        .map(|word| (word, 1 << (number % 64)))
}

/// Whether `fd` is a descriptor of our own plumbing, which the program must not see or close.
#[must_use]
pub fn is_internal(fd: i32) -> bool {
    fd < HIGHEST.load(Ordering::Relaxed)
        && place(fd).is_some_and(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0)
}

fn internal_forget(fd: i32) {
    if let Some((word, bit)) = place(fd) {
        word.fetch_and(!bit, Ordering::Relaxed);
    }
}

/// 1 + the highest internal number ever.
#[must_use]
pub fn end_of_internal() -> i32 {
    HIGHEST.load(Ordering::Relaxed)
}

/// The first internal number at or above `from`, or None.
#[must_use]
pub fn next_internal(from: i32) -> Option<i32> {
    let end = HIGHEST.load(Ordering::Relaxed);
    let mut fd = from.max(0);
    while fd < end {
        let (word, _) = place(fd)?;
        let bits = word.load(Ordering::Relaxed) >> (fd % 64);
        if bits != 0 {
            return fd.checked_add(i32::try_from(bits.trailing_zeros()).ok()?);
        }
        fd = (fd / 64 + 1).checked_mul(64)?;
    }
    None
}

/// Where our numbers begin: 700, or the top 32 below a soft limit that is lower than 1024 (design D9).
fn floor() -> i32 {
    let soft = rustix::process::getrlimit(rustix::process::Resource::Nofile)
        .current
        .and_then(|soft| i32::try_from(soft).ok())
        .unwrap_or(i32::MAX);
    if soft >= 1_024 {
        FLOOR
    } else {
        (soft - 32).max(3)
    }
}

/// Moves `fd` to an internal number, close-on-exec; the old number is closed in any case.
///
/// # Errors
/// EMFILE when there is no number left.
pub fn internalize(fd: OwnedFd) -> Result<i32> {
    let low = raw(fd);
    let high = internal_copy(low);
    close(low);
    high
}

/// Makes an internal copy of `fd`, close-on-exec; `fd` stays open.
///
/// # Errors
/// EMFILE when there is no number left.
pub fn internal_copy(fd: i32) -> Result<i32> {
    let copy = raw(rustix::io::fcntl_dupfd_cloexec(lend(fd)?, floor())?);
    let Some((word, bit)) = place(copy) else {
        close(copy);
        return Err(Errno::MFILE);
    };
    word.fetch_or(bit, Ordering::Relaxed);
    HIGHEST.fetch_max(copy.saturating_add(1), Ordering::Relaxed);
    Ok(copy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn internal_numbers_are_high_known_and_forgotten_when_closed() {
        let file = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
        let fd = internalize(file).unwrap();
        assert!(fd >= 3);
        assert!(is_internal(fd));
        assert_eq!(next_internal(fd), Some(fd));
        assert!(next_internal(0).unwrap() <= fd);
        close(fd);
        assert!(!is_internal(fd));
        assert!(!is_internal(-1));
        assert_eq!(lend(-1).err(), Some(Errno::BADF));
    }
}
