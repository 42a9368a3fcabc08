//! What the payload stage says of the bytes of streams, before anybody acts on them.

pub(super) mod packet;

use super::bell::errno_number;
use super::family::Work;
use super::object::Role;
use crate::channel::byte_ring::Range;
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
    /// Judges what the stack has received beyond what the program was told.
    pub(super) fn judge_received(&mut self, object: u32, facts: &Facts) -> Verdict {
        let Some(record) = self.records.at(object).copied() else {
            return Verdict::Pass;
        };
        let (Role::Flow(flow), Some(stage)) = (record.role, self.shared.stage.as_deref_mut())
        else {
            return Verdict::Pass;
        };
        let capacity = self.segments.layout().rx_bytes(object);
        let mut offset = record.rx_tail;
        // It fits: there is never more than a ring of it.
        let fresh = u32::try_from(facts.rx_total - offset).unwrap_or(capacity);
        let range = Range::new(offset, fresh.min(capacity), capacity);
        for span in [range.first, range.second] {
            if span.len == 0 {
                continue;
            }
            let Some(bytes) = self.shared.memory.received(self.owner, object, span) else {
                // What cannot be looked at must not pass.
                return stage.refuse();
            };
            let verdict = stage.judge(
                flow,
                &mut Chunk {
                    direction: Direction::Rx,
                    ends: ends(facts),
                    offset,
                    bytes,
                },
            );
            if verdict == Verdict::Reset {
                return verdict;
            }
            offset += u64::from(span.len);
        }
        Verdict::Pass
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

fn ends(facts: &Facts) -> Ends {
    Ends {
        local: facts.local,
        remote: facts.remote,
    }
}
