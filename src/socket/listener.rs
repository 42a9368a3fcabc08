//! Listeners, after listen(2) and accept(2).

use core::net::{Ipv4Addr, SocketAddrV4};
use core::time::Duration;

use super::options::Options;
use super::wish::{self, Wish, ask_first, claim};
use super::{close, hold, state};
use crate::attach::link::PLACES;
use crate::attach::{self, Link, Object};
use crate::channel::accept_ring::{self, Queue};
use crate::channel::cell::{FactLine, ObjectCell, kind, shut};
use crate::channel::owner::OwnerWord;
use crate::channel::sync::Ordering;
use crate::errno::{Errno, Result};
use crate::readiness::FIRST_LCORE;
use crate::time::{Instant, monotonic};
use crate::waiter::owner::{self, Held};

/// Who of this process marks and pops at the moment. Private to the process: a stopped sibling stops nobody.
static ACCEPTING: [OwnerWord; PLACES] = [const { OwnerWord::new() }; PLACES];

/// Listens on `local` (an address of ours, or 0.0.0.0 for all of them).
///
/// # Errors
/// The host's refusal (EADDRINUSE, EADDRNOTAVAIL), ENFILE, ENOMEM, ENETDOWN.
pub fn listen(link: &Link, local: SocketAddrV4, backlog: u32, options: &Options) -> Result<Object> {
    let object = claim(link, FIRST_LCORE, options, false)?;
    ask_first(link, object, Wish::Listen { local, backlog })
}

/// As [`listen`], on a port that the kernel has found free: a listener that is still there is that of a process which has
/// just ended, and the host hears of that a moment later than the kernel.
///
/// # Errors
/// As [`listen`].
pub fn listen_where_free(
    link: &Link,
    local: SocketAddrV4,
    backlog: u32,
    options: &Options,
) -> Result<Object> {
    let end = monotonic() + HEARING;
    loop {
        match listen(link, local, backlog, options) {
            Err(Errno::ADDRINUSE) if monotonic() < end => attach::pause(),
            result => return result,
        }
    }
}

/// How long the host may take to hear of the end of a process.
const HEARING: Duration = Duration::from_millis(200);

/// A second listen(): changes the backlog.
///
/// # Errors
/// As [`listen`], and EBADF.
pub fn set_backlog(link: &Link, object: Object, backlog: u32) -> Result<()> {
    let local = local_address(link, object)?;
    wish::ask(link, object, Wish::Listen { local, backlog })
}

/// listen() on a listener that was shut: it begins anew, on `local`.
///
/// # Errors
/// As [`listen`]; EINVAL when it was no listener, EBADF.
pub fn listen_anew(link: &Link, object: Object, local: SocketAddrV4, backlog: u32) -> Result<()> {
    let cell = state::cell(link, object)?;
    cell.write.shut.store(0, Ordering::SeqCst);
    wish::ask(link, object, Wish::Listen { local, backlog })?;
    cell.wish.told.store(0, Ordering::Release);
    Ok(())
}

/// What accept() found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Accepted {
    /// A connection, held once by this process, and its peer.
    Stream(Object, SocketAddrV4),
    /// The kernel twin is readable: ask the kernel.
    Kernel,
}

/// Takes the oldest connection. `twin` is the kernel's half of a wildcard listener, which ends a wait as well. A deadline
/// comes from SO_RCVTIMEO ([`state::deadline`]).
///
/// # Errors
/// EAGAIN when there is none (non-blocking, or at the deadline), EINVAL when it does not listen (any more), EINTR, EBADF.
pub fn accept(
    link: &Link,
    object: Object,
    twin: Option<i32>,
    nonblocking: bool,
    deadline: Option<Instant>,
) -> Result<Accepted> {
    loop {
        let cell = state::cell(link, object)?;
        let listens = cell.host.kind.load(Ordering::Acquire) == kind::LISTENER
            && cell.write.shut.load(Ordering::Relaxed) & shut::READ == 0
            && !link.is_dead();
        // Before the queue: what a shut listener has not handed out is being reset.
        if !listens {
            return Err(Errno::INVAL);
        }
        if let Some((stream, peer)) = pop(link, object, cell)? {
            return Ok(Accepted::Stream(stream, peer));
        }
        if nonblocking {
            return Err(Errno::AGAIN);
        }
        let mut woken_by_state = false;
        state::until(link, object, twin, deadline, &mut || {
            woken_by_state = accept_ring::queued(&cell.queue) > 0
                || cell.host.kind.load(Ordering::Acquire) != kind::LISTENER
                || cell.write.shut.load(Ordering::Relaxed) & shut::READ != 0
                || link.is_dead();
            woken_by_state
        })?;
        if !woken_by_state && twin.is_some() && !link.is_dead() {
            return Ok(Accepted::Kernel);
        }
    }
}

