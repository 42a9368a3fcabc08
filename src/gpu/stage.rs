//! Which kernels a flow meets, in order, and the verdict that results.

mod aloft;
mod packet;

pub use self::aloft::{Aloft, Departure};
pub use self::packet::{HeldFrames, Meeting, PacketStage, Segment};

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use super::air::{Air, Flight};
use super::chunk::{Chunk, Direction, Ends};
use super::counters::StageCounters;
use super::kernel::{Asked, Finding, KernelState};
use super::pipeline::{Action, Rule};
use crate::config::payload::Attach;
use crate::id::{FlowId, Spread};

/// What is to be done with a chunk and its flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// It goes on, perhaps changed in place.
    Pass,
    /// The segment is not to go on; TCP sends it again.
    Drop,
    /// The flow is to be reset at both ends; nothing more of it goes on.
    Reset,
}

/// The rules that look at streams, and what they keep of each flow.
#[derive(Debug)]
pub struct StreamStage {
    rules: Vec<Rule>,
    flows: HashMap<FlowId, Flow, BuildHasherDefault<Spread>>,
    counters: StageCounters,
    /// The GPU, when there is one.
    air: Option<Air>,
}

/// What is kept of a flow.
#[derive(Debug)]
struct Flow {
    ends: Ends,
    /// One bit for each rule that covers it.
    rules: u32,
    /// For each rule, received and sent; empty when no rule covers it.
    states: Box<[[KernelState; 2]]>,
    /// It was judged already.
    reset: bool,
    /// The number of the last rule that marked it; 0: none did.
    mark: u32,
    /// Received and sent bytes that are with the GPU.
    flights: [Option<Flight>; 2],
}

impl StreamStage {
    /// A stage over loaded rules.
    #[must_use]
    pub fn new(rules: Vec<Rule>) -> Self {
        Self {
            rules,
            flows: HashMap::default(),
            counters: StageCounters::new(),
            air: None,
        }
    }

    /// Whether the CPU alone judges: nothing is ever on its way.
    #[must_use]
    pub const fn is_grounded(&self) -> bool {
        self.air.is_none()
    }

    /// Its rules.
    pub(in crate::gpu) fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// Judges bytes of a stream, each exactly once and in order. Never [`Verdict::Drop`]: a stream cannot lose bytes.
    pub fn judge(&mut self, id: FlowId, chunk: &mut Chunk<'_>) -> Verdict {
        let Self {
            rules,
            flows,
            counters,
            ..
        } = self;
        let flow = flows
            .entry(id)
            .or_insert_with(|| Flow::new(rules, chunk.ends));
        if flow.reset {
            return Verdict::Reset;
        }
        if flow.rules == 0 || chunk.bytes.is_empty() {
            return Verdict::Pass;
        }
        let side = usize::from(chunk.direction == Direction::Tx);
        let mut seen = false;
        for (at, (rule, states)) in rules.iter_mut().zip(&mut flow.states).enumerate() {
            let is_for = is_for(flow.rules, at, rule, chunk.direction);
            let (true, Some(state)) = (is_for, states.get_mut(side)) else {
                continue;
            };
            seen = true;
            let marks = rule.marks;
            let verdict = run(rule, counters, chunk, state);
            flow.mark = rule.mark_since(marks).unwrap_or(flow.mark);
            if verdict == Verdict::Reset {
                flow.reset = true;
                return Verdict::Reset;
            }
        }
        if seen {
            counters.payload_chunks.raise();
        }
        Verdict::Pass
    }

    /// Bytes of a flow could not be looked at: it is to be reset, and that is counted.
    pub fn refuse(&self) -> Verdict {
        self.counters.payload_failed.raise();
        self.counters.payload_flows_reset.raise();
        Verdict::Reset
    }

    /// The mark that a flow has got last; 0: none.
    #[must_use]
    pub fn mark(&self, flow: FlowId) -> u32 {
        self.flows.get(&flow).map_or(0, |flow| flow.mark)
    }

    /// A flow is over.
    pub fn forget(&mut self, flow: FlowId) {
        let known = self.flows.remove(&flow);
        if let (Some(flow), Some(air)) = (known, &mut self.air) {
            for flight in flow.flights.into_iter().flatten() {
                air.put_down(flight);
            }
        }
    }

    /// Calls `visit` with every counter of the stage and of its kernels. A kernel that is in several rules comes as often.
    pub fn report(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        self.counters.for_each(&mut *visit);
        visit("payload_flows", self.flows.len() as u64);
        if let Some(air) = &self.air {
            air.report(visit);
        }
        for rule in &self.rules {
            rule.kernel.report(visit);
        }
    }
}

