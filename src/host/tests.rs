//! What hostile clients say, and what happens to clients in one round of poll.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::EventfdFlags;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use super::clients::{Client, Standing};
use super::family::Family;
use super::heirs::Heir;
use super::server::{Server, ServerConfig};
use super::socket;
use crate::BUILD_VERSION;
use crate::channel::cell::{Header, process};
use crate::channel::message::{Kind, Message, heir};
use crate::channel::sync::Ordering;
use crate::config;
use crate::errno::Errno;
use crate::lcore::Mail;
use crate::stack::Owner;
use crate::time::monotonic;

const OWNER: Owner = Owner(0);

fn pair() -> (OwnedFd, OwnedFd) {
    let flags = SocketFlags::CLOEXEC;
    rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap()
}

/// A host that has opened no port, with a family of one member.
struct Host {
    server: Server,
    member: usize,
    /// The member's end.
    socket: OwnedFd,
}

impl Host {
    fn new() -> Self {
        let (ours, theirs) = pair();
        let mut server = Server::new(ServerConfig::Private { control: ours }, None).unwrap();
        drop(theirs);
        let text = br#"{"interface": {"bdf_nums": ["0000:04:00.0"], "ip": "192.168.1.58"}}"#;
        let config = config::load_bytes("test", text).unwrap();
        let family = Family::create(OWNER, 0, &config, 1, "/usr/bin/test").unwrap();
        server.families.push(Some(family));
        let mut host = Self {
            server,
            member: 0,
            socket: pair().0,
        };
        (host.member, host.socket) = host.admit(std::process::id());
        host
    }

    fn family(&mut self) -> &mut Family {
        self.server.family(OWNER).unwrap()
    }

    /// A member, process `pid`, and its end.
    fn admit(&mut self, pid: u32) -> (usize, OwnedFd) {
        let cell = self.family().admit(pid).unwrap();
        self.family().clients += 1;
        let (ours, theirs) = pair();
        let (mut client, _) = Client::new(ours, monotonic()).unwrap();
        client.standing = Standing::Attached {
            owner: OWNER,
            cell,
            pid,
        };
        (self.server.clients.add(client), theirs)
    }

    /// The member announces somebody: his process cell, and his end.
    fn announce(&mut self, who: &str) -> (u32, OwnedFd) {
        let cell = self.family().admit(0).unwrap();
        let state = &self.family().segments.control.process(cell).unwrap().state;
        state.store(process::FORKING, Ordering::SeqCst);
        let (hosts, theirs) = pair();
        sockopt::set_socket_passcred(&hosts, true).unwrap();
        let message = Message {
            text: who,
            ..Message::new(Kind::Fork, cell, 0)
        };
        say(&self.socket, &message, Some(hosts.as_fd()));
        (cell, theirs)
    }

    /// As [`Host::announce`], when the host has heard of it; his place besides.
    fn announced(&mut self, who: &str) -> (usize, u32, OwnedFd) {
        let (cell, theirs) = self.announce(who);
        self.server.talk(self.member, 1);
        let place = self.server.clients.places().pop().unwrap();
        assert_ne!(place, self.member);
        (place, cell, theirs)
    }
}

fn say(socket: &OwnedFd, message: &Message<'_>, riding: Option<BorrowedFd<'_>>) {
    socket::send(socket.as_fd(), message, riding.as_slice()).unwrap();
}

/// What the host has answered, or that it has hung up.
fn hear(socket: &OwnedFd) -> Result<Option<Kind>, Errno> {
    let received = socket::receive(socket.as_fd())?;
    Ok(received.map(|received| Message::parse(received.bytes()).unwrap().kind))
}

fn resume(pid: u32) -> Message<'static> {
    let size = u32::try_from(size_of::<Header>()).unwrap();
    Message {
        text: BUILD_VERSION,
        ..Message::new(Kind::Resume, size, pid)
    }
}

