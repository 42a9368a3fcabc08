//! Segments that a GPU judges, where they lie in the port's memory, and what becomes of them.
//!
//! A segment that meets a kernel of the GPU's is held, and so is everything of its flow that comes behind it; other flows pass.
//! They are released in the order in which they came, as soon as they are judged. The kernels only read, so that the CPU can judge
//! a segment at any time, also while a late kernel still looks at it; its buffer stays out until that one has ended.

use core::ops::Range;
use std::sync::Arc;

use super::hold::{Entry, Hold, Phase};
use super::{PacketStage, Verdict};
use crate::config::payload::Instead;
use crate::ffi::cuda::Lent;
use crate::gpu::air::Air;
use crate::gpu::chunk::{Chunk, Direction, Ends};
use crate::gpu::counters::StageCounters;
use crate::gpu::kernel::{Finding, KernelState};
use crate::gpu::offload::{Event, Offload, Ticket};
use crate::gpu::pipeline::Rule;
use crate::gpu::ring::{self, PACKET_BYTES_MAX, PacketRecord};
use crate::gpu::stage::{conclude, ends_on_the_wire, run};
use crate::id::FlowId;
use crate::time::Instant;

/// Whoever keeps held frames.
pub trait HeldFrames {
    /// The frame that is kept under `ticket`.
    fn frame(&mut self, ticket: u32) -> Option<&mut [u8]>;
}

/// A segment of a flow.
#[derive(Debug)]
pub struct Segment<'a> {
    /// Whose it is.
    pub ends: Ends,
    /// The frame that it is in.
    pub frame: &'a mut [u8],
    /// Its payload in the frame; may be empty.
    pub payload: Range<usize>,
    /// Whether the frame can be kept.
    pub can_be_kept: bool,
}

/// What is to be done with a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Meeting {
    /// It goes on.
    Pass,
    /// It does not go on.
    Stop,
    /// Its frame is to be kept under this ticket.
    Keep(u32),
}

/// What became of a segment that was offered to a ring.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Offered {
    Flying,
    /// There is no place.
    Full,
    /// The CPU has it.
    Grounded,
}

impl PacketStage {
    /// Its rules.
    pub(in crate::gpu) fn rules_mut(&mut self) -> &mut [Rule] {
        &mut self.rules
    }

    /// Lets the GPU run the kernels from now on, on `lent` memory where the frames lie in it.
    pub(in crate::gpu) fn fly(&mut self, air: Air, lent: Option<Arc<Lent>>) {
        self.hold = Some(Box::new(Hold::new(air, lent)));
    }

    /// No more than `frames` are held at once.
    pub fn hold_at_most(&mut self, frames: usize) {
        if let Some(hold) = &mut self.hold {
            hold.bound(frames);
        }
    }

    /// Whether a GPU runs kernels of it: then segments are met, not judged.
    #[must_use]
    pub const fn flies(&self) -> bool {
        self.hold.is_some()
    }

