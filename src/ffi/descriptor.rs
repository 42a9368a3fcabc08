//! Descriptor numbers: lent to rustix, closed by the raw call, moved up out of the program's way.
//!
//! # Safety
//! A number is only handed to the kernel, which answers EBADF when it is not open; no memory depends on it.

#![allow(unsafe_code)]

use core::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use rustix::fd::{BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};

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

/// Takes `fd` over; None when the number is negative.
#[must_use]
pub fn own(fd: i32) -> Option<OwnedFd> {
    // SAFETY: not negative, and the caller gives it away.
    (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })
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

/// `fd` is about to be closed by somebody who owns it.
pub fn forget(fd: i32) {
    internal_forget(fd);
}

fn internal_forget(fd: i32) {
    if let Some((word, bit)) = hosts_place(fd)
        && word.load(Ordering::Relaxed) & bit != 0
    {
        word.fetch_and(!bit, Ordering::Relaxed);
    }
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

/// As [`internalize`], without noting the number: it is one of a child that shares our memory and not our descriptors, or is to
/// be inherited.
///
/// # Errors
/// EMFILE when there is no number left.
pub fn lift(fd: OwnedFd) -> Result<i32> {
    let low = raw(fd);
    let high = lend(low).and_then(|fd| rustix::io::fcntl_dupfd_cloexec(fd, floor()));
    shut(low);
    high.map(raw)
}

/// As [`close`], of a number that was not noted.
pub fn shut(fd: i32) {
    if fd >= 0 {
        // SAFETY: the caller owns the number and does not use it again.
        unsafe { rustix::io::close(fd) };
    }
}

/// Those of them that are the host's: a forked child has no use for them, and must not keep them open.
static HOSTS: [AtomicU64; INTERNAL_END / 64] = [const { AtomicU64::new(0) }; INTERNAL_END / 64];

fn hosts_place(fd: i32) -> Option<(&'static AtomicU64, u64)> {
    let number = usize::try_from(fd).ok()?;
    HOSTS
        .get(number / 64)
        .map(|word| (word, 1 << (number % 64)))
}

/// 1 while the host opens a descriptor and has not marked it as its own.
static SETTLING: AtomicI32 = AtomicI32::new(0);

/// No child is forked while this lives (see [`hold_settling`]).
#[derive(Debug)]
pub struct Settling(());

/// Begins to open descriptors of the host that are [`settle`]d at once; waits for a fork that is under way.
#[must_use]
pub fn settling() -> Settling {
    while !take_settling() {
        rustix::thread::sched_yield();
    }
    Settling(())
}

fn take_settling() -> bool {
    SETTLING
        .compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed)
        .is_ok()
}

impl Drop for Settling {
    fn drop(&mut self) {
        SETTLING.store(0, Ordering::Release);
    }
}

/// Before fork: waits until the host opens nothing, at most some milliseconds. True: [`release_settling`] must follow, in parent
/// and child.
#[must_use]
pub fn hold_settling() -> bool {
    (0..SETTLING_TRIES).any(|_| {
        let taken = take_settling();
        if !taken {
            rustix::thread::sched_yield();
        }
        taken
    })
}

const SETTLING_TRIES: u32 = 10_000;

/// Behind fork.
pub fn release_settling() {
    SETTLING.store(0, Ordering::Release);
}

/// In a forked child: closes what is the host's. The kernel copies the table before the memory: what the host has opened between
/// the two is marked and not there.
pub fn close_hosts() {
    for (at, word) in (0..).zip(&HOSTS) {
        let mut bits = word.swap(0, Ordering::Relaxed);
        while bits != 0 {
            let fd = at * 64 + i32::try_from(bits.trailing_zeros()).unwrap_or(0);
            internal_forget(fd);
            // SAFETY: the number is the host's, or nobody's: then EBADF is the answer, which `close` takes for a fault of ours.
            let _ = unsafe { libc::syscall(libc::SYS_close, fd) };
            bits &= bits - 1;
        }
    }
}

/// Our threads run in a program, so that what they open is the program's number as well.
static IN_PROGRAM: AtomicI32 = AtomicI32::new(0);

/// From now on the host's own descriptors share the table with a program's.
pub fn share_table() {
    IN_PROGRAM.store(1, Ordering::Relaxed);
}

/// Moves a descriptor of the host out of the way of the program that it runs in; nothing to do in a process of our own.
/// Without a free number above it stays where it is, protected like the others.
#[must_use]
pub fn settle(fd: OwnedFd) -> OwnedFd {
    if IN_PROGRAM.load(Ordering::Relaxed) == 0 {
        return fd;
    }
    let number = keep(raw(fd));
    // SAFETY: open, and nobody else's.
    unsafe { OwnedFd::from_raw_fd(number) }
}

/// As [`settle`] for a number, which a library of the host's has opened.
#[must_use]
pub fn keep(fd: i32) -> i32 {
    if fd < 0 || is_internal(fd) {
        return fd;
    }
    let fd = match internal_copy(fd) {
        Ok(high) => {
            close(fd);
            high
        }
        Err(_) => fd,
    };
    protect(fd);
    fd
}

/// Makes the program step over `fd`, which is the host's.
pub fn protect(fd: i32) {
    if let Some((word, bit)) = hosts_place(fd) {
        word.fetch_or(bit, Ordering::Relaxed);
    }
    if let Some((word, bit)) = place(fd) {
        word.fetch_or(bit, Ordering::Relaxed);
        HIGHEST.fetch_max(fd.saturating_add(1), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_steps_over_what_the_host_opened_while_it_was_forked() {
        use crate::ffi::process;
        let file = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
        let child = process::clone_silent().unwrap();
        if child == 0 {
            let (open, absent) = (raw(file), 900_001);
            protect(open);
            protect(absent);
            close_hosts();
            let is_closed =
                lend(open).is_ok_and(|fd| rustix::io::fcntl_getfd(fd) == Err(Errno::BADF));
            let is_forgotten = !is_internal(open) && !is_internal(absent);
            process::exit(i32::from(!(is_closed && is_forgotten)));
        }
        let pid = rustix::process::Pid::from_raw(child);
        // __WCLONE, which rustix does not name: a child without an exit signal.
        let options = rustix::process::WaitOptions::from_bits_retain(0x8000_0000);
        let (_, status) = rustix::process::waitpid(pid, options).unwrap().unwrap();
        assert_eq!(status.exit_status(), Some(0));
    }

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
