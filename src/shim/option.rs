//! getsockopt and setsockopt: the twin is asked first for its errno, then the stack is told.
//!
//! # Safety
//! Arguments go to the original as they came, or through `cvt`.

#![allow(unsafe_code)]

mod change;
mod tcp_info;
mod value;

use core::ffi::{c_int, c_void};

use libc::socklen_t;

use self::value::INFO_BYTES;
use super::cvt;
use crate::channel::cell::kind;
use crate::channel::sync::Ordering;
use crate::errno::{Errno, Result};
use crate::fd::options::name;
use crate::fd::touched::Touched;
use crate::fd::{self, Socket, Target, own, twin};
use crate::ffi::{real, sockopt};
use crate::readiness;
use crate::socket::{info, listener, state};

/// Options that the channel keeps as they are given; a kernel socket only says whether the value is valid.
const fn kept_as_given(level: c_int, name: c_int) -> bool {
    match level {
        sockopt::SOCKET => matches!(
            name,
            name::KEEPALIVE
                | name::REUSEADDR
                | name::REUSEPORT
                | name::LINGER
                | name::ZEROCOPY
                | name::OOBINLINE
                | name::PEEK_OFF
        ),
        sockopt::TCP => matches!(
            name,
            name::NODELAY
                | name::CORK
                | name::KEEPIDLE
                | name::KEEPINTVL
                | name::KEEPCNT
                | name::USER_TIMEOUT
                | name::MAXSEG
                | name::INQ
                | name::SAVE_SYN
        ),
        sockopt::IP => matches!(name, name::TOS | name::TTL),
        _ => false,
    }
}

/// The kernel socket that knows whether an option is valid, and keeps what the channel does not. Of an accepted connection
/// the spare one judges: what is set there is never asked for.
fn judge(fd: c_int, socket: Socket, level: c_int, name: c_int) -> Result<c_int> {
    if !socket.accepted {
        return Ok(fd);
    }
    if kept_as_given(level, name) {
        return twin::spare();
    }
    own::give(fd)?;
    Ok(fd)
}

/// Options that Linux sets on a socket without a connection only (do_tcp_setsockopt); the twin never has one.
fn needs_no_connection(level: c_int, name: c_int) -> bool {
    level == sockopt::TCP && matches!(name, FASTOPEN | FASTOPEN_CONNECT | FASTOPEN_NO_COOKIE)
}

const FASTOPEN: c_int = libc::TCP_FASTOPEN;
const FASTOPEN_CONNECT: c_int = libc::TCP_FASTOPEN_CONNECT;
const FASTOPEN_NO_COOKIE: c_int = libc::TCP_FASTOPEN_NO_COOKIE;

/// setsockopt(2).
///
/// # Safety
/// As for the C function.
pub unsafe fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    let Target::Socket(socket) = fd::target(fd) else {
        let what = Touched::by_option(level, name);
        if what != Touched::NODELAY {
            fd::touch(fd, what);
        }
        // SAFETY: the caller's arguments, unchanged.
        let result = unsafe { real::setsockopt(fd, level, name, value, len) };
        if what == Touched::NODELAY && result == 0 {
            // SAFETY: the kernel has just read a number there.
            let on = unsafe { value.cast::<c_int>().read_unaligned() };
            fd::note_nodelay(fd, on != 0);
        }
        return result;
    };
    let judge = match judge(fd, socket, level, name) {
        Ok(judge) => judge,
        Err(error) => return cvt::done(Err(error)),
    };
    if needs_no_connection(level, name) && has_connection(socket) == Ok(true) {
        // SAFETY: the caller's arguments; a number that is no socket asks about nothing but them.
        return cvt::done(unsafe { cvt::bytes(value, len as usize) }.and(Err(Errno::INVAL)));
    }
    // SAFETY: the caller's arguments, on another socket.
    let result = unsafe { real::setsockopt(judge, level, name, value, len) };
    if result != 0 {
        return result;
    }
    // SAFETY: as the caller promises.
    let bytes = unsafe { cvt::bytes(value, len as usize) };
    let told = bytes.and_then(|bytes| change::tell(socket, judge, level, name, bytes));
    cvt::done(told.and_then(|()| change::hand_down(socket, judge, level, name)))
}

/// Whether the socket is neither a listener nor without a connection.
fn has_connection(socket: Socket) -> Result<bool> {
    let cell = state::cell(socket.link, socket.object)?;
    let what = cell.host.kind.load(Ordering::Acquire);
    Ok(what != kind::LISTENER && !readiness::is_disconnected(cell, what))
}

