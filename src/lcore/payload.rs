//! What the payload stage says of the bytes of streams, before anybody acts on them.

mod aloft;
pub(super) mod held;
pub(super) mod packet;

pub(super) use self::aloft::tail;

use super::bell::errno_number;
use super::family::Work;
use super::object::{Record, Role};
use crate::channel::byte_ring::{Range, Span};
use crate::channel::cell::{ObjectCell, flag, kind};
use crate::channel::sync::Ordering;
use crate::errno::Errno;
use crate::gpu::{Chunk, Direction, Ends, StreamStage, Verdict};
use crate::id::FlowId;
use crate::stack::{Close, Facts};

/// Judges the bytes that one call hands to the stack.
pub(super) struct Judge<'a> {
    stage: &'a mut StreamStage,
    flow: FlowId,
    ends: Ends,
    offset: u64,
    /// The worst verdict so far.
    pub(super) verdict: Verdict,
}

impl<'a> Judge<'a> {
    /// For bytes that the program sends from stream offset `offset` on.
    pub(super) fn new(
        stage: &'a mut StreamStage,
        flow: FlowId,
        facts: &Facts,
        offset: u64,
    ) -> Self {
        Self {
            stage,
            flow,
            ends: ends(facts),
            offset,
            verdict: Verdict::Pass,
        }
    }

    /// Judges the next bytes, which leave as they are afterwards.
    pub(super) fn sent(&mut self, bytes: &mut [u8]) {
        let length = bytes.len() as u64;
        let verdict = self.stage.judge(
            self.flow,
            &mut Chunk {
                direction: Direction::Tx,
                ends: self.ends,
                offset: self.offset,
                bytes,
            },
        );
        self.offset += length;
        if verdict == Verdict::Reset {
            self.verdict = verdict;
        }
    }
}

impl Work<'_> {
    /// Judges what the stack has received beyond what the program was told. With `at_once` nothing is left to the GPU.
    /// Returns the verdict and the stream offset up to which the program may be told.
    pub(super) fn judge_received(
        &mut self,
        object: u32,
        facts: &Facts,
        at_once: bool,
    ) -> (Verdict, u64) {
        let Some(record) = self.records.at(object).copied() else {
            return (Verdict::Pass, facts.rx_total);
        };
        let Role::Flow(flow) = record.role else {
            return (Verdict::Pass, facts.rx_total);
        };
        let mut received = Received {
            object,
            flow,
            ends: ends(facts),
            offset: record.rx_tail,
            end: facts.rx_total,
        };
        let verdict = self.fly_received(&mut received, at_once);
        (verdict, received.offset)
    }

    /// Whether what the flow of `object` receives can be judged by the GPU alone, and is.
    pub(super) fn needs_gpu(&mut self, object: u32, facts: &Facts) -> bool {
        let role = self.records.at(object).map(|record| record.role);
        match (role, self.shared.stage.as_deref_mut()) {
            (Some(Role::Flow(flow)), Some(stage)) => {
                stage.needs_gpu(flow, Direction::Rx, ends(facts))
            }
            _ => false,
        }
    }

    /// Judges what was received and not told of a flow that is gone; as [`Self::judge_received`].
    pub(super) fn judge_rest(
        &mut self,
        object: u32,
        flow: FlowId,
        record: &Record,
    ) -> (Verdict, u64) {
        let stage = self.shared.stage.as_deref();
        let Some(ends) = stage.and_then(|stage| stage.ends(flow)) else {
            return (Verdict::Pass, record.rx_seen);
        };
        let mut received = Received {
            object,
            flow,
            ends,
            offset: record.rx_tail,
            end: record.rx_seen,
        };
        let verdict = self.fly_received(&mut received, true);
        (verdict, received.offset)
    }

    /// Lets the CPU judge the next `bytes` received ones.
    fn judge_now(&mut self, received: &mut Received, bytes: u64) -> Verdict {
        let Some(stage) = self.shared.stage.as_deref_mut() else {
            return Verdict::Pass;
        };
        for span in received.spans(self.segments.layout().rx_bytes(received.object), bytes) {
            let memory = &mut *self.shared.memory;
            let Some(bytes) = memory.received(self.owner, received.object, span) else {
                // What cannot be looked at must not pass.
                return stage.refuse();
            };
            let verdict = stage.judge(received.flow, &mut received.chunk(bytes));
            if verdict == Verdict::Reset {
                return verdict;
            }
            received.offset += u64::from(span.len);
        }
        Verdict::Pass
    }

    /// Tells the program of a mark that its flow has got (SO_MARK).
    pub(super) fn tell_payload_mark(&self, object: u32, cell: &ObjectCell) {
        let role = self.records.at(object).map(|record| record.role);
        if let (Some(Role::Flow(flow)), Some(stage)) = (role, self.shared.stage.as_deref()) {
            cell.fact
                .payload_mark
                .store(stage.mark(flow), Ordering::Relaxed);
        }
    }

    /// A verdict has ended the flow of `object`; nothing is done when it has another one by now.
    pub(super) fn deny(&mut self, object: u32, flow: FlowId) {
        let current = self
            .records
            .at(object)
            .is_some_and(|record| record.role == Role::Flow(flow) && !record.closed);
        match self.cell(object) {
            Some(cell) if current => self.denied(object, cell, flow),
            // The program does not know it yet, or has left it.
            _ => self.shared.stack.close(self.now, flow, Close::Abort),
        }
    }

    /// A verdict has ended a flow: an RST for the peer, ECONNRESET for the program, and nothing more of it either way.
    pub(super) fn denied(&mut self, object: u32, cell: &ObjectCell, flow: FlowId) {
        if let Some(record) = self.records.at_mut(object) {
            record.closed = true;
            record.error_told = true;
            record.flags |= flag::OVER | flag::TX_BROKEN;
            cell.host
                .error
                .store(errno_number(Errno::CONNRESET), Ordering::Release);
            cell.host.flags.store(record.flags, Ordering::Release);
            if core::mem::take(&mut record.connecting) {
                cell.host.kind.store(kind::FAILED, Ordering::Release);
            }
        }
        self.shared.stack.close(self.now, flow, Close::Abort);
        self.alert(object);
    }
}

/// Received bytes that are to be judged.
struct Received {
    object: u32,
    flow: FlowId,
    ends: Ends,
    /// Stream offset of the first of them.
    offset: u64,
    /// Stream offset behind the last one.
    end: u64,
}

impl Received {
    /// Where the next `bytes` of them lie in a ring of `capacity`; empty ones are left out.
    fn spans(&self, capacity: u32, bytes: u64) -> impl Iterator<Item = Span> + use<> {
        // It fits: there is never more than a ring of it.
        let fresh = u32::try_from(bytes.min(self.end - self.offset)).unwrap_or(capacity);
        let range = Range::new(self.offset, fresh.min(capacity), capacity);
        let spans = [range.first, range.second];
        spans.into_iter().filter(|span| span.len > 0)
    }

    const fn chunk<'a>(&self, bytes: &'a mut [u8]) -> Chunk<'a> {
        Chunk {
            direction: Direction::Rx,
            ends: self.ends,
            offset: self.offset,
            bytes,
        }
    }
}

fn ends(facts: &Facts) -> Ends {
    Ends {
        local: facts.local,
        remote: facts.remote,
    }
}
