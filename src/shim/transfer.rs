//! Sending and receiving.
//!
//! # Safety
//! Arguments go to the original as they came, or through `cvt`.

#![allow(unsafe_code)]

use core::ffi::{c_int, c_uint, c_void};
use std::io::{IoSlice, IoSliceMut};

use libc::{iovec, mmsghdr, msghdr, off_t, size_t, sockaddr, socklen_t, ssize_t, timespec};

use super::cvt;
use super::socket::is_nonblocking;
use crate::channel::cell::kind;
use crate::channel::sync::Ordering;
use crate::errno::{Errno, Result};
use crate::fd::inflight::InFlight;
use crate::fd::{self, Socket, Target};
use crate::ffi::{process, real};
use crate::socket::state;
use crate::socket::stream::{self, RecvFlags};

/// The socket behind `fd`, if it is accelerated.
#[inline]
pub(super) fn accelerated(fd: c_int) -> Option<Socket> {
    match fd::target(fd) {
        Target::Socket(socket) => Some(socket),
        _ => None,
    }
}

/// The hold of a call that may wait.
fn waits(socket: Socket, nonblocking: bool) -> Option<InFlight> {
    if nonblocking {
        None
    } else {
        InFlight::of(&socket)
    }
}

/// Receives into `parts`.
pub(super) fn receive(socket: Socket, parts: &mut [IoSliceMut<'_>], flags: c_int) -> Result<usize> {
    if flags & libc::MSG_ERRQUEUE != 0 {
        // Nothing of ours ever reports there.
        return Err(Errno::AGAIN);
    }
    if flags & libc::MSG_OOB != 0 {
        // A listener first (tcp_recvmsg_locked).
        let cell = state::cell(socket.link, socket.object)?;
        if cell.host.kind.load(Ordering::Acquire) == kind::LISTENER {
            return Err(Errno::NOTCONN);
        }
        // DEVIATION: there is no urgent data; tcp(7) gives EINVAL when none is pending.
        return Err(Errno::INVAL);
    }
    let flags = RecvFlags {
        peek: flags & libc::MSG_PEEK != 0,
        waitall: flags & libc::MSG_WAITALL != 0,
        dontwait: flags & libc::MSG_DONTWAIT != 0,
        trunc: flags & libc::MSG_TRUNC != 0,
    };
    let nonblocking = is_nonblocking(socket)?;
    let _held = waits(socket, nonblocking || flags.dontwait);
    stream::recv(socket.link, socket.object, parts, flags, nonblocking)
}

/// Sends `parts`. EPIPE raises SIGPIPE in the calling thread, unless the caller says not to.
pub(super) fn transmit(socket: Socket, parts: &[IoSlice<'_>], flags: c_int) -> Result<usize> {
    if flags & libc::MSG_OOB != 0 {
        // DEVIATION: urgent data is not sent.
        return Err(Errno::OPNOTSUPP);
    }
    let nonblocking = flags & libc::MSG_DONTWAIT != 0 || is_nonblocking(socket)?;
    let _held = waits(socket, nonblocking);
    let result = stream::send(socket.link, socket.object, parts, nonblocking);
    if result == Err(Errno::PIPE) && flags & libc::MSG_NOSIGNAL == 0 {
        process::raise_sigpipe();
    }
    result
}

/// A receive into one buffer, as recv(2).
///
/// # Safety
/// As recv(2).
unsafe fn receive_bytes(socket: Socket, place: *mut c_void, len: size_t, flags: c_int) -> ssize_t {
    if len == 0 || place.is_null() {
        return cvt::count(receive_nowhere(socket, len, flags));
    }
    // SAFETY: as the caller promises.
    let room = unsafe { cvt::room(place, len) };
    cvt::count(room.and_then(|room| receive(socket, &mut [IoSliceMut::new(room)], flags)))
}

/// A receive without a buffer, as tcp_recvmsg: it waits for bytes all the same, and finds the bad pointer only then. Without
/// a length it returns 0 once there is something; with MSG_TRUNC the pointer is never looked through.
fn receive_nowhere(socket: Socket, len: size_t, flags: c_int) -> Result<usize> {
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
    let bytes = unsafe { cvt::bytes(place, len) };
    cvt::count(bytes.and_then(|bytes| transmit(socket, &[IoSlice::new(bytes)], flags)))
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
    cvt::count(unsafe { cvt::with_rooms(parts, count, |rooms| receive(socket, rooms, 0)) })
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
    cvt::count(unsafe { cvt::with_slices(parts, count, |slices| transmit(socket, slices, 0)) })
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
        // SAFETY: as the caller promises.
        Some(socket) => unsafe { transmit_bytes(socket, bytes, len, flags) },
        // SAFETY: the caller's arguments, unchanged.
        None => unsafe { real::sendto(fd, bytes, len, flags, address, address_len) },
    }
}

/// A message of the program, copied out.
///
/// # Safety
/// Null or readable.
unsafe fn header(message: *const msghdr) -> Result<msghdr> {
    if message.is_null() {
        return Err(Errno::FAULT);
    }
    // SAFETY: not null; as the caller promises.
    Ok(unsafe { message.read_unaligned() })
}

/// Sends one message.
///
/// # Safety
/// As sendmsg(2).
unsafe fn transmit_message(socket: Socket, message: *const msghdr, flags: c_int) -> Result<usize> {
    // SAFETY: as the caller promises.
    let head = unsafe { header(message) }?;
    if head.msg_iovlen > cvt::PARTS_MAX {
        return Err(Errno::MSGSIZE);
    }
    let send = |slices: &[IoSlice<'_>]| transmit(socket, slices, flags);
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
        None if unsafe { carries_accelerated(message) } => {
            // DEVIATION: an accelerated socket cannot be handed to another process (unix(7), SCM_RIGHTS).
            cvt::count(Err(Errno::OPNOTSUPP))
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
        // SAFETY: the caller's arguments, unchanged.
        return unsafe { real::sendmmsg(fd, messages, count, flags) };
    };
    // SAFETY: each message as the caller promises.
    let send = |message: *mut msghdr| unsafe { transmit_message(socket, message, flags) };
    // SAFETY: as the caller promises.
    cvt::number(unsafe { each_message(messages, count, send) })
}

/// Runs `one` for each message and stores its count, until one fails; an error only when it is the first.
///
/// # Safety
/// `count` messages.
unsafe fn each_message(
    messages: *mut mmsghdr,
    count: c_uint,
    mut one: impl FnMut(*mut msghdr) -> Result<usize>,
) -> Result<usize> {
    let count = (count as usize).min(cvt::PARTS_MAX);
    if messages.is_null() && count > 0 {
        return Err(Errno::FAULT);
    }
    for index in 0..count {
        // SAFETY: index < count.
        let message = unsafe { messages.add(index) };
        // SAFETY: inside the list.
        let head = unsafe { &raw mut (*message).msg_hdr };
        match one(head) {
            Ok(bytes) => {
                // SAFETY: inside the list.
                let place = unsafe { &raw mut (*message).msg_len };
                // SAFETY: the list is writable.
                unsafe { place.write_unaligned(c_uint::try_from(bytes).unwrap_or(c_uint::MAX)) };
            }
            Err(error) if index == 0 => return Err(error),
            Err(_) => return Ok(index),
        }
    }
    Ok(count)
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
    if received >= 0 && !address.is_null() && !address_len.is_null() {
        // SAFETY: not null, writable as the caller promises.
        unsafe { address_len.write_unaligned(0) };
    }
    received
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
    let mut head = unsafe { header(message) }?;
    if head.msg_iovlen > cvt::PARTS_MAX {
        return Err(Errno::MSGSIZE);
    }
    let receive = |rooms: &mut [IoSliceMut<'_>]| receive(socket, rooms, flags);
    // SAFETY: as the caller promises.
    let count = unsafe { cvt::with_rooms(head.msg_iov, head.msg_iovlen, receive) }?;
    head.msg_namelen = 0;
    head.msg_controllen = 0;
    // Linux hands this one back (____sys_recvmsg).
    head.msg_flags = flags & libc::MSG_CMSG_CLOEXEC;
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
                unsafe { drop_stale_of(message) };
            }
            received
        }
    }
}

