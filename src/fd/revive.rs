//! Listeners whose host was lost come back (design D1: new sockets "attach again when it is back").
//!
//! A server holds its listener for life, and takes an error of accept or an event without a connection for a reason to
//! try again at once. So a listener of a lost host has nothing to report, and each wait and each accept of the process
//! looks, now and then, for the host that takes the lost one's place. There the listener is made anew, under the same
//! numbers and in the same epolls.
//!
//! DEVIATION: of several processes that share a listener the first one that looks serves it from then on, alone.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use core::time::Duration;

use super::table::{self, Entry};
use super::{Socket, epoll, route};
use crate::attach::{self, Link, Standing};
use crate::channel::sync::Ordering as ChannelOrdering;
use crate::errno::Result;
use crate::ffi::errno;
use crate::ffi::wait::EpollEvent;
use crate::iomux::epoll_set;
use crate::socket::options::Options;
use crate::socket::{close, hold, interest, listener, state};
use crate::time::{Instant, monotonic};

/// A lost host is looked for at most once in this time.
const PERIOD: Duration = Duration::from_secs(1);
/// A host that lived shorter than this has not lived well.
const LIVED: Duration = Duration::from_secs(60);
/// So many hosts are looked for without delay: each takes room in the address space for ever, and a port that ends each at once
/// must not use that up.
const QUICK: u32 = 12;
/// The longest delay.
const PERIOD_MAX: Duration = Duration::from_secs(300);
/// How long a wait lasts at most while a listener is lost.
pub const SLICE: Duration = Duration::from_millis(250);

/// When to look next, in nanoseconds of the monotonic clock.
static NEXT: AtomicU64 = AtomicU64::new(0);
/// When listeners were brought back last.
static BACK: AtomicU64 = AtomicU64::new(0);
/// Some listener of this process waits for a host, although another host serves the process.
static LOST: AtomicBool = AtomicBool::new(false);
/// Number of the dead link + 1 that no listener of this process belongs to.
static SETTLED: AtomicU32 = AtomicU32::new(0);

/// Another host serves the process: a connect has found it before any wait has looked for it, perhaps.
pub(super) fn host_changed() {
    LOST.store(true, Ordering::Relaxed);
}

/// Brings lost listeners back, when it is time to try. Says whether some are lost still, so that a wait must not be long.
#[inline]
pub fn listeners() -> bool {
    let Some(link) = attach::link() else {
        return false;
    };
    if link.is_dead() {
        SETTLED.load(Ordering::Relaxed) != link.number() + 1 && try_now(link)
    } else {
        LOST.load(Ordering::Relaxed) && try_now(link)
    }
}

/// Waits by `wait`, which is given a time-out and returns 0 when nothing came, perhaps before its end when the host is gone.
/// While listeners are lost the waits are short, and between them they are looked after.
///
/// # Errors
/// Those of `wait`.
pub fn in_slices(
    timeout: Option<Duration>,
    mut wait: impl FnMut(Option<Duration>) -> Result<usize>,
) -> Result<usize> {
    let lost = listeners();
    // The host that the wait begins with: another thread may have found the next one when it ends.
    let link = attach::link();
    let is_dead = || link.is_some_and(Link::is_dead);
    if !lost && !is_dead() {
        let count = wait(timeout)?;
        // Nothing, before the end: the host is gone, and the time that was waited is given to the program once more.
        if count > 0 || timeout == Some(Duration::ZERO) || (timeout.is_some() && !is_dead()) {
            return Ok(count);
        }
    }
    wait_on(timeout, wait)
}

/// As [`in_slices`] of who has lost a host: until something has come or the time is over.
fn wait_on(
    timeout: Option<Duration>,
    mut wait: impl FnMut(Option<Duration>) -> Result<usize>,
) -> Result<usize> {
    let end = timeout.map(|timeout| monotonic() + timeout);
    loop {
        let left = end.map(|end| end.since(monotonic()));
        let slice = if listeners() {
            Some(left.map_or(SLICE, |left| left.min(SLICE)))
        } else {
            left
        };
        let count = wait(slice)?;
        if count > 0 || end.is_some_and(|end| monotonic() >= end) {
            return Ok(count);
        }
    }
}

#[cold]
fn try_now(link: &'static Link) -> bool {
    let next = NEXT.load(Ordering::Relaxed);
    let now = monotonic();
    let lived = now.since(Instant::from_nanos(BACK.load(Ordering::Relaxed)));
    let later = (now + period(link.number(), lived)).nanos();
    // One thread tries; the others look again in a moment.
    if now < Instant::from_nanos(next)
        || NEXT
            .compare_exchange(next, later, Ordering::AcqRel, Ordering::Relaxed)
            .is_err()
        || super::is_foreign()
    {
        return true;
    }
    let saved = errno::save();
    let left = bring_back(link);
    LOST.store(left, Ordering::Relaxed);
    errno::restore(saved);
    left
}

/// How long to wait behind a look, when `number` hosts were lost before the last one, which lived for `lived`.
fn period(number: u32, lived: Duration) -> Duration {
    match number.checked_sub(QUICK) {
        Some(beyond) if lived < LIVED => PERIOD.saturating_mul(2 << beyond.min(16)).min(PERIOD_MAX),
        _ => PERIOD,
    }
}

