//! Streams that a GPU judges: what is on its way, and what has come back.
//!
//! Of each direction of a flow one chunk at a time is on its way, because a kernel goes on from the state that it left behind
//! the chunk before. The caller keeps the bytes until the chunk has come down and acts on none of them before that; what
//! a kernel keeps of the flow changes only then. So whatever goes wrong, the CPU can do the same chunk anew.

mod trip;

use self::trip::Trip;
use super::{Flow, StreamStage, Verdict, is_for};
use crate::config::payload::Instead;
use crate::gpu::air::{Air, Flight, Phase};
use crate::gpu::chunk::{Chunk, Direction, Ends};
use crate::gpu::kernel::KernelState;
use crate::gpu::offload::Event;
use crate::gpu::pipeline::Rule;
use crate::gpu::ring::PACKET_BYTES_MAX;
use crate::id::FlowId;
use crate::time::Instant;

/// What became of a chunk that was offered to the GPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Departure {
    /// It is on its way: the caller is called when it has come down.
    Flying,
    /// There was no place: the caller is called when there may be one.
    Waiting,
    /// It was judged at once, and changed in place where a kernel writes.
    Judged(Verdict),
}

/// What is known of a direction of a flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Aloft {
    /// Nothing is on its way.
    Nothing,
    /// A chunk is.
    Flying,
    /// So many bytes have come down; [`StreamStage::fetch`] has them, changed or not as `wrote` says.
    Landed {
        /// How many.
        bytes: usize,
        /// What was said of them.
        verdict: Verdict,
        /// A kernel that writes has seen them.
        wrote: bool,
    },
    /// The CPU must judge so many bytes.
    Failed {
        /// How many.
        bytes: usize,
    },
    /// So many bytes pass unjudged.
    Bypassed {
        /// How many.
        bytes: usize,
    },
}

const fn side(direction: Direction) -> usize {
    match direction {
        Direction::Rx => 0,
        Direction::Tx => 1,
    }
}

const fn direction(side: usize) -> Direction {
    match side {
        0 => Direction::Rx,
        _ => Direction::Tx,
    }
}

impl StreamStage {
    /// Bytes of a chunk that can be offered at most.
    pub const CHUNK_MAX: usize = PACKET_BYTES_MAX;

    /// Its rules.
    pub(in crate::gpu) fn rules_mut(&mut self) -> &mut [Rule] {
        &mut self.rules
    }

    /// Lets the GPU run the kernels from now on.
    pub(in crate::gpu) fn fly(&mut self, air: Air) {
        self.air = Some(air);
    }

    /// Whether a chunk of this flow would go to the GPU now.
    pub fn flies(&mut self, id: FlowId, way: Direction, ends: Ends) -> bool {
        let Self {
            rules, flows, air, ..
        } = self;
        let Some(air) = air.as_ref().filter(|air| air.gpu.is_on()) else {
            return false;
        };
        let flow = flows.entry(id).or_insert_with(|| Flow::new(rules, ends));
        flow.first_aloft(rules, air, way).is_some()
    }

    /// Offers the next chunk of a direction of a flow, at most [`StreamStage::CHUNK_MAX`] bytes, to the GPU. Nothing of that
    /// direction may be on its way. `token` comes back with the flow when the chunk has come down.
    pub fn take_off(
        &mut self,
        now: Instant,
        id: FlowId,
        chunk: &mut Chunk<'_>,
        token: u32,
    ) -> Departure {
        let Self {
            rules,
            flows,
            counters,
            air,
        } = self;
        let flow = flows
            .entry(id)
            .or_insert_with(|| Flow::new(rules, chunk.ends));
        if flow.reset {
            return Departure::Judged(Verdict::Reset);
        }
        let first = air
            .as_ref()
            .and_then(|air| flow.first_aloft(rules, air, chunk.direction));
        let (Some(air), Some(first)) = (air, first) else {
            return Departure::Judged(self.judge(id, chunk));
        };
        let buffer = if air.has_room(first) {
            air.pool.store(chunk.bytes)
        } else {
            None
        };
        let Some(buffer) = buffer else {
            return self.refuse_full(id, chunk, token, first);
        };
        let side = side(chunk.direction);
        air.serial += 1;
        let kept = |states: &[KernelState; 2]| states.get(side).copied().unwrap_or_default();
        let flight = Flight {
            serial: air.serial,
            token,
            at: 0,
            offset: chunk.offset,
            bytes: chunk.bytes.len(),
            buffer: Some(buffer),
            states: flow.states.iter().map(kept).collect(),
            phase: Phase::Flying,
        };
        counters.payload_chunks.raise();
        let mut trip = Trip {
            id,
            side,
            ends: chunk.ends,
            rules,
            counters,
            air,
        };
        match trip.go_on(now, flow, flight) {
            None => Departure::Flying,
            // A rule ahead of the first that flies has ended it.
            Some(flight) => {
                trip.air.put_down(flight);
                Departure::Judged(Verdict::Reset)
            }
        }
    }

