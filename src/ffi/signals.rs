//! Signals and cancellation of the calling thread while it drives the stack inside a call of the program's.
//!
//! # Safety
//! Signal sets live on the frame of the call; numbers are all else that goes to libc.

#![allow(unsafe_code)]

use core::ffi::c_int;

use super::wait::SignalMask;

/// Signals of faults: they come from the instruction that runs, and whoever handles them must see it.
const FAULTS: [c_int; 6] = [
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGILL,
    libc::SIGTRAP,
    libc::SIGSYS,
];

/// Signals whose default action is to do nothing, or to stop or continue the process: none of them ends a wait.
const HARMLESS: [c_int; 8] = [
    libc::SIGCHLD,
    libc::SIGURG,
    libc::SIGWINCH,
    libc::SIGCONT,
    libc::SIGSTOP,
    libc::SIGTSTP,
    libc::SIGTTIN,
    libc::SIGTTOU,
];

unsafe extern "C" {
    // Only the names are missing in the libc crate (pthread_setcancelstate(3)).
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}

unsafe extern "C-unwind" {
    fn pthread_testcancel();
}

/// PTHREAD_CANCEL_DISABLE.
const CANCEL_DISABLE: c_int = 1;

/// The mask that [`block`] found.
#[derive(Clone, Copy)]
pub struct Saved(libc::sigset_t);

impl core::fmt::Debug for Saved {
    fn fmt(&self, out: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(out, "Saved({:#x})", self.mask().0)
    }
}

impl Saved {
    /// The mask as the kernel takes it.
    #[must_use]
    pub fn mask(&self) -> SignalMask {
        // SAFETY: the set is larger than the eight bytes that the kernel uses, and plain data.
        SignalMask(unsafe { (&raw const self.0).cast::<u64>().read() })
    }
}

/// Blocks every signal of the calling thread but those of faults and libc's own two, without which setuid(2) in a program with
/// threads would hang.
#[must_use]
pub fn block() -> Saved {
    // SAFETY: all zeroes is a valid set.
    let mut all: libc::sigset_t = unsafe { core::mem::zeroed() };
    // SAFETY: the same.
    let mut old: libc::sigset_t = unsafe { core::mem::zeroed() };
    // SAFETY: a set on this frame; libc leaves its own signals out.
    unsafe { libc::sigfillset(&raw mut all) };
    for fault in FAULTS {
        // SAFETY: a set on this frame.
        unsafe { libc::sigdelset(&raw mut all, fault) };
    }
    // SAFETY: two sets on this frame. It fails only for a wrong first argument.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, &raw mut old) };
    Saved(old)
}

/// Undoes [`block`]; signals that came meanwhile are delivered before it returns.
pub fn restore(saved: &Saved) {
    // SAFETY: a set that the kernel gave; the old one is not asked for.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const saved.0, core::ptr::null_mut()) };
}

/// Signals that wait for this thread or its process, as a mask (rt_sigpending(2)).
#[must_use]
pub fn pending() -> SignalMask {
    let mut set = 0_u64;
    // SAFETY: the kernel writes eight bytes.
    let result = unsafe { libc::syscall(libc::SYS_rt_sigpending, &raw mut set, size_of::<u64>()) };
    SignalMask(if result == 0 { set } else { 0 })
}

/// Whether a handler of the program runs, or the process ends, when the signals of `mask` are delivered.
#[must_use]
pub fn any_acts(mask: SignalMask) -> bool {
    (1..=64).any(|number| mask.0 & (1 << (number - 1)) != 0 && acts(number))
}

fn acts(number: c_int) -> bool {
    match super::handler::action(number) {
        None | Some(libc::SIG_IGN) => false,
        Some(libc::SIG_DFL) => !HARMLESS.contains(&number),
        Some(_) => true,
    }
}

/// Puts cancellation of this thread off (deferred cancellation takes place at the next point that [`allow_cancel`] lets be
/// one). Returns what [`allow_cancel`] needs.
#[must_use]
pub fn forbid_cancel() -> c_int {
    let mut old = 0;
    // SAFETY: an int on this frame.
    unsafe { pthread_setcancelstate(CANCEL_DISABLE, &raw mut old) };
    old
}

/// Undoes [`forbid_cancel`].
pub fn allow_cancel(old: c_int) {
    // SAFETY: null asks for no old state.
    unsafe { pthread_setcancelstate(old, core::ptr::null_mut()) };
}

/// A cancellation point; whoever calls it holds nothing.
pub fn cancellation_point() {
    // SAFETY: no arguments; it may unwind, which its declaration says.
    unsafe { pthread_testcancel() };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ffi::handler::testing;

    #[test]
    fn a_blocked_signal_waits_and_is_told_from_one_that_does_nothing() {
        let _turn = testing::turn();
        testing::install(true);
        let runs = || testing::RUNS.load(core::sync::atomic::Ordering::SeqCst);
        let before = runs();
        let bit = SignalMask(1 << (testing::SIGNAL - 1));
        let saved = block();
        assert_eq!(pending().0 & bit.0, 0);
        testing::send(crate::thread::id());
        assert_eq!(pending().0 & bit.0, bit.0);
        assert!(any_acts(bit));
        assert_eq!(runs(), before);
        restore(&saved);
        assert_eq!(runs(), before + 1);
        let child = SignalMask(1 << (libc::SIGCHLD - 1));
        assert!(!any_acts(child), "nobody handles it here");
        assert!(
            any_acts(SignalMask(1 << (libc::SIGTERM - 1))),
            "it ends the process"
        );
    }

    #[test]
    fn cancellation_is_put_off_and_allowed_again() {
        let old = forbid_cancel();
        cancellation_point();
        allow_cancel(old);
        assert_eq!(forbid_cancel(), old);
        allow_cancel(old);
    }
}
