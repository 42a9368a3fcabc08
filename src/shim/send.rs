//! Sending.
//!
//! # Safety
//! Arguments go to the original as they came, or through `cvt`.

#![allow(unsafe_code)]

use core::ffi::{c_int, c_uint, c_void};
use std::io::IoSlice;

use libc::{iovec, mmsghdr, msghdr, size_t, sockaddr, socklen_t, ssize_t};

use super::cvt::Reach;
use super::socket::is_nonblocking;
use super::{control, cvt, message};
use crate::errno::{Errno, Result};
use crate::fd::inflight::InFlight;
use crate::fd::{Socket, accelerated};
use crate::ffi::{errno, process, real};
use crate::socket::stream::{self, SendFlags};

/// Sends `parts`. EPIPE raises SIGPIPE in the calling thread, unless the caller says not to.
pub(super) fn transmit(socket: Socket, parts: &[IoSlice<'_>], flags: c_int) -> Result<usize> {
    let flags_of_stream = SendFlags {
        nonblocking: flags & libc::MSG_DONTWAIT != 0 || is_nonblocking(socket)?,
        urgent: flags & libc::MSG_OOB != 0,
        more: flags & libc::MSG_MORE != 0,
    };
    let _held = InFlight::when_waiting(&socket, flags_of_stream.nonblocking);
    let result = stream::send(socket.link, socket.object, parts, flags_of_stream);
    if result == Err(Errno::PIPE) && flags & libc::MSG_NOSIGNAL == 0 {
        process::raise_sigpipe();
    }
    if flags & libc::MSG_ZEROCOPY != 0 && result.is_ok_and(|sent| sent > 0) {
        control::zerocopy_sent(socket)?;
    }
    result
}

/// Sends the parts of a list, of which those in `parts` lie somewhere.
pub(super) fn transmit_parts(
    socket: Socket,
    parts: &[IoSlice<'_>],
    reach: Reach,
    flags: c_int,
) -> Result<usize> {
    if reach.is_whole {
        return transmit(socket, parts, flags);
    }
    let mut left = cvt::whole_copies(reach.bytes);
    if left == 0 {
        return transmit_nowhere(socket, flags);
    }
    let mut parts = parts.iter();
    let first: [IoSlice<'_>; cvt::GATHERED] = core::array::from_fn(|_| {
        let part: &[u8] = parts.next().map_or(&[], |part| part);
        let cut = part.get(..left).unwrap_or(part);
        left -= cut.len();
        IoSlice::new(cut)
    });
    transmit(socket, &first, flags)
}

/// A send of bytes that lie nowhere, as tcp_sendmsg: it looks at them when it has room for them.
fn transmit_nowhere(socket: Socket, flags: c_int) -> Result<usize> {
    transmit(socket, &[], flags)?;
    let nonblocking = flags & libc::MSG_DONTWAIT != 0 || is_nonblocking(socket)?;
    if nonblocking && !stream::has_room(socket.link, socket.object)? {
        return Err(Errno::AGAIN);
    }
    Err(Errno::FAULT)
}

/// A send from one buffer.
///
/// # Safety
/// As send(2).
unsafe fn transmit_bytes(
    socket: Socket,
    place: *const c_void,
    len: size_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: as the caller promises.
    cvt::count(match unsafe { cvt::bytes(place, len) } {
        Ok(bytes) => transmit(socket, &[IoSlice::new(bytes)], flags),
        Err(error) if cvt::is_beyond(place) => Err(error),
        Err(_) => transmit_nowhere(socket, flags),
    })
}

/// write(2).
///
/// # Safety
/// As for the C function.
pub unsafe fn write(fd: c_int, bytes: *const c_void, len: size_t) -> ssize_t {
    match accelerated(fd) {
        // SAFETY: as the caller promises.
        Some(socket) => unsafe { transmit_bytes(socket, bytes, len, 0) },
        // SAFETY: the caller's arguments, unchanged.
        None => unsafe { real::write(fd, bytes, len) },
    }
}

/// writev(2).
///
/// # Safety
/// As for the C function.
pub unsafe fn writev(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t {
    let Some(socket) = accelerated(fd) else {
        // SAFETY: the caller's arguments, unchanged.
        return unsafe { real::writev(fd, parts, count) };
    };
    let Ok(count) = usize::try_from(count) else {
        return cvt::count(Err(Errno::INVAL));
    };
    // SAFETY: as the caller promises.
    cvt::count(unsafe {
        cvt::with_slices(parts, count, |slices, reach| {
            transmit_parts(socket, slices, reach, 0)
        })
    })
}

/// send(2).
///
/// # Safety
/// As for the C function.
pub unsafe fn send(fd: c_int, bytes: *const c_void, len: size_t, flags: c_int) -> ssize_t {
    match accelerated(fd) {
        // SAFETY: as the caller promises.
        Some(socket) => unsafe { transmit_bytes(socket, bytes, len, flags) },
        // SAFETY: the caller's arguments, unchanged.
        None => unsafe { real::send(fd, bytes, len, flags) },
    }
}

/// sendto(2). A stream ignores the address, as Linux does.
///
/// # Safety
/// As for the C function.
pub unsafe fn sendto(
    fd: c_int,
    bytes: *const c_void,
    len: size_t,
    flags: c_int,
    address: *const sockaddr,
    address_len: socklen_t,
) -> ssize_t {
    match accelerated(fd) {
        Some(socket) => {
            if let Err(error) = cvt::check_ignored(address, address_len) {
                return cvt::count(Err(error));
            }
            // SAFETY: as the caller promises.
            unsafe { transmit_bytes(socket, bytes, len, flags) }
        }
        // SAFETY: the caller's arguments, unchanged.
        None => unsafe { real::sendto(fd, bytes, len, flags, address, address_len) },
    }
}

/// Sends one message.
///
/// # Safety
/// As sendmsg(2).
unsafe fn transmit_message(socket: Socket, message: *const msghdr, flags: c_int) -> Result<usize> {
    // SAFETY: as the caller promises.
    let head = unsafe { message::header(message) }?;
    if head.msg_iovlen > cvt::PARTS_MAX {
        return Err(Errno::MSGSIZE);
    }
    let send = |slices: &[IoSlice<'_>], reach: Reach| transmit_parts(socket, slices, reach, flags);
    // SAFETY: as the caller promises. Control data means nothing to a stream of ours.
    unsafe { cvt::with_slices(head.msg_iov, head.msg_iovlen, send) }
}

/// sendmsg(2).
///
/// # Safety
/// As for the C function.
pub unsafe fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    match accelerated(fd) {
        // SAFETY: as the caller promises.
        Some(socket) => cvt::count(unsafe { transmit_message(socket, message, flags) }),
        // SAFETY: as the caller promises.
        None if unsafe { message::carries_accelerated(message) } => {
            // SAFETY: the caller's message, but for the sockets in it.
            let send = |message| unsafe { real::sendmsg(fd, message, flags) };
            // SAFETY: as the caller promises.
            let sent = unsafe { message::send_with_tokens(message, send) };
            sent.unwrap_or_else(|error| cvt::count(Err(error)))
        }
        // SAFETY: the caller's arguments, unchanged.
        None => unsafe { real::sendmsg(fd, message, flags) },
    }
}

/// sendmmsg(2).
///
/// # Safety
/// As for the C function.
pub unsafe fn sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int {
    let Some(socket) = accelerated(fd) else {
        // SAFETY: each message as the caller promises.
        if unsafe { message::any_carries_accelerated(messages, count) } {
            let send = |message: *mut msghdr| {
                // SAFETY: as above.
                let sent = unsafe { sendmsg(fd, message, flags) };
                usize::try_from(sent).map_err(|_| errno::last())
            };
            // SAFETY: as the caller promises.
            return cvt::number(message::told(unsafe {
                message::each_message(messages, count, send)
            }));
        }
        // SAFETY: the caller's arguments, unchanged.
        return unsafe { real::sendmmsg(fd, messages, count, flags) };
    };
    // SAFETY: each message as the caller promises.
    let send = |message: *mut msghdr| unsafe { transmit_message(socket, message, flags) };
    // SAFETY: as the caller promises.
    cvt::number(message::told(unsafe {
        message::each_message(messages, count, send)
    }))
}
