//! The socket between two hosts: found, made, lost and found again, and never waited for.
//!
//! Whoever finds nobody listening at the path listens there; whoever finds somebody connects. Looking,
//! replacing a stale file, binding and listening happen under a `flock` of the folder, because a bound
//! socket that does not listen yet looks exactly like a stale one. Nobody replaces the file of a
//! socket that listens, so its owner can remove it without a race.

use core::time::Duration;
use std::path::{Path, PathBuf};

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{FileType, FlockOperation, Mode, OFlags};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use rustix::time::Timespec;

use crate::device::DeviceError;
use crate::errno::Errno;
use crate::ffi::descriptor;
use crate::time::Instant;

/// The first pause after a failed attempt; it doubles.
const RETRY_MIN: Duration = Duration::from_millis(10);

/// The longest pause between attempts, and between looks at our file while nobody is connected.
const RETRY_MAX: Duration = Duration::from_secs(1);

/// Asked of the kernel for each direction; it grants what `net.core.wmem_max` allows.
const SEND_BUFFER_BYTES: usize = 4 << 20;

const TAG_LISTENER: u64 = 1;
const TAG_PEER: u64 = 2;

/// What [`Link::receive`] found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Received {
    /// A frame of this many bytes.
    Frame(usize),
    /// A frame that did not fit; it is gone.
    TooLong,
    /// Nothing now.
    Nothing,
}

/// What [`Link::send`] did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Sent {
    /// The frame is on its way.
    Gone,
    /// The socket is full.
    Full,
    /// The kernel does not take this frame.
    Refused,
    /// Nobody is at the other side.
    Down,
}

/// One end of the link.
#[derive(Debug)]
pub(super) struct Link {
    path: PathBuf,
    address: SocketAddrUnix,
    epoll: OwnedFd,
    listener: Option<Listener>,
    peer: Option<Peer>,
    /// When to try again, or to look whether the file is still ours.
    next_tend: Instant,
    pause: Duration,
    /// The failure that was logged last, so that a lasting one is logged once.
    told: Option<Errno>,
    told_refusal: bool,
}

#[derive(Debug)]
struct Listener {
    socket: OwnedFd,
    /// Device and inode of the file that `bind` made.
    file: (u64, u64),
}

#[derive(Debug)]
struct Peer {
    socket: OwnedFd,
    /// Something came from it, so it is not a listener that turned us away.
    proved: bool,
    /// It cannot be sent to any more, but may still have frames for us.
    closed_to_us: bool,
    /// The kernel reported that it went without reading everything.
    reset: bool,
    wants_room: bool,
}

impl Link {
    /// Makes the first attempt.
    ///
    /// # Errors
    /// A line that says why the path can never work as it is.
    pub(super) fn open(path: &str) -> Result<Self, DeviceError> {
        let fault = |what: &dyn core::fmt::Display| DeviceError {
            message: format!("knet_unix: path {path}: {what}"),
        };
        if !path.starts_with('/') {
            return Err(fault(&"must be an absolute path"));
        }
        let address = SocketAddrUnix::new(path).map_err(|errno| match errno {
            Errno::NAMETOOLONG => fault(&"must have 1 to 108 bytes"),
            other => fault(&other),
        })?;
        let epoll = epoll::create(CreateFlags::CLOEXEC)
            .map(descriptor::settle)
            .map_err(|errno| fault(&errno))?;
        let mut link = Self {
            path: PathBuf::from(path),
            address,
            epoll,
            listener: None,
            peer: None,
            next_tend: Instant::ZERO,
            pause: RETRY_MIN,
            told: None,
            told_refusal: false,
        };
        match link.attempt() {
            Ok(()) | Err(Errno::AGAIN) => Ok(link),
            Err(Errno::EXIST) => Err(fault(&"exists and is not a socket; choose another path")),
            Err(Errno::PROTOTYPE) => Err(fault(
                &"is a socket of another program; choose another path",
            )),
            Err(errno) => Err(fault(&errno)),
        }
    }

    /// Readable while a frame or a new peer waits, and while there is room that was wanted.
    pub(super) fn wait_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    pub(super) fn is_up(&self) -> bool {
        self.peer.is_some()
    }

    /// When [`Link::tend`] has something to do that no descriptor announces.
    pub(super) fn next_tend(&self) -> Option<Instant> {
        self.peer.is_none().then_some(self.next_tend)
    }

