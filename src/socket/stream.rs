//! Reading and writing a connection, after tcp_recvmsg and tcp_sendmsg of Linux (net/ipv4/tcp.c).

use core::cell::Cell;
use std::io::{IoSlice, IoSliceMut};

use super::{options, state};
use crate::attach::{Link, Object};
use crate::channel::byte_ring::{self, Range};
use crate::channel::cell::{ObjectCell, flag, kind, shut};
use crate::channel::sync::{Ordering, fence, fence_behind_update};
use crate::errno::{Errno, Result};
use crate::readiness;
use crate::readiness::limit::limit;
use crate::readiness::urgent::given_bytes;
use crate::waiter::owner::{self, Held};

mod peek;
mod urgent;

pub use urgent::recv_urgent;
use urgent::{Step, is_at_mark};

/// The MSG_ flags of a receive that mean something to a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RecvFlags {
    /// MSG_PEEK: the bytes stay.
    pub peek: bool,
    /// MSG_WAITALL: waits until all of the buffer is filled.
    pub waitall: bool,
    /// MSG_DONTWAIT.
    pub dontwait: bool,
    /// MSG_TRUNC: the bytes are thrown away instead of copied (tcp(7)).
    pub trunc: bool,
    /// Behind the parts lies one that nothing can be put into: a call that waits for all goes on until a byte is there for it, and
    /// takes nothing of what came with that byte (skb_copy_datagram_iter).
    pub cut: bool,
}

/// What a send asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SendFlags {
    /// O_NONBLOCK or MSG_DONTWAIT.
    pub nonblocking: bool,
    /// MSG_OOB: the last byte is urgent.
    pub urgent: bool,
    /// MSG_MORE: what does not fill a segment waits for the next send.
    pub more: bool,
}

/// Bytes published and not acknowledged by the peer (SIOCOUTQ).
#[must_use]
pub fn queued_bytes(cell: &ObjectCell) -> u64 {
    let acked = cell.host.tx_acked.load(Ordering::Acquire);
    cell.write
        .tx_tail
        .load(Ordering::Acquire)
        .saturating_sub(acked)
}

/// What ends a receive besides bytes. Read before the positions: what is seen here lies behind bytes seen later.
#[derive(Clone, Copy)]
struct End {
    finished: bool,
    errored: bool,
    over: bool,
}

impl End {
    fn of(cell: &ObjectCell) -> Self {
        let flags = cell.host.flags.load(Ordering::Acquire);
        Self {
            finished: flags & flag::RX_FINISHED != 0,
            errored: cell.host.error.load(Ordering::Acquire) != 0,
            over: flags & flag::OVER != 0
                || cell.host.kind.load(Ordering::Acquire) == kind::FAILED
                || cell.write.shut.load(Ordering::SeqCst) & shut::READ != 0,
        }
    }

    const fn is_any(self) -> bool {
        self.finished || self.errored || self.over
    }
}

/// Fetches what the program is about to read of `object`, and the place of its answer: both lie on pages of their own, so that
/// with many connections each of them misses.
pub fn fetch(link: &Link, object: Object, cell: &ObjectCell) {
    let capacity = link.control.layout().rx_bytes(object.index);
    let ready = byte_ring::readable(&cell.host, &cell.read, capacity, 0, u64::from(capacity));
    if !ready.range.is_empty() {
        link.receive.fetch(object.index, ready.range);
        link.control.tx_fetch(object.index);
    }
}

