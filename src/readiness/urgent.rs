//! The mark of urgent data in a stream that is being read, after tcp_recvmsg and tcp_poll of Linux.
//!
//! The host tells where the peer's urgent byte lies ([`FactLine::urgent`]); it is in the receive ring like any other. The mark
//! holds until reading has passed it. Nobody who never gets any looks further than a flag.
//!
//! [`FactLine::urgent`]: crate::channel::cell::FactLine::urgent

use super::readable_bytes;
use crate::channel::cell::{ObjectCell, flag, option};
use crate::channel::sync::Ordering;

/// The urgent byte that reading has not passed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mark {
    /// Bytes before it that are not read.
    pub ahead: u64,
    /// Its stream position.
    pub position: u64,
    /// It is there, not only announced (TCP_URG_VALID).
    pub arrived: bool,
    /// It was taken out of line (TCP_URG_READ).
    pub taken: bool,
    /// It is read in line (SO_OOBINLINE).
    pub inline: bool,
}

impl Mark {
    /// Whether reading has come to a byte that it steps over.
    #[must_use]
    pub const fn is_stepped_over(&self) -> bool {
        self.ahead == 0 && !self.inline
    }
}

/// The mark ahead of what was read; None in nearly every stream.
#[must_use]
pub fn mark(cell: &ObjectCell) -> Option<Mark> {
    if cell.host.flags.load(Ordering::Acquire) & flag::URGENT == 0 {
        return None;
    }
    find(cell)
}

#[cold]
fn find(cell: &ObjectCell) -> Option<Mark> {
    let end = cell.fact.urgent.load(Ordering::Acquire);
    let position = end.checked_sub(1)?;
    let head = cell.read.rx_head.load(Ordering::Acquire);
    Some(Mark {
        ahead: position.checked_sub(head)?,
        position,
        arrived: cell.host.rx_tail.load(Ordering::Acquire) > position,
        taken: cell.read.urgent_taken.load(Ordering::Acquire) == end,
        inline: cell.option.bits.load(Ordering::Relaxed) & option::OOB_INLINE != 0,
    })
}

/// Bytes that a receive can give at once, beyond the mark included: as [`readable_bytes`], less the urgent byte that reading
/// would step over first.
#[must_use]
pub fn given_bytes(cell: &ObjectCell) -> u64 {
    let skipped = mark(cell).is_some_and(|mark| mark.is_stepped_over() && mark.arrived);
    readable_bytes(cell).saturating_sub(u64::from(skipped))
}

/// Bytes up to the mark, or all of them (tcp_inq).
#[must_use]
pub fn unread_bytes(cell: &ObjectCell) -> u64 {
    let readable = readable_bytes(cell);
    match mark(cell) {
        Some(mark) if !mark.inline && mark.arrived => readable.min(mark.ahead),
        _ => readable,
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    fn cell(head: u64, tail: u64, end: u64) -> ObjectCell {
        let cell = ObjectCell::default();
        cell.host.flags.store(flag::URGENT, Ordering::Relaxed);
        cell.fact.urgent.store(end, Ordering::Relaxed);
        cell.read.rx_head.store(head, Ordering::Relaxed);
        cell.host.rx_tail.store(tail, Ordering::Relaxed);
        cell
    }

    #[test]
    fn the_mark_holds_until_reading_has_passed_it() {
        assert_eq!(mark(&ObjectCell::default()), None);
        let before = mark(&cell(3, 8, 6)).unwrap();
        assert_eq!((before.ahead, before.position), (2, 5));
        assert!(before.arrived && !before.is_stepped_over());
        assert!(mark(&cell(5, 8, 6)).unwrap().is_stepped_over());
        assert_eq!(mark(&cell(6, 8, 6)), None);
        assert!(!mark(&cell(3, 5, 6)).unwrap().arrived, "only announced");
    }

    #[test]
    fn what_is_unread_ends_at_the_mark_unless_it_is_in_line() {
        let plain = cell(3, 9, 6);
        assert_eq!((unread_bytes(&plain), given_bytes(&plain)), (2, 6));
        let at_it = cell(5, 9, 6);
        assert_eq!((unread_bytes(&at_it), given_bytes(&at_it)), (0, 3));
        at_it
            .option
            .bits
            .store(option::OOB_INLINE, Ordering::Relaxed);
        assert_eq!((unread_bytes(&at_it), given_bytes(&at_it)), (4, 4));
        let announced = cell(3, 5, 6);
        assert_eq!(unread_bytes(&announced), 2);
    }
}
