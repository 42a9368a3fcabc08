//! Rings out of channel memory: which family's index a flow lies at, what the families share, and what nobody needs any more.

use core::time::Duration;
use std::sync::Arc;

use super::counters::LcoreCounters;
use super::kept::KEPT_FOR;
use super::pool::{Place, Pool};
use super::segments::{PAGE, Segments};
use super::send_buffer::SendBuffers;
use super::share::{self, Share};
use crate::channel::byte_ring::Span;
use crate::errno::{Errno, Result};
use crate::stack::{FlowMemory, Owner, RxRing, SendBuffer};
use crate::time::Instant;

/// The rings of all families of an lcore.
#[derive(Debug)]
pub(super) struct Memory {
    /// Whose indices it hands out.
    me: u32,
    pools: Vec<Option<Pool>>,
    send: SendBuffers,
    /// What the families share; None: the host has no others to think of.
    share: Option<Share>,
    counters: Arc<LcoreCounters>,
    /// The time of this turn.
    now: Instant,
    /// When to look for memory that has waited for long enough; None = none waits.
    sweep_at: Option<Instant>,
}

impl Memory {
    /// Memory without a family.
    pub(super) fn new(me: u32, counters: Arc<LcoreCounters>) -> Self {
        Self {
            me,
            pools: Vec::new(),
            send: SendBuffers::default(),
            share: None,
            counters,
            now: Instant::default(),
            sweep_at: None,
        }
    }

    /// A turn begins. Some of the memory that has waited for a connection for long enough goes back to the kernel.
    pub(super) fn sweep(&mut self, now: Instant) {
        self.now = now;
        if self.sweep_at.is_none_or(|due| due > now) {
            return;
        }
        let mut left = SWEEP_PLACES;
        let mut next: Option<Instant> = None;
        for pool in self.pools.iter_mut().flatten() {
            while let Some(due) = pool.next_due() {
                if due > now || left == 0 {
                    let due = due.max(now + SWEEP_PAUSE);
                    next = Some(next.map_or(due, |next| next.min(due)));
                    break;
                }
                left -= 1;
                pool.cool();
            }
        }
        self.sweep_at = next;
    }

    /// When to sweep next.
    pub(super) const fn next_due(&self) -> Option<Instant> {
        self.sweep_at
    }

    /// Families share this from now on.
    pub(super) fn share_out(&mut self, share: Share) {
        self.share = Some(share);
    }

    /// Bytes behind the rings of all families.
    pub(super) fn ring_bytes(&self) -> u64 {
        self.pools.iter().flatten().map(Pool::bytes).sum()
    }

    /// How many of those wait for the next connection.
    pub(super) fn kept_bytes(&self) -> u64 {
        self.pools.iter().flatten().map(Pool::kept_bytes).sum()
    }

    /// Bytes of the send buffers that were made, and of those that the stack does not have.
    pub(super) fn send_bytes(&self) -> (u64, u64) {
        self.send.bytes()
    }

    /// Whether the family may have one more flow.
    fn may_have_flow(&self, owner: Owner) -> bool {
        let Some(share) = self.share else {
            return true;
        };
        let lent = |pool: &Pool| u64::from(pool.lent());
        self.may_have(owner, lent, 1, u64::from(share.flows))
    }

    /// Whether a ring of the family may grow from `from` to `to` bytes. The first page is part of the flow. What waits for a
    /// connection goes before anything is refused.
    fn may_grow(&mut self, owner: Owner, from: u32, to: u32) -> bool {
        let Some(share) = self.share else {
            return true;
        };
        let more = u64::from(to.saturating_sub(from));
        let may = |memory: &Self| memory.may_have(owner, Pool::bytes, more, share.ring_bytes);
        let may = to <= PAGE || may(self) || (self.cool_all() && may(self));
        if !may {
            self.counters.rings_refused_quota.raise();
        }
        may
    }

    fn may_have(&self, owner: Owner, what: impl Fn(&Pool) -> u64, more: u64, total: u64) -> bool {
        let used = self.pools.iter().flatten().map(&what).sum();
        let has = self.pools.get(owner.0 as usize).and_then(Option::as_ref);
        share::may_have(has.map_or(0, what), more, used, total)
    }

    /// Gives all memory back that waits for a connection; false = none does.
    fn cool_all(&mut self) -> bool {
        let mut any = false;
        for pool in self.pools.iter_mut().flatten() {
            while pool.cool() {
                any = true;
            }
        }
        any
    }

