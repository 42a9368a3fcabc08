//! Segments of one flow that came one behind the other are joined before they are fed (Linux calls it GRO): what a segment costs
//! beside its bytes is then paid once for all of them.
//!
//! Only what is in order and says nothing but its bytes is joined, because everything else has a meaning of its own: a duplicate
//! acknowledgement is owed for each segment behind a gap.

use core::ops::Range;

use super::api::FlowState;
use super::demux::{Class, TcpFlags, TcpFrame};
use super::flow_parts::{Flags, Phase};
use super::frame::put_word;
use super::sequence::rcv_nxt;
use super::stack::Stack;
use super::tracker::distance;
use crate::device::RxFrame;

/// A joined segment is copied once more: of larger ones that costs more than it spares.
const PAYLOAD_MAX: usize = 2048;
/// An IP packet has 16 bits of length.
const PACKET_MAX: usize = u16::MAX as usize;
/// TCP header without options.
const PLAIN_HEADER: usize = 20;

impl Stack {
    /// How many frames from `at` on are one run; 1: the frame stands alone.
    pub(super) fn run(&self, burst: &[(Class, Option<u32>)], at: usize) -> usize {
        let mut rest = burst.get(at..).unwrap_or_default().iter();
        let Some((Class::Tcp(first), Some(index))) = rest.next() else {
            return 1;
        };
        if !says_only_bytes(first) {
            return 1;
        }
        let in_order = self.table.look(*index).is_some_and(|(hot, cold)| {
            hot.key == first.key
                && hot.phase != Phase::Free
                && !hot.flags.has(Flags::GAP)
                && cold.state == FlowState::Established
                && distance(rcv_nxt(hot, cold), first.seq) == 0
        });
        if !in_order {
            return 1;
        }
        let mut count = 1;
        let mut bytes = first.ip.len();
        let mut next = first.seq.wrapping_add(first.sequence_len());
        for (class, _) in rest {
            let Class::Tcp(frame) = class else {
                break;
            };
            bytes += frame.payload_len;
            let follows = frame.key == first.key
                && frame.seq == next
                && frame.payload - frame.tcp == PLAIN_HEADER
                && says_only_bytes(frame)
                && (frame.ack, frame.window) == (first.ack, first.window)
                && (frame.ttl, frame.tos) == (first.ttl, first.tos)
                && frame.source_mac == first.source_mac
                && bytes <= PACKET_MAX;
            if !follows {
                break;
            }
            next = next.wrapping_add(frame.sequence_len());
            count += 1;
        }
        count
    }
}

fn says_only_bytes(frame: &TcpFrame) -> bool {
    let flags = frame.flags.0 & !TcpFlags::PSH.0;
    flags == TcpFlags::ACK.0 && (1..=PAYLOAD_MAX).contains(&frame.payload_len)
}

/// Makes one frame of `run` in `into`. The checksums are not kept up: they were verified and nobody looks. None: it cannot be.
pub(super) fn join(
    frames: &[RxFrame<'_>],
    burst: &[(Class, Option<u32>)],
    run: Range<usize>,
    into: &mut Vec<u8>,
) -> Option<TcpFrame> {
    into.clear();
    let mut joined: Option<TcpFrame> = None;
    for (frame, (class, _)) in frames.get(run.clone())?.iter().zip(burst.get(run)?) {
        let Class::Tcp(segment) = class else {
            return None;
        };
        let payload = segment.payload..segment.payload + segment.payload_len;
        match &mut joined {
            None => {
                into.extend_from_slice(frame.bytes.get(..payload.end)?);
                joined = Some(segment.clone());
            }
            Some(joined) => {
                into.extend_from_slice(frame.bytes.get(payload)?);
                joined.payload_len += segment.payload_len;
                joined.segments = joined.segments.saturating_add(1);
                joined.flags = TcpFlags(joined.flags.0 | segment.flags.0);
            }
        }
    }
    let mut joined = joined?;
    joined.ip.end = joined.payload + joined.payload_len;
    put_word(
        into,
        joined.ip.start + 2,
        u16::try_from(joined.ip.len()).ok()?,
    )?;
    *into.get_mut(joined.tcp + 13)? = joined.flags.0;
    Some(joined)
}
