//! Bytes between a flow's rings and the stack.

use super::family::{Shared, Work};
use super::object::Record;
use super::payload::{Judge, tail};
use super::segments::PAGE;
use crate::channel::byte_ring::{self, Pending, Range, Span};
use crate::channel::cell::{ObjectCell, flag, shut};
use crate::channel::map::Control;
use crate::channel::sync::{Ordering, fence};
use crate::gpu::Verdict;
use crate::id::FlowId;
use crate::readiness::News;
use crate::stack::Close;

impl Work<'_> {
    /// Moves what the program has written into the stack, and tells the stack what it has read.
    pub(super) fn pull(&mut self, object: u32, flow: FlowId) {
        let Some(cell) = self.cell(object) else {
            return;
        };
        let layout = self.segments.layout();
        let capacity = layout.tx_bytes(object);
        let mut backed = self.shared.memory.transmit_backed(self.owner, object);
        let Some(record) = self.records.at_mut(object).map(|record| *record) else {
            return;
        };
        if record.closed {
            return;
        }
        if self.consumed(object, flow, cell, &record).is_err() {
            return self.broken(object, flow);
        }
        let mut head = record.tx_head;
        let mut held = false;
        let empty = loop {
            let range = match byte_ring::pending(&cell.write, head, backed.min(capacity), capacity)
            {
                Pending::Bytes(range) => range,
                Pending::Broken => {
                    let more = self.believe(object, cell, backed);
                    if more > backed {
                        backed = more;
                        continue;
                    }
                    return self.broken(object, flow);
                }
            };
            if range.is_empty() {
                break true;
            }
            self.mark(object, flow, cell);
            let mut want = range.len();
            if record.corked || cell.write.more.load(Ordering::Relaxed) != 0 {
                want = self.unheld(object, flow, cell, head, want);
                held = want < range.len();
                if want == 0 {
                    break false;
                }
            }
            let (taken, verdict) = match self.fly_sent(object, flow, head, tail(range, 0, want)) {
                Some(sent) => (sent.taken, sent.verdict),
                None => self.send(object, flow, head, range, want, true),
            };
            if verdict == Verdict::Reset {
                return self.denied(object, cell, flow);
            }
            head += taken as u64;
            if taken < range.len() as usize {
                break false;
            }
        };
        if held || record.held_until.is_some() {
            self.note_held(object, held);
        }
        if head != record.tx_head {
            self.tell_payload_mark(object, cell);
            self.shared.latency.pulled();
            // Release: the bytes before it are copied out.
            cell.host.tx_head.store(head, Ordering::Release);
        }
        let shut = cell.write.shut.load(Ordering::Relaxed);
        let Some(record) = self.records.at_mut(object) else {
            return;
        };
        record.tx_head = head;
        if empty
            && !record.connecting
            && shut & shut::WRITE != 0
            && !record.finished
            && !record.closing
        {
            record.finished = true;
            self.shared.stack.shutdown_write(self.now, flow);
        }
        self.room(object, cell, backed);
    }

    /// Tells the stack of urgent data among what was published (MSG_OOB).
    fn mark(&mut self, object: u32, flow: FlowId, cell: &ObjectCell) {
        let end = cell.write.urgent_end.load(Ordering::Relaxed);
        if let Some(record) = self.records.at_mut(object)
            && record.urgent != end
        {
            record.urgent = end;
            // Nothing up to it waits (tcp_nagle_test).
            record.released = record.released.max(end);
            self.shared.stack.mark_urgent(flow, end);
        }
    }

    /// A writer may have put memory behind more of its ring than we have: then so do we before we read there. Returns the bytes that
    /// have memory for certain.
    fn believe(&mut self, object: u32, cell: &ObjectCell, backed: u32) -> u32 {
        let extent = byte_ring::extent(&cell.write);
        let capacity = self.segments.layout().tx_bytes(object);
        if backed >= capacity || extent <= u64::from(backed) {
            return backed;
        }
        let bytes = u32::try_from(extent)
            .unwrap_or(capacity)
            .min(capacity)
            .next_power_of_two()
            .max(PAGE);
        if self.shared.memory.adopt_transmit(self.owner, object, bytes) {
            bytes
        } else {
            backed
        }
    }

    /// Hands `want` bytes at most from stream offset `head` on to the stack, as far as it takes them, and judges them unless they
    /// need not be.
    pub(super) fn send(
        &mut self,
        object: u32,
        flow: FlowId,
        head: u64,
        range: Range,
        want: u32,
        judged: bool,
    ) -> (usize, Verdict) {
        let control = &self.segments.control;
        let mut from = Cursor::new(range);
        let Shared { stack, stage, .. } = &mut self.shared;
        let mut judge = stage
            .as_deref_mut()
            .filter(|_| judged)
            .and_then(|stage| Some(Judge::new(stage, flow, &stack.facts(flow)?, head)));
        let taken = stack.send_with(self.now, flow, want as usize, &mut |to| {
            from.fill(control, object, to);
            if let Some(judge) = &mut judge {
                judge.sent(to);
            }
        });
        (taken, judge.map_or(Verdict::Pass, |judge| judge.verdict))
    }

    /// Gives the transmit ring more memory when it is wanted, and an edge when a third is free.
    fn room(&mut self, object: u32, cell: &ObjectCell, backed: u32) {
        // Pairs with the fence of a writer that found no room: it sees the new head, or we see its mark.
        fence(Ordering::SeqCst);
        let capacity = self.segments.layout().tx_bytes(object);
        let wanted = cell.write.want_room.load(Ordering::SeqCst) != 0;
        if backed < capacity && wanted {
            // A writer could not help itself. Without memory the ring stays small; the writer waits for its page.
            if !self
                .shared
                .memory
                .back_transmit(self.owner, object, capacity)
            {
                self.shared.counters.flows_refused_no_memory.raise();
            }
        }
        if wanted && crate::readiness::is_writable(cell, capacity) {
            cell.write.want_room.store(0, Ordering::SeqCst);
            self.alert_of(object, News::Room);
        }
    }

    /// Tells the stack what the program has read.
    fn consumed(
        &mut self,
        object: u32,
        flow: FlowId,
        cell: &ObjectCell,
        record: &Record,
    ) -> Result<(), Broken> {
        // Acquire: the bytes before it are copied out.
        let head = cell.read.rx_head.load(Ordering::Acquire);
        if head < record.rx_head || head > record.rx_tail {
            return Err(Broken);
        }
        if head > record.rx_head {
            if let Some(record) = self.records.at_mut(object) {
                record.rx_head = head;
            }
            self.shared.stack.consumed(self.now, flow, head);
        }
        Ok(())
    }

    /// The program has broken the channel of a flow: it is reset.
    fn broken(&mut self, object: u32, flow: FlowId) {
        self.shared.counters.objects_broken_by_program.raise();
        if let Some(record) = self.records.at_mut(object) {
            record.closed = true;
            record.flags |= flag::TX_BROKEN;
        }
        self.shared.stack.close(self.now, flow, Close::Abort);
    }
}

/// The program has written something that cannot be.
struct Broken;

/// Walks through a range of a transmit ring.
pub(super) struct Cursor {
    range: Range,
    done: u32,
}

impl Cursor {
    pub(super) const fn new(range: Range) -> Self {
        Self { range, done: 0 }
    }

    /// Copies the next bytes into `to`.
    pub(super) fn fill(&mut self, control: &Control, object: u32, to: &mut [u8]) {
        let mut rest = to;
        while !rest.is_empty() {
            let span = self.next(rest.len());
            let Some((part, after)) = rest.split_at_mut_checked(span.len as usize) else {
                return;
            };
            if span.len == 0 || !control.tx_copy_out(object, span, part) {
                // More than was offered: never asked for by the stack.
                part.fill(0);
                after.fill(0);
                return;
            }
            self.done += span.len;
            rest = after;
        }
    }

    fn next(&self, want: usize) -> Span {
        let Range { first, second } = self.range;
        let (span, skip) = match self.done.checked_sub(first.len) {
            None => (first, self.done),
            Some(skip) => (second, skip),
        };
        let left = span.len.saturating_sub(skip);
        Span {
            offset: span.offset + skip.min(span.len),
            len: u32::try_from(want).unwrap_or(left).min(left),
        }
    }
}