    /// Does what needs memory once more when the kernel has none, without what waits for a connection.
    fn pressed(&mut self, owner: Owner, act: impl Fn(&mut Pool) -> bool) -> bool {
        let Some(pool) = self.pool(owner) else {
            return false;
        };
        act(pool) || (self.cool_all() && self.pool(owner).is_some_and(act))
    }

    /// Adds the memory of a family.
    pub(super) fn attach(&mut self, owner: Owner, segments: Arc<Segments>) {
        let place = owner.0 as usize;
        if place >= self.pools.len() {
            self.pools.resize_with(place + 1, || None);
        }
        if let Some(pool) = self.pools.get_mut(place) {
            *pool = Some(Pool::new(segments, self.me));
        }
    }

    /// Drops the memory of a family; false when the stack still has a ring of it.
    pub(super) fn detach(&mut self, owner: Owner) -> bool {
        match self.pools.get_mut(owner.0 as usize) {
            Some(pool) if pool.as_ref().is_none_or(|pool| pool.lent() == 0) => {
                *pool = None;
                true
            }
            Some(_) => false,
            None => true,
        }
    }

    fn pool(&mut self, owner: Owner) -> Option<&mut Pool> {
        self.pools.get_mut(owner.0 as usize)?.as_mut()
    }

    fn look(&self, owner: Owner, object: u32) -> Option<&Place> {
        let pool = self.pools.get(owner.0 as usize)?.as_ref()?;
        pool.place(object)
    }

    /// Makes the next ring that is taken the one of `object` (None: any), and known to the program.
    pub(super) fn want(&mut self, owner: Owner, object: Option<u32>) {
        if let Some(pool) = self.pool(owner) {
            pool.wanted = object;
        }
    }

    /// The program is told of `object`.
    pub(super) fn make_known(&mut self, owner: Owner, object: u32) {
        let place = self.pool(owner).and_then(|pool| pool.place_mut(object));
        if let Some(place) = place {
            place.known = true;
        }
    }

    /// Bytes that the stack has received into the ring of `object`, or None when there is no address space for a second
    /// mapping.
    pub(super) fn received(&mut self, owner: Owner, object: u32, span: Span) -> Option<&mut [u8]> {
        self.pool(owner)?.received(object, span)
    }

    /// Whether the stack has the ring of `object`.
    pub(super) fn is_lent(&self, owner: Owner, object: u32) -> bool {
        self.look(owner, object).is_some_and(|place| place.lent)
    }

    /// Whether `object` is an index of the upper half that is in use and known to the program.
    pub(super) fn is_known(&self, owner: Owner, object: u32) -> bool {
        self.look(owner, object).is_some_and(|place| place.known)
    }

    /// Bytes of the transmit ring of `object` that have memory. The cell says the same, but the program can write it.
    pub(super) fn transmit_backed(&self, owner: Owner, object: u32) -> u32 {
        self.look(owner, object).map_or(0, |place| place.transmit)
    }

    /// Puts memory behind the first `bytes` of a transmit ring and tells the program; false = none to be had.
    pub(super) fn back_transmit(&mut self, owner: Owner, object: u32, bytes: u32) -> bool {
        let backed = self.transmit_backed(owner, object);
        if backed < bytes && !self.may_grow(owner, backed, bytes) {
            return false;
        }
        self.adopt_transmit(owner, object, bytes)
    }

    /// As [`Memory::back_transmit`] where a writer has put memory there itself: it is taken, whatever the family's share, and
    /// counts as given.
    pub(super) fn adopt_transmit(&mut self, owner: Owner, object: u32, bytes: u32) -> bool {
        self.pressed(owner, |pool| pool.back_transmit(object, bytes))
    }

    /// Puts memory behind the first `bytes` of a receive ring that is not lent: a listener's accept queue.
    ///
    /// # Errors
    /// EBUSY when the stack has the ring, ENOSPC or ENOMEM.
    pub(super) fn back_queue(&mut self, owner: Owner, object: u32, bytes: u32) -> Result<()> {
        let pool = self.pool(owner).ok_or(Errno::INVAL)?;
        pool.back_queue(object, bytes)
    }

    /// Gives an index back that nobody uses any more; a writer says that it has put memory behind `grown` bytes of the transmit
    /// ring. The rings keep what memory they have for a while.
    pub(super) fn release(&mut self, owner: Owner, object: u32, grown: u32) {
        let now = self.now;
        if let Some(pool) = self.pool(owner) {
            pool.release(now, object, grown, KEPT_MAX);
        }
        self.sweep_later();
    }

