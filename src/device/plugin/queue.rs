//! The two halves of a plug-in queue pair: slots lent, filled and given back.
//!
//! # Safety
//! As in the parent: a half is the only user of its side of the queue, keeps the port alive, and owns a
//! slot's memory between the call that gave it and the call that takes it back.

#![allow(unsafe_code)]

use core::cell::Cell;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use super::Port;
use super::eal::Shares;
use crate::device::plugin_abi::{
    Queue, RX_CHECKSUM_BAD, RX_CHECKSUM_GOOD, RX_CHECKSUM_PARTIAL, SLOTS_MAX, Slot, TX_CHECKSUM,
    Table,
};
use crate::device::{BURST_MAX, Keeps, RxFrame, RxMeta, RxQueue, TxMeta, TxQueue};
use crate::time::Instant;

thread_local! {
    /// This thread was made known to DPDK, or DPDK refused it for good.
    static KNOWN: Cell<bool> = const { Cell::new(false) };
}

/// Makes the calling thread known to DPDK, once: its per-thread buffer caches need it.
fn enter(table: &Table) {
    if KNOWN.replace(true) {
        return;
    }
    // SAFETY: the port is started.
    let rc = unsafe { (table.thread_enter)() };
    if rc != 0 {
        // It works all the same, without the cache.
        crate::warn!(
            "device=dpdk event=thread_not_registered errno={}",
            rc.saturating_neg()
        );
    }
}

/// The receive half.
pub(super) struct Receive {
    port: Arc<Port>,
    queue: *mut Queue,
    /// Its threads enter and leave: none is made known to DPDK for good.
    borrowed: bool,
    /// When it was polled last.
    polled: Instant,
    /// What a burst is received into: kept, because most turns receive nothing and clearing it would be their largest part.
    slots: [Slot; BURST_MAX],
    kept: Kept,
    keeps: Keeps,
}

// SAFETY: the queue's receive calls are made through `&mut self` only; DPDK asks for one thread at a
// time, not for the same one.
unsafe impl Send for Receive {}

/// The received slots at the front of `slots`, given back at the end of the call, also by a panic of the receiver of the frames.
struct Received<'a> {
    from: &'a Receive,
    count: usize,
}

impl Drop for Received<'_> {
    fn drop(&mut self) {
        let count = u32::try_from(self.count).unwrap_or(0);
        let slots = &self.from.slots;
        // SAFETY: the first `count` slots came from `rx_burst` and no frame is borrowed any more.
        unsafe { (self.from.port.table.free)(self.from.queue, slots.as_ptr(), count) };
    }
}

impl Receive {
    /// The half of a queue that nobody else has.
    pub(super) fn new(port: Arc<Port>, queue: *mut Queue, keeps: usize) -> Self {
        Self {
            port,
            queue,
            borrowed: false,
            polled: Instant::ZERO,
            slots: [Slot::EMPTY; BURST_MAX],
            kept: Kept::new(keeps),
            keeps: Keeps::default(),
        }
    }

    /// Takes the kept ones of the first `count` slots out; the others are at the front then. Returns how many those are.
    fn keep(&mut self, count: usize, keeps: &Keeps) -> usize {
        let mut left = 0;
        for at in 0..count {
            let Some(slot) = self.slots.get(at).copied() else {
                break;
            };
            let ticket = keeps.of(slot.data.addr());
            if ticket.is_none_or(|ticket| !self.kept.put(ticket, slot)) {
                if let Some(place) = self.slots.get_mut(left) {
                    *place = slot;
                }
                left += 1;
            }
        }
        left
    }
}

/// Kept slots by their tickets. Those that are kept when it ends stay with the port, whose pools end with it: whoever made them
/// be kept may still look at them.
struct Kept(Vec<Slot>);

impl Kept {
    fn new(most: usize) -> Self {
        Self(vec![Slot::EMPTY; most])
    }

    /// False: the ticket has a slot, or is none.
    fn put(&mut self, ticket: u32, slot: Slot) -> bool {
        match self.0.get_mut(ticket as usize) {
            Some(place) if place.handle.is_null() => {
                *place = slot;
                true
            }
            _ => false,
        }
    }

