//! Urgent data (RFC 9293 section 3.8.5, read as RFC 6093 section 3 says): where the mark lies, both ways.
//!
//! smoltcp knows nothing of it: received segments are looked at in front of it, sent ones are marked behind it. Few flows ever
//! have any, so it lies in a table of its own and costs the others a flag.

use std::collections::HashMap;

use super::demux::TcpFrame;
use super::flow_parts::{Cold, Flags, Hot};
use super::frame::{put_word, word_at};
use super::sequence::rcv_nxt;
use super::stack::Stack;
use super::tracker::distance;
use crate::id::FlowId;

/// What a flow's peer has marked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct UrgentMark {
    /// Stream offset behind the urgent byte; 0 = there was none.
    pub end: u64,
    /// The same of an earlier one that is still unread where reading stands, if a newer one came; 0 = none.
    pub overtaken: u64,
}

/// Urgent data of one flow.
#[derive(Clone, Copy, Debug, Default)]
struct Urgent {
    received: UrgentMark,
    /// Sequence number behind the urgent byte that we sent, until it is acknowledged (SND.UP of RFC 9293).
    sending: Option<(u32, u64)>,
}

/// Flows that have urgent data, by index.
#[derive(Debug, Default)]
pub(crate) struct UrgentTable(HashMap<u32, Urgent>);

impl UrgentTable {
    /// The sequence number behind the urgent byte that a flow sends; None in nearly all.
    pub(crate) fn sending(&self, flags: Flags, index: u32) -> Option<u32> {
        if !flags.has(Flags::URGENT) {
            return None;
        }
        self.0
            .get(&index)
            .and_then(|urgent| urgent.sending)
            .map(|(seq, _)| seq)
    }

    /// What the peer has marked.
    pub(crate) fn received(&self, flags: Flags, index: u32) -> UrgentMark {
        if !flags.has(Flags::URGENT) {
            return UrgentMark::default();
        }
        self.0
            .get(&index)
            .map(|urgent| urgent.received)
            .unwrap_or_default()
    }

    /// Ends the hurry of a flow whose urgent byte is acknowledged.
    #[cold]
    pub(crate) fn settle(&mut self, hot: &mut Hot, cold: &Cold, index: u32) {
        if let Some(urgent) = self.0.get_mut(&index)
            && urgent.sending.is_some_and(|(_, end)| end <= cold.tx_acked)
        {
            urgent.sending = None;
            hot.engine.hurry(false, &cold.options);
        }
    }

    /// The flow is no more.
    pub(crate) fn forget(&mut self, flags: Flags, index: u32) {
        if flags.has(Flags::URGENT) {
            self.0.remove(&index);
        }
    }
}

impl Stack {
    /// Marks the byte before stream offset `end`, which was sent or is about to be, as urgent (send(2) with MSG_OOB). Segments up to
    /// it point at it, and Nagle's rule does not hold them back (Linux tcp_nagle_test).
    pub fn mark_urgent(&mut self, flow: FlowId, end: u64) {
        let Some(index) = self.table.resolve(flow) else {
            return;
        };
        let Some((hot, cold)) = self.table.parts(index) else {
            return;
        };
        if hot.flags.has(Flags::DETACHED) || end <= cold.tx_acked {
            return;
        }
        let ahead = u32::try_from(end & u64::from(u32::MAX)).unwrap_or(0);
        let seq = cold.meter.iss.wrapping_add(1).wrapping_add(ahead);
        hot.flags.set(Flags::URGENT);
        hot.engine.hurry(true, &cold.options);
        self.urgent.0.entry(index).or_default().sending = Some((seq, end));
        self.mark_dirty(index);
    }

    /// Looks at the urgent pointer of a segment before its bytes are taken (Linux tcp_check_urg). The pointer names the byte
    /// behind the urgent one, as everybody sends it, and counts from `begin`, where the segment began when it arrived.
    #[cold]
    pub(crate) fn note_urgent(&mut self, bytes: &[u8], frame: &TcpFrame, begin: u32, index: u32) {
        let Some(pointer) = word_at(bytes, frame.tcp + 18) else {
            return;
        };
        let Some((hot, cold)) = self.table.parts(index) else {
            return;
        };
        let byte = begin.wrapping_add(u32::from(pointer.saturating_sub(1)));
        let Some(position) = offset_of(hot, cold, byte) else {
            return;
        };
        let before = self.urgent.received(hot.flags.get(), index);
        // Only one that is not here yet is news, and only one behind the last.
        if position < cold.rx_total || position < before.end || cold.rx_finished {
            return;
        }
        hot.flags.set(Flags::URGENT);
        self.counters.urgent_marks.raise();
        let overtaken = if before.end > cold.consumed {
            before.end
        } else {
            0
        };
        self.urgent.0.entry(index).or_default().received = UrgentMark {
            end: position + 1,
            overtaken,
        };
        self.note_change(index);
    }
}

/// The stream offset of a received sequence number; None before the stream.
fn offset_of(hot: &Hot, cold: &Cold, seq: u32) -> Option<u64> {
    let ahead = distance(rcv_nxt(hot, cold), seq);
    cold.rx_total.checked_add_signed(i64::from(ahead))
}

/// Points at the urgent byte in a segment that is about to leave: `end` is the sequence number behind it (Linux tcp_transmit_skb).
pub(crate) fn point(packet: &mut [u8], end: u32) -> Option<()> {
    let seq = super::frame::double_at(packet, IP + 4)?;
    let ahead = distance(seq, end);
    let flags = packet.get_mut(IP + 13)?;
    if ahead <= 0 || *flags & (SYN | RST) != 0 {
        return Some(());
    }
    *flags |= URG;
    put_word(packet, IP + 18, u16::try_from(ahead).unwrap_or(u16::MAX))
}

/// Bytes of the IPv4 header that the engine writes.
const IP: usize = 20;
const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const URG: u8 = 0x20;