    /// Whether anything is held that goes on yet.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.hold.as_ref().is_some_and(|hold| hold.is_busy())
    }

    /// Whether nothing is to be taken now, because `more` segments might find no place and none is to be lost.
    #[must_use]
    pub fn is_full(&self, more: usize) -> bool {
        self.places() < more
    }

    /// How many segments may come before nothing is to be taken.
    #[must_use]
    pub fn places(&self) -> usize {
        match &self.hold {
            Some(hold) if hold.air.on_full == Instead::Wait && hold.is_busy() => hold.places(),
            _ => usize::MAX,
        }
    }

    /// A segment of a flow has come, in the order of the wire.
    pub fn meet(&mut self, now: Instant, segment: Segment<'_>) -> Meeting {
        let Some(mut hold) = self.hold.take() else {
            return self.judge_now(segment);
        };
        let meeting = self.meet_with(&mut hold, now, segment);
        self.hold = Some(hold);
        meeting
    }

    fn meet_with(&mut self, hold: &mut Hold, now: Instant, segment: Segment<'_>) -> Meeting {
        let (ends, bytes) = (segment.ends, segment.payload.len());
        let is_behind = hold.is_held(ends);
        let is_for_us = self.rules.iter().any(|rule| rule.sees(ends, bytes));
        if !is_for_us && !is_behind {
            return Meeting::Pass;
        }
        if !segment.can_be_kept || !hold.has_place(1) {
            if is_behind {
                // It would overtake.
                self.counters.payload_segments_unheld.raise();
                return Meeting::Stop;
            }
            self.counters.payload_segments_grounded.raise();
            return self.judge_now(segment);
        }
        let ticket = hold.enter(Entry {
            ends,
            begin: segment.payload.start,
            bytes,
            at: 0,
            phase: if is_for_us {
                Phase::Nothing
            } else {
                Phase::Landed(Verdict::Pass)
            },
            buffer: None,
            is_judged: is_for_us,
            on_cpu: false,
            is_late: false,
        });
        if is_for_us {
            self.counters.payload_chunks.raise();
            self.go_on(hold, now, ticket, Some(segment.frame));
        }
        let entry = hold.entry(ticket).copied();
        if !is_behind
            && let Some(entry) = entry
            && let Phase::Landed(verdict) = entry.phase
        {
            hold.leave(ticket);
            let verdict = self.counted(&entry, verdict);
            return self.act(ends, verdict);
        }
        hold.line_up(ends, ticket);
        Meeting::Keep(ticket)
    }

    /// What a verdict means for a segment that nothing is ahead of.
    fn act(&mut self, ends: Ends, verdict: Verdict) -> Meeting {
        match verdict {
            Verdict::Pass => return Meeting::Pass,
            Verdict::Drop => {}
            Verdict::Reset => self.resets.push(ends),
        }
        Meeting::Stop
    }

    /// Lets the CPU judge a segment.
    fn judge_now(&mut self, segment: Segment<'_>) -> Meeting {
        let Some(bytes) = segment.frame.get_mut(segment.payload) else {
            return Meeting::Pass;
        };
        let verdict = self.judge(&mut Chunk {
            direction: self.direction,
            ends: segment.ends,
            offset: 0,
            bytes,
        });
        self.act(segment.ends, verdict)
    }

    /// Lets a segment go to the next rules: to the GPU, or past the CPU's. What cannot be looked at does not pass.
    fn go_on(&mut self, hold: &mut Hold, now: Instant, ticket: u32, frame: Option<&mut [u8]>) {
        let Some(mut entry) = hold.entry(ticket).copied() else {
            return;
        };
        let range = entry.begin..entry.begin + entry.bytes;
        entry.phase = match frame.and_then(|frame| frame.get_mut(range)) {
            Some(payload) => self.pass_rules(hold, now, ticket, &mut entry, payload),
            None => Phase::Landed(Verdict::Drop),
        };
        if let Some(place) = hold.entry(ticket) {
            *place = entry;
        }
        hold.give_copy_back(ticket);
    }

    fn pass_rules(
        &mut self,
        hold: &mut Hold,
        now: Instant,
        ticket: u32,
        entry: &mut Entry,
        payload: &mut [u8],
    ) -> Phase {
        let (direction, counters) = (self.direction, &self.counters);
        while let Some(rule) = self.rules.get_mut(entry.at) {
            if !rule.sees(entry.ends, entry.bytes) {
                entry.at += 1;
                continue;
            }
            let flies = !entry.on_cpu && !rule.writes && hold.air.well(entry.at).is_some();
            let offered = match flies {
                true if payload.len() <= PACKET_BYTES_MAX => {
                    offer(hold, (now, direction, counters), ticket, entry, payload)
                }
                true => {
                    counters.payload_segments_grounded.raise();
                    Offered::Grounded
                }
                false => Offered::Grounded,
            };
            match (offered, hold.air.on_full) {
                (Offered::Flying, _) => return Phase::Flying,
                (Offered::Full, instead) => {
                    if entry.phase != Phase::Stalled {
                        counters.payload_chunks_refused_full.raise();
                    }
                    match instead {
                        Instead::Cpu => {}
                        Instead::Bypass => {
                            counters.payload_chunks_bypassed.raise();
                            entry.at += 1;
                            continue;
                        }
                        Instead::Drop => {
                            counters.payload_segments_dropped_gpu.raise();
                            entry.is_judged = false;
                            return Phase::Landed(Verdict::Drop);
                        }
                        Instead::Wait => {
                            hold.stalled.push_back(ticket);
                            return Phase::Stalled;
                        }
                    }
                }
                (Offered::Grounded, _) => {}
            }
            let mut chunk = Chunk {
                direction,
                ends: entry.ends,
                offset: 0,
                bytes: payload,
            };
            let verdict = run(rule, counters, &mut chunk, &mut KernelState::default());
            if verdict != Verdict::Pass {
                return Phase::Landed(verdict);
            }
            entry.at += 1;
        }
        Phase::Landed(Verdict::Pass)
    }

    /// Moves what goes to the GPU and what comes from it; returns how much was done, and a little more than nothing as long as
    /// something is on its way. Never waits.
    pub fn step(&mut self, now: Instant, frames: &mut dyn HeldFrames) -> usize {
        let Some(mut hold) = self.hold.take() else {
            return 0;
        };
        let mut work = 0;
        let mut events = core::mem::take(&mut hold.air.events);
        for rule in 0..self.rules.len() {
            work += hold.step(rule, now, &mut events);
            for event in events.drain(..) {
                self.on(&mut hold, now, event, frames);
            }
        }
        hold.air.events = events;
        self.move_on(&mut hold, now, frames);
        self.hold = Some(hold);
        work
    }

    /// Offers segments that found no place again.
    fn move_on(&mut self, hold: &mut Hold, now: Instant, frames: &mut dyn HeldFrames) {
        for _ in 0..hold.stalled.len() {
            let Some(ticket) = hold.stalled.pop_front() else {
                return;
            };
            let Some(entry) = hold.entry(ticket).copied() else {
                continue;
            };
            if entry.phase != Phase::Stalled {
                continue;
            }
            self.go_on(hold, now, ticket, frames.frame(ticket));
            self.settle(hold, entry.ends);
        }
    }

    fn on(&mut self, hold: &mut Hold, now: Instant, event: Event, frames: &mut dyn HeldFrames) {
        let ticket = match event {
            Event::Result(ticket, _) | Event::Failed(ticket) | Event::Late(ticket) => ticket.buffer,
            Event::Released(ticket) => ticket,
        };
        let is_awaited = match event {
            Event::Late(_) => hold.is_late(ticket),
            _ => hold.is_back(ticket),
        };
        let Some(entry) = hold.entry(ticket).copied().filter(|_| is_awaited) else {
            return;
        };
        match event {
            Event::Result(_, result) => {
                let finding = Finding::of_result(&result, false);
                let verdict = self.found(&entry, &finding, frames.frame(ticket));
                if let Some(entry) = hold.entry(ticket) {
                    entry.at += 1;
                    entry.phase = Phase::Landed(verdict);
                }
                if verdict == Verdict::Pass {
                    self.go_on(hold, now, ticket, frames.frame(ticket));
                } else {
                    hold.give_copy_back(ticket);
                }
            }
            Event::Failed(_) | Event::Late(_) => {
                let phase = self.fail(hold.air.on_timeout);
                if let Some(entry) = hold.entry(ticket) {
                    entry.on_cpu = true;
                    entry.is_judged = phase.is_none();
                    entry.phase = phase.unwrap_or(entry.phase);
                }
                if phase.is_none() {
                    self.go_on(hold, now, ticket, frames.frame(ticket));
                }
            }
            Event::Released(_) => {}
        }
        self.settle(hold, entry.ends);
    }

    /// Does what the rule says to what a kernel found.
    fn found(&mut self, entry: &Entry, finding: &Finding, frame: Option<&mut [u8]>) -> Verdict {
        let counters = &self.counters;
        counters.payload_chunks_offloaded.raise();
        let Some(rule) = self.rules.get_mut(entry.at) else {
            return Verdict::Pass;
        };
        rule.kernel.settle(entry.bytes, finding);
        if !finding.is_news() {
            counters.payload_bytes.add(entry.bytes as u64);
            return Verdict::Pass;
        }
        let range = entry.begin..entry.begin + entry.bytes;
        let Some(bytes) = frame.and_then(|frame| frame.get_mut(range)) else {
            return Verdict::Drop;
        };
        let chunk = Chunk {
            direction: self.direction,
            ends: entry.ends,
            offset: 0,
            bytes,
        };
        conclude(rule, counters, &chunk, *finding)
    }

    /// The GPU did not judge a segment. None: the CPU does.
    fn fail(&self, instead: Instead) -> Option<Phase> {
        match instead {
            Instead::Cpu | Instead::Wait => {
                self.counters.payload_chunks_redone.raise();
                None
            }
            Instead::Bypass => {
                self.counters.payload_chunks_bypassed.raise();
                Some(Phase::Landed(Verdict::Pass))
            }
            Instead::Drop => {
                self.counters.payload_segments_dropped_gpu.raise();
                Some(Phase::Landed(Verdict::Drop))
            }
        }
    }

    /// The verdict, or a reset behind too many of its kind.
    fn counted(&mut self, entry: &Entry, verdict: Verdict) -> Verdict {
        if entry.is_judged {
            self.dropped(entry.ends, entry.bytes, verdict)
        } else {
            verdict
        }
    }

    /// Releases what can be released of a flow, in order.
    fn settle(&mut self, hold: &mut Hold, ends: Ends) {
        while let Some((entry, verdict)) = hold.next_of(ends) {
            match self.counted(&entry, verdict) {
                Verdict::Pass => hold.release(ends),
                Verdict::Drop => hold.drop_next(ends, 1),
                Verdict::Reset => {
                    self.resets.push(ends);
                    hold.drop_next(ends, usize::MAX);
                }
            }
        }
    }

    /// Adds at most `most` of the segments that go on now, in order, to `into`.
    pub fn released(&self, most: usize, into: &mut Vec<u32>) {
        if let Some(hold) = &self.hold {
            into.extend(hold.released().iter().take(most));
        }
    }

    /// The first `count` of them went on.
    pub fn taken(&mut self, count: usize) {
        if let Some(hold) = &mut self.hold {
            hold.taken(count);
        }
    }

    /// Whether a late kernel may still look at a segment: its buffer must stay as it is.
    pub fn is_late(&mut self, ticket: u32) -> bool {
        let entry = self.hold.as_mut().and_then(|hold| hold.entry(ticket));
        entry.is_some_and(|entry| entry.is_late)
    }

    /// Takes the tickets of frames that nobody needs any more; their buffers go back to the port at once.
    pub fn take_freed(&mut self, into: &mut Vec<u32>) {
        if let Some(hold) = &mut self.hold {
            hold.take_freed(into);
        }
    }

    /// Takes the ends of flows that are to be reset.
    pub fn take_resets(&mut self, into: &mut Vec<Ends>) {
        into.append(&mut self.resets);
    }

    /// As `StreamStage::next_due`.
    #[must_use]
    pub fn next_due(&self, now: Instant) -> Option<Instant> {
        let offloads = self.hold.as_ref()?.air.rules.iter().flatten();
        offloads.filter_map(|offload| offload.next_due(now)).min()
    }
}

