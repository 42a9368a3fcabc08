//! The words exchanged with a host: Hello, Open, and their answers, each waited for with a bound.

use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;

use rustix::event::{PollFd, PollFlags};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketAddrUnix, SocketFlags, SocketType,
};

use super::config_file::ConfigFile;
use super::fault::{Fault, reason, shown};
use super::inside;
use super::link::{self, Parts, Signals};
use super::place;
use crate::channel::ABI;
use crate::channel::cell::Header;
use crate::channel::layout::LCORES_MAX;
use crate::channel::map::{Control, Receive};
use crate::channel::message::{
    DESCRIPTORS_MAX, HEAD_BYTES, Kind, Message, MessageError, TEXT_BYTES,
};
use crate::channel::policy::{PolicyPage, policy_flag};
use crate::errno::{Errno, Result};
use crate::ffi::{descriptor, sockopt};
use crate::rendezvous::Path;
use crate::time::{Instant, monotonic};
use crate::{BUILD_VERSION, thread};

/// A host answers Hello within this (it reads a small file).
const WELCOME_S: u64 = 10;
/// A host opens its device within this (EAL, link up).
const OPEN_S: u64 = 60;

/// Connects to a host's socket; None when nobody listens there.
pub(super) fn connect(path: &Path) -> Result<Option<i32>> {
    connect_to(&SocketAddrUnix::new(path.as_c_str())?)
}

/// Connects to the system's host under the name that needs no path and no right; None when nobody of root's listens there.
pub(super) fn connect_by_name() -> Result<Option<i32>> {
    let name = crate::rendezvous::SYSTEM_SOCKET.to_bytes();
    let Some(socket) = connect_to(&SocketAddrUnix::new_abstract_name(name)?)? else {
        return Ok(None);
    };
    // Anybody may take a name that is free.
    if sockopt::peer_user(socket) == Ok(0) {
        return Ok(Some(socket));
    }
    descriptor::close(socket);
    Ok(None)
}

fn connect_to(address: &SocketAddrUnix) -> Result<Option<i32>> {
    let socket = rustix::net::socket_with(
        rustix::net::AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )?;
    let socket = descriptor::internalize(socket)?;
    let connected = loop {
        match rustix::net::connect(descriptor::lend(socket)?, address) {
            Err(Errno::INTR) => {}
            other => break other,
        }
    };
    match connected {
        Ok(()) => Ok(Some(socket)),
        Err(Errno::NOENT | Errno::CONNREFUSED | Errno::NOTDIR) => {
            descriptor::close(socket);
            Ok(None)
        }
        Err(error) => {
            descriptor::close(socket);
            Err(error)
        }
    }
}

/// What came of a request.
pub(super) enum Answer<T> {
    /// Served.
    Done(T),
    /// The host cannot serve, and says why.
    Fault(Fault),
    /// The host went away or spoke nonsense.
    Lost(Errno),
    /// The config says that this program's own threads drive.
    Inline,
}

/// Attaches through `socket`.
pub(super) fn hello(socket: i32, config: &ConfigFile) -> Answer<Parts> {
    let size = u32::try_from(size_of::<Header>()).unwrap_or(u32::MAX);
    let frame = place::frame().unwrap_or_else(|_| Path::empty());
    let program = place::program();
    let config_path = shown(config.path);
    let mut text = [0; TEXT_BYTES];
    let text = compose(
        &mut text,
        format_args!(
            "{BUILD_VERSION}\n{config_path}\n{program}\n{frame}\n{}",
            if inside::is_possible() { "inline" } else { "" }
        ),
    );
    let message = Message {
        text,
        ..Message::new(Kind::Hello, size, thread::process())
    };
    welcomed(socket, &message, config.fd)
}

/// Takes over the process cell that `socket` stands for.
pub(super) fn resume(socket: i32) -> Answer<Parts> {
    let message = Message {
        text: BUILD_VERSION,
        ..Message::new(
            Kind::Resume,
            u32::try_from(size_of::<Header>()).unwrap_or(u32::MAX),
            thread::process(),
        )
    };
    welcomed(socket, &message, None)
}

