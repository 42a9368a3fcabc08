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
    let Some(cell) = object.cell(link) else {
        // Its parent may have closed what the child has still open.
        let is_its_parents = link.is_disowned();
        return Err(if is_its_parents {
            Errno::CONNRESET
        } else {
            Errno::BADF
        });
    };
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channel::cell::process;
    use crate::socket::fake::Fake;
    use crate::thread;

    /// What the family sees of an object, and of its host.
    fn seen(fake: &Fake, object: Object) -> (u32, u32, u32, u32) {
        let host = &fake.cell(object).host;
        (
            host.flags.load(Ordering::Relaxed),
            host.error.load(Ordering::Relaxed),
            host.edge.load(Ordering::Relaxed),
            fake.link.control.header().host_pid.load(Ordering::Relaxed),
        )
    }

    /// A forked child whose host, process `host`, has hung up; with the state and the process of its cell.
    fn hung_up(host: u32, state: u32, pid: u32) -> (Fake, Object) {
        let mut fake = Fake::new();
        let object = fake.stream(1);
        let control = &fake.link.control;
        control.header().host_pid.store(host, Ordering::Relaxed);
        let mine = control.process(fake.link.process()).unwrap();
        mine.state.store(state, Ordering::Relaxed);
        mine.pid.store(pid, Ordering::Relaxed);
        fake.die();
        (fake, object)
    }

    #[test]
    fn a_child_that_the_host_refused_leaves_its_parents_sockets_alone() {
        let (me, parent) = (thread::process(), thread::process() + 1);
        // Not taken; let go since; another one's by now.
        for (state, pid) in [
            (process::FORKING, parent),
            (process::FREE, 0),
            (process::LIVE, parent),
        ] {
            let (fake, object) = hung_up(me, state, pid);
            let before = seen(&fake, object);
            fake.link.lose();
            fake.link.lose();
            assert!(fake.link.is_disowned() && fake.link.is_dead());
            assert_eq!(cell(fake.link, object).err(), Some(Errno::CONNRESET));
            assert_eq!(seen(&fake, object), before, "its host serves its parent");
            assert!(fake.link.control.process(fake.link.process()).is_none());
            let generation = &fake.cell(object).host.generation;
            generation.fetch_add(1, Ordering::Relaxed);
            let closed = cell(fake.link, object).err();
            assert_eq!(closed, Some(Errno::CONNRESET), "its number is good still");
        }
    }

    #[test]
    fn a_child_whose_host_has_died_buries_its_sockets_served_or_not() {
        let mut host = std::process::Command::new("true").spawn().unwrap();
        let me = thread::process();
        for (pid, state) in [
            (host.id(), process::FORKING),
            (me, process::LIVE),
            (0, process::FREE),
        ] {
            let (fake, object) = hung_up(pid, state, me);
            fake.link.lose();
            assert!(fake.link.is_dead() && !fake.link.is_disowned());
            let cell = cell(fake.link, object).unwrap();
            assert_eq!(take_error(cell), Some(Errno::CONNRESET));
            assert_eq!(seen(&fake, object).3, 0, "it was told");
        }
        host.wait().unwrap();
    }

    #[test]
    fn a_child_of_a_program_whose_host_was_dead_before_the_fork_sees_that_host_dead() {
        let mut fake = Fake::new();
        let (stream, listener) = (fake.stream(1), fake.listener(2));
        fake.die();
        fake.link.lose();
        fake.link.disown();
        assert!(fake.link.is_dead() && !fake.link.is_disowned());
        assert!(cell(fake.link, stream).is_ok(), "reset, as for its parent");
        assert!(is_lost_listener(fake.link, listener));
    }
}
