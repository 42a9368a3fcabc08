//! Threads of ours inside a program: made by libc, with every signal blocked, marked as ours from their first line.
//!
//! # Safety
//! A start record is made by `spawn`, given to exactly one thread, and taken back by it.

#![allow(unsafe_code)]

use core::ffi::{c_int, c_void};
use core::ptr;
use core::sync::atomic::Ordering;

use super::real;
use super::{signals, thread_words};
use crate::errno::{Errno, Result};

/// Starts a detached thread of ours that runs `body`. It has the caller's CPUs, every signal blocked, and its calls are
/// not interposed.
///
/// # Errors
/// What pthread_create says: EAGAIN.
pub fn spawn(body: fn()) -> Result<()> {
    let saved = signals::block();
    let mut thread = 0;
    // SAFETY: a function pointer goes through the argument as it is; `run` turns it back.
    let error =
        unsafe { real::pthread_create(&raw mut thread, ptr::null(), run, body as *mut c_void) };
    signals::restore(&saved);
    if error != 0 {
        return Err(Errno::from_raw_os_error(error));
    }
    // SAFETY: the thread was just made, and nobody joins it.
    unsafe { libc::pthread_detach(thread) };
    Ok(())
}

extern "C-unwind" fn run(body: *mut c_void) -> *mut c_void {
    mark();
    // SAFETY: `spawn` made it from this type.
    let body = unsafe { core::mem::transmute::<*mut c_void, fn()>(body) };
    body();
    ptr::null_mut()
}

fn mark() {
    thread_words::with(|words| {
        words.role.store(thread_words::ENGINE, Ordering::Relaxed);
    });
}

/// What libc calls a thread's body.
pub type Start = extern "C-unwind" fn(*mut c_void) -> *mut c_void;

/// What a thread that one of ours makes begins with.
struct Inherited {
    start: Start,
    argument: *mut c_void,
}

/// pthread_create(3) for a thread of ours: the new one is ours as well (EAL's own threads).
///
/// # Safety
/// As for the C function.
pub unsafe fn create(
    thread: *mut libc::pthread_t,
    attributes: *const libc::pthread_attr_t,
    start: Start,
    argument: *mut c_void,
) -> c_int {
    let record = Box::into_raw(Box::new(Inherited { start, argument }));
    // SAFETY: the caller's arguments, but for the body, which runs theirs.
    let error = unsafe { real::pthread_create(thread, attributes, run_inherited, record.cast()) };
    if error != 0 {
        // SAFETY: no thread has it.
        drop(unsafe { Box::from_raw(record) });
    }
    error
}

extern "C-unwind" fn run_inherited(record: *mut c_void) -> *mut c_void {
    mark();
    // SAFETY: made by `create` for this thread alone.
    let Inherited { start, argument } = *unsafe { Box::from_raw(record.cast::<Inherited>()) };
    start(argument)
}

/// Whether the calling thread has `bytes` of stack left. No for a stack that is not the thread's own (a coroutine's), of which
/// nobody can tell.
#[must_use]
pub fn has_stack(bytes: u64) -> bool {
    let here = 0_u8;
    let at = (&raw const here).addr() as u64;
    thread_words::with(|words| {
        if words.stack_end.load(Ordering::Relaxed) == 0 {
            let (low, end) = stack();
            words.stack_low.store(low, Ordering::Relaxed);
            words.stack_end.store(end, Ordering::Relaxed);
        }
        let low = words.stack_low.load(Ordering::Relaxed);
        let end = words.stack_end.load(Ordering::Relaxed);
        at < end && at >= low.saturating_add(bytes)
    })
}

/// The calling thread's stack; (0, 1) when it cannot be told.
fn stack() -> (u64, u64) {
    // SAFETY: plain data that the next call fills.
    let mut attributes: libc::pthread_attr_t = unsafe { core::mem::zeroed() };
    // SAFETY: no arguments.
    let me = unsafe { libc::pthread_self() };
    // SAFETY: this thread, and a place on this frame.
    if unsafe { libc::pthread_getattr_np(me, &raw mut attributes) } != 0 {
        return (0, 1);
    }
    let (mut low, mut size) = (ptr::null_mut(), 0);
    // SAFETY: filled above; two places on this frame.
    let told =
        unsafe { libc::pthread_attr_getstack(&raw const attributes, &raw mut low, &raw mut size) };
    // SAFETY: filled above, not used any more.
    unsafe { libc::pthread_attr_destroy(&raw mut attributes) };
    if told != 0 {
        return (0, 1);
    }
    let low = low.addr() as u64;
    (low, low.saturating_add(size as u64))
}

/// Takes the loader's lock and gives it back. Who holds it waits for no thread of ours.
pub fn pass_loader() {
    // SAFETY: a terminated name; an object that is there already is only counted.
    let handle = unsafe { libc::dlopen(c"libc.so.6".as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD) };
    if !handle.is_null() {
        // SAFETY: the handle that the loader has just given.
        unsafe { libc::dlclose(handle) };
    }
}

/// Runs `last` when the program calls exit(3), before what was registered earlier. False without memory.
pub fn at_exit(last: extern "C" fn()) -> bool {
    // SAFETY: a function that lives as long as this object, which is never unloaded.
    unsafe { libc::atexit(last) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_knows_how_much_stack_it_has() {
        let of = |bytes: usize| {
            std::thread::Builder::new()
                .stack_size(bytes)
                .spawn(|| (has_stack(16 << 10), has_stack(1 << 20)))
                .unwrap()
                .join()
                .unwrap()
        };
        assert_eq!(of(64 << 10), (true, false));
        assert_eq!(of(4 << 20), (true, true));
    }
}
