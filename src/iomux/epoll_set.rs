//! Epolls: their identity in the channel, epoll_ctl for accelerated sockets, and epoll_wait over both halves.
//!
//! The kernel epoll of the same number holds the kernel descriptors and nothing of ours (design D10).

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering as PrivateOrdering};
use core::time::Duration;

use super::collect::{Collected, collect};
use super::nested::{Turn, kernel_events};
use super::pace;
use crate::attach::link::PLACES;
use crate::attach::{Link, Object};
use crate::channel::cell::{EpollCell, herald, process as process_state};
use crate::channel::layout::EPOLLS;
use crate::channel::sync::Ordering;
use crate::errno::{Errno, Result};
use crate::ffi::wait::{self, EpollEvent, PollFd, SignalMask};
use crate::progress::Drive;
use crate::readiness::event;
use crate::socket::interest::{self, Interest};
use crate::socket::state;
use crate::time::monotonic;
use crate::waiter::{self, OWN, Wake, Watch};

/// Flags among the events of an item, with the values of epoll_ctl(2).
pub mod flag {
    /// The bits that are events.
    pub const EVENTS: u32 = 0x07ff_ffff;
    /// Ours: the kernel twin is registered as well, with the same data and events.
    pub const TWIN: u32 = 1 << 27;
    /// EPOLLEXCLUSIVE.
    pub const EXCLUSIVE: u32 = crate::channel::cell::item::EXCLUSIVE;
    /// EPOLLWAKEUP.
    pub const WAKEUP: u32 = 1 << 29;
    /// EPOLLONESHOT.
    pub const ONESHOT: u32 = 1 << 30;
    /// EPOLLET.
    pub const ET: u32 = 1 << 31;
}

/// Bits of [`EpollCell::cursor`]: the object index, and two notes.
mod cursor {
    /// Where the next collection begins.
    pub(super) const INDEX: u32 = (1 << 30) - 1;
    /// The dead host's objects were made ready.
    pub(super) const BURIED: u32 = 1 << 30;
    /// The kernel's half goes first.
    pub(super) const KERNEL_FIRST: u32 = 1 << 31;
}

/// Descriptors of this process that refer to an epoll.
static DESCRIPTORS: [[AtomicU32; EPOLLS as usize]; PLACES] =
    [const { [const { AtomicU32::new(0) }; EPOLLS as usize] }; PLACES];

fn descriptors(link: &Link, epoll: u32) -> Option<&'static AtomicU32> {
    DESCRIPTORS.get(link.place() as usize)?.get(epoll as usize)
}

/// Takes a free epoll of the family, held once by this process.
///
/// # Errors
/// ENOSPC when the family has none left: the kernel epoll then serves kernel descriptors only.
pub fn create(link: &Link) -> Result<u32> {
    let free = (0..EPOLLS).find(|&index| {
        link.control.epoll(index).is_some_and(|cell| {
            cell.used
                .compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
        })
    });
    let epoll = free.ok_or(Errno::NOSPC)?;
    if let Some(process) = link.control.process(link.process()) {
        process.epolls.add(epoll);
    }
    if let Some(count) = descriptors(link, epoll) {
        count.store(1, PrivateOrdering::Relaxed);
    }
    Ok(epoll)
}

/// One more descriptor of this process refers to `epoll`; a process that has not held it yet holds it now.
pub fn hold(link: &Link, epoll: u32) {
    if let Some(count) = descriptors(link, epoll) {
        count.fetch_add(1, PrivateOrdering::Relaxed);
    }
    adopt(link, epoll);
}

/// Forgets all counts of a link that nobody uses any more.
pub fn forget_counts(link: &Link) {
    for count in DESCRIPTORS.get(link.place() as usize).into_iter().flatten() {
        count.store(0, PrivateOrdering::Relaxed);
    }
}

/// Whether a descriptor of this process refers to `epoll`.
#[must_use]
pub fn is_held(link: &Link, epoll: u32) -> bool {
    descriptors(link, epoll).is_some_and(|count| count.load(PrivateOrdering::Relaxed) > 0)
}

