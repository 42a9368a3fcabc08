//! shutdown(2), close(2) and SO_LINGER.

use core::time::Duration;

use super::options::LINGER_ON;
use super::{hold, interest, state};
use crate::attach::{Link, Object};
use crate::channel::byte_ring;
use crate::channel::cell::{flag, kind, shut};
use crate::channel::owner::Taken;
use crate::channel::sync::Ordering;
use crate::errno::{Errno, Result};
use crate::time::monotonic;
use crate::waiter::owner;
use crate::{readiness, thread};

/// Ends reading, writing or both.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum How {
    /// SHUT_RD.
    Read,
    /// SHUT_WR.
    Write,
    /// SHUT_RDWR.
    Both,
}

/// shutdown(2). Whoever waits on the object wakes. What is in the transmit ring is still sent.
///
/// # Errors
/// ENOTCONN when it is not connected any more (Linux inet_shutdown), EBADF.
pub fn shutdown(link: &Link, object: Object, how: How) -> Result<()> {
    let cell = state::cell(link, object)?;
    let what = cell.host.kind.load(Ordering::Acquire);
    let over = cell.host.flags.load(Ordering::Acquire) & flag::OVER != 0;
    let mut bits = match how {
        How::Read => shut::READ,
        How::Write => shut::WRITE,
        How::Both => shut::READ | shut::WRITE,
    };
    if readiness::is_disconnected(cell, what) {
        // As below: what is read then is the end (inet_shutdown, TCP_CLOSE).
        if bits & shut::READ != 0 {
            cell.write.shut.fetch_or(shut::ENDED, Ordering::SeqCst);
        }
        state::announce(link, object);
        return Err(Errno::NOTCONN);
    }
    match what {
        // A listener only knows the end of accepting; SHUT_WR does nothing to it.
        kind::LISTENER if how == How::Write => return Ok(()),
        kind::LISTENER | kind::STREAM if !over => {}
        // An attempt to connect is given up altogether (inet_shutdown: tcp_disconnect).
        kind::CONNECTING => {
            bits = shut::READ | shut::WRITE;
            // At once, not when the host has come to it: the next call must see it.
            let error = Errno::CONNRESET.raw_os_error().unsigned_abs();
            cell.host.error.store(error, Ordering::Release);
            cell.wish.told.store(1, Ordering::Release);
        }
        _ => {
            // Linux shuts it and wakes whoever polls it all the same (inet_shutdown, TCP_CLOSE).
            cell.write.shut.fetch_or(bits, Ordering::SeqCst);
            state::announce(link, object);
            return Err(Errno::NOTCONN);
        }
    }
    cell.write.shut.fetch_or(bits, Ordering::SeqCst);
    link.ring(object.index);
    state::announce(link, object);
    Ok(())
}

/// Waits as SO_LINGER asks, when this is the last descriptor of all: until our FIN is acknowledged or the time is over. The
/// caller then calls [`release`] in any case.
///
/// # Errors
/// EINTR when a handler ended the wait (close(2) then has closed all the same).
pub fn linger(link: &Link, object: Object) -> Result<()> {
    let cell = state::cell(link, object)?;
    let linger = cell.wish.linger.load(Ordering::Relaxed);
    let seconds = linger & !LINGER_ON;
    let waits = linger & LINGER_ON != 0
        && seconds > 0
        && cell.host.kind.load(Ordering::Acquire) == kind::STREAM
        // Bytes that nobody will read make the close a reset, which waits for nobody (tcp_close).
        && readiness::readable_bytes(cell) == 0
        && hold::descriptors(link, object) <= 1
        && !hold::is_held_elsewhere(link, object);
    if !waits {
        return Ok(());
    }
    cell.write
        .shut
        .fetch_or(shut::READ | shut::WRITE, Ordering::SeqCst);
    link.ring(object.index);
    let deadline = monotonic() + Duration::from_secs(u64::from(seconds));
    let mut ended = || {
        cell.host.flags.load(Ordering::Acquire) & (flag::OVER | flag::TX_FINISHED) != 0
            || readiness::readable_bytes(cell) > 0
            || link.is_dead()
    };
    match state::until(link, object, None, Some(deadline), &mut ended) {
        Err(Errno::AGAIN) => Ok(()),
        other => other,
    }
}

/// One descriptor of this process is gone. With the last one of all processes the object leaves every epoll, and the
/// host closes it: FIN or RST as Linux would choose.
pub fn release(link: &Link, object: Object) {
    if !hold::subtract(link, object) {
        return;
    }
    if let Some(cell) = object.cell(link)
        && !cell.watch.epolls.is_empty()
        && !hold::is_held_elsewhere(link, object)
    {
        interest::forget_object(link, object);
    }
    hold::drop_bit(link, object);
    link.ring(object.index);
}

