//! Signals of a descriptor (fcntl(2), "Managing signals"): who gets which one, past the exported fcntl.
//!
//! # Safety
//! Numbers, and one struct of the caller's own stack for the time of the call.

#![allow(unsafe_code)]

use crate::errno::{Errno, Result};

/// Who gets the signals: struct f_owner_ex.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Owner {
    kind: i32,
    id: i32,
}

impl Owner {
    /// A process.
    #[must_use]
    pub const fn of_process(id: i32) -> Self {
        Self {
            kind: OWNER_PROCESS,
            id,
        }
    }

    /// Nobody gets any.
    #[must_use]
    pub const fn is_nobody(self) -> bool {
        self.id == 0
    }
}

fn control(fd: i32, command: i32, argument: usize) -> Result<i32> {
    // SAFETY: the caller passes a number, or a pointer that lives.
    let result = unsafe { libc::syscall(libc::SYS_fcntl, fd, command, argument) };
    if result < 0 {
        return Err(super::errno::last());
    }
    i32::try_from(result).map_err(|_| Errno::INVAL)
}

/// F_GETOWN_EX.
///
/// # Errors
/// EBADF.
pub fn owner(fd: i32) -> Result<Owner> {
    let mut owner = Owner::default();
    control(fd, GET_OWNER, (&raw mut owner).expose_provenance())?;
    Ok(owner)
}

/// F_SETOWN_EX.
///
/// # Errors
/// EBADF, ESRCH.
pub fn set_owner(fd: i32, owner: Owner) -> Result<()> {
    let mut owner = owner;
    control(fd, SET_OWNER, (&raw mut owner).expose_provenance()).map(|_| ())
}

/// F_GETSIG; 0 = SIGIO.
///
/// # Errors
/// EBADF.
pub fn signal(fd: i32) -> Result<i32> {
    control(fd, GET_SIGNAL, 0)
}

/// F_SETSIG.
///
/// # Errors
/// EBADF, EINVAL.
pub fn set_signal(fd: i32, signal: i32) -> Result<()> {
    let signal = usize::try_from(signal).map_err(|_| Errno::INVAL)?;
    control(fd, SET_SIGNAL, signal).map(|_| ())
}

/// O_ASYNC on, O_NONBLOCK as well.
///
/// # Errors
/// EBADF.
pub fn start(fd: i32) -> Result<()> {
    let flags = libc::O_ASYNC | libc::O_NONBLOCK;
    let flags = usize::try_from(flags).map_err(|_| Errno::INVAL)?;
    control(fd, libc::F_SETFL, flags).map(|_| ())
}

/// F_SETSIG.
pub const SET_SIGNAL: i32 = 10;
const GET_SIGNAL: i32 = 11;
/// F_SETOWN_EX.
pub const SET_OWNER: i32 = 15;
const GET_OWNER: i32 = 16;
/// F_OWNER_PID.
const OWNER_PROCESS: i32 = 1;
/// SIGURG.
pub const URGENT: i32 = libc::SIGURG;