/// Says Hello or Resume, and waits for the answer.
fn welcomed(socket: i32, message: &Message<'_>, riding: Option<i32>) -> Answer<Parts> {
    let reply = match ask(socket, message, riding, WELCOME_S) {
        Ok(reply) => reply,
        Err(error) => return Answer::Lost(error),
    };
    match reply.message() {
        Ok(answer) if answer.kind == Kind::Welcome => match welcome(socket, &answer, &reply) {
            Ok(parts) => Answer::Done(parts),
            Err(Errno::NOMEM) => Answer::Fault(no_room(&reply)),
            Err(error) => Answer::Lost(error),
        },
        Ok(answer) if answer.kind == Kind::Inline => Answer::Inline,
        Ok(answer) => refused(&answer),
        Err(error) => foreign(error),
    }
}

/// Asks the host to open its device now.
pub(super) fn open_device(socket: i32) -> Answer<()> {
    let reply = match ask(socket, &Message::new(Kind::Open, 0, 0), None, OPEN_S) {
        Ok(reply) => reply,
        Err(error) => return Answer::Lost(error),
    };
    match reply.message() {
        Ok(answer) if answer.kind == Kind::Opened => Answer::Done(()),
        Ok(answer) => refused(&answer),
        Err(error) => foreign(error),
    }
}

/// Asks the host for the herald of an epoll, which another process has made: an internal descriptor.
pub(super) fn herald(socket: i32, epoll: u32) -> Result<i32> {
    let question = Message::new(Kind::Herald, epoll, 0);
    let reply = ask(socket, &question, None, WELCOME_S)?;
    let message = reply.message().map_err(|_| Errno::PROTO)?;
    if message.kind != Kind::Herald || message.a != epoll {
        return Err(Errno::PROTO);
    }
    let fd = reply.descriptors.iter().flatten().next();
    descriptor::internal_copy(*fd.ok_or(Errno::NOENT)?)
}

/// Gives the host the pipe through which an object signals, or takes it away; with `answer` returns once it is on its way to the
/// lcore.
pub(super) fn signals(socket: i32, signals: Signals, answer: bool) -> Result<()> {
    let Signals { object, .. } = signals;
    let what = object.generation << 2 | u32::from(signals.is_new) << 1 | u32::from(signals.urgent);
    let message = Message {
        text: if answer { "answer" } else { "" },
        ..Message::new(Kind::Signals, object.index, what)
    };
    if !answer {
        return link::send(socket, &message, signals.pipe);
    }
    let reply = ask(socket, &message, signals.pipe, WELCOME_S)?;
    let message = reply.message().map_err(|_| Errno::PROTO)?;
    if message.kind == Kind::Signals && message.a == object.index {
        Ok(())
    } else {
        Err(Errno::PROTO)
    }
}

/// Makes a request and waits for the reply to it. Under the attach lock: nobody else reads the socket.
fn ask(socket: i32, message: &Message<'_>, riding: Option<i32>, seconds: u64) -> Result<Reply> {
    static LAST: AtomicU32 = AtomicU32::new(0);
    let serial = LAST.fetch_add(1, Ordering::Relaxed).wrapping_add(1).max(1);
    let end = monotonic() + Duration::from_secs(seconds);
    link::send(socket, &Message { serial, ..*message }, riding)?;
    loop {
        let mut reply = Reply::default();
        reply.receive(socket, end)?;
        // A host that was stopped for longer answers whom nobody waits for any more.
        let is_late = reply
            .message()
            .is_ok_and(|answer| answer.serial != serial && answer.serial != 0);
        if !is_late {
            return Ok(reply);
        }
    }
}

fn refused<T>(answer: &Message<'_>) -> Answer<T> {
    if answer.kind != Kind::Fault {
        return Answer::Lost(Errno::PROTO);
    }
    let mut fault = Fault::new(format_args!("{}", answer.text));
    fault.refuse = answer.b == 1;
    Answer::Fault(fault)
}

fn foreign<T>(error: MessageError) -> Answer<T> {
    match error {
        MessageError::Foreign => Answer::Lost(Errno::PROTO),
        MessageError::Abi(theirs) => {
            let frame = place::frame().unwrap_or_else(|_| Path::empty());
            Answer::Fault(Fault::new(format_args!(
                "the host speaks channel version {theirs}, {frame} (build {BUILD_VERSION}) speaks {ABI}; kernel sockets are used (restart the host, or install both from one build)"
            )))
        }
    }
}