/// Of a program that has taken `object` over from the one before it in this process: what that one's main thread was in the
/// middle of is never finished, though a thread of its number lives.
pub fn settle_predecessor(link: &Link, object: Object) {
    let Some(cell) = object.cell(link) else {
        return;
    };
    let me = thread::id();
    if cell.write.tx_owner.take(me) == Taken::Nested {
        byte_ring::forget_unpublished(&cell.write);
    }
    owner::release(&cell.write.tx_owner, || ());
    // Owned now or before, or another thread's, which is left alone.
    cell.read.items_owner.take(me);
    owner::release(&cell.read.items_owner, || ());
}

/// Before the last close of a listener: waits until the host listens no more, as close(2) of Linux has freed the port when
/// it returns. A connect is then refused at once, and the next listen finds the port free. The caller then calls [`release`].
pub fn unlisten(link: &Link, object: Object) {
    let Some(cell) = object.cell(link) else {
        return;
    };
    let listens = || cell.host.kind.load(Ordering::Acquire) == kind::LISTENER;
    if !listens() || hold::descriptors(link, object) > 1 || hold::is_held_elsewhere(link, object) {
        return;
    }
    cell.write.shut.fetch_or(shut::READ, Ordering::SeqCst);
    link.ring(object.index);
    let deadline = monotonic() + UNLISTEN_WAIT;
    // At the deadline the host is stopped, or a handler came between: the port is freed a little later.
    let _ = state::until(link, object, None, Some(deadline), &mut || {
        !listens() || link.is_dead()
    });
}

/// A host answers within a turn; one that is stopped must not hold a close up.
const UNLISTEN_WAIT: Duration = Duration::from_millis(200);

/// In a forked child: it holds the objects that `each` visits, once for each time, and lets go of every other one that was
/// its parent's.
#[allow(clippy::type_complexity)] // a visitor that takes a visitor
pub fn hold_only(link: &Link, each: &dyn Fn(&mut dyn FnMut(Object))) {
    hold::forget_counts(link);
    each(&mut |object| {
        // Without memory for the counts the parent had none either.
        let _ = hold::add(link, object);
    });
    hold::for_each_idle(link, |object| {
        hold::drop_bit(link, object);
        link.ring(object.index);
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::readiness::event;
    use crate::socket::fake::Fake;

    #[test]
    fn a_child_holds_what_it_has_descriptors_of() {
        let fake = Fake::new();
        let link = fake.link;
        let held = |object: Object| link.control.held(0).unwrap().has(object.index);
        let [twice, closed, opened, closing] = [1, 2, 700, 3_000].map(|index| fake.stream(index));
        hold::add(link, twice).unwrap();
        // Another thread of the parent has closed it, but the child's map was copied before; or it was about to.
        link.control.held(0).unwrap().set(closed.index);
        hold::add(link, closing).unwrap();
        // Accepted behind the copy.
        hold::add(link, opened).unwrap();
        link.control.held(0).unwrap().clear(opened.index);
        let descriptors = [twice, opened, twice];
        hold_only(link, &|visit| descriptors.into_iter().for_each(visit));
        assert_eq!(
            [twice, closed, opened, closing].map(held),
            [true, false, true, false]
        );
        let rung = fake.bells(0);
        assert_eq!(rung, [closed.index, closing.index], "the host must look");
        release(link, twice);
        assert!(held(twice));
        release(link, twice);
        release(link, opened);
        assert!(!held(twice) && !held(opened));
    }

    #[test]
    fn a_copy_that_is_made_while_the_last_descriptor_goes_is_held() {
        let fake = Fake::new();
        let object = fake.stream(1);
        hold::add(fake.link, object).unwrap();
        assert!(hold::subtract(fake.link, object));
        // dup() in another thread, between the two halves of the release.
        hold::add(fake.link, object).unwrap();
        hold::drop_bit(fake.link, object);
        assert!(fake.link.control.held(0).unwrap().has(1));
        release(fake.link, object);
        assert!(!fake.link.control.held(0).unwrap().has(1));
    }

    #[test]
    fn a_child_without_a_share_lets_go_of_nothing_of_its_parents() {
        let fake = Fake::new();
        let object = fake.stream(1);
        hold::add(fake.link, object).unwrap();
        // As after a fork that found no process cell, or no descriptor for a socket of the child.
        fake.link.disown();
        let state = || {
            let cell = fake.cell(object);
            let edge = cell.host.edge.load(Ordering::Relaxed);
            let error = cell.host.error.load(Ordering::Relaxed);
            (cell.host.flags.load(Ordering::Relaxed), error, edge)
        };
        let before = state();
        let refused = state::cell(fake.link, object).err();
        assert_eq!(refused, Some(Errno::CONNRESET));
        assert_eq!(
            state::bits(fake.link, object),
            event::ERR | event::HUP | event::IN | event::OUT
        );
        release(fake.link, object);
        assert_eq!(state(), before, "its parent goes on");
        assert!(fake.link.control.held(0).unwrap().has(object.index));
        assert!(fake.link.control.process(fake.link.process()).is_none());
        assert!(hold::add(fake.link, object).is_err());
        assert_eq!(fake.link.control_socket(), -1);
    }
}
