//! Segments that are held: those that are with the GPU, and those of their flows that came behind them.
//!
//! A segment lies in the port's own buffer all the time; here is what is known of it, by the ticket under which the port keeps
//! the buffer. Their number is bounded by what the port can spare.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::Verdict;
use crate::ffi::cuda::{DevicePointer, Lent};
use crate::gpu::air::Air;
use crate::gpu::chunk::Ends;
use crate::gpu::offload::Event;

/// How far a held segment is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    /// The ticket is free, or the segment was not offered to any rule yet.
    Nothing,
    /// With the GPU.
    Flying,
    /// It waits for a place in a ring.
    Stalled,
    /// It was judged, and waits for those ahead of it or to be taken.
    Landed(Verdict),
    /// Nobody waits for it; a kernel may still look at it.
    Gone,
}

/// A held segment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) ends: Ends,
    /// Where its payload begins in the frame, and how long that is.
    pub(super) begin: usize,
    pub(super) bytes: usize,
    /// The rule that it is at.
    pub(super) at: usize,
    pub(super) phase: Phase,
    /// The buffer with a copy, where the frame itself cannot be given to the GPU.
    pub(super) buffer: Option<u32>,
    /// Its verdict is a kernel's.
    pub(super) is_judged: bool,
    /// The CPU has what is left to do.
    pub(super) on_cpu: bool,
    /// A late kernel may look at it.
    pub(super) is_late: bool,
}

/// The held segments of a flow, as they came.
#[derive(Debug, Default)]
struct Queue {
    tickets: VecDeque<u32>,
    /// Of them, from the front, those that wait to be taken.
    out: usize,
}

/// What a stage holds.
#[derive(Debug)]
pub(super) struct Hold {
    pub(super) air: Air,
    /// The port's memory, when it is registered.
    pub(super) lent: Option<Arc<Lent>>,
    limit: usize,
    entries: Vec<Entry>,
    free: Vec<u32>,
    flows: HashMap<Ends, Queue>,
    spare: Vec<Queue>,
    /// To be taken, in order.
    released: VecDeque<u32>,
    /// Tickets whose buffers go back to the port.
    freed: Vec<u32>,
    /// Tickets that wait for a place in a ring.
    pub(super) stalled: VecDeque<u32>,
    /// Of all held, those that a GPU has.
    pub(super) flying: usize,
}

impl Hold {
    pub(super) fn new(air: Air, lent: Option<Arc<Lent>>) -> Self {
        Self {
            air,
            lent,
            limit: 0,
            entries: Vec::new(),
            free: Vec::new(),
            flows: HashMap::new(),
            spare: Vec::new(),
            released: VecDeque::new(),
            freed: Vec::new(),
            stalled: VecDeque::new(),
            flying: 0,
        }
    }

    /// No more than `limit` are ever held.
    pub(super) fn bound(&mut self, limit: usize) {
        self.limit = limit;
    }

