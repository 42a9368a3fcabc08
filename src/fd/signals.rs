//! SIGIO and SIGURG of accelerated sockets (fcntl(2): O_ASYNC, F_SETOWN, F_SETSIG).
//!
//! The kernel sends them, as for any descriptor: for each socket that asks, the host gets a pipe that has the socket's owner and
//! signal, and writes a byte into it whenever Linux would signal. So no process is signalled that its user may not signal, and a
//! handler finds the number of the socket in `si_fd`. What the twin says of owner and signal is the program's wish.
//!
//! DEVIATION: `si_band` always says POLLIN, whatever happened; a socket of a program without /proc gets none.

use rustix::fs::{Mode, OFlags};
use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};

use super::Socket;
use super::twin::status_flags;
use crate::attach::{self, Signals};
use crate::channel::sync::Ordering;
use crate::errno::{Errno, Result};
use crate::ffi::async_io::{self, Owner};
use crate::ffi::number_limit::with_room;
use crate::ffi::{descriptor, errno, process};
use crate::socket::{info, state};

/// O_ASYNC.
pub const ASYNC: u32 = 0o20_000;
/// Bits of `ReadLine::signals`: which pipes the host has.
const IO: u32 = 1;
const URGENT: u32 = 2;
/// Bytes of a pipe: the host empties it when it is full.
const PIPE_BYTES: usize = 4_096;

/// Tells the host what the number `fd` of `socket` asks for now. A pipe that cannot be made leaves the program without its
/// signal, as nobody can be told.
pub fn renew(fd: i32, socket: Socket) {
    tell(fd, socket, false);
}

/// As [`renew`], for a socket that was routed a moment ago: its twin may have asked before. Costs a look at the twin.
pub fn begin(fd: i32, socket: Socket) {
    if async_io::owner(fd).is_ok_and(|owner| !owner.is_nobody()) {
        tell(fd, socket, true);
    }
}

fn tell(fd: i32, socket: Socket, is_new: bool) {
    let saved = errno::save();
    if let Err(error) = try_tell(fd, socket, is_new) {
        crate::warn!("no signals of socket {fd} errno={}", error.raw_os_error());
    }
    errno::restore(saved);
}

fn try_tell(fd: i32, socket: Socket, is_new: bool) -> Result<()> {
    let cell = state::cell(socket.link, socket.object)?;
    let owner = async_io::owner(fd)?;
    let mut wanted = 0;
    if !owner.is_nobody() {
        let asks = cell.read.status_flags.load(Ordering::Relaxed) & ASYNC != 0;
        wanted = URGENT | if asks { IO } else { 0 };
    }
    let before = cell.read.signals.swap(wanted, Ordering::AcqRel);
    for which in [IO, URGENT] {
        let urgent = which == URGENT;
        if wanted & which != 0 {
            let signal = if urgent {
                async_io::URGENT
            } else {
                async_io::signal(fd)?
            };
            let pipe = with_room(|| pipe(fd, owner, signal, urgent))?;
            let told = register(socket, urgent, is_new, Some(pipe));
            descriptor::close(pipe);
            told?;
        } else if before & which != 0 {
            register(socket, urgent, false, None)?;
        }
    }
    if wanted != 0 {
        // What happens from now on signals: the turn that answers second has heard of the pipe.
        info::info(socket.link, socket.object)?;
        info::info(socket.link, socket.object)?;
    }
    Ok(())
}

fn register(socket: Socket, urgent: bool, is_new: bool, pipe: Option<i32>) -> Result<()> {
    let signals = Signals {
        object: socket.object,
        urgent,
        is_new,
        pipe,
    };
    attach::register_signals(socket.link, signals)
}

/// A pipe, open for both ways, whose bytes make `signal` for `owner`.
fn pipe(fd: i32, owner: Owner, signal: i32, urgent: bool) -> Result<i32> {
    let (end, _other) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    // A smaller one is nicer; the usual one does as well.
    let _ = fcntl_setpipe_size(&end, PIPE_BYTES);
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&end));
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let both = rustix::fs::open(path, flags, Mode::empty())?;
    let pipe = descriptor::internalize(both)?;
    let made = async_io::set_owner(pipe, owner)
        .and_then(|()| async_io::set_signal(pipe, signal))
        .and_then(|()| {
            if signal == 0 || urgent {
                async_io::start(pipe)
            } else {
                start_as(pipe, fd)
            }
        });
    if let Err(error) = made {
        descriptor::close(pipe);
        return Err(error);
    }
    Ok(pipe)
}

/// The kernel tells a handler the number under which O_ASYNC was set. So a child sets it, in whose table the pipe may have the
/// socket's number: in ours another thread would meet it there, or a fork inherit it.
fn start_as(pipe: i32, fd: i32) -> Result<()> {
    let child = process::clone_silent()?;
    if child == 0 {
        let started = descriptor::replace(pipe, fd, true).and_then(|()| async_io::start(fd));
        process::exit(i32::from(started.is_err()));
    }
    process::reap_silent(child)?;
    // What is set is the pipe's, whoever has it.
    if status_flags(pipe)? & ASYNC == 0 {
        return Err(Errno::AGAIN);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::AtomicBool;

    fn socket() -> i32 {
        use rustix::net::{AddressFamily, SocketType};
        let made = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None);
        descriptor::raw(made.unwrap())
    }

    #[test]
    fn a_pipe_has_the_owner_and_the_signal_of_the_socket() {
        let fd = socket();
        assert!(async_io::owner(fd).unwrap().is_nobody());
        // This very process, which does not look at the signal: it is ignored unless handled.
        let me = i32::try_from(crate::thread::process()).unwrap();
        let own = Owner::of_process(me);
        async_io::set_owner(fd, own).unwrap();
        assert_eq!(async_io::owner(fd), Ok(own));
        let made = pipe(fd, own, async_io::URGENT, true).unwrap();
        assert_eq!(async_io::owner(made), Ok(own));
        assert_eq!(async_io::signal(made), Ok(async_io::URGENT));
        let flags = rustix::fs::fcntl_getfl(descriptor::lend(made).unwrap()).unwrap();
        assert_ne!(flags.bits() & ASYNC, 0);
        // It is written and read by one descriptor.
        let ends = descriptor::lend(made).unwrap();
        assert_eq!(rustix::io::write(ends, b"x"), Ok(1));
        assert_eq!(rustix::io::read(ends, &mut [0; 9]), Ok(1));
        descriptor::close(made);
        descriptor::close(fd);
    }

    #[test]
    fn a_pipe_that_signals_under_a_number_is_never_at_it() {
        let fd = socket();
        let inode = |fd| {
            rustix::fs::fstat(descriptor::lend(fd).unwrap())
                .unwrap()
                .st_ino
        };
        let before = inode(fd);
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    assert_eq!(inode(fd), before, "what another thread sees there");
                }
            });
            for _ in 0..20 {
                let made = pipe(fd, Owner::default(), 40, false).unwrap();
                assert_eq!(async_io::signal(made), Ok(40));
                assert_ne!(status_flags(made).unwrap() & ASYNC, 0);
                descriptor::close(made);
            }
            over.store(true, Ordering::Relaxed);
        });
        descriptor::close(fd);
    }
}