/// Marks the first entry of a queue held and pops it; None when all queues are empty.
fn pop(link: &Link, listener: Object, cell: &ObjectCell) -> Result<Option<(Object, SocketAddrV4)>> {
    if accept_ring::queued(&cell.queue) == 0 {
        return Ok(None);
    }
    let word = ACCEPTING.get(link.place() as usize).ok_or(Errno::NFILE)?;
    let held = owner::take(link, word);
    let popped = pop_round(link, listener, cell);
    if held != Held::Nested {
        owner::release(word, || ());
    }
    let Some((lcore, stream, peer)) = popped? else {
        return Ok(None);
    };
    // The lcore counts what was taken, and makes room.
    link.ring_at(lcore, listener.index);
    Ok(Some((stream, peer)))
}

/// Pops from the queue of one lcore after the other, beginning at another one each time, so that none of them has to wait for
/// the others to be empty.
fn pop_round(
    link: &Link,
    listener: Object,
    cell: &ObjectCell,
) -> Result<Option<(u32, Object, SocketAddrV4)>> {
    let lcores = link.lcores();
    let first = if lcores > 1 { link.turn() } else { 0 };
    for step in 0..lcores {
        let lcore = first.wrapping_add(step) % lcores;
        if let Some((stream, peer)) = pop_alone(link, listener, cell, lcore)? {
            return Ok(Some((lcore, stream, peer)));
        }
    }
    Ok(None)
}

fn pop_alone(
    link: &Link,
    listener: Object,
    cell: &ObjectCell,
    lcore: u32,
) -> Result<Option<(Object, SocketAddrV4)>> {
    let entries = link.receive.accept_entries(listener.index, lcore);
    let queue = entries
        .and_then(|entries| Queue::new(cell, lcore, entries))
        .ok_or(Errno::BADF)?;
    while let Some(front) = queue.front() {
        let Some(stream) = Object::at(link, front.object) else {
            return Err(Errno::BADF);
        };
        // Held before it is popped, so that our death leaves it either queued or held.
        hold::add(link, stream)?;
        if !queue.pop(front) {
            close::release(link, stream);
            continue;
        }
        let Some(stream_cell) = stream.cell(link) else {
            return Err(Errno::BADF);
        };
        // Its options are those that the listener had at the end of the handshake (sk_clone_lock); the lcore has given it them.
        return Ok(Some((stream, remote(&stream_cell.fact))));
    }
    Ok(None)
}

fn remote(fact: &FactLine) -> SocketAddrV4 {
    address(
        fact.remote_address.load(Ordering::Relaxed),
        fact.remote_port.load(Ordering::Relaxed),
    )
}

fn address(bits: u32, port: u32) -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::from_bits(bits), u16::try_from(port).unwrap_or(0))
}

/// getsockname(2).
///
/// # Errors
/// EBADF for a handle that is no more.
pub fn local_address(link: &Link, object: Object) -> Result<SocketAddrV4> {
    let fact = &state::cell(link, object)?.fact;
    Ok(address(
        fact.local_address.load(Ordering::Relaxed),
        fact.local_port.load(Ordering::Relaxed),
    ))
}

/// getpeername(2).
///
/// # Errors
/// ENOTCONN when it is not connected, EBADF.
pub fn peer_address(link: &Link, object: Object) -> Result<SocketAddrV4> {
    let cell = state::cell(link, object)?;
    let over = cell.host.flags.load(Ordering::Acquire) & crate::channel::cell::flag::OVER != 0;
    if cell.host.kind.load(Ordering::Acquire) != kind::STREAM || over {
        return Err(Errno::NOTCONN);
    }
    Ok(remote(&cell.fact))
}

#[cfg(test)]
mod tests;