    /// The GPU has no place.
    fn refuse_full(
        &mut self,
        id: FlowId,
        chunk: &mut Chunk<'_>,
        token: u32,
        rule: usize,
    ) -> Departure {
        let Some(air) = &mut self.air else {
            return Departure::Judged(self.judge(id, chunk));
        };
        if air.well(rule).is_none() {
            // It is late: it takes nothing, and the CPU takes over.
            return Departure::Judged(self.judge(id, chunk));
        }
        self.counters.payload_chunks_refused_full.raise();
        let on_full = match air.on_full {
            // No CPU can run one of its kernels.
            Instead::Cpu
                if self
                    .flows
                    .get(&id)
                    .is_some_and(|flow| flow.needs_gpu(&self.rules, air, chunk.direction)) =>
            {
                Instead::Wait
            }
            other => other,
        };
        match on_full {
            Instead::Cpu => Departure::Judged(self.judge(id, chunk)),
            Instead::Bypass => {
                self.counters.payload_chunks_bypassed.raise();
                Departure::Judged(Verdict::Pass)
            }
            Instead::Drop => {
                if let Some(flow) = self.flows.get_mut(&id) {
                    flow.reset = true;
                }
                self.counters.payload_flows_reset_gpu.raise();
                self.counters.payload_flows_reset.raise();
                Departure::Judged(Verdict::Reset)
            }
            Instead::Wait => {
                if !air.waiting.contains(&(id, token)) {
                    air.waiting.push_back((id, token));
                }
                Departure::Waiting
            }
        }
    }

    /// What is on its way in this direction of a flow.
    #[must_use]
    pub fn aloft(&self, id: FlowId, way: Direction) -> Aloft {
        let flow = self.flows.get(&id);
        let Some((flow, flight)) =
            flow.and_then(|flow| Some((flow, flow.flights.get(side(way))?.as_ref()?)))
        else {
            return Aloft::Nothing;
        };
        let bytes = flight.bytes;
        match flight.phase {
            Phase::Flying | Phase::Stalled => Aloft::Flying,
            Phase::Landed(verdict) => Aloft::Landed {
                bytes,
                verdict,
                wrote: (0..)
                    .zip(&self.rules)
                    .any(|(at, rule)| rule.writes && is_for(flow.rules, at, rule, way)),
            },
            Phase::Failed => Aloft::Failed { bytes },
            Phase::Bypassed => Aloft::Bypassed { bytes },
        }
    }

    /// Whether a rule for bytes of this direction of a flow can be run by the GPU alone, and is.
    pub fn needs_gpu(&mut self, id: FlowId, way: Direction, ends: Ends) -> bool {
        let Self {
            rules, flows, air, ..
        } = self;
        let Some(air) = air.as_ref().filter(|air| air.gpu.is_on()) else {
            return false;
        };
        let flow = flows.entry(id).or_insert_with(|| Flow::new(rules, ends));
        flow.needs_gpu(rules, air, way)
    }

    /// The ends of a flow that was judged before.
    #[must_use]
    pub fn ends(&self, id: FlowId) -> Option<Ends> {
        self.flows.get(&id).map(|flow| flow.ends)
    }

    /// Copies bytes that have landed, from `skip` on; false when they are not there.
    #[must_use]
    pub fn fetch(&self, id: FlowId, way: Direction, skip: usize, to: &mut [u8]) -> bool {
        let flight = self
            .flows
            .get(&id)
            .and_then(|flow| flow.flights.get(side(way))?.as_ref());
        let (Some(air), Some(flight)) = (&self.air, flight) else {
            return false;
        };
        flight
            .buffer
            .is_some_and(|buffer| air.pool.load(buffer, skip, to))
    }

    /// The chunk that came down has been acted upon; or the caller cannot wait for it and lets the CPU do it.
    pub fn put_down(&mut self, id: FlowId, way: Direction) {
        let flight = self
            .flows
            .get_mut(&id)
            .and_then(|flow| flow.flights.get_mut(side(way))?.take());
        if let (Some(air), Some(flight)) = (&mut self.air, flight) {
            air.put_down(flight);
        }
    }

