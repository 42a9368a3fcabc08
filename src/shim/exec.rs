//! exec and posix_spawn: accelerated sockets without FD_CLOEXEC live on in the new program ([`crate::fd::handover`]).
//!
//! Arguments go to libc as they came, with one exception: when there is something to hand over, the environment says so, and
//! names the preloaded object again where a program has cleared it (nginx does before it executes its successor).
//!
//! # Safety
//! Paths, lists and environments are read as the C functions read them. What is added to an environment lies on the stack until
//! the call returns; after exec it is the kernel's copy.

#![allow(unsafe_code)]

mod arguments;
mod environment;

use core::ffi::{CStr, c_char, c_int, c_void};

use libc::{pid_t, posix_spawn_file_actions_t, posix_spawnattr_t};

use self::arguments::with_arguments;
use self::environment::Environment;
use crate::attach::image::{self, Loads};
use crate::fd::handover::{self, How, Package};
use crate::fd::{self, own};
use crate::ffi::{errno, real};
use crate::progress;
use crate::thread;

/// A list of terminated strings, ended by a null pointer.
type List = *const *const c_char;

/// The environment as it is now.
fn current() -> List {
    crate::ffi::environment::list()
}

/// What a call that executes a program came to: its result, and the process that it has made.
type Executed = (c_int, Option<u32>);

/// Runs `exec` with the environment `list`, or with one that hands our sockets over.
///
/// # Safety
/// `list` as an environment; `exec` returns only when nothing was executed, or in the parent.
unsafe fn handing_over(
    how: How,
    list: List,
    loads: impl FnOnce() -> Loads,
    exec: impl FnOnce(List) -> Executed,
) -> c_int {
    if thread::is_ours() || !handover::is_needed() {
        return exec(list).0;
    }
    let saved = errno::save();
    let package = match loads() {
        Loads::NoProgram => None,
        Loads::No(why) => {
            tell_lost(why);
            None
        }
        Loads::Yes => {
            if progress::is_here() && !fd::is_foreign() && how == How::Here {
                tell_lost("the stack runs inside the program before it (common.progress)");
            }
            packed(how)
        }
    };
    let Some(package) = package else {
        errno::restore(saved);
        return exec(list).0;
    };
    // SAFETY: as the caller promises.
    let mut environment = unsafe { Environment::new(list) };
    let filled = match &mut environment {
        // SAFETY: as above.
        Ok(environment) => unsafe { environment.fill(list, package.number()) },
        Err(error) => Err(*error),
    };
    match filled {
        Ok(list) => {
            errno::restore(saved);
            let (result, child) = exec(list);
            let saved = errno::save();
            package.end(child);
            errno::restore(saved);
            result
        }
        Err(error) => {
            // The program would inherit what it knows nothing of.
            package.end(None);
            tell_lost("its environment is too large");
            crate::debug!("exec: errno={}", error.raw_os_error());
            errno::restore(saved);
            exec(list).0
        }
    }
}

fn packed(how: How) -> Option<Package> {
    match handover::pack(how) {
        Ok(package) => package,
        Err(error) => {
            crate::warn!(
                "exec: the accelerated sockets do not go with the program errno={}",
                error.raw_os_error()
            );
            None
        }
    }
}

/// One line for the sockets that end with this program.
fn tell_lost(why: &str) {
    let lost = handover::count_lost();
    if lost > 0 {
        crate::warn!("exec: {lost} accelerated sockets end with this program: {why}");
    }
}

/// # Safety
/// Null, or terminated.
unsafe fn at_path(folder: Option<i32>, path: *const c_char) -> Loads {
    if path.is_null() {
        return Loads::NoProgram;
    }
    // SAFETY: not null, terminated.
    image::of_path(folder, unsafe { CStr::from_ptr(path) })
}

/// The program that a search of PATH finds (execvp(3)).
///
/// # Safety
/// Null, or terminated.
unsafe fn in_path(file: *const c_char) -> Loads {
    if file.is_null() {
        return Loads::NoProgram;
    }
    // SAFETY: not null, terminated.
    let name = unsafe { CStr::from_ptr(file) };
    image::in_path(name)
}

