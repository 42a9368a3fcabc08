//! Streams whose bytes a GPU judges: offered to it piece by piece, acted upon when they have come down.

use super::{Received, ends};
use crate::channel::byte_ring::{Range, Span};
use crate::gpu::{Aloft, Chunk, Departure, Direction, StreamStage, Verdict};
use crate::id::FlowId;
use crate::lcore::family::Work;
use crate::lcore::pull::Cursor;

/// What became of bytes that the program sends.
pub(in crate::lcore) struct Sent {
    /// So many went to the stack.
    pub(in crate::lcore) taken: usize,
    /// The worst verdict.
    pub(in crate::lcore) verdict: Verdict,
}

impl Work<'_> {
    /// Judges received bytes as far as it goes now.
    pub(super) fn fly_received(&mut self, received: &mut Received, at_once: bool) -> Verdict {
        let flow = received.flow;
        if self.is_grounded() {
            return self.judge_now(received, u64::MAX);
        }
        while let Some(stage) = self.shared.stage.as_deref_mut() {
            let aloft = stage.aloft(flow, Direction::Rx);
            let verdict = match aloft {
                Aloft::Flying if at_once => {
                    stage.put_down(flow, Direction::Rx);
                    continue;
                }
                Aloft::Flying => return Verdict::Pass,
                Aloft::Landed {
                    bytes,
                    verdict: Verdict::Pass,
                    wrote,
                } => {
                    let written = !wrote || self.write_back(received, bytes);
                    self.put_down(flow, Direction::Rx);
                    received.offset += bytes as u64;
                    if !written {
                        return Verdict::Reset;
                    }
                    continue;
                }
                Aloft::Landed { verdict, .. } => {
                    stage.put_down(flow, Direction::Rx);
                    verdict
                }
                Aloft::Failed { bytes } => {
                    stage.put_down(flow, Direction::Rx);
                    self.judge_now(received, bytes as u64)
                }
                Aloft::Bypassed { bytes } => {
                    stage.put_down(flow, Direction::Rx);
                    received.offset += bytes as u64;
                    continue;
                }
                Aloft::Nothing => {
                    let flies = !at_once && stage.flies(flow, Direction::Rx, received.ends);
                    if received.offset >= received.end {
                        return Verdict::Pass;
                    }
                    if !flies {
                        return self.judge_now(received, u64::MAX);
                    }
                    match self.take_off(received) {
                        Departure::Judged(verdict) => verdict,
                        Departure::Flying | Departure::Waiting => return Verdict::Pass,
                    }
                }
            };
            if verdict == Verdict::Reset {
                return verdict;
            }
        }
        received.offset = received.end;
        Verdict::Pass
    }

    /// Whether the CPU alone judges.
    pub(in crate::lcore) fn is_grounded(&self) -> bool {
        self.shared
            .stage
            .as_deref()
            .is_none_or(StreamStage::is_grounded)
    }

    fn put_down(&mut self, flow: FlowId, way: Direction) {
        if let Some(stage) = self.shared.stage.as_deref_mut() {
            stage.put_down(flow, way);
        }
    }

    /// Offers the next piece of received bytes.
    fn take_off(&mut self, received: &mut Received) -> Departure {
        let token = self.token(received.object);
        let Some(stage) = self.shared.stage.as_deref_mut() else {
            return Departure::Judged(Verdict::Pass);
        };
        let capacity = self.segments.layout().rx_bytes(received.object);
        let Some(span) = received
            .spans(capacity, StreamStage::CHUNK_MAX as u64)
            .next()
        else {
            return Departure::Judged(Verdict::Pass);
        };
        let memory = &mut *self.shared.memory;
        let Some(bytes) = memory.received(self.owner, received.object, span) else {
            // What cannot be looked at must not pass.
            return Departure::Judged(stage.refuse());
        };
        let mut chunk = received.chunk(bytes);
        let departure = stage.take_off(self.now, received.flow, &mut chunk, token);
        if departure == Departure::Judged(Verdict::Pass) {
            received.offset += u64::from(span.len);
        }
        departure
    }

    /// Puts bytes that a kernel has changed into the receive ring; false: they cannot be, and must not pass.
    fn write_back(&mut self, received: &Received, bytes: usize) -> bool {
        let Some(stage) = self.shared.stage.as_deref_mut() else {
            return false;
        };
        let capacity = self.segments.layout().rx_bytes(received.object);
        let mut skip = 0;
        for span in received.spans(capacity, bytes as u64) {
            let memory = &mut *self.shared.memory;
            let place = memory.received(self.owner, received.object, span);
            let written =
                place.is_some_and(|place| stage.fetch(received.flow, Direction::Rx, skip, place));
            if !written {
                stage.refuse();
                return false;
            }
            skip += span.len as usize;
        }
        true
    }

    /// Hands bytes that the program sends on to the stack as far as they have been judged, and offers the next ones to the GPU. None:
    /// no GPU judges this flow, and nothing of it is on its way.
    pub(in crate::lcore) fn fly_sent(
        &mut self,
        object: u32,
        flow: FlowId,
        head: u64,
        range: Range,
    ) -> Option<Sent> {
        if self.is_grounded() {
            return None;
        }
        let facts = self.shared.stack.facts(flow)?;
        let (ends, mut room) = (ends(&facts), facts.tx_room);
        let way = Direction::Tx;
        let mut sent = Sent {
            taken: 0,
            verdict: Verdict::Pass,
        };
        let total = range.len() as usize;
        while sent.taken < total {
            let stage = self.shared.stage.as_deref_mut()?;
            match stage.aloft(flow, way) {
                Aloft::Flying => break,
                Aloft::Landed {
                    bytes,
                    verdict: Verdict::Pass,
                    ..
                } => {
                    // There was room for them when they took off, and nobody else sends.
                    let done = self.hand_on(flow, bytes);
                    self.put_down(flow, way);
                    sent.taken += done;
                    if done < bytes {
                        sent.verdict = Verdict::Reset;
                        break;
                    }
                    room = room.saturating_sub(done);
                }
                Aloft::Landed { verdict, .. } => {
                    stage.put_down(flow, way);
                    sent.verdict = verdict;
                    break;
                }
                Aloft::Failed { bytes } => {
                    stage.put_down(flow, way);
                    let rest = piece(range, sent.taken, bytes);
                    let (done, verdict) = self.send(
                        object,
                        flow,
                        head + sent.taken as u64,
                        rest,
                        rest.len(),
                        true,
                    );
                    sent.taken += done;
                    sent.verdict = verdict;
                    if verdict == Verdict::Reset || done < rest.len() as usize {
                        break;
                    }
                    room = room.saturating_sub(done);
                }
                Aloft::Bypassed { bytes } => {
                    stage.put_down(flow, way);
                    let rest = piece(range, sent.taken, bytes);
                    let (done, _) = self.send(
                        object,
                        flow,
                        head + sent.taken as u64,
                        rest,
                        rest.len(),
                        false,
                    );
                    sent.taken += done;
                    if done < rest.len() as usize {
                        break;
                    }
                    room = room.saturating_sub(done);
                }
                Aloft::Nothing => {
                    if !stage.flies(flow, way, ends) {
                        if sent.taken == 0 {
                            return None;
                        }
                        break;
                    }
                    let bytes = (total - sent.taken).min(room).min(StreamStage::CHUNK_MAX);
                    if bytes == 0 {
                        break;
                    }
                    let rest = piece(range, sent.taken, bytes);
                    let mut copy = vec![0; bytes];
                    // A copy: the program may change its ring behind our back.
                    Cursor::new(rest).fill(&self.segments.control, object, &mut copy);
                    let mut chunk = Chunk {
                        direction: way,
                        ends,
                        offset: head + sent.taken as u64,
                        bytes: &mut copy,
                    };
                    let token = self.token(object);
                    let stage = self.shared.stage.as_deref_mut()?;
                    match stage.take_off(self.now, flow, &mut chunk, token) {
                        Departure::Flying | Departure::Waiting => break,
                        Departure::Judged(Verdict::Pass) => {
                            let done = self.shared.stack.send(self.now, flow, &copy);
                            sent.taken += done;
                            if done < bytes {
                                sent.verdict = Verdict::Reset;
                                break;
                            }
                            room = room.saturating_sub(done);
                        }
                        Departure::Judged(verdict) => {
                            sent.verdict = verdict;
                            break;
                        }
                    }
                }
            }
        }
        Some(sent)
    }

    /// Hands bytes that have come down to the stack; returns how many it took.
    fn hand_on(&mut self, flow: FlowId, bytes: usize) -> usize {
        let Some(stage) = self.shared.stage.as_deref() else {
            return 0;
        };
        let mut skip = 0;
        let stack = &mut *self.shared.stack;
        stack.send_with(self.now, flow, bytes, &mut |to| {
            if !stage.fetch(flow, Direction::Tx, skip, to) {
                // They lie in a buffer of ours: never.
                to.fill(0);
            }
            skip += to.len();
        })
    }
}

