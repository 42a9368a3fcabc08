//! The two byte rings of a flow, as positions: where bytes lie and who may move which position.
//!
//! *Transmit.* The owner ([`super::owner`]) reserves a range, copies, and publishes it with one release store of
//! `tx_tail`. A nested call reserves behind the interrupted one; the interrupted one publishes both. When
//! the ring is empty its origin moves to the present position, so that small messages stay on the first
//! lines. Only the first `tx_backed` bytes may be touched until all of the ring has memory; the owner may put memory behind more
//! of them (`tx_grown`) before it says that there is no room.
//!
//! *Receive.* A reader copies from `rx_head` on and then moves `rx_head` by compare-and-swap; who loses the
//! race has copied in vain and starts again. So a reader killed at any point has taken nothing.

use super::cell::{HostLine, ReadLine, WriteLine};
use super::sync::{Ordering, fence};

/// A contiguous part of a ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    /// Offset in the ring, in bytes.
    pub offset: u32,
    /// Length in bytes.
    pub len: u32,
}

/// A range of a ring: the part up to its end, and the part from its start (often empty).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Range {
    /// The first part.
    pub first: Span,
    /// What went round the end.
    pub second: Span,
}

impl Range {
    /// The range of `len` bytes from `offset` in a ring of `capacity` bytes.
    #[must_use]
    pub fn new(offset: u64, len: u32, capacity: u32) -> Self {
        let all = u64::from(capacity.max(1));
        // Every ring of the channel is a power of two, and a division is as dear as the rest of a short call.
        let offset = if all.is_power_of_two() {
            offset & (all - 1)
        } else {
            offset % all
        };
        let offset = u32::try_from(offset).unwrap_or(0);
        let first = len.min(capacity - offset);
        Self {
            first: Span { offset, len: first },
            second: Span {
                offset: 0,
                len: len - first,
            },
        }
    }

    /// Bytes in both parts.
    #[must_use]
    pub const fn len(&self) -> u32 {
        self.first.len + self.second.len
    }

    /// Whether there is nothing in it.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A reader's view of what can be read now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Readable {
    /// `rx_head` at the time.
    pub head: u64,
    /// Where the bytes lie.
    pub range: Range,
}

/// What can be read from a flow's receive ring of `capacity` bytes, `want` at most, from `skip` bytes behind the head
/// on (peeking further).
#[must_use]
pub fn readable(host: &HostLine, read: &ReadLine, capacity: u32, skip: u64, want: u64) -> Readable {
    // The head first: a tail read later can only be larger. Acquire on the tail: the bytes before it are there.
    let head = read.rx_head.load(Ordering::Acquire);
    let tail = host.rx_tail.load(Ordering::Acquire);
    let ready = tail
        .saturating_sub(head)
        .min(u64::from(capacity))
        .saturating_sub(skip);
    let len = u32::try_from(ready.min(want)).unwrap_or(capacity);
    Readable {
        head,
        range: Range::new(head.saturating_add(skip), len, capacity),
    }
}

/// Takes `count` bytes that were copied from `head` on; false when another reader took them first.
pub fn take(read: &ReadLine, head: u64, count: u32) -> bool {
    // Release: our copy is finished before the lcore may reuse the place.
    let next = head + u64::from(count);
    read.rx_head
        .compare_exchange(head, next, Ordering::AcqRel, Ordering::Relaxed)
        .is_ok()
}

/// A reserved range of the transmit ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reserved {
    /// Where to copy to.
    pub range: Range,
}

/// Reserves up to `want` bytes of a transmit ring of `capacity` bytes; an empty range when there is no room. The caller owns
/// `tx_owner` (or is nested in its owner: `nested`).
#[must_use]
pub fn reserve(
    host: &HostLine,
    write: &WriteLine,
    capacity: u32,
    want: u64,
    nested: bool,
) -> Reserved {
    loop {
        let reserved = write.tx_reserved.load(Ordering::Relaxed);
        // Acquire: the lcore has copied out everything before the head.
        let head = host.tx_head.load(Ordering::Acquire);
        let backed = backed(host, write, capacity);
        if head == reserved && write.tx_tail.load(Ordering::Relaxed) == reserved {
            // Empty: begin again at the start. Idempotent, so a nested call may do it in the middle of ours.
            write.tx_origin.store(reserved, Ordering::Relaxed);
        }
        let room = room(
            head,
            reserved,
            write.tx_origin.load(Ordering::Relaxed),
            backed,
            capacity,
        );
        let count = room.min(want);
        let len = u32::try_from(count).unwrap_or(0);
        let start = reserved.wrapping_sub(write.tx_origin.load(Ordering::Relaxed));
        let range = Range::new(start, len, capacity);
        // Fails only when a signal handler of this thread came between: then look again.
        if write
            .tx_reserved
            .compare_exchange(
                reserved,
                reserved + count,
                Ordering::Relaxed,
                Ordering::Relaxed,
            )
            .is_ok()
        {
            if nested {
                write.tx_owner.mark_nested();
            }
            return Reserved { range };
        }
    }
}

