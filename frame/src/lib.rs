//! libknet_frame.so: only the exported C symbols; everything they do is in `knet::shim`.
//!
//! # Safety
//! Each function has the signature of libc's function of the same name and hands its arguments on unchanged. The
//! constructor is called once by the dynamic linker. `exports.txt` is the reviewed list of names; a test compares it with
//! the built object.

#![allow(clippy::missing_safety_doc)]

use core::ffi::{c_char, c_int, c_uint, c_ulong, c_void};

use libc::{
    FILE, epoll_event, fd_set, gid_t, iovec, mmsghdr, mode_t, msghdr, nfds_t, off_t, pid_t, pollfd,
    rlimit, sigset_t, size_t, sockaddr, socklen_t, ssize_t, timespec, timeval, uid_t,
};

/// Runs when the object is loaded.
#[used]
#[unsafe(link_section = ".init_array")]
static LOAD: extern "C" fn() = knet::shim::init::load;

macro_rules! exports {
    ($family:ident: $(fn $name:ident($($arg:ident: $ty:ty),*) $(-> $ret:ty)?;)+) => {
        $(
            #[unsafe(no_mangle)]
            unsafe extern "C-unwind" fn $name($($arg: $ty),*) $(-> $ret)? {
                // SAFETY: the caller's arguments, unchanged.
                unsafe { knet::shim::$family::$name($($arg),*) }
            }
        )+
    };
}