/// As [`tail`].
fn piece(range: Range, skip: usize, bytes: usize) -> Range {
    let number = |bytes| u32::try_from(bytes).unwrap_or(u32::MAX);
    tail(range, number(skip), number(bytes))
}

/// At most `bytes` of `range` behind its first `skip` ones.
pub(in crate::lcore) fn tail(range: Range, mut skip: u32, bytes: u32) -> Range {
    let mut left = bytes;
    let mut part = |span: Span| {
        let passed = skip.min(span.len);
        let len = (span.len - passed).min(left);
        skip -= passed;
        left -= len;
        Span {
            offset: span.offset + passed,
            len,
        }
    };
    Range {
        first: part(range.first),
        second: part(range.second),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_a_range_may_lie_behind_the_ring_s_end() {
        let range = Range::new(90, 30, 100);
        let spans = |skip, bytes| {
            let Range { first, second } = tail(range, skip, bytes);
            [(first.offset, first.len), (second.offset, second.len)]
        };
        assert_eq!(spans(0, 30), [(90, 10), (0, 20)]);
        assert_eq!(spans(5, 10), [(95, 5), (0, 5)]);
        assert_eq!(spans(12, 99), [(100, 0), (2, 18)]);
        assert_eq!(spans(0, 4), [(90, 4), (0, 0)]);
    }
}
