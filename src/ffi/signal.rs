//! What the program's signal handlers ask for, and which threads still live.
//!
//! # Safety
//! The kernel writes one [`Action`] per call; numbers are all that goes to it.

#![allow(unsafe_code)]

use crate::errno::Errno;

/// The kernel's sigaction.
#[repr(C)]
#[derive(Default)]
struct Action {
    handler: usize,
    flags: u64,
    restorer: usize,
    mask: u64,
}

/// Bytes of the kernel's signal set.
const SET_BYTES: usize = 8;

/// Whether a blocking call that a handler interrupted goes on (signal(7), SA_RESTART).
///
/// The kernel does not tell which handler ran. True when every handler that the program has installed asks for
/// it; a program with handlers of both kinds gets EINTR.
#[must_use]
pub fn handlers_restart() -> bool {
    let mut restarting = false;
    for number in 1..=64_i32 {
        // glibc's own (32 to 34 at most) are not the program's.
        if (32..libc::SIGRTMIN()).contains(&number) {
            continue;
        }
        let mut action = Action::default();
        let nothing = core::ptr::null::<Action>();
        // SAFETY: asks only; the kernel writes one Action.
        let result = unsafe {
            libc::syscall(
                libc::SYS_rt_sigaction,
                number,
                nothing,
                &raw mut action,
                SET_BYTES,
            )
        };
        if result != 0 || action.handler == libc::SIG_DFL || action.handler == libc::SIG_IGN {
            continue;
        }
        if action.flags & u64::from(libc::SA_RESTART.cast_unsigned()) == 0 {
            return false;
        }
        restarting = true;
    }
    restarting
}

/// Whether a thread of any process has this id. True also when we may not know.
#[must_use]
pub fn any_thread_lives(thread: u32) -> bool {
    // SAFETY: signal 0 is never delivered.
    let result = unsafe { libc::syscall(libc::SYS_tkill, thread, 0_usize) };
    if result == 0 {
        return true;
    }
    // SAFETY: the address of errno is valid in every thread.
    let errno = unsafe { *libc::__errno_location() };
    Errno::from_raw_os_error(errno) != Errno::SRCH
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_told_from_the_dead() {
        let mine = crate::thread::id();
        assert!(any_thread_lives(mine));
        let gone = std::thread::spawn(crate::thread::id).join().unwrap();
        // The kernel reaps a joined thread before the number can be asked for again, or a moment later.
        for _ in 0..1_000 {
            if !any_thread_lives(gone) {
                return;
            }
            std::thread::yield_now();
        }
        panic!("thread {gone} still lives");
    }
}
