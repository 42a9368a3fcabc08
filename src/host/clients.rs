//! The processes at the other ends of the control sockets.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags};
use rustix::process::{Pid, PidfdFlags};

use crate::channel::message::Kind;
use crate::errno::Result;
use crate::ffi::descriptor;
use crate::stack::Owner;
use crate::time::Instant;

use super::heirs::Heir;
use super::socket;

/// What a client is to us.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Standing {
    /// It has not said Hello.
    New,
    /// It is a process of a family.
    Attached {
        /// The family.
        owner: Owner,
        /// Its process cell.
        cell: u32,
        /// Its process id as it sees itself; 0 = a forked child that has not spoken yet.
        pid: u32,
    },
}

/// One control socket.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) socket: OwnedFd,
    /// Readable when the process is gone, although something else still holds its socket.
    pidfd: Option<OwnedFd>,
    pub(super) standing: Standing,
    /// Who speaks for it.
    pub(super) heir: Heir,
    /// A program that got the family's sockets in a message, or comes after one: its sockets outlive those of who made the family.
    pub(super) joined: bool,
    /// When it came.
    pub(super) since: Instant,
    /// Number of the request that it made last.
    pub(super) serial: u32,
    /// The process as we see it, by what the kernel says; None for one that has not spoken yet.
    pub(super) process: Option<u32>,
}

impl Client {
    /// A client that connected, or the first one of a private host.
    ///
    /// # Errors
    /// What getsockopt(SO_PEERCRED) says.
    pub(super) fn new(socket: OwnedFd, now: Instant) -> Result<(Self, u32)> {
        let peer = socket::peer(socket.as_fd())?;
        let process = u32::try_from(peer.pid.as_raw_pid()).ok();
        let client = Self {
            pidfd: process.and_then(pidfd),
            socket,
            standing: Standing::New,
            heir: Heir::Itself,
            joined: false,
            since: now,
            serial: 0,
            process,
        };
        Ok((client, peer.uid.as_raw()))
    }

    /// Somebody whom a member announced: its socket's other end is a child's alone, or that of whoever gets it.
    pub(super) const fn child(
        socket: OwnedFd,
        owner: Owner,
        cell: u32,
        heir: Heir,
        now: Instant,
    ) -> Self {
        Self {
            socket,
            pidfd: None,
            standing: Standing::Attached {
                owner,
                cell,
                pid: 0,
            },
            heir,
            joined: false,
            since: now,
            serial: 0,
            process: None,
        }
    }

    /// A child has said which process it is to itself; `process` is the one that the message came from.
    pub(super) fn introduce(&mut self, number: u32, process: Option<u32>) {
        if let Standing::Attached { pid, .. } = &mut self.standing {
            *pid = number;
        }
        self.process = process;
        self.pidfd = process.and_then(pidfd);
    }

    /// Whether it may say this now: whoever was only announced says who it is before it is served as a member.
    pub(super) const fn may_say(&self, kind: Kind) -> bool {
        let Standing::Attached { pid, .. } = self.standing else {
            return true;
        };
        match self.heir {
            Heir::Itself => (pid == 0) == matches!(kind, Kind::Child),
            Heir::Executed { .. } | Heir::Spawned | Heir::Passed => matches!(kind, Kind::Resume),
        }
    }
}

/// A descriptor of the process; None when it is gone already (its hang-up says so) or the kernel has none.
fn pidfd(process: u32) -> Option<OwnedFd> {
    let pid = Pid::from_raw(i32::try_from(process).ok()?)?;
    // A child that is forked meanwhile has it, and does not know whose it is.
    let _settling = descriptor::settling();
    rustix::process::pidfd_open(pid, PidfdFlags::empty())
        .map(descriptor::settle)
        .ok()
}

/// All clients, by a number that is never used again: what poll said of one is not taken for another's.
#[derive(Debug, Default)]
pub(super) struct Clients {
    known: BTreeMap<usize, Client>,
    /// The next one's number.
    next: usize,
}

/// What became ready at a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ready {
    /// There is a message, or the socket hung up.
    Socket(usize),
    /// The process is gone.
    Process(usize),
}

impl Clients {
    pub(super) fn add(&mut self, client: Client) -> usize {
        let place = self.next;
        self.next += 1;
        self.known.insert(place, client);
        place
    }

    pub(super) fn at(&self, place: usize) -> Option<&Client> {
        self.known.get(&place)
    }

    pub(super) fn at_mut(&mut self, place: usize) -> Option<&mut Client> {
        self.known.get_mut(&place)
    }

    pub(super) fn remove(&mut self, place: usize) -> Option<Client> {
        self.known.remove(&place)
    }

    /// Takes the socket of a client that has not said Hello; the client is forgotten.
    pub(super) fn take_guest(&mut self, place: usize) -> Option<OwnedFd> {
        let is_guest = self.at(place)?.standing == Standing::New;
        is_guest
            .then(|| self.remove(place))?
            .map(|client| client.socket)
    }

    pub(super) fn count(&self) -> usize {
        self.known.len()
    }

    /// The place of the client that has been silent for longest without a Hello, and since when.
    pub(super) fn oldest_guest(&self) -> Option<(usize, Instant)> {
        self.guests().min_by_key(|(_, since)| *since)
    }

    /// Clients that have not said Hello: places, and since when.
    pub(super) fn guests(&self) -> impl Iterator<Item = (usize, Instant)> {
        let guests = self.known.iter();
        let guests = guests.filter(|(_, client)| client.standing == Standing::New);
        guests.map(|(place, client)| (*place, client.since))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Client> {
        self.known.values()
    }

    pub(super) fn places(&self) -> Vec<usize> {
        self.known.keys().copied().collect()
    }

    /// What to wait for, and in the same order whose it is.
    pub(super) fn watch<'a>(&'a self, into: &mut Vec<PollFd<'a>>, order: &mut Vec<Ready>) {
        for (&place, client) in &self.known {
            into.push(source(client.socket.as_fd()));
            order.push(Ready::Socket(place));
            if let Some(pidfd) = &client.pidfd {
                into.push(source(pidfd.as_fd()));
                order.push(Ready::Process(place));
            }
        }
    }
}

pub(super) fn source(fd: BorrowedFd<'_>) -> PollFd<'_> {
    PollFd::from_borrowed_fd(fd, PollFlags::IN)
}
