//! A host inside this process (`common.progress: "inline"`): who can start one, and the socket that leads to it.

use std::os::fd::OwnedFd;
use std::sync::OnceLock;

use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::errno::{Errno, Result};
use crate::ffi::descriptor;
use crate::progress;

/// Starts a host on a thread of ours, which finds its first client at the other end of this socket.
pub type Starter = fn(OwnedFd) -> Result<()>;

static STARTER: OnceLock<Starter> = OnceLock::new();

/// Names who starts hosts inside this process; the preloaded object does, when it is loaded. A later call changes nothing.
pub fn offer(starter: Starter) {
    let _ = STARTER.set(starter);
}

/// Whether this process can have a host inside. It cannot twice, nor as the child of one that had: DPDK starts once.
#[must_use]
pub fn is_possible() -> bool {
    STARTER.get().is_some() && !progress::was_here()
}

/// Starts one; returns our end of its control socket (internal).
///
/// # Errors
/// EBUSY when the loader's lock is held, EMFILE, EAGAIN.
pub(super) fn start() -> Result<i32> {
    let starter = STARTER.get().ok_or(Errno::NOSYS)?;
    let (ours, theirs) = rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )?;
    descriptor::share_table();
    let ours = descriptor::internalize(ours);
    let started = starter(descriptor::settle(theirs));
    match (ours, started) {
        (Ok(ours), Ok(())) => Ok(ours),
        (Ok(ours), Err(error)) => {
            descriptor::close(ours);
            Err(error)
        }
        (Err(error), _) => Err(error),
    }
}
