//! Acknowledgements of many segments (stretch ACKs, RFC 5690 section 1) open the congestion window by all of them.
//!
//! smoltcp opens it by one segment for each acknowledgement, however much that acknowledges. A peer that acknowledges once a burst, or a
//! merged frame (we do, and Linux with GRO does), would hold a new connection down to one segment more a round trip: a
//! hundred of them for 256 KiB. Appropriate byte counting (RFC 3465; without its limit, as `tcp_slow_start` of Linux) is had by feeding
//! such an acknowledgement in pieces of a segment each. It ends with slow start: at the first loss, and when everything that
//! the send buffer holds may be under way.

use super::api::FlowState;
use super::demux::{TcpFlags, TcpFrame};
use super::flow::Panicked;
use super::forged::Forged;
use super::sequence::{rcv_nxt, snd_una};
use super::stack::{Io, Stack};
use super::tracker::{ahead, distance};

impl Stack {
    /// Feeds what `frame` acknowledges to the flow at `index`, segment by segment, all but the last one: that is the frame's own.
    pub(crate) fn feed_pieces(
        &mut self,
        io: &mut Io<'_>,
        frame: &TcpFrame,
        index: u32,
    ) -> Result<(), Panicked> {
        let buffer = self.config.tx_buffer_bytes as u64;
        let Some((hot, cold)) = self.table.parts(index) else {
            return Ok(());
        };
        let segment = u32::from(cold.meter.mss);
        let mut una = snd_una(cold);
        let slow_start = cold.tx_acked < buffer && cold.meter.retransmits == 0;
        // Behind a loss it grows by what is acknowledged, too, as long as it is in the way.
        let grows = slow_start || cold.meter.retransmits > 0 && cold.meter.is_held_up;
        let sends = matches!(
            cold.state,
            FlowState::Established
                | FlowState::CloseWait
                | FlowState::FinWait1
                | FlowState::Closing
                | FlowState::LastAck
        );
        if !grows
            || !sends
            || !frame.flags.contains(TcpFlags::ACK)
            || ahead(una, frame.ack) <= segment
            || distance(frame.ack, hot.track.snd_nxt) < 0
        {
            return Ok(());
        }
        let (key, seq) = (hot.key, rcv_nxt(hot, cold));
        for _ in 0..PIECES_MAX {
            if ahead(una, frame.ack) <= segment {
                break;
            }
            una = una.wrapping_add(segment);
            let piece = Forged::acknowledgement(key, seq, una, frame.window);
            self.feed(io, index, Some(piece.bytes()), None)?;
        }
        Ok(())
    }
}

/// Pieces of one acknowledgement: more than a merged frame of 64 KiB is acknowledged in, and a bound on what a peer makes us do.
const PIECES_MAX: usize = 64;
