//! The eventfds of heralds ([`crate::readiness::herald`]): one an epoll that is nested or polled, shared by all processes that
//! were forked since.

use core::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd};
use rustix::time::Timespec;

use super::slot::write_eventfd;
use crate::attach::{self, Link};
use crate::channel::cell::herald;
use crate::channel::layout::EPOLLS;
use crate::channel::sync::Ordering as ChannelOrdering;
use crate::errno::Result;
use crate::ffi::descriptor;
use crate::ffi::number_limit::with_room;
use crate::readiness::herald::{Eventfd, slot};

/// The eventfd of each epoll's herald + 1, as this process knows it; 0 = none.
static EVENTFDS: [AtomicI32; EPOLLS as usize] = [const { AtomicI32::new(0) }; EPOLLS as usize];
/// How many of them there are.
static KNOWN: AtomicU32 = AtomicU32::new(0);

/// A herald's eventfd.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HeraldFd(i32);

/// Whether this process knows any herald: most never do.
#[inline]
#[must_use]
pub fn any() -> bool {
    KNOWN.load(Ordering::Relaxed) != 0
}

/// The herald of `epoll`.
#[must_use]
pub fn of(epoll: u32) -> Option<HeraldFd> {
    let word = EVENTFDS.get(epoll as usize)?.load(Ordering::Acquire);
    word.checked_sub(1).filter(|fd| *fd >= 0).map(HeraldFd)
}

/// Visits the epolls whose herald this process knows.
pub fn for_each(mut visit: impl FnMut(u32, HeraldFd)) {
    if any() {
        for (epoll, _) in (0..).zip(&EVENTFDS) {
            if let Some(fd) = of(epoll) {
                visit(epoll, fd);
            }
        }
    }
}

/// Makes the herald of `epoll`, at an internal number.
///
/// # Errors
/// EMFILE, ENFILE, ENOMEM.
pub fn make(epoll: u32) -> Result<HeraldFd> {
    let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
    let made = with_room(|| descriptor::internalize(eventfd(0, flags)?))?;
    keep(epoll, made)
}

/// Learns the herald of `epoll` from the host: another process has made it.
///
/// # Errors
/// ENOENT when the host does not know it yet, and what else [`attach::herald`] says.
pub fn learn(link: &Link, epoll: u32) -> Result<HeraldFd> {
    keep(epoll, attach::herald(link, epoll)?)
}

fn keep(epoll: u32, fd: i32) -> Result<HeraldFd> {
    let Some(place) = EVENTFDS.get(epoll as usize) else {
        descriptor::close(fd);
        return Err(crate::errno::Errno::BADF);
    };
    let fresh = fd.saturating_add(1);
    match place.compare_exchange(0, fresh, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => {
            KNOWN.fetch_add(1, Ordering::Relaxed);
            Ok(HeraldFd(fd))
        }
        Err(other) => {
            descriptor::close(fd);
            Ok(HeraldFd(other.saturating_sub(1)))
        }
    }
}

/// This process has no descriptor of `epoll` any more.
pub fn forget(epoll: u32) {
    let word = EVENTFDS
        .get(epoll as usize)
        .map_or(0, |place| place.swap(0, Ordering::AcqRel));
    if word != 0 {
        KNOWN.fetch_sub(1, Ordering::Relaxed);
        descriptor::close(word.saturating_sub(1));
    }
}

/// Tells the host the eventfd.
///
/// # Errors
/// What sendmsg says; the herald must not be armed then.
pub fn register(link: &Link, epoll: u32, fd: HeraldFd) -> Result<()> {
    link.register_waiter(slot(epoll), fd.0)
}

/// Writes the herald of `epoll`, which the caller has rung: at once when this process knows it, else the host is asked to.
pub(super) fn wake(link: &Link, epoll: u32) {
    if let Some(fd) = of(epoll) {
        fd.write();
    } else if let Some(cell) = link.control.epoll(epoll) {
        // Given back, so that the host rings it. Who has settled it meanwhile has seen why.
        let _ = cell.herald.compare_exchange(
            herald::RUNG,
            herald::DIRTY,
            ChannelOrdering::SeqCst,
            ChannelOrdering::Relaxed,
        );
        link.kick(epoll);
    }
}

/// How long a writer that has said it will write is waited for.
const WRITE_TIME: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 2_000_000,
};

impl HeraldFd {
    /// Its number.
    #[must_use]
    pub const fn number(self) -> i32 {
        self.0
    }

    fn is_readable_within(self, span: &Timespec) -> bool {
        // Interrupted: it is written once more, which tells nothing that is not true.
        descriptor::lend(self.0).is_ok_and(|fd| {
            let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
            rustix::event::poll(&mut fds, Some(span)) == Ok(1)
        })
    }
}

impl Eventfd for HeraldFd {
    fn write(&self) {
        write_eventfd(self.0);
    }

    fn drain(&self) {
        let mut count = [0; 8];
        // EAGAIN: it was not readable.
        if let Ok(fd) = descriptor::lend(self.0) {
            let _ = rustix::io::read(fd, &mut count);
        }
    }

    fn await_write(&self) {
        if !self.is_readable_within(&WRITE_TIME) {
            self.write();
        }
    }
}