/// Bytes that can be reserved at `reserved`.
fn room(head: u64, reserved: u64, origin: u64, backed: u32, capacity: u32) -> u64 {
    let queued = reserved.saturating_sub(head);
    let free = u64::from(capacity).saturating_sub(queued);
    if backed == capacity {
        return free;
    }
    free.min(u64::from(backed).saturating_sub(reserved.saturating_sub(origin)))
}

/// Room for new bytes as poll and epoll see it, without reserving any.
#[must_use]
pub fn writable(host: &HostLine, write: &WriteLine, capacity: u32) -> u64 {
    let reserved = write.tx_reserved.load(Ordering::Relaxed);
    let head = host.tx_head.load(Ordering::Acquire);
    let backed = backed(host, write, capacity);
    let origin = if head == reserved {
        reserved
    } else {
        write.tx_origin.load(Ordering::Relaxed)
    };
    room(head, reserved, origin, backed, capacity)
}

/// Bytes of the ring, from its start, that have memory as far as a writer knows.
#[must_use]
pub fn backed(host: &HostLine, write: &WriteLine, capacity: u32) -> u32 {
    // Acquire: the memory is there before either says so.
    match host.tx_backed.load(Ordering::Acquire) {
        LEAVING => 0,
        host => host
            .max(write.tx_grown.load(Ordering::Acquire))
            .min(capacity),
    }
}

/// Value of `tx_backed` while the lcore takes the memory of an idle ring away: a writer must not put any there meanwhile, and
/// asks for room instead.
pub const LEAVING: u32 = u32::MAX;

/// Begins to take the memory of an empty ring away (host side); false when somebody writes or has written. After
/// [`finish_leaving`] the ring has none.
///
/// A writer takes `tx_owner` and then looks at `tx_backed`; here it is the other way round, with a fence between on both sides:
/// one of the two sees the other.
#[must_use]
pub fn begin_leaving(host: &HostLine, write: &WriteLine) -> bool {
    let head = host.tx_head.load(Ordering::Relaxed);
    let before = host.tx_backed.swap(LEAVING, Ordering::SeqCst);
    fence(Ordering::SeqCst);
    let unused = write.tx_owner.word().load(Ordering::SeqCst) == 0
        && write.tx_tail.load(Ordering::Acquire) == head
        && write.tx_reserved.load(Ordering::Relaxed) == head;
    if unused {
        // Nobody owns the ring, and who takes it now leaves this word alone until `finish_leaving`.
        write.tx_grown.store(0, Ordering::Relaxed);
    } else {
        host.tx_backed.store(before, Ordering::Release);
    }
    unused
}

/// The memory is gone: writers may put new there.
pub fn finish_leaving(host: &HostLine) {
    // Release: the memory was taken away before.
    host.tx_backed.store(0, Ordering::Release);
}

/// How many bytes of the ring need memory so that `want` more bytes fit, as far as the ring's capacity allows; None when they
/// have it. The caller owns `tx_owner`.
#[must_use]
pub fn growth_for(host: &HostLine, write: &WriteLine, capacity: u32, want: u64) -> Option<u32> {
    let backed = backed(host, write, capacity);
    if backed >= capacity || host.tx_backed.load(Ordering::Acquire) == LEAVING {
        return None;
    }
    let reserved = write.tx_reserved.load(Ordering::Relaxed);
    let used = if host.tx_head.load(Ordering::Acquire) == reserved {
        0
    } else {
        reserved.saturating_sub(write.tx_origin.load(Ordering::Relaxed))
    };
    let end = used.saturating_add(want).min(u64::from(capacity));
    let end = u32::try_from(end).unwrap_or(capacity).next_power_of_two();
    (end > backed).then_some(end.min(capacity).max(PAGE))
}

