//! libknet_frame.so: only the exported C symbols; everything they do is in `knet::shim`.
//!
//! # Safety
//! Each function has the signature of libc's function of the same name and hands its arguments on unchanged. The
//! constructor is called once by the dynamic linker. `exports.txt` is the reviewed list of names; a test compares it with
//! the built object.

#![allow(clippy::missing_safety_doc)]

mod variadic;

use core::ffi::{c_char, c_int, c_uint, c_ulong, c_void};

use knet::ffi::engine::Start;
use knet::ffi::real;
use libc::{
    FILE, epoll_event, fd_set, gid_t, iovec, mmsghdr, mode_t, msghdr, nfds_t, off_t, off64_t,
    pid_t, pollfd, posix_spawn_file_actions_t, posix_spawnattr_t, pthread_attr_t, pthread_t,
    rlimit, sigset_t, size_t, sockaddr, socklen_t, ssize_t, timespec, timeval, uid_t,
};

/// Runs when the object is loaded.
#[used]
#[unsafe(link_section = ".init_array")]
static LOAD: extern "C" fn() = load;

extern "C" fn load() {
    knet::runtime::inline::offer();
    knet::shim::init::load();
}

/// `call`: opens no descriptor. `make`: returns a new one. `dupes`: does for some commands. `pair`: writes two to `ends`. `own`: looks itself who calls.
macro_rules! exports {
    ($family:ident: $($how:ident fn $name:ident($($arg:ident: $ty:ty),*) $(-> $ret:ty)?;)+) => {
        $(
            #[unsafe(no_mangle)]
            unsafe extern "C-unwind" fn $name($($arg: $ty),*) $(-> $ret)? {
                exports!(@$how $name($($arg),*));
                // SAFETY: the caller's arguments, unchanged.
                unsafe { knet::shim::$family::$name($($arg),*) }
            }
        )+
    };
    (@own $name:ident($($arg:ident),*)) => {};
    (@call $name:ident($($arg:ident),*)) => {
        if knet::thread::is_ours() {
            // SAFETY: the caller's arguments, unchanged.
            return knet::shim::engine::call(|| unsafe { real::$name($($arg),*) });
        }
    };
    (@make $name:ident($($arg:ident),*)) => {
        if knet::thread::is_ours() {
            // SAFETY: the caller's arguments, unchanged.
            return knet::shim::engine::make(|| unsafe { real::$name($($arg),*) });
        }
    };
    (@pair $name:ident($($arg:ident),*)) => {
        if knet::thread::is_ours() {
            exports!(@ends $name($($arg),*));
        }
    };
    (@ends socketpair($domain:ident, $kind:ident, $protocol:ident, $ends:ident)) => {
        // SAFETY: the caller's arguments, unchanged.
        return unsafe { knet::shim::engine::make_two($ends, || real::socketpair($domain, $kind, $protocol, $ends)) };
    };
    (@ends $name:ident($ends:ident $(, $arg:ident)*)) => {
        // SAFETY: the caller's arguments, unchanged.
        return unsafe { knet::shim::engine::make_two($ends, || real::$name($ends $(, $arg)*)) };
    };
    (@dupes $name:ident($fd:ident, $command:ident, $argument:ident)) => {
        if knet::thread::is_ours() {
            // SAFETY: the caller's arguments, unchanged.
            return knet::shim::engine::control($command, || unsafe { real::$name($fd, $command, $argument) });
        }
    };
    (@shut $name:ident($fd:ident)) => {
        if knet::thread::is_ours() {
            return knet::shim::engine::close($fd);
        }
    };
    (@message $name:ident($($arg:ident),*)) => {
        if knet::thread::is_ours() {
            // SAFETY: the caller's arguments, unchanged.
            return unsafe { knet::shim::engine::recvmsg($($arg),*) };
        }
    };
}

