//! Which kernels a flow meets, in order, and the verdict that results.

use std::collections::HashMap;

use super::chunk::{Chunk, Direction, Ends};
use super::counters::StageCounters;
use super::kernel::KernelState;
use super::pipeline::{Action, Rule};
use crate::id::FlowId;

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
    flows: HashMap<FlowId, Flow>,
    counters: StageCounters,
}

/// What is kept of a flow.
#[derive(Debug)]
struct Flow {
    /// One bit for each rule that covers it.
    rules: u32,
    /// For each rule, received and sent; empty when no rule covers it.
    states: Box<[[KernelState; 2]]>,
    /// It was judged already.
    reset: bool,
}

impl StreamStage {
    /// A stage over loaded rules.
    #[must_use]
    pub fn new(rules: Vec<Rule>) -> Self {
        Self {
            rules,
            flows: HashMap::new(),
            counters: StageCounters::new(),
        }
    }

    /// Judges bytes of a stream, each exactly once and in order. Never [`Verdict::Drop`]: a stream cannot lose bytes.
    pub fn judge(&mut self, id: FlowId, chunk: &mut Chunk<'_>) -> Verdict {
        let Self {
            rules,
            flows,
            counters,
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
            let covered = flow.rules >> at & 1 == 1;
            let (true, Some(state)) =
                (covered && rule.takes(chunk.direction), states.get_mut(side))
            else {
                continue;
            };
            seen = true;
            if run(rule, counters, chunk, state) == Verdict::Reset {
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

    /// A flow is over.
    pub fn forget(&mut self, flow: FlowId) {
        self.flows.remove(&flow);
    }

    /// Calls `visit` with every counter of the stage and of its kernels. A kernel that is in several rules comes as often.
    pub fn report(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        self.counters.for_each(&mut *visit);
        visit("payload_flows", self.flows.len() as u64);
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
            rules: mask,
            states: vec![[KernelState::default(); 2]; kept].into_boxed_slice(),
            reset: false,
        }
    }
}

/// The rules that look at the segments of one direction.
#[derive(Debug)]
pub struct PacketStage {
    rules: Vec<Rule>,
    /// Segments dropped in a row, of the flows that lost one; a place is given to the next flow that needs it.
    drops: Box<[Option<(Ends, u32)>; DROP_PLACES]>,
    counters: StageCounters,
}

impl PacketStage {
    /// A stage over loaded rules.
    #[must_use]
    pub fn new(rules: Vec<Rule>) -> Self {
        Self {
            rules,
            drops: Box::new([None; DROP_PLACES]),
            counters: StageCounters::new(),
        }
    }

    /// Judges the payload of a segment; one that is sent again is judged again.
    pub fn judge(&mut self, chunk: &mut Chunk<'_>) -> Verdict {
        if chunk.bytes.is_empty() {
            return Verdict::Pass;
        }
        let mut seen = false;
        let mut verdict = Verdict::Pass;
        for rule in &mut self.rules {
            if chunk.bytes.len() < rule.min_payload || !rule.covers(chunk.ends) {
                continue;
            }
            seen = true;
            verdict = run(rule, &self.counters, chunk, &mut KernelState::default());
            if verdict != Verdict::Pass {
                break;
            }
        }
        if seen {
            self.counters.payload_chunks.raise();
            verdict = self.dropped(chunk.ends, verdict);
        }
        verdict
    }

    /// As [`StreamStage::report`].
    pub fn report(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        self.counters.for_each(&mut *visit);
        for rule in &self.rules {
            rule.kernel.report(visit);
        }
    }

    /// Counts segments dropped in a row: what is always sent again and always dropped comes to nothing.
    fn dropped(&mut self, ends: Ends, verdict: Verdict) -> Verdict {
        let place = usize::from(ends.local.port() ^ ends.remote.port()) % DROP_PLACES;
        let Some(place) = self.drops.get_mut(place) else {
            return verdict;
        };
        let count = place
            .filter(|(whose, _)| *whose == ends)
            .map_or(0, |(_, count)| count);
        match verdict {
            Verdict::Drop if count >= DROPS_MAX => {
                *place = None;
                self.counters.payload_flows_reset_drops.raise();
                self.counters.payload_flows_reset.raise();
                return Verdict::Reset;
            }
            Verdict::Drop => {
                *place = Some((ends, count + 1));
                self.counters.payload_segments_dropped.raise();
            }
            _ if count > 0 => *place = None,
            _ => {}
        }
        verdict
    }
}

/// Segments in a row that a verdict may drop before the flow is reset.
const DROPS_MAX: u32 = 8;
const DROP_PLACES: usize = 256;
/// Marks logged one by one; from then on one for each power of two.
const MARKS_LOGGED: u64 = 100;

/// Runs the kernel of `rule`, and does what the rule says to a match.
fn run(
    rule: &mut Rule,
    counters: &StageCounters,
    chunk: &mut Chunk<'_>,
    state: &mut KernelState,
) -> Verdict {
    counters.payload_bytes.add(chunk.bytes.len() as u64);
    let finding = rule.kernel.run(chunk, state);
    let verdict = if finding.failed {
        counters.payload_failed.raise();
        Verdict::Reset
    } else if let Some(found) = finding.matched {
        counters.payload_matched.raise();
        act(rule, counters, chunk, found)
    } else {
        Verdict::Pass
    };
    if verdict == Verdict::Reset {
        counters.payload_flows_reset.raise();
    }
    verdict
}

/// Does what a rule says to a match.
fn act(rule: &mut Rule, counters: &StageCounters, chunk: &Chunk<'_>, found: u32) -> Verdict {
    match &rule.action {
        Action::Pass => Verdict::Pass,
        Action::Drop => Verdict::Drop,
        Action::Reset => Verdict::Reset,
        Action::Mark(mark) => {
            counters.payload_chunks_marked.raise();
            rule.marks += 1;
            if rule.marks <= MARKS_LOGGED || rule.marks.is_power_of_two() {
                crate::warn!(
                    "payload event=marked mark={mark} kernel={} pattern={found} direction={:?} local={} remote={} offset={} count={}",
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
        Action::Mirror(mirror) => {
            if mirror.copy(chunk) {
                counters.payload_chunks_mirrored.raise();
            } else {
                counters.payload_mirror_dropped.raise();
            }
            Verdict::Pass
        }
    }
}

#[cfg(test)]
mod tests;
