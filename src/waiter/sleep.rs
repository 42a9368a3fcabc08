//! The sleep: look, announce, look again, ppoll.

use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;

use super::counters::COUNTERS;
use super::slot::{Slot, write_eventfd};
use crate::attach::{Link, Object};
use crate::errno::Errno;
use crate::ffi::wait::{PollFd, SignalMask, ppoll};
use crate::progress::{self, Drive, RINGERS, Waiting};
use crate::readiness::{self, event};
use crate::time::{Instant, monotonic};

/// Entries at the start of the slice given to [`sleep`] that are the sleeper's own: its eventfd, the control socket, and for
/// who drives the loop also its bell and its port.
pub const OWN: usize = 2 + RINGERS + 1;

/// Looks this long before it sleeps, where the host can run at the same time.
const SPIN: Duration = Duration::from_micros(4);
/// A sleep on what belongs to a lost host ends after this time: by then another host may have taken it over.
const DEAD_SLICE: Duration = Duration::from_secs(1);
/// Looks this soon when it has no slot to be woken through, and half as often each time, so that hundreds of idle threads cost
/// little: 144 of them took a whole core at a look a millisecond.
const NO_SLOT_SLICE: Duration = Duration::from_millis(1);
/// The longest time between two such looks.
const NO_SLOT_LONGEST: Duration = Duration::from_millis(16);
/// A slot may be free again after this.
const NO_SLOT_TIME: Duration = Duration::from_secs(1);

/// Whose changes wake the sleeper.
#[derive(Clone, Copy)]
#[allow(clippy::type_complexity)] // a visitor that takes a visitor, named once
pub enum Watch<'a> {
    /// These objects'.
    Objects(&'a [Object]),
    /// The objects' that this visits.
    Each(&'a dyn Fn(&mut dyn FnMut(Object))),
    /// Those of the objects in this epoll.
    Epoll(u32),
}

impl core::fmt::Debug for Watch<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Objects(objects) => f.debug_tuple("Objects").field(objects).finish(),
            Self::Each(_) => f.write_str("Each"),
            Self::Epoll(epoll) => f.debug_tuple("Epoll").field(epoll).finish(),
        }
    }
}

impl Watch<'_> {
    fn objects(&self, visit: &mut dyn FnMut(Object)) {
        match self {
            Self::Objects(objects) => objects.iter().copied().for_each(visit),
            Self::Each(each) => each(visit),
            Self::Epoll(_) => {}
        }
    }

    /// Puts `slot` into the masks; again and again, because a handler's sleep takes it out.
    fn add(&self, link: &Link, slot: u32) {
        self.objects(&mut |object| {
            if let Some(cell) = object.cell(link)
                && !cell.watch.slots.has(slot)
            {
                cell.watch.slots.add(slot);
            }
        });
        if let Self::Epoll(epoll) = self
            && let Some(cell) = link.control.epoll(*epoll)
            && !cell.slots.has(slot)
        {
            cell.slots.add(slot);
        }
    }

    fn remove(&self, link: &Link, slot: u32) {
        self.objects(&mut |object| {
            if let Some(cell) = object.cell(link) {
                cell.watch.slots.remove(slot);
            }
        });
        if let Self::Epoll(epoll) = self
            && let Some(cell) = link.control.epoll(*epoll)
        {
            cell.slots.remove(slot);
        }
    }
}

/// Why a sleep ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wake {
    /// `ready` said so.
    Ready,
    /// Kernel descriptors have events (in `fds` behind [`OWN`]); `ready` may be true as well.
    Kernel,
    /// The deadline has passed.
    Timeout,
    /// A signal handler ran.
    Interrupted,
    /// The host is gone since this sleep began, or was gone before and a second is over; every object is over, or
    /// another host's.
    HostDead,
    /// The kernel refused the wait (EINVAL for more descriptors than allowed, ENOMEM).
    Failed(Errno),
}

/// Sleeps until `ready` says true, a kernel descriptor of `fds[OWN..]` has events, `deadline` has passed or a signal
/// handler has run. `ready` is asked at least once.
///
/// A cancellation point. `sigmask` is set as ppoll(2) sets it. None as the deadline waits for ever. `drive` is the call's:
/// with inline progress the wait drives the loop, and may still have the token when it returns.
pub fn sleep(
    link: &Link,
    watch: Watch<'_>,
    fds: &mut [PollFd],
    deadline: Option<Instant>,
    sigmask: Option<SignalMask>,
    ready: &mut dyn FnMut() -> bool,
    drive: &mut Drive,
) -> Wake {
    let woken = sleep_or_drive(link, watch, fds, deadline, sigmask, ready, drive);
    if matches!(woken, Wake::Ready | Wake::HostDead)
        && let Some(end) = progress::hidden_until()
    {
        drive.end();
        return sleep_aside(fds, end, deadline, sigmask).unwrap_or(woken);
    }
    woken
}