    /// Lets a peer in, or looks for one when it is time to.
    pub(super) fn tend(&mut self, now: Instant) {
        if self.listener.is_some() && self.peer.is_none() {
            self.welcome();
        }
        if self.peer.is_some() || now < self.next_tend {
            return;
        }
        if self
            .listener
            .as_ref()
            .is_some_and(|own| !own.is_at(&self.path))
        {
            crate::warn!(
                "device=knet_unix path={} event=made_again reason=\"the socket file was gone\"",
                self.path.display()
            );
            self.listener = None;
        }
        if self.listener.is_some() {
            self.next_tend = now + RETRY_MAX;
            return;
        }
        match self.attempt() {
            Ok(()) => self.told = None,
            Err(errno) => {
                // EAGAIN is a race with another starter, unless it lasts: a program holds the lock.
                let lasts = errno != Errno::AGAIN || self.pause >= RETRY_MAX;
                if lasts && self.told != Some(errno) {
                    crate::warn!(
                        "device=knet_unix path={} event=no_link errno={errno}",
                        self.path.display()
                    );
                    self.told = Some(errno);
                }
                self.retry_later(now);
            }
        }
    }

    /// Fetches one frame. A frame longer than `buffer` is lost.
    pub(super) fn receive(&mut self, now: Instant, buffer: &mut [u8]) -> Received {
        let capacity = buffer.len();
        let flags = RecvFlags::DONTWAIT | RecvFlags::TRUNC;
        while let Some(peer) = &mut self.peer {
            match rustix::net::recv(&peer.socket, &mut *buffer, flags) {
                Ok((_, 0)) => self.lost(now),
                Ok((_, len)) => {
                    peer.proved = true;
                    return if len > capacity {
                        Received::TooLong
                    } else {
                        Received::Frame(len)
                    };
                }
                // It went without reading all that we sent. The kernel says so once, before it gives
                // out what the peer had sent, and then the end.
                Err(Errno::CONNRESET) if !peer.reset => {
                    peer.reset = true;
                    peer.closed_to_us = true;
                    continue;
                }
                Err(Errno::AGAIN) => self.check_listener(),
                Err(Errno::INTR) => {}
                Err(_) => self.lost(now),
            }
            break;
        }
        Received::Nothing
    }

    /// Sends one frame, which is not empty.
    pub(super) fn send(&mut self, frame: &[u8]) -> Sent {
        let Some(peer) = self.peer.as_mut().filter(|peer| !peer.closed_to_us) else {
            return Sent::Down;
        };
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        match rustix::net::send(&peer.socket, frame, flags) {
            Ok(_) => Sent::Gone,
            Err(Errno::AGAIN | Errno::INTR | Errno::NOBUFS | Errno::NOMEM) => Sent::Full,
            Err(Errno::MSGSIZE) => Sent::Refused,
            Err(_) => {
                // Frames that it sent before it went are still to be received.
                peer.closed_to_us = true;
                Sent::Down
            }
        }
    }

    /// Makes the wait descriptor readable also when the socket has room again, or no longer.
    pub(super) fn want_room(&mut self, on: bool) {
        let Some(peer) = self.peer.as_mut().filter(|peer| peer.wants_room != on) else {
            return;
        };
        let flags = if on {
            EventFlags::IN | EventFlags::OUT
        } else {
            EventFlags::IN
        };
        // It cannot fail for a descriptor that is in the set; if it did, the next flush tries again.
        if epoll::modify(
            &self.epoll,
            &peer.socket,
            EventData::new_u64(TAG_PEER),
            flags,
        )
        .is_ok()
        {
            peer.wants_room = on;
        }
    }
}

impl Link {
    /// Connects to whoever listens, or else listens.
    ///
    /// # Errors
    /// EAGAIN: somebody is at it, or its queue is full: try again. EEXIST: the path is no socket.
    fn attempt(&mut self) -> Result<(), Errno> {
        match self.connect() {
            Err(Errno::NOENT | Errno::CONNREFUSED) => {}
            other => return other,
        }
        let folder = self.path.parent().unwrap_or_else(|| Path::new("/"));
        let folder_flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = rustix::fs::open(folder, folder_flags, Mode::empty())?;
        // Released when `folder` is closed, at the end of this function.
        rustix::fs::flock(&folder, FlockOperation::NonBlockingLockExclusive)?;
        match self.connect() {
            Err(Errno::NOENT) => {}
            Err(Errno::CONNREFUSED) => self.remove_stale()?,
            other => return other,
        }
        self.listen()
    }

    fn connect(&mut self) -> Result<(), Errno> {
        let socket = new_socket()?;
        rustix::net::connect(&socket, &self.address)?;
        self.adopt(socket)
    }

