//! splice(2) between a pipe and an accelerated socket: the bytes are copied. (tee and vmsplice take pipes only: the kernel
//! refuses the twin as it would the socket.)
//!
//! # Safety
//! Arguments go to the original as they came.

#![allow(unsafe_code)]

use core::ffi::{c_int, c_uint};
use std::io::{IoSlice, IoSliceMut};

use libc::{off64_t, size_t, ssize_t};
use rustix::fs::{FileType, OFlags};

use super::cvt;
use super::receive::receive;
use super::send::transmit;
use super::socket::is_nonblocking;
use crate::channel::byte_ring;
use crate::errno::{Errno, Result};
use crate::fd::{Socket, accelerated};
use crate::ffi::staging::{STAGING_BYTES, Staging};
use crate::ffi::wait::{PollFd, ppoll};
use crate::ffi::{descriptor, process, real};
use crate::readiness::event;
use crate::socket::state;

/// The flags that Linux knows (SPLICE_F_ALL).
const KNOWN: c_uint =
    libc::SPLICE_F_MOVE | libc::SPLICE_F_NONBLOCK | libc::SPLICE_F_MORE | libc::SPLICE_F_GIFT;
/// Bytes that a pipe which says it has room takes at once.
const PIPE_PAGE: usize = 4_096;

/// splice(2).
///
/// # Safety
/// As for the C function.
pub unsafe fn splice(
    from: c_int,
    from_at: *mut off64_t,
    to: c_int,
    to_at: *mut off64_t,
    len: size_t,
    flags: c_uint,
) -> ssize_t {
    let (source, sink) = (accelerated(from), accelerated(to));
    if source.is_none() && sink.is_none() {
        // SAFETY: the caller's arguments, unchanged.
        return unsafe { real::splice(from, from_at, to, to_at, len, flags) };
    }
    let has_place = (!from_at.is_null(), !to_at.is_null());
    let len = len.min(cvt::BYTES_MAX);
    let move_bytes = || {
        if len == 0 {
            return Ok(0);
        }
        if flags & !KNOWN != 0 {
            return Err(Errno::INVAL);
        }
        match (source, sink) {
            (Some(socket), None) => {
                let pipe = Pipe::of(to, flags, has_place.1)?;
                no_place(has_place.0)?;
                to_pipe(socket, &pipe, len)
            }
            (None, Some(socket)) => {
                let pipe = Pipe::of(from, flags, has_place.0)?;
                no_place(has_place.1)?;
                from_pipe(&pipe, socket, len, flags)
            }
            // Two sockets, and no pipe.
            _ => Err(Errno::INVAL),
        }
    };
    cvt::count(move_bytes())
}

/// A socket has no places (do_splice).
fn no_place(is_given: bool) -> Result<()> {
    if is_given { Err(Errno::INVAL) } else { Ok(()) }
}

/// The pipe's end.
struct Pipe {
    fd: c_int,
    /// Nobody waits for it.
    nonblocking: bool,
    /// Its description says so too, so that a large write takes what fits.
    takes_parts: bool,
}

impl Pipe {
    fn of(fd: c_int, flags: c_uint, has_place: bool) -> Result<Self> {
        let lent = descriptor::lend(fd)?;
        let mode = rustix::fs::fstat(lent)?.st_mode;
        if FileType::from_raw_mode(mode) != FileType::Fifo {
            return Err(Errno::INVAL);
        }
        if has_place {
            return Err(Errno::SPIPE);
        }
        let takes_parts = rustix::fs::fcntl_getfl(lent)?.contains(OFlags::NONBLOCK);
        Ok(Self {
            fd,
            nonblocking: takes_parts || flags & libc::SPLICE_F_NONBLOCK != 0,
            takes_parts,
        })
    }

    /// Waits for `events`, unless somebody does not want to; what there is of them and of ERR and HUP.
    fn wait(&self, events: i16, may_wait: bool) -> Result<i16> {
        let mut fds = [PollFd {
            fd: self.fd,
            events,
            revents: 0,
        }];
        let span = (!may_wait).then_some(core::time::Duration::ZERO);
        ppoll(&mut fds, span, None)?;
        Ok(fds.first().map_or(0, |pipe| pipe.revents))
    }
}

fn broken_pipe() -> Errno {
    process::raise_sigpipe();
    Errno::PIPE
}

