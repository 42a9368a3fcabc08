//! Threads of ours inside a program: made by libc, with every signal blocked, marked as ours from their first line.
//!
//! # Safety
//! A start record is made by `spawn`, given to exactly one thread, and taken back by it.

#![allow(unsafe_code)]

use core::ffi::{c_int, c_void};
use core::ptr;

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
        words
            .role
            .store(thread_words::ENGINE, core::sync::atomic::Ordering::Relaxed);
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
