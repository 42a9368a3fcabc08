//! Epolls as the program numbers them: which are known, who joins the channel, and the bell that ends waits begun before
//! this process was attached.

use core::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use core::time::Duration;

use super::registry::{self, Left};
use super::revive;
use super::table::{self, Entry, Record};
use crate::attach::{self, Link, link};
use crate::errno::{Errno, Result};
use crate::ffi::descriptor;
use crate::ffi::number_limit::with_room;
use crate::ffi::wait::{self, EpollEvent, PollFd, SignalMask};
use crate::iomux::{epoll_set, nested};
use crate::thread;
use crate::time::monotonic;

/// Number of the link that this process has joined each epoll to, plus 1; 0 = none.
static JOINED: [AtomicU32; registry::EPOLLS] = [const { AtomicU32::new(0) }; registry::EPOLLS];

/// Becomes readable for good once this process is attached; -1 = not made. See [`wait_unattached`].
static BELL: AtomicI32 = AtomicI32::new(-1);

/// A new kernel epoll.
pub fn made(fd: i32) {
    super::drop_stale(fd);
    if !attach::may_accelerate() || !table::ensure() || !registry::ensure() {
        return;
    }
    thread::remember_process();
    if super::is_foreign() {
        return;
    }
    // None: too many epolls; this one holds kernel descriptors only.
    if let Some(record) = registry::new_epoll() {
        super::release(table::exchange(fd, Entry::Epoll(record)));
    }
}

/// A descriptor of this epoll is gone.
pub(super) fn release(record: Record) {
    // The channel's epoll first: its index is the record's, which is another's as soon as nobody holds it.
    let left = registry::release_epoll(record, || leave(record.index));
    if left == Left::Nowhere {
        registry::end_epoll(record);
    }
}

/// This process has no descriptor of epoll `index`.
fn leave(index: u32) {
    nested::forget(index);
    let joined = JOINED
        .get(index as usize)
        .map_or(0, |word| word.swap(0, Ordering::AcqRel));
    // Those of the hosts before as well: the index may be another epoll's soon.
    for link in link::all().filter(|link| link.number() < joined) {
        epoll_set::release(link, index);
    }
}

/// In a forked child, whose registry counts are right again: its epolls of the channel are those that it has descriptors of.
pub(super) fn adopt_after_fork() {
    for (index, word) in (0..).zip(&JOINED) {
        let Some(number) = word.load(Ordering::Acquire).checked_sub(1) else {
            continue;
        };
        if !registry::has_epoll(index) {
            leave(index);
        } else if let Some(link) = link::numbered(number) {
            epoll_set::adopt(link, index);
        }
    }
}

/// Makes the epoll known to the channel, once a process and host.
pub fn join(link: &Link, record: Record) {
    let Some(word) = JOINED.get(record.index as usize) else {
        return;
    };
    if link.is_disowned() {
        // A child without a share: what is in the channel is for those who have one.
        return;
    }
    let mark = link.number() + 1;
    let last = word.load(Ordering::Acquire);
    if last > mark {
        // A host that was lost before another one was joined.
        if !epoll_set::is_held(link, record.index) {
            epoll_set::hold(link, record.index);
        }
        return;
    }
    if last == mark || word.swap(mark, Ordering::AcqRel) == mark {
        return;
    }
    epoll_set::hold(link, record.index);
    if let Some(cell) = link.control.epoll(record.index) {
        // What was added before is counted by the registry.
        let count = registry::count_kernel_items(record, 0);
        cell.kernel_items.fetch_max(count, Ordering::AcqRel);
        let number = descriptor_of(record.index).and_then(|(fd, _)| u32::try_from(fd).ok());
        cell.fd.store(
            number.map_or(0, |fd| fd.saturating_add(1)),
            Ordering::Relaxed,
        );
    }
    if registry::is_nested(record)
        && let Some((fd, _)) = descriptor_of(record.index)
    {
        announce(link, fd, record);
    }
}

/// Whether this process has joined the epoll to that host.
#[must_use]
pub fn has_joined(link: &Link, record: Record) -> bool {
    JOINED
        .get(record.index as usize)
        .is_some_and(|word| word.load(Ordering::Acquire) == link.number() + 1)
}

