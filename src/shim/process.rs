//! Calls after which it is too late to attach: chroot and the set*id family, and the descriptor limit.
//!
//! # Safety
//! Arguments go to the original as they came.

#![allow(unsafe_code)]

use core::ffi::{c_char, c_int};

use libc::{gid_t, pid_t, rlimit, size_t, uid_t};

use crate::fd;
use crate::ffi::{errno, real};

/// Attaches while files, rights and folders are still as the operator meant them, when a socket may need it.
fn last_chance() {
    let number = errno::save();
    fd::route::attach_for_undecided();
    errno::restore(number);
}

macro_rules! last_chances {
    ($(fn $name:ident($($arg:ident: $ty:ty),*);)+) => {
        $(
            /// The call of this name in libc.
            ///
            /// # Safety
            /// As for the C function.
            pub unsafe fn $name($($arg: $ty),*) -> c_int {
                last_chance();
                // SAFETY: the caller's arguments, unchanged.
                unsafe { real::$name($($arg),*) }
            }
        )+
    };
}

last_chances! {
    fn chroot(path: *const c_char);
    fn setgroups(count: size_t, groups: *const gid_t);
    fn initgroups(user: *const c_char, group: gid_t);
    fn setuid(user: uid_t);
    fn setgid(group: gid_t);
    fn seteuid(user: uid_t);
    fn setegid(group: gid_t);
    fn setreuid(user: uid_t, effective: uid_t);
    fn setregid(group: gid_t, effective: gid_t);
    fn setresuid(user: uid_t, effective: uid_t, saved: uid_t);
    fn setresgid(group: gid_t, effective: gid_t, saved: gid_t);
}

macro_rules! limits {
    ($(fn $name:ident($($arg:ident: $ty:ty),*);)+) => {
        $(
            /// The call of this name in libc. Our own descriptors stay open above a limit that is lowered; later ones
            /// are placed below the new one, because each asks for the limit when it is made.
            ///
            /// # Safety
            /// As for the C function.
            pub unsafe fn $name($($arg: $ty),*) -> c_int {
                // SAFETY: the caller's arguments, unchanged.
                unsafe { real::$name($($arg),*) }
            }
        )+
    };
}

limits! {
    fn setrlimit(resource: c_int, limit: *const rlimit);
    fn setrlimit64(resource: c_int, limit: *const rlimit);
    fn prlimit(process: pid_t, resource: c_int, limit: *const rlimit, old: *mut rlimit);
    fn prlimit64(process: pid_t, resource: c_int, limit: *const rlimit, old: *mut rlimit);
}