/// execve(2).
///
/// # Safety
/// As for the C function.
pub unsafe fn execve(path: *const c_char, argv: List, envp: List) -> c_int {
    // SAFETY: the caller's arguments.
    let exec = |list| (unsafe { real::execve(path, argv, list) }, None);
    // SAFETY: as the caller promises.
    let loads = || unsafe { at_path(None, path) };
    // SAFETY: as the caller promises.
    unsafe { handing_over(How::Here, envp, loads, exec) }
}

/// execv(3).
///
/// # Safety
/// As for the C function.
pub unsafe fn execv(path: *const c_char, argv: List) -> c_int {
    // SAFETY: the caller's arguments, and the environment that the C function takes.
    unsafe { execve(path, argv, current()) }
}

/// execvpe(3).
///
/// # Safety
/// As for the C function.
pub unsafe fn execvpe(file: *const c_char, argv: List, envp: List) -> c_int {
    // SAFETY: the caller's arguments.
    let exec = |list| (unsafe { real::execvpe(file, argv, list) }, None);
    // SAFETY: as the caller promises.
    let loads = || unsafe { in_path(file) };
    // SAFETY: as the caller promises.
    unsafe { handing_over(How::Here, envp, loads, exec) }
}

/// execvp(3).
///
/// # Safety
/// As for the C function.
pub unsafe fn execvp(file: *const c_char, argv: List) -> c_int {
    // SAFETY: the caller's arguments, and the environment that the C function takes.
    unsafe { execvpe(file, argv, current()) }
}

/// fexecve(3).
///
/// # Safety
/// As for the C function.
pub unsafe fn fexecve(fd: c_int, argv: List, envp: List) -> c_int {
    // SAFETY: the caller's arguments.
    let exec = |list| (unsafe { real::fexecve(fd, argv, list) }, None);
    // SAFETY: as the caller promises.
    unsafe { handing_over(How::Here, envp, || image::of_descriptor(fd), exec) }
}

/// execveat(2).
///
/// # Safety
/// As for the C function.
pub unsafe fn execveat(
    folder: c_int,
    path: *const c_char,
    argv: List,
    envp: List,
    flags: c_int,
) -> c_int {
    let exec = |list| {
        // SAFETY: the caller's arguments.
        let result = unsafe { real::execveat(folder, path, argv, list, flags) };
        (result, None)
    };
    let loads = || {
        // SAFETY: null, or terminated.
        let is_empty = path.is_null() || unsafe { path.read() } == 0;
        if flags & libc::AT_EMPTY_PATH != 0 && is_empty {
            return image::of_descriptor(folder);
        }
        // SAFETY: as the caller promises.
        unsafe { at_path((folder != libc::AT_FDCWD).then_some(folder), path) }
    };
    // SAFETY: as the caller promises.
    unsafe { handing_over(How::Here, envp, loads, exec) }
}

/// What posix_spawn says of its `child` goes to the caller's `place`.
///
/// # Safety
/// `place` is null or writable.
unsafe fn spawned(result: c_int, child: pid_t, place: *mut pid_t) -> Executed {
    if result != 0 {
        return (result, None);
    }
    if !place.is_null() {
        // SAFETY: as the caller promises.
        unsafe { place.write_unaligned(child) };
    }
    (0, Some(child.unsigned_abs()))
}

/// posix_spawn(3).
///
/// # Safety
/// As for the C function.
pub unsafe fn posix_spawn(
    pid: *mut pid_t,
    path: *const c_char,
    actions: *const posix_spawn_file_actions_t,
    attributes: *const posix_spawnattr_t,
    argv: List,
    envp: List,
) -> c_int {
    let exec = |list| {
        let mut child = 0;
        // SAFETY: the caller's arguments, and a number of this frame.
        let result =
            unsafe { real::posix_spawn(&raw mut child, path, actions, attributes, argv, list) };
        // SAFETY: as the caller promises.
        unsafe { spawned(result, child, pid) }
    };
    // SAFETY: as the caller promises.
    let loads = || unsafe { at_path(None, path) };
    // SAFETY: as the caller promises.
    unsafe { handing_over(How::Spawned, envp, loads, exec) }
}