/// Offers a segment to the ring of the rule that it is at.
fn offer(
    hold: &mut Hold,
    (now, direction, counters): (Instant, Direction, &StageCounters),
    ticket: u32,
    entry: &mut Entry,
    payload: &[u8],
) -> Offered {
    let has_room = hold.air.well(entry.at).is_some_and(Offload::has_room);
    // A new one does not take the place of one that waits for it.
    let is_new = entry.phase == Phase::Nothing;
    if !has_room || !hold.may_fly() || (is_new && !hold.stalled.is_empty()) {
        return Offered::Full;
    }
    let (device, sent) = (hold.device(payload), direction == Direction::Tx);
    let addr = match (device, entry.buffer) {
        (Some(device), _) => device,
        // A rule before this one has had it copied.
        (None, Some(buffer)) => hold.air.pool.device(buffer),
        (None, None) => {
            let Some(buffer) = hold.air.pool.store(payload) else {
                return Offered::Full;
            };
            counters
                .payload_segment_bytes_copied
                .add(payload.len() as u64);
            entry.buffer = Some(buffer);
            hold.air.pool.device(buffer)
        }
    };
    let record = PacketRecord {
        addr: addr.0,
        len: u32::try_from(payload.len()).unwrap_or(0),
        flags: ring::SEGMENT | if sent { ring::SENT } else { 0 },
        offset: 0,
        // Each on its own.
        flow: ticket,
        ends: ends_on_the_wire(direction, entry.ends),
        state: KernelState::default().0,
        reserved: 0,
    };
    let flight = Ticket {
        flow: FlowId {
            index: ticket,
            generation: 0,
        },
        side: usize::from(sent),
        serial: 0,
        buffer: ticket,
    };
    if let Some(Some(offload)) = hold.air.rules.get_mut(entry.at) {
        offload.add(now, flight, &record);
        hold.flying += 1;
    }
    Offered::Flying
}

#[cfg(test)]
mod tests;