/// Tries to bring every lost listener back; says whether some are left.
fn bring_back(link: &'static Link) -> bool {
    let mut any = false;
    for_each_lost(|_, _| any = true);
    if !any {
        if link.is_dead() {
            SETTLED.store(link.number() + 1, Ordering::Relaxed);
        }
        return false;
    }
    let Standing::Attached(link) = route::ensure_now() else {
        return true;
    };
    let Standing::Attached(link) = attach::open_device(link) else {
        return true;
    };
    BACK.store(monotonic().nanos(), Ordering::Relaxed);
    let mut left = false;
    for_each_lost(|fd, lost| {
        if let Err(error) = bring_one_back(&lost, link) {
            crate::debug!(
                "listener fd={fd} event=not_brought_back errno={}",
                error.raw_os_error()
            );
            left = true;
        }
    });
    left
}

/// Visits the lost listeners, each number of one as long as it is lost.
fn for_each_lost(mut visit: impl FnMut(i32, Socket)) {
    table::for_each(0, table::end(), |fd, entry| {
        if let Entry::Socket(handle) = entry
            && let Some(socket) = Socket::of(handle)
            && is_lost(&socket)
        {
            visit(fd, socket);
        }
    });
}

/// Whether the socket is a listener whose host is gone.
#[inline]
#[must_use]
pub fn is_lost(socket: &Socket) -> bool {
    state::is_lost_listener(socket.link, socket.object)
}

fn bring_one_back(lost: &Socket, link: &'static Link) -> Result<()> {
    let cell = state::cell(lost.link, lost.object)?;
    let local = listener::local_address(lost.link, lost.object)?;
    let backlog = cell.wish.backlog.load(ChannelOrdering::Relaxed);
    let object = listener::listen(link, local, backlog, &Options::of(cell))?;
    let found = Socket {
        link,
        object,
        ..*lost
    };
    move_to(lost, &found);
    crate::warn!("{local} is listened on again: another host has taken the lost one's place");
    Ok(())
}

/// Puts `found`, which is held once, in the place of `lost`: in the epolls and at every number.
fn move_to(lost: &Socket, found: &Socket) {
    interest::registrations(lost.link, lost.object, |index, told| {
        let Some((_, record)) = epoll::descriptor_of(index) else {
            return;
        };
        epoll::join(found.link, record);
        let event = EpollEvent {
            events: told.events & !epoll_set::flag::TWIN,
            data: told.data,
        };
        let (link, object) = (found.link, found.object);
        if let Err(error) = epoll_set::add(link, index, object, told.fd, event, found.merged) {
            crate::warn!(
                "epoll: a registration was lost fd={} errno={}",
                told.fd,
                error.raw_os_error()
            );
        }
    });
    let old = lost.entry();
    let mut is_spent = false;
    table::for_each(0, table::end(), |number, entry| {
        if entry != old || (is_spent && hold::add(found.link, found.object).is_err()) {
            return;
        }
        if super::replace(number, old, found.entry()) {
            is_spent = true;
        } else if is_spent {
            close::release(found.link, found.object);
        }
    });
    if !is_spent {
        // Closed under our hands by another thread.
        close::release(found.link, found.object);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_that_ends_early_goes_on_until_its_time_is_over() {
        let (begin, span) = (monotonic(), Duration::from_millis(20));
        let mut given = Vec::new();
        let early = |left: Option<Duration>| {
            given.push(left.unwrap());
            crate::ffi::wait::ppoll(&mut [], Some(Duration::from_millis(3)), None)
        };
        assert_eq!(wait_on(Some(span), early), Ok(0));
        assert!(monotonic().since(begin) >= span);
        assert!(given.len() > 1 && given.is_sorted_by(|one, next| one > next));
        assert_eq!(wait_on(None, |_| Ok(2)), Ok(2));
        let mut left = 3;
        let third = |_| {
            left -= 1;
            Ok(usize::from(left == 0))
        };
        assert_eq!(wait_on(None, third), Ok(1));
        assert_eq!(wait_on(Some(Duration::ZERO), |_| Ok(0)), Ok(0));
    }
    use crate::socket::fake::Fake;

    #[test]
    fn a_listener_is_lost_with_its_host_wherever_it_came_from() {
        let mut fake = Fake::new();
        let (listener, stream) = (fake.listener(1), fake.stream(2));
        let socket = |object, accepted| Socket {
            link: fake.link,
            object,
            merged: false,
            accepted,
        };
        let sockets = [
            socket(listener, false),
            // As one that came in a message: its number has no twin of its own.
            socket(listener, true),
            socket(stream, true),
        ];
        assert_eq!(sockets.each_ref().map(is_lost), [false; 3]);
        fake.die();
        fake.link.lose();
        assert_eq!(sockets.each_ref().map(is_lost), [true, true, false]);
    }

    #[test]
    fn hosts_that_end_at_once_are_not_used_up_in_a_moment() {
        let short = Duration::from_secs(5);
        assert_eq!(period(0, short), PERIOD);
        assert_eq!(period(QUICK - 1, short), PERIOD);
        assert_eq!(period(QUICK, short), Duration::from_secs(2));
        assert_eq!(period(QUICK + 3, short), Duration::from_secs(16));
        let last = 32;
        assert_eq!(period(last, short), PERIOD_MAX);
        assert_eq!(period(last, LIVED), PERIOD);
        let all: Duration = (0..last).map(|number| period(number, short)).sum();
        assert!(all > Duration::from_secs(3_600), "{all:?}");
    }
}
