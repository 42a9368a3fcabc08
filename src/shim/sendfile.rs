//! Files to sockets inside one call.
//!
//! # Safety
//! Arguments go to the original as they came, or through `cvt`.

#![allow(unsafe_code)]

use core::ffi::c_int;
use std::io::IoSlice;

use libc::{off_t, size_t, ssize_t};
use rustix::fd::BorrowedFd;
use rustix::fs::FileType;
use rustix::pipe::{PipeFlags, pipe_with};

use super::cvt;
use super::send::transmit;
use crate::errno::{Errno, Result};
use crate::fd::{Socket, accelerated};
use crate::ffi::number_limit::with_room;
use crate::ffi::staging::Staging;
use crate::ffi::{descriptor, real};

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
    if !offset.is_null() && cvt::is_nowhere(offset) {
        return cvt::count(Err(Errno::FAULT));
    }
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
    // What has no places is no such file at all where none was given.
    cvt::count(result.map_err(|error| match error {
        Errno::SPIPE if offset.is_null() => Errno::INVAL,
        error => error,
    }))
}

/// Whether the place in `file` moves on with what is read. The kernel must be able to splice from it (sendfile(2)); it is asked, by
/// one byte into a pipe, about everything but files with a size and block devices.
///
/// # Errors
/// EINVAL mostly, as sendfile(2).
fn moves_on(file: BorrowedFd<'_>, at: off_t) -> Result<bool> {
    let found = rustix::fs::fstat(file)?;
    match FileType::from_raw_mode(found.st_mode) {
        FileType::RegularFile if found.st_size > 0 => return Ok(true),
        FileType::BlockDevice => return Ok(true),
        _ => {}
    }
    let (end, start) = with_room(|| pipe_with(PipeFlags::CLOEXEC))?;
    let before = u64::try_from(at).map_err(|_| Errno::INVAL)?;
    let mut at = before;
    let result = rustix::fs::sendfile(&start, file, Some(&mut at), 1);
    for fd in [end, start] {
        descriptor::close(descriptor::raw(fd));
    }
    result.map(|_| at != before)
}

fn copy_file(socket: Socket, from: c_int, at: &mut off_t, count: usize) -> Result<usize> {
    let file = descriptor::lend(from)?;
    let moves = count == 0 || moves_on(file, *at)?;
    let mut staging = Staging::take()?;
    let mut done = 0;
    while done < count {
        let place = staging.bytes(count - done);
        let position = u64::try_from(*at).map_err(|_| Errno::INVAL)?;
        let read = match rustix::io::pread(file, place, position) {
            Ok(0) => break,
            Ok(read) => read,
            Err(Errno::INTR) if done == 0 => continue,
            Err(_) if done > 0 => break,
            Err(Errno::SPIPE) => return Err(Errno::INVAL),
            Err(error) => return Err(error),
        };
        let bytes = staging.bytes(read);
        let sent = match transmit(socket, &[IoSlice::new(bytes)], 0) {
            Ok(sent) => sent,
            Err(_) if done > 0 => break,
            Err(error) => return Err(error),
        };
        done += sent;
        if moves {
            *at += off_t::try_from(sent).unwrap_or(0);
        }
        if sent < read {
            break;
        }
    }
    Ok(done)
}
