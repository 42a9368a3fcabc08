//! The rules that look at segments on the wire.

mod flight;
mod hold;

pub use self::flight::{HeldFrames, Meeting, Segment};

use self::hold::Hold;
use super::{Verdict, run};
use crate::gpu::chunk::{Chunk, Direction, Ends};
use crate::gpu::counters::StageCounters;
use crate::gpu::kernel::KernelState;
use crate::gpu::pipeline::Rule;

/// The rules that look at the segments of one direction.
#[derive(Debug)]
pub struct PacketStage {
    direction: Direction,
    rules: Vec<Rule>,
    /// Segments dropped in a row, of the flows that lost one; a place is given to the next flow that needs it.
    drops: Box<[Option<(Ends, u32)>; DROP_PLACES]>,
    counters: StageCounters,
    /// Ends of flows that a verdict has ended.
    resets: Vec<Ends>,
    /// What a GPU judges, when there is one.
    hold: Option<Box<Hold>>,
}

impl PacketStage {
    /// A stage over loaded rules, for segments that go this way.
    #[must_use]
    pub fn new(rules: Vec<Rule>, direction: Direction) -> Self {
        Self {
            direction,
            rules,
            drops: Box::new([None; DROP_PLACES]),
            counters: StageCounters::new(),
            resets: Vec::new(),
            hold: None,
        }
    }

    /// Judges the payload of a segment; one that is sent again is judged again.
    pub fn judge(&mut self, chunk: &mut Chunk<'_>) -> Verdict {
        let mut seen = false;
        let mut verdict = Verdict::Pass;
        for rule in &mut self.rules {
            if !rule.sees(chunk.ends, chunk.bytes.len()) {
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
            verdict = self.dropped(chunk.ends, chunk.bytes.len(), verdict);
        }
        verdict
    }

    /// As `StreamStage::report`.
    pub fn report(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        self.counters.for_each(&mut *visit);
        if let Some(hold) = &self.hold {
            hold.report(visit);
        }
        for rule in &self.rules {
            rule.kernel.report(visit);
        }
    }

    /// Counts segments dropped in a row: what is always sent again and always dropped comes to nothing. A byte alone
    /// forgives nothing: it asks what has arrived, or whether somebody is there.
    fn dropped(&mut self, ends: Ends, bytes: usize, verdict: Verdict) -> Verdict {
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
            _ if count > 0 && bytes > 1 => *place = None,
            _ => {}
        }
        verdict
    }
}

/// Segments in a row that a verdict may drop before the flow is reset.
pub(super) const DROPS_MAX: u32 = 8;
const DROP_PLACES: usize = 256;
