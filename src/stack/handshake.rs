//! What a handshake agrees on (segment size, window scale), and its steps on an existing flow.

use super::api::Change;
use super::demux::{TcpFlags, TcpFrame};
use super::flow_parts::{Flags, Phase};
use super::frame::{Checksums, ETHERTYPE_IPV4};
use super::interface::{Outlet, seal};
use super::patch;
use super::stack::{Io, Stack};
use super::tracker::KeptSynAck;

impl Stack {
    /// Learns the peer's numbers from the segment that answers our SYN, before smoltcp sees it. False when it does not
    /// answer it.
    pub(crate) fn note_syn_ack(&mut self, bytes: &mut [u8], frame: &TcpFrame, index: u32) -> bool {
        let Some((hot, cold)) = self.table.parts(index) else {
            return false;
        };
        if !frame.flags.contains(TcpFlags::SYN)
            || (frame.flags.contains(TcpFlags::ACK) && frame.ack != cold.meter.iss.wrapping_add(1))
        {
            return false;
        }
        hot.track.irs = frame.seq;
        hot.track.edge = frame
            .seq
            .wrapping_add(1)
            .wrapping_add(u32::from(cold.meter.syn_window));
        cold.meter.believed = hot.track.edge;
        cold.meter.shift = if frame.window_scale.is_some() {
            shift_of(cold.meter.capacity as usize)
        } else {
            0
        };
        let limit = segment_limit(
            self.interfaces.mtu(cold.meter.mtu_class),
            cold.options.max_segment,
        );
        cold.meter.mss = clamp_peer_mss(bytes, frame, limit);
        true
    }

    /// The client did not hear our SYN-ACK: it gets the same one again at once, not after smoltcp's second.
    pub(crate) fn resend_syn_ack(&mut self, io: &mut Io<'_>, index: u32) {
        let Some((hot, cold)) = self.table.parts(index) else {
            return;
        };
        let Some(packet) = cold.meter.syn_ack.as_deref().map(KeptSynAck::packet) else {
            // The first one has not left yet.
            return;
        };
        self.counters.syn_acks_sent_again.raise();
        cold.meter.retransmits = cold.meter.retransmits.saturating_add(1);
        let looped = hot.flags.has(Flags::LOOPED);
        let offload = self.station.offload && !looped;
        let header = self.station.header(cold.mac, ETHERTYPE_IPV4);
        let start = self.station.header_bytes();
        let mut outlet = Outlet {
            tx: &mut *io.tx,
            looped: &mut self.looped,
            station: self.station,
            counters: &self.counters,
            reserve: 0,
        };
        outlet.send(looped, start + packet.len(), offload, |frame| {
            header.emit(frame)?;
            let place = frame.get_mut(start..start + packet.len())?;
            place.copy_from_slice(packet);
            seal(place, offload)?;
            Some(start + packet.len())
        });
    }

    /// The handshake of a passive flow may just have ended.
    pub(crate) fn settle_open(&mut self, index: u32) {
        let flow = self.table.id(index);
        let Some((hot, cold)) = self.table.parts(index) else {
            return;
        };
        if hot.phase != Phase::HalfOpen {
            return;
        }
        hot.phase = Phase::Queued;
        cold.meter.syn_ack = None;
        // What the request sent is not the connection's (tcp_create_openreq_child).
        cold.meter.segments = 0;
        self.counters.flows_accepted.raise();
        let Some(id) = cold.listener else {
            return;
        };
        let Some(token) = self.listeners.at(id).map(|listener| listener.token) else {
            return;
        };
        let change = Change::Accepted {
            listener: id,
            token,
            flow,
        };
        self.changes.accepted(&mut cold.mark, change);
        let table = &self.table;
        if let Some(listener) = self.listeners.at_mut(id) {
            listener.complete(flow, |flow| table.is_in(flow, Phase::Queued));
        }
    }
}

/// smoltcp's window scale for a receive buffer of `capacity` bytes; held by a guard test.
pub(crate) fn shift_of(capacity: usize) -> u8 {
    let bits = usize::BITS - capacity.leading_zeros();
    u8::try_from(bits.saturating_sub(16)).unwrap_or(0)
}

/// Largest segment that this side sends and announces.
pub(crate) fn segment_limit(mtu: usize, wanted: u16) -> u16 {
    let fits = u16::try_from(mtu.saturating_sub(40)).unwrap_or(u16::MAX);
    let limit = if wanted == 0 { fits } else { fits.min(wanted) };
    limit.max(SEGMENT_MIN)
}

/// Lowers the peer's MSS option to `limit` and returns the segment size that results (RFC 9293 3.7.1).
pub(crate) fn clamp_peer_mss(bytes: &mut [u8], frame: &TcpFrame, limit: u16) -> u16 {
    if let Some(packet) = bytes.get_mut(frame.ip.clone()) {
        // None says that there is no such option; the default of RFC 9293 holds then.
        let _ = patch::clamp_mss(packet, limit, Checksums::Port);
    }
    frame
        .mss
        .filter(|mss| *mss != 0)
        .unwrap_or(MSS_DEFAULT)
        .max(SEGMENT_MIN)
        .min(limit)
}

/// RFC 9293 MUST-15.
const MSS_DEFAULT: u16 = 536;
/// Smallest size of a segment, whoever asks for less: smoltcp's lower limit, the same as Linux' `TCP_MIN_SND_MSS`.
pub const SEGMENT_MIN: u16 = 48;
