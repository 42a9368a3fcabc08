//! A way to the system's host that outlives the rights by which it was opened.
//!
//! A daemon that is started with the group of the host gives its groups up before it makes its first socket (memcached:
//! setgroups(0), setuid). It is connected before that, and says nothing until a socket needs the host.

use core::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use super::handshake;
use crate::ffi::descriptor;
use crate::rendezvous::{self, Path};
use crate::thread;

/// A connected socket that has not said Hello; -1 = none.
static DOOR: AtomicI32 = AtomicI32::new(-1);
/// Whose it is: a forked child would say its parent's Hello.
static OWNER: AtomicU32 = AtomicU32::new(0);

/// Connects to the host of the system, where one listens and lets this process in now. Its first call counts.
pub(super) fn open() {
    if DOOR.load(Ordering::Acquire) >= 0 {
        return;
    }
    let Ok(path) = Path::new(rendezvous::SYSTEM_SOCKET.to_bytes()) else {
        return;
    };
    // Whatever is in the way now is told when a socket needs the host.
    let Ok(Some(socket)) = handshake::connect(&path) else {
        return;
    };
    thread::remember_process();
    OWNER.store(thread::process(), Ordering::Relaxed);
    if DOOR
        .compare_exchange(-1, socket, Ordering::AcqRel, Ordering::Relaxed)
        .is_err()
    {
        descriptor::close(socket);
    }
}

/// The socket, once; None when this process has opened none.
pub(super) fn take() -> Option<i32> {
    let socket = DOOR.swap(-1, Ordering::AcqRel);
    if socket < 0 {
        return None;
    }
    if OWNER.load(Ordering::Relaxed) == thread::process() {
        return Some(socket);
    }
    descriptor::close(socket);
    None
}
