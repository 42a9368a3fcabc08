//! Slots: who sleeps, and the eventfd that wakes him.
//!
//! A slot's `user` is (process, thread), and whether that thread sleeps; it is taken by compare-and-swap. Between two sleeps a
//! thread finds its slot again, unless another one needed it: when all are taken, those of threads that do not sleep are
//! nobody's. Nobody tells when a thread ends, so its slot and eventfd go to the next thread of the process that needs one.

use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;

use rustix::event::{EventfdFlags, eventfd};

use super::counters::COUNTERS;
use crate::attach::Link;
use crate::attach::link::PLACES;
use crate::channel::cell::SlotCell;
use crate::channel::layout::SLOTS;
use crate::errno::Result;
use crate::ffi::number_limit::with_room;
use crate::ffi::{descriptor, process};
use crate::time::monotonic;
use crate::{readiness, thread};

/// Per link and slot: the process (bits 32 to 63) and the eventfd + 1; 0 = none.
static EVENTFDS: [[AtomicU64; SLOTS as usize]; PLACES] =
    [const { [const { AtomicU64::new(0) }; SLOTS as usize] }; PLACES];

fn entry(link: &Link, slot: u32) -> Option<&'static AtomicU64> {
    EVENTFDS.get(link.place() as usize)?.get(slot as usize)
}

/// The eventfd that this process made for `slot`, or None.
fn known_eventfd(link: &Link, slot: u32) -> Option<i32> {
    let word = entry(link, slot)?.load(Ordering::Relaxed);
    if word >> 32 != u64::from(thread::process()) {
        return None;
    }
    i32::try_from((word & 0xffff_ffff).checked_sub(1)?).ok()
}

/// The slot of the calling thread.
#[derive(Debug)]
pub(super) struct Slot<'a> {
    pub(super) index: u32,
    pub(super) cell: &'a SlotCell,
    pub(super) eventfd: i32,
    /// It is a sleep inside another one (of a signal handler), which goes on with it.
    is_nested: bool,
}

/// Among the bits of [`SlotCell::user`]: the thread sleeps, and nobody may take the slot while it lives.
const SLEEPS: u64 = 1 << 31;

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        if !self.is_nested {
            let me = user(thread::process(), thread::id());
            // A slot that is not ours any more stays as it is.
            let _ = self.cell.user.compare_exchange(
                me | SLEEPS,
                me,
                Ordering::Release,
                Ordering::Relaxed,
            );
        }
    }
}

impl<'a> Slot<'a> {
    /// The calling thread's slot, taken now if it has none; None when there is none left, or no eventfd for it.
    pub(super) fn take(link: &'a Link) -> Option<Self> {
        let me = user(thread::process(), thread::id());
        let mine = thread::slot()
            .and_then(|index| Some((index, link.control.slot(index)?)))
            .and_then(|(index, cell)| Some((index, cell, resume(cell, me)?)));
        let (index, cell, is_nested) = match mine {
            Some(found) => found,
            None => claim(link, me | SLEEPS).map(|(index, cell)| (index, cell, false))?,
        };
        thread::set_slot(Some(index));
        let eventfd = match known_eventfd(link, index) {
            Some(fd) => fd,
            None => match open_eventfd(link, index) {
                Ok(fd) => fd,
                Err(error) => {
                    crate::debug!("event=no_waiter_eventfd slot={index} error={error:?}");
                    cell.user.store(0, Ordering::Release);
                    thread::set_slot(None);
                    return None;
                }
            },
        };
        Some(Self {
            index,
            cell,
            eventfd,
            is_nested,
        })
    }

    /// Makes the eventfd unreadable again.
    pub(super) fn drain(&self) {
        let mut count = [0; 8];
        // EAGAIN: somebody has taken the flag and not written yet; the next sleep then ends at once and looks again.
        if let Ok(fd) = descriptor::lend(self.eventfd) {
            let _ = rustix::io::read(fd, &mut count);
        }
    }

