//! Signals of the host: those that end it as a descriptor, and one that ends a call of one thread.
//!
//! # Safety
//! The calls read a signal set or an action of this stack frame and keep nothing of it. The handler does nothing.

#![allow(unsafe_code)]

use rustix::fd::{AsFd, FromRawFd, OwnedFd};

use crate::errno::{Errno, Result};

/// Signals that ask a process to end, readable instead of deadly.
#[derive(Debug)]
pub struct EndSignals(OwnedFd);

/// SIGTERM, SIGINT and SIGHUP, as bits of the kernel's signal set (signal N is bit N - 1).
const SET: u64 = bit(libc::SIGTERM) | bit(libc::SIGINT) | bit(libc::SIGHUP);

/// Blocked as well: a file size limit must be an error of the call, not the end of the host.
const BLOCKED: u64 = SET | bit(libc::SIGXFSZ);

const fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}

impl EndSignals {
    /// Blocks SIGTERM, SIGINT, SIGHUP and SIGXFSZ in this thread and those that it makes, and opens a descriptor that is readable
    /// when one of the first three came.
    ///
    /// # Errors
    /// EMFILE.
    pub fn catch() -> Result<Self> {
        let (set, blocked) = (SET, BLOCKED);
        let nowhere = core::ptr::null_mut::<libc::c_void>();
        // SAFETY: the kernel reads eight bytes of `blocked`.
        let result = unsafe {
            libc::syscall(
                libc::SYS_rt_sigprocmask,
                libc::SIG_BLOCK,
                &raw const blocked,
                nowhere,
                size_of_val(&blocked),
            )
        };
        if result < 0 {
            return Err(super::errno::last());
        }
        // SAFETY: the kernel reads eight bytes of `set`.
        let fd = unsafe {
            libc::syscall(
                libc::SYS_signalfd4,
                -1,
                &raw const set,
                size_of_val(&set),
                libc::SFD_CLOEXEC | libc::SFD_NONBLOCK,
            )
        };
        if fd < 0 {
            return Err(super::errno::last());
        }
        let fd = i32::try_from(fd).map_err(|_| Errno::BADF)?;
        // SAFETY: the descriptor was just made and is nobody else's.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// The number of the next signal, None when there is none.
    ///
    /// # Errors
    /// What read says.
    pub fn next(&self) -> Result<Option<u32>> {
        let mut info = [0; size_of::<libc::signalfd_siginfo>()];
        match rustix::io::read(&self.0, &mut info) {
            Ok(_) => Ok(info
                .first_chunk::<4>()
                .map(|number| u32::from_ne_bytes(*number))),
            Err(Errno::AGAIN | Errno::INTR) => Ok(None),
            Err(errno) => Err(errno),
        }
    }
}

/// Whether a number of [`EndSignals::next`] is SIGHUP.
#[must_use]
pub fn is_hangup(number: u32) -> bool {
    i32::try_from(number) == Ok(libc::SIGHUP)
}

/// Ends a system call in which a thread waits, with EINTR.
const INTERRUPT: libc::c_int = libc::SIGUSR2;

extern "C" fn nothing(_signal: libc::c_int) {}

/// Lets [`interrupt`] end calls of this process.
///
/// # Errors
/// None in practice.
pub fn allow_interrupts() -> Result<()> {
    // SAFETY: all zeroes is a valid sigaction.
    let mut action: libc::sigaction = unsafe { core::mem::zeroed() };
    action.sa_sigaction = nothing as *const () as usize;
    // SAFETY: a handler that does nothing; the old action is not asked for.
    let result = unsafe { libc::sigaction(INTERRUPT, &raw const action, core::ptr::null_mut()) };
    if result != 0 {
        return Err(super::errno::last());
    }
    Ok(())
}

/// Ends the call in which `thread` of this process waits, if it does.
pub fn interrupt(thread: u32) {
    let process = super::process::pid();
    // SAFETY: numbers only; the handler is that of `allow_interrupts`, which ran at start.
    unsafe { libc::syscall(libc::SYS_tgkill, process, thread, INTERRUPT) };
}

impl AsFd for EndSignals {
    fn as_fd(&self) -> rustix::fd::BorrowedFd<'_> {
        self.0.as_fd()
    }
}
