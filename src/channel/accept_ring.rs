//! The accept queues of a listener: object indices in the listener's receive ring memory, one queue an lcore.
//!
//! An lcore pushes into its own queue, program threads of any process pop by compare-and-swap on the queue's head; the entries
//! are read-only in the program. A popper first marks the object as held by its process and then pops, so that its death
//! leaves an object that either is still queued or has a holder.

use super::cell::{ObjectCell, QueueLine};
use super::sync::{AtomicU32, Ordering};

/// Entries of one queue where `lcores` of them lie in a ring of `rx_ring_bytes` bytes: what fits, 4 096 at most (Linux'
/// somaxconn). A power of two.
///
/// Both sides must use this number, because a position lies at `position % entries`.
#[must_use]
pub const fn entries(rx_ring_bytes: u32, lcores: u32) -> u32 {
    let fit = rx_ring_bytes / 4 / lcores.next_power_of_two();
    if fit < 4_096 { fit } else { 4_096 }
}

/// The queue of one lcore.
#[derive(Clone, Copy, Debug)]
pub struct Queue<'a> {
    tail: &'a AtomicU32,
    head: &'a AtomicU32,
    entries: &'a [AtomicU32],
}

/// The entry to be popped next and the position it was seen at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Front {
    /// Position in the queue.
    pub position: u32,
    /// Object index of the flow.
    pub object: u32,
}

impl<'a> Queue<'a> {
    /// The queue of `lcore` of the listener with this cell, whose `entries` lie in receive memory.
    #[must_use]
    pub fn new(cell: &'a ObjectCell, lcore: u32, entries: &'a [AtomicU32]) -> Option<Self> {
        Self::of(&cell.queue, lcore, entries)
    }

    /// As [`Queue::new`], of a line alone.
    #[must_use]
    pub fn of(line: &'a QueueLine, lcore: u32, entries: &'a [AtomicU32]) -> Option<Self> {
        Some(Self {
            tail: line.tails.get(lcore as usize)?,
            head: line.heads.get(lcore as usize)?,
            entries,
        })
    }

    /// The entry at `position`.
    #[must_use]
    pub fn entry(&self, position: u32) -> Option<&'a AtomicU32> {
        self.entries
            .get(position as usize % self.entries.len().max(1))
    }

    /// Looks at the first entry of the queue.
    #[must_use]
    pub fn front(&self) -> Option<Front> {
        let position = self.head.load(Ordering::Acquire);
        // Acquire: the entry is written before the tail moves over it.
        let queued = self.tail.load(Ordering::Acquire).wrapping_sub(position);
        if queued == 0 || queued as usize > self.entries.len() {
            return None;
        }
        let object = self.entry(position)?.load(Ordering::Relaxed);
        Some(Front { position, object })
    }

    /// Pops the entry seen by [`Queue::front`]; false when another thread was quicker.
    #[must_use]
    pub fn pop(&self, front: Front) -> bool {
        self.head
            .compare_exchange(
                front.position,
                front.position.wrapping_add(1),
                Ordering::AcqRel,
                Ordering::Relaxed,
            )
            .is_ok()
    }

    /// How far the program has popped.
    #[must_use]
    pub fn head(&self) -> u32 {
        self.head.load(Ordering::Acquire)
    }

    /// Puts `object` at position `tail`, and moves the tail over it.
    pub fn push_at(&self, tail: u32, object: u32) {
        if let Some(entry) = self.entry(tail) {
            entry.store(object, Ordering::Relaxed);
            // Release: the entry is written before the tail moves over it.
            self.tail.store(tail.wrapping_add(1), Ordering::Release);
        }
    }

    /// Empties the queue: it goes on at `position`.
    pub fn restart(&self, position: u32) {
        self.head.store(position, Ordering::Release);
        self.tail.store(position, Ordering::Release);
    }

    /// Pushes `object`; false when the queue is full or the program has broken its head.
    #[must_use]
    pub fn push(&self, object: u32) -> bool {
        let tail = self.tail.load(Ordering::Relaxed);
        let queued = tail.wrapping_sub(self.head.load(Ordering::Acquire));
        let room = (queued as usize) < self.entries.len();
        if room {
            self.push_at(tail, object);
        }
        room
    }
}

/// Flows that wait in all queues of a listener.
#[must_use]
pub fn queued(line: &QueueLine) -> u32 {
    line.heads
        .iter()
        .zip(&line.tails)
        .fold(0, |sum, (head, tail)| {
            let head = head.load(Ordering::Acquire);
            sum + tail.load(Ordering::Acquire).wrapping_sub(head).min(4_096)
        })
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    fn memory() -> Vec<AtomicU32> {
        (0..4).map(|_| AtomicU32::new(0)).collect()
    }

    #[test]
    fn order_is_kept_and_the_bound_holds() {
        let line = QueueLine::default();
        let entries = memory();
        let queue = Queue::of(&line, 0, &entries).unwrap();
        // Positions go round.
        queue.restart(u32::MAX - 5);
        for round in 0..3 {
            for n in 0..4 {
                assert!(queue.push(round * 10 + n));
            }
            assert!(!queue.push(99));
            assert_eq!(queued(&line), 4);
            for n in 0..4 {
                let seen = queue.front().unwrap();
                assert_eq!(seen.object, round * 10 + n);
                assert!(queue.pop(seen));
                assert!(!queue.pop(seen), "an entry goes to one thread");
            }
            assert_eq!(queue.front(), None);
        }
    }

    #[test]
    fn each_lcore_has_a_queue_of_its_own() {
        let cell = ObjectCell::default();
        let (first, second) = (memory(), memory());
        let one = Queue::new(&cell, 0, &first).unwrap();
        let other = Queue::new(&cell, 7, &second).unwrap();
        assert!(Queue::new(&cell, 8, &first).is_none());
        assert!(one.push(5) && other.push(6) && other.push(7));
        assert_eq!(queued(&cell.queue), 3);
        assert!(other.pop(other.front().unwrap()));
        assert_eq!(one.front().unwrap().object, 5);
        assert_eq!(other.front().unwrap().object, 7);
        assert_eq!(queued(&cell.queue), 2);
    }

    #[test]
    fn all_queues_fit_into_one_ring() {
        for lcores in 1..=8 {
            for ring in [4_096, 16_384, 256 << 10] {
                let entries = entries(ring, lcores);
                assert!(entries.is_power_of_two() && entries * 4 * lcores <= ring);
            }
        }
        assert_eq!(entries(256 << 10, 1), 4_096);
    }
}