#[test]
fn who_was_only_announced_is_not_served_as_a_member() {
    let everything = [
        Kind::Open,
        Kind::Waiter,
        Kind::Fork,
        Kind::Child,
        Kind::Herald,
        Kind::Resume,
        Kind::Registry,
        Kind::Signals,
    ];
    for who in [heir::CHILD, heir::EXECUTED, heir::SPAWNED, heir::PASSED] {
        let own = if who == heir::CHILD {
            Kind::Child
        } else {
            Kind::Resume
        };
        for kind in everything.into_iter().filter(|kind| *kind != own) {
            let mut host = Host::new();
            let (place, cell, theirs) = host.announced(who);
            let eventfd = rustix::event::eventfd(0, EventfdFlags::NONBLOCK).unwrap();
            let message = Message {
                text: "answer",
                ..Message::new(kind, cell, 7)
            };
            say(&theirs, &message, Some(eventfd.as_fd()));
            host.server.talk(place, 16);
            assert_eq!(
                hear(&theirs),
                Err(Errno::CONNRESET),
                "{kind:?} as heir {who:?}"
            );
            assert!(host.server.clients.at(place).is_none());
            assert!(host.family().registry.is_none());
        }
    }
}

#[test]
fn a_child_that_the_host_cannot_take_leaves_no_process_cell_behind() {
    for who in [heir::CHILD, heir::EXECUTED, heir::SPAWNED, heir::PASSED] {
        let mut host = Host::new();
        let cell = host.family().admit(0).unwrap();
        let segments = std::sync::Arc::clone(&host.family().segments);
        let it = segments.control.process(cell).unwrap();
        it.state.store(process::FORKING, Ordering::SeqCst);
        segments.control.held(cell).unwrap().set(5);
        let clients = host.server.clients.count();
        let fork = |cell| Message {
            text: who,
            ..Message::new(Kind::Fork, cell, 0)
        };
        // As it comes to a host that is out of descriptors.
        say(&host.socket, &fork(cell), None);
        host.server.talk(host.member, 1);
        assert_eq!(it.state.load(Ordering::SeqCst), process::FREE, "{who:?}");
        assert!(!segments.control.held(cell).unwrap().has(5));
        assert_eq!(host.server.clients.count(), clients);
        // What nobody has reserved is somebody's.
        let members = segments.control.process(0).unwrap();
        say(&host.socket, &fork(0), None);
        host.server.talk(host.member, 1);
        assert_eq!(members.state.load(Ordering::SeqCst), process::LIVE);
    }
}

#[test]
fn who_was_announced_is_a_member_once_he_has_said_who_he_is() {
    for who in [heir::CHILD, heir::EXECUTED, heir::SPAWNED, heir::PASSED] {
        let mut host = Host::new();
        let (place, cell, theirs) = host.announced(who);
        if who == heir::CHILD {
            say(&theirs, &Message::new(Kind::Child, cell, 7), None);
        } else {
            say(&theirs, &resume(7), None);
        }
        say(&theirs, &Message::new(Kind::Herald, 3, 0), None);
        host.server.talk(place, 16);
        if who != heir::CHILD {
            assert_eq!(hear(&theirs), Ok(Some(Kind::Welcome)));
        }
        assert_eq!(hear(&theirs), Ok(Some(Kind::Herald)));
        let client = host.server.clients.at(place).unwrap();
        assert_eq!(client.heir, Heir::Itself);
        // Once is enough.
        say(&theirs, &Message::new(Kind::Child, cell, 8), None);
        host.server.talk(place, 16);
        assert_eq!(hear(&theirs), Err(Errno::CONNRESET));
    }
}

#[test]
fn a_child_is_the_process_that_the_kernel_says_and_no_other() {
    for who in [heir::CHILD, heir::PASSED] {
        let mut host = Host::new();
        let (place, cell, theirs) = host.announced(who);
        let claim = if who == heir::CHILD {
            Message::new(Kind::Child, cell, 1)
        } else {
            resume(1)
        };
        say(&theirs, &claim, None);
        host.server.talk(place, 1);
        let client = host.server.clients.at(place).unwrap();
        assert_eq!(client.process, Some(std::process::id()));
        // The number that it has in a namespace of its own is its own affair.
        let Standing::Attached { pid, .. } = client.standing else {
            panic!("it is a member");
        };
        assert_eq!(pid, 1);
    }
}

