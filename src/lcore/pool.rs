//! The rings of one family: which of them are lent, how much memory is behind each, and which are free.
//!
//! # Safety
//! One call lends an object's receive ring to the stack. `Place::lent` is true from the lending
//! until the stack gives the slice back, an index that is lent is neither lent again nor used for an accept queue nor
//! released, and a pool with lent rings is never dropped before the stack ([`super::worker::Lcore`] drops its stack
//! first), so that a slice is unique and outlived by its mapping. The program's mapping is read-only.

#![allow(unsafe_code)]

use core::ops::Range;
use std::os::fd::AsFd;
use std::sync::Arc;

use super::counters::LcoreCounters;
use super::kept::Kept;
use super::segments::{PAGE, Segments};
use super::table::Table;
use crate::channel::byte_ring::{Span, begin_leaving, finish_leaving};
use crate::channel::map::Staging;
use crate::channel::sync::Ordering;
use crate::errno::{Errno, Result};
use crate::stack::RxRing;
use crate::time::Instant;

/// The rings of one object.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Place {
    /// The receive ring is the stack's.
    pub(super) lent: bool,
    /// The program may know the index: it is released by [`Pool::release`] only.
    pub(super) known: bool,
    /// Bytes of the receive ring that have memory.
    pub(super) receive: u32,
    /// Bytes of the transmit ring that have memory.
    pub(super) transmit: u32,
    /// Bytes of the receive ring that have memory beside its first `receive` ones.
    pub(super) parts: u32,
}

impl Place {
    fn bytes(&self) -> u64 {
        u64::from(self.receive) + u64::from(self.transmit) + u64::from(self.parts)
    }

    /// Takes the memory behind both rings away, of the transmit ring its first `transmit` bytes. A ring that the kernel does not take
    /// back stays in the account.
    ///
    /// # Errors
    /// What fallocate says.
    fn strip(&mut self, segments: &Segments, object: u32, transmit: u32) -> Result<()> {
        let receive = if self.parts > 0 {
            segments.layout().rx_bytes(object)
        } else {
            self.receive
        };
        let sent = segments.unback_transmit(object, 0, transmit);
        self.transmit = if sent.is_ok() { 0 } else { transmit };
        let received = segments.unback_receive(object, 0, receive);
        if received.is_ok() {
            (self.receive, self.parts) = (0, 0);
        }
        sent.and(received)
    }
}

/// Rings whose memory goes when one is given back and there is too much of it.
const KEEP_PLACES: u32 = 4;

/// The rings of one family.
#[derive(Debug)]
pub(super) struct Pool {
    segments: Arc<Segments>,
    places: Table<Place>,
    /// Indices of the upper half that were used and are free, the warmest last.
    free: Vec<u32>,
    /// As `free`, those with larger rings: they are used before others.
    free_large: Vec<u32>,
    /// The indices of our share of the upper half that were never used.
    fresh: Range<u32>,
    /// The index that the next ring must have: a connect is being carried out.
    wanted: Option<u32>,
    lent: u32,
    /// Made when the first received bytes are to be looked at.
    staging: Option<Staging>,
    /// Memory behind all rings.
    bytes: u64,
    /// Free rings whose memory is part of that.
    kept: Kept,
    counters: Arc<LcoreCounters>,
}

impl Pool {
    /// The rings in `segments` that are `lcore`'s.
    pub(super) fn new(segments: Arc<Segments>, lcore: u32, counters: Arc<LcoreCounters>) -> Self {
        let layout = segments.layout();
        Self {
            places: Table::new(layout, lcore),
            free: Vec::new(),
            free_large: Vec::new(),
            fresh: layout.host_share(lcore),
            wanted: None,
            lent: 0,
            staging: None,
            bytes: 0,
            kept: Kept::new(layout, lcore),
            segments,
            counters,
        }
    }

    /// Rings that the stack has.
    pub(super) const fn lent(&self) -> u32 {
        self.lent
    }

    /// Memory behind all rings.
    pub(super) const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// How much of it nobody uses.
    pub(super) const fn kept_bytes(&self) -> u64 {
        self.kept.bytes()
    }

    /// The rings of `object`; None when nobody ever asked for them.
    pub(super) fn place(&self, object: u32) -> Option<&Place> {
        self.places.at(object)
    }

    /// The rings of `object`, to change.
    pub(super) fn place_mut(&mut self, object: u32) -> Option<&mut Place> {
        self.places.at_mut(object)
    }

    /// The index for a ring: the wanted one, else a free one of the upper half.
    pub(super) fn index(&mut self) -> Option<u32> {
        if let Some(object) = self.wanted.take() {
            return Some(object);
        }
        self.free_large
            .pop()
            .or_else(|| self.free.pop())
            .or_else(|| self.fresh.next())
    }

    /// Nobody uses an index of the upper half any more.
    fn put(&mut self, object: u32) {
        if self.segments.layout().is_large(object) {
            self.free_large.push(object);
        } else {
            self.free.push(object);
        }
    }

