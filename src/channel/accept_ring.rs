//! The accept queue of a listener: object indices in the listener's receive ring memory.
//!
//! The lcore pushes, program threads of any process pop by compare-and-swap on `rx_head`; the memory is
//! read-only in the program. A popper first marks the object as held by its process and then pops, so
//! that its death leaves an object that either is still queued or has a holder.

use super::cell::{HostLine, ReadLine};
use super::sync::{AtomicU32, Ordering};

/// Entries of the queue of a listener whose ring has `rx_ring_bytes` bytes: what fits, 4 096 at most (Linux' somaxconn).
///
/// Both sides must use this number, because a position lies at `position % entries`.
#[must_use]
pub const fn entries(rx_ring_bytes: u32) -> u32 {
    let fit = rx_ring_bytes / 4;
    if fit < 4_096 { fit } else { 4_096 }
}

/// The entry to be popped next and the position it was seen at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Front {
    /// Position in the queue.
    pub position: u64,
    /// Object index of the flow.
    pub object: u32,
}

/// Looks at the first entry of the queue.
#[must_use]
pub fn front(host: &HostLine, read: &ReadLine, entries: &[AtomicU32]) -> Option<Front> {
    let position = read.rx_head.load(Ordering::Acquire);
    // Acquire: the entry is written before the tail moves over it.
    if position >= host.rx_tail.load(Ordering::Acquire) {
        return None;
    }
    let place = usize::try_from(position).ok()? % entries.len().max(1);
    let object = entries.get(place)?.load(Ordering::Relaxed);
    Some(Front { position, object })
}

/// Pops the entry seen by [`front`]; false when another thread was quicker.
pub fn pop(read: &ReadLine, front: Front) -> bool {
    read.rx_head
        .compare_exchange(
            front.position,
            front.position + 1,
            Ordering::AcqRel,
            Ordering::Relaxed,
        )
        .is_ok()
}

/// Pushes `object`; false when the queue is full or the program has broken its head.
pub fn push(host: &HostLine, read: &ReadLine, entries: &[AtomicU32], object: u32) -> bool {
    let tail = host.rx_tail.load(Ordering::Relaxed);
    let queued = tail.checked_sub(read.rx_head.load(Ordering::Acquire));
    let room = queued
        .and_then(|queued| usize::try_from(queued).ok())
        .is_some_and(|q| q < entries.len());
    let place = usize::try_from(tail).unwrap_or(0) % entries.len().max(1);
    match entries.get(place) {
        Some(entry) if room => {
            entry.store(object, Ordering::Relaxed);
            host.rx_tail.store(tail + 1, Ordering::Release);
            true
        }
        _ => false,
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn order_is_kept_and_the_bound_holds() {
        let (host, read) = (HostLine::default(), ReadLine::default());
        let entries: Vec<AtomicU32> = (0..4).map(|_| AtomicU32::new(0)).collect();
        for round in 0..3 {
            for n in 0..4 {
                assert!(push(&host, &read, &entries, round * 10 + n));
            }
            assert!(!push(&host, &read, &entries, 99));
            for n in 0..4 {
                let seen = front(&host, &read, &entries).unwrap();
                assert_eq!(seen.object, round * 10 + n);
                assert!(pop(&read, seen));
                assert!(!pop(&read, seen), "an entry goes to one thread");
            }
            assert_eq!(front(&host, &read, &entries), None);
        }
    }
}