/// Where the published bytes end, in bytes from the start of the ring: the lcore puts memory behind that much before it reads.
#[must_use]
pub fn extent(write: &WriteLine) -> u64 {
    let tail = write.tx_tail.load(Ordering::Acquire);
    tail.saturating_sub(write.tx_origin.load(Ordering::Relaxed))
}

/// The unit of memory.
const PAGE: u32 = 4_096;

/// Makes everything reserved visible to the lcore. The caller owns `tx_owner`, and calls it through
/// [`super::owner::OwnerWord::release`].
pub fn publish(write: &WriteLine) {
    // Release: the bytes and the origin are written before.
    write
        .tx_tail
        .store(write.tx_reserved.load(Ordering::Relaxed), Ordering::Release);
}

/// Forgets what a dead owner reserved and did not publish. The caller has just taken `tx_owner` over.
pub fn forget_unpublished(write: &WriteLine) {
    write
        .tx_reserved
        .store(write.tx_tail.load(Ordering::Acquire), Ordering::Relaxed);
}

/// What the lcore finds in a transmit ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pending {
    /// These bytes, from `tx_head` on.
    Bytes(Range),
    /// The positions make no sense: the program has broken its own channel.
    Broken,
}

/// What is published and not yet taken, given the lcore's own idea of the head.
#[must_use]
pub fn pending(write: &WriteLine, head: u64, backed: u32, capacity: u32) -> Pending {
    // Acquire: pairs with `publish`. While the ring is not empty the origin does not move.
    let tail = write.tx_tail.load(Ordering::Acquire);
    let Some(queued) = tail.checked_sub(head) else {
        return Pending::Broken;
    };
    if queued == 0 {
        return Pending::Bytes(Range::new(0, 0, capacity));
    }
    let origin = write.tx_origin.load(Ordering::Relaxed);
    let (Ok(len), Some(start)) = (u32::try_from(queued), head.checked_sub(origin)) else {
        return Pending::Broken;
    };
    if len > capacity || (backed < capacity && start + queued > u64::from(backed)) {
        return Pending::Broken;
    }
    Pending::Bytes(Range::new(start, len, capacity))
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::channel::owner::Taken;

    const CAPACITY: u32 = 16;

    struct Ring {
        host: HostLine,
        write: WriteLine,
        bytes: Vec<u8>,
        head: u64,
    }

    impl Ring {
        fn new(backed: u32) -> Self {
            let host = HostLine::default();
            host.tx_backed.store(backed, Ordering::Relaxed);
            Self {
                host,
                write: WriteLine::default(),
                bytes: vec![0; CAPACITY as usize],
                head: 0,
            }
        }

        fn copy_in(&mut self, range: Range, from: &[u8]) {
            let (first, second) = from.split_at(range.first.len as usize);
            self.bytes[range.first.offset as usize..][..first.len()].copy_from_slice(first);
            self.bytes[..second.len()].copy_from_slice(second);
        }

        fn write(&mut self, from: &[u8]) -> usize {
            assert_eq!(self.write.tx_owner.take(1), Taken::Owned);
            let range = reserve(&self.host, &self.write, CAPACITY, from.len() as u64, false).range;
            self.copy_in(range, &from[..range.len() as usize]);
            self.write.tx_owner.release(1, || publish(&self.write));
            range.len() as usize
        }

        fn read(&mut self, want: u32) -> Vec<u8> {
            let backed = self.host.tx_backed.load(Ordering::Relaxed);
            let Pending::Bytes(range) = pending(&self.write, self.head, backed, CAPACITY) else {
                panic!("broken ring")
            };
            let mut out: Vec<u8> =
                self.bytes[range.first.offset as usize..][..range.first.len as usize].to_vec();
            out.extend(&self.bytes[..range.second.len as usize]);
            out.truncate(want as usize);
            self.head += out.len() as u64;
            self.host.tx_head.store(self.head, Ordering::Release);
            out
        }
    }

    #[test]
    fn bytes_come_out_in_order_for_random_sizes() {
        let seed = 0x9e37_79b9_u64;
        println!("seed={seed}");
        let mut state = seed;
        let mut random = |below: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            u8::try_from(state % below).unwrap()
        };
        for backed in [4, 9, CAPACITY] {
            let mut ring = Ring::new(backed);
            let (mut sent, mut received) = (0u8, 0u8);
            for _ in 0..10_000 {
                let batch: Vec<u8> = (0..random(20)).map(|n| sent.wrapping_add(n)).collect();
                sent = sent.wrapping_add(u8::try_from(ring.write(&batch)).unwrap());
                for byte in ring.read(u32::from(random(20))) {
                    assert_eq!(byte, received);
                    received = received.wrapping_add(1);
                }
            }
        }
    }

    #[test]
    fn a_ring_grows_by_powers_of_two_to_what_is_wanted() {
        const BIG: u32 = 1 << 16;
        let (host, write) = (HostLine::default(), WriteLine::default());
        host.tx_backed.store(4_096, Ordering::Relaxed);
        assert_eq!(growth_for(&host, &write, BIG, 4_096), None);
        assert_eq!(growth_for(&host, &write, BIG, 4_097), Some(8_192));
        assert_eq!(growth_for(&host, &write, BIG, 1 << 40), Some(BIG));
        // What lies in the ring counts, and an empty ring begins at its start again.
        write.tx_reserved.store(3_000, Ordering::Relaxed);
        assert_eq!(growth_for(&host, &write, BIG, 2_000), Some(8_192));
        host.tx_head.store(3_000, Ordering::Relaxed);
        assert_eq!(growth_for(&host, &write, BIG, 2_000), None);
        write.tx_grown.store(8_192, Ordering::Relaxed);
        assert_eq!(writable(&host, &write, BIG), 8_192);
        host.tx_backed.store(BIG, Ordering::Relaxed);
        assert_eq!(growth_for(&host, &write, BIG, 1 << 40), None);
    }

    #[test]
    fn small_messages_stay_at_the_start_of_the_ring() {
        let mut ring = Ring::new(CAPACITY);
        for _ in 0..100 {
            assert_eq!(ring.write(b"abc"), 3);
            assert_eq!(&ring.bytes[..3], b"abc");
            assert_eq!(ring.read(3), b"abc");
        }
        assert!(ring.bytes[3..].iter().all(|&byte| byte == 0));
    }

    #[test]
    fn a_handler_appends_behind_the_interrupted_call() {
        let mut ring = Ring::new(CAPACITY);
        assert_eq!(ring.write.tx_owner.take(1), Taken::Owned);
        let outer = reserve(&ring.host, &ring.write, CAPACITY, 4, false).range;
        assert_eq!(ring.write.tx_owner.take(1), Taken::Nested);
        let inner = reserve(&ring.host, &ring.write, CAPACITY, 2, true).range;
        ring.copy_in(inner, b"zz");
        assert_eq!(
            ring.read(16),
            b"",
            "nothing is published before the owner says so"
        );
        ring.copy_in(outer, b"abcd");
        ring.write.tx_owner.release(1, || publish(&ring.write));
        assert_eq!(ring.read(16), b"abcdzz");
    }

    #[test]
    fn positions_forged_by_the_program_are_found() {
        let ring = Ring::new(CAPACITY);
        ring.write.tx_tail.store(17, Ordering::Relaxed);
        assert_eq!(pending(&ring.write, 0, CAPACITY, CAPACITY), Pending::Broken);
        ring.write.tx_tail.store(3, Ordering::Relaxed);
        assert_eq!(pending(&ring.write, 5, CAPACITY, CAPACITY), Pending::Broken);
        ring.write.tx_origin.store(2, Ordering::Relaxed);
        assert_eq!(pending(&ring.write, 0, CAPACITY, CAPACITY), Pending::Broken);
    }

    #[test]
    fn a_reader_that_lost_the_race_takes_nothing() {
        let (host, read) = (HostLine::default(), ReadLine::default());
        host.rx_tail.store(10, Ordering::Relaxed);
        let first = readable(&host, &read, CAPACITY, 0, 4);
        let second = readable(&host, &read, CAPACITY, 0, 4);
        assert!(take(&read, first.head, 4));
        assert!(!take(&read, second.head, 4));
        assert_eq!(readable(&host, &read, CAPACITY, 2, 100).range.len(), 4);
    }
}
