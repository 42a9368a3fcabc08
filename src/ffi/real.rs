//! libc's functions behind the exported ones, resolved once.
//!
//! [`resolve`] runs in the constructor. A call before it (an allocator, a constructor of another library) makes the
//! raw system call instead.
//!
//! # Safety
//! Each row of the table names a symbol and its C signature side by side; an address is stored only by
//! [`resolve`], from `dlsym(RTLD_NEXT, that name)`. All are `C-unwind`: a cancelled thread may unwind through them.

#![allow(unsafe_code)]

use core::ffi::{c_char, c_int, c_long, c_uint, c_ulong, c_void};
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};

use libc::{
    FILE, epoll_event, fd_set, gid_t, iovec, mmsghdr, mode_t, msghdr, nfds_t, off_t, off64_t,
    pid_t, pollfd, posix_spawn_file_actions_t, posix_spawnattr_t, pthread_attr_t, pthread_t,
    rlimit, sigset_t, size_t, sockaddr, socklen_t, ssize_t, timespec, timeval, uid_t,
};

/// System calls that newer architectures do not have; -1 there, which the kernel answers with ENOSYS.
mod legacy {
    macro_rules! numbers {
        ($($name:ident)+) => {
            $(
                #[cfg(target_arch = "x86_64")]
                pub(super) use libc::$name;
                #[cfg(not(target_arch = "x86_64"))]
                pub(super) const $name: super::c_long = -1;
            )+
        };
    }
    numbers! {
        SYS_accept SYS_poll SYS_select SYS_epoll_create SYS_epoll_wait SYS_pipe SYS_open SYS_creat
        SYS_dup2 SYS_eventfd2 SYS_signalfd4 SYS_inotify_init
    }
}
use super::engine::Start;
use legacy::{
    SYS_accept, SYS_creat, SYS_dup2, SYS_epoll_create, SYS_epoll_wait, SYS_eventfd2,
    SYS_inotify_init, SYS_open, SYS_pipe, SYS_poll, SYS_select, SYS_signalfd4,
};

/// libc's `__libc_single_threaded` (glibc 2.32); null when it has none.
static SINGLE_THREADED: AtomicPtr<core::sync::atomic::AtomicU8> = AtomicPtr::new(ptr::null_mut());

/// Whether this process surely has one thread only. False when nobody can tell.
#[must_use]
pub fn is_single_threaded() -> bool {
    let place = SINGLE_THREADED.load(Ordering::Acquire);
    // SAFETY: null, or libc's own byte, which lives as long as the process and is only read here.
    unsafe { place.as_ref() }.is_some_and(|flag| flag.load(Ordering::Relaxed) != 0)
}

fn resolve_single_threaded() {
    let name = c"__libc_single_threaded";
    // SAFETY: a terminated name.
    let place = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    SINGLE_THREADED.store(place.cast(), Ordering::Release);
}

/// No system call: ENOSYS.
const NONE: c_long = -1;

macro_rules! originals {
    ($(fn $name:ident($($arg:ident: $ty:ty),*) -> $ret:ty = $number:expr $(, $($extra:expr),+)?;)+) => {
        #[derive(Debug)]
        struct Originals { $($name: AtomicPtr<c_void>,)+ }

        static ORIGINALS: Originals = Originals { $($name: AtomicPtr::new(ptr::null_mut()),)+ };

        /// Looks every original up; a second call finds the same.
        pub fn resolve() {
            resolve_single_threaded();
            $(
                let name = concat!(stringify!($name), "\0");
                // SAFETY: a terminated name; RTLD_NEXT searches the objects behind this one.
                let place = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr().cast::<c_char>()) };
                ORIGINALS.$name.store(place, Ordering::Release);
            )+
        }

        /// Whether [`resolve`] has run.
        #[must_use]
        pub fn is_resolved() -> bool {
            !ORIGINALS.close.load(Ordering::Acquire).is_null()
        }

        /// The names that are interposed, for the check of the exported symbols.
        pub const NAMES: &[&str] = &[$(stringify!($name),)+];

        $(
            /// The original of this name.
            ///
            /// # Safety
            /// As for the C function.
            #[inline]
            pub unsafe fn $name($($arg: $ty),*) -> $ret {
                let place = ORIGINALS.$name.load(Ordering::Acquire);
                if place.is_null() {
                    // SAFETY: the same arguments that the caller vouches for, to the call behind the function.
                    let result = unsafe { libc::syscall($number, $($arg),* $(, $($extra),+)?) };
                    return Answer::from_call(result);
                }
                // SAFETY: stored by `resolve` for exactly this name, whose signature stands in the table.
                let call = unsafe {
                    core::mem::transmute::<*mut c_void, unsafe extern "C-unwind" fn($($ty),*) -> $ret>(place)
                };
                // SAFETY: as the caller promises.
                unsafe { call($($arg),*) }
            }
        )+
    };
}

