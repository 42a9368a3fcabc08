//! Closing, duplicating and controlling descriptors. Our own plumbing is stepped over.
//!
//! # Safety
//! Arguments go to the original as they came; a pointer behind an argument is checked for null.

#![allow(unsafe_code)]

use core::ffi::{c_int, c_uint, c_ulong};

use super::cvt;
use super::socket::{set_status_flags, status_flags};
use crate::channel::cell::kind;
use crate::channel::sync::Ordering;
use crate::errno::{Errno, Result};
use crate::fd::table::{self, Entry};
use crate::fd::touched::Touched;
use crate::fd::{self, Socket, Target, inflight, own, signals};
use crate::ffi::{async_io, descriptor, errno, real};
use crate::readiness::urgent;
use crate::socket::{close as closing, state, stream};

/// close(2).
///
/// # Safety
/// As for the C function.
pub unsafe fn close(fd: c_int) -> c_int {
    let entry = table::entry(fd);
    // SAFETY: numbers only.
    let kernel = || unsafe { real::close(fd) };
    if entry == Entry::Kernel {
        if descriptor::is_internal(fd) {
            return cvt::done(Err(Errno::BADF));
        }
        return kernel();
    }
    if fd::is_foreign() {
        return kernel();
    }
    let socket = match fd::target(fd) {
        Target::Socket(socket) => Some(socket),
        _ => None,
    };
    // Out of the table first: the number can be somebody else's as soon as it is closed.
    let old = table::exchange(fd, Entry::Kernel);
    let result = kernel();
    let saved = errno::save();
    let lingered = match socket {
        Some(socket) if socket.entry() == old => closing::linger(socket.link, socket.object),
        _ => Ok(()),
    };
    if let Some(socket) = socket
        && !inflight::give_back_own(old)
        && socket.entry() == old
    {
        closing::unlisten(socket.link, socket.object);
    }
    fd::release(old);
    errno::restore(saved);
    match lingered {
        Err(Errno::INTR) if result == 0 => cvt::done(Err(Errno::INTR)),
        _ => result,
    }
}

/// dup(2).
///
/// # Safety
/// As for the C function.
pub unsafe fn dup(fd: c_int) -> c_int {
    // SAFETY: numbers only.
    duplicated(fd, unsafe { real::dup(fd) })
}

/// `copy` came back from a call that duplicates `fd`.
fn duplicated(fd: c_int, copy: c_int) -> c_int {
    if copy >= 0 {
        fd::duplicate(fd, copy);
    }
    copy
}

/// Whether `to` is ours and cannot be taken away, not even from a child that shares our memory (vfork): it needs them to hand
/// over, and the program that it executes does not get them.
fn is_taken(fd: c_int, to: c_int) -> bool {
    fd != to && descriptor::is_internal(to)
}

/// dup2(2). DEVIATION: onto a number of our own plumbing (700 up) it is EBUSY.
///
/// # Safety
/// As for the C function.
pub unsafe fn dup2(fd: c_int, to: c_int) -> c_int {
    if is_taken(fd, to) {
        return cvt::done(Err(Errno::BUSY));
    }
    // SAFETY: numbers only.
    duplicated(fd, unsafe { real::dup2(fd, to) })
}

/// dup3(2). As [`dup2`].
///
/// # Safety
/// As for the C function.
pub unsafe fn dup3(fd: c_int, to: c_int, flags: c_int) -> c_int {
    if is_taken(fd, to) {
        return cvt::done(Err(Errno::BUSY));
    }
    // SAFETY: numbers only.
    duplicated(fd, unsafe { real::dup3(fd, to, flags) })
}

/// CLOSE_RANGE_UNSHARE and CLOSE_RANGE_CLOEXEC.
const UNSHARE: c_int = 2;
const CLOEXEC: c_int = 4;

/// close_range(2).
///
/// # Safety
/// As for the C function.
pub unsafe fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    // SAFETY: numbers only.
    let kernel = |first, last, flags| unsafe { real::close_range(first, last, flags) };
    let whole = flags & !UNSHARE != 0
        || first > last
        || (table::end() == 0 && descriptor::next_internal(0).is_none());
    if whole || flags & CLOEXEC != 0 {
        return kernel(first, last, flags);
    }
    let mut from = first;
    let mut flags = flags;
    loop {
        let ours = i32::try_from(from)
            .ok()
            .and_then(descriptor::next_internal)
            .and_then(|fd| c_uint::try_from(fd).ok())
            .filter(|fd| *fd <= last);
        let Some(ours) = ours else {
            forget(from, last);
            return kernel(from, last, flags);
        };
        if ours > from {
            forget(from, ours - 1);
            let result = kernel(from, ours - 1, flags);
            if result != 0 {
                return result;
            }
            flags &= !UNSHARE;
        }
        if ours == last {
            return 0;
        }
        from = ours + 1;
    }
}

