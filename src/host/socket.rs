//! Control sockets: messages with their descriptors, and who sits at the other end.

use core::mem::MaybeUninit;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, UCred,
};

use crate::channel::message::{DESCRIPTORS_MAX, HEAD_BYTES, Message, TEXT_BYTES};
use crate::errno::{Errno, Result};
use crate::ffi::descriptor;

/// A received message with its descriptors.
#[derive(Debug)]
pub(super) struct Received {
    bytes: [u8; HEAD_BYTES + TEXT_BYTES],
    len: usize,
    /// What rode along, close-on-exec.
    pub(super) descriptors: Vec<OwnedFd>,
    /// Who sent it, where the socket tells it (SO_PASSCRED).
    pub(super) sender: Sender,
}

/// Who has sent a message, by what the kernel says.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Sender {
    /// The process, as we see it.
    pub(super) process: Option<u32>,
    /// Its user.
    pub(super) user: Option<u32>,
}

impl Received {
    /// The bytes, to be parsed.
    pub(super) fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or(&[])
    }
}

/// Fetches a message without waiting; None = there is none now.
///
/// # Errors
/// ECONNRESET when the other end is gone, else what recvmsg says.
pub(super) fn receive(socket: BorrowedFd<'_>) -> Result<Option<Received>> {
    let mut received = Received {
        bytes: [0; HEAD_BYTES + TEXT_BYTES],
        len: 0,
        descriptors: Vec::new(),
        sender: Sender::default(),
    };
    let mut space =
        [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX), ScmCredentials(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut part = [IoSliceMut::new(&mut received.bytes)];
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    // The other end of what comes may be a child that is about to be made: it must not inherit this one.
    let settling = descriptor::settling();
    let message = match rustix::net::recvmsg(socket, &mut part, &mut ancillary, flags) {
        Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
        other => other?,
    };
    for one in ancillary.drain() {
        match one {
            RecvAncillaryMessage::ScmRights(fds) => {
                received.descriptors.extend(fds.map(descriptor::settle));
            }
            RecvAncillaryMessage::ScmCredentials(sender) => {
                received.sender = Sender {
                    process: u32::try_from(sender.pid.as_raw_pid()).ok(),
                    user: Some(sender.uid.as_raw()),
                };
            }
            _ => {}
        }
    }
    drop(settling);
    if message.bytes == 0 {
        return Err(Errno::CONNRESET);
    }
    received.len = message.bytes;
    Ok(Some(received))
}

/// Sends a message with descriptors. Never waits: a client that does not read loses its socket.
///
/// # Errors
/// EAGAIN when the client does not read, EPIPE when it is gone.
pub(super) fn send(
    socket: BorrowedFd<'_>,
    message: &Message<'_>,
    descriptors: &[BorrowedFd<'_>],
) -> Result<()> {
    let mut buffer = [0; HEAD_BYTES + TEXT_BYTES];
    let bytes = message.emit(&mut buffer);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(Errno::NOBUFS);
    }
    let part = [IoSlice::new(bytes)];
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    loop {
        match rustix::net::sendmsg(socket, &part, &mut ancillary, flags) {
            Err(Errno::INTR) => {}
            other => return other.map(|_| ()),
        }
    }
}

/// Who made the other end of `socket`.
///
/// # Errors
/// What getsockopt(SO_PEERCRED) says.
pub(super) fn peer(socket: BorrowedFd<'_>) -> Result<UCred> {
    rustix::net::sockopt::socket_peercred(socket)
}

/// Makes sure that a descriptor from a client is an eventfd that never blocks a writer.
///
/// # Errors
/// EINVAL when it is anything else.
pub(super) fn checked_eventfd(fd: OwnedFd) -> Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&fd));
    let target = rustix::fs::readlink(path, Vec::new())?;
    if target.as_bytes() != b"anon_inode:[eventfd]" {
        return Err(Errno::INVAL);
    }
    let flags = rustix::fs::fcntl_getfl(fd.as_fd())?;
    rustix::fs::fcntl_setfl(fd.as_fd(), flags | rustix::fs::OFlags::NONBLOCK)?;
    Ok(fd)
}

/// Makes sure that a descriptor from a client is a pipe that never blocks a writer.
///
/// # Errors
/// EINVAL when it is anything else.
pub(super) fn checked_pipe(fd: OwnedFd) -> Result<OwnedFd> {
    let kind = rustix::fs::FileType::from_raw_mode(rustix::fs::fstat(fd.as_fd())?.st_mode);
    let flags = rustix::fs::fcntl_getfl(fd.as_fd())?;
    if kind != rustix::fs::FileType::Fifo || !flags.contains(rustix::fs::OFlags::RDWR) {
        return Err(Errno::INVAL);
    }
    rustix::fs::fcntl_setfl(fd.as_fd(), flags | rustix::fs::OFlags::NONBLOCK)?;
    Ok(fd)
}