/// This process holds `epoll`, whose descriptors are counted already (a forked child's are).
pub fn adopt(link: &Link, epoll: u32) {
    let newly = link
        .control
        .process(link.process())
        .is_some_and(|process| process.epolls.add(epoll));
    if newly && let Some(cell) = link.control.epoll(epoll) {
        cell.used.fetch_add(1, Ordering::AcqRel);
    }
}

/// Gives process cell `child` the epolls of process cell `parent` (before a fork, by the parent).
pub fn hold_for_child(link: &Link, parent: u32, child: u32) {
    let (Some(parent), Some(child)) = (link.control.process(parent), link.control.process(child))
    else {
        return;
    };
    parent.epolls.for_each(|epoll| {
        if child.epolls.add(epoll)
            && let Some(cell) = link.control.epoll(epoll)
        {
            cell.used.fetch_add(1, Ordering::AcqRel);
        }
    });
}

/// One descriptor of this process is gone; with the last one of all processes the epoll is free, and its items are stale.
pub fn release(link: &Link, epoll: u32) {
    let last = descriptors(link, epoll).is_some_and(|count| {
        count.fetch_update(
            PrivateOrdering::Relaxed,
            PrivateOrdering::Relaxed,
            |count| count.checked_sub(1),
        ) == Ok(1)
    });
    let (Some(process), Some(cell)) = (
        link.control.process(link.process()),
        link.control.epoll(epoll),
    ) else {
        return;
    };
    if !last || !process.epolls.remove(epoll) {
        return;
    }
    // One of two processes that leave at the same time is the last, and clears up before the index is free.
    let leave = |used: u32| (used > 1).then(|| used - 1);
    if cell
        .used
        .fetch_update(Ordering::AcqRel, Ordering::Acquire, leave)
        .is_ok()
    {
        return;
    }
    cell.generation.fetch_add(1, Ordering::AcqRel);
    cell.kernel_items.store(0, Ordering::Relaxed);
    cell.cursor.store(0, Ordering::Relaxed);
    cell.slots.clear();
    cell.herald.store(herald::NONE, Ordering::SeqCst);
    if let Some(ready) = link.control.ready(epoll) {
        ready.clear_all();
    }
    cell.used.store(0, Ordering::Release);
}

/// A kernel descriptor was added to (or taken out of) the kernel epoll.
pub fn count_kernel_item(link: &Link, epoll: u32, added: bool) {
    if let Some(cell) = link.control.epoll(epoll) {
        if added {
            cell.kernel_items.fetch_add(1, Ordering::Relaxed);
        } else {
            // A removal that was never counted changes nothing.
            let _ = cell
                .kernel_items
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| {
                    count.checked_sub(1)
                });
        }
    }
}

/// What may stand beside EPOLLEXCLUSIVE (Linux EPOLLEXCLUSIVE_OK_BITS).
const EXCLUSIVE_OK: u32 =
    event::IN | event::OUT | event::ERR | event::HUP | flag::WAKEUP | flag::ET | flag::EXCLUSIVE;

fn interest(fd: i32, events: EpollEvent, twin: bool) -> Interest {
    let twin = if twin { flag::TWIN } else { 0 };
    Interest {
        fd,
        // ERR and HUP are always asked for.
        events: (events.events & !flag::TWIN) | event::ERR | event::HUP | twin,
        data: events.data,
    }
}

/// EPOLL_CTL_ADD. `twin`: the kernel twin is registered in the kernel epoll too.
///
/// # Errors
/// EEXIST, EINVAL for a wrong use of EPOLLEXCLUSIVE, ENOSPC, EBADF.
pub fn add(
    link: &Link,
    epoll: u32,
    object: Object,
    fd: i32,
    events: EpollEvent,
    twin: bool,
) -> Result<()> {
    if events.events & flag::EXCLUSIVE != 0 && events.events & !EXCLUSIVE_OK != 0 {
        return Err(Errno::INVAL);
    }
    interest::add(link, object, epoll, interest(fd, events, twin))?;
    make_ready(link, epoll, object);
    Ok(())
}

