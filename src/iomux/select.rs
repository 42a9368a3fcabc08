//! select(2) and pselect(2), over [`super::poll()`].

use core::time::Duration;

use super::poll::{PollEntry, Target, poll};
use super::scratch::Scratch;
use crate::attach::Link;
use crate::errno::{Errno, Result};
use crate::ffi::wait::SignalMask;
use crate::time::monotonic;

/// The descriptor sets, 64 descriptors a word; None = not given.
#[derive(Debug)]
pub struct Sets<'a> {
    /// `readfds`.
    pub read: Option<&'a mut [u64]>,
    /// `writefds`.
    pub write: Option<&'a mut [u64]>,
    /// `exceptfds`.
    pub except: Option<&'a mut [u64]>,
}

/// Linux' POLLIN_SET.
const READ: i16 = 0x001 | 0x040 | 0x080 | 0x010 | 0x008;
/// Linux' POLLOUT_SET.
const WRITE: i16 = 0x200 | 0x100 | 0x004 | 0x008;
/// Linux' POLLEX_SET.
const EXCEPT: i16 = 0x002;
const NVAL: i16 = 0x020;

fn has(set: Option<&[u64]>, fd: u32) -> bool {
    set.and_then(|set| set.get(fd as usize / 64))
        .is_some_and(|word| word & (1 << (fd % 64)) != 0)
}

fn put(set: Option<&mut [u64]>, fd: u32, on: bool) -> usize {
    let Some(word) = set.and_then(|set| set.get_mut(fd as usize / 64)) else {
        return 0;
    };
    let bit = 1 << (fd % 64);
    *word = if on { *word | bit } else { *word & !bit };
    usize::from(on)
}

impl Sets<'_> {
    /// What is asked of `fd`, as poll events.
    fn asked(&self, fd: u32) -> i16 {
        let mut events = 0;
        for (set, bits) in [
            (&self.read, READ),
            (&self.write, WRITE),
            (&self.except, EXCEPT),
        ] {
            if has(set.as_deref(), fd) {
                events |= bits;
            }
        }
        events
    }

    /// Replaces what was asked of `fd` by what was found; returns the bits set.
    fn answer(&mut self, fd: u32, found: i16) -> usize {
        let mut count = 0;
        for (set, bits) in [
            (&mut self.read, READ),
            (&mut self.write, WRITE),
            (&mut self.except, EXCEPT),
        ] {
            if has(set.as_deref(), fd) {
                count += put(set.as_deref_mut(), fd, found & bits != 0);
            }
        }
        count
    }
}

/// Waits until a descriptor below `count` in one of the sets is ready. `target` says what a descriptor is. Returns
/// the number of bits set; the sets are untouched on an error.
///
/// # Errors
/// EBADF for a closed descriptor, EINTR, ENOMEM, EINVAL.
pub fn select(
    link: &Link,
    count: u32,
    sets: &mut Sets<'_>,
    target: &dyn Fn(i32) -> Target,
    timeout: Option<Duration>,
    sigmask: Option<SignalMask>,
) -> Result<usize> {
    let asked = (0..count).filter(|&fd| sets.asked(fd) != 0).count();
    let nothing = PollEntry {
        target: Target::Kernel(-1),
        events: 0,
        revents: 0,
    };
    let mut scratch = Scratch::filled(asked, nothing)?;
    let entries = scratch.as_mut_slice();
    let wanted = (0..count)
        .map(|fd| (fd, sets.asked(fd)))
        .filter(|(_, events)| *events != 0);
    for (entry, (fd, events)) in entries.iter_mut().zip(wanted) {
        entry.target = target(i32::try_from(fd).map_err(|_| Errno::INVAL)?);
        entry.events = events;
    }
    let is_look = timeout == Some(Duration::ZERO);
    let deadline = timeout
        .filter(|_| !is_look)
        .map(|timeout| monotonic() + timeout);
    loop {
        let left = match deadline {
            Some(deadline) => Some(deadline.since(monotonic())),
            None => timeout,
        };
        let events = poll(link, entries, left, sigmask)?;
        if entries.iter().any(|entry| entry.revents & NVAL != 0) {
            return Err(Errno::BADF);
        }
        let mut silenced = false;
        for entry in &mut *entries {
            // ERR and HUP come unasked and are no answer to a question about exceptfds: not asked about again.
            if entry.revents != 0 && entry.events == EXCEPT && entry.revents & EXCEPT == 0 {
                entry.target = Target::Kernel(-1);
                entry.revents = 0;
                silenced = true;
            }
        }
        let is_answered = entries.iter().any(|entry| entry.revents != 0);
        if is_answered || events == 0 || is_look || !silenced {
            break;
        }
    }
    let mut found = entries.iter();
    let mut bits = 0;
    for fd in 0..count {
        if sets.asked(fd) != 0
            && let Some(entry) = found.next()
        {
            bits += sets.answer(fd, entry.revents);
        }
    }
    Ok(bits)
}
