//! Some words of the calling thread in initial-exec TLS: two instructions to reach, safe in a signal handler.
//!
//! # Safety
//! The words are plain atomics of one thread in zero-initialised static TLS; their address is formed by the
//! initial-exec model, which is right for an object that is loaded at program start.

#![allow(unsafe_code)]

use core::sync::atomic::{AtomicU32, AtomicU64};

/// Role of a thread of the program's.
pub const PROGRAM: u32 = 0;
/// Role of a thread of ours.
pub const ENGINE: u32 = 1;
/// Role of a thread of the program's while it drives the stack.
pub const DRIVER: u32 = 2;

/// The words of a thread.
#[repr(C)]
#[derive(Debug)]
pub struct ThreadWords {
    /// Process id that `id` and `slot` belong to; 0 = nothing cached.
    pub process: AtomicU32,
    /// Thread id.
    pub id: AtomicU32,
    /// Waiter slot + 1; 0 = none.
    pub slot: AtomicU32,
    /// What the thread is: [`PROGRAM`], [`ENGINE`] or [`DRIVER`].
    pub role: AtomicU32,
    /// Calls of the thread that hold their object.
    pub calls: AtomicU32,
    _pad: AtomicU32,
    /// Lowest address of its stack; 0 = not asked.
    pub stack_low: AtomicU64,
    /// The address behind its stack.
    pub stack_end: AtomicU64,
}

const _: () = assert!(size_of::<ThreadWords>() == 40);

impl ThreadWords {
    /// The words of a thread of the program's that has none yet.
    #[must_use]
    pub const fn of(process: u32, id: u32) -> Self {
        Self {
            process: AtomicU32::new(process),
            id: AtomicU32::new(id),
            slot: AtomicU32::new(0),
            role: AtomicU32::new(PROGRAM),
            calls: AtomicU32::new(0),
            _pad: AtomicU32::new(0),
            stack_low: AtomicU64::new(0),
            stack_end: AtomicU64::new(0),
        }
    }
}

#[cfg(target_arch = "x86_64")]
core::arch::global_asm!(
    ".section .tbss.knet_thread_words,\"awT\",@nobits",
    ".hidden knet_thread_words",
    ".globl knet_thread_words",
    ".type knet_thread_words,@object",
    ".size knet_thread_words,40",
    ".align 8",
    "knet_thread_words: .zero 40",
    ".previous",
);

#[cfg(target_arch = "x86_64")]
#[inline]
fn place() -> *const ThreadWords {
    let place: *const ThreadWords;
    // SAFETY: computes the address of this thread's copy of the symbol above; touches no memory but the GOT.
    unsafe {
        core::arch::asm!(
            "mov {0}, fs:[0]",
            "add {0}, qword ptr [rip + knet_thread_words@GOTTPOFF]",
            out(reg) place,
            options(nostack, pure, readonly)
        );
    }
    place
}

#[cfg(not(target_arch = "x86_64"))]
fn place() -> *const ThreadWords {
    thread_local! {
        static WORDS: ThreadWords = const {
            ThreadWords::of(0, 0)
        };
    }
    WORDS.with(core::ptr::from_ref)
}

/// Lends the calling thread's words.
#[inline]
pub fn with<T>(use_them: impl FnOnce(&ThreadWords) -> T) -> T {
    let place = place();
    // SAFETY: 40 zeroed (or const-initialised) and aligned bytes without a destructor, which live as long as the thread;
    // the borrow ends with this call.
    use_them(unsafe { &*place })
}