    /// The number was closed behind our back: the next [`Slot::take`] makes another.
    pub(super) fn forget_eventfd(&self, link: &Link) {
        if let Some(entry) = entry(link, self.index) {
            entry.store(0, Ordering::Relaxed);
        }
    }
}

fn user(process: u32, thread: u32) -> u64 {
    u64::from(process) << 32 | u64::from(thread)
}

/// Takes a slot that was the thread's at its last sleep; says whether it sleeps there already, None when it is another's.
fn resume(cell: &SlotCell, me: u64) -> Option<bool> {
    match cell
        .user
        .compare_exchange(me, me | SLEEPS, Ordering::Acquire, Ordering::Relaxed)
    {
        Ok(_) => Some(false),
        Err(now) if now == me | SLEEPS => Some(true),
        Err(_) => None,
    }
}

/// While this lies in the future (nanoseconds of the monotonic clock) no slot is looked for: all were taken, and finding
/// that out asks the kernel about each of their threads.
static FULL_UNTIL: [AtomicU64; PLACES] = [const { AtomicU64::new(0) }; PLACES];
/// How long an empty pool is believed to stay empty.
const FULL_FOR: Duration = Duration::from_millis(50);

fn claim(link: &Link, me: u64) -> Option<(u32, &SlotCell)> {
    let full_until = FULL_UNTIL.get(link.place() as usize)?;
    let now = monotonic();
    if now.nanos() < full_until.load(Ordering::Relaxed) {
        return None;
    }
    let found = find(link, me);
    let Some((index, cell, before)) = found else {
        full_until.store((now + FULL_FOR).nanos(), Ordering::Relaxed);
        return None;
    };
    if before >> 32 != me >> 32 {
        // It was in other hands: the host has another eventfd for it, or none.
        drop_eventfd(link, index);
    }
    cell.generation.fetch_add(1, Ordering::Relaxed);
    cell.depth.store(0, Ordering::Relaxed);
    cell.sleeping.store(0, Ordering::SeqCst);
    Some((index, cell))
}

/// A slot that is ours from now on, and its user before.
fn find(link: &Link, me: u64) -> Option<(u32, &SlotCell, u64)> {
    let cells = || (0..SLOTS).filter_map(|index| Some((index, link.control.slot(index)?)));
    let ours = |(index, _): &(u32, &SlotCell)| known_eventfd(link, *index).is_some();
    let dead = |(index, cell)| Some((index, cell, take_if(cell, me, is_gone)?));
    let free = |(index, cell)| Some((index, cell, take_if(cell, me, |old| old == 0)?));
    let idle = |(index, cell)| Some((index, cell, take_if(cell, me, |old| old & SLEEPS == 0)?));
    // Of this process first: the eventfd is there and known to the host.
    cells()
        .filter(ours)
        .find_map(dead)
        .or_else(|| cells().find_map(free))
        .or_else(|| cells().filter(ours).find_map(idle))
        .or_else(|| cells().find_map(dead))
        .or_else(|| cells().find_map(idle))
}

/// Whether the user of a slot is a thread that has ended.
fn is_gone(user: u64) -> bool {
    let process = u32::try_from(user >> 32).unwrap_or(0);
    let thread = u32::try_from(user & !SLEEPS & 0xffff_ffff).unwrap_or(0);
    user == 0 || !process::thread_lives(process, thread)
}

/// Takes a slot whose user is one of those; returns that user.
fn take_if(cell: &SlotCell, me: u64, is_one: impl FnOnce(u64) -> bool) -> Option<u64> {
    let old = cell.user.load(Ordering::Relaxed);
    if old == me || !is_one(old) {
        return None;
    }
    cell.user
        .compare_exchange(old, me, Ordering::AcqRel, Ordering::Relaxed)
        .ok()?;
    if old != 0 {
        COUNTERS.slots_taken_over.raise();
    }
    Some(old)
}