/// Takes the entries of a range out of the table, unless it is that of another process's numbers.
fn forget(first: c_uint, last: c_uint) {
    if fd::is_foreign() {
        return;
    }
    let last = c_int::try_from(last).unwrap_or(c_int::MAX);
    let Ok(first) = c_int::try_from(first) else {
        return;
    };
    table::for_each(first, last, |number, _| {
        fd::release(table::exchange(number, Entry::Kernel));
    });
}

/// closefrom(3).
///
/// # Safety
/// As for the C function.
pub unsafe fn closefrom(first: c_int) {
    let first = c_uint::try_from(first).unwrap_or(0);
    // SAFETY: numbers only.
    if unsafe { close_range(first, c_uint::MAX, 0) } == 0 {
        return;
    }
    // Before Linux 5.9: libc's own way, one by one around our numbers.
    let end = table::end().max(descriptor::end_of_internal()).max(1_024);
    for fd in c_int::try_from(first).unwrap_or(c_int::MAX)..end {
        // SAFETY: numbers only.
        let _ = unsafe { close(fd) };
    }
    if descriptor::next_internal(0).is_none() {
        // SAFETY: numbers only.
        let _ = unsafe { real::closefrom(end) };
    }
}

/// fcntl(2). Integer arguments only differ by name on our machines: every variadic argument is passed as a word.
///
/// # Safety
/// As for the C function.
pub unsafe fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int {
    // SAFETY: the caller's arguments, unchanged.
    control(fd, command, argument, || unsafe {
        real::fcntl(fd, command, argument)
    })
}

/// fcntl64(2).
///
/// # Safety
/// As for the C function.
pub unsafe fn fcntl64(fd: c_int, command: c_int, argument: usize) -> c_int {
    // SAFETY: the caller's arguments, unchanged.
    control(fd, command, argument, || unsafe {
        real::fcntl64(fd, command, argument)
    })
}

fn control(fd: c_int, command: c_int, argument: usize, kernel: impl Fn() -> c_int) -> c_int {
    match command {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => return duplicated(fd, kernel()),
        libc::F_GETFL | libc::F_SETFL => {}
        libc::F_SETOWN | async_io::SET_OWNER | async_io::SET_SIGNAL => return summoned(fd, kernel),
        _ => return kernel(),
    }
    match fd::target(fd) {
        Target::Socket(socket) if command == libc::F_GETFL => {
            let flags = status_flags(socket);
            cvt::answer(flags.map(|flags| c_int::try_from(flags).unwrap_or(0)))
        }
        Target::Socket(socket) => {
            // setfl: no socket does direct I/O.
            if argument & usize::try_from(libc::O_DIRECT).unwrap_or(0) != 0 {
                return cvt::done(Err(Errno::INVAL));
            }
            // The kernel ignores bits that it does not know.
            let flags = u32::try_from(argument & 0x7fff_ffff).unwrap_or(0);
            cvt::done(change_status_flags(fd, socket, |_| flags))
        }
        Target::Undecided(_) if command == libc::F_SETFL => touched(fd, kernel),
        _ => kernel(),
    }
}

/// As `change` says of the present flags. Whoever sets O_ASYNC wants signals from now on.
fn change_status_flags(fd: c_int, socket: Socket, change: impl Fn(u32) -> u32) -> Result<()> {
    let before = status_flags(socket)?;
    set_status_flags(socket, change(before))?;
    if (before ^ status_flags(socket)?) & signals::ASYNC != 0 {
        signals::renew(fd, socket);
    }
    Ok(())
}

/// A call that may change flags or owner of a twin.
fn touched(fd: c_int, kernel: impl Fn() -> c_int) -> c_int {
    fd::touch(fd, Touched::FLAGS);
    kernel()
}

/// A call that says who gets which signal: the twin keeps it, and of an accepted number a socket of its own.
fn summoned(fd: c_int, kernel: impl Fn() -> c_int) -> c_int {
    let Target::Socket(socket) = fd::target(fd) else {
        return touched(fd, kernel);
    };
    if socket.accepted
        && let Err(error) = own::give(fd)
    {
        return cvt::done(Err(error));
    }
    let result = kernel();
    if result == 0 {
        signals::renew(fd, socket);
    }
    result
}