    /// Something may wait for a connection now.
    fn sweep_later(&mut self) {
        if self.sweep_at.is_none() {
            self.sweep_at = Some(self.now + KEPT_FOR);
        }
    }
}

impl FlowMemory for Memory {
    fn take(&mut self, owner: Owner, _capacity: usize) -> Option<RxRing> {
        if !self.may_have_flow(owner) {
            self.counters.flows_refused_quota.raise();
            self.want(owner, None);
            return None;
        }
        let pool = self.pool(owner)?;
        let wanted = pool.wanted.is_some();
        let object = pool.index()?;
        let mut ring = pool.lend(object);
        if ring.is_none() && self.cool_all() {
            ring = self.pool(owner)?.lend(object);
        }
        let pool = self.pool(owner)?;
        match (&ring, wanted) {
            (Some(_), true) => {
                if let Some(place) = pool.place_mut(object) {
                    place.known = true;
                }
            }
            (None, false) => pool.put(object),
            _ => {}
        }
        if ring.is_none() {
            self.counters.flows_refused_no_memory.raise();
        }
        ring
    }

    fn back(&mut self, owner: Owner, id: u32, bytes: usize) -> bool {
        let Ok(bytes) = u32::try_from(bytes) else {
            return false;
        };
        let backed = self.look(owner, id).map_or(0, |place| place.receive);
        if backed < bytes && !self.may_grow(owner, backed, bytes) {
            return false;
        }
        self.pressed(owner, |pool| pool.back_receive(id, bytes))
    }

    fn rest(&mut self, owner: Owner, id: u32) -> bool {
        self.pool(owner).is_some_and(|pool| pool.rest(id))
    }

    fn back_part(&mut self, owner: Owner, id: u32, from: usize, bytes: usize) -> bool {
        let (Ok(from), Ok(bytes)) = (u32::try_from(from), u32::try_from(bytes)) else {
            return false;
        };
        let backed = self
            .look(owner, id)
            .map_or(0, |place| place.receive.saturating_add(place.parts));
        if !self.may_grow(owner, backed, backed.saturating_add(bytes)) {
            return false;
        }
        self.pool(owner)
            .is_some_and(|pool| pool.back_part(id, from, bytes))
    }

    fn take_send(&mut self, _owner: Owner, bytes: usize) -> Option<SendBuffer> {
        self.send.lend(bytes)
    }

    fn give_back_send(&mut self, _owner: Owner, id: u32) {
        self.send.give_back(id);
    }

    fn give_back(&mut self, owner: Owner, ring: RxRing) {
        // The slice died with the socket, or dies here with `ring`, before the index can be lent again.
        let (now, id) = (self.now, ring.id);
        if let Some(pool) = self.pool(owner) {
            pool.give_back(now, id);
        }
        self.sweep_later();
    }
}

