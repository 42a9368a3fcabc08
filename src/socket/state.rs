//! The present state of an object, the end of the host included, and waiting for it to change.

use core::time::Duration;

use crate::attach::{Link, Object};
use crate::channel::cell::{ObjectCell, flag, host_state, kind};
use crate::channel::sync::{AtomicU64, Ordering};
use crate::errno::{Errno, Result};
use crate::ffi::handler;
use crate::ffi::wait::PollFd;
use crate::progress::Drive;
use crate::readiness::{self, News, event};
use crate::time::{Instant, monotonic};
use crate::waiter::{self, OWN, Wake, Watch};

/// The object's cell, with the host's death told to it.
///
/// # Errors
/// EBADF when the index was given to another object, ECONNRESET in a forked child that got no share.
pub fn cell(link: &Link, object: Object) -> Result<&ObjectCell> {
    let cell = object.cell(link).ok_or(Errno::BADF)?;
    if link.is_dead() {
        match link.is_disowned() {
            false => bury(link, cell),
            // It has nothing to report, and may be made anew.
            true if listens(cell) => {}
            true => return Err(Errno::CONNRESET),
        }
    }
    Ok(cell)
}

/// Whether a call that finds nothing to do and does not sleep looks once more: the host turns out to be gone now, or with inline
/// progress the loop has just turned.
///
/// # Errors
/// As [`cell`].
pub fn look_again(link: &Link, object: Object) -> Result<bool> {
    if link.is_dead() {
        return Ok(false);
    }
    let mut drive = Drive::new();
    drive.turn_if_due();
    let turned = drive.has_turned();
    drop(drive);
    link.look();
    if link.is_dead() {
        cell(link, object)?;
    }
    Ok(turned || link.is_dead())
}

/// The host is gone: the object is over, and its first user in any process gets ECONNRESET. A listener is not over: it has
/// nothing to give until another host takes the lost one's place.
fn bury(link: &Link, cell: &ObjectCell) {
    let over = flag::OVER | flag::TX_BROKEN;
    if cell.host.flags.load(Ordering::Acquire) & over == over {
        return;
    }
    // It may have said so itself, and nobody slept on its socket.
    if link.control.header().host_state.load(Ordering::Acquire) == host_state::DEAD {
        link.lose();
    }
    if listens(cell) {
        return;
    }
    if cell.host.flags.fetch_or(over, Ordering::AcqRel) & flag::OVER == 0 {
        let error = Errno::CONNRESET.raw_os_error().unsigned_abs();
        cell.host.error.store(error, Ordering::Release);
        // An edge-triggered watcher must see that something happened.
        cell.host.edge.fetch_add(1, Ordering::SeqCst);
    }
}

/// Leaves a word for reports about the number under which the program has the object.
pub fn tell_number(cell: &ObjectCell, fd: i32) {
    let word = u32::try_from(fd).map_or(0, |fd| fd.saturating_add(1));
    cell.read.fd.store(word, Ordering::Relaxed);
}

/// The event bits of the object (see [`readiness::bits`]); ERR and HUP for a handle that is no more.
#[must_use]
pub fn bits(link: &Link, object: Object) -> u32 {
    cell(link, object).map_or(event::ERR | event::HUP | event::IN | event::OUT, |cell| {
        let bits = readiness::bits(cell, link.control.layout().tx_bytes(object.index));
        match (link.is_dead(), listens(cell)) {
            (false, _) => bits,
            (true, false) => bits | event::ERR | event::HUP,
            // What it had not handed out is reset.
            (true, true) => 0,
        }
    })
}

/// Whether it is a listener that was not shut.
#[must_use]
pub fn listens(cell: &ObjectCell) -> bool {
    let what = cell.host.kind.load(Ordering::Acquire);
    what == kind::LISTENER && !readiness::is_disconnected(cell, what)
}

/// Whether the object is a listener whose host is gone. It accepts nothing and reports nothing until it is made anew on
/// another host.
#[must_use]
pub fn is_lost_listener(link: &Link, object: Object) -> bool {
    link.is_dead() && object.cell(link).is_some_and(listens)
}

/// Takes the pending error (SO_ERROR, socket(7)); None when there is none.
#[must_use]
pub fn take_error(cell: &ObjectCell) -> Option<Errno> {
    if cell.host.error.load(Ordering::Acquire) == 0 {
        return None;
    }
    let error = i32::try_from(cell.host.error.swap(0, Ordering::AcqRel)).ok()?;
    (error != 0).then(|| Errno::from_raw_os_error(error))
}

/// Keeps an error that a call could not tell for the next one, unless one is pending.
pub fn keep_error(cell: &ObjectCell, error: Errno) {
    let number = error.raw_os_error().unsigned_abs();
    // Failure: another one is pending, and is told first.
    let _ = cell
        .host
        .error
        .compare_exchange(0, number, Ordering::AcqRel, Ordering::Relaxed);
}

/// When a wait that begins now ends by SO_RCVTIMEO or SO_SNDTIMEO; None = never.
#[must_use]
pub fn deadline(timeout_us: &AtomicU64) -> Option<Instant> {
    let micros = timeout_us.load(Ordering::Relaxed);
    (micros != 0).then(|| monotonic() + Duration::from_micros(micros))
}

/// Waits until `ready`, as a blocking call does: with a deadline a handler ends it, without one it goes on when the
/// handlers say SA_RESTART (signal(7)).
///
/// `kernel` is a descriptor that ends the wait as well when it is readable. Returns without `ready` when the host
/// dies.
///
/// # Errors
/// EAGAIN at the deadline, EINTR.
pub fn until(
    link: &Link,
    object: Object,
    kernel: Option<i32>,
    deadline: Option<Instant>,
    ready: &mut dyn FnMut() -> bool,
) -> Result<()> {
    const POLLIN: i16 = 1;
    let mut drive = Drive::new();
    loop {
        let mut fds = [PollFd::default(); OWN + 1];
        if let Some(last) = fds.last_mut() {
            last.fd = kernel.unwrap_or(-1);
            last.events = POLLIN;
        }
        match waiter::sleep(
            link,
            Watch::Objects(&[object]),
            &mut fds,
            deadline,
            None,
            ready,
            &mut drive,
        ) {
            Wake::Ready | Wake::Kernel | Wake::HostDead => return Ok(()),
            Wake::Timeout => return Err(Errno::AGAIN),
            Wake::Interrupted if deadline.is_none() && handler::handlers_restart() => {}
            Wake::Interrupted => return Err(Errno::INTR),
            Wake::Failed(error) => return Err(error),
        }
    }
}

/// Tells everybody who watches the object that this process has changed it (shutdown, a routed socket).
pub fn announce(link: &Link, object: Object) {
    let wake = |slot| waiter::wake(link, slot);
    readiness::alert(&link.control, object.index, News::State, wake);
}
