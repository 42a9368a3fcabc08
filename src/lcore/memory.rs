//! Rings out of channel memory: which object index a flow lies at, and how much memory is behind it.
//!
//! # Safety
//! Two calls lend memory to the stack. The first lends an object's receive ring to the stack. `Place::lent` is true from the lending
//! until the stack gives the slice back, an index that is lent is neither lent again nor used for an accept queue nor
//! released, and a pool with lent rings is never dropped before the stack ([`super::worker::Lcore`] drops its stack
//! first), so that a slice is unique and outlived by its mapping. The program's mapping is read-only. The second lends a send
//! buffer: a leaked allocation, which the stack has let go of when it gives the number back (`give_back_send` comes
//! after the socket is dropped), and whose number is in the free list only from then until it is lent again. A third call
//! takes the pages of a buffer in that list away.

#![allow(unsafe_code)]

use core::ptr::NonNull;
use core::slice::ChunksExactMut;
use std::os::fd::AsFd;
use std::sync::Arc;

use super::counters::LcoreCounters;
use super::segments::{PAGE, Segments};
use super::share::{self, Share};
use super::table::Table;
use crate::channel::byte_ring::{Span, begin_leaving, finish_leaving};
use crate::channel::map::Staging;
use crate::channel::sync::Ordering;
use crate::errno::{Errno, Result};
use crate::stack::{FlowMemory, Owner, RxRing, SendBuffer};

/// The rings of one object.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    /// The receive ring is the stack's.
    lent: bool,
    /// The program may know the index: it is released by [`Memory::release`] only.
    known: bool,
    /// Bytes of the receive ring that have memory.
    receive: u32,
    /// Bytes of the transmit ring that have memory.
    transmit: u32,
    /// Bytes of the receive ring that have memory beside its first `receive` ones.
    parts: u32,
}

impl Place {
    fn bytes(&self) -> u64 {
        u64::from(self.receive) + u64::from(self.transmit) + u64::from(self.parts)
    }
}

/// The rings of one family.
#[derive(Debug)]
struct Pool {
    segments: Arc<Segments>,
    places: Table<Place>,
    /// Indices of the upper half that were used and are free, the warmest last.
    free: Vec<u32>,
    /// As `free`, those with larger rings: they are used before others.
    free_large: Vec<u32>,
    /// The first index of the upper half that was never used.
    fresh: u32,
    /// The index that the next ring must have: a connect is being carried out.
    wanted: Option<u32>,
    lent: u32,
    /// Made when the first received bytes are to be looked at.
    staging: Option<Staging>,
    /// Memory behind all rings.
    bytes: u64,
}

/// smoltcp's send buffers, used again because making one means clearing it.
#[derive(Debug, Default)]
struct SendBuffers {
    /// Every buffer that was ever made, by number.
    made: Vec<NonNull<[u8]>>,
    /// The rest of the memory that was taken last: buffers that nobody has had.
    fresh: Option<ChunksExactMut<'static, u8>>,
    /// Numbers of those that the stack does not have, the warmest last.
    free: Vec<u32>,
    /// So many of the first of `free` have no memory behind them.
    cold: usize,
}

/// Send buffers that are made in one go.
const SEND_BUFFERS_AT_ONCE: usize = 32;

/// Free send buffers that keep their memory. What a crowd needed beyond this goes back to the kernel.
const WARM_MAX: usize = 64;

// SAFETY: the buffers are plain memory of this process; one thread at a time has the struct.
unsafe impl Send for SendBuffers {}

/// The rings of all families of an lcore.
#[derive(Debug)]
pub(super) struct Memory {
    pools: Vec<Option<Pool>>,
    send: SendBuffers,
    /// What the families share; None: the host has no others to think of.
    share: Option<Share>,
    counters: Arc<LcoreCounters>,
}

impl Memory {
    /// Memory without a family.
    pub(super) fn new(counters: Arc<LcoreCounters>) -> Self {
        Self {
            pools: Vec::new(),
            send: SendBuffers::default(),
            share: None,
            counters,
        }
    }

    /// Families share this from now on.
    pub(super) fn share_out(&mut self, share: Share) {
        self.share = Some(share);
    }

    /// Bytes behind the rings of all families.
    pub(super) fn ring_bytes(&self) -> u64 {
        self.pools.iter().flatten().map(|pool| pool.bytes).sum()
    }