/// Of a program that has taken over what another one left: the epolls that it has no number of are let go.
pub(super) fn let_go(link: &Link) {
    for index in 0..crate::channel::layout::EPOLLS {
        let is_ours = link
            .control
            .process(link.process())
            .is_some_and(|process| process.epolls.has(index));
        if is_ours && !registry::has_epoll(index) {
            epoll_set::hold(link, index);
            epoll_set::release(link, index);
        }
    }
}

/// The epoll is about to be added to another one.
pub fn nest(fd: i32, record: Record) {
    registry::count_nestings(record, 1);
    seen_from_outside(fd, record);
}

/// The epoll was deleted from another one, or could not be added.
pub fn unnest(record: Record) {
    if !registry::count_nestings(record, -1)
        && let Some(link) = link()
    {
        nested::mute(link, record.index);
    }
}

/// poll or select asks about the epoll. Says whether it may hold accelerated sockets.
pub fn polled(fd: i32, record: Record) -> bool {
    registry::note_polled(record);
    seen_from_outside(fd, record)
}

/// Lets the kernel epoll say what the channel's half has. Says whether there is such a half.
fn seen_from_outside(fd: i32, record: Record) -> bool {
    let Some(link) = link() else {
        return false;
    };
    if JOINED
        .get(record.index as usize)
        .is_some_and(|word| word.load(Ordering::Acquire) == link.number() + 1)
    {
        announce(link, fd, record);
    } else {
        join(link, record);
    }
    true
}

fn announce(link: &Link, fd: i32, record: Record) {
    if let Err(error) = nested::announce(link, record.index, fd) {
        crate::warn!(
            "epoll: what contains it does not see its accelerated sockets fd={fd} errno={}",
            error.raw_os_error()
        );
    }
}

/// Before a fork: what a child adds to an epoll of ours stays there when the child is gone.
pub fn join_all() {
    let Some(link) = link().filter(|link| !link.is_dead()) else {
        return;
    };
    table::for_each(0, table::end(), |_, entry| {
        if let Entry::Epoll(record) = entry {
            join(link, record);
        }
    });
}

/// A kernel descriptor was added to or deleted from the epoll.
pub fn count_kernel_item(record: Record, added: bool) {
    registry::count_kernel_items(record, if added { 1 } else { -1 });
    let joined = JOINED
        .get(record.index as usize)
        .map_or(0, |word| word.load(Ordering::Acquire));
    if let Some(number) = joined.checked_sub(1)
        && let Some(link) = link::numbered(number)
    {
        epoll_set::count_kernel_item(link, record.index, added);
    }
}

/// A descriptor of this process that stands for epoll `index`.
#[must_use]
pub fn descriptor_of(index: u32) -> Option<(i32, Record)> {
    let mut found = None;
    table::for_each(0, table::end(), |fd, entry| {
        if let Entry::Epoll(record) = entry
            && record.index == index
            && found.is_none()
        {
            found = Some((fd, record));
        }
    });
    found
}

/// epoll_pwait2(2) on an epoll of ours.
///
/// # Errors
/// As the kernel's.
pub fn wait(
    fd: i32,
    record: Record,
    events: &mut [EpollEvent],
    timeout: Option<Duration>,
    mask: Option<SignalMask>,
) -> Result<usize> {
    let left = match link() {
        Some(_) => return wait_attached(fd, record, events, timeout, mask),
        None => wait_unattached(fd, events, timeout, mask)?,
    };
    match left {
        Outcome::Events(count) => Ok(count),
        Outcome::Attached(timeout) => wait_attached(fd, record, events, timeout, mask),
    }
}

fn wait_attached(
    fd: i32,
    record: Record,
    events: &mut [EpollEvent],
    timeout: Option<Duration>,
    mask: Option<SignalMask>,
) -> Result<usize> {
    revive::in_slices(timeout, |slice| {
        let link = link().ok_or(Errno::INTR)?;
        join(link, record);
        let lost = collect_lost(link, record, events);
        let (slice, rest) = match lost {
            0 => (slice, &mut *events),
            // There is always room for what lives.
            _ => (
                Some(Duration::ZERO),
                events.get_mut(lost..).unwrap_or(&mut []),
            ),
        };
        if rest.is_empty() && lost > 0 {
            return Ok(lost);
        }
        match epoll_set::wait(link, record.index, fd, rest, slice, mask) {
            Err(_) if lost > 0 => Ok(lost),
            count => count.map(|count| count + lost),
        }
    })
}