/// Bytes of a family that wait for its next connections: what a thousand need that each moved a quarter of a ring. More goes back
/// at once, as all of it does after some seconds.
const KEPT_MAX: u64 = 64 << 20;
/// Rings whose memory goes in one turn: some 20 us.
const SWEEP_PLACES: u32 = 4;
/// Between two turns that sweep.
const SWEEP_PAUSE: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: usize = 64 << 10;

    #[test]
    fn larger_rings_are_lent_before_others_and_again() {
        let mut memory = Memory::new(0, Arc::default());
        let usual = crate::channel::layout::Layout::for_flows(256, 4 << 10, 4 << 10);
        let layout = usual.with_large_rings(16 << 10);
        memory.attach(Owner(0), Arc::new(Segments::create(layout).unwrap()));
        let lengths = |rings: &[RxRing]| {
            let large = rings.iter().filter(|ring| ring.bytes.len() == 16 << 10);
            (large.count(), rings.len())
        };
        for _ in 0..2 {
            let rings: Vec<RxRing> = (0..100)
                .map(|_| memory.take(Owner(0), BYTES).unwrap())
                .collect();
            assert_eq!(lengths(&rings), (64, 100));
            for ring in rings {
                memory.give_back(Owner(0), ring);
            }
            let few: Vec<RxRing> = (0..64)
                .map(|_| memory.take(Owner(0), BYTES).unwrap())
                .collect();
            assert_eq!(lengths(&few), (64, 64));
            for ring in few {
                memory.give_back(Owner(0), ring);
            }
        }
    }

    /// Takes flows with full receive rings until something is refused.
    fn fill(memory: &mut Memory, owner: Owner) -> Vec<RxRing> {
        let mut rings = Vec::new();
        while let Some(ring) = memory.take(owner, BYTES) {
            let full = ring.bytes.len();
            rings.push(ring);
            if !memory.back(owner, rings[rings.len() - 1].id, full) {
                break;
            }
        }
        rings
    }

    #[test]
    fn a_family_that_fills_its_rings_leaves_memory_to_the_others() {
        const TOTAL: u64 = 1 << 20;
        let counters = Arc::new(LcoreCounters::default());
        let mut memory = Memory::new(0, Arc::clone(&counters));
        let layout = crate::channel::layout::Layout::for_flows(16, 64 << 10, 64 << 10);
        for owner in [Owner(0), Owner(1)] {
            memory.attach(owner, Arc::new(Segments::create(layout).unwrap()));
        }
        memory.share_out(Share {
            flows: 1_000,
            ring_bytes: TOTAL,
        });
        let bytes = |memory: &mut Memory, owner| memory.pool(owner).unwrap().bytes();
        let first = fill(&mut memory, Owner(0));
        let has = bytes(&mut memory, Owner(0));
        assert!(
            (TOTAL / 2..=TOTAL * 4 / 5 + u64::from(PAGE)).contains(&has),
            "{has}"
        );
        assert_eq!(counters.rings_refused_quota.value(), 1);
        let second = fill(&mut memory, Owner(1));
        assert!(bytes(&mut memory, Owner(1)) >= 64 << 10);
        // A flow without room to grow still has its first page, in both directions.
        let ring = memory.take(Owner(0), BYTES).unwrap();
        assert_eq!(ring.backed, PAGE as usize);
        assert!(memory.back_transmit(Owner(0), ring.id, PAGE));
        assert!(!memory.back_transmit(Owner(0), ring.id, 64 << 10));
        // What is given back can be had again.
        for (owner, ring) in first
            .into_iter()
            .chain([ring])
            .map(|ring| (Owner(0), ring))
            .chain(second.into_iter().map(|ring| (Owner(1), ring)))
        {
            let id = ring.id;
            memory.make_known(owner, id);
            memory.give_back(owner, ring);
            memory.release(owner, id, 0);
        }
        assert_eq!(memory.kept_bytes(), memory.ring_bytes());
        assert!(fill(&mut memory, Owner(1)).len() >= 8);
    }

    /// A family, its segments, and a clock.
    fn family(rx_bytes: u32) -> (Memory, Arc<Segments>) {
        let layout = crate::channel::layout::Layout::for_flows(4_096, rx_bytes, 16 << 10);
        let segments = Arc::new(Segments::create(layout).unwrap());
        let mut memory = Memory::new(0, Arc::default());
        memory.attach(Owner(0), Arc::clone(&segments));
        (memory, segments)
    }

    /// A connection whose rings grow to `receive` and `transmit` bytes.
    fn grown(memory: &mut Memory, receive: usize, transmit: u32) -> u32 {
        let id = memory.take(Owner(0), BYTES).unwrap().id;
        memory.make_known(Owner(0), id);
        assert!(memory.back(Owner(0), id, receive));
        assert!(memory.back_transmit(Owner(0), id, transmit));
        id
    }

    /// It ends.
    fn end(memory: &mut Memory, id: u32) {
        let ring = RxRing {
            bytes: &mut [],
            backed: 0,
            id,
        };
        memory.give_back(Owner(0), ring);
        memory.release(Owner(0), id, 0);
    }

    const SECOND: u64 = 1_000_000;

    #[test]
    fn the_next_connection_finds_the_rings_of_the_last_one_whole() {
        let (mut memory, segments) = family(64 << 10);
        let id = grown(&mut memory, 64 << 10, 8 << 10);
        let resident = segments.resident_bytes();
        end(&mut memory, id);
        assert_eq!(
            (memory.kept_bytes(), memory.ring_bytes()),
            (72 << 10, 72 << 10)
        );
        assert_eq!(segments.resident_bytes(), resident);
        segments
            .pages_left
            .store(0, core::sync::atomic::Ordering::Relaxed);
        let ring = memory.take(Owner(0), BYTES).unwrap();
        assert_eq!((ring.id, ring.backed), (id, 64 << 10));
        assert!(memory.back_transmit(Owner(0), id, PAGE));
        let cell = segments.control.object(id).unwrap();
        let backed = cell
            .host
            .tx_backed
            .load(crate::channel::sync::Ordering::Relaxed);
        assert_eq!((backed, memory.kept_bytes()), (8 << 10, 0));
    }

    #[test]
    fn what_no_connection_wants_goes_back_after_a_while_a_few_rings_a_turn() {
        let (mut memory, segments) = family(64 << 10);
        let before = segments.resident_bytes();
        let crowd: Vec<u32> = (0..10)
            .map(|_| grown(&mut memory, 64 << 10, PAGE))
            .collect();
        // The cells' own pages stay.
        let cells = segments.resident_bytes() - before - memory.ring_bytes();
        memory.sweep(Instant::from_micros(SECOND));
        for id in crowd {
            end(&mut memory, id);
        }
        let due = Instant::from_micros(SECOND) + KEPT_FOR;
        assert_eq!(memory.next_due(), Some(due));
        memory.sweep(Instant::from_micros(2 * SECOND));
        assert_eq!(memory.kept_bytes(), 10 * (68 << 10));
        let mut now = due;
        for left in [6, 2, 0] {
            memory.sweep(now);
            assert_eq!(memory.kept_bytes(), left * (68 << 10));
            now = memory.next_due().unwrap_or(now);
        }
        assert_eq!((memory.next_due(), memory.ring_bytes()), (None, 0));
        assert_eq!(segments.resident_bytes(), before + cells);
        // The index that is taken next begins with a page of zeros.
        let ring = memory.take(Owner(0), BYTES).unwrap();
        assert_eq!(ring.backed, PAGE as usize);
    }

    #[test]
    fn a_crowd_leaves_no_more_behind_than_the_bound() {
        const RING: u64 = 256 << 10;
        let (mut memory, segments) = family(256 << 10);
        let count = KEPT_MAX / RING + 8;
        let crowd: Vec<u32> = (0..count)
            .map(|_| grown(&mut memory, 256 << 10, PAGE))
            .collect();
        let warmest = crowd[crowd.len() - 1];
        for id in crowd {
            end(&mut memory, id);
        }
        let kept = memory.kept_bytes();
        assert!(kept <= KEPT_MAX && kept > KEPT_MAX - 2 * RING, "{kept}");
        assert_eq!(memory.ring_bytes(), kept);
        assert!(segments.resident_bytes() < KEPT_MAX + (1 << 20));
        // The oldest went.
        let ring = memory.take(Owner(0), BYTES).unwrap();
        assert_eq!((ring.id, ring.backed), (warmest, 256 << 10));
    }

    #[test]
    fn memory_that_waits_is_given_up_before_anybody_is_refused() {
        let (mut memory, segments) = family(64 << 10);
        let (first, second) = (
            grown(&mut memory, 64 << 10, PAGE),
            grown(&mut memory, 4 << 10, PAGE),
        );
        end(&mut memory, first);
        // The share: 4/5 of it for a family alone.
        memory.share_out(Share {
            flows: 100,
            ring_bytes: 90 << 10,
        });
        assert!(memory.back(Owner(0), second, 64 << 10));
        assert_eq!((memory.kept_bytes(), memory.ring_bytes()), (0, 68 << 10));
        assert_eq!(memory.counters.rings_refused_quota.value(), 0);
        // The kernel: it has nothing but what we give back (the test's count does not know that).
        memory.share = None;
        end(&mut memory, second);
        let third = grown(&mut memory, 64 << 10, PAGE);
        end(&mut memory, third);
        let index = memory.pool(Owner(0)).unwrap().index().unwrap();
        assert_eq!(index, third);
        segments
            .pages_left
            .store(0, core::sync::atomic::Ordering::Relaxed);
        assert!(memory.take(Owner(0), BYTES).is_none());
        assert_eq!(memory.kept_bytes(), 0);
    }

    #[test]
    fn pages_that_a_writer_grew_and_never_filled_do_not_wait() {
        let (mut memory, segments) = family(64 << 10);
        let id = grown(&mut memory, 4 << 10, PAGE);
        assert!(segments.control.tx_populate(id, 16 << 10));
        let resident = segments.resident_bytes();
        let ring = RxRing {
            bytes: &mut [],
            backed: 0,
            id,
        };
        memory.give_back(Owner(0), ring);
        memory.release(Owner(0), id, 16 << 10);
        assert_eq!(segments.resident_bytes(), resident - (12 << 10));
        assert_eq!(memory.kept_bytes(), 2 * u64::from(PAGE));
    }
}