/// Descriptors that came with a message are new numbers.
///
/// # Safety
/// A message that the kernel has just filled in.
unsafe fn drop_stale_of(message: *const msghdr) {
    // SAFETY: as the caller promises.
    unsafe { for_each_descriptor(message, fd::drop_stale) };
}

/// Whether a message would hand an accelerated socket to somebody.
///
/// # Safety
/// As sendmsg(2).
unsafe fn carries_accelerated(message: *const msghdr) -> bool {
    let mut found = false;
    // SAFETY: as the caller promises.
    unsafe { for_each_descriptor(message, |fd| found |= accelerated(fd).is_some()) };
    found
}

/// Visits the descriptors in a message's control data.
///
/// # Safety
/// Null, or a message whose control data is readable.
unsafe fn for_each_descriptor(message: *const msghdr, mut visit: impl FnMut(c_int)) {
    // SAFETY: as the caller promises.
    let Ok(head) = (unsafe { header(message) }) else {
        return;
    };
    if head.msg_control.is_null() || head.msg_controllen == 0 {
        return;
    }
    // SAFETY: a local copy of a message with control data.
    let mut item = unsafe { libc::CMSG_FIRSTHDR(&raw const head) };
    while !item.is_null() {
        // SAFETY: inside the control data.
        let item_head = unsafe { item.read_unaligned() };
        if item_head.cmsg_level == libc::SOL_SOCKET && item_head.cmsg_type == libc::SCM_RIGHTS {
            // SAFETY: a complete header.
            let data = unsafe { libc::CMSG_DATA(item) }.cast::<c_int>();
            // SAFETY: a constant.
            let space = unsafe { libc::CMSG_LEN(0) } as usize;
            let count = item_head.cmsg_len.saturating_sub(space) / size_of::<c_int>();
            for index in 0..count {
                // SAFETY: index < count.
                let place = unsafe { data.add(index) };
                // SAFETY: inside the item's data.
                visit(unsafe { place.read_unaligned() });
            }
        }
        // SAFETY: `item` came from this message.
        item = unsafe { libc::CMSG_NXTHDR(&raw const head, item) };
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
        return unsafe { real::recvmmsg(fd, messages, count, flags, timeout) };
    };
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
    cvt::number(unsafe { each_message(messages, count, receive) })
}