/// EPOLL_CTL_MOD.
///
/// # Errors
/// ENOENT, EINVAL for EPOLLEXCLUSIVE now or before, EBADF.
pub fn modify(
    link: &Link,
    epoll: u32,
    object: Object,
    fd: i32,
    events: EpollEvent,
    twin: bool,
) -> Result<()> {
    if events.events & flag::EXCLUSIVE != 0 {
        return Err(Errno::INVAL);
    }
    let check = |before: u32| {
        if before & flag::EXCLUSIVE != 0 {
            Err(Errno::INVAL)
        } else {
            Ok(())
        }
    };
    interest::modify(link, object, epoll, interest(fd, events, twin), check)?;
    make_ready(link, epoll, object);
    Ok(())
}

/// EPOLL_CTL_DEL.
///
/// # Errors
/// ENOENT, EBADF.
pub fn delete(link: &Link, epoll: u32, object: Object, fd: i32) -> Result<()> {
    interest::remove(link, object, epoll, fd)
}

/// Lets the next collection look at the object, and wakes who sleeps on the epoll when it is ready now.
fn make_ready(link: &Link, epoll: u32, object: Object) {
    if let Some(ready) = link.control.ready(epoll) {
        ready.set(object.index);
    }
    let somebody_waits = link.control.epoll(epoll).is_some_and(|cell| {
        !cell.slots.is_empty() || cell.herald.load(Ordering::SeqCst) != herald::NONE
    });
    if somebody_waits && state::bits(link, object) != 0 {
        wake_sleepers(link, epoll);
    }
}

/// Wakes one of those who sleep on the epoll: this process's at once, others' through the host.
pub fn wake_sleepers(link: &Link, epoll: u32) {
    crate::readiness::wake_epoll(&link.control, epoll, |slot| waiter::wake(link, slot));
}

/// epoll_pwait2(2). `kernel_epfd` is the kernel epoll of the same number. Returns 0 before the time-out when the host is gone
/// and there is nothing to report: what is watched may be another host's by now.
///
/// # Errors
/// EINVAL for no room, EBADF, EINTR.
pub fn wait(
    link: &Link,
    epoll: u32,
    kernel_epfd: i32,
    events: &mut [EpollEvent],
    timeout: Option<Duration>,
    sigmask: Option<SignalMask>,
) -> Result<usize> {
    if events.is_empty() {
        return Err(Errno::INVAL);
    }
    if link.is_disowned() {
        return kernel_half::wait(kernel_epfd, events, timeout, sigmask);
    }
    let cell = link.control.epoll(epoll).ok_or(Errno::BADF)?;
    let is_look = timeout == Some(Duration::ZERO);
    let deadline = timeout
        .filter(|_| !is_look)
        .map(|timeout| monotonic() + timeout);
    let mut kernel = KernelHalf::Unknown;
    let mut is_last = is_look;
    let mut drive = Drive::new();
    let mut host_died = false;
    // A loop that never sleeps in here must hear of the host's end too.
    link.look();
    loop {
        // With nothing of ours the sleep asks the kernel, in the call that it makes anyway.
        if is_look || kernel != KernelHalf::Unknown || may_have_ours(link, epoll, cell) {
            drive.turn_once();
            if kernel == KernelHalf::Unknown
                && !is_look
                && asked(epoll).is_some_and(|asked| drive.is_soon_after(asked))
            {
                // Inline the kernel's half is asked once a budget, by the turns as well.
                kernel = KernelHalf::Soon;
            }
            let drives = drive.has_turned();
            let most = match drives {
                true => pace::limit(epoll, drive.last_turn(), drive.budget()),
                false => events.len(),
            };
            let most = most.min(events.len());
            let room = events.get_mut(..most).unwrap_or(&mut []);
            let count = gather(link, epoll, cell, kernel_epfd, kernel, room)?;
            if count > 0 {
                if drives {
                    pace::hand(epoll, count, monotonic);
                }
                return Ok(count);
            }
        }
        if host_died {
            return Ok(0);
        }
        if is_last {
            if is_look && sigmask.is_some() {
                // A signal that only this mask opens ends even a look.
                waiter::sleep::look(&mut [], sigmask)?;
            }
            return Ok(0);
        }
        let mut fds = [PollFd::default(); OWN + 1];
        if let Some(last) = fds.last_mut() {
            last.fd = kernel_epfd;
            last.events = 1;
            last.revents = NOT_ASKED;
        }
        let mut ready = || may_have_ours(link, epoll, cell);
        let watch = Watch::Epoll(epoll);
        let woken = waiter::sleep(
            link, watch, &mut fds, deadline, sigmask, &mut ready, &mut drive,
        );
        match woken {
            Wake::Ready | Wake::Kernel => {}
            Wake::HostDead => host_died = true,
            Wake::Timeout => is_last = true,
            Wake::Interrupted => return Err(Errno::INTR),
            Wake::Failed(error) => return Err(error),
        }
        kernel = match fds.last().map_or(NOT_ASKED, |last| last.revents) {
            NOT_ASKED => KernelHalf::Unknown,
            0 => KernelHalf::Idle,
            _ => KernelHalf::Ready,
        };
    }
}