/// Sleeps on while the program ends, on all but the stack: threads that an exit handler waits for still see what the kernel
/// has, their time-outs and their signals. None: nothing of that until `end`.
fn sleep_aside(
    fds: &mut [PollFd],
    end: Instant,
    deadline: Option<Instant>,
    sigmask: Option<SignalMask>,
) -> Option<Wake> {
    let until = deadline.map_or(end, |deadline| deadline.min(end));
    let theirs = fds.get_mut(OWN..).unwrap_or(&mut []);
    match ppoll(theirs, Some(until.since(monotonic())), sigmask) {
        Ok(0) if deadline.is_some_and(|deadline| deadline <= until) => Some(Wake::Timeout),
        Ok(0) => None,
        Ok(_) => Some(Wake::Kernel),
        Err(Errno::INTR) => Some(Wake::Interrupted),
        Err(error) => Some(Wake::Failed(error)),
    }
}

fn sleep_or_drive(
    link: &Link,
    watch: Watch<'_>,
    fds: &mut [PollFd],
    deadline: Option<Instant>,
    sigmask: Option<SignalMask>,
    ready: &mut dyn FnMut() -> bool,
    drive: &mut Drive,
) -> Wake {
    if drive.may_drive() {
        let mut wait = driven::Wait {
            link,
            watch,
            fds,
            deadline,
            sigmask,
            ready,
        };
        if let Some(wake) = wait.run(drive) {
            return wake;
        }
    } else if spin(deadline, ready) {
        COUNTERS.waits_spun.raise();
        return Wake::Ready;
    }
    sleep_alone(link, watch, fds, deadline, sigmask, ready)
}

/// Sleeps until somebody else wakes us.
fn sleep_alone(
    link: &Link,
    watch: Watch<'_>,
    fds: &mut [PollFd],
    deadline: Option<Instant>,
    sigmask: Option<SignalMask>,
    ready: &mut dyn FnMut() -> bool,
) -> Wake {
    COUNTERS.waits_slept.raise();
    let _waiting = Waiting::begin();
    if link.is_disowned() {
        // Nobody wakes it, and nothing of the stack is to come.
        let result = wait_once(link, -1, NO_LOOP, fds, deadline, Some(DEAD_SLICE), sigmask);
        return conclude(link, fds, result, deadline, ready).unwrap_or(Wake::HostDead);
    }
    loop {
        let Some(slot) = Slot::take(link) else {
            COUNTERS.waits_sliced_no_slot.raise();
            match sleep_in_slices(link, fds, deadline, sigmask, ready) {
                Some(wake) => return wake,
                None => continue,
            }
        };
        let mut sleeping = Sleeping::begin(link, watch, slot);
        let wake = sleeping.run(fds, deadline, sigmask, ready);
        sleeping.is_over = true;
        if let Some(wake) = wake {
            return wake;
        }
    }
}

/// A sleep in progress; its drop, also when the thread is cancelled, takes the slot out of all masks.
struct Sleeping<'a> {
    link: &'a Link,
    watch: Watch<'a>,
    slot: Slot<'a>,
    /// It ended by itself: the thread looks at what it was woken for.
    is_over: bool,
}

impl<'a> Sleeping<'a> {
    fn begin(link: &'a Link, watch: Watch<'a>, slot: Slot<'a>) -> Self {
        slot.cell.depth.fetch_add(1, Ordering::Relaxed);
        Self {
            link,
            watch,
            slot,
            is_over: false,
        }
    }

    /// Returns None when the eventfd was closed behind our back.
    fn run(
        &self,
        fds: &mut [PollFd],
        deadline: Option<Instant>,
        sigmask: Option<SignalMask>,
        ready: &mut dyn FnMut() -> bool,
    ) -> Option<Wake> {
        loop {
            readiness::begin_sleep(self.slot.cell, || {
                self.watch.add(self.link, self.slot.index)
            });
            if ready() {
                return Some(Wake::Ready);
            }
            let eventfd = self.slot.eventfd;
            let slice = self.link.is_dead().then_some(DEAD_SLICE);
            let result = wait_once(self.link, eventfd, NO_LOOP, fds, deadline, slice, sigmask);
            readiness::end_sleep(self.slot.cell);
            let own = fds.first().map_or(0, |own| own.revents);
            if own & POLLNVAL != 0 {
                self.slot.forget_eventfd(self.link);
                return None;
            }
            if own != 0 && result.is_ok() {
                self.slot.drain();
            }
            if let Some(wake) = conclude(self.link, fds, result, deadline, ready) {
                return Some(wake);
            }
        }
    }
}

impl Drop for Sleeping<'_> {
    fn drop(&mut self) {
        readiness::end_sleep(self.slot.cell);
        self.watch.remove(self.link, self.slot.index);
        if let (false, Watch::Epoll(epoll)) = (self.is_over, self.watch) {
            // Cancelled: what it may have been woken for is another sleeper's.
            let wake = |slot| super::slot::wake(self.link, slot);
            readiness::wake_one_of_epoll(&self.link.control, epoll, wake);
        }
        // A sleep that we interrupted as a signal handler has lost its flag, its masks and perhaps its wake-up: it must
        // look again.
        if self.slot.cell.depth.fetch_sub(1, Ordering::Relaxed) > 1 {
            write_eventfd(self.slot.eventfd);
        }
    }
}