/// Bytes that sendfile moves at a time.
const CHUNK_BYTES: usize = 16 << 10;

/// sendfile(2).
///
/// # Safety
/// As for the C function.
pub unsafe fn sendfile(out: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
    match accelerated(out) {
        // SAFETY: as the caller promises.
        Some(socket) => unsafe { send_file(socket, from, offset, count) },
        // SAFETY: the caller's arguments, unchanged.
        None => unsafe { real::sendfile(out, from, offset, count) },
    }
}

/// sendfile64(2): the same on 64-bit machines.
///
/// # Safety
/// As for the C function.
pub unsafe fn sendfile64(out: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
    match accelerated(out) {
        // SAFETY: as the caller promises.
        Some(socket) => unsafe { send_file(socket, from, offset, count) },
        // SAFETY: the caller's arguments, unchanged.
        None => unsafe { real::sendfile64(out, from, offset, count) },
    }
}

/// Copies from a file that can be read at a place; EINVAL for others, as sendfile(2).
///
/// # Safety
/// As sendfile(2).
unsafe fn send_file(socket: Socket, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
    let own = if offset.is_null() {
        // SAFETY: numbers only; the file's own position.
        unsafe { libc::lseek(from, 0, libc::SEEK_CUR) }
    } else {
        // SAFETY: not null, readable as the caller promises.
        unsafe { offset.read_unaligned() }
    };
    if own < 0 {
        let error = if offset.is_null() {
            crate::ffi::errno::last()
        } else {
            Errno::INVAL
        };
        return cvt::count(Err(if error == Errno::SPIPE {
            Errno::INVAL
        } else {
            error
        }));
    }
    let mut at = own;
    let result = copy_file(socket, from, &mut at, count.min(cvt::BYTES_MAX));
    if offset.is_null() {
        // SAFETY: numbers only; the file was seekable a moment ago.
        let _ = unsafe { libc::lseek(from, at, libc::SEEK_SET) };
    } else {
        // SAFETY: not null, writable as the caller promises.
        unsafe { offset.write_unaligned(at) };
    }
    cvt::count(result)
}

fn copy_file(socket: Socket, from: c_int, at: &mut off_t, count: usize) -> Result<usize> {
    let file = crate::ffi::descriptor::lend(from)?;
    let mut buffer = [0_u8; CHUNK_BYTES];
    let mut done = 0;
    while done < count {
        let want = (count - done).min(CHUNK_BYTES);
        let place = buffer.get_mut(..want).unwrap_or(&mut []);
        let position = u64::try_from(*at).map_err(|_| Errno::INVAL)?;
        let read = match rustix::io::pread(file, place, position) {
            Ok(0) => break,
            Ok(read) => read,
            Err(Errno::INTR) if done == 0 => continue,
            Err(_) if done > 0 => break,
            Err(Errno::SPIPE) => return Err(Errno::INVAL),
            Err(error) => return Err(error),
        };
        let bytes = buffer.get(..read).unwrap_or(&[]);
        let sent = match transmit(socket, &[IoSlice::new(bytes)], 0) {
            Ok(sent) => sent,
            Err(_) if done > 0 => break,
            Err(error) => return Err(error),
        };
        done += sent;
        *at += off_t::try_from(sent).unwrap_or(0);
        if sent < read {
            break;
        }
    }
    Ok(done)
}