fn to_pipe(socket: Socket, pipe: &Pipe, len: usize) -> Result<usize> {
    let lent = descriptor::lend(pipe.fd)?;
    let mut staging = Staging::take()?;
    let most = if pipe.takes_parts {
        STAGING_BYTES
    } else {
        PIPE_PAGE
    };
    let mut done = 0;
    while done < len {
        let room = pipe.wait(libc::POLLOUT, done == 0 && !pipe.nonblocking)?;
        if room & libc::POLLERR != 0 && done == 0 {
            return Err(broken_pipe());
        }
        if room & libc::POLLOUT == 0 {
            return if done > 0 {
                Ok(done)
            } else {
                Err(Errno::AGAIN)
            };
        }
        // Peeked, so that what the pipe does not take stays.
        let flags = libc::MSG_PEEK | if done > 0 { libc::MSG_DONTWAIT } else { 0 };
        let place = staging.bytes(most.min(len - done));
        let found = match receive(socket, &mut [IoSliceMut::new(place)], flags) {
            Ok(found) => found,
            Err(_) if done > 0 => return Ok(done),
            Err(error) => return Err(error),
        };
        if found == 0 {
            return Ok(done);
        }
        let written = match rustix::io::write(lent, staging.bytes(found)) {
            Ok(written) => written,
            Err(_) if done > 0 => return Ok(done),
            Err(Errno::PIPE) => return Err(Errno::PIPE),
            Err(error) => return Err(error),
        };
        let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
        receive(
            socket,
            &mut [IoSliceMut::new(staging.bytes(written))],
            flags,
        )?;
        done += written;
        if written < found {
            return Ok(done);
        }
    }
    Ok(done)
}

fn from_pipe(pipe: &Pipe, socket: Socket, len: usize, flags: c_uint) -> Result<usize> {
    let lent = descriptor::lend(pipe.fd)?;
    let more = if flags & libc::SPLICE_F_MORE != 0 {
        libc::MSG_MORE
    } else {
        0
    };
    let nonblocking = flags & libc::SPLICE_F_NONBLOCK != 0 || is_nonblocking(socket)?;
    let mut staging = Staging::take()?;
    let mut done = 0;
    while done < len {
        let found = pipe.wait(libc::POLLIN, done == 0 && !pipe.nonblocking)?;
        if found & libc::POLLIN == 0 {
            // Nobody writes: the end of it.
            let is_over = found & libc::POLLHUP != 0;
            return if done > 0 || is_over {
                Ok(done)
            } else {
                Err(Errno::AGAIN)
            };
        }
        // What is wrong with the socket is told before a byte leaves the pipe.
        match transmit(socket, &[], more | libc::MSG_DONTWAIT) {
            Err(Errno::AGAIN) if !nonblocking => {}
            Err(_) if done > 0 => return Ok(done),
            Err(error) => return Err(error),
            Ok(_) => {}
        }
        let mut most = (len - done).min(STAGING_BYTES);
        if nonblocking {
            most = most.min(room(socket)?);
            if most == 0 {
                return if done > 0 {
                    Ok(done)
                } else {
                    Err(Errno::AGAIN)
                };
            }
        }
        let read = match rustix::io::read(lent, staging.bytes(most)) {
            Ok(0) => return Ok(done),
            Ok(read) => read,
            Err(_) if done > 0 => return Ok(done),
            Err(error) => return Err(error),
        };
        // It has left the pipe: all of it goes, also when another thread has taken the room meanwhile.
        let mut sent = 0;
        while sent < read {
            let rest = staging.bytes(read).get(sent..).unwrap_or(&[]);
            match transmit(socket, &[IoSlice::new(rest)], more) {
                Ok(count) => sent += count,
                Err(Errno::AGAIN | Errno::INTR) => {
                    let wanted = event::OUT | event::ERR | event::HUP;
                    let mut ready = || state::bits(socket.link, socket.object) & wanted != 0;
                    // Interrupted or over: looked at again by the next send.
                    let _ = state::until(socket.link, socket.object, None, None, &mut ready);
                }
                Err(_) if done + sent > 0 => return Ok(done + sent),
                Err(error) => return Err(error),
            }
        }
        done += sent;
    }
    Ok(done)
}

/// Bytes that the socket takes at once. None: whoever waits for more is told.
fn room(socket: Socket) -> Result<usize> {
    let cell = state::cell(socket.link, socket.object)?;
    let capacity = socket.link.control.layout().tx_bytes(socket.object.index);
    let free = || byte_ring::writable(&cell.host, &cell.write, capacity);
    if free() == 0 {
        let _ = state::bits(socket.link, socket.object);
    }
    Ok(usize::try_from(free()).unwrap_or(usize::MAX))
}