    /// How many are.
    fn count(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// Whether `more` would find a place.
    pub(super) fn has_place(&self, more: usize) -> bool {
        self.count() + more <= self.limit
    }

    /// How many more would find a place.
    pub(super) fn places(&self) -> usize {
        self.limit.saturating_sub(self.count())
    }

    /// Whether one more may be given to the GPU: half of the places are for those that come behind.
    pub(super) fn may_fly(&self) -> bool {
        self.flying < self.limit.div_ceil(2)
    }

    /// Whether segments of a flow are held.
    pub(super) fn is_held(&self, ends: Ends) -> bool {
        !self.flows.is_empty() && self.flows.contains_key(&ends)
    }

    /// Whether anything is held that somebody waits for.
    pub(super) fn is_busy(&self) -> bool {
        !self.flows.is_empty()
    }

    pub(super) fn entry(&mut self, ticket: u32) -> Option<&mut Entry> {
        self.entries.get_mut(ticket as usize)
    }

    /// Takes a ticket for a segment.
    pub(super) fn enter(&mut self, entry: Entry) -> u32 {
        let ticket = self.free.pop().unwrap_or_else(|| {
            self.entries.push(entry);
            u32::try_from(self.entries.len() - 1).unwrap_or(u32::MAX)
        });
        if let Some(place) = self.entry(ticket) {
            *place = entry;
        }
        ticket
    }

    /// Gives back the ticket of a segment that was judged at once.
    pub(super) fn leave(&mut self, ticket: u32) {
        self.clear(ticket);
        self.free.push(ticket);
    }

    fn clear(&mut self, ticket: u32) {
        let Some(entry) = self.entry(ticket) else {
            return;
        };
        entry.phase = Phase::Nothing;
        if let Some(buffer) = entry.buffer.take() {
            self.air.pool.give_back(buffer);
        }
    }

    /// Gives back the copy of a segment that was judged, unless a late kernel may look at it: those that wait for a place need
    /// it, perhaps the very one that this segment waits for.
    pub(super) fn give_copy_back(&mut self, ticket: u32) {
        let Some(entry) = self.entry(ticket) else {
            return;
        };
        if entry.is_late || !matches!(entry.phase, Phase::Landed(_)) {
            return;
        }
        if let Some(buffer) = entry.buffer.take() {
            self.air.pool.give_back(buffer);
        }
    }

    /// Puts a segment behind those of its flow.
    pub(super) fn line_up(&mut self, ends: Ends, ticket: u32) {
        let spare = &mut self.spare;
        let queue = self.flows.entry(ends);
        let queue = queue.or_insert_with(|| spare.pop().unwrap_or_default());
        queue.tickets.push_back(ticket);
    }

    /// The next segment of a flow that was not released, and its verdict if it has one.
    pub(super) fn next_of(&mut self, ends: Ends) -> Option<(Entry, Verdict)> {
        let queue = self.flows.get(&ends)?;
        let ticket = *queue.tickets.get(queue.out)?;
        let entry = *self.entry(ticket)?;
        match entry.phase {
            Phase::Landed(verdict) => Some((entry, verdict)),
            _ => None,
        }
    }

    /// Lets the next segment of a flow go on.
    pub(super) fn release(&mut self, ends: Ends) {
        if let Some(queue) = self.flows.get_mut(&ends) {
            self.released.extend(queue.tickets.get(queue.out));
            queue.out += 1;
        }
    }

    /// Drops the next segments of a flow, `count` at most.
    pub(super) fn drop_next(&mut self, ends: Ends, count: usize) {
        let Some(queue) = self.flows.get_mut(&ends) else {
            return;
        };
        let end = queue.tickets.len().min(queue.out.saturating_add(count));
        let dropped: Vec<u32> = queue.tickets.drain(queue.out..end).collect();
        for ticket in dropped {
            self.part(ticket);
        }
        self.tidy(ends);
    }

    /// The first `count` segments that were released were taken.
    pub(super) fn taken(&mut self, count: usize) {
        for _ in 0..count {
            let Some(ticket) = self.released.pop_front() else {
                return;
            };
            let Some(ends) = self.entry(ticket).map(|entry| entry.ends) else {
                continue;
            };
            if let Some(queue) = self.flows.get_mut(&ends) {
                queue.tickets.pop_front();
                queue.out = queue.out.saturating_sub(1);
            }
            self.part(ticket);
            self.tidy(ends);
        }
    }

    pub(super) const fn released(&self) -> &VecDeque<u32> {
        &self.released
    }

    fn tidy(&mut self, ends: Ends) {
        let is_empty = |queue: &Queue| queue.tickets.is_empty();
        if self.flows.get(&ends).is_some_and(is_empty) {
            self.spare.extend(self.flows.remove(&ends));
        }
    }

    /// Nobody waits for a segment any more.
    fn part(&mut self, ticket: u32) {
        let Some(entry) = self.entry(ticket) else {
            return;
        };
        if entry.is_late || entry.phase == Phase::Flying {
            entry.phase = Phase::Gone;
        } else {
            self.let_go(ticket);
        }
    }

    /// Its buffer goes back to the port.
    fn let_go(&mut self, ticket: u32) {
        self.clear(ticket);
        self.freed.push(ticket);
    }

    /// The GPU is done with a segment; true: somebody waits for it.
    pub(super) fn is_back(&mut self, ticket: u32) -> bool {
        let Some(entry) = self.entry(ticket) else {
            return false;
        };
        let (was_late, phase) = (core::mem::take(&mut entry.is_late), entry.phase);
        if !was_late {
            self.flying = self.flying.saturating_sub(1);
        }
        if phase == Phase::Gone {
            self.let_go(ticket);
        }
        self.give_copy_back(ticket);
        phase == Phase::Flying
    }

    /// The GPU has not judged a segment in time; as [`Hold::is_back`], but a kernel may still look at it.
    pub(super) fn is_late(&mut self, ticket: u32) -> bool {
        let Some(entry) = self.entry(ticket) else {
            return false;
        };
        entry.is_late = true;
        let is_awaited = entry.phase == Phase::Flying;
        self.flying = self.flying.saturating_sub(1);
        is_awaited
    }

    /// Takes the tickets whose buffers go back to the port.
    pub(super) fn take_freed(&mut self, into: &mut Vec<u32>) {
        into.extend(&self.freed);
        self.free.append(&mut self.freed);
    }

    /// How the GPU calls a payload that lies in the port's memory.
    pub(super) fn device(&self, payload: &[u8]) -> Option<DevicePointer> {
        let lent = self.lent.as_ref()?;
        lent.device(payload.as_ptr().addr(), payload.len())
    }

    /// What a rule's ring has done; `into` is empty. Returns how much is on its way.
    pub(super) fn step(
        &mut self,
        rule: usize,
        now: crate::time::Instant,
        into: &mut Vec<Event>,
    ) -> usize {
        match self.air.rules.get_mut(rule) {
            Some(Some(offload)) => offload.step(now, into) + usize::from(offload.is_busy()),
            _ => 0,
        }
    }

    pub(super) fn report(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        self.air.report(visit);
        let late = self.entries.iter().filter(|entry| entry.is_late).count();
        visit("payload_frames_held", self.count() as u64);
        visit("payload_frames_late", late as u64);
    }
}