    /// Moves what goes to the GPU and what comes from it; returns how much was done, and a little more than nothing as long
    /// as something is on its way. Never waits.
    pub fn step(&mut self, now: Instant) -> usize {
        let Some(rules) = self.air.as_ref().map(|air| air.rules.len()) else {
            return 0;
        };
        let mut work = 0;
        for rule in 0..rules {
            let Some(air) = &mut self.air else { break };
            let mut events = core::mem::take(&mut air.events);
            if let Some(Some(offload)) = air.rules.get_mut(rule) {
                work += offload.step(now, &mut events);
                work += usize::from(offload.is_busy());
            }
            for event in events.drain(..) {
                self.on(now, event);
            }
            if let Some(air) = &mut self.air {
                air.events = events;
            }
        }
        self.move_on(now);
        if let Some(air) = &mut self.air {
            air.call_in();
        }
        work
    }

    /// Takes the flows of which something has come down, with their tokens.
    pub fn take_woken(&mut self, into: &mut Vec<(FlowId, u32)>) {
        if let Some(air) = &mut self.air {
            into.append(&mut air.woken);
        }
    }

    /// When [`StreamStage::step`] wants to be called although nothing happens.
    #[must_use]
    pub fn next_due(&self, now: Instant) -> Option<Instant> {
        let offloads = self.air.as_ref()?.rules.iter().flatten();
        offloads.filter_map(|offload| offload.next_due(now)).min()
    }

    fn on(&mut self, now: Instant, event: Event) {
        let (Event::Result(ticket, _) | Event::Failed(ticket) | Event::Late(ticket)) = event else {
            return self.discard(event);
        };
        let whose = (ticket.flow, ticket.side, ticket.serial);
        let is_known = self.go_on(whose, Phase::Flying, |trip, flow, mut flight| match event {
            Event::Result(_, result) => trip.result(now, flow, flight, &result),
            Event::Late(_) => {
                flight.buffer = None;
                Some(trip.fail(flow, flight))
            }
            _ => Some(trip.fail(flow, flight)),
        });
        if !is_known {
            self.discard(event);
        }
    }

    fn discard(&mut self, event: Event) {
        if let Some(air) = &mut self.air {
            air.discard(event);
        }
    }

    /// Offers chunks between two kernels to the next one again.
    fn move_on(&mut self, now: Instant) {
        let stalled = self.air.as_ref().map_or(0, |air| air.stalled.len());
        for _ in 0..stalled {
            let next = self.air.as_mut().and_then(|air| air.stalled.pop_front());
            let Some(whose) = next else { return };
            self.go_on(whose, Phase::Stalled, |trip, flow, mut flight| {
                flight.phase = Phase::Flying;
                trip.go_on(now, flow, flight)
            });
        }
    }

    /// Lets a flight (flow, side, serial) that is in `phase` go on; false: there is none. What comes down wakes its flow.
    fn go_on(
        &mut self,
        (id, side, serial): (FlowId, usize, u64),
        phase: Phase,
        act: impl FnOnce(&mut Trip<'_>, &mut Flow, Flight) -> Option<Flight>,
    ) -> bool {
        let Self {
            rules,
            flows,
            counters,
            air: Some(air),
        } = self
        else {
            return false;
        };
        let Some(flow) = flows.get_mut(&id) else {
            return false;
        };
        let place = flow.flights.get_mut(side);
        let flight = place.and_then(|place| {
            place.take_if(|flight| flight.serial == serial && flight.phase == phase)
        });
        let Some(flight) = flight else {
            return false;
        };
        let mut trip = Trip {
            id,
            side,
            ends: flow.ends,
            rules,
            counters,
            air,
        };
        let token = (id, flight.token);
        if let Some(down) = act(&mut trip, flow, flight) {
            trip.air.woken.push(token);
            if let Some(place) = flow.flights.get_mut(side) {
                *place = Some(down);
            }
        }
        true
    }
}

impl Flow {
    /// Whether a rule for bytes of this direction can only be run by the GPU, and is.
    fn needs_gpu(&self, rules: &[Rule], air: &Air, way: Direction) -> bool {
        let mut rules = (0..).zip(rules);
        rules.any(|(at, rule)| {
            rule.needs_gpu() && is_for(self.rules, at, rule, way) && air.well(at).is_some()
        })
    }

    /// The first rule for bytes of this direction that a GPU runs.
    fn first_aloft(&self, rules: &[Rule], air: &Air, way: Direction) -> Option<usize> {
        if self.rules == 0 {
            return None;
        }
        let flies = |at: usize| matches!(air.rules.get(at), Some(Some(_)));
        let mut rules = (0..).zip(rules);
        rules
            .find(|(at, rule)| is_for(self.rules, *at, rule, way) && flies(*at))
            .map(|(at, _)| at)
    }
}

#[cfg(test)]
mod tests;
