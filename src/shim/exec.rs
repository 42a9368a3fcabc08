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
use crate::attach::parcel::Parcel;
use crate::fd::handover::{self, How};
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

/// Runs `exec` with the environment `list`, or with one that hands our sockets over.
///
/// # Safety
/// `list` as an environment; `exec` returns only when nothing was executed, or in the parent.
unsafe fn handing_over(
    how: How,
    list: List,
    loads: impl FnOnce() -> Loads,
    exec: impl FnOnce(List) -> c_int,
) -> c_int {
    if thread::is_ours() || !handover::is_needed() {
        return exec(list);
    }
    let saved = errno::save();
    let parcel = match loads() {
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
    errno::restore(saved);
    let Some(mut parcel) = parcel else {
        return exec(list);
    };
    // SAFETY: as the caller promises.
    let Ok(mut environment) = (unsafe { Environment::new(list) }) else {
        return exec(list);
    };
    let number = parcel.number();
    // SAFETY: as above.
    let result = match unsafe { environment.fill(list, number) } {
        Ok(list) => exec(list),
        Err(error) => {
            tell_lost("its environment is too large");
            crate::debug!("exec: errno={}", error.raw_os_error());
            exec(list)
        }
    };
    let saved = errno::save();
    parcel.close();
    errno::restore(saved);
    result
}

fn packed(how: How) -> Option<Parcel> {
    match handover::pack(how) {
        Ok(parcel) => parcel,
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
    let exec = |list| unsafe { real::execve(path, argv, list) };
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
    let exec = |list| unsafe { real::execvpe(file, argv, list) };
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
    let exec = |list| unsafe { real::fexecve(fd, argv, list) };
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
    // SAFETY: the caller's arguments.
    let exec = |list| unsafe { real::execveat(folder, path, argv, list, flags) };
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
    // SAFETY: the caller's arguments.
    let exec = |list| unsafe { real::posix_spawn(pid, path, actions, attributes, argv, list) };
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
    // SAFETY: the caller's arguments.
    let exec = |list| unsafe { real::posix_spawnp(pid, file, actions, attributes, argv, list) };
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