    fn take(&mut self, ticket: u32) -> Option<Slot> {
        let place = self.0.get_mut(ticket as usize)?;
        let slot = core::mem::replace(place, Slot::EMPTY);
        (!slot.handle.is_null()).then_some(slot)
    }

    fn bytes(&mut self, ticket: u32) -> Option<&mut [u8]> {
        let slot = self.0.get_mut(ticket as usize)?;
        if slot.handle.is_null() {
            return None;
        }
        // SAFETY: `len` bytes at `data` are the slot's, which is ours alone; the borrow of self is unique.
        Some(unsafe { core::slice::from_raw_parts_mut(slot.data, slot.len as usize) })
    }

    /// Gives a slot back to the pool that it came from.
    fn free(&mut self, ticket: u32, table: &Table, queue: *mut Queue) {
        if let Some(slot) = self.take(ticket) {
            // SAFETY: the slot is ours, and nobody borrows it any more.
            unsafe { (table.free)(queue, &raw const slot, 1) };
        }
    }
}

fn rx_meta(flags: u16) -> RxMeta {
    RxMeta {
        checksum_good: flags & RX_CHECKSUM_GOOD != 0,
        checksum_bad: flags & RX_CHECKSUM_BAD != 0,
        checksum_partial: flags & RX_CHECKSUM_PARTIAL != 0,
    }
}

