//! Sockets under way from one process of a family to another (unix(7), SCM_RIGHTS).
//!
//! A token travels in the place of the socket: one end of a socket pair whose other end the host has, as at a fork. A process
//! cell of its own holds the object until the receiver does; when the token is closed unread, the host lets go.

use core::fmt::Write;
use core::sync::atomic::{AtomicU32, Ordering as PrivateOrdering};

use rustix::net::{AddressFamily, RecvFlags, SocketType, sockopt};

use super::link::{Link, link};
use super::object::Object;
use super::{fork, link as links};
use crate::channel::message::{HEAD_BYTES, Kind, Message, TEXT_BYTES, heir};
use crate::channel::sync::Ordering;
use crate::errno::{Errno, Result};
use crate::ffi::descriptor;
use crate::rendezvous::Path;

/// Number of the link + 1 whose host knows the registry from this process.
static TOLD: AtomicU32 = AtomicU32::new(0);

/// The receiver may be no member of the family: the host gets what it needs to become one.
fn tell_registry(link: &Link, registry: Option<i32>) -> Result<()> {
    let mark = link.number() + 1;
    if registry.is_none() || TOLD.swap(mark, PrivateOrdering::Relaxed) == mark {
        return Ok(());
    }
    links::send(
        link.control_socket(),
        &Message::new(Kind::Registry, 0, 0),
        registry,
    )
}

/// Makes a token for `object`, which this process holds: an internal descriptor, to be closed when it is sent. `registry` is the
/// memory in which this process agrees with its family.
///
/// # Errors
/// EAGAIN when the family has no process cell left, EBADF, what socketpair and sendmsg say.
pub fn pass(link: &Link, object: Object, registry: Option<i32>) -> Result<i32> {
    tell_registry(link, registry)?;
    let mut family = Path::empty();
    // Twenty digits fit.
    let _ = write!(family, "{}", link.family());
    let text = family.as_c_str().to_str().unwrap_or("");
    let greeting = Message {
        kind: Kind::Passed,
        a: object.index,
        b: object.generation,
        text,
    };
    let hold = |link: &Link, cell: u32| {
        let process = link.control.process(cell).ok_or(Errno::PROTO)?;
        let held = link.control.held(cell).ok_or(Errno::PROTO)?;
        process
            .pid
            .store(crate::thread::process(), Ordering::Relaxed);
        held.set(object.index);
        object.cell(link).map(|_| ()).ok_or(Errno::BADF)
    };
    fork::reserve(link, hold, heir::PASSED, Some(&greeting)).map(|(_, token)| token)
}

/// What came as `fd`.
#[derive(Clone, Copy, Debug)]
pub enum Arrived {
    /// Nothing of ours.
    Other,
    /// A token for an object of the present host. It must be closed when the object is held.
    Object(&'static Link, Object),
    /// A token for an object of another family, whose memory this process does not have.
    Foreign(Object),
}

/// Looks at a descriptor that came with a message; what it has to say stays in it.
#[must_use]
pub fn arrived(fd: i32) -> Arrived {
    let Ok(socket) = descriptor::lend(fd) else {
        return Arrived::Other;
    };
    if sockopt::socket_type(socket) != Ok(SocketType::SEQPACKET)
        || sockopt::socket_domain(socket) != Ok(AddressFamily::UNIX)
    {
        return Arrived::Other;
    }
    let mut bytes = [0; HEAD_BYTES + TEXT_BYTES];
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    let found = rustix::net::recv(socket, &mut bytes[..], flags).map(|(len, _)| len);
    let message = found
        .ok()
        .and_then(|len| Message::parse(bytes.get(..len)?).ok())
        .filter(|message| message.kind == Kind::Passed);
    match (message, link()) {
        (None, _) => Arrived::Other,
        (Some(message), link) => {
            let object = Object {
                index: message.a,
                generation: message.b,
            };
            match link {
                Some(link) if message.text.parse() == Ok(link.family()) => {
                    Arrived::Object(link, object)
                }
                _ => Arrived::Foreign(object),
            }
        }
    }
}

/// Becomes a member of the family of the token that came as `fd`, which stays open. See [`super::resume`] for `take`.
///
/// # Errors
/// EBUSY when this process has a family of its own, what resume says.
pub fn join(fd: i32, take: impl FnOnce(Option<i32>) -> Result<()>) -> Result<&'static Link> {
    if !super::may_resume() {
        return Err(Errno::BUSY);
    }
    let control = descriptor::internal_copy(fd)?;
    // What the token has to say was looked at, and is in the way of the host's answer.
    let mut bytes = [0; HEAD_BYTES + TEXT_BYTES];
    let flags = RecvFlags::DONTWAIT;
    if let Err(error) = rustix::net::recv(descriptor::lend(control)?, &mut bytes[..], flags) {
        descriptor::close(control);
        return Err(error);
    }
    super::resume(control, take)
}

/// Sends the greeting into a pair whose other end is the token.
pub(super) fn greet(hosts: i32, greeting: Option<&Message<'_>>) -> Result<()> {
    greeting.map_or(Ok(()), |message| links::send(hosts, message, None))
}