/// The channel cannot be mapped: the limit on our address space, where there is one, and what it lacks.
fn no_room(reply: &Reply) -> Fault {
    let sizes = reply.descriptors.iter().flatten().filter_map(|fd| {
        let size = rustix::fs::fstat(descriptor::lend(*fd).ok()?).ok()?.st_size;
        u64::try_from(size).ok()
    });
    let channel: u64 = sizes.sum();
    let refuse = says_to_refuse(reply);
    let end = if refuse {
        "refused, as common.on_error says"
    } else {
        "kernel sockets are used"
    };
    let limit = rustix::process::getrlimit(rustix::process::Resource::As).current;
    let mut fault = match limit {
        Some(limit) => {
            let used = place::address_space().unwrap_or(0);
            let lacking = used.saturating_add(channel).saturating_sub(limit);
            Fault::new(format_args!(
                "the address space of this process is limited to {} MiB (ulimit -v), {} MiB too few for the channel of {} MiB; {end} (raise the limit, or lower proto_stack.max_tcpcb)",
                limit >> 20,
                (lacking >> 20) + 1,
                channel >> 20
            ))
        }
        None => Fault::new(format_args!(
            "the channel of {} MiB cannot be mapped: {}; {end}",
            channel >> 20,
            reason(Errno::NOMEM)
        )),
    };
    fault.refuse = refuse;
    fault
}

/// Whether the host's policy refuses instead of using the kernel, read without mapping it.
fn says_to_refuse(reply: &Reply) -> bool {
    let at = core::mem::offset_of!(Header, policy) + core::mem::offset_of!(PolicyPage, flags);
    let mut flags = [0; 4];
    let read = reply.descriptors[0]
        .ok_or(Errno::BADF)
        .and_then(descriptor::lend)
        .and_then(|control| rustix::io::pread(control, &mut flags, at as u64));
    read == Ok(4) && u32::from_ne_bytes(flags) & policy_flag::ON_ERROR_FAIL != 0
}

fn welcome(socket: i32, answer: &Message<'_>, reply: &Reply) -> Result<Parts> {
    let [Some(control), Some(receive), bells @ ..] = reply.descriptors else {
        return Err(Errno::PROTO);
    };
    let control = descriptor::lend(control)?;
    let family = rustix::fs::fstat(control)?.st_ino;
    let control = Control::attach(control)?;
    let receive = Receive::attach(descriptor::lend(receive)?, control.layout())?;
    let mut lcore_eventfds = [-1; LCORES_MAX as usize];
    let lcores = control.layout().lcores as usize;
    for (place, bell) in lcore_eventfds.iter_mut().zip(bells).take(lcores) {
        *place = descriptor::internal_copy(bell.ok_or(Errno::PROTO)?)?;
    }
    let registry = bells.get(lcores).copied().flatten();
    Ok(Parts {
        control,
        receive,
        process: answer.a,
        control_socket: socket,
        lcore_eventfds,
        family,
        registry: registry.map(descriptor::internal_copy).transpose()?,
    })
}

fn compose<'a>(buffer: &'a mut [u8; TEXT_BYTES], text: core::fmt::Arguments<'_>) -> &'a str {
    struct Writer<'a> {
        buffer: &'a mut [u8; TEXT_BYTES],
        used: usize,
    }
    impl core::fmt::Write for Writer<'_> {
        fn write_str(&mut self, text: &str) -> core::fmt::Result {
            let end = self.used + text.len();
            let place = self
                .buffer
                .get_mut(self.used..end)
                .ok_or(core::fmt::Error)?;
            place.copy_from_slice(text.as_bytes());
            self.used = end;
            Ok(())
        }
    }
    let mut writer = Writer { buffer, used: 0 };
    // Three paths of at most 255 bytes and a version always fit.
    let _ = core::fmt::Write::write_fmt(&mut writer, text);
    let Writer { buffer, used } = writer;
    core::str::from_utf8(buffer.get(..used).unwrap_or(&[])).unwrap_or("")
}