/// Collects what the program has not been told of hosts that it lost before `present` came: at most half of `events`, in
/// turns where there is room for one.
fn collect_lost(present: &Link, record: Record, events: &mut [EpollEvent]) -> usize {
    /// Whose turn it is.
    static TURN: AtomicU32 = AtomicU32::new(0);
    if present.number() == 0 || events.is_empty() {
        return 0;
    }
    let mut room = events.len() / 2;
    if room == 0 && TURN.fetch_add(1, Ordering::Relaxed).is_multiple_of(2) {
        room = 1;
    }
    let mut count = 0;
    for lost in link::all().filter(|link| link.number() < present.number()) {
        let places = events.get_mut(count..room).unwrap_or(&mut []);
        count += epoll_set::collect_lost(lost, record.index, places);
    }
    count
}

enum Outcome {
    Events(usize),
    /// Attached meanwhile; this much of the time-out is left.
    Attached(Option<Duration>),
}

/// Waits on the kernel epoll, and on the bell: a socket that another thread routes and adds must wake us, and the
/// kernel epoll never holds it.
fn wait_unattached(
    fd: i32,
    events: &mut [EpollEvent],
    timeout: Option<Duration>,
    mask: Option<SignalMask>,
) -> Result<Outcome> {
    let end = timeout.map(|timeout| monotonic() + timeout);
    // No bell: a wait in slices takes its place.
    let mut bell = bell().unwrap_or(-1);
    loop {
        if mask.is_none() || timeout != Some(Duration::ZERO) {
            let count = wait::epoll_wait(fd, events, 0)?;
            if count > 0 {
                return Ok(Outcome::Events(count));
            }
        }
        let left = end.map(|end| end.since(monotonic()));
        if link().is_some() {
            return Ok(Outcome::Attached(left));
        }
        let slice = if bell < 0 { Some(SLICE) } else { None };
        let span = match (left, slice) {
            (Some(left), Some(slice)) => Some(left.min(slice)),
            (left, slice) => left.or(slice),
        };
        let mut fds = [
            PollFd {
                fd,
                events: 1,
                revents: 0,
            },
            PollFd {
                fd: bell,
                events: 1,
                revents: 0,
            },
        ];
        wait::ppoll(&mut fds, span, mask)?;
        bell = still_mute(fds.last());
        if left.is_some_and(|left| left.is_zero()) {
            return wait::epoll_wait(fd, events, 0).map(Outcome::Events);
        }
    }
}

/// The bell to wait for again: none when it has rung and we are not attached all the same (a child that was made by a raw
/// clone has its parent's) or was closed behind our back. It would end every wait at once.
fn still_mute(bell: Option<&PollFd>) -> i32 {
    bell.filter(|bell| bell.revents == 0 || link().is_some())
        .map_or(-1, |bell| bell.fd)
}

/// How long a wait without a bell lasts before it looks whether this process was attached.
const SLICE: Duration = Duration::from_millis(5);

fn bell() -> Result<i32> {
    let known = BELL.load(Ordering::Acquire);
    if known >= 0 {
        return Ok(known);
    }
    let flags = rustix::event::EventfdFlags::CLOEXEC | rustix::event::EventfdFlags::NONBLOCK;
    let make = || descriptor::internalize(rustix::event::eventfd(0, flags)?);
    let made = with_room(make)?;
    match BELL.compare_exchange(-1, made, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => Ok(made),
        Err(other) => {
            descriptor::close(made);
            Ok(other)
        }
    }
}

/// Ends the waits that began before this process was attached.
pub(super) fn ring_bell() {
    let bell = BELL.load(Ordering::Acquire);
    if let Ok(fd) = descriptor::lend(bell) {
        // Full means that it is readable.
        let _ = rustix::io::write(fd, &1_u64.to_ne_bytes());
    }
}

/// In a forked child: the bell is the parent's.
pub(super) fn forget_parents_bell() {
    let bell = BELL.swap(-1, Ordering::AcqRel);
    if bell >= 0 {
        descriptor::close(bell);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bell_that_rang_for_somebody_else_is_not_waited_for_again() {
        let entry = |revents| PollFd {
            fd: 700,
            events: 1,
            revents,
        };
        assert_eq!(still_mute(Some(&entry(0))), 700);
        assert_eq!(still_mute(Some(&entry(1))), -1, "POLLIN, and no link");
        assert_eq!(still_mute(Some(&entry(0x20))), -1, "POLLNVAL");
    }
}