/// Closes the eventfd that this process had for `slot`.
fn drop_eventfd(link: &Link, slot: u32) {
    let known = known_eventfd(link, slot);
    if let (Some(fd), Some(entry)) = (known, entry(link, slot)) {
        entry.store(0, Ordering::Relaxed);
        descriptor::close(fd);
    }
}

/// Makes an eventfd at an internal number and tells it to the host.
fn open_eventfd(link: &Link, slot: u32) -> Result<i32> {
    let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
    let fd = with_room(|| descriptor::internalize(eventfd(0, flags)?))?;
    if let Err(error) = link.register_waiter(slot, fd) {
        descriptor::close(fd);
        return Err(error);
    }
    if let (Some(entry), Ok(number)) = (entry(link, slot), u64::try_from(fd)) {
        let word = u64::from(thread::process()) << 32 | (number + 1);
        entry.store(word, Ordering::Relaxed);
    }
    Ok(fd)
}

/// Lets a test believe that the eventfd of `slot` is `fd`.
#[cfg(test)]
pub(super) fn pretend_eventfd(link: &Link, slot: u32, fd: u32) {
    let word = u64::from(thread::process()) << 32 | u64::from(fd + 1);
    entry(link, slot).unwrap().store(word, Ordering::Relaxed);
}

/// Writes the eventfd of `slot`, whose `sleeping` the caller has taken: at once when this process made it, else the host
/// is asked to. Or that of a herald, which the caller has rung.
pub fn wake(link: &Link, slot: u32) {
    if let Some(epoll) = readiness::herald::epoll(slot) {
        return super::herald::wake(link, epoll);
    }
    let user = link
        .control
        .slot(slot)
        .map_or(0, |cell| cell.user.load(Ordering::Relaxed));
    let ours = user >> 32 == u64::from(thread::process());
    if let Some(fd) = known_eventfd(link, slot).filter(|_| ours) {
        write_eventfd(fd);
    } else if let Some(lcore) = readiness::kick_slot(&link.control, slot) {
        link.wake_lcore(lcore);
    }
}

pub(super) fn write_eventfd(fd: i32) {
    // An eventfd that cannot be written is full, so it is readable; or closed behind our back, and its owner finds out.
    if let Ok(fd) = descriptor::lend(fd) {
        let _ = rustix::io::write(fd, &1_u64.to_ne_bytes());
    }
}

/// Closes the eventfds that this process made for the link at `place`, whose host died, and whose successor's died too: nobody
/// sleeps on them any more.
pub fn forget_link_eventfds(place: u32) {
    let mine = u64::from(thread::process());
    for entry in EVENTFDS.get(place as usize).into_iter().flatten() {
        let word = entry.load(Ordering::Relaxed);
        if word != 0 && word >> 32 == mine {
            entry.store(0, Ordering::Relaxed);
            if let Ok(fd) = i32::try_from((word & 0xffff_ffff).saturating_sub(1)) {
                descriptor::close(fd);
            }
        }
    }
}

/// Frees the slots that the program before this one had in the same process: nobody sleeps on them, and their threads seem to
/// live.
pub fn forget_predecessors_slots(link: &Link) {
    let mine = u64::from(thread::process());
    for cell in (0..SLOTS).filter_map(|slot| link.control.slot(slot)) {
        let user = cell.user.load(Ordering::Acquire);
        if user >> 32 == mine {
            // Taken over meanwhile: not ours any more.
            let _ = cell
                .user
                .compare_exchange(user, 0, Ordering::AcqRel, Ordering::Relaxed);
        }
    }
}

/// Closes the eventfds that a forked child inherits. Its fork handler calls this before anything else runs; `parent`
/// is the parent's process id.
pub fn forget_parents_eventfds(parent: u32) {
    for entry in EVENTFDS.iter().flatten() {
        let word = entry.load(Ordering::Relaxed);
        if word != 0 && word >> 32 == u64::from(parent) {
            entry.store(0, Ordering::Relaxed);
            if let Ok(fd) = i32::try_from((word & 0xffff_ffff).saturating_sub(1)) {
                descriptor::close(fd);
            }
        }
    }
}