/// posix_spawnp(3).
///
/// # Safety
/// As for the C function.
pub unsafe fn posix_spawnp(
    pid: *mut pid_t,
    file: *const c_char,
    actions: *const posix_spawn_file_actions_t,
    attributes: *const posix_spawnattr_t,
    argv: List,
    envp: List,
) -> c_int {
    let exec = |list| {
        let mut child = 0;
        // SAFETY: the caller's arguments, and a number of this frame.
        let result =
            unsafe { real::posix_spawnp(&raw mut child, file, actions, attributes, argv, list) };
        // SAFETY: as the caller promises.
        unsafe { spawned(result, child, pid) }
    };
    // SAFETY: as the caller promises.
    let loads = || unsafe { in_path(file) };
    // SAFETY: as the caller promises.
    unsafe { handing_over(How::Spawned, envp, loads, exec) }
}

/// posix_spawn_file_actions_adddup2(3). The new program knows a socket that was moved by its inode, so that one which shares
/// it gets a socket of its own.
///
/// # Safety
/// As for the C function.
pub unsafe fn posix_spawn_file_actions_adddup2(
    actions: *mut posix_spawn_file_actions_t,
    fd: c_int,
    to: c_int,
) -> c_int {
    if fd::accelerated(fd).is_some_and(|socket| socket.accepted) {
        let saved = errno::save();
        if let Err(error) = own::give(fd) {
            crate::warn!(
                "posix_spawn: the accelerated socket {fd} does not go with the program errno={}",
                error.raw_os_error()
            );
        }
        errno::restore(saved);
    }
    // SAFETY: the caller's arguments, unchanged.
    unsafe { real::posix_spawn_file_actions_adddup2(actions, fd, to) }
}

/// posix_spawn_file_actions_addclosefrom_np(3). What we hand over must not be closed: the numbers before it one by one, and all
/// behind it.
///
/// # Safety
/// As for the C function.
pub unsafe fn posix_spawn_file_actions_addclosefrom_np(
    actions: *mut posix_spawn_file_actions_t,
    first: c_int,
) -> c_int {
    // SAFETY: the caller's actions.
    let real = |first| unsafe { real::posix_spawn_file_actions_addclosefrom_np(actions, first) };
    if first < 0 || thread::is_ours() || !handover::is_needed() {
        return real(first);
    }
    let saved = errno::save();
    let kept = handover::kept_numbers();
    errno::restore(saved);
    let kept = match kept {
        Ok(kept) => kept,
        Err(error) => {
            crate::warn!(
                "posix_spawn: the accelerated sockets do not go with the program errno={}",
                error.raw_os_error()
            );
            return real(first);
        }
    };
    let mut from = first;
    for number in kept {
        for fd in from..number {
            // SAFETY: the caller's actions.
            let result = unsafe { libc::posix_spawn_file_actions_addclose(actions, fd) };
            if result != 0 {
                return result;
            }
        }
        from = from.max(number + 1);
    }
    real(from)
}

/// execl(3); the arguments behind the first are in `list`.
///
/// # Safety
/// As for the C function.
pub unsafe fn execl(path: *const c_char, first: *const c_char, list: *mut c_void) -> c_int {
    // SAFETY: the caller's arguments.
    let exec = |argv, _: &mut dyn FnMut() -> *const c_char| unsafe { execv(path, argv) };
    // SAFETY: as the caller promises.
    unsafe { with_arguments(first, list, exec) }
}

/// execlp(3); as [`execl`].
///
/// # Safety
/// As for the C function.
pub unsafe fn execlp(file: *const c_char, first: *const c_char, list: *mut c_void) -> c_int {
    // SAFETY: the caller's arguments.
    let exec = |argv, _: &mut dyn FnMut() -> *const c_char| unsafe { execvp(file, argv) };
    // SAFETY: as the caller promises.
    unsafe { with_arguments(first, list, exec) }
}

/// execle(3); as [`execl`], with the environment behind the null pointer.
///
/// # Safety
/// As for the C function.
pub unsafe fn execle(path: *const c_char, first: *const c_char, list: *mut c_void) -> c_int {
    let exec = |argv, next: &mut dyn FnMut() -> *const c_char| {
        let envp = next().cast::<*const c_char>();
        // SAFETY: the caller's arguments.
        unsafe { execve(path, argv, envp) }
    };
    // SAFETY: as the caller promises.
    unsafe { with_arguments(first, list, exec) }
}