    /// Nobody got the ring of a free index of the upper half: its memory waits on.
    pub(super) fn put_back(&mut self, now: Instant, object: u32) {
        self.put(object);
        let bytes = self.places.at(object).map_or(0, Place::bytes);
        self.kept.push(now, object, bytes);
    }

    /// Makes the next ring that is lent the one of `object` (None: any).
    pub(super) fn want(&mut self, object: Option<u32>) {
        self.wanted = object;
        if let Some(object) = object {
            // It is in use, and its memory waits for nobody else; whatever comes of it, it is released.
            self.kept.remove(object);
        }
    }

    /// Whether the next ring must be a certain one.
    pub(super) const fn is_wanted(&self) -> bool {
        self.wanted.is_some()
    }

    /// Lends a receive ring to the stack. Its memory no longer waits, even if the rest of it is not to be had.
    ///
    /// # Errors
    /// EBUSY when the stack has it, ENOSPC or ENOMEM.
    pub(super) fn lend(&mut self, object: u32) -> Result<RxRing> {
        let place = self.places.at_mut(object).ok_or(Errno::INVAL)?;
        if place.lent {
            return Err(Errno::BUSY);
        }
        self.kept.remove(object);
        self.back_receive(object, PAGE)?;
        // SAFETY: `lent` was false and is set below: the ring is nobody else's until `give_back`; an accept queue never
        // lies in it, because `back_queue` serves listener objects only and those are not lent.
        let bytes = unsafe { self.segments.receive.lend(object) }.ok_or(Errno::INVAL)?;
        let place = self.places.at_mut(object).ok_or(Errno::INVAL)?;
        place.lent = true;
        self.lent += 1;
        Ok(RxRing {
            bytes,
            backed: place.receive as usize,
            id: object,
        })
    }

    /// The stack has let go of a ring. That of a flow that no program knows is free, as by [`Pool::release`].
    pub(super) fn give_back(&mut self, now: Instant, object: u32, kept_max: u64) {
        let Some(place) = self.places.at_mut(object).filter(|place| place.lent) else {
            return;
        };
        place.lent = false;
        let (known, bytes) = (place.known, place.bytes());
        self.lent = self.lent.saturating_sub(1);
        if !known {
            // A half-open flow that the program never heard of.
            self.put(object);
            self.keep(now, object, bytes, kept_max);
        }
    }

    /// The memory of a free index waits. What is more than `kept_max` goes, a few rings a time: each call adds one at most.
    fn keep(&mut self, now: Instant, object: u32, bytes: u64, kept_max: u64) {
        self.kept.push(now, object, bytes);
        for _ in 0..KEEP_PLACES {
            if self.kept.bytes() <= kept_max || !self.cool() {
                return;
            }
        }
    }

    /// Puts memory behind the first `bytes` of a receive ring.
    ///
    /// # Errors
    /// ENOSPC or ENOMEM.
    pub(super) fn back_receive(&mut self, object: u32, bytes: u32) -> Result<()> {
        let limit = self.segments.layout().rx_bytes(object);
        let place = self.places.at_mut(object).ok_or(Errno::INVAL)?;
        let bytes = bytes.min(limit);
        if place.receive < bytes {
            let from = place.receive;
            self.segments.back_receive(object, from, bytes)?;
            self.bytes += u64::from(bytes - from);
            place.receive = bytes;
        }
        Ok(())
    }

    /// Puts memory behind `bytes` bytes of a receive ring from offset `from` on, round its end: all of them or none.
    ///
    /// # Errors
    /// ENOSPC or ENOMEM.
    pub(super) fn back_part(&mut self, object: u32, from: u32, bytes: u32) -> Result<()> {
        let capacity = self.segments.layout().rx_bytes(object);
        let place = self.places.at_mut(object).ok_or(Errno::INVAL)?;
        let first = bytes.min(capacity.saturating_sub(from));
        let segments = &self.segments;
        segments.back_receive(object, from, from + first)?;
        let rest = segments.back_receive(object, 0, bytes - first);
        let returned = match rest {
            Ok(()) => Ok(()),
            Err(_) => segments.unback_receive(object, from, from + first),
        };
        let more = match (rest, returned) {
            (Ok(()), _) => bytes,
            (Err(_), Ok(())) => 0,
            (Err(_), Err(_)) => first,
        };
        place.parts = place.parts.saturating_add(more);
        self.bytes += u64::from(more);
        self.note(object, returned);
        rest
    }

    /// Tells that the kernel did not take memory back.
    fn note(&self, object: u32, returned: Result<()>) {
        if let Err(errno) = returned {
            self.counters.rings_not_returned.raise();
            crate::warn!("event=ring_memory_not_returned object={object} errno={errno}");
        }
    }

