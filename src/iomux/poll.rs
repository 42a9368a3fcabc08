//! poll(2) and ppoll(2).

use core::time::Duration;

use super::nested;
use super::scratch::Scratch;
use crate::attach::{Link, Object};
use crate::errno::{Errno, Result};
use crate::ffi::wait::{PollFd, SignalMask};
use crate::progress::Drive;
use crate::readiness::event;
use crate::socket::state;
use crate::time::monotonic;
use crate::waiter::{self, OWN, Wake, Watch};

/// What an entry asks about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target {
    /// A kernel descriptor; negative = skipped.
    Kernel(i32),
    /// An accelerated socket.
    Object(Object),
    /// A wildcard listener: the stack's half and its kernel twin.
    Both(Object, i32),
}

/// An entry of poll(2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PollEntry {
    /// What it asks about.
    pub target: Target,
    /// Events asked for.
    pub events: i16,
    /// Events found.
    pub revents: i16,
}

impl PollEntry {
    const fn object(&self) -> Option<Object> {
        match self.target {
            Target::Object(object) | Target::Both(object, _) => Some(object),
            Target::Kernel(_) => None,
        }
    }

    const fn kernel(&self) -> Option<i32> {
        match self.target {
            Target::Kernel(fd) | Target::Both(_, fd) => Some(fd),
            Target::Object(_) => None,
        }
    }

    /// What is true of the object's half and asked for; ERR and HUP always are.
    fn found(&self, link: &Link) -> i16 {
        let Some(object) = self.object() else {
            return 0;
        };
        let asked =
            u32::from(u16::from_ne_bytes(self.events.to_ne_bytes())) | event::ERR | event::HUP;
        u16::try_from(state::bits(link, object) & asked)
            .map_or(0, |bits| i16::from_ne_bytes(bits.to_ne_bytes()))
    }
}

/// More entries than this are checked against RLIMIT_NOFILE; fewer are allowed under any sensible limit.
const UNCHECKED_ENTRIES: usize = 64;

/// Waits until an entry has events, `timeout` is over (None = never) or a handler has run. Returns the number of entries
/// with events; 0 before the time-out when the host is gone and there is nothing to report: an entry may be another host's
/// by now.
///
/// # Errors
/// EINVAL for more entries than descriptors are allowed (poll(2)), EINTR, ENOMEM.
pub fn poll(
    link: &Link,
    entries: &mut [PollEntry],
    timeout: Option<Duration>,
    sigmask: Option<SignalMask>,
) -> Result<usize> {
    if entries.len() > UNCHECKED_ENTRIES {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let count = u64::try_from(entries.len()).unwrap_or(u64::MAX);
        if limit.is_some_and(|limit| count > limit) {
            return Err(Errno::INVAL);
        }
    }
    let is_look = timeout == Some(Duration::ZERO);
    let deadline = timeout
        .filter(|_| !is_look)
        .map(|timeout| monotonic() + timeout);
    let kernel = entries.iter().filter_map(PollEntry::kernel).count();
    let mut scratch = Scratch::filled(OWN + kernel, PollFd::default())?;
    let fds = scratch.as_mut_slice();
    let theirs = fds.get_mut(OWN..).unwrap_or(&mut []);
    for (fd, entry) in theirs
        .iter_mut()
        .zip(entries.iter().filter(|entry| entry.kernel().is_some()))
    {
        fd.fd = entry.kernel().unwrap_or(-1);
        fd.events = entry.events;
    }
    let mut wake = None;
    let mut drive = Drive::new();
    link.look();
    loop {
        if is_look || entries.iter().any(|entry| entry.found(link) != 0) {
            drive.turn_once();
        }
        let is_ready = entries.iter().any(|entry| entry.found(link) != 0);
        if is_look || is_ready || wake.is_some() {
            let theirs = fds.get_mut(OWN..).unwrap_or(&mut []);
            // An epoll among them may have been readable for nothing.
            nested::settle_all(link);
            let is_answered = wake == Some(Wake::Kernel) && !nested::any();
            let must_look = !is_answered && !theirs.is_empty();
            if must_look || (is_look && sigmask.is_some()) {
                match waiter::sleep::look(theirs, sigmask.filter(|_| !is_ready)) {
                    // What is ready goes before the signal.
                    Err(Errno::INTR) if is_ready => {}
                    other => {
                        other?;
                    }
                }
            }
            let count = report(link, entries, theirs);
            if count > 0 || is_look || matches!(wake, Some(Wake::Timeout | Wake::HostDead)) {
                return Ok(count);
            }
        }
        let shared = &*entries;
        let mut ready = || shared.iter().any(|entry| entry.found(link) != 0);
        let each = |visit: &mut dyn FnMut(Object)| {
            shared.iter().filter_map(PollEntry::object).for_each(visit);
        };
        let watch = Watch::Each(&each);
        let woken = waiter::sleep(link, watch, fds, deadline, sigmask, &mut ready, &mut drive);
        match woken {
            Wake::Interrupted => return Err(Errno::INTR),
            Wake::Failed(error) => return Err(error),
            other => wake = Some(other),
        }
    }
}

/// Writes what was found into the entries; returns how many have something.
fn report(link: &Link, entries: &mut [PollEntry], theirs: &[PollFd]) -> usize {
    let mut theirs = theirs.iter();
    let mut count = 0;
    for entry in entries {
        entry.revents = entry.found(link);
        if entry.kernel().is_some()
            && let Some(fd) = theirs.next()
        {
            entry.revents |= fd.revents;
        }
        count += usize::from(entry.revents != 0);
    }
    count
}

#[cfg(test)]
mod tests;
