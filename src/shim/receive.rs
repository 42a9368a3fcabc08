//! Receiving.
//!
//! # Safety
//! Arguments go to the original as they came, or through `cvt`.

#![allow(unsafe_code)]

use core::ffi::{c_int, c_uint, c_void};
use std::io::IoSliceMut;

use libc::{iovec, mmsghdr, msghdr, size_t, sockaddr, socklen_t, ssize_t, timespec};

use super::cvt::Reach;
use super::socket::is_nonblocking;
use super::{control, cvt, message};
use crate::channel::cell::kind;
use crate::channel::sync::Ordering;
use crate::errno::{Errno, Result};
use crate::fd::inflight::InFlight;
use crate::fd::{Socket, accelerated};
use crate::ffi::real;
use crate::readiness::readable_bytes;
use crate::socket::state;
use crate::socket::stream::{self, RecvFlags};

/// Receives into `parts`.
pub(super) fn receive(socket: Socket, parts: &mut [IoSliceMut<'_>], flags: c_int) -> Result<usize> {
    receive_until(socket, parts, flags, false)
}

/// Receives into `parts`, behind which with `cut` lies one that nothing can be put into.
fn receive_until(
    socket: Socket,
    parts: &mut [IoSliceMut<'_>],
    flags: c_int,
    cut: bool,
) -> Result<usize> {
    if flags & libc::MSG_ERRQUEUE != 0 {
        let cell = state::cell(socket.link, socket.object)?;
        return control::take_zerocopy(cell).map(|_| 0).ok_or(Errno::AGAIN);
    }
    if flags & libc::MSG_OOB != 0 {
        let peek = flags & libc::MSG_PEEK != 0;
        let trunc = flags & libc::MSG_TRUNC != 0;
        return stream::recv_urgent(socket.link, socket.object, parts, peek, trunc);
    }
    let flags = RecvFlags {
        peek: flags & libc::MSG_PEEK != 0,
        waitall: flags & libc::MSG_WAITALL != 0,
        dontwait: flags & libc::MSG_DONTWAIT != 0,
        trunc: flags & libc::MSG_TRUNC != 0,
        cut,
    };
    let nonblocking = is_nonblocking(socket)?;
    let _held = InFlight::when_waiting(&socket, nonblocking || flags.dontwait);
    stream::recv(socket.link, socket.object, parts, flags, nonblocking)
}

/// A receive into one buffer, as recv(2).
///
/// # Safety
/// As recv(2).
unsafe fn receive_bytes(socket: Socket, place: *mut c_void, len: size_t, flags: c_int) -> ssize_t {
    if cvt::is_beyond(place) {
        return cvt::count(Err(Errno::FAULT));
    }
    if len == 0 || cvt::is_nowhere(place) {
        return cvt::count(receive_nowhere(socket, len, flags));
    }
    // SAFETY: as the caller promises.
    let room = unsafe { cvt::room(place, len) };
    cvt::count(room.and_then(|room| receive(socket, &mut [IoSliceMut::new(room)], flags)))
}

/// A receive into the parts of a list, of which those in `rooms` lie somewhere.
pub(super) fn receive_parts(
    socket: Socket,
    rooms: &mut [IoSliceMut<'_>],
    reach: Reach,
    flags: c_int,
) -> Result<usize> {
    if reach.is_whole {
        return receive(socket, rooms, flags);
    }
    if flags & libc::MSG_TRUNC != 0 || reach.bytes == 0 {
        return receive_nowhere(socket, reach.total, flags);
    }
    if flags & (libc::MSG_OOB | libc::MSG_ERRQUEUE) != 0 {
        return receive(socket, rooms, flags);
    }
    let cell = state::cell(socket.link, socket.object)?;
    if readable_bytes(cell) == 0 {
        // Which parts the bytes reach is seen when they are there.
        let first = (flags & !libc::MSG_WAITALL) | libc::MSG_PEEK;
        if receive(socket, &mut [IoSliceMut::new(&mut [0])], first)? == 0 {
            return Ok(0);
        }
    }
    let there = usize::try_from(readable_bytes(cell)).unwrap_or(usize::MAX);
    if there <= reach.bytes {
        return receive_until(socket, rooms, flags, true);
    }
    match cvt::whole_copies(reach.bytes) {
        0 => receive_nowhere(socket, 1, flags),
        most => receive(socket, &mut first_of(rooms, most), flags),
    }
}

/// The first `bytes` of `rooms`, or fewer where there are many parts.
fn first_of<'a>(rooms: &'a mut [IoSliceMut<'_>], bytes: usize) -> [IoSliceMut<'a>; cvt::GATHERED] {
    let mut left = bytes;
    let mut rooms = rooms.iter_mut();
    core::array::from_fn(|_| {
        let room: &mut [u8] = rooms.next().map_or(&mut [], |room| room);
        let part = room.len().min(left);
        left -= part;
        IoSliceMut::new(room.get_mut(..part).unwrap_or(&mut []))
    })
}

/// A receive without a buffer, as tcp_recvmsg: it waits for bytes all the same, and finds the bad pointer only then. Without
/// a length it returns 0 once there is something; with MSG_TRUNC the pointer is never looked through.
fn receive_nowhere(socket: Socket, len: size_t, flags: c_int) -> Result<usize> {
    if flags & libc::MSG_OOB != 0 {
        // The urgent byte is taken all the same (tcp_recv_urg).
        receive(socket, &mut [], flags)?;
        return if len == 0 { Ok(0) } else { Err(Errno::FAULT) };
    }
    let cell = state::cell(socket.link, socket.object)?;
    let is_stream = cell.host.kind.load(Ordering::Acquire) == kind::STREAM;
    if len == 0 && flags & libc::MSG_ERRQUEUE == 0 && is_stream && readable_bytes(cell) > 0 {
        // Whatever it is, an urgent byte as well.
        return Ok(0);
    }
    let mut buffer = [0; DISCARDED_BYTES];
    let (want, flags) = if len > 0 && flags & libc::MSG_TRUNC != 0 {
        (len.min(DISCARDED_BYTES), flags)
    } else {
        (1, (flags & !libc::MSG_WAITALL) | libc::MSG_PEEK)
    };
    let place = buffer.get_mut(..want).unwrap_or(&mut []);
    let found = receive(socket, &mut [IoSliceMut::new(place)], flags)?;
    match found {
        0 => Ok(0),
        _ if len == 0 => Ok(0),
        _ if flags & libc::MSG_TRUNC != 0 => Ok(found),
        _ => Err(Errno::FAULT),
    }
}

/// Bytes thrown away by one receive without a buffer.
const DISCARDED_BYTES: usize = 1_024;

/// A receive into one buffer, as read(2): nothing asked, nothing waited for (sock_read_iter).
///
/// # Safety
/// As read(2).
unsafe fn read_bytes(socket: Socket, place: *mut c_void, len: size_t) -> ssize_t {
    if len == 0 {
        return 0;
    }
    // SAFETY: as the caller promises.
    unsafe { receive_bytes(socket, place, len, 0) }
}

/// read(2).
///
/// # Safety
/// As for the C function.
pub unsafe fn read(fd: c_int, bytes: *mut c_void, len: size_t) -> ssize_t {
    match accelerated(fd) {
        // SAFETY: as the caller promises.
        Some(socket) => unsafe { read_bytes(socket, bytes, len) },
        // SAFETY: the caller's arguments, unchanged.
        None => unsafe { real::read(fd, bytes, len) },
    }
}

/// The checked read of _FORTIFY_SOURCE.
///
/// # Safety
/// As for the C function.
pub unsafe fn __read_chk(fd: c_int, bytes: *mut c_void, len: size_t, room: size_t) -> ssize_t {
    match accelerated(fd) {
        // SAFETY: as the caller promises.
        Some(socket) if len <= room => unsafe { read_bytes(socket, bytes, len) },
        // SAFETY: the caller's arguments, unchanged; an overflow is libc's to report.
        _ => unsafe { real::__read_chk(fd, bytes, len, room) },
    }
}

/// readv(2).
///
/// # Safety
/// As for the C function.
pub unsafe fn readv(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t {
    let Some(socket) = accelerated(fd) else {
        // SAFETY: the caller's arguments, unchanged.
        return unsafe { real::readv(fd, parts, count) };
    };
    let Ok(count) = usize::try_from(count) else {
        return cvt::count(Err(Errno::INVAL));
    };
    // SAFETY: as the caller promises.
    cvt::count(unsafe {
        cvt::with_rooms(parts, count, |rooms, reach| {
            receive_parts(socket, rooms, reach, 0)
        })
    })
}

/// recv(2).
///
/// # Safety
/// As for the C function.
pub unsafe fn recv(fd: c_int, bytes: *mut c_void, len: size_t, flags: c_int) -> ssize_t {
    match accelerated(fd) {
        // SAFETY: as the caller promises.
        Some(socket) => unsafe { receive_bytes(socket, bytes, len, flags) },
        // SAFETY: the caller's arguments, unchanged.
        None => unsafe { real::recv(fd, bytes, len, flags) },
    }
}

/// The checked recv of _FORTIFY_SOURCE.
///
/// # Safety
/// As for the C function.
pub unsafe fn __recv_chk(
    fd: c_int,
    bytes: *mut c_void,
    len: size_t,
    room: size_t,
    flags: c_int,
) -> ssize_t {
    match accelerated(fd) {
        // SAFETY: as the caller promises.
        Some(socket) if len <= room => unsafe { receive_bytes(socket, bytes, len, flags) },
        // SAFETY: the caller's arguments, unchanged; an overflow is libc's to report.
        _ => unsafe { real::__recv_chk(fd, bytes, len, room, flags) },
    }
}

unsafe fn receive_from(
    socket: Socket,
    bytes: *mut c_void,
    len: size_t,
    flags: c_int,
    address: *mut sockaddr,
    address_len: *mut socklen_t,
) -> ssize_t {
    // SAFETY: as the caller promises.
    let received = unsafe { receive_bytes(socket, bytes, len, flags) };
    if received < 0 || address.is_null() {
        return received;
    }
    // The bytes are gone all the same (__sys_recvfrom).
    // SAFETY: as the caller promises.
    if let Err(error) = unsafe { cvt::put_no_address(address_len) } {
        return cvt::count(Err(error));
    }
    received
}

/// recvfrom(2). A stream gives no address: the length becomes 0, as on Linux.
///
/// # Safety
/// As for the C function.
pub unsafe fn recvfrom(
    fd: c_int,
    bytes: *mut c_void,
    len: size_t,
    flags: c_int,
    address: *mut sockaddr,
    address_len: *mut socklen_t,
) -> ssize_t {
    match accelerated(fd) {
        // SAFETY: as the caller promises.
        Some(socket) => unsafe { receive_from(socket, bytes, len, flags, address, address_len) },
        // SAFETY: the caller's arguments, unchanged.
        None => unsafe { real::recvfrom(fd, bytes, len, flags, address, address_len) },
    }
}

/// The checked recvfrom of _FORTIFY_SOURCE.
///
/// # Safety
/// As for the C function.
pub unsafe fn __recvfrom_chk(
    fd: c_int,
    bytes: *mut c_void,
    len: size_t,
    room: size_t,
    flags: c_int,
    address: *mut sockaddr,
    address_len: *mut socklen_t,
) -> ssize_t {
    match accelerated(fd) {
        Some(socket) if len <= room => {
            // SAFETY: as the caller promises.
            unsafe { receive_from(socket, bytes, len, flags, address, address_len) }
        }
        // SAFETY: the caller's arguments, unchanged; an overflow is libc's to report.
        _ => unsafe { real::__recvfrom_chk(fd, bytes, len, room, flags, address, address_len) },
    }
}

/// Receives one message.
///
/// # Safety
/// As recvmsg(2).
unsafe fn receive_message(socket: Socket, message: *mut msghdr, flags: c_int) -> Result<usize> {
    // SAFETY: as the caller promises.
    let mut head = unsafe { message::header(message) }?;
    if head.msg_iovlen > cvt::PARTS_MAX {
        return Err(Errno::MSGSIZE);
    }
    let cell = state::cell(socket.link, socket.object)?;
    if flags & libc::MSG_ERRQUEUE != 0 {
        let notice = control::take_zerocopy(cell).ok_or(Errno::AGAIN)?;
        head.msg_namelen = 0;
        head.msg_flags = libc::MSG_ERRQUEUE | flags & libc::MSG_CMSG_CLOEXEC;
        // SAFETY: as the caller promises.
        unsafe { control::put_zerocopy(&mut head, notice) };
        // SAFETY: writable as the caller promises.
        unsafe { message.write_unaligned(head) };
        return Ok(0);
    }
    let receive = |rooms: &mut [IoSliceMut<'_>], reach: Reach| match reach.total {
        0 => receive_nowhere(socket, 0, flags),
        _ => receive_parts(socket, rooms, reach, flags),
    };
    // SAFETY: as the caller promises.
    let count = unsafe { cvt::with_rooms(head.msg_iov, head.msg_iovlen, receive) }?;
    head.msg_namelen = 0;
    // Linux hands this one back (____sys_recvmsg).
    head.msg_flags = flags & libc::MSG_CMSG_CLOEXEC;
    if flags & libc::MSG_OOB != 0 {
        // tcp_recv_urg; nothing of a byte without room.
        let cut = if count == 0 { libc::MSG_TRUNC } else { 0 };
        head.msg_flags |= libc::MSG_OOB | cut;
    }
    if cell.option.bits.load(Ordering::Relaxed) & control::MAKES_CONTROL == 0 {
        head.msg_controllen = 0;
    } else {
        // SAFETY: as the caller promises.
        unsafe { control::put_all(&mut head, cell, count) };
    }
    // SAFETY: writable as the caller promises.
    unsafe { message.write_unaligned(head) };
    Ok(count)
}

/// recvmsg(2).
///
/// # Safety
/// As for the C function.
pub unsafe fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    match accelerated(fd) {
        // SAFETY: as the caller promises.
        Some(socket) => cvt::count(unsafe { receive_message(socket, message, flags) }),
        None => {
            // SAFETY: the caller's arguments, unchanged.
            let received = unsafe { real::recvmsg(fd, message, flags) };
            if received >= 0 {
                // SAFETY: the call succeeded, so the message is there.
                unsafe { message::receive_descriptors(message) };
            }
            received
        }
    }
}

/// recvmmsg(2). With a time-out only what is there is taken behind the first message.
///
/// # Safety
/// As for the C function.
pub unsafe fn recvmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    timeout: *mut timespec,
) -> c_int {
    let Some(socket) = accelerated(fd) else {
        // SAFETY: the caller's arguments, unchanged.
        let received = unsafe { real::recvmmsg(fd, messages, count, flags, timeout) };
        for index in 0..usize::try_from(received).unwrap_or(0) {
            // SAFETY: one of those that were received.
            let message = unsafe { messages.add(index) };
            // SAFETY: inside the list.
            let head = unsafe { &raw const (*message).msg_hdr };
            // SAFETY: the kernel has just filled it in.
            unsafe { message::receive_descriptors(head) };
        }
        return received;
    };
    // A pending error comes before any bytes (do_recvmmsg).
    if flags & libc::MSG_ERRQUEUE == 0 {
        let error = state::cell(socket.link, socket.object).map(state::take_error);
        if let Err(error) | Ok(Some(error)) = error {
            return cvt::number(Err(error));
        }
    }
    let mut first = true;
    let receive = |message: *mut msghdr| {
        let wait = first || (flags & libc::MSG_WAITFORONE == 0 && timeout.is_null());
        let flags = if wait {
            flags
        } else {
            flags | libc::MSG_DONTWAIT
        };
        first = false;
        // SAFETY: each message as the caller promises.
        unsafe { receive_message(socket, message, flags) }
    };
    // SAFETY: as the caller promises.
    let (received, error) = unsafe { message::each_message(messages, count, receive) };
    // It is told once, by the next call (do_recvmmsg); what a handler has interrupted begins anew.
    if let Some(error) = error
        && received > 0
        && !matches!(error, Errno::AGAIN | Errno::INTR)
        && let Ok(cell) = state::cell(socket.link, socket.object)
    {
        state::keep_error(cell, error);
    }
    cvt::number(message::told((received, error)))
}
