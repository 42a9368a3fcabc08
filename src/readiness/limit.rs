//! What a program may queue for sending when it has set a limit below the ring: SO_SNDBUF, TCP_NOTSENT_LOWAT.
//!
//! After sk_stream_memory_free and sk_stream_is_writeable of Linux. SO_SNDBUF counts memory there, half of which is bytes.
//! Whoever sets none pays for a flag.

use crate::channel::cell::{ObjectCell, flag};
use crate::channel::sync::Ordering;

/// The limits of one socket, and what it has queued.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limit {
    /// Bytes not acknowledged, at most.
    buffer: u64,
    /// Bytes not sent, at most.
    mark: u64,
    queued: u64,
    unsent: u64,
}

/// The limits; None for nearly every socket.
#[must_use]
pub fn limit(cell: &ObjectCell) -> Option<Limit> {
    if cell.host.flags.load(Ordering::Acquire) & flag::LIMITED == 0 {
        return None;
    }
    Some(find(cell))
}

#[cold]
fn find(cell: &ObjectCell) -> Limit {
    let word = |value: u32, limit: u64| if value == 0 { u64::MAX } else { limit };
    let sndbuf = cell.option.sndbuf.load(Ordering::Relaxed);
    let mark = cell.option.notsent_lowat.load(Ordering::Relaxed);
    // What the host has done first: it can only be more by the time that the rest is read.
    let acked = cell.host.tx_acked.load(Ordering::Acquire);
    let head = cell.host.tx_head.load(Ordering::Acquire);
    let waiting = cell.fact.unsent.load(Ordering::Relaxed);
    let reserved = cell.write.tx_reserved.load(Ordering::Relaxed);
    Limit {
        buffer: word(sndbuf, u64::from(sndbuf / 2)),
        mark: word(mark, u64::from(mark)),
        queued: reserved.saturating_sub(acked),
        unsent: reserved.saturating_sub(head) + u64::from(waiting),
    }
}

impl Limit {
    /// Bytes that may be queued now.
    #[must_use]
    pub fn room(&self) -> u64 {
        let by_buffer = self.buffer.saturating_sub(self.queued);
        by_buffer.min(self.mark.saturating_sub(self.unsent))
    }

    /// Bytes that may be queued when nothing is.
    #[must_use]
    pub fn most(&self) -> u64 {
        self.buffer.min(self.mark)
    }

    /// Whether poll says that it is writable: a third of the buffer is free, and half of the mark.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.buffer.saturating_sub(self.queued) >= self.queued / 2
            && self.unsent.saturating_mul(2) < self.mark
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    fn cell(sndbuf: u32, mark: u32, reserved: u64, head: u64, acked: u64) -> ObjectCell {
        let cell = ObjectCell::default();
        cell.host.flags.store(flag::LIMITED, Ordering::Relaxed);
        cell.option.sndbuf.store(sndbuf, Ordering::Relaxed);
        cell.option.notsent_lowat.store(mark, Ordering::Relaxed);
        cell.write.tx_reserved.store(reserved, Ordering::Relaxed);
        cell.host.tx_head.store(head, Ordering::Relaxed);
        cell.host.tx_acked.store(acked, Ordering::Relaxed);
        cell
    }

    #[test]
    fn a_socket_without_a_limit_has_none() {
        assert_eq!(limit(&ObjectCell::default()), None);
        let both = limit(&cell(0, 0, 1 << 40, 0, 0)).unwrap();
        assert!(both.room() > 1 << 50 && both.is_writable());
    }

    #[test]
    fn a_send_buffer_counts_what_is_not_acknowledged() {
        let at = |reserved, acked| limit(&cell(6_000, 0, reserved, reserved, acked)).unwrap();
        assert_eq!((at(0, 0).room(), at(0, 0).most()), (3_000, 3_000));
        assert_eq!(at(2_999, 0).room(), 1);
        assert_eq!(at(9_000, 5_000).room(), 0);
        assert!(at(2_000, 0).is_writable());
        assert!(!at(2_002, 0).is_writable(), "less than a third is free");
    }

    #[test]
    fn a_low_water_mark_counts_what_is_not_sent() {
        let at = |reserved, head| limit(&cell(0, 1_000, reserved, head, 0)).unwrap();
        assert_eq!(at(5_000, 4_900).room(), 900);
        assert!(at(5_000, 4_501).is_writable());
        assert!(!at(5_000, 4_500).is_writable());
        let waiting = cell(0, 1_000, 5_000, 5_000, 0);
        waiting.fact.unsent.store(600, Ordering::Relaxed);
        assert!(!limit(&waiting).unwrap().is_writable());
    }
}