/// When the kernel's half of an epoll was asked last by a wait that drives, in nanoseconds.
static ASKED: [AtomicU64; EPOLLS as usize] = [const { AtomicU64::new(0) }; EPOLLS as usize];

fn asked(epoll: u32) -> Option<&'static AtomicU64> {
    ASKED.get(epoll as usize)
}

/// What is known of the kernel descriptors of an epoll.
#[derive(Clone, Copy, PartialEq, Eq)]
enum KernelHalf {
    Unknown,
    /// It had nothing a moment ago.
    Idle,
    /// It was asked a moment ago, in another call.
    Soon,
    Ready,
}

/// What ppoll never writes: it has not looked at the kernel epoll.
const NOT_ASKED: i16 = 0x4000;

fn may_have_ours(link: &Link, epoll: u32, cell: &EpollCell) -> bool {
    let is_ready = || {
        let ready = link.control.ready(epoll);
        ready.is_some_and(|ready| ready.may_have_any())
    };
    (!link.is_disowned() && is_ready()) || needs_burial(link, cell)
}

/// Asks both halves, the one that came second last time first; the kernel's not when nothing is to be had there.
fn gather(
    link: &Link,
    epoll: u32,
    cell: &EpollCell,
    kernel_epfd: i32,
    kernel: KernelHalf,
    events: &mut [EpollEvent],
) -> Result<usize> {
    if link.is_disowned() {
        // Since this wait began.
        return kernel_half::look(kernel_epfd, events).map(|found| found.count);
    }
    bury_if_needed(link, epoll, cell);
    let notes = cell.cursor.load(Ordering::Relaxed);
    let from = notes & cursor::INDEX;
    let asks_kernel = match kernel {
        KernelHalf::Ready => true,
        KernelHalf::Idle | KernelHalf::Soon => false,
        KernelHalf::Unknown => cell.kernel_items.load(Ordering::Relaxed) > 0,
    };
    if !asks_kernel {
        let _turn = Turn::of_collector(link, cell);
        let (found, next) = collect(link, epoll, from, events);
        cell.cursor.store(
            notes & !cursor::INDEX | next & cursor::INDEX,
            Ordering::Relaxed,
        );
        return Ok(found.count);
    }
    let kernel_first = notes & cursor::KERNEL_FIRST != 0;
    let theirs = if kernel_first {
        kernel_events(link, epoll, kernel_epfd, events)?
    } else {
        0
    };
    let room = events.get_mut(theirs..).unwrap_or(&mut []);
    let turn = Turn::of_collector(link, cell);
    let (found, next) = collect(link, epoll, from, room);
    drop(turn);
    let notes = notes & cursor::BURIED | !notes & cursor::KERNEL_FIRST | next & cursor::INDEX;
    cell.cursor.store(notes, Ordering::Relaxed);
    if kernel_first {
        let count = merge(kernel_epfd, events, theirs, &found);
        return Ok(count);
    }
    let room = events.get_mut(found.count..).unwrap_or(&mut []);
    let theirs = if room.is_empty() {
        0
    } else {
        match kernel_events(link, epoll, kernel_epfd, room) {
            Ok(theirs) => theirs,
            // What we have taken must be reported.
            Err(_) if found.count > 0 => 0,
            Err(error) => return Err(error),
        }
    };
    events
        .get_mut(..found.count + theirs)
        .unwrap_or(&mut [])
        .rotate_left(found.count);
    Ok(merge(kernel_epfd, events, theirs, &found))
}