/// A raw call's result as the C function returns it.
trait Answer {
    fn from_call(result: c_long) -> Self;
}

impl Answer for c_int {
    fn from_call(result: c_long) -> Self {
        Self::try_from(result).unwrap_or(-1)
    }
}

impl Answer for ssize_t {
    fn from_call(result: c_long) -> Self {
        Self::try_from(result).unwrap_or(-1)
    }
}

impl Answer for *mut FILE {
    fn from_call(_result: c_long) -> Self {
        ptr::null_mut()
    }
}

/// Bytes of the kernel's signal mask, the last argument of the calls that take one.
const MASK_BYTES: usize = 8;

// dprintf, its checked form, and exec with a variable number of arguments are never called: those go to the forms that take a
// list.
originals! {
    fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int = libc::SYS_socket;
    fn bind(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int = libc::SYS_bind;
    fn listen(fd: c_int, backlog: c_int) -> c_int = libc::SYS_listen;
    fn accept(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int = SYS_accept;
    fn accept4(fd: c_int, address: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int = libc::SYS_accept4;
    fn connect(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int = libc::SYS_connect;
    fn shutdown(fd: c_int, how: c_int) -> c_int = libc::SYS_shutdown;
    fn close(fd: c_int) -> c_int = libc::SYS_close;
    fn getsockname(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int = libc::SYS_getsockname;
    fn getpeername(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int = libc::SYS_getpeername;
    fn getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, len: *mut socklen_t) -> c_int = libc::SYS_getsockopt;
    fn setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> c_int = libc::SYS_setsockopt;
    fn send(fd: c_int, bytes: *const c_void, len: size_t, flags: c_int) -> ssize_t = libc::SYS_sendto, 0_usize, 0_usize;
    fn sendto(fd: c_int, bytes: *const c_void, len: size_t, flags: c_int, address: *const sockaddr, address_len: socklen_t) -> ssize_t = libc::SYS_sendto;
    fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t = libc::SYS_sendmsg;
    fn sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int = libc::SYS_sendmmsg;
    fn recv(fd: c_int, bytes: *mut c_void, len: size_t, flags: c_int) -> ssize_t = libc::SYS_recvfrom, 0_usize, 0_usize;
    fn recvfrom(fd: c_int, bytes: *mut c_void, len: size_t, flags: c_int, address: *mut sockaddr, address_len: *mut socklen_t) -> ssize_t = libc::SYS_recvfrom;
    fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t = libc::SYS_recvmsg;
    fn recvmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int, timeout: *mut timespec) -> c_int = libc::SYS_recvmmsg;
    fn read(fd: c_int, bytes: *mut c_void, len: size_t) -> ssize_t = libc::SYS_read;
    fn write(fd: c_int, bytes: *const c_void, len: size_t) -> ssize_t = libc::SYS_write;
    fn readv(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t = libc::SYS_readv;
    fn writev(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t = libc::SYS_writev;
    fn preadv2(fd: c_int, parts: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t = NONE;
    fn preadv64v2(fd: c_int, parts: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t = NONE;
    fn pwritev2(fd: c_int, parts: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t = NONE;
    fn pwritev64v2(fd: c_int, parts: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t = NONE;
    fn sendfile(out: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t = libc::SYS_sendfile;
    fn sendfile64(out: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t = libc::SYS_sendfile;
    fn splice(from: c_int, from_at: *mut off64_t, to: c_int, to_at: *mut off64_t, len: size_t, flags: c_uint) -> ssize_t = libc::SYS_splice;
    fn epoll_create(size: c_int) -> c_int = SYS_epoll_create;
    fn epoll_create1(flags: c_int) -> c_int = libc::SYS_epoll_create1;
    fn epoll_ctl(epfd: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int = libc::SYS_epoll_ctl;
    fn epoll_wait(epfd: c_int, events: *mut epoll_event, room: c_int, timeout: c_int) -> c_int = SYS_epoll_wait;
    fn epoll_pwait(epfd: c_int, events: *mut epoll_event, room: c_int, timeout: c_int, mask: *const sigset_t) -> c_int = libc::SYS_epoll_pwait, MASK_BYTES;
    fn epoll_pwait2(epfd: c_int, events: *mut epoll_event, room: c_int, timeout: *const timespec, mask: *const sigset_t) -> c_int = libc::SYS_epoll_pwait2, MASK_BYTES;
    fn poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int = SYS_poll;
    fn ppoll(fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int = libc::SYS_ppoll, MASK_BYTES;
    fn select(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *mut timeval) -> c_int = SYS_select;
    fn pselect(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *const timespec, mask: *const sigset_t) -> c_int = NONE;
    fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int = libc::SYS_fcntl;
    fn fcntl64(fd: c_int, command: c_int, argument: usize) -> c_int = libc::SYS_fcntl;
    fn ioctl(fd: c_int, request: c_ulong, argument: usize) -> c_int = libc::SYS_ioctl;
    fn sockatmark(fd: c_int) -> c_int = NONE;
    fn dup(fd: c_int) -> c_int = libc::SYS_dup;
    fn dup2(fd: c_int, to: c_int) -> c_int = SYS_dup2;
    fn dup3(fd: c_int, to: c_int, flags: c_int) -> c_int = libc::SYS_dup3;
    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int = libc::SYS_close_range;
    fn closefrom(first: c_int) -> c_int = libc::SYS_close_range, c_uint::MAX, 0_usize;
    fn open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int = SYS_open;
    fn open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int = SYS_open;
    fn openat(folder: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int = libc::SYS_openat;
    fn openat64(folder: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int = libc::SYS_openat;
    fn __open_2(path: *const c_char, flags: c_int) -> c_int = SYS_open;
    fn __open64_2(path: *const c_char, flags: c_int) -> c_int = SYS_open;
    fn __openat_2(folder: c_int, path: *const c_char, flags: c_int) -> c_int = libc::SYS_openat;
    fn __openat64_2(folder: c_int, path: *const c_char, flags: c_int) -> c_int = libc::SYS_openat;
    fn creat(path: *const c_char, mode: mode_t) -> c_int = SYS_creat;
    fn creat64(path: *const c_char, mode: mode_t) -> c_int = SYS_creat;
    fn pipe(ends: *mut c_int) -> c_int = SYS_pipe;
    fn pipe2(ends: *mut c_int, flags: c_int) -> c_int = libc::SYS_pipe2;
    fn socketpair(domain: c_int, kind: c_int, protocol: c_int, ends: *mut c_int) -> c_int = libc::SYS_socketpair;
    fn eventfd(start: c_uint, flags: c_int) -> c_int = SYS_eventfd2;
    fn timerfd_create(clock: c_int, flags: c_int) -> c_int = libc::SYS_timerfd_create;
    fn signalfd(fd: c_int, mask: *const sigset_t, flags: c_int) -> c_int = SYS_signalfd4, MASK_BYTES, 0_usize;
    fn inotify_init() -> c_int = SYS_inotify_init;
    fn inotify_init1(flags: c_int) -> c_int = libc::SYS_inotify_init1;
    fn memfd_create(name: *const c_char, flags: c_uint) -> c_int = libc::SYS_memfd_create;
    fn fopen(path: *const c_char, mode: *const c_char) -> *mut FILE = NONE;
    fn fopen64(path: *const c_char, mode: *const c_char) -> *mut FILE = NONE;
    fn fclose(stream: *mut FILE) -> c_int = NONE;
    fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE = NONE;
    fn freopen(path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut FILE = NONE;
    fn freopen64(path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut FILE = NONE;
    fn vdprintf(fd: c_int, format: *const c_char, arguments: *mut c_void) -> c_int = NONE;
    fn __vdprintf_chk(fd: c_int, flag: c_int, format: *const c_char, arguments: *mut c_void) -> c_int = NONE;
    fn dprintf() -> c_int = NONE;
    fn __dprintf_chk() -> c_int = NONE;
    fn chroot(path: *const c_char) -> c_int = libc::SYS_chroot;
    fn setgroups(count: size_t, groups: *const gid_t) -> c_int = NONE;
    fn initgroups(user: *const c_char, group: gid_t) -> c_int = NONE;
    fn setuid(user: uid_t) -> c_int = NONE;
    fn setgid(group: gid_t) -> c_int = NONE;
    fn seteuid(user: uid_t) -> c_int = NONE;
    fn setegid(group: gid_t) -> c_int = NONE;
    fn setreuid(user: uid_t, effective: uid_t) -> c_int = NONE;
    fn setregid(group: gid_t, effective: gid_t) -> c_int = NONE;
    fn setresuid(user: uid_t, effective: uid_t, saved: uid_t) -> c_int = NONE;
    fn setresgid(group: gid_t, effective: gid_t, saved: gid_t) -> c_int = NONE;
    fn setrlimit(resource: c_int, limit: *const rlimit) -> c_int = libc::SYS_setrlimit;
    fn setrlimit64(resource: c_int, limit: *const rlimit) -> c_int = libc::SYS_setrlimit;
    fn prlimit(process: pid_t, resource: c_int, limit: *const rlimit, old: *mut rlimit) -> c_int = libc::SYS_prlimit64;
    fn prlimit64(process: pid_t, resource: c_int, limit: *const rlimit, old: *mut rlimit) -> c_int = libc::SYS_prlimit64;
    fn execve(path: *const c_char, argv: *const *const c_char, envp: *const *const c_char) -> c_int = libc::SYS_execve;
    fn execv(path: *const c_char, argv: *const *const c_char) -> c_int = NONE;
    fn execvp(file: *const c_char, argv: *const *const c_char) -> c_int = NONE;
    fn execvpe(file: *const c_char, argv: *const *const c_char, envp: *const *const c_char) -> c_int = NONE;
    fn fexecve(fd: c_int, argv: *const *const c_char, envp: *const *const c_char) -> c_int = NONE;
    fn execveat(folder: c_int, path: *const c_char, argv: *const *const c_char, envp: *const *const c_char, flags: c_int) -> c_int = libc::SYS_execveat;
    fn execl() -> c_int = NONE;
    fn execlp() -> c_int = NONE;
    fn execle() -> c_int = NONE;
    fn posix_spawn(pid: *mut pid_t, path: *const c_char, actions: *const posix_spawn_file_actions_t, attributes: *const posix_spawnattr_t, argv: *const *const c_char, envp: *const *const c_char) -> c_int = NONE;
    fn posix_spawnp(pid: *mut pid_t, file: *const c_char, actions: *const posix_spawn_file_actions_t, attributes: *const posix_spawnattr_t, argv: *const *const c_char, envp: *const *const c_char) -> c_int = NONE;
    fn posix_spawn_file_actions_adddup2(actions: *mut posix_spawn_file_actions_t, fd: c_int, to: c_int) -> c_int = NONE;
    fn posix_spawn_file_actions_addclosefrom_np(actions: *mut posix_spawn_file_actions_t, first: c_int) -> c_int = NONE;
    fn pthread_create(thread: *mut pthread_t, attributes: *const pthread_attr_t, start: Start, argument: *mut c_void) -> c_int = NONE;
    fn __read_chk(fd: c_int, bytes: *mut c_void, len: size_t, room: size_t) -> ssize_t = libc::SYS_read;
    fn __recv_chk(fd: c_int, bytes: *mut c_void, len: size_t, room: size_t, flags: c_int) -> ssize_t = NONE;
    fn __recvfrom_chk(fd: c_int, bytes: *mut c_void, len: size_t, room: size_t, flags: c_int, address: *mut sockaddr, address_len: *mut socklen_t) -> ssize_t = NONE;
    fn __poll_chk(fds: *mut pollfd, count: nfds_t, timeout: c_int, room: size_t) -> c_int = SYS_poll;
    fn __ppoll_chk(fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t, room: size_t) -> c_int = NONE;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_original_and_the_raw_call_answer_alike() {
        // SAFETY: a bad descriptor and no memory.
        let before = unsafe { listen(-1, 1) };
        resolve();
        // SAFETY: as above.
        let after = unsafe { listen(-1, 1) };
        assert_eq!((before, after), (-1, -1));
        assert!(!ORIGINALS.close.load(Ordering::Relaxed).is_null());
    }
}
