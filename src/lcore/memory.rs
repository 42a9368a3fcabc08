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
        let used = |pool: &Pool| pool.bytes().saturating_sub(pool.kept_bytes());
        let may = to <= PAGE
            || may(self)
            || (self.may_have(owner, used, more, share.ring_bytes)
                && (0..PRESSED_STEPS).any(|_| self.cool_some(owner) && may(self)));
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

    /// Gives the memory of a few rings back that waits for a connection, that of the family itself first; false = none does.
    fn cool_some(&mut self, owner: Owner) -> bool {
        let own = self.pools.get_mut(owner.0 as usize);
        let mut left = SWEEP_PLACES;
        let mut cool = |pool: &mut Pool| {
            while left > 0 && pool.cool() {
                left -= 1;
            }
        };
        own.into_iter().flatten().for_each(&mut cool);
        self.pools.iter_mut().flatten().for_each(&mut cool);
        left < SWEEP_PLACES
    }

    /// Does what needs memory again when the kernel has none, each time with less that waits for a connection.
    fn pressed<T>(&mut self, owner: Owner, act: impl Fn(&mut Pool) -> Result<T>) -> Result<T> {
        let mut done = act(self.pool(owner).ok_or(Errno::INVAL)?);
        for _ in 0..PRESSED_STEPS {
            if !matches!(done, Err(Errno::NOSPC | Errno::NOMEM)) || !self.cool_some(owner) {
                break;
            }
            done = act(self.pool(owner).ok_or(Errno::INVAL)?);
        }
        done
    }

    /// Adds the memory of a family.
    pub(super) fn attach(&mut self, owner: Owner, segments: Arc<Segments>) {
        let place = owner.0 as usize;
        if place >= self.pools.len() {
            self.pools.resize_with(place + 1, || None);
        }
        if let Some(pool) = self.pools.get_mut(place) {
            *pool = Some(Pool::new(segments, self.me, Arc::clone(&self.counters)));
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
            pool.want(object);
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
            .is_ok()
    }

    /// Puts memory behind the first `bytes` of a receive ring that is not lent: a listener's accept queue.
    ///
    /// # Errors
    /// EBUSY when the stack has the ring, ENOSPC or ENOMEM.
    pub(super) fn back_queue(&mut self, owner: Owner, object: u32, bytes: u32) -> Result<()> {
        self.pressed(owner, |pool| pool.back_queue(object, bytes))
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
        let wanted = pool.is_wanted();
        let object = pool.index()?;
        let ring = self.pressed(owner, |pool| pool.lend(object)).ok();
        let now = self.now;
        let pool = self.pool(owner)?;
        match (&ring, wanted) {
            (Some(_), true) => {
                if let Some(place) = pool.place_mut(object) {
                    place.known = true;
                }
            }
            (None, false) => {
                pool.put_back(now, object);
                self.sweep_later();
            }
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
            .is_ok()
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
        self.pressed(owner, |pool| pool.back_part(id, from, bytes))
            .is_ok()
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
            pool.give_back(now, id, KEPT_MAX);
        }
        self.sweep_later();
    }
}

/// Bytes of a family that wait for its next connections: what a thousand need that each moved a quarter of a ring. More goes back
/// at once, as all of it does after some seconds.
const KEPT_MAX: u64 = 64 << 20;
/// Rings whose memory goes in one turn: some 20 us.
const SWEEP_PLACES: u32 = 4;
/// So many times as many go before one is refused memory that others wait with: 16 rings, below 100 us.
const PRESSED_STEPS: u32 = 4;
/// Between two turns that sweep.
const SWEEP_PAUSE: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests;
