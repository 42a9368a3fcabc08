//! A chunk's way from one rule of its flow to the next, on the GPU or on the CPU.

use super::super::{Flow, Verdict, conclude, is_for, run};
use super::direction;
use crate::config::payload::Instead;
use crate::gpu::air::{Air, Flight, Phase};
use crate::gpu::chunk::{Chunk, Ends};
use crate::gpu::counters::StageCounters;
use crate::gpu::kernel::{Finding, KernelState};
use crate::gpu::offload::{Offload, Ticket};
use crate::gpu::pipeline::Rule;
use crate::gpu::ring::{self, PacketRecord, PacketResult};
use crate::gpu::stage::ends_on_the_wire;
use crate::id::FlowId;
use crate::time::Instant;

/// A chunk's way past the rules of its flow.
pub(super) struct Trip<'a> {
    pub(super) id: FlowId,
    pub(super) side: usize,
    pub(super) ends: Ends,
    pub(super) rules: &'a mut [Rule],
    pub(super) counters: &'a StageCounters,
    pub(super) air: &'a mut Air,
}

impl Trip<'_> {
    /// Goes to the next rule: to the GPU (None: it is with the flow, on its way), or past the CPU's until it has come down.
    pub(super) fn go_on(
        &mut self,
        now: Instant,
        flow: &mut Flow,
        mut flight: Flight,
    ) -> Option<Flight> {
        let way = direction(self.side);
        while let Some(rule) = self.rules.get(flight.at) {
            if is_for(flow.rules, flight.at, rule, way) {
                let room = self.air.well(flight.at).map(Offload::has_room);
                let stalls = room == Some(false) && rule.needs_gpu();
                if room == Some(true) {
                    self.hand_over(now, &flight);
                } else if stalls {
                    flight.phase = Phase::Stalled;
                    let stalled = (self.id, self.side, flight.serial);
                    self.air.stalled.push_back(stalled);
                }
                if room == Some(true) || stalls {
                    if let Some(place) = flow.flights.get_mut(self.side) {
                        *place = Some(flight);
                    }
                    return None;
                }
                if self.on_cpu(flow, &mut flight) == Verdict::Reset {
                    return Some(Self::end(flow, flight));
                }
            }
            flight.at += 1;
        }
        // What the rules keep changes now, and not before.
        for (kept, behind) in flow.states.iter_mut().zip(&flight.states) {
            if let Some(kept) = kept.get_mut(self.side) {
                *kept = *behind;
            }
        }
        flight.phase = Phase::Landed(Verdict::Pass);
        Some(flight)
    }

    fn end(flow: &mut Flow, mut flight: Flight) -> Flight {
        flow.reset = true;
        flight.phase = Phase::Landed(Verdict::Reset);
        flight
    }

    fn hand_over(&mut self, now: Instant, flight: &Flight) {
        let Some(buffer) = flight.buffer else { return };
        let record = PacketRecord {
            addr: self.air.pool.device(buffer).0,
            len: u32::try_from(flight.bytes).unwrap_or(0),
            flags: if self.side == 1 { ring::SENT } else { 0 },
            offset: flight.offset,
            flow: self.id.index,
            ends: ends_on_the_wire(direction(self.side), self.ends),
            state: flight.states.get(flight.at).copied().unwrap_or_default().0,
            reserved: 0,
        };
        let ticket = Ticket {
            flow: self.id,
            side: self.side,
            serial: flight.serial,
            buffer,
        };
        if let Some(Some(offload)) = self.air.rules.get_mut(flight.at) {
            offload.add(now, ticket, &record);
        }
    }

    /// Runs the rule that the flight is at on the CPU.
    fn on_cpu(&mut self, flow: &mut Flow, flight: &mut Flight) -> Verdict {
        self.with_bytes(flow, flight, |rule, counters, chunk, state| {
            run(rule, counters, chunk, state)
        })
    }

    /// Lends the bytes of a flight, which nobody else has, to `act`, and puts them back where the kernel writes.
    fn with_bytes(
        &mut self,
        flow: &mut Flow,
        flight: &mut Flight,
        act: impl FnOnce(&mut Rule, &StageCounters, &mut Chunk<'_>, &mut KernelState) -> Verdict,
    ) -> Verdict {
        let mut bytes = core::mem::take(&mut self.air.scratch);
        bytes.resize(flight.bytes, 0);
        let mut verdict = Verdict::Reset;
        if let (Some(buffer), Some(rule), Some(state)) = (
            flight.buffer,
            self.rules.get_mut(flight.at),
            flight.states.get_mut(flight.at),
        ) && self.air.pool.load(buffer, 0, &mut bytes)
        {
            let mut chunk = Chunk {
                direction: direction(self.side),
                ends: self.ends,
                offset: flight.offset,
                bytes: &mut bytes,
            };
            let marks = rule.marks;
            verdict = act(rule, self.counters, &mut chunk, state);
            flow.mark = rule.mark_since(marks).unwrap_or(flow.mark);
            if rule.writes && !self.air.pool.update(buffer, &bytes) {
                verdict = Verdict::Reset;
            }
        }
        self.air.scratch = bytes;
        verdict
    }

    /// The kernel's result for the rule that the flight is at.
    pub(super) fn result(
        &mut self,
        now: Instant,
        flow: &mut Flow,
        mut flight: Flight,
        result: &PacketResult,
    ) -> Option<Flight> {
        let finding = Finding::of_result(result, self.may_ask(flight.at));
        self.counters.payload_chunks_offloaded.raise();
        let (bytes, at) = (flight.bytes, flight.at);
        if let (Some(rule), Some(state)) = (self.rules.get_mut(at), flight.states.get_mut(at)) {
            *state = KernelState(result.state);
            rule.kernel.settle(bytes, &finding);
        }
        let verdict = if finding.is_news() {
            self.with_bytes(flow, &mut flight, |rule, counters, chunk, _| {
                conclude(rule, counters, chunk, finding)
            })
        } else {
            self.counters.payload_bytes.add(bytes as u64);
            Verdict::Pass
        };
        if verdict == Verdict::Reset {
            return Some(Self::end(flow, flight));
        }
        flight.at += 1;
        self.go_on(now, flow, flight)
    }

    /// Whether the rule at `at` calls a user's function.
    fn may_ask(&self, at: usize) -> bool {
        self.rules.get(at).is_some_and(Rule::needs_gpu)
    }

    /// The GPU did not do it.
    pub(super) fn fail(&self, flow: &mut Flow, mut flight: Flight) -> Flight {
        match self.air.on_timeout {
            Instead::Cpu | Instead::Wait => {
                self.counters.payload_chunks_redone.raise();
                flight.phase = Phase::Failed;
            }
            Instead::Bypass => {
                self.counters.payload_chunks_bypassed.raise();
                flight.phase = Phase::Bypassed;
            }
            Instead::Drop => {
                self.counters.payload_flows_reset_gpu.raise();
                self.counters.payload_flows_reset.raise();
                return Self::end(flow, flight);
            }
        }
        flight
    }
}
