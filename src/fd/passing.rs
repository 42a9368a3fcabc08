//! Accelerated sockets in messages between processes of a family (SCM_RIGHTS): a token takes the socket's place, and the
//! receiver's number becomes the socket again.
//!
//! A receiver of another program becomes a member of the sender's family when it may (the sender is of the same user, or root) and can: no socket of its own
//! has needed a host, and it has no epoll or TCP socket, or one thread only.
//!
//! DEVIATION: any other receiver gets a socket that is not connected, and the connection ends; one without the shim gets the
//! token.

use super::table::{self, Entry, Handle};
use super::{Socket, joining, registry, twin};
use crate::attach::transit::{self, Arrived};
use crate::errno::{Errno, Result};
use crate::ffi::{descriptor, process};
use crate::socket::hold;

/// A token for `socket`, to be sent in its place and closed.
///
/// # Errors
/// EAGAIN when too many sockets are under way, EBADF, EMFILE.
pub fn token(socket: Socket) -> Result<i32> {
    transit::pass(socket.link, socket.object, registry::shared_memory())
}

/// `fd` came with a message: what the table said of the number is over, and a token becomes its socket.
pub fn arrived(fd: i32) {
    super::drop_stale(fd);
    let (link, object) = match transit::arrived(fd) {
        Arrived::Other => return,
        Arrived::Object(link, object) => (link, object),
        Arrived::Foreign(object) => match transit::join(fd, take_registry) {
            Ok(link) => (link, object),
            Err(error) => {
                crate::warn!(
                    "a socket of another program's host cannot be taken over fd={fd} errno={}",
                    error.raw_os_error()
                );
                return refuse(fd);
            }
        },
    };
    if object.cell(link).is_none() || hold::add(link, object).is_err() {
        return refuse(fd);
    }
    let entry = Entry::Socket(Handle {
        link: link.place(),
        object,
        merged: false,
        accepted: true,
    });
    if put_twin(fd).is_err() || !table::ensure() {
        super::release(entry);
        return;
    }
    super::release(table::exchange(fd, entry));
}

/// From now on this process agrees with the sender's family in its memory.
fn take_registry(memory: Option<i32>) -> Result<()> {
    let memory = memory.ok_or(Errno::NOENT)?;
    let taken = joining::move_to_registry(memory);
    if taken.is_err() {
        descriptor::close(memory);
    }
    taken
}

/// The number becomes a socket that is not connected; the sender's connection ends with the token.
fn refuse(fd: i32) {
    // What cannot be replaced stays: nobody answers on it either.
    let _ = put_twin(fd);
}

/// The token is closed, and a twin has its number.
fn put_twin(fd: i32) -> Result<()> {
    let flags = rustix::io::fcntl_getfd(descriptor::lend(fd)?)?;
    process::duplicate_onto(twin::spare()?, fd)?;
    rustix::io::fcntl_setfd(descriptor::lend(fd)?, flags)
}