impl RxQueue for Receive {
    fn rx_burst(&mut self, now: Instant, deliver: &mut dyn FnMut(&mut [RxFrame<'_>])) -> usize {
        self.polled = now;
        if !self.borrowed {
            enter(self.port.table);
        }
        let slots = self.slots.as_mut_ptr();
        // SAFETY: the queue is this half's, there is room for SLOTS_MAX slots.
        let count = unsafe { (self.port.table.rx_burst)(self.queue, slots, SLOTS_MAX) };
        if count == 0 {
            return 0;
        }
        let count = (count as usize).min(BURST_MAX);
        let received = Received { from: self, count };
        let mut frames: [RxFrame<'_>; BURST_MAX] = core::array::from_fn(|_| RxFrame {
            bytes: &mut [],
            meta: RxMeta::default(),
        });
        for (frame, slot) in frames
            .iter_mut()
            .zip(received.from.slots.iter().take(count))
        {
            // SAFETY: `len` bytes at `data` are this slot's alone until it is given back.
            frame.bytes = unsafe { core::slice::from_raw_parts_mut(slot.data, slot.len as usize) };
            frame.meta = rx_meta(slot.flags);
        }
        if let Some(frames) = frames.get_mut(..count) {
            deliver(frames);
        }
        drop(received);
        count
    }

    fn keeps(&self) -> usize {
        self.kept.0.len()
    }

    fn rx_burst_keeping(
        &mut self,
        now: Instant,
        deliver: &mut dyn FnMut(&mut [RxFrame<'_>], &mut Keeps),
    ) -> usize {
        self.polled = now;
        if !self.borrowed {
            enter(self.port.table);
        }
        let slots = self.slots.as_mut_ptr();
        // SAFETY: the queue is this half's, there is room for SLOTS_MAX slots.
        let count = unsafe { (self.port.table.rx_burst)(self.queue, slots, SLOTS_MAX) };
        let count = (count as usize).min(BURST_MAX);
        if count == 0 {
            return 0;
        }
        let mut keeps = core::mem::take(&mut self.keeps);
        keeps.clear();
        let mut received = Received { from: self, count };
        let mut frames: [RxFrame<'_>; BURST_MAX] = core::array::from_fn(|_| RxFrame {
            bytes: &mut [],
            meta: RxMeta::default(),
        });
        let slots = received.from.slots.iter().take(count);
        for (frame, slot) in frames.iter_mut().zip(slots) {
            // SAFETY: `len` bytes at `data` are this slot's alone until it is given back.
            frame.bytes = unsafe { core::slice::from_raw_parts_mut(slot.data, slot.len as usize) };
            frame.meta = rx_meta(slot.flags);
        }
        if let Some(frames) = frames.get_mut(..count) {
            deliver(frames, &mut keeps);
        }
        // From here on nothing panics; what is not kept is given back below.
        received.count = 0;
        drop(received);
        let left = self.keep(count, &keeps);
        drop(Received {
            from: self,
            count: left,
        });
        self.keeps = keeps;
        count
    }

    fn kept(&mut self, ticket: u32) -> Option<&mut [u8]> {
        self.kept.bytes(ticket)
    }

    fn lend_kept(&mut self, tickets: &[u32], deliver: &mut dyn FnMut(&mut [RxFrame<'_>])) {
        let mut frames: [RxFrame<'_>; BURST_MAX] = core::array::from_fn(|_| RxFrame {
            bytes: &mut [],
            meta: RxMeta::default(),
        });
        let mut count = 0;
        for (at, ticket) in tickets.iter().enumerate() {
            let is_twice = tickets
                .get(..at)
                .is_some_and(|before| before.contains(ticket));
            let slot = self.kept.0.get(*ticket as usize);
            let (Some(slot), Some(frame)) = (slot, frames.get_mut(count)) else {
                continue;
            };
            if slot.handle.is_null() || is_twice {
                continue;
            }
            // SAFETY: `len` bytes at `data` are the slot's, which is ours alone while self is borrowed, and lent once.
            frame.bytes = unsafe { core::slice::from_raw_parts_mut(slot.data, slot.len as usize) };
            count += 1;
        }
        match frames.get_mut(..count) {
            Some(frames) if count > 0 => deliver(frames),
            _ => {}
        }
    }

    fn free_kept(&mut self, ticket: u32) {
        self.kept.free(ticket, self.port.table, self.queue);
    }

    fn enter(&mut self) {
        self.borrowed = true;
        // SAFETY: the port is started.
        unsafe { (self.port.table.thread_borrow)() };
    }

    fn leave(&mut self) {
        // SAFETY: the port is started.
        unsafe { (self.port.table.thread_return)() };
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        // SAFETY: the queue is this half's.
        let fd = unsafe { (self.port.table.wait_fd)(self.queue) };
        // SAFETY: the port keeps the descriptor open as long as the queue, which is borrowed.
        (fd >= 0).then(|| unsafe { BorrowedFd::borrow_raw(fd) })
    }

    fn next_due(&self) -> Option<Instant> {
        Some(self.polled + INTERRUPT_LOST)
    }

    fn arm(&mut self, on: bool) {
        // SAFETY: the queue is this half's.
        let rc = unsafe { (self.port.table.arm)(self.queue, u32::from(on)) };
        if rc != 0 {
            crate::debug!(
                "device=dpdk event=not_armed on={on} errno={}",
                rc.saturating_neg()
            );
        }
    }
}

/// A sleeping queue is looked at this often all the same: a driver whose interrupt gets lost (e1000 under emulation does it)
/// must not be deaf until something else wakes the lcore. Ten looks a second cost an idle core nothing that shows.
const INTERRUPT_LOST: core::time::Duration = core::time::Duration::from_millis(100);

const fn tx_flags(meta: TxMeta) -> u16 {
    if meta.checksum_offload {
        TX_CHECKSUM
    } else {
        0
    }
}

/// The transmit half. `slots` holds, from the front, committed frames, then empty buffers.
pub(super) struct Transmit {
    port: Arc<Port>,
    queue: *mut Queue,
    slots: [Slot; BURST_MAX],
    /// Frames that wait for `flush`.
    committed: usize,
    /// Committed frames and empty buffers behind them.
    allocated: usize,
    /// Bytes lent by the last `alloc`.
    room: usize,
    /// Bytes of a usual buffer. Frames up to this length come from buffers taken in one go, larger
    /// ones from the few large buffers, one by one.
    mbuf_room: usize,
    kept: Kept,
    /// By ticket, whether the kept frame lies in a large buffer; how many do, and may.
    is_large: Vec<bool>,
    large: usize,
    large_most: usize,
}

// SAFETY: as for the receive half; the slots are this half's alone.
unsafe impl Send for Transmit {}

impl Transmit {
    /// The half of a queue that nobody else has, with usual buffers of `mbuf_room` bytes.
    pub(super) fn new(
        port: Arc<Port>,
        queue: *mut Queue,
        mbuf_room: usize,
        shares: Shares,
    ) -> Self {
        Self {
            port,
            queue,
            slots: [Slot::EMPTY; BURST_MAX],
            committed: 0,
            allocated: 0,
            room: 0,
            mbuf_room,
            kept: Kept::new(shares.sent),
            is_large: vec![false; shares.sent],
            large: 0,
            large_most: shares.sent_large,
        }
    }

    /// Whether a frame of `len` bytes can be sent now: one that the port must cut only while it does that.
    fn takes(&self, len: usize) -> bool {
        // SAFETY: the queue is this half's.
        len <= self.mbuf_room || unsafe { (self.port.table.tx_cuts)(self.queue) } != 0
    }

    /// Brings an empty buffer for a frame of `len` bytes to the front of the empty ones. Large and usual frames take turns in a stream, so
    /// that buffers of the other kind stay. False when there is none.
    fn bring(&mut self, len: usize) -> bool {
        let large = len > self.mbuf_room;
        let usual_room = self.mbuf_room;
        let fits = |slot: &Slot| slot.len as usize >= len;
        let is_own = |slot: &Slot| fits(slot) && (slot.len as usize > usual_room) == large;
        if self.empty().first().is_some_and(is_own) {
            return true;
        }
        let mut found = self.empty().iter().position(is_own);
        if found.is_none() {
            if large && self.allocated == BURST_MAX {
                self.release_from(BURST_MAX - 1);
            }
            let fresh = self.allocated - self.committed;
            // A large buffer does for a usual frame as well.
            found = if self.refill(len) && self.empty().get(fresh).is_some_and(fits) {
                Some(fresh)
            } else {
                self.empty().iter().position(fits)
            };
        }
        if let Some(at) = found {
            self.slots.swap(self.committed, self.committed + at);
        }
        found.is_some()
    }

    /// The buffer of a kept frame is not kept any more.
    fn unkept(&mut self, ticket: u32) {
        let place = self.is_large.get_mut(ticket as usize);
        if place.is_some_and(core::mem::take) {
            self.large = self.large.saturating_sub(1);
        }
    }

    fn empty(&self) -> &[Slot] {
        self.slots
            .get(self.committed..self.allocated)
            .unwrap_or(&[])
    }

    /// Takes buffers for the rest of the burst (for a large frame only the one that is needed); false when there are none.
    fn refill(&mut self, len: usize) -> bool {
        let end = if len > self.mbuf_room {
            self.allocated + 1
        } else {
            BURST_MAX
        };
        let Some(free) = self.slots.get_mut(self.allocated..end) else {
            return false;
        };
        let (Ok(wanted), Ok(bytes)) = (u32::try_from(free.len()), u32::try_from(len)) else {
            return false;
        };
        // SAFETY: the queue is this half's, there is room for `wanted` slots.
        let got =
            unsafe { (self.port.table.tx_alloc)(self.queue, free.as_mut_ptr(), wanted, bytes) };
        self.allocated += (got as usize).min(free.len());
        got > 0
    }

    /// Gives the empty buffers from place `from` on back.
    fn release_from(&mut self, from: usize) {
        let from = from.max(self.committed);
        if let Some(empty) = self.slots.get(from..self.allocated) {
            let count = u32::try_from(empty.len()).unwrap_or(0);
            // SAFETY: these slots came from `tx_alloc` and were not sent.
            unsafe { (self.port.table.free)(self.queue, empty.as_ptr(), count) };
            self.allocated = from;
        }
    }
}

impl TxQueue for Transmit {
    fn alloc(&mut self, len: usize) -> Option<&mut [u8]> {
        if self.committed == BURST_MAX {
            return None;
        }
        if !self.takes(len) || !self.bring(len) {
            return None;
        }
        let slot = self
            .slots
            .get(self.committed)
            .filter(|slot| slot.len as usize >= len)?;
        self.room = len;
        // SAFETY: the slot has `slot.len >= len` bytes at `data`, this half's alone until sent or freed.
        Some(unsafe { core::slice::from_raw_parts_mut(slot.data, len) })
    }

    fn commit(&mut self, len: usize, meta: TxMeta) {
        if self.committed == self.allocated {
            return;
        }
        let len = len.min(self.room);
        if let Some(slot) = self.slots.get_mut(self.committed) {
            slot.len = u32::try_from(len).unwrap_or(0);
            slot.flags = tx_flags(meta);
            slot.segment_bytes = meta.segment_bytes;
            self.committed += 1;
            self.room = 0;
        }
    }

    fn flush(&mut self, _now: Instant) -> usize {
        let mut total = 0;
        while total < self.committed {
            let Some(rest) = self.slots.get(total..self.committed) else {
                break;
            };
            let count = u32::try_from(rest.len()).unwrap_or(0);
            // SAFETY: the queue is this half's, the slots are committed ones.
            let done = unsafe { (self.port.table.tx_burst)(self.queue, rest.as_ptr(), count) };
            if done == 0 {
                break;
            }
            total += (done as usize).min(rest.len());
        }
        if total == 0 {
            return 0;
        }
        self.slots.copy_within(total..self.allocated, 0);
        self.committed -= total;
        self.allocated -= total;
        total
    }

    fn room(&self) -> usize {
        BURST_MAX - self.committed
    }

    fn keeps(&self) -> usize {
        self.kept.0.len()
    }

    fn can_keep(&self) -> bool {
        let is_large = |slot: &Slot| slot.len as usize > self.mbuf_room;
        self.keeps() > 0
            && (self.large < self.large_most || !self.empty().first().is_some_and(is_large))
    }

    fn keep(&mut self, len: usize, meta: TxMeta, ticket: u32) -> bool {
        let (at, len) = (self.committed, len.min(self.room));
        let Some(mut slot) = self.empty().first().copied() else {
            return false;
        };
        let is_large = slot.len as usize > self.mbuf_room;
        slot.len = u32::try_from(len).unwrap_or(0);
        slot.flags = tx_flags(meta);
        slot.segment_bytes = meta.segment_bytes;
        if len == 0 || !self.kept.put(ticket, slot) {
            return false;
        }
        if let Some(place) = self.is_large.get_mut(ticket as usize) {
            *place = is_large;
            self.large += usize::from(is_large);
        }
        // The last empty one fills the gap.
        self.allocated -= 1;
        self.slots.swap(at, self.allocated);
        self.room = 0;
        true
    }

    fn kept(&mut self, ticket: u32) -> Option<&mut [u8]> {
        self.kept.bytes(ticket)
    }

    fn commit_kept(&mut self, ticket: u32) -> bool {
        if self.committed == BURST_MAX {
            return false;
        }
        let kept = self.kept.0.get(ticket as usize);
        if kept.is_some_and(|slot| !self.takes(slot.len as usize)) {
            self.free_kept(ticket);
            return true;
        }
        if self.allocated == BURST_MAX {
            self.release_from(BURST_MAX - 1);
        }
        let Some(slot) = self.kept.take(ticket) else {
            return false;
        };
        self.unkept(ticket);
        if let Some(place) = self.slots.get_mut(self.allocated) {
            *place = slot;
        }
        self.slots.swap(self.committed, self.allocated);
        self.allocated += 1;
        self.committed += 1;
        self.room = 0;
        true
    }

    fn free_kept(&mut self, ticket: u32) {
        self.unkept(ticket);
        self.kept.free(ticket, self.port.table, self.queue);
    }
}

impl Drop for Transmit {
    fn drop(&mut self) {
        self.committed = 0;
        self.release_from(0);
    }
}