/// ioctl(2).
///
/// # Safety
/// As for the C function.
pub unsafe fn ioctl(fd: c_int, request: c_ulong, argument: usize) -> c_int {
    // SAFETY: the caller's arguments, unchanged.
    let kernel = || unsafe { real::ioctl(fd, request, argument) };
    if let Target::Socket(socket) = fd::target(fd) {
        if matches!(request, FIOSETOWN | SIOCSPGRP) {
            return summoned(fd, kernel);
        }
        // SAFETY: as the caller promises.
        if let Some(result) = unsafe { ioctl_on(fd, socket, request, argument) } {
            return cvt::done(result);
        }
        return kernel();
    }
    touched(fd, kernel)
}

/// sockatmark(3), which libc makes with an ioctl that no hook sees.
///
/// # Safety
/// As for the C function.
pub unsafe fn sockatmark(fd: c_int) -> c_int {
    match fd::target(fd) {
        Target::Socket(socket) => cvt::answer(at_mark(socket)),
        // SAFETY: numbers only.
        _ => unsafe { real::sockatmark(fd) },
    }
}

/// FIOSETOWN and SIOCSPGRP.
const FIOSETOWN: c_ulong = 0x8901;
const SIOCSPGRP: c_ulong = 0x8902;
/// SIOCATMARK.
const ATMARK: c_ulong = 0x8905;
/// SIOCOUTQNSD.
const OUTQNSD: c_ulong = 0x894b;

/// The requests that ask about a stream; None = the twin's.
///
/// # Safety
/// As ioctl(2).
unsafe fn ioctl_on(
    fd: c_int,
    socket: Socket,
    request: c_ulong,
    argument: usize,
) -> Option<Result<()>> {
    let place = argument as *mut c_int;
    let answer: Result<c_int> = match request {
        libc::FIONBIO | libc::FIOASYNC => {
            if cvt::is_nowhere(place) {
                return Some(Err(Errno::FAULT));
            }
            // SAFETY: somewhere, readable as the caller promises.
            let on = unsafe { place.read_unaligned() } != 0;
            let bit = if request == libc::FIONBIO {
                u32::try_from(libc::O_NONBLOCK).unwrap_or(0)
            } else {
                signals::ASYNC
            };
            let change = |flags| if on { flags | bit } else { flags & !bit };
            return Some(change_status_flags(fd, socket, change));
        }
        libc::FIONREAD => unread(socket),
        libc::TIOCOUTQ => queued(socket, stream::queued_bytes),
        OUTQNSD => queued(socket, |cell| {
            let taken = cell.host.tx_head.load(Ordering::Acquire);
            cell.write
                .tx_tail
                .load(Ordering::Acquire)
                .saturating_sub(taken)
        }),
        ATMARK => at_mark(socket),
        _ => return None,
    };
    Some(answer.and_then(|value| {
        if cvt::is_nowhere(place) {
            return Err(Errno::FAULT);
        }
        // SAFETY: somewhere, writable as the caller promises.
        unsafe { place.write_unaligned(value) };
        Ok(())
    }))
}

/// SIOCATMARK (tcp_ioctl): whether the next byte is urgent.
fn at_mark(socket: Socket) -> Result<c_int> {
    let cell = state::cell(socket.link, socket.object)?;
    let is_there = urgent::mark(cell).is_some_and(|mark| mark.ahead == 0);
    Ok(c_int::from(is_there))
}

/// FIONREAD (tcp_ioctl, SIOCINQ): EINVAL for a listener.
fn unread(socket: Socket) -> Result<c_int> {
    let cell = state::cell(socket.link, socket.object)?;
    if cell.host.kind.load(Ordering::Acquire) == kind::LISTENER {
        return Err(Errno::INVAL);
    }
    Ok(c_int::try_from(urgent::unread_bytes(cell)).unwrap_or(c_int::MAX))
}

fn queued(
    socket: Socket,
    bytes: impl Fn(&crate::channel::cell::ObjectCell) -> u64,
) -> Result<c_int> {
    let cell = state::cell(socket.link, socket.object)?;
    if cell.host.kind.load(Ordering::Acquire) == kind::LISTENER {
        return Err(Errno::INVAL);
    }
    Ok(c_int::try_from(bytes(cell)).unwrap_or(c_int::MAX))
}
