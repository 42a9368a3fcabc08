//! Calls that return new descriptors: a stale entry at that number is dropped.
//!
//! # Safety
//! Arguments go to the original as they came.

#![allow(unsafe_code)]

use core::ffi::{c_char, c_int, c_uint};

use libc::{FILE, mode_t, sigset_t};

use crate::fd;
use crate::ffi::real;

/// A number came from the kernel: whatever the table says of it is over.
fn fresh(fd: c_int) -> c_int {
    if fd >= 0 {
        fd::drop_stale(fd);
    }
    fd
}

macro_rules! openers {
    ($(fn $name:ident($($arg:ident: $ty:ty),*);)+) => {
        $(
            /// The call of this name in libc.
            ///
            /// # Safety
            /// As for the C function.
            pub unsafe fn $name($($arg: $ty),*) -> c_int {
                // SAFETY: the caller's arguments, unchanged.
                fresh(unsafe { real::$name($($arg),*) })
            }
        )+
    };
}

openers! {
    fn open(path: *const c_char, flags: c_int, mode: mode_t);
    fn open64(path: *const c_char, flags: c_int, mode: mode_t);
    fn openat(folder: c_int, path: *const c_char, flags: c_int, mode: mode_t);
    fn openat64(folder: c_int, path: *const c_char, flags: c_int, mode: mode_t);
    fn __open_2(path: *const c_char, flags: c_int);
    fn __open64_2(path: *const c_char, flags: c_int);
    fn __openat_2(folder: c_int, path: *const c_char, flags: c_int);
    fn __openat64_2(folder: c_int, path: *const c_char, flags: c_int);
    fn creat(path: *const c_char, mode: mode_t);
    fn creat64(path: *const c_char, mode: mode_t);
    fn eventfd(start: c_uint, flags: c_int);
    fn timerfd_create(clock: c_int, flags: c_int);
    fn signalfd(fd: c_int, mask: *const sigset_t, flags: c_int);
    fn inotify_init();
    fn inotify_init1(flags: c_int);
    fn memfd_create(name: *const c_char, flags: c_uint);
}

macro_rules! pairs {
    ($(fn $name:ident($($arg:ident: $ty:ty),*; $($after:ident: $after_ty:ty),*);)+) => {
        $(
            /// The call of this name in libc.
            ///
            /// # Safety
            /// As for the C function.
            pub unsafe fn $name($($arg: $ty,)* ends: *mut c_int $(, $after: $after_ty)*) -> c_int {
                // SAFETY: the caller's arguments, unchanged.
                let result = unsafe { real::$name($($arg,)* ends $(, $after)*) };
                if result == 0 {
                    // SAFETY: the call succeeded, so two ints were written there.
                    let pair = unsafe { ends.cast::<[c_int; 2]>().read_unaligned() };
                    let _ = pair.map(fresh);
                }
                result
            }
        )+
    };
}

pairs! {
    fn pipe(;);
    fn pipe2(; flags: c_int);
    fn socketpair(domain: c_int, kind: c_int, protocol: c_int;);
}

macro_rules! streams {
    ($($name:ident)+) => {
        $(
            /// The call of this name in libc.
            ///
            /// # Safety
            /// As for the C function.
            pub unsafe fn $name(path: *const c_char, mode: *const c_char) -> *mut FILE {
                // SAFETY: the caller's arguments, unchanged.
                let stream = unsafe { real::$name(path, mode) };
                if !stream.is_null() {
                    // SAFETY: an open stream.
                    fresh(unsafe { libc::fileno(stream) });
                }
                stream
            }
        )+
    };
}

streams! { fopen fopen64 }
