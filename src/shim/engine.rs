//! The exported calls when a thread of ours makes them (DPDK's libraries call libc by name), or a thread that drives: straight to
//! libc, but what a thread of ours opens moves out of the program's way, and the program steps over it.
//!
//! # Safety
//! Pointers are those of the call that was made, used for the call only.

#![allow(unsafe_code)]

use core::ffi::{c_int, c_void};

use libc::{msghdr, ssize_t};

use crate::ffi::engine::{self, Start};
use crate::ffi::{descriptor, real};
use crate::thread;

/// A call that opens nothing.
#[inline]
pub fn call<T>(libc: impl FnOnce() -> T) -> T {
    libc()
}

/// A call that returns a new descriptor.
pub fn make(libc: impl FnOnce() -> c_int) -> c_int {
    let fd = libc();
    if fd >= 0 && thread::role() == thread::ENGINE {
        return descriptor::keep(fd);
    }
    fd
}

/// fcntl(2).
pub fn control(command: c_int, call: impl FnOnce() -> c_int) -> c_int {
    match command {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => make(call),
        _ => call(),
    }
}

/// A call that opens two descriptors and writes them to `ends`.
///
/// # Safety
/// `ends` as for the C function.
pub unsafe fn make_two(ends: *mut c_int, libc: impl FnOnce() -> c_int) -> c_int {
    let result = libc();
    if result == 0 && thread::role() == thread::ENGINE {
        let place = ends.cast::<[c_int; 2]>();
        // SAFETY: the call succeeded, so two ints were written there.
        let pair = unsafe { place.read_unaligned() };
        // SAFETY: the same place.
        unsafe { place.write_unaligned(pair.map(descriptor::keep)) };
    }
    result
}

/// close(2).
pub fn close(fd: c_int) -> c_int {
    descriptor::forget(fd);
    // SAFETY: numbers only.
    unsafe { real::close(fd) }
}

/// recvmsg(2): descriptors come with a message too (vhost-user).
///
/// # Safety
/// As for the C function.
pub unsafe fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    // SAFETY: the caller's arguments, unchanged.
    let received = unsafe { real::recvmsg(fd, message, flags) };
    if received < 0 || thread::role() != thread::ENGINE {
        return received;
    }
    // SAFETY: the call succeeded, so it is a message header.
    let mut head = unsafe { libc::CMSG_FIRSTHDR(message) };
    while !head.is_null() {
        // SAFETY: a header inside the control buffer that the kernel filled.
        let libc::cmsghdr {
            cmsg_len: len,
            cmsg_level: level,
            cmsg_type: kind,
            ..
        } = unsafe { head.read_unaligned() };
        if level == libc::SOL_SOCKET && kind == libc::SCM_RIGHTS {
            // SAFETY: its data lie behind it.
            let data = unsafe { libc::CMSG_DATA(head) }.cast::<c_int>();
            let count = len.saturating_sub(data.addr() - head.addr()) / size_of::<c_int>();
            for index in 0..count {
                // SAFETY: inside the data.
                let place = unsafe { data.add(index) };
                // SAFETY: a descriptor that the kernel wrote.
                let fd = unsafe { place.read_unaligned() };
                // SAFETY: the same place.
                unsafe { place.write_unaligned(descriptor::keep(fd)) };
            }
        }
        // SAFETY: the header that was just looked at.
        head = unsafe { libc::CMSG_NXTHDR(message, head) };
    }
    received
}

/// pthread_create(3): a thread that one of ours makes is ours.
///
/// # Safety
/// As for the C function.
pub unsafe fn pthread_create(
    thread: *mut libc::pthread_t,
    attributes: *const libc::pthread_attr_t,
    start: Start,
    argument: *mut c_void,
) -> c_int {
    if thread::role() == thread::ENGINE {
        // SAFETY: the caller's arguments, unchanged.
        return unsafe { engine::create(thread, attributes, start, argument) };
    }
    if !real::is_resolved() {
        // A constructor that ran before ours.
        real::resolve();
    }
    // SAFETY: the caller's arguments, unchanged.
    unsafe { real::pthread_create(thread, attributes, start, argument) }
}
