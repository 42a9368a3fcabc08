//! Urgent data of a stream, after tcp_recv_urg and the urgent half of tcp_recvmsg (Linux net/ipv4/tcp.c).

use std::io::IoSliceMut;

use super::{End, state};
use crate::attach::{Link, Object};
use crate::channel::byte_ring::{self, Range, Readable};
use crate::channel::cell::{ObjectCell, flag, kind};
use crate::channel::sync::Ordering;
use crate::errno::{Errno, Result};
use crate::readiness;
use crate::readiness::urgent::{Mark, mark};

/// What one step of a receive may take.
#[derive(Clone, Copy)]
pub(super) struct Step {
    /// Where the bytes lie.
    pub(super) view: Readable,
    /// Bytes before them that are stepped over.
    pub(super) skipped: u32,
}

/// An offset beyond the ring finds nothing, whatever it is.
fn skipped_bytes(offset: u64) -> u32 {
    u32::try_from(offset).unwrap_or(u32::MAX)
}

impl Step {
    /// What lies at the head, or `offset` bytes behind it, `want` bytes at most: up to the mark, or from behind the urgent byte on.
    pub(super) fn of(cell: &ObjectCell, capacity: u32, offset: u64, want: u64) -> Self {
        loop {
            let Some(mark) = mark(cell) else {
                let view = byte_ring::readable(&cell.host, &cell.read, capacity, offset, want);
                return Self {
                    view,
                    skipped: skipped_bytes(offset),
                };
            };
            if let Some(step) = Self::about(&mark, cell, capacity, offset, want) {
                return step;
            }
        }
    }

    /// None when another thread has read on meanwhile.
    #[cold]
    fn about(
        mark: &Mark,
        cell: &ObjectCell,
        capacity: u32,
        offset: u64,
        want: u64,
    ) -> Option<Self> {
        let is_here = mark.ahead == offset;
        let skipped = offset + u64::from(is_here && !mark.inline && mark.arrived);
        let want = if mark.ahead > offset {
            want.min(mark.ahead - offset)
        } else {
            want
        };
        let view = byte_ring::readable(&cell.host, &cell.read, capacity, skipped, want);
        (view.head + mark.ahead == mark.position).then_some(Self {
            view,
            skipped: skipped_bytes(skipped),
        })
    }
}

/// Whether a receive that has some bytes ends there, because the next one is urgent; `peeked` of them were not taken.
pub(super) fn is_at_mark(cell: &ObjectCell, peeked: usize) -> bool {
    mark(cell).is_some_and(|mark| mark.ahead == peeked as u64)
}

/// The pending urgent byte (recv with MSG_OOB), out of line; with `peek` it stays pending. Never waits. 0 at the end of the stream.
///
/// # Errors
/// EINVAL when there is none, when it was taken, or when it comes in line; EAGAIN when it is announced only; ENOTCONN, EBADF.
pub fn recv_urgent(
    link: &Link,
    object: Object,
    parts: &mut [IoSliceMut<'_>],
    peek: bool,
    trunc: bool,
) -> Result<usize> {
    let cell = state::cell(link, object)?;
    let what = cell.host.kind.load(Ordering::Acquire);
    if what == kind::LISTENER {
        return Err(Errno::NOTCONN);
    }
    let mark = mark(cell)
        .filter(|mark| !mark.inline && !mark.taken)
        .ok_or(Errno::INVAL)?;
    let end = End::of(cell);
    // Reset, and not ended by the peer's FIN.
    let is_reset = cell.host.flags.load(Ordering::Acquire) & flag::OVER != 0 && !end.finished;
    if is_reset || readiness::is_disconnected(cell, what) {
        return Err(Errno::NOTCONN);
    }
    if !mark.arrived {
        return if end.over || end.finished {
            Ok(0)
        } else {
            Err(Errno::AGAIN)
        };
    }
    let mut byte = [0];
    let capacity = link.control.layout().rx_bytes(object.index);
    let place = Range::new(mark.position, 1, capacity);
    if !link.receive.copy_out(object.index, place, &mut byte) {
        return Err(Errno::IO);
    }
    if !peek {
        let taken = &cell.read.urgent_taken;
        let before = taken.load(Ordering::Acquire);
        let end = mark.position + 1;
        let is_ours = before != end
            && taken
                .compare_exchange(before, end, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok();
        if !is_ours {
            return Err(Errno::INVAL);
        }
    }
    let Some(room) = parts.iter_mut().find_map(|part| part.first_mut()) else {
        return Ok(0);
    };
    if !trunc {
        *room = byte[0];
    }
    Ok(1)
}