/// recv(2) and its kin into `parts`. A blocking call waits for the first byte (SO_RCVLOWAT, or all of them with MSG_WAITALL)
/// or SO_RCVTIMEO; bytes already taken are always returned.
///
/// # Errors
/// EAGAIN, EINTR, the pending error once (ECONNRESET, ETIMEDOUT ...), ENOTCONN for a listener, EBADF.
pub fn recv(
    link: &Link,
    object: Object,
    parts: &mut [IoSliceMut<'_>],
    flags: RecvFlags,
    nonblocking: bool,
) -> Result<usize> {
    let cell = state::cell(link, object)?;
    let got = receive(link, object, cell, parts, flags, nonblocking)?;
    peek::note(cell, flags, got);
    Ok(got)
}

fn receive(
    link: &Link,
    object: Object,
    cell: &ObjectCell,
    parts: &mut [IoSliceMut<'_>],
    flags: RecvFlags,
    nonblocking: bool,
) -> Result<usize> {
    if cell.host.kind.load(Ordering::Acquire) == kind::LISTENER {
        return Err(Errno::NOTCONN);
    }
    let total: usize = parts.iter().map(|part| part.len()).sum();
    if total == 0 {
        return Ok(0);
    }
    let capacity = link.control.layout().rx_bytes(object.index);
    let low = low_water(cell, flags, total);
    let nonblocking = nonblocking || flags.dontwait;
    let offset = usize::try_from(peek::offset(cell, flags)).unwrap_or(usize::MAX);
    let kept = |done: usize| {
        if flags.peek {
            done.saturating_add(offset)
        } else {
            0
        }
    };
    let mut deadline = None;
    let mut done = 0;
    loop {
        let end = End::of(cell);
        let left = total - if flags.peek { 0 } else { done };
        let room = u64::try_from(left.saturating_add(offset)).unwrap_or(u64::MAX);
        if flags.cut && done > 0 && given_bytes(cell) > room {
            return Ok(done);
        }
        let copied = copy(link, object, cell, parts, done, flags)?;
        if flags.peek {
            done = copied;
        } else if copied > 0 {
            done += copied;
        }
        if done >= low
            || (done > 0 && (nonblocking || end.is_any() || is_at_mark(cell, kept(done))))
        {
            return Ok(done);
        }
        if done == 0 {
            if end.finished {
                return Ok(0);
            }
            if end.errored
                && let Some(error) = state::take_error(cell)
            {
                return Err(error);
            }
            if end.over {
                let what = cell.host.kind.load(Ordering::Acquire);
                let ended = cell.write.shut.load(Ordering::Acquire) & shut::ENDED != 0;
                if readiness::is_disconnected(cell, what) && !ended {
                    return Err(Errno::NOTCONN);
                }
                return Ok(0);
            }
            if nonblocking {
                if state::look_again(link, object)? {
                    continue;
                }
                return Err(Errno::AGAIN);
            }
        }
        // A sleeper is woken when as many bytes as the mark are there, whatever it asked for (tcp_data_ready). Bytes that are taken
        // leave the ring, so the next one is news; peeked ones stay in it.
        let mark = readiness::low_water(cell);
        let need = if flags.peek {
            u64::try_from(low)
                .unwrap_or(u64::MAX)
                .saturating_add(peek::offset(cell, flags))
                .max(mark)
                .min(u64::from(capacity))
        } else if options::is_cut(link, cell) {
            // No buffer holds what the program asked for, and what comes last may be less than a buffer.
            mark.min(u64::try_from(low - done).unwrap_or(u64::MAX))
        } else {
            mark
        };
        let until = match deadline {
            Some(until) => until,
            None => *deadline.insert(state::deadline(&cell.read.rcvtimeo_us)),
        };
        let mut ready = || {
            given_bytes(cell) >= need
                || End::of(cell).is_any()
                || link.is_dead()
                || done > 0 && is_at_mark(cell, kept(done))
        };
        match state::until(link, object, None, until, &mut ready) {
            Ok(()) => {
                // The host may have died in the wait.
                state::cell(link, object)?;
            }
            Err(_) if done > 0 => return Ok(done),
            // Bytes below the mark are returned at the time-out (sock_rcvlowat).
            Err(error) => {
                let copied = copy(link, object, cell, parts, done, flags)?;
                if copied == 0 {
                    return Err(error);
                }
                return Ok(copied);
            }
        }
    }
}

/// Bytes that a blocking call waits for (sock_rcvlowat).
fn low_water(cell: &ObjectCell, flags: RecvFlags, total: usize) -> usize {
    if flags.waitall {
        return total.saturating_add(usize::from(flags.cut));
    }
    usize::try_from(readiness::low_water(cell)).map_or(total, |low| low.min(total))
}

/// Copies what is there into `parts` from byte `done` of them on, and takes it unless it peeks.
fn copy(
    link: &Link,
    object: Object,
    cell: &ObjectCell,
    parts: &mut [IoSliceMut<'_>],
    done: usize,
    flags: RecvFlags,
) -> Result<usize> {
    let capacity = link.control.layout().rx_bytes(object.index);
    let total: usize = parts.iter().map(|part| part.len()).sum();
    let skip = if flags.peek { 0 } else { done };
    let want = u64::try_from(total.saturating_sub(skip)).unwrap_or(u64::MAX);
    loop {
        let Step { view, skipped } = Step::of(cell, capacity, peek::offset(cell, flags), want);
        let len = view.range.len();
        if len == 0 && (skipped == 0 || flags.peek) {
            return Ok(0);
        }
        if !flags.trunc
            && !scatter(
                link,
                object,
                view.head + u64::from(skipped),
                view.range.len(),
                parts,
                skip,
            )
        {
            return Err(Errno::IO);
        }
        if flags.peek {
            return Ok(len as usize);
        }
        let taken = skipped + len;
        if byte_ring::take(&cell.read, view.head, taken) {
            if view.head / WINDOW_STEP != (view.head + u64::from(taken)) / WINDOW_STEP {
                // The window may open.
                link.ring(object.index);
            }
            return Ok(len as usize);
        }
    }
}

/// Bytes read that the lcore need not hear of at once; whatever it does next for the flow, it sees them. Small against the
/// smallest window (a page), so that a sender is never held up by them, and large against a request.
const WINDOW_STEP: u64 = 1_024;

/// Copies `len` bytes of the ring from stream position `at` on into `parts` from byte `skip` of them on; false when the ring is not
/// where it should be.
fn scatter(
    link: &Link,
    object: Object,
    mut at: u64,
    len: u32,
    parts: &mut [IoSliceMut<'_>],
    mut skip: usize,
) -> bool {
    let capacity = link.control.layout().rx_bytes(object.index);
    let mut left = len as usize;
    for part in parts {
        let begin = skip.min(part.len());
        skip -= begin;
        let count = (part.len() - begin).min(left);
        let (Some(place), Ok(len)) = (part.get_mut(begin..begin + count), u32::try_from(count))
        else {
            return false;
        };
        if count > 0
            && !link
                .receive
                .copy_out(object.index, Range::new(at, len, capacity), place)
        {
            return false;
        }
        at += u64::from(len);
        left -= count;
    }
    left == 0
}

/// send(2) and its kin of `parts`. Non-blocking: what fits. Blocking: all of it, waiting for room at most SO_SNDTIMEO;
/// what fits into the ring at once is never mixed with another thread's bytes.
///
/// # Errors
/// EAGAIN, EINTR, the pending error once, EPIPE when nothing can be sent any more (the caller raises SIGPIPE), ENOTCONN,
/// EBADF. Bytes already queued are returned instead.
pub fn send(link: &Link, object: Object, parts: &[IoSlice<'_>], flags: SendFlags) -> Result<usize> {
    let nonblocking = flags.nonblocking;
    let cell = state::cell(link, object)?;
    let total: usize = parts.iter().map(|part| part.len()).sum();
    let capacity = link.control.layout().tx_bytes(object.index);
    let writer = Writer {
        link,
        object,
        cell,
        parts,
        flags,
        total,
        capacity,
    };
    let mut deadline = None;
    let mut done = 0;
    loop {
        if let Some(error) = writer.refusal() {
            if done > 0 {
                return Ok(done);
            }
            return Err(error());
        }
        let connecting = cell.host.kind.load(Ordering::Acquire) == kind::CONNECTING;
        if done == total && !connecting {
            return Ok(done);
        }
        if !connecting {
            let (written, held) = writer.write(done, nonblocking);
            done += written;
            if done == total {
                return Ok(done);
            }
            if held == Held::Nested {
                // The interrupted owner cannot publish while this handler waits.
                return if done > 0 {
                    Ok(done)
                } else {
                    Err(Errno::AGAIN)
                };
            }
        }
        if nonblocking {
            if done == 0 && state::look_again(link, object)? {
                continue;
            }
            // Also behind a short write, as Linux marks SOCK_NOSPACE: an edge-triggered caller does not ask again before
            // it is told.
            if !connecting && writer.is_room_there(1) {
                continue;
            }
            return if done > 0 {
                Ok(done)
            } else {
                Err(Errno::AGAIN)
            };
        }
        let until = match deadline {
            Some(until) => until,
            None => *deadline.insert(state::deadline(&cell.read.sndtimeo_us)),
        };
        let need = Cell::new(writer.need(done));
        let mut ready = || {
            need.set(writer.need(done));
            writer.refusal().is_some()
                || link.is_dead()
                || (cell.host.kind.load(Ordering::Acquire) != kind::CONNECTING
                    && writer.is_room_there(need.get()))
        };
        match state::until(link, object, None, until, &mut ready) {
            Ok(()) => {
                state::cell(link, object)?;
            }
            Err(error) => {
                // As Linux, which fills the buffer before it waits: what fits now goes out.
                if writer.refusal().is_none()
                    && cell.host.kind.load(Ordering::Acquire) == kind::STREAM
                {
                    done += writer.write(done, true).0;
                }
                return if done > 0 { Ok(done) } else { Err(error) };
            }
        }
    }
}

/// Whether a send that does not wait would take a byte.
///
/// # Errors
/// EBADF for a handle that is no more.
pub fn has_room(link: &Link, object: Object) -> Result<bool> {
    let cell = state::cell(link, object)?;
    let writer = Writer {
        link,
        object,
        cell,
        parts: &[],
        flags: SendFlags::default(),
        total: 1,
        capacity: link.control.layout().tx_bytes(object.index),
    };
    Ok(writer.is_room_there(1))
}

struct Writer<'a> {
    link: &'a Link,
    object: Object,
    cell: &'a ObjectCell,
    parts: &'a [IoSlice<'a>],
    flags: SendFlags,
    total: usize,
    capacity: u32,
}

impl Writer<'_> {
    /// Why nothing can be sent: a function that takes the pending error.
    fn refusal(&self) -> Option<impl Fn() -> Errno> {
        let cell = self.cell;
        let what = cell.host.kind.load(Ordering::Acquire);
        let broken = cell.host.flags.load(Ordering::Acquire) & (flag::TX_BROKEN | flag::OVER) != 0;
        let refused = what == kind::LISTENER
            || what == kind::FAILED
            || broken
            || cell.write.shut.load(Ordering::SeqCst) & shut::WRITE != 0
            || cell.host.error.load(Ordering::Acquire) != 0;
        // sk_stream_error: the pending error goes before EPIPE.
        refused.then_some(move || state::take_error(cell).unwrap_or(Errno::PIPE))
    }

    /// Bytes of room that a blocking write waits for: all of what is left when the ring can hold it at once.
    fn need(&self, done: usize) -> u64 {
        let left = u64::try_from(self.total - done).unwrap_or(u64::MAX);
        if left > u64::from(self.capacity) {
            return 1;
        }
        let backed = byte_ring::backed(&self.cell.host, &self.cell.write, self.capacity);
        let most = limit(self.cell).map_or(u64::MAX, |limit| limit.most());
        left.min(u64::from(backed)).min(most).max(1)
    }

    fn room(&self) -> u64 {
        let room = byte_ring::writable(&self.cell.host, &self.cell.write, self.capacity);
        match limit(self.cell) {
            None => room,
            Some(limit) => room.min(limit.room()),
        }
    }

    /// Whether `need` bytes fit; if not, asks the lcore for an edge, and looks again.
    fn is_room_there(&self, need: u64) -> bool {
        if self.room() >= need {
            return true;
        }
        self.cell.write.want_room.store(1, Ordering::SeqCst);
        // Pairs with the lcore's read of `want_room` after it has moved the head.
        fence(Ordering::SeqCst);
        if self.room() >= need {
            return true;
        }
        // It may have to put memory behind more of the ring.
        self.link.ring(self.object.index);
        false
    }

    /// Queues what fits of `parts` from byte `done` on: anything when `partly`, else what [`Writer::need`] says at least. Holds the
    /// owner word over the copy, so that no other thread's bytes come between.
    fn write(&self, done: usize, partly: bool) -> (usize, Held) {
        let word = &self.cell.write.tx_owner;
        let held = owner::take(self.link, word);
        // Pairs with the lcore, which takes the memory of an idle ring away and then looks whether it has an owner.
        fence_behind_update();
        if held == Held::FromDead {
            byte_ring::forget_unpublished(&self.cell.write);
        }
        self.grow(done);
        let need = if partly || held == Held::Nested {
            1
        } else {
            self.need(done)
        };
        let written = if self.room() >= need {
            self.copy_in(done, held == Held::Nested)
        } else {
            0
        };
        self.mark(written);
        if held != Held::Nested {
            owner::release(word, || byte_ring::publish(&self.cell.write));
        }
        if written > 0 {
            self.link.ring(self.object.index);
        }
        (written, held)
    }

    /// Says what is special about the bytes just reserved, before they are published.
    fn mark(&self, written: usize) {
        let write = &self.cell.write;
        if self.flags.urgent && written > 0 {
            let end = write.tx_reserved.load(Ordering::Relaxed);
            write.urgent_end.store(end, Ordering::Relaxed);
        }
        let more = u32::from(self.flags.more);
        if write.more.load(Ordering::Relaxed) != more {
            write.more.store(more, Ordering::Relaxed);
        }
    }

    /// Puts memory behind more of the ring when the bytes from `done` on need it. A connection begins with a page, and Linux would
    /// take more at once.
    fn grow(&self, done: usize) {
        let (host, write) = (&self.cell.host, &self.cell.write);
        let want = u64::try_from(self.total - done).unwrap_or(u64::MAX);
        if let Some(bytes) = byte_ring::growth_for(host, write, self.capacity, want)
            && self.link.control.tx_populate(self.object.index, bytes)
        {
            // Release: the memory is there before it counts.
            write.tx_grown.fetch_max(bytes, Ordering::Release);
        }
    }

    fn copy_in(&self, done: usize, nested: bool) -> usize {
        let mut want = u64::try_from(self.total - done).unwrap_or(u64::MAX);
        let cell = self.cell;
        if let Some(limit) = limit(cell) {
            want = want.min(limit.room());
        }
        let range = byte_ring::reserve(&cell.host, &cell.write, self.capacity, want, nested).range;
        let mut at = u64::from(range.first.offset);
        let mut left = range.len() as usize;
        let mut skip = done;
        for part in self.parts {
            let begin = skip.min(part.len());
            skip -= begin;
            let count = (part.len() - begin).min(left);
            if let (Some(bytes), Ok(len)) = (part.get(begin..begin + count), u32::try_from(count)) {
                let place = Range::new(at, len, self.capacity);
                self.link
                    .control
                    .tx_copy_in(self.object.index, place, bytes);
                at += u64::from(len);
                left -= count;
            }
        }
        range.len() as usize
    }
}

#[cfg(test)]
mod tests;