/// Nothing that wakes a loop.
const NO_LOOP: [i32; RINGERS + 1] = [-1; RINGERS + 1];

const POLLIN: i16 = 0x001;
const POLLNVAL: i16 = 0x020;

/// One ppoll over our own descriptors and the caller's, until `deadline` or for `slice`.
fn wait_once(
    link: &Link,
    eventfd: i32,
    [bell, mail, port]: [i32; RINGERS + 1],
    fds: &mut [PollFd],
    deadline: Option<Instant>,
    slice: Option<Duration>,
    sigmask: Option<SignalMask>,
) -> Result<usize, Errno> {
    let control = if link.is_dead() {
        -1
    } else {
        link.control_socket()
    };
    let own = [
        (eventfd, POLLIN),
        (control, 0),
        (bell, POLLIN),
        (mail, POLLIN),
        (port, POLLIN),
    ];
    for (entry, (fd, events)) in fds.iter_mut().zip(own) {
        *entry = PollFd {
            fd,
            events,
            revents: 0,
        };
    }
    let left = deadline.map(|deadline| deadline.since(monotonic()));
    let timeout = match (left, slice) {
        (Some(left), Some(slice)) => Some(left.min(slice)),
        (left, slice) => left.or(slice),
    };
    ppoll(fds, timeout, sigmask)
}

/// What a ppoll means; None = sleep again.
fn conclude(
    link: &Link,
    fds: &[PollFd],
    result: Result<usize, Errno>,
    deadline: Option<Instant>,
    ready: &mut dyn FnMut() -> bool,
) -> Option<Wake> {
    match result {
        // A state that came with the signal wins, as in the kernel.
        Err(Errno::INTR) if ready() => return Some(Wake::Ready),
        Err(Errno::INTR) => return Some(Wake::Interrupted),
        Err(error) => return Some(Wake::Failed(error)),
        Ok(_) => {}
    }
    if fds.get(1).is_some_and(|control| control.revents != 0) {
        link.lose();
        return Some(Wake::HostDead);
    }
    let theirs = fds.get(OWN..).unwrap_or(&[]);
    if theirs.iter().any(|entry| entry.revents != 0) {
        return Some(Wake::Kernel);
    }
    if ready() {
        return Some(Wake::Ready);
    }
    if deadline.is_some_and(|deadline| monotonic() >= deadline) {
        return Some(Wake::Timeout);
    }
    link.is_dead().then_some(Wake::HostDead)
}

/// Looks again and again; None: it is time to look for a slot.
fn sleep_in_slices(
    link: &Link,
    fds: &mut [PollFd],
    deadline: Option<Instant>,
    sigmask: Option<SignalMask>,
    ready: &mut dyn FnMut() -> bool,
) -> Option<Wake> {
    let end = monotonic() + NO_SLOT_TIME;
    let mut slice = NO_SLOT_SLICE;
    loop {
        if ready() {
            return Some(Wake::Ready);
        }
        let result = wait_once(link, -1, NO_LOOP, fds, deadline, Some(slice), sigmask);
        if let Some(wake) = conclude(link, fds, result, deadline, ready) {
            return Some(wake);
        }
        if monotonic() >= end {
            return None;
        }
        slice = (slice * 2).min(NO_SLOT_LONGEST);
    }
}

/// CPUs that the first sleeper of this process could use; 0 = not asked yet.
static CPUS: AtomicU32 = AtomicU32::new(0);

/// Looks for some microseconds; says whether it became ready.
fn spin(deadline: Option<Instant>, ready: &mut dyn FnMut() -> bool) -> bool {
    if ready() {
        return true;
    }
    if CPUS.load(Ordering::Relaxed) == 0 {
        let count = rustix::thread::sched_getaffinity(None).map_or(1, |set| set.count());
        CPUS.store(count.max(1), Ordering::Relaxed);
    }
    if CPUS.load(Ordering::Relaxed) == 1 {
        return false;
    }
    let mut end = monotonic() + SPIN;
    if let Some(deadline) = deadline {
        end = end.min(deadline);
    }
    while monotonic() < end {
        for _ in 0..16 {
            core::hint::spin_loop();
        }
        if ready() {
            return true;
        }
    }
    false
}

/// Asks the kernel about `fds` (all of them the program's) without waiting; also lets a signal that `sigmask` opens run.
///
/// # Errors
/// EINTR, EINVAL, ENOMEM.
pub fn look(fds: &mut [PollFd], sigmask: Option<SignalMask>) -> Result<usize, Errno> {
    ppoll(fds, Some(Duration::ZERO), sigmask)
}

const _: () = assert!(event::IN == POLLIN as u32 && event::NVAL == POLLNVAL as u32);

mod driven;

#[cfg(test)]
mod tests;
