//! The rules that look at segments on the wire.

use super::{Verdict, run};
use crate::gpu::chunk::{Chunk, Ends};
use crate::gpu::counters::StageCounters;
use crate::gpu::kernel::KernelState;
use crate::gpu::pipeline::Rule;

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

    /// As `StreamStage::report`.
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
pub(super) const DROPS_MAX: u32 = 8;
const DROP_PLACES: usize = 256;