/// The kernel's events stand first, ours behind them: joins the two halves of a wildcard listener, which is one
/// descriptor to the program. Returns how many events are left.
fn merge(kernel_epfd: i32, events: &mut [EpollEvent], theirs: usize, found: &Collected) -> usize {
    /// EPOLL_CTL_MOD.
    const MODIFY: i32 = 3;
    let mut count = theirs + found.count;
    let mut gone = 0;
    for twin in found.twins.iter().flatten() {
        let place = theirs + twin.position - gone;
        let Some(ours) = events.get(place).copied() else {
            continue;
        };
        let double = events
            .get_mut(..theirs)
            .unwrap_or(&mut [])
            .iter_mut()
            .find(|event| event.data == ours.data);
        if let Some(double) = double {
            double.events |= ours.events;
            if let Some(rest) = events.get_mut(place..count) {
                rest.rotate_left(1);
            }
            count -= 1;
            gone += 1;
        } else if twin.oneshot {
            // One shot for both halves. The program may have taken the descriptor out meanwhile.
            let none = EpollEvent {
                events: flag::ONESHOT,
                data: ours.data,
            };
            let _ = wait::epoll_ctl(kernel_epfd, MODIFY, twin.fd, Some(none));
        }
    }
    count
}

/// Collects what is left to report of a host that was lost, while another one serves the epoll.
pub fn collect_lost(link: &Link, epoll: u32, events: &mut [EpollEvent]) -> usize {
    let Some(cell) = link.control.epoll(epoll) else {
        return 0;
    };
    if !may_have_ours(link, epoll, cell) {
        return 0;
    }
    bury_if_needed(link, epoll, cell);
    let notes = cell.cursor.load(Ordering::Relaxed);
    let _turn = Turn::of_collector(link, cell);
    let (found, next) = collect(link, epoll, notes & cursor::INDEX, events);
    cell.cursor.store(
        notes & !cursor::INDEX | next & cursor::INDEX,
        Ordering::Relaxed,
    );
    found.count
}

fn needs_burial(link: &Link, cell: &EpollCell) -> bool {
    link.is_dead()
        && !link.is_disowned()
        && cell.cursor.load(Ordering::Relaxed) & cursor::BURIED == 0
}

/// The host is gone: every object of the epoll is ready with ERR and HUP, once.
pub(super) fn bury_if_needed(link: &Link, epoll: u32, cell: &EpollCell) {
    if !needs_burial(link, cell) {
        return;
    }
    cell.cursor.fetch_or(cursor::BURIED, Ordering::Relaxed);
    let Some(ready) = link.control.ready(epoll) else {
        return;
    };
    // Not every cell: looking at one that was never used would give it memory.
    for process in link.control.processes() {
        let control = &link.control;
        let is_there = control
            .process(process)
            .is_some_and(|it| it.state.load(Ordering::Acquire) != process_state::FREE);
        let Some(held) = control.held(process).filter(|_| is_there) else {
            continue;
        };
        held.for_each(|index| {
            let cell = control.object(index);
            if cell.is_some_and(|cell| cell.watch.epolls.has(epoll)) {
                ready.set(index);
            }
        });
    }
}

mod kernel_half;

#[cfg(test)]
mod tests;