/// A received message and its descriptors, which are closed with it.
#[derive(Debug)]
struct Reply {
    bytes: [u8; HEAD_BYTES + TEXT_BYTES],
    len: usize,
    descriptors: [Option<i32>; DESCRIPTORS_MAX],
}

impl Default for Reply {
    fn default() -> Self {
        Self {
            bytes: [0; HEAD_BYTES + TEXT_BYTES],
            len: 0,
            descriptors: [None; DESCRIPTORS_MAX],
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        for fd in self.descriptors.iter_mut().filter_map(Option::take) {
            descriptor::close(fd);
        }
    }
}

impl Reply {
    fn message(&self) -> core::result::Result<Message<'_>, MessageError> {
        Message::parse(self.bytes.get(..self.len).unwrap_or(&[]))
    }

    /// Waits for one message. ETIMEDOUT at `end`; ECONNRESET when the host has gone.
    fn receive(&mut self, socket: i32, end: Instant) -> Result<()> {
        let socket = descriptor::lend(socket)?;
        loop {
            let left = end.since(monotonic());
            if left.is_zero() {
                return Err(Errno::TIMEDOUT);
            }
            let mut fds = [PollFd::from_borrowed_fd(socket, PollFlags::IN)];
            let time = rustix::time::Timespec {
                tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: i64::from(left.subsec_nanos()),
            };
            match rustix::event::poll(&mut fds, Some(&time)) {
                Ok(0) | Err(Errno::INTR) => continue,
                Ok(_) => {}
                Err(error) => return Err(error),
            }
            let mut space =
                [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
            let mut ancillary = RecvAncillaryBuffer::new(&mut space);
            let mut part = [std::io::IoSliceMut::new(&mut self.bytes)];
            let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
            let received = match rustix::net::recvmsg(socket, &mut part, &mut ancillary, flags) {
                Err(Errno::INTR | Errno::AGAIN) => continue,
                other => other?,
            };
            for message in ancillary.drain() {
                if let RecvAncillaryMessage::ScmRights(fds) = message {
                    for (place, fd) in self.descriptors.iter_mut().zip(fds) {
                        *place = Some(descriptor::raw(fd));
                    }
                }
            }
            if received.bytes == 0 {
                return Err(Errno::CONNRESET);
            }
            self.len = received.bytes;
            return Ok(());
        }
    }
}

/// A line for a host that went away while we spoke with it.
pub(super) fn lost(error: Errno) -> Fault {
    Fault::new(format_args!(
        "the host did not answer: {}; kernel sockets are used (see its log: KNET_LOG names a file)",
        reason(error)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, socketpair};

    /// What a program has asked; None when it has asked nothing.
    fn asked(socket: i32) -> Option<(Kind, u32)> {
        let mut request = Reply::default();
        let end = monotonic() + Duration::from_secs(10);
        request.receive(socket, end).ok()?;
        let message = request.message().unwrap();
        Some((message.kind, message.serial))
    }

    #[test]
    fn an_answer_that_came_too_late_is_passed_over() {
        let (ours, theirs) = socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .unwrap();
        let [ours, theirs] = [ours, theirs].map(descriptor::raw);
        // The host is stopped: two give up.
        for _ in 0..2 {
            let reply = ask(ours, &Message::new(Kind::Herald, 1, 0), None, 0);
            assert_eq!(reply.err(), Some(Errno::TIMEDOUT));
        }
        // It goes on, and answers all that it finds, in order.
        let host = std::thread::spawn(move || {
            for _ in 0..3 {
                let (kind, serial) = asked(theirs).unwrap();
                let kind = if kind == Kind::Open {
                    Kind::Opened
                } else {
                    kind
                };
                let answer = Message {
                    serial,
                    ..Message::new(kind, 1, 0)
                };
                link::send(theirs, &answer, Some(theirs)).unwrap();
            }
            theirs
        });
        assert!(matches!(open_device(ours), Answer::Done(())));
        let theirs = host.join().unwrap();
        // An answer to whatever was asked, as of a host that cannot be started.
        let fault = Message {
            text: "no such file",
            ..Message::new(Kind::Fault, 2, 0)
        };
        link::send(theirs, &fault, None).unwrap();
        assert!(matches!(open_device(ours), Answer::Fault(_)));
        descriptor::close(ours);
        descriptor::close(theirs);
    }
}