    /// Takes the memory behind both rings of `object` away, of the transmit ring its first `transmit` bytes at least.
    fn strip(&mut self, object: u32, transmit: u32) {
        let Some(place) = self.places.at_mut(object) else {
            return;
        };
        let before = place.bytes();
        let returned = place.strip(&self.segments, object, place.transmit.max(transmit));
        self.bytes = (self.bytes + place.bytes()).saturating_sub(before);
        self.note(object, returned);
    }

    /// Puts memory behind the first `bytes` of a transmit ring, unless it is there, and tells the program.
    ///
    /// # Errors
    /// ENOSPC or ENOMEM.
    pub(super) fn back_transmit(&mut self, object: u32, bytes: u32) -> Result<()> {
        let place = self.places.at_mut(object).ok_or(Errno::INVAL)?;
        if place.transmit < bytes {
            let from = place.transmit;
            self.segments.back_transmit(object, from, bytes)?;
            self.bytes += u64::from(bytes - from);
            place.transmit = bytes;
        }
        if let Some(cell) = self.segments.control.object(object) {
            // Release: the memory is there before a writer learns of it.
            cell.host.tx_backed.store(place.transmit, Ordering::Release);
        }
        Ok(())
    }

    /// Puts memory behind the first `bytes` of a receive ring that is not lent: a listener's accept queue.
    ///
    /// # Errors
    /// EBUSY when the stack has the ring, ENOSPC or ENOMEM.
    pub(super) fn back_queue(&mut self, object: u32, bytes: u32) -> Result<()> {
        let place = self.places.at_mut(object).ok_or(Errno::INVAL)?;
        if place.lent {
            return Err(Errno::BUSY);
        }
        place.known = true;
        self.kept.remove(object);
        if place.receive < bytes {
            self.segments.back_receive(object, place.receive, bytes)?;
            self.bytes += u64::from(bytes - place.receive);
            place.receive = bytes;
        }
        Ok(())
    }

    /// Takes the memory behind the rings of a connection that says nothing away; false when its program is about to write.
    pub(super) fn rest(&mut self, object: u32) -> bool {
        let layout = self.segments.layout();
        let segments = Arc::clone(&self.segments);
        let is_lent = self.places.at(object).is_some_and(|place| place.lent);
        let Some(cell) = segments.control.object(object).filter(|_| is_lent) else {
            return false;
        };
        let grown = cell.write.tx_grown.load(Ordering::Acquire);
        if !begin_leaving(&cell.host, &cell.write) {
            return false;
        }
        self.strip(object, grown.min(layout.tx_bytes(object)));
        finish_leaving(&cell.host);
        // A writer that came meanwhile has rung: its bell finds a ring without memory, and sees to it.
        true
    }

    /// Gives an index back that nobody uses any more; a writer says that it has put memory behind `grown` bytes of the transmit
    /// ring. What memory the rings have stays for the next connection, up to `kept_max` bytes of all that are free.
    pub(super) fn release(&mut self, now: Instant, object: u32, grown: u32, kept_max: u64) {
        let layout = self.segments.layout();
        let Some(place) = self.places.at_mut(object).filter(|place| !place.lent) else {
            return;
        };
        let was_known = core::mem::take(&mut place.known);
        let before = place.bytes();
        let mut received = Ok(());
        if place.parts > 0 {
            // Memory in several places: the next one's positions begin at 0.
            received = self
                .segments
                .unback_receive(object, 0, layout.rx_bytes(object));
            if received.is_ok() {
                (place.receive, place.parts) = (0, 0);
            }
        }
        // A writer may have grown what it never filled.
        let grown = grown.min(layout.tx_bytes(object)).max(place.transmit);
        let sent = self.segments.unback_transmit(object, place.transmit, grown);
        if sent.is_err() {
            place.transmit = grown;
        }
        let bytes = place.bytes();
        self.bytes = (self.bytes + bytes).saturating_sub(before);
        self.note(object, received.and(sent));
        if was_known && object >= layout.first_host_object() {
            self.put(object);
        }
        self.keep(now, object, bytes, kept_max);
    }

    /// Takes the memory of the free rings away that have waited longest; false = there are none.
    pub(super) fn cool(&mut self) -> bool {
        let Some(object) = self.kept.oldest() else {
            return false;
        };
        self.kept.remove(object);
        // What stays is found by whoever takes the index next.
        self.strip(object, 0);
        true
    }

    /// When the memory that has waited longest has done so for long enough.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.kept.next_due()
    }

    /// Bytes that the stack has received into the ring of `object`, or None when there is no address space for a second
    /// mapping.
    pub(super) fn received(&mut self, object: u32, span: Span) -> Option<&mut [u8]> {
        if self.staging.is_none() {
            let (fd, layout) = (self.segments.receive_fd(), self.segments.layout());
            match Staging::new(fd.as_fd(), layout) {
                Ok(staging) => self.staging = Some(staging),
                Err(errno) => crate::error!("payload event=no_mapping errno={errno}"),
            }
        }
        self.staging.as_mut()?.bytes_mut(object, span)
    }
}