    /// Nobody listens at the file. It goes, unless it is something else than a socket (which also
    /// refuses connections).
    fn remove_stale(&self) -> Result<(), Errno> {
        let status = rustix::fs::lstat(&self.path)?;
        if FileType::from_raw_mode(status.st_mode) != FileType::Socket {
            return Err(Errno::EXIST);
        }
        rustix::fs::unlink(&self.path)
    }

    fn listen(&mut self) -> Result<(), Errno> {
        let socket = new_socket()?;
        rustix::net::bind(&socket, &self.address)?;
        let status = rustix::fs::lstat(&self.path)?;
        let listener = Listener {
            socket,
            file: (status.st_dev, status.st_ino),
        };
        rustix::net::listen(&listener.socket, 1)?;
        let tag = EventData::new_u64(TAG_LISTENER);
        epoll::add(&self.epoll, &listener.socket, tag, EventFlags::IN)?;
        self.listener = Some(listener);
        Ok(())
    }

    /// Makes `socket` the peer.
    fn adopt(&mut self, socket: OwnedFd) -> Result<(), Errno> {
        // Only throughput depends on it, and the kernel caps it silently.
        let _ = rustix::net::sockopt::set_socket_send_buffer_size(&socket, SEND_BUFFER_BYTES);
        epoll::add(
            &self.epoll,
            &socket,
            EventData::new_u64(TAG_PEER),
            EventFlags::IN,
        )?;
        self.peer = Some(Peer {
            socket,
            proved: false,
            closed_to_us: false,
            reset: false,
            wants_room: false,
        });
        Ok(())
    }

    /// Looks, without a peer's frame at hand, whether somebody waits at the listener.
    fn check_listener(&mut self) {
        if self.listener.is_none() {
            return;
        }
        let mut events = [Event {
            flags: EventFlags::empty(),
            data: EventData::new_u64(0),
        }; 2];
        let at_once = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // An error here can only be EINTR: the next burst looks again.
        let ready = epoll::wait(&self.epoll, &mut events, Some(&at_once)).unwrap_or(0);
        let knocked = events
            .iter()
            .take(ready)
            .any(|event| event.data.u64() == TAG_LISTENER);
        if knocked {
            self.welcome();
        }
    }

    /// Takes one connection off the listener. The link carries two: a third is turned away, because
    /// left waiting it would believe that the link is up.
    fn welcome(&mut self) {
        let Some(listener) = &self.listener else {
            return;
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = match rustix::net::accept_with(&listener.socket, flags) {
            Ok(socket) => descriptor::settle(socket),
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => return,
            Err(errno) => {
                if self.told != Some(errno) {
                    crate::warn!(
                        "device=knet_unix path={} event=peer_not_accepted errno={errno}",
                        self.path.display()
                    );
                    self.told = Some(errno);
                }
                return;
            }
        };
        if self.peer.is_none() {
            if let Err(errno) = self.adopt(socket) {
                crate::warn!(
                    "device=knet_unix path={} event=peer_lost errno={errno}",
                    self.path.display()
                );
            }
        } else if !self.told_refusal {
            crate::warn!(
                "device=knet_unix path={} event=peer_turned_away reason=\"it is the third\"",
                self.path.display()
            );
            self.told_refusal = true;
        }
    }

    /// The peer is gone and all its frames were received.
    fn lost(&mut self, now: Instant) {
        let proved = self.peer.take().is_some_and(|peer| peer.proved);
        if proved || self.listener.is_some() {
            self.pause = RETRY_MIN;
            self.next_tend = now;
        } else {
            self.retry_later(now);
        }
    }

    fn retry_later(&mut self, now: Instant) {
        self.next_tend = now + self.pause;
        self.pause = (self.pause * 2).min(RETRY_MAX);
    }
}

impl Drop for Link {
    /// Removes the file while the listener still listens, so that it is certainly ours.
    fn drop(&mut self) {
        if let Some(listener) = &self.listener
            && listener.is_at(&self.path)
            && let Err(errno) = rustix::fs::unlink(&self.path)
        {
            crate::warn!(
                "device=knet_unix path={} event=not_removed errno={errno}",
                self.path.display()
            );
        }
    }
}

impl Listener {
    fn is_at(&self, path: &Path) -> bool {
        rustix::fs::lstat(path).is_ok_and(|status| (status.st_dev, status.st_ino) == self.file)
    }
}

fn new_socket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        .map(descriptor::settle)
}
