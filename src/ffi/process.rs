//! Process calls that rustix leaves out.
//!
//! # Safety
//! Numbers go to the kernel, no memory of ours does, except where a block says so.

#![allow(unsafe_code)]

use core::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use rustix::time::Timespec;

use super::descriptor;
use crate::errno::{Errno, Result};
use crate::time::monotonic;

fn checked(result: libc::c_long) -> Result<i32> {
    if result < 0 {
        return Err(super::errno::last());
    }
    i32::try_from(result).map_err(|_| Errno::OVERFLOW)
}

/// This process.
#[must_use]
pub fn pid() -> u32 {
    rustix::process::getpid()
        .as_raw_nonzero()
        .get()
        .unsigned_abs()
}

/// Copies the process without running fork handlers and without an exit signal (the parent's SIGCHLD and `wait(-1)`
/// do not see the child). Returns 0 in the child, which may only make raw calls and must end with exec or [`exit`].
///
/// # Errors
/// What clone(2) says: EAGAIN, ENOMEM.
pub fn clone_silent() -> Result<i32> {
    // SAFETY: no stack and no CLONE_VM: the child runs on a copy of everything, as after fork.
    checked(unsafe { libc::syscall(libc::SYS_clone, 0_usize, 0_usize, 0_usize, 0_usize, 0_usize) })
}

/// Waits for a child of [`clone_silent`].
///
/// # Errors
/// ECHILD when there is none.
pub fn reap_silent(child: i32) -> Result<()> {
    loop {
        let nowhere = core::ptr::null_mut::<libc::c_void>();
        // SAFETY: null pointers ask for no status and no usage.
        let result =
            unsafe { libc::syscall(libc::SYS_wait4, child, nowhere, libc::__WCLONE, nowhere) };
        match checked(result) {
            Err(Errno::INTR) => {}
            other => return other.map(|_| ()),
        }
    }
}

/// Ends this process at once: no handlers, no flush.
pub fn exit(status: i32) -> ! {
    // SAFETY: never returns.
    unsafe { libc::_exit(status) }
}

/// Whether thread `thread` of process `process` is there. True also when we may not know.
#[must_use]
pub fn thread_lives(process: u32, thread: u32) -> bool {
    // SAFETY: signal 0 is never delivered.
    let result = unsafe { libc::syscall(libc::SYS_tgkill, process, thread, 0_usize) };
    !matches!(checked(result), Err(Errno::SRCH))
}

/// Whether process `process` is there. True also when we may not know.
#[must_use]
pub fn process_lives(process: u32) -> bool {
    // SAFETY: signal 0 is never delivered.
    let result = unsafe { libc::syscall(libc::SYS_kill, process, 0_usize) };
    !matches!(checked(result), Err(Errno::SRCH))
}

/// Whether process `process` has ended, reaped or not, or does so within `time`. False also when we may not know.
#[must_use]
pub fn ends_within(process: u32, time: Duration) -> bool {
    let pid = i32::try_from(process).ok().and_then(Pid::from_raw);
    let Some(Ok(pidfd)) = pid.map(|pid| pidfd_open(pid, PidfdFlags::empty())) else {
        return !process_lives(process);
    };
    let number = descriptor::raw(pidfd);
    let end = monotonic() + time;
    let ended = descriptor::lend(number).is_ok_and(|pidfd| {
        let mut fds = [PollFd::from_borrowed_fd(pidfd, PollFlags::IN)];
        loop {
            let left = Timespec::try_from(end.since(monotonic())).ok();
            match poll(&mut fds, left.as_ref()) {
                // A signal handler ran: that says nothing of the process.
                Err(Errno::INTR) => {}
                count => return count == Ok(1),
            }
        }
    });
    descriptor::shut(number);
    ended
}

/// Whether this process has one thread now. False when nobody can tell.
#[must_use]
pub fn is_alone() -> bool {
    // libc's word stays false once there was a second one; the folder has a link for each (proc(5)).
    super::real::is_single_threaded()
        || rustix::fs::stat(c"/proc/self/task").is_ok_and(|found| found.st_nlink == 3)
}

/// Sends SIGPIPE to the calling thread, as a failed send does (send(2), EPIPE).
pub fn raise_sigpipe() {
    let thread = rustix::thread::gettid().as_raw_nonzero().get();
    // SAFETY: a signal to ourselves; what it does is the program's choice.
    let _ = unsafe { libc::syscall(libc::SYS_tgkill, pid(), thread, libc::SIGPIPE) };
}

/// Sets every signal to its default action and opens the mask; for a child of [`clone_silent`] before exec.
pub fn reset_signals() {
    #[repr(C)]
    struct Action {
        handler: usize,
        flags: usize,
        restorer: usize,
        mask: u64,
    }
    let default = Action {
        handler: 0,
        flags: 0,
        restorer: 0,
        mask: 0,
    };
    let nowhere = core::ptr::null_mut::<libc::c_void>();
    for signal in 1..65_usize {
        // SAFETY: the kernel reads one Action; KILL and STOP are refused, which is right.
        let _ = unsafe {
            libc::syscall(
                libc::SYS_rt_sigaction,
                signal,
                &raw const default,
                nowhere,
                8_usize,
            )
        };
    }
    let empty = 0_u64;
    // SAFETY: the kernel reads eight bytes.
    let _ = unsafe {
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            libc::SIG_SETMASK,
            &raw const empty,
            nowhere,
            8_usize,
        )
    };
}

/// Replaces this process by `path`. Returns only when that fails.
///
/// # Safety
/// `arguments` and `environment` are lists of terminated strings, each list ended by a null pointer.
pub unsafe fn execute(
    path: &core::ffi::CStr,
    arguments: *const *const core::ffi::c_char,
    environment: *const *const core::ffi::c_char,
) -> Errno {
    // SAFETY: as the caller promises.
    let result = unsafe { libc::syscall(libc::SYS_execve, path.as_ptr(), arguments, environment) };
    checked(result).err().unwrap_or(Errno::INVAL)
}

/// Calls these before and after fork(2) of libc: in the parent before, in the parent after, in the child.
pub fn on_fork(prepare: extern "C" fn(), parent: extern "C" fn(), child: extern "C" fn()) -> bool {
    // SAFETY: three functions without arguments that live as long as this object, which is never unloaded.
    unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) == 0 }
}

/// dup3(2) without close-on-exec, past the exported functions; nothing to do when both are the same.
///
/// # Errors
/// EBADF, EMFILE as the kernel says.
pub fn duplicate_onto(fd: i32, onto: i32) -> Result<()> {
    if fd == onto {
        return Ok(());
    }
    // SAFETY: numbers only.
    checked(unsafe { libc::syscall(libc::SYS_dup3, fd, onto, 0_usize) }).map(|_| ())
}

/// Closes every descriptor from `first` on, past the exported functions.
pub fn close_from(first: i32) {
    // SAFETY: numbers only.
    let done = unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, 0_usize) };
    if done == 0 {
        return;
    }
    // Before Linux 5.9.
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile)
        .current
        .and_then(|limit| i32::try_from(limit).ok())
        .unwrap_or(i32::MAX)
        .min(1 << 16);
    for fd in first..limit {
        descriptor::close(fd);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_ended_whether_or_not_it_was_reaped() {
        let shortly = Duration::from_millis(1);
        assert!(!ends_within(pid(), shortly));
        let mut child = std::process::Command::new("true").spawn().unwrap();
        assert!(ends_within(child.id(), Duration::from_secs(20)));
        assert!(process_lives(child.id()), "it can be asked about");
        child.wait().unwrap();
        assert!(ends_within(child.id(), shortly));
    }
}
