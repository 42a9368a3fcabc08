//! Bytes that TCP_CORK or MSG_MORE hold back (tcp(7)): what does not fill a segment waits until the cork is out, until more comes,
//! or for 200 ms at most. They wait in the transmit ring, where they were written.

use core::time::Duration;

use super::family::Work;
use super::object::{Role, Token};
use crate::channel::cell::{ObjectCell, shut};
use crate::channel::sync::Ordering;
use crate::id::FlowId;

/// How long bytes are held back at most.
pub(super) const HELD_FOR: Duration = Duration::from_millis(200);

impl Work<'_> {
    /// How many of `len` bytes from stream position `head` on may go to the stack now, although something is held back.
    #[cold]
    pub(super) fn unheld(
        &self,
        object: u32,
        flow: FlowId,
        cell: &ObjectCell,
        head: u64,
        len: u32,
    ) -> u32 {
        let ended = cell.write.shut.load(Ordering::Relaxed) & shut::WRITE != 0;
        let facts = self.shared.stack.facts(flow).filter(|_| !ended);
        let (Some(facts), Some(record)) = (facts, self.records.at(object)) else {
            return len;
        };
        let mss = u32::from(facts.mss.max(1));
        // What the engine has and could not fill a segment with is filled first.
        let whole = (facts.unsent.saturating_add(len) / mss * mss).saturating_sub(facts.unsent);
        let released = record.released.max(pushed(cell, head));
        let free = u32::try_from(released.saturating_sub(head)).unwrap_or(u32::MAX);
        whole.max(free).min(len)
    }

    /// Notes whether bytes of `object` are held back; the first of them begins the time.
    #[cold]
    pub(super) fn note_held(&mut self, object: u32, held: bool) {
        let Some(record) = self.records.at_mut(object) else {
            return;
        };
        if !held {
            record.held_until = None;
            return;
        }
        if record.held_until.is_none() {
            let token = Token {
                owner: self.owner,
                object,
            };
            record.held_until = Some(self.shared.held.begin(self.now, token));
        }
    }

    /// The time of what `object` holds back may be over.
    pub(super) fn release_held(&mut self, object: u32) {
        let (Some(cell), Some(record)) = (self.cell(object), self.records.at_mut(object)) else {
            return;
        };
        let Role::Flow(flow) = record.role else {
            return;
        };
        // Bytes that came later have a time of their own.
        if record.held_until.is_none_or(|due| due > self.now) {
            return;
        }
        record.held_until = None;
        record.released = cell.write.tx_tail.load(Ordering::Acquire);
        self.shared.counters.holds_timed_out.raise();
        self.pull(object, flow);
    }
}

/// The stream position below which the program lets nothing be held back; `head` when there is none ahead.
fn pushed(cell: &ObjectCell, head: u64) -> u64 {
    let low = cell.write.pushed.load(Ordering::Relaxed);
    let ahead = u64::from(low.wrapping_sub(low_half(head)));
    let written = cell
        .write
        .tx_tail
        .load(Ordering::Relaxed)
        .saturating_sub(head);
    // Else it lies behind, or nothing was ever pushed.
    if ahead <= written { head + ahead } else { head }
}

fn low_half(position: u64) -> u32 {
    u32::try_from(position & u64::from(u32::MAX)).unwrap_or(0)
}
