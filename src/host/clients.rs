//! The processes at the other ends of the control sockets.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags};
use rustix::process::{Pid, PidfdFlags};

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
    /// When it came.
    pub(super) since: Instant,
    /// The process as we see it; None for a forked child.
    pub(super) process: Option<u32>,
    /// Its own process id means the same to us.
    pub(super) same_namespace: bool,
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
            since: now,
            process,
            same_namespace: false,
        };
        Ok((client, peer.uid.as_raw()))
    }

    /// A child that its parent announced: its socket's other end is the child's alone.
    pub(super) const fn child(
        socket: OwnedFd,
        owner: Owner,
        cell: u32,
        same_namespace: bool,
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
            heir: Heir::Itself,
            since: now,
            process: None,
            same_namespace,
        }
    }

    /// A child has said which process it is.
    pub(super) fn introduce(&mut self, number: u32) {
        if let Standing::Attached { pid, .. } = &mut self.standing {
            *pid = number;
        }
        if self.same_namespace {
            self.process = Some(number);
            self.pidfd = pidfd(number);
        }
    }
}

/// A descriptor of the process; None when it is gone already (its hang-up says so) or the kernel has none.
fn pidfd(process: u32) -> Option<OwnedFd> {
    let pid = Pid::from_raw(i32::try_from(process).ok()?)?;
    rustix::process::pidfd_open(pid, PidfdFlags::empty())
        .map(descriptor::settle)
        .ok()
}

/// All clients, by a number that is used again.
#[derive(Debug, Default)]
pub(super) struct Clients {
    places: Vec<Option<Client>>,
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
        let free = self.places.iter().position(Option::is_none);
        let place = free.unwrap_or(self.places.len());
        if place == self.places.len() {
            self.places.push(None);
        }
        if let Some(slot) = self.places.get_mut(place) {
            *slot = Some(client);
        }
        place
    }

    pub(super) fn at(&self, place: usize) -> Option<&Client> {
        self.places.get(place)?.as_ref()
    }

    pub(super) fn at_mut(&mut self, place: usize) -> Option<&mut Client> {
        self.places.get_mut(place)?.as_mut()
    }

    pub(super) fn remove(&mut self, place: usize) -> Option<Client> {
        self.places.get_mut(place)?.take()
    }

    /// Takes the socket of a client that has not said Hello; the client is forgotten.
    pub(super) fn take_guest(&mut self, place: usize) -> Option<OwnedFd> {
        let slot = self.places.get_mut(place)?;
        let client = slot.take_if(|client| client.standing == Standing::New)?;
        Some(client.socket)
    }

    pub(super) fn count(&self) -> usize {
        self.iter().count()
    }

    /// The place of the client that has been silent for longest without a Hello, and since when.
    pub(super) fn oldest_guest(&self) -> Option<(usize, Instant)> {
        self.guests().min_by_key(|(_, since)| *since)
    }

    /// Clients that have not said Hello: places, and since when.
    pub(super) fn guests(&self) -> impl Iterator<Item = (usize, Instant)> {
        let guest = |(place, client): (usize, &Option<Client>)| {
            let client = client.as_ref()?;
            (client.standing == Standing::New).then_some((place, client.since))
        };
        self.places.iter().enumerate().filter_map(guest)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Client> {
        self.places.iter().flatten()
    }

    pub(super) fn places(&self) -> Vec<usize> {
        (0..self.places.len())
            .filter(|&place| self.at(place).is_some())
            .collect()
    }

    /// What to wait for, and in the same order whose it is.
    pub(super) fn watch<'a>(&'a self, into: &mut Vec<PollFd<'a>>, order: &mut Vec<Ready>) {
        for (place, client) in self.places.iter().enumerate() {
            let Some(client) = client else { continue };
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