exports! { socket:
    make fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int;
    call fn bind(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int;
    call fn listen(fd: c_int, backlog: c_int) -> c_int;
    make fn accept(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int;
    make fn accept4(fd: c_int, address: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int;
    call fn connect(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int;
    call fn shutdown(fd: c_int, how: c_int) -> c_int;
    call fn getsockname(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int;
    call fn getpeername(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int;
}

exports! { send:
    call fn send(fd: c_int, bytes: *const c_void, len: size_t, flags: c_int) -> ssize_t;
    call fn sendto(fd: c_int, bytes: *const c_void, len: size_t, flags: c_int, address: *const sockaddr, address_len: socklen_t) -> ssize_t;
    call fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t;
    call fn sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int;
    call fn write(fd: c_int, bytes: *const c_void, len: size_t) -> ssize_t;
    call fn writev(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t;
}

exports! { receive:
    call fn recv(fd: c_int, bytes: *mut c_void, len: size_t, flags: c_int) -> ssize_t;
    call fn recvfrom(fd: c_int, bytes: *mut c_void, len: size_t, flags: c_int, address: *mut sockaddr, address_len: *mut socklen_t) -> ssize_t;
    message fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t;
    call fn recvmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int, timeout: *mut timespec) -> c_int;
    call fn read(fd: c_int, bytes: *mut c_void, len: size_t) -> ssize_t;
    call fn readv(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t;
    call fn __read_chk(fd: c_int, bytes: *mut c_void, len: size_t, room: size_t) -> ssize_t;
    call fn __recv_chk(fd: c_int, bytes: *mut c_void, len: size_t, room: size_t, flags: c_int) -> ssize_t;
    call fn __recvfrom_chk(fd: c_int, bytes: *mut c_void, len: size_t, room: size_t, flags: c_int, address: *mut sockaddr, address_len: *mut socklen_t) -> ssize_t;
}

exports! { positional:
    call fn preadv2(fd: c_int, parts: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t;
    call fn preadv64v2(fd: c_int, parts: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t;
    call fn pwritev2(fd: c_int, parts: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t;
    call fn pwritev64v2(fd: c_int, parts: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t;
}

exports! { sendfile:
    call fn sendfile(out: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t;
    call fn sendfile64(out: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t;
}

exports! { splice:
    call fn splice(from: c_int, from_at: *mut off64_t, to: c_int, to_at: *mut off64_t, len: size_t, flags: c_uint) -> ssize_t;
}

exports! { epoll_ctl:
    make fn epoll_create(size: c_int) -> c_int;
    make fn epoll_create1(flags: c_int) -> c_int;
    call fn epoll_ctl(epfd: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int;
}

exports! { epoll_wait:
    call fn epoll_wait(epfd: c_int, events: *mut epoll_event, room: c_int, timeout: c_int) -> c_int;
    call fn epoll_pwait(epfd: c_int, events: *mut epoll_event, room: c_int, timeout: c_int, mask: *const sigset_t) -> c_int;
    call fn epoll_pwait2(epfd: c_int, events: *mut epoll_event, room: c_int, timeout: *const timespec, mask: *const sigset_t) -> c_int;
}

exports! { poll:
    call fn poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int;
    call fn ppoll(fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int;
    call fn __poll_chk(fds: *mut pollfd, count: nfds_t, timeout: c_int, room: size_t) -> c_int;
    call fn __ppoll_chk(fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t, room: size_t) -> c_int;
}

exports! { select:
    call fn select(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *mut timeval) -> c_int;
    call fn pselect(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *const timespec, mask: *const sigset_t) -> c_int;
}

exports! { descriptor:
    shut fn close(fd: c_int) -> c_int;
    dupes fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int;
    dupes fn fcntl64(fd: c_int, command: c_int, argument: usize) -> c_int;
    call fn ioctl(fd: c_int, request: c_ulong, argument: usize) -> c_int;
    call fn sockatmark(fd: c_int) -> c_int;
    make fn dup(fd: c_int) -> c_int;
    call fn dup2(fd: c_int, to: c_int) -> c_int;
    call fn dup3(fd: c_int, to: c_int, flags: c_int) -> c_int;
    call fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int;
    own fn closefrom(first: c_int);
}

exports! { option:
    call fn getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, len: *mut socklen_t) -> c_int;
    call fn setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> c_int;
}

exports! { open:
    make fn open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int;
    make fn open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int;
    make fn openat(folder: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int;
    make fn openat64(folder: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int;
    make fn __open_2(path: *const c_char, flags: c_int) -> c_int;
    make fn __open64_2(path: *const c_char, flags: c_int) -> c_int;
    make fn __openat_2(folder: c_int, path: *const c_char, flags: c_int) -> c_int;
    make fn __openat64_2(folder: c_int, path: *const c_char, flags: c_int) -> c_int;
    make fn creat(path: *const c_char, mode: mode_t) -> c_int;
    make fn creat64(path: *const c_char, mode: mode_t) -> c_int;
    pair fn pipe(ends: *mut c_int) -> c_int;
    pair fn pipe2(ends: *mut c_int, flags: c_int) -> c_int;
    pair fn socketpair(domain: c_int, kind: c_int, protocol: c_int, ends: *mut c_int) -> c_int;
    make fn eventfd(start: c_uint, flags: c_int) -> c_int;
    make fn timerfd_create(clock: c_int, flags: c_int) -> c_int;
    make fn signalfd(fd: c_int, mask: *const sigset_t, flags: c_int) -> c_int;
    make fn inotify_init() -> c_int;
    make fn inotify_init1(flags: c_int) -> c_int;
    make fn memfd_create(name: *const c_char, flags: c_uint) -> c_int;
    call fn fopen(path: *const c_char, mode: *const c_char) -> *mut FILE;
    call fn fopen64(path: *const c_char, mode: *const c_char) -> *mut FILE;
}

exports! { stdio:
    call fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE;
    call fn fclose(stream: *mut FILE) -> c_int;
    call fn freopen(path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut FILE;
    call fn freopen64(path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut FILE;
    call fn vdprintf(fd: c_int, format: *const c_char, arguments: *mut c_void) -> c_int;
    call fn __vdprintf_chk(fd: c_int, flag: c_int, format: *const c_char, arguments: *mut c_void) -> c_int;
}

exports! { process:
    call fn chroot(path: *const c_char) -> c_int;
    call fn setgroups(count: size_t, groups: *const gid_t) -> c_int;
    call fn initgroups(user: *const c_char, group: gid_t) -> c_int;
    call fn setuid(user: uid_t) -> c_int;
    call fn setgid(group: gid_t) -> c_int;
    call fn seteuid(user: uid_t) -> c_int;
    call fn setegid(group: gid_t) -> c_int;
    call fn setreuid(user: uid_t, effective: uid_t) -> c_int;
    call fn setregid(group: gid_t, effective: gid_t) -> c_int;
    call fn setresuid(user: uid_t, effective: uid_t, saved: uid_t) -> c_int;
    call fn setresgid(group: gid_t, effective: gid_t, saved: gid_t) -> c_int;
    call fn setrlimit(resource: c_int, limit: *const rlimit) -> c_int;
    call fn setrlimit64(resource: c_int, limit: *const rlimit) -> c_int;
    call fn prlimit(process: pid_t, resource: c_int, limit: *const rlimit, old: *mut rlimit) -> c_int;
    call fn prlimit64(process: pid_t, resource: c_int, limit: *const rlimit, old: *mut rlimit) -> c_int;
}

exports! { exec:
    call fn execve(path: *const c_char, argv: *const *const c_char, envp: *const *const c_char) -> c_int;
    call fn execv(path: *const c_char, argv: *const *const c_char) -> c_int;
    call fn execvp(file: *const c_char, argv: *const *const c_char) -> c_int;
    call fn execvpe(file: *const c_char, argv: *const *const c_char, envp: *const *const c_char) -> c_int;
    call fn fexecve(fd: c_int, argv: *const *const c_char, envp: *const *const c_char) -> c_int;
    call fn execveat(folder: c_int, path: *const c_char, argv: *const *const c_char, envp: *const *const c_char, flags: c_int) -> c_int;
    call fn posix_spawn(pid: *mut pid_t, path: *const c_char, actions: *const posix_spawn_file_actions_t, attributes: *const posix_spawnattr_t, argv: *const *const c_char, envp: *const *const c_char) -> c_int;
    call fn posix_spawnp(pid: *mut pid_t, file: *const c_char, actions: *const posix_spawn_file_actions_t, attributes: *const posix_spawnattr_t, argv: *const *const c_char, envp: *const *const c_char) -> c_int;
    call fn posix_spawn_file_actions_adddup2(actions: *mut posix_spawn_file_actions_t, fd: c_int, to: c_int) -> c_int;
    call fn posix_spawn_file_actions_addclosefrom_np(actions: *mut posix_spawn_file_actions_t, first: c_int) -> c_int;
}

exports! { engine:
    own fn pthread_create(thread: *mut pthread_t, attributes: *const pthread_attr_t, start: Start, argument: *mut c_void) -> c_int;
}