/// Tells the stack what the twin has accepted.
/// SO_RCVTIMEO_NEW and SO_SNDTIMEO_NEW: the same layout on 64-bit machines.
const RCVTIMEO_NEW: c_int = 66;
const SNDTIMEO_NEW: c_int = 67;

/// getsockopt(2).
///
/// # Safety
/// As for the C function.
pub unsafe fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    let Target::Socket(socket) = fd::target(fd) else {
        // SAFETY: the caller's arguments, unchanged.
        return unsafe { real::getsockopt(fd, level, name, value, len) };
    };
    if level == sockopt::SOCKET && name == libc::SO_PEERNAME {
        // SAFETY: as the caller promises.
        return cvt::done(unsafe { peer_name(socket, value, len) });
    }
    if level == sockopt::TCP && name == name::SAVED_SYN {
        // SAFETY: as the caller promises.
        return cvt::done(unsafe { saved_syn(socket, value, len) });
    }
    if level == sockopt::SOCKET && name == libc::SO_COOKIE && !cvt::is_nowhere(len) {
        // SAFETY: somewhere; as the caller promises.
        if (unsafe { len.read_unaligned() } as usize) < size_of::<u64>() {
            return cvt::done(Err(Errno::INVAL));
        }
    }
    let mut buffer = [0; INFO_BYTES];
    match value::told(fd, socket, level, name, &mut buffer) {
        Ok(Some(bytes)) => {
            // SAFETY: as the caller promises.
            let short = level == sockopt::IP && unsafe { is_short(len) };
            let bytes = if short { as_byte(bytes) } else { bytes };
            // SAFETY: as the caller promises.
            cvt::done(unsafe { cvt::put_option(bytes, value, len) })
        }
        Ok(None) => {
            // SAFETY: the caller's arguments, unchanged; the twin has the right type, family and protocol.
            unsafe { real::getsockopt(fd, level, name, value, len) }
        }
        Err(error) => cvt::done(Err(error)),
    }
}

/// Whether a value has room for less than a number, but for something.
///
/// # Safety
/// As getsockopt(2).
unsafe fn is_short(len: *const socklen_t) -> bool {
    // SAFETY: somewhere; as the caller promises.
    !cvt::is_nowhere(len) && matches!(unsafe { len.read_unaligned() }, 1..=3)
}

/// A small number at the IP level goes into one byte then (do_ip_getsockopt).
fn as_byte(number: &[u8]) -> &[u8] {
    let place = usize::from(cfg!(target_endian = "big")) * 3;
    match number
        .try_into()
        .map(|bytes: &[u8; 4]| u32::from_ne_bytes(*bytes))
    {
        Ok(0..=255) => number.get(place..=place).unwrap_or(number),
        _ => number,
    }
}

/// TCP_SAVED_SYN: once, into room for all of it (do_tcp_getsockopt).
///
/// # Safety
/// As getsockopt(2).
unsafe fn saved_syn(socket: Socket, value: *mut c_void, len: *mut socklen_t) -> Result<()> {
    if cvt::is_nowhere(len) {
        return Err(Errno::FAULT);
    }
    // SAFETY: somewhere.
    let room = unsafe { len.read_unaligned() };
    if room.cast_signed() < 0 {
        return Err(Errno::INVAL);
    }
    let kept = info::saved_syn(socket.link, socket.object)?;
    let count = kept.as_ref().map_or(0, |kept| kept.bytes().len());
    // At most what the cell holds.
    let told = socklen_t::try_from(count).unwrap_or(socklen_t::MAX);
    if room < told {
        // SAFETY: not null.
        unsafe { len.write_unaligned(told) };
        return Err(Errno::INVAL);
    }
    let Some(kept) = kept else {
        // SAFETY: not null.
        unsafe { len.write_unaligned(0) };
        return Ok(());
    };
    // SAFETY: as the caller promises.
    unsafe { cvt::put_option(kept.bytes(), value, len) }?;
    kept.take();
    Ok(())
}

/// SO_PEERNAME: unlike getpeername, more than there is is EINVAL (sk_getsockopt).
///
/// # Safety
/// As getsockopt(2).
unsafe fn peer_name(socket: Socket, value: *mut c_void, len: *mut socklen_t) -> Result<()> {
    let peer = listener::peer_address(socket.link, socket.object)?;
    if cvt::is_nowhere(len) {
        return Err(Errno::FAULT);
    }
    // SAFETY: somewhere.
    let room = unsafe { len.read_unaligned() };
    if room as usize > size_of::<libc::sockaddr_in>() {
        return Err(Errno::INVAL);
    }
    // SAFETY: as the caller promises.
    unsafe { cvt::put_address(peer, value.cast(), len) }?;
    // SAFETY: not null.
    unsafe { len.write_unaligned(room) };
    Ok(())
}
