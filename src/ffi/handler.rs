//! What the program's signal handlers ask for, and which threads still live.
//!
//! # Safety
//! The kernel writes one `Action` per call; numbers are all that goes to it.

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

/// SA_RESTART.
const RESTART: u64 = 0x1000_0000;
const _: () = assert!(RESTART == libc::SA_RESTART as u64);

/// Signals of faults, whose handlers run where the fault is; crash reporters install them.
const FAULTS: [i32; 7] = [
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGILL,
    libc::SIGTRAP,
    libc::SIGSYS,
    libc::SIGABRT,
];

/// Bytes of the kernel's signal set.
const SET_BYTES: usize = 8;

/// Whether a blocking call that a handler interrupted goes on (signal(7), SA_RESTART).
///
/// The kernel does not tell which handler ran. True when every handler that the program has installed asks for
/// it; a program with handlers of both kinds gets EINTR. Handlers of faults do not count: no wait is interrupted by them.
#[must_use]
pub fn handlers_restart() -> bool {
    let mut restarting = false;
    for number in 1..=64_i32 {
        // glibc's own (32 to 34 at most) are not the program's.
        if (32..libc::SIGRTMIN()).contains(&number) || FAULTS.contains(&number) {
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
        if action.flags & RESTART == 0 {
            return false;
        }
        restarting = true;
    }
    restarting
}

/// The handler of a signal as sigaction(2) gives it: SIG_DFL, SIG_IGN or an address. None when there is no such signal.
pub(super) fn action(number: i32) -> Option<usize> {
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
    (result == 0).then_some(action.handler)
}

/// Whether a thread of any process has this id. True also when we may not know.
#[must_use]
pub fn any_thread_lives(thread: u32) -> bool {
    // SAFETY: signal 0 is never delivered.
    let result = unsafe { libc::syscall(libc::SYS_tkill, thread, 0_usize) };
    if result == 0 {
        return true;
    }
    super::errno::last() != Errno::SRCH
}

/// For tests: handlers that count, and signals to a thread.
#[cfg(test)]
pub(crate) mod testing {
    use core::sync::atomic::{AtomicU32, Ordering};

    static TURN: std::sync::Mutex<()> = std::sync::Mutex::new(());

    /// Held by a test while it has a handler: they are the process's. A test that failed leaves nothing behind.
    pub(crate) fn turn() -> std::sync::MutexGuard<'static, ()> {
        TURN.lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Handlers run so far.
    pub(crate) static RUNS: AtomicU32 = AtomicU32::new(0);
    /// SIGUSR1.
    pub(crate) const SIGNAL: i32 = libc::SIGUSR1;

    extern "C" fn count(_signal: i32) {
        RUNS.fetch_add(1, Ordering::SeqCst);
    }

    /// Installs a handler for [`SIGNAL`].
    pub(crate) fn install(restart: bool) {
        // SAFETY: all zeroes is a valid sigaction.
        let mut action: libc::sigaction = unsafe { core::mem::zeroed() };
        action.sa_sigaction = count as *const () as usize;
        action.sa_flags = if restart { libc::SA_RESTART } else { 0 };
        // SAFETY: a handler that only adds; the old action is not asked for.
        let result = unsafe { libc::sigaction(SIGNAL, &raw const action, core::ptr::null_mut()) };
        assert_eq!(result, 0);
    }

    /// Sends [`SIGNAL`] to a thread of this process.
    pub(crate) fn send(thread: u32) {
        let process = crate::thread::process();
        // SAFETY: numbers only.
        let result = unsafe { libc::syscall(libc::SYS_tgkill, process, thread, SIGNAL) };
        assert_eq!(result, 0);
    }

    /// Blocks or opens [`SIGNAL`] in the calling thread.
    pub(crate) fn block(on: bool) {
        // SAFETY: all zeroes is a valid set.
        let mut set: libc::sigset_t = unsafe { core::mem::zeroed() };
        // SAFETY: a set on this frame.
        unsafe { libc::sigaddset(&raw mut set, SIGNAL) };
        let how = if on {
            libc::SIG_BLOCK
        } else {
            libc::SIG_UNBLOCK
        };
        // SAFETY: as above; the old set is not asked for.
        let result = unsafe { libc::pthread_sigmask(how, &raw const set, core::ptr::null_mut()) };
        assert_eq!(result, 0);
    }
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