    /// Bytes of the send buffers that were made, and of those that the stack does not have.
    pub(super) fn send_bytes(&self) -> (u64, u64) {
        let SendBuffers { made, free, .. } = &self.send;
        // All are of one size: that of the config.
        let bytes = made.first().map_or(0, |buffer| buffer.len() as u64);
        (made.len() as u64 * bytes, free.len() as u64 * bytes)
    }

    /// Whether the family may have one more flow.
    fn may_have_flow(&self, owner: Owner) -> bool {
        let Some(share) = self.share else {
            return true;
        };
        let lent = |pool: &Pool| u64::from(pool.lent);
        self.may_have(owner, lent, 1, u64::from(share.flows))
    }

    /// Whether a ring of the family may grow from `from` to `to` bytes. The first page is part of the flow.
    fn may_grow(&self, owner: Owner, from: u32, to: u32) -> bool {
        let Some(share) = self.share else {
            return true;
        };
        let more = u64::from(to.saturating_sub(from));
        let may = to <= PAGE || self.may_have(owner, |pool| pool.bytes, more, share.ring_bytes);
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

    /// Adds the memory of a family.
    pub(super) fn attach(&mut self, owner: Owner, segments: Arc<Segments>) {
        let layout = segments.layout();
        let place = owner.0 as usize;
        if place >= self.pools.len() {
            self.pools.resize_with(place + 1, || None);
        }
        if let Some(pool) = self.pools.get_mut(place) {
            *pool = Some(Pool {
                places: Table::new(layout.objects),
                free: Vec::new(),
                free_large: Vec::new(),
                fresh: layout.first_host_object(),
                wanted: None,
                lent: 0,
                staging: None,
                bytes: 0,
                segments,
            });
        }
    }

    /// Drops the memory of a family; false when the stack still has a ring of it.
    pub(super) fn detach(&mut self, owner: Owner) -> bool {
        match self.pools.get_mut(owner.0 as usize) {
            Some(pool) if pool.as_ref().is_none_or(|pool| pool.lent == 0) => {
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

    /// Makes the next ring that is taken the one of `object` (None: any), and known to the program.
    pub(super) fn want(&mut self, owner: Owner, object: Option<u32>) {
        if let Some(pool) = self.pool(owner) {
            pool.wanted = object;
        }
    }

    /// The program is told of `object`.
    pub(super) fn make_known(&mut self, owner: Owner, object: u32) {
        if let Some(place) = self.place(owner, object) {
            place.known = true;
        }
    }

    fn place(&mut self, owner: Owner, object: u32) -> Option<&mut Place> {
        self.pool(owner)?.places.at_mut(object)
    }

    /// Bytes that the stack has received into the ring of `object`, or None when there is no address space for a second
    /// mapping.
    pub(super) fn received(&mut self, owner: Owner, object: u32, span: Span) -> Option<&mut [u8]> {
        let pool = self.pool(owner)?;
        if pool.staging.is_none() {
            let (fd, layout) = (pool.segments.receive_fd(), pool.segments.layout());
            match Staging::new(fd.as_fd(), layout) {
                Ok(staging) => pool.staging = Some(staging),
                Err(errno) => crate::error!("payload event=no_mapping errno={errno}"),
            }
        }
        pool.staging.as_mut()?.bytes_mut(object, span)
    }

    /// Whether the stack has the ring of `object`.
    pub(super) fn is_lent(&self, owner: Owner, object: u32) -> bool {
        self.pools
            .get(owner.0 as usize)
            .and_then(Option::as_ref)
            .and_then(|pool| pool.places.at(object))
            .is_some_and(|place| place.lent)
    }

    /// Whether `object` is an index of the upper half that is in use and known to the program.
    pub(super) fn is_known(&self, owner: Owner, object: u32) -> bool {
        self.pools
            .get(owner.0 as usize)
            .and_then(Option::as_ref)
            .and_then(|pool| pool.places.at(object))
            .is_some_and(|place| place.known)
    }

    /// Bytes of the transmit ring of `object` that have memory. The cell says the same, but the program can write it.
    pub(super) fn transmit_backed(&self, owner: Owner, object: u32) -> u32 {
        self.pools
            .get(owner.0 as usize)
            .and_then(Option::as_ref)
            .and_then(|pool| pool.places.at(object))
            .map_or(0, |place| place.transmit)
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
        let Some(pool) = self.pool(owner) else {
            return false;
        };
        let Some(place) = pool.places.at_mut(object) else {
            return false;
        };
        if place.transmit < bytes {
            if pool
                .segments
                .back_transmit(object, place.transmit, bytes)
                .is_err()
            {
                return false;
            }
            pool.bytes += u64::from(bytes - place.transmit);
            place.transmit = bytes;
        }
        if let Some(cell) = pool.segments.control.object(object) {
            // Release: the memory is there before a writer learns of it.
            cell.host.tx_backed.store(place.transmit, Ordering::Release);
        }
        true
    }

    /// Puts memory behind the first `bytes` of a receive ring that is not lent: a listener's accept queue.
    ///
    /// # Errors
    /// EBUSY when the stack has the ring, ENOSPC or ENOMEM.
    pub(super) fn back_queue(&mut self, owner: Owner, object: u32, bytes: u32) -> Result<()> {
        let pool = self.pool(owner).ok_or(Errno::INVAL)?;
        let place = pool.places.at_mut(object).ok_or(Errno::INVAL)?;
        if place.lent {
            return Err(Errno::BUSY);
        }
        place.known = true;
        if place.receive < bytes {
            pool.segments.back_receive(object, place.receive, bytes)?;
            pool.bytes += u64::from(bytes - place.receive);
            place.receive = bytes;
        }
        Ok(())
    }

    /// Gives an index back that nobody uses any more; a writer says that it has put memory behind `grown` bytes of the transmit
    /// ring. All but the first page of its rings loses its memory.
    pub(super) fn release(&mut self, owner: Owner, object: u32, grown: u32) {
        let Some(pool) = self.pool(owner) else {
            return;
        };
        let host_half = object >= pool.segments.layout().first_host_object();
        let Some(place) = pool.places.at_mut(object) else {
            return;
        };
        let (was_known, was_lent) = (place.known, place.lent);
        if was_lent {
            return;
        }
        place.known = false;
        let whole = pool.segments.layout().rx_bytes(object);
        let before = place.bytes();
        if core::mem::take(&mut place.parts) > 0 {
            place.receive = 0;
            if let Err(errno) = pool.segments.unback_receive(object, whole) {
                crate::warn!("event=ring_memory_not_returned object={object} errno={errno}");
            }
        }
        // A writer may have grown what it never filled.
        let transmit = place
            .transmit
            .max(grown.min(pool.segments.layout().tx_bytes(object)));
        match pool.segments.shrink(object, place.receive, transmit) {
            Ok((receive, transmit)) => {
                (place.receive, place.transmit) = (receive, transmit.min(place.transmit));
            }
            Err(errno) => {
                crate::warn!("event=ring_memory_not_returned object={object} errno={errno}")
            }
        }
        let gone = before.saturating_sub(place.bytes());
        pool.bytes = pool.bytes.saturating_sub(gone);
        if host_half && was_known {
            pool.put(object);
        }
    }
}

impl Pool {
    /// The index for a ring: the wanted one, else a free one of the upper half.
    fn index(&mut self) -> Option<u32> {
        if let Some(object) = self.wanted.take() {
            return Some(object);
        }
        self.free_large
            .pop()
            .or_else(|| self.free.pop())
            .or_else(|| {
                let object = self.fresh;
                (object < self.segments.layout().objects).then(|| {
                    self.fresh += 1;
                    object
                })
            })
    }

    /// Nobody uses an index of the upper half any more.
    fn put(&mut self, object: u32) {
        if self.segments.layout().is_large(object) {
            self.free_large.push(object);
        } else {
            self.free.push(object);
        }
    }

    fn lend(&mut self, object: u32) -> Option<RxRing> {
        let place = self.places.at_mut(object)?;
        if place.lent {
            return None;
        }
        if place.receive < PAGE {
            self.segments
                .back_receive(object, place.receive, PAGE)
                .ok()?;
            self.bytes += u64::from(PAGE - place.receive);
            place.receive = PAGE;
        }
        // SAFETY: `lent` was false and is set below: the ring is nobody else's until `give_back`; an accept queue never
        // lies in it, because `back_queue` serves listener objects only and those are not lent.
        let bytes = unsafe { self.segments.receive.lend(object) }?;
        place.lent = true;
        self.lent += 1;
        Some(RxRing {
            bytes,
            backed: place.receive as usize,
            id: object,
        })
    }
}

impl SendBuffers {
    fn lend(&mut self, bytes: usize) -> Option<SendBuffer> {
        let id = match self.free.pop() {
            Some(id) => {
                self.cold = self.cold.min(self.free.len());
                id
            }
            None => {
                let id = u32::try_from(self.made.len()).ok()?;
                let buffer = self.make(bytes)?;
                self.made.push(buffer);
                id
            }
        };
        let mut buffer = *self.made.get(id as usize)?;
        if buffer.len() != bytes {
            // The stack asks for one size only; a buffer of another size stays unused.
            return None;
        }
        // SAFETY: a leaked allocation is never freed; the number was not in use, so nobody else has a reference.
        let bytes = unsafe { buffer.as_mut() };
        Some(SendBuffer { bytes, id })
    }

    /// A buffer of whole pages, so that all of its memory can go back to the kernel while nothing is in it. Many are taken at once:
    /// so large a piece comes from the kernel, is zero without being cleared, and is nobody's memory until it is touched.
    fn make(&mut self, bytes: usize) -> Option<NonNull<[u8]>> {
        let page = PAGE as usize;
        let size = bytes.max(1).next_multiple_of(page);
        let next = self.fresh.as_mut().and_then(Iterator::next);
        let place = match next {
            Some(place) => place,
            None => {
                let piece = vec![0; SEND_BUFFERS_AT_ONCE * size + page].leak();
                let skip = piece.as_ptr().align_offset(page);
                let (_, whole) = piece.split_at_mut_checked(skip)?;
                self.fresh.insert(whole.chunks_exact_mut(size)).next()?
            }
        };
        place.get_mut(..bytes).map(NonNull::from)
    }

    /// Takes a buffer back, and the memory from the one that lies too deep now.
    fn give_back(&mut self, id: u32) {
        self.free.push(id);
        let Some(deep) = self.free.len().checked_sub(WARM_MAX + 1) else {
            return;
        };
        if deep < self.cold {
            return;
        }
        self.cold = deep + 1;
        if let Some(buffer) = self
            .free
            .get(deep)
            .and_then(|id| self.made.get(*id as usize))
        {
            cool(*buffer);
        }
    }
}

/// Gives the memory of a buffer that nobody has back to the kernel; it reads as zeros afterwards.
fn cool(buffer: NonNull<[u8]>) {
    let first = buffer.cast::<u8>();
    // Whole pages only: what lies beside the buffer is somebody else's.
    let skip = first.addr().get().next_multiple_of(PAGE as usize) - first.addr().get();
    let bytes = buffer.len().saturating_sub(skip) / PAGE as usize * PAGE as usize;
    if bytes == 0 {
        return;
    }
    // SAFETY: `bytes` is not 0, so that `skip` lies inside the allocation.
    let start = unsafe { first.add(skip) };
    // SAFETY: whole pages inside one private allocation, which stays valid whatever they hold; it is in the free list,
    // so nobody has a reference to its bytes.
    let done = unsafe {
        rustix::mm::madvise(
            start.as_ptr().cast(),
            bytes,
            rustix::mm::Advice::LinuxDontNeed,
        )
    };
    if let Err(errno) = done {
        crate::debug!("send buffer memory not returned errno={errno}");
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
        let ring = pool.lend(object);
        match (&ring, wanted) {
            (Some(_), true) => {
                if let Some(place) = pool.places.at_mut(object) {
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
        let backed = self.place(owner, id).map_or(0, |place| place.receive);
        if backed < bytes && !self.may_grow(owner, backed, bytes) {
            return false;
        }
        let Some(pool) = self.pool(owner) else {
            return false;
        };
        let limit = pool.segments.layout().rx_bytes(id);
        let Some(place) = pool.places.at_mut(id) else {
            return false;
        };
        let bytes = bytes.min(limit);
        if place.receive < bytes {
            if pool
                .segments
                .back_receive(id, place.receive, bytes)
                .is_err()
            {
                return false;
            }
            pool.bytes += u64::from(bytes - place.receive);
            place.receive = bytes;
        }
        true
    }

    fn rest(&mut self, owner: Owner, id: u32) -> bool {
        let Some(pool) = self.pool(owner) else {
            return false;
        };
        let layout = pool.segments.layout();
        let (Some(place), Some(cell)) = (
            pool.places.at_mut(id).filter(|place| place.lent),
            pool.segments.control.object(id),
        ) else {
            return false;
        };
        let grown = cell.write.tx_grown.load(Ordering::Acquire);
        if !begin_leaving(&cell.host, &cell.write) {
            return false;
        }
        let transmit = place.transmit.max(grown.min(layout.tx_bytes(id)));
        let receive = if place.parts > 0 {
            layout.rx_bytes(id)
        } else {
            place.receive
        };
        let done = pool
            .segments
            .unback_transmit(id, transmit)
            .and_then(|()| pool.segments.unback_receive(id, receive));
        if let Err(errno) = done {
            crate::warn!("event=ring_memory_not_returned object={id} errno={errno}");
        }
        pool.bytes = pool.bytes.saturating_sub(place.bytes());
        (place.transmit, place.receive, place.parts) = (0, 0, 0);
        finish_leaving(&cell.host);
        // A writer that came meanwhile has rung: its bell finds a ring without memory, and sees to it.
        true
    }

    fn back_part(&mut self, owner: Owner, id: u32, from: usize, bytes: usize) -> bool {
        let (Ok(from), Ok(bytes)) = (u32::try_from(from), u32::try_from(bytes)) else {
            return false;
        };
        let backed = self
            .place(owner, id)
            .map_or(0, |place| place.receive.saturating_add(place.parts));
        if !self.may_grow(owner, backed, backed.saturating_add(bytes)) {
            return false;
        }
        let Some(pool) = self.pool(owner) else {
            return false;
        };
        let Some(place) = pool.places.at_mut(id) else {
            return false;
        };
        let capacity = pool.segments.layout().rx_bytes(id);
        place.parts = place.parts.saturating_add(bytes);
        pool.bytes += u64::from(bytes);
        let first = bytes.min(capacity.saturating_sub(from));
        pool.segments.back_receive(id, from, from + first).is_ok()
            && pool.segments.back_receive(id, 0, bytes - first).is_ok()
    }

    fn take_send(&mut self, _owner: Owner, bytes: usize) -> Option<SendBuffer> {
        self.send.lend(bytes)
    }

    fn give_back_send(&mut self, _owner: Owner, id: u32) {
        self.send.give_back(id);
    }

    fn give_back(&mut self, owner: Owner, ring: RxRing) {
        // The slice died with the socket, or dies here with `ring`, before the index can be lent again.
        let id = ring.id;
        let Some(pool) = self.pool(owner) else {
            return;
        };
        let Some(place) = pool.places.at_mut(id) else {
            return;
        };
        if !place.lent {
            return;
        }
        place.lent = false;
        pool.lent = pool.lent.saturating_sub(1);
        if !place.known {
            // A half-open flow that the program never heard of.
            pool.put(id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: usize = 64 << 10;

    #[test]
    fn what_a_crowd_needed_goes_back_and_the_warmest_stay() {
        const DEEP: usize = 10;
        let mut buffers = SendBuffers::default();
        let mut lent: Vec<SendBuffer> = (0..WARM_MAX + DEEP)
            .map(|_| buffers.lend(BYTES).unwrap())
            .collect();
        for round in 1..=2 {
            for buffer in &mut lent {
                buffer.bytes.fill(round);
            }
            for id in lent.drain(..).map(|buffer| buffer.id) {
                buffers.give_back(id);
            }
            assert_eq!(buffers.cold, DEEP);
            // One that comes and goes at the top costs nothing.
            let top = buffers.lend(BYTES).unwrap().id;
            buffers.give_back(top);
            assert_eq!(buffers.cold, DEEP);
            lent.extend((0..WARM_MAX + DEEP).map(|_| buffers.lend(BYTES).unwrap()));
            let kept = lent
                .iter()
                .map(|buffer| buffer.bytes[BYTES / 2] == round)
                .collect::<Vec<_>>();
            assert!(kept[..WARM_MAX].iter().all(|kept| *kept));
            assert!(kept[WARM_MAX..].iter().all(|kept| !kept));
            assert_eq!((buffers.cold, buffers.made.len()), (0, WARM_MAX + DEEP));
        }
    }

    #[test]
    fn larger_rings_are_lent_before_others_and_again() {
        let mut memory = Memory::new(Arc::default());
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
        let mut memory = Memory::new(Arc::clone(&counters));
        let layout = crate::channel::layout::Layout::for_flows(16, 64 << 10, 64 << 10);
        for owner in [Owner(0), Owner(1)] {
            memory.attach(owner, Arc::new(Segments::create(layout).unwrap()));
        }
        memory.share_out(Share {
            flows: 1_000,
            ring_bytes: TOTAL,
        });
        let bytes = |memory: &mut Memory, owner| memory.pool(owner).unwrap().bytes;
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
        assert!(bytes(&mut memory, Owner(0)) < 32 * u64::from(PAGE));
        assert!(fill(&mut memory, Owner(1)).len() >= 8);
    }
}