exports! { socket:
    fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int;
    fn bind(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int;
    fn listen(fd: c_int, backlog: c_int) -> c_int;
    fn accept(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int;
    fn accept4(fd: c_int, address: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int;
    fn connect(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int;
    fn shutdown(fd: c_int, how: c_int) -> c_int;
    fn getsockname(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int;
    fn getpeername(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int;
}

exports! { send:
    fn send(fd: c_int, bytes: *const c_void, len: size_t, flags: c_int) -> ssize_t;
    fn sendto(fd: c_int, bytes: *const c_void, len: size_t, flags: c_int, address: *const sockaddr, address_len: socklen_t) -> ssize_t;
    fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t;
    fn sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int;
    fn write(fd: c_int, bytes: *const c_void, len: size_t) -> ssize_t;
    fn writev(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t;
}

exports! { receive:
    fn recv(fd: c_int, bytes: *mut c_void, len: size_t, flags: c_int) -> ssize_t;
    fn recvfrom(fd: c_int, bytes: *mut c_void, len: size_t, flags: c_int, address: *mut sockaddr, address_len: *mut socklen_t) -> ssize_t;
    fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t;
    fn recvmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int, timeout: *mut timespec) -> c_int;
    fn read(fd: c_int, bytes: *mut c_void, len: size_t) -> ssize_t;
    fn readv(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t;
    fn __read_chk(fd: c_int, bytes: *mut c_void, len: size_t, room: size_t) -> ssize_t;
    fn __recv_chk(fd: c_int, bytes: *mut c_void, len: size_t, room: size_t, flags: c_int) -> ssize_t;
    fn __recvfrom_chk(fd: c_int, bytes: *mut c_void, len: size_t, room: size_t, flags: c_int, address: *mut sockaddr, address_len: *mut socklen_t) -> ssize_t;
}

exports! { sendfile:
    fn sendfile(out: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t;
    fn sendfile64(out: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t;
}

exports! { epoll_ctl:
    fn epoll_create(size: c_int) -> c_int;
    fn epoll_create1(flags: c_int) -> c_int;
    fn epoll_ctl(epfd: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int;
}

exports! { epoll_wait:
    fn epoll_wait(epfd: c_int, events: *mut epoll_event, room: c_int, timeout: c_int) -> c_int;
    fn epoll_pwait(epfd: c_int, events: *mut epoll_event, room: c_int, timeout: c_int, mask: *const sigset_t) -> c_int;
    fn epoll_pwait2(epfd: c_int, events: *mut epoll_event, room: c_int, timeout: *const timespec, mask: *const sigset_t) -> c_int;
}

exports! { poll:
    fn poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int;
    fn ppoll(fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int;
    fn __poll_chk(fds: *mut pollfd, count: nfds_t, timeout: c_int, room: size_t) -> c_int;
    fn __ppoll_chk(fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t, room: size_t) -> c_int;
}

exports! { select:
    fn select(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *mut timeval) -> c_int;
    fn pselect(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *const timespec, mask: *const sigset_t) -> c_int;
}

exports! { descriptor:
    fn close(fd: c_int) -> c_int;
    fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int;
    fn fcntl64(fd: c_int, command: c_int, argument: usize) -> c_int;
    fn ioctl(fd: c_int, request: c_ulong, argument: usize) -> c_int;
    fn dup(fd: c_int) -> c_int;
    fn dup2(fd: c_int, to: c_int) -> c_int;
    fn dup3(fd: c_int, to: c_int, flags: c_int) -> c_int;
    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int;
    fn closefrom(first: c_int);
}

exports! { option:
    fn getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, len: *mut socklen_t) -> c_int;
    fn setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> c_int;
}

exports! { open:
    fn open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int;
    fn open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int;
    fn openat(folder: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int;
    fn openat64(folder: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int;
    fn __open_2(path: *const c_char, flags: c_int) -> c_int;
    fn __open64_2(path: *const c_char, flags: c_int) -> c_int;
    fn __openat_2(folder: c_int, path: *const c_char, flags: c_int) -> c_int;
    fn __openat64_2(folder: c_int, path: *const c_char, flags: c_int) -> c_int;
    fn creat(path: *const c_char, mode: mode_t) -> c_int;
    fn creat64(path: *const c_char, mode: mode_t) -> c_int;
    fn pipe(ends: *mut c_int) -> c_int;
    fn pipe2(ends: *mut c_int, flags: c_int) -> c_int;
    fn socketpair(domain: c_int, kind: c_int, protocol: c_int, ends: *mut c_int) -> c_int;
    fn eventfd(start: c_uint, flags: c_int) -> c_int;
    fn timerfd_create(clock: c_int, flags: c_int) -> c_int;
    fn signalfd(fd: c_int, mask: *const sigset_t, flags: c_int) -> c_int;
    fn inotify_init() -> c_int;
    fn inotify_init1(flags: c_int) -> c_int;
    fn memfd_create(name: *const c_char, flags: c_uint) -> c_int;
    fn fopen(path: *const c_char, mode: *const c_char) -> *mut FILE;
    fn fopen64(path: *const c_char, mode: *const c_char) -> *mut FILE;
    fn fclose(stream: *mut FILE) -> c_int;
}

exports! { process:
    fn chroot(path: *const c_char) -> c_int;
    fn setgroups(count: size_t, groups: *const gid_t) -> c_int;
    fn initgroups(user: *const c_char, group: gid_t) -> c_int;
    fn setuid(user: uid_t) -> c_int;
    fn setgid(group: gid_t) -> c_int;
    fn seteuid(user: uid_t) -> c_int;
    fn setegid(group: gid_t) -> c_int;
    fn setreuid(user: uid_t, effective: uid_t) -> c_int;
    fn setregid(group: gid_t, effective: gid_t) -> c_int;
    fn setresuid(user: uid_t, effective: uid_t, saved: uid_t) -> c_int;
    fn setresgid(group: gid_t, effective: gid_t, saved: gid_t) -> c_int;
    fn setrlimit(resource: c_int, limit: *const rlimit) -> c_int;
    fn setrlimit64(resource: c_int, limit: *const rlimit) -> c_int;
    fn prlimit(process: pid_t, resource: c_int, limit: *const rlimit, old: *mut rlimit) -> c_int;
    fn prlimit64(process: pid_t, resource: c_int, limit: *const rlimit, old: *mut rlimit) -> c_int;
}
