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
use crate::channel::cell::process;
use crate::channel::layout::PROCS;
use crate::channel::message::{HEAD_BYTES, Kind, Message, TEXT_BYTES, heir};
use crate::channel::sync::Ordering;
use crate::errno::{Errno, Result};
use crate::ffi::descriptor;
use crate::ffi::sockopt::peer_user;
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
        text,
        ..Message::new(Kind::Passed, object.index, object.generation)
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
                    if is_under_way(link, object) {
                        Arrived::Object(link, object)
                    } else {
                        Arrived::Other
                    }
                }
                _ => Arrived::Foreign(object),
            }
        }
    }
}

/// Whether a member has sent `object`: anybody can make a token that says so, but a cell that holds it members alone.
fn is_under_way(link: &Link, object: Object) -> bool {
    (0..PROCS).any(|number| {
        let reserved = link
            .control
            .process(number)
            .is_some_and(|cell| cell.state.load(Ordering::Acquire) == process::FORKING);
        let held = link.control.held(number).filter(|_| reserved);
        held.is_some_and(|held| held.has(object.index))
    })
}

/// Becomes a member of the family of the token that came as `fd`, which stays open. See [`super::resume`] for `take`. The family
/// is one that we can trust with all our connections: whoever has made the token says who its host is.
///
/// # Errors
/// EBUSY when this process has a family of its own, EPERM when neither this process's user nor root has made the token, what
/// resume says.
pub fn join(fd: i32, take: impl FnOnce(Option<i32>) -> Result<()>) -> Result<&'static Link> {
    if !super::may_resume() {
        return Err(Errno::BUSY);
    }
    let maker = peer_user(fd)?;
    if maker != 0 && maker != rustix::process::geteuid().as_raw() {
        return Err(Errno::PERM);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attach::link::Parts;
    use crate::channel::layout::Layout;
    use crate::channel::map::{Control, Receive};
    use rustix::net::{SocketFlags, socketpair};

    fn family() -> Link {
        let layout = Layout::for_flows(1, 4_096, 4_096);
        Link::for_test(Parts {
            control: Control::create(layout).unwrap().0,
            receive: Receive::create(layout).unwrap().0,
            process: 0,
            control_socket: -1,
            lcore_eventfds: [-1; crate::channel::layout::LCORES_MAX as usize],
            family: 0,
            registry: None,
        })
    }

    #[test]
    fn an_object_is_under_way_when_a_reserved_cell_holds_it() {
        let link = family();
        let object = |index| Object {
            index,
            generation: 0,
        };
        assert!(!is_under_way(&link, object(3)));
        // Held by a process, as every object in use is.
        let cell = link.control.process(5).unwrap();
        link.control.held(5).unwrap().set(3);
        cell.state.store(process::LIVE, Ordering::Release);
        assert!(!is_under_way(&link, object(3)));
        cell.state.store(process::FORKING, Ordering::Release);
        assert!(is_under_way(&link, object(3)));
        assert!(!is_under_way(&link, object(4)));
        assert!(!is_under_way(&link, object(u32::MAX)));
    }

    #[test]
    fn nobody_follows_a_token_of_another_user_to_his_host() {
        use rustix::thread::set_thread_res_uid;
        let root = rustix::process::Uid::ROOT;
        if rustix::process::geteuid() != root {
            crate::warn!("test=skipped reason=\"only root can be another user\"");
            return;
        }
        // Of this thread alone.
        let other = rustix::process::Uid::from_raw(12_345);
        set_thread_res_uid(root, other, root).unwrap();
        let (token, hosts) = socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .unwrap();
        set_thread_res_uid(root, root, root).unwrap();
        let hosts = descriptor::raw(hosts);
        let greeting = Message {
            text: "77",
            ..Message::new(Kind::Passed, 3, 0)
        };
        greet(hosts, Some(&greeting)).unwrap();
        let fd = descriptor::raw(token);
        assert!(matches!(arrived(fd), Arrived::Foreign(_)));
        let joined = join(fd, |_| panic!("its host is not spoken to"));
        assert_eq!(joined.err(), Some(Errno::PERM));
        // Not a word was said.
        let mut byte = [0; 1];
        let hosts_end = descriptor::lend(hosts).unwrap();
        let heard = rustix::net::recv(hosts_end, &mut byte[..], RecvFlags::DONTWAIT);
        assert_eq!(heard.err(), Some(Errno::AGAIN));
        descriptor::close(fd);
        descriptor::close(hosts);
    }
}
