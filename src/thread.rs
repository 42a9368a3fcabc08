//! Words of the calling thread, in initial-exec TLS: two instructions to reach, safe in a signal handler.
//!
//! Owns the thread's identity and its cached waiter slot. May use `base`, `ffi`. Any thread. Invariant: after fork
//! nothing cached by the parent is believed: words are tagged with the process id, and the page that
//! holds the process id is wiped by the kernel in a child (MADV_WIPEONFORK), however that child was made.
//!
//! # Safety
//! The words are plain atomics of one thread in zero-initialised static TLS; their address is formed by the
//! initial-exec model, which is right for an object that is loaded at program start (reference preload 5).

#![allow(unsafe_code)]

use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use crate::ffi::process;

/// The words of a thread.
#[repr(C)]
#[derive(Debug)]
pub struct Words {
    /// Process id that `id` and `slot` belong to; 0 = nothing cached.
    process: AtomicU32,
    /// Thread id.
    id: AtomicU32,
    /// Waiter slot + 1; 0 = none.
    slot: AtomicU32,
    /// What the thread is: 0 = the program's, 1 = ours (every hook then goes straight to libc).
    role: AtomicU32,
}

#[cfg(target_arch = "x86_64")]
core::arch::global_asm!(
    ".section .tbss.knet_thread_words,\"awT\",@nobits",
    ".hidden knet_thread_words",
    ".globl knet_thread_words",
    ".type knet_thread_words,@object",
    ".size knet_thread_words,16",
    ".align 8",
    "knet_thread_words: .zero 16",
    ".previous",
);

#[cfg(target_arch = "x86_64")]
#[inline]
fn words() -> &'static Words {
    let place: *const Words;
    // SAFETY: computes the address of this thread's copy of the symbol above; touches no memory but the GOT.
    unsafe {
        core::arch::asm!(
            "mov {0}, fs:[0]",
            "add {0}, qword ptr [rip + knet_thread_words@GOTTPOFF]",
            out(reg) place,
            options(nostack, pure, readonly)
        );
    }
    // SAFETY: 16 zeroed, aligned bytes that live as long as the thread; callers do not keep the reference beyond a call.
    unsafe { &*place }
}

#[cfg(not(target_arch = "x86_64"))]
fn words() -> &'static Words {
    thread_local! {
        static WORDS: Words = const {
            Words {
                process: AtomicU32::new(0),
                id: AtomicU32::new(0),
                slot: AtomicU32::new(0),
                role: AtomicU32::new(0),
            }
        };
    }
    let place = WORDS.with(ptr::from_ref);
    // SAFETY: const-initialised and without a destructor: valid as long as the thread.
    unsafe { &*place }
}

/// The page that forgets the process id in a child. Null until [`remember_process`].
static PAGE: AtomicPtr<AtomicU32> = AtomicPtr::new(ptr::null_mut());

/// Maps the page that notices a fork. Idempotent; without it ids are asked for at each call.
pub fn remember_process() {
    if !PAGE.load(Ordering::Acquire).is_null() {
        return;
    }
    let bytes = 4_096;
    let protection = rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE;
    // SAFETY: a new private mapping at an address of the kernel's choice aliases nothing.
    let mapped = unsafe {
        rustix::mm::mmap_anonymous(
            ptr::null_mut(),
            bytes,
            protection,
            rustix::mm::MapFlags::PRIVATE,
        )
    };
    let Ok(page) = mapped else { return };
    // SAFETY: the range was just mapped.
    let wiped = unsafe { rustix::mm::madvise(page, bytes, rustix::mm::Advice::LinuxWipeOnFork) };
    let lost = wiped.is_err()
        || PAGE
            .compare_exchange(
                ptr::null_mut(),
                page.cast(),
                Ordering::AcqRel,
                Ordering::Relaxed,
            )
            .is_err();
    if lost {
        // SAFETY: nobody has seen this mapping.
        let _ = unsafe { rustix::mm::munmap(page, bytes) };
    }
}

/// This process's id, cached; asked for again in a child.
#[must_use]
pub fn process() -> u32 {
    let page = PAGE.load(Ordering::Acquire);
    if page.is_null() {
        return process::pid();
    }
    // SAFETY: mapped for ever by `remember_process`; any contents are valid.
    let word = unsafe { &*page };
    let known = word.load(Ordering::Relaxed);
    if known != 0 {
        return known;
    }
    let pid = process::pid();
    word.store(pid, Ordering::Relaxed);
    pid
}

/// This thread's words, emptied when they are another process's.
fn current() -> &'static Words {
    let words = words();
    let process = process();
    if words.process.load(Ordering::Relaxed) != process {
        words.slot.store(0, Ordering::Relaxed);
        let id = rustix::thread::gettid()
            .as_raw_nonzero()
            .get()
            .unsigned_abs();
        words.id.store(id, Ordering::Relaxed);
        words.process.store(process, Ordering::Relaxed);
    }
    words
}

/// This thread's id, cached (0.002 us).
#[must_use]
pub fn id() -> u32 {
    current().id.load(Ordering::Relaxed)
}

/// The waiter slot that this thread took, or None. A child does not have its parent's.
#[must_use]
pub fn slot() -> Option<u32> {
    current().slot.load(Ordering::Relaxed).checked_sub(1)
}

/// Remembers the waiter slot that this thread took, or forgets it.
pub fn set_slot(slot: Option<u32>) {
    let word = slot.map_or(0, |slot| slot.saturating_add(1));
    current().slot.store(word, Ordering::Relaxed);
}

/// Whether this is a thread of ours, whose calls are never interposed.
#[must_use]
pub fn is_ours() -> bool {
    words().role.load(Ordering::Relaxed) != 0
}

/// Marks the calling thread as ours for the rest of its life.
pub fn mark_ours() {
    words().role.store(1, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_have_their_own_words() {
        remember_process();
        let mine = id();
        assert_eq!(mine, id());
        set_slot(Some(4));
        let other = std::thread::spawn(|| {
            mark_ours();
            (id(), slot(), is_ours())
        })
        .join()
        .unwrap();
        assert_ne!(other.0, mine);
        assert_eq!((other.1, other.2), (None, true));
        assert_eq!(slot(), Some(4));
        assert!(!is_ours());
        assert_eq!(process(), std::process::id());
    }

    #[test]
    fn a_child_believes_nothing_of_its_parent() {
        remember_process();
        set_slot(Some(9));
        let parent = id();
        let child = process::clone_silent().unwrap();
        if child == 0 {
            let fresh = id() != parent && slot().is_none() && process() == process::pid();
            process::exit(i32::from(!fresh));
        }
        let mut status = 0;
        // SAFETY: the status is an int on this frame.
        let reaped = unsafe { libc::waitpid(child, &raw mut status, libc::__WCLONE) };
        assert_eq!((reaped, status), (child, 0));
        assert_eq!(slot(), Some(9));
    }
}
