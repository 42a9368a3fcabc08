//! The atomics of the channel: the real ones, or loom's when the protocols are model-checked.

#[cfg(not(loom))]
pub use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
#[cfg(loom)]
pub use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// A full fence right behind an atomic read-modify-write of this thread, as the sleep protocol needs. On x86-64 such an operation is
/// a full fence itself (Intel SDM volume 3, 9.2.3.9: locked instructions order loads and stores), so that only the compiler must
/// be held; Linux does the same (`smp_mb__after_atomic`).
#[inline]
pub fn fence_behind_update() {
    #[cfg(all(target_arch = "x86_64", not(loom)))]
    core::sync::atomic::compiler_fence(Ordering::SeqCst);
    #[cfg(not(all(target_arch = "x86_64", not(loom))))]
    fence(Ordering::SeqCst);
}
