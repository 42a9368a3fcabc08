//! preadv2 and pwritev2, which are readv and writev when they name no place.
//!
//! # Safety
//! Arguments go to the original as they came, or through `cvt`.

#![allow(unsafe_code)]

use core::ffi::c_int;

use libc::{iovec, off_t, ssize_t};

use super::cvt;
use super::receive::receive_parts;
use super::send::transmit_parts;
use crate::errno::{Errno, Result};
use crate::fd::{Socket, accelerated};
use crate::ffi::real;

/// What preadv2 and pwritev2 of a socket come to: a place is ESPIPE, without one (-1) they are readv and writev. Of the
/// flags RWF_NOWAIT means MSG_DONTWAIT, RWF_HIPRI nothing.
fn flags_without_place(offset: off_t, flags: c_int) -> Result<c_int> {
    const KNOWN: c_int = libc::RWF_NOWAIT | libc::RWF_HIPRI;
    if offset < -1 {
        return Err(Errno::INVAL);
    }
    if offset != -1 {
        return Err(Errno::SPIPE);
    }
    if flags & !KNOWN != 0 {
        return Err(Errno::OPNOTSUPP);
    }
    Ok(if flags & libc::RWF_NOWAIT == 0 {
        0
    } else {
        libc::MSG_DONTWAIT
    })
}

/// preadv2(2).
///
/// # Safety
/// As for the C function.
pub unsafe fn preadv2(
    fd: c_int,
    parts: *const iovec,
    count: c_int,
    offset: off_t,
    flags: c_int,
) -> ssize_t {
    let Some(socket) = accelerated(fd) else {
        // SAFETY: the caller's arguments, unchanged.
        return unsafe { real::preadv2(fd, parts, count, offset, flags) };
    };
    // SAFETY: as the caller promises.
    cvt::count(unsafe { scatter(socket, parts, count, offset, flags) })
}

/// preadv64v2(2): the same on 64-bit machines.
///
/// # Safety
/// As for the C function.
pub unsafe fn preadv64v2(
    fd: c_int,
    parts: *const iovec,
    count: c_int,
    offset: off_t,
    flags: c_int,
) -> ssize_t {
    let Some(socket) = accelerated(fd) else {
        // SAFETY: the caller's arguments, unchanged.
        return unsafe { real::preadv64v2(fd, parts, count, offset, flags) };
    };
    // SAFETY: as the caller promises.
    cvt::count(unsafe { scatter(socket, parts, count, offset, flags) })
}

/// pwritev2(2).
///
/// # Safety
/// As for the C function.
pub unsafe fn pwritev2(
    fd: c_int,
    parts: *const iovec,
    count: c_int,
    offset: off_t,
    flags: c_int,
) -> ssize_t {
    let Some(socket) = accelerated(fd) else {
        // SAFETY: the caller's arguments, unchanged.
        return unsafe { real::pwritev2(fd, parts, count, offset, flags) };
    };
    // SAFETY: as the caller promises.
    cvt::count(unsafe { gather(socket, parts, count, offset, flags) })
}

/// pwritev64v2(2): the same on 64-bit machines.
///
/// # Safety
/// As for the C function.
pub unsafe fn pwritev64v2(
    fd: c_int,
    parts: *const iovec,
    count: c_int,
    offset: off_t,
    flags: c_int,
) -> ssize_t {
    let Some(socket) = accelerated(fd) else {
        // SAFETY: the caller's arguments, unchanged.
        return unsafe { real::pwritev64v2(fd, parts, count, offset, flags) };
    };
    // SAFETY: as the caller promises.
    cvt::count(unsafe { gather(socket, parts, count, offset, flags) })
}

/// # Safety
/// As preadv2(2).
unsafe fn scatter(
    socket: Socket,
    parts: *const iovec,
    count: c_int,
    offset: off_t,
    flags: c_int,
) -> Result<usize> {
    let flags = flags_without_place(offset, flags)?;
    let count = usize::try_from(count).map_err(|_| Errno::INVAL)?;
    // SAFETY: as the caller promises.
    unsafe {
        cvt::with_rooms(parts, count, |rooms, reach| {
            receive_parts(socket, rooms, reach, flags)
        })
    }
}

/// # Safety
/// As pwritev2(2).
unsafe fn gather(
    socket: Socket,
    parts: *const iovec,
    count: c_int,
    offset: off_t,
    flags: c_int,
) -> Result<usize> {
    let flags = flags_without_place(offset, flags)?;
    let count = usize::try_from(count).map_err(|_| Errno::INVAL)?;
    // SAFETY: as the caller promises.
    unsafe {
        cvt::with_slices(parts, count, |slices, reach| {
            transmit_parts(socket, slices, reach, flags)
        })
    }
}
