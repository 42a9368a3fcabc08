//! Who the calling thread is: its id, its cached waiter slot, and whether it is one of ours.
//!
//! Owns what the thread's words mean. May use `base`, `ffi`. Any thread, also in a signal handler. Invariant: after fork
//! nothing cached by the parent is believed: words are tagged with the process id, and the word that
//! holds the process id is emptied by the kernel in a child, however that child was made.

use core::sync::atomic::Ordering;

use crate::ffi::thread_words::{self, ThreadWords};
use crate::ffi::{fork_word, process};

/// Begins to notice forks. Idempotent; without it ids are asked for at each call.
pub fn remember_process() {
    fork_word::map();
    // Now: who asks first may be a child that shares our memory.
    let _ = process();
}

/// This process's id, cached; asked for again in a child.
#[must_use]
pub fn process() -> u32 {
    let Some(word) = fork_word::word() else {
        return process::pid();
    };
    let known = word.load(Ordering::Relaxed);
    if known != 0 {
        return known;
    }
    let pid = process::pid();
    word.store(pid, Ordering::Relaxed);
    pid
}

/// Lends this thread's words, emptied when they are another process's.
fn with_current<T>(use_them: impl FnOnce(&ThreadWords) -> T) -> T {
    let process = process();
    thread_words::with(|words| {
        if words.process.load(Ordering::Relaxed) != process {
            let id = rustix::thread::gettid()
                .as_raw_nonzero()
                .get()
                .unsigned_abs();
            if process::pid() != process {
                // A child that shares our memory (vfork): the words are those of the thread that waits for it.
                return use_them(&ThreadWords::of(process, id));
            }
            words.slot.store(0, Ordering::Relaxed);
            words.calls.store(0, Ordering::Relaxed);
            words.id.store(id, Ordering::Relaxed);
            words.process.store(process, Ordering::Relaxed);
        }
        use_them(words)
    })
}

/// This thread's id, cached (0.002 us).
#[must_use]
pub fn id() -> u32 {
    with_current(|words| words.id.load(Ordering::Relaxed))
}

/// Tells this thread from the others of the process. A child that shares our memory has the mark of the thread that waits for it.
#[must_use]
pub fn mark() -> u32 {
    let place = thread_words::with(|words| core::ptr::from_ref(words).addr());
    // The words of two threads lie whole stacks apart: all bits count.
    (place as u64)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .to_be_bytes()
        .first_chunk()
        .copied()
        .map_or(0, u32::from_be_bytes)
}

/// The waiter slot that this thread took, or None. A child does not have its parent's.
#[must_use]
pub fn slot() -> Option<u32> {
    with_current(|words| words.slot.load(Ordering::Relaxed)).checked_sub(1)
}

/// Remembers the waiter slot that this thread took, or forgets it.
pub fn set_slot(slot: Option<u32>) {
    let word = slot.map_or(0, |slot| slot.saturating_add(1));
    with_current(|words| words.slot.store(word, Ordering::Relaxed));
}

/// Calls of this thread that are under way and hold their object: the ones that a signal handler has interrupted.
#[must_use]
pub fn calls() -> u32 {
    with_current(|words| words.calls.load(Ordering::Relaxed))
}

/// One more such call.
pub fn begin_call() {
    with_current(|words| words.calls.fetch_add(1, Ordering::Relaxed));
}

/// One less. A call that began before a fork is not the child's.
pub fn end_call() {
    with_current(|words| {
        let left = |calls: u32| calls.checked_sub(1);
        let _ = words
            .calls
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, left);
    });
}

pub use crate::ffi::thread_words::{DRIVER, ENGINE, PROGRAM};

/// What the calling thread is: [`PROGRAM`], [`ENGINE`] or [`DRIVER`].
#[inline]
#[must_use]
pub fn role() -> u32 {
    thread_words::with(|words| words.role.load(Ordering::Relaxed))
}

/// Whether the calls of this thread are not interposed: it is ours, or it drives the stack.
#[inline]
#[must_use]
pub fn is_ours() -> bool {
    role() != PROGRAM
}

/// Makes the calling thread what it is from now on.
pub fn set_role(role: u32) {
    thread_words::with(|words| words.role.store(role, Ordering::Relaxed));
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
            set_role(ENGINE);
            (id(), slot(), is_ours(), mark())
        })
        .join()
        .unwrap();
        assert_ne!(other.0, mine);
        assert_eq!((other.1, other.2), (None, true));
        assert!(other.3 != mark() && mark() == mark());
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
        let pid = rustix::process::Pid::from_raw(child);
        // __WCLONE, which rustix does not name: a child without an exit signal.
        let options = rustix::process::WaitOptions::from_bits_retain(0x8000_0000);
        let (reaped, status) = rustix::process::waitpid(pid, options).unwrap().unwrap();
        assert_eq!((Some(reaped), status.exit_status()), (pid, Some(0)));
        assert_eq!(slot(), Some(9));
    }
}