#[test]
fn who_comes_in_the_round_in_which_another_one_ends_lives_on() {
    let mut host = Host::new();
    // A process that is dead, of which both tell: its socket and its descriptor.
    let mut child = std::process::Command::new("true").spawn().unwrap();
    let pid = child.id();
    let (dead, theirs) = host.admit(pid);
    let client = host.server.clients.at_mut(dead).unwrap();
    client.introduce(pid, Some(pid));
    child.wait().unwrap();
    drop(theirs);
    // Behind it in the round: a member forks.
    let (member, socket) = host.admit(std::process::id());
    host.socket = socket;
    let (_, childs) = host.announce(heir::CHILD);
    let now = monotonic();
    host.server.wait(now, Some(now)).unwrap();
    assert!(host.server.clients.at(dead).is_none());
    assert!(host.server.clients.at(member).is_some());
    assert_eq!(hear(&childs), Ok(None), "nobody has hung up on it");
    let announced = host.server.clients.places().pop().unwrap();
    assert!(announced > member);
}

#[test]
fn an_answer_has_the_number_of_its_request() {
    let mut host = Host::new();
    for serial in [5, 9] {
        let request = Message {
            serial,
            ..Message::new(Kind::Herald, 3, 0)
        };
        say(&host.socket, &request, None);
        host.server.talk(host.member, 1);
        let received = socket::receive(host.socket.as_fd()).unwrap().unwrap();
        assert_eq!(Message::parse(received.bytes()).unwrap().serial, serial);
    }
}

/// Cells whose process is said to be gone at the end of the program that `host` runs in, and whether its family is.
fn farewell(host: &mut Host) -> (Vec<u32>, bool) {
    let mut mails = Vec::new();
    let mailbox = std::sync::Arc::clone(&host.server.lcores.first().mailbox);
    mailbox.take(&mut mails);
    mails.clear();
    host.server.say_farewell(monotonic());
    mailbox.take(&mut mails);
    let detached = mails
        .iter()
        .filter(|mail| matches!(mail, Mail::Detach { owner } if *owner == OWNER));
    let detached = detached.count() == 1;
    let gone = mails.iter().filter_map(|mail| match mail {
        Mail::ProcessGone { cell, .. } => Some(*cell),
        _ => None,
    });
    (gone.collect(), detached)
}

#[test]
fn what_the_children_of_a_program_hold_ends_with_its_host_inside() {
    let mut host = Host::new();
    let (_, silent, _theirs) = host.announced(heir::CHILD);
    let (place, child, theirs) = host.announced(heir::CHILD);
    say(&theirs, &Message::new(Kind::Child, child, 7), None);
    host.server.talk(place, 16);
    let (place, spawned, others) = host.announced(heir::SPAWNED);
    say(&others, &resume(8), None);
    host.server.talk(place, 16);
    assert_eq!(farewell(&mut host), (vec![0, silent, child, spawned], true));
}

#[test]
fn who_joined_by_a_message_keeps_what_it_holds_when_the_host_inside_another_ends() {
    let mut host = Host::new();
    let (place, _, theirs) = host.announced(heir::PASSED);
    say(&theirs, &resume(7), None);
    host.server.talk(place, 16);
    // What it forks has joined as well.
    let own = core::mem::replace(&mut host.socket, theirs);
    let (_childs_cell, _childs) = host.announce(heir::CHILD);
    host.server.talk(place, 1);
    let (_, child, _theirs) = {
        host.socket = own;
        host.announced(heir::CHILD)
    };
    assert_eq!(farewell(&mut host), (vec![0, child], false));
}

#[test]
fn who_joined_and_is_gone_already_keeps_nothing() {
    let mut host = Host::new();
    let (place, _, theirs) = host.announced(heir::PASSED);
    say(&theirs, &resume(std::process::id() + 1), None);
    host.server.talk(place, 16);
    drop(theirs);
    assert_eq!(farewell(&mut host), (vec![0], true));
}