impl Flow {
    fn new(rules: &[Rule], ends: Ends) -> Self {
        let mut mask = 0;
        for (at, rule) in rules.iter().enumerate() {
            mask |= u32::from(rule.covers(ends)) << at;
        }
        let kept = if mask == 0 { 0 } else { rules.len() };
        Self {
            ends,
            rules: mask,
            states: vec![[KernelState::default(); 2]; kept].into_boxed_slice(),
            reset: false,
            mark: 0,
            flights: [None, None],
        }
    }
}

/// Marks logged one by one; from then on one for each power of two.
const MARKS_LOGGED: u64 = 100;

/// Whether the rule at `at` is for a flow that these rules cover, and for bytes that go this way.
const fn is_for(rules: u32, at: usize, rule: &Rule, direction: Direction) -> bool {
    rules >> at & 1 == 1 && rule.takes(direction)
}

/// Runs the kernel of `rule`, and does what the rule says to a match.
fn run(
    rule: &mut Rule,
    counters: &StageCounters,
    chunk: &mut Chunk<'_>,
    state: &mut KernelState,
) -> Verdict {
    let finding = rule.kernel.run(chunk, state);
    conclude(rule, counters, chunk, finding)
}

/// Does what `rule` says to what its kernel found.
fn conclude(
    rule: &mut Rule,
    counters: &StageCounters,
    chunk: &Chunk<'_>,
    finding: Finding,
) -> Verdict {
    counters.payload_bytes.add(chunk.bytes.len() as u64);
    let verdict = if finding.failed {
        counters.payload_failed.raise();
        Verdict::Reset
    } else if let Some(found) = finding.matched {
        counters.payload_matched.raise();
        match rule.action {
            Action::Pass => Verdict::Pass,
            Action::Drop => Verdict::Drop,
            Action::Reset => Verdict::Reset,
            Action::Mark(number) => mark(rule, counters, chunk, number, found),
            Action::Mirror => copy(rule, counters, chunk),
        }
    } else {
        match finding.asked {
            Asked::Nothing => Verdict::Pass,
            // A stream cannot lose bytes.
            Asked::Drop if rule.attach == Attach::Stream => Verdict::Reset,
            Asked::Drop => Verdict::Drop,
            Asked::Reset => Verdict::Reset,
            Asked::Mark(number) => mark(rule, counters, chunk, number, number),
            Asked::Mirror => copy(rule, counters, chunk),
        }
    };
    if verdict == Verdict::Reset {
        counters.payload_flows_reset.raise();
    }
    verdict
}

/// Marks the flow of a chunk.
fn mark(
    rule: &mut Rule,
    counters: &StageCounters,
    chunk: &Chunk<'_>,
    number: u32,
    found: u32,
) -> Verdict {
    counters.payload_chunks_marked.raise();
    rule.marks += 1;
    rule.mark = number;
    if rule.marks <= MARKS_LOGGED || rule.marks.is_power_of_two() {
        crate::warn!(
            "payload event=marked mark={number} kernel={} pattern={found} direction={:?} local={} remote={} offset={} count={}",
            rule.kernel.name(),
            chunk.direction,
            chunk.ends.local,
            chunk.ends.remote,
            chunk.offset,
            rule.marks
        );
    }
    Verdict::Pass
}

/// Copies a chunk to the rule's mirror.
fn copy(rule: &Rule, counters: &StageCounters, chunk: &Chunk<'_>) -> Verdict {
    let copied = rule.mirror.as_ref().is_some_and(|to| to.copy(chunk));
    if copied {
        counters.payload_chunks_mirrored.raise();
    } else {
        counters.payload_mirror_dropped.raise();
    }
    Verdict::Pass
}

/// Sender's and receiver's address and both ports, in the order of their bytes on the wire.
fn ends_on_the_wire(direction: Direction, ends: Ends) -> [u32; 3] {
    let (from, to) = match direction {
        Direction::Rx => (ends.remote, ends.local),
        Direction::Tx => (ends.local, ends.remote),
    };
    let [a, b] = from.port().to_be_bytes();
    let [c, d] = to.port().to_be_bytes();
    [
        u32::from_ne_bytes(from.ip().octets()),
        u32::from_ne_bytes(to.ip().octets()),
        u32::from_ne_bytes([a, b, c, d]),
    ]
}

#[cfg(test)]
pub(super) mod tests;
