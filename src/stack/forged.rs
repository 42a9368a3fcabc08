//! Acknowledgements that the peer did not send, for the engine: it has no other call for what they say.

use super::demux::FlowKey;
use super::frame::{Checksums, IPV4_HEADER_BYTES, TCP_HEADER_BYTES};
use super::segment::{ControlSegment, Link};

/// One of them, an IPv4 packet.
pub(crate) struct Forged([u8; FRAME]);

impl Forged {
    /// As the peer of `key` would send it, without bytes: its next number is `seq`, it has everything below `ack`.
    pub(crate) fn acknowledgement(key: FlowKey, seq: u32, ack: u32, window: u16) -> Self {
        let theirs = FlowKey {
            local: key.remote,
            remote: key.local,
        };
        let mut frame = [0; FRAME];
        let segment = ControlSegment::acknowledge(theirs, seq, ack, window);
        // None would mean that the frame is too short for a bare header, which it is made for; the engine drops zeros.
        let _ = segment.emit(NOWHERE, Checksums::Port, &mut frame);
        Self(frame)
    }

    /// The packet. The engine does not look at its checksums.
    pub(crate) fn bytes(&self) -> &[u8] {
        self.0.get(FRAME - PACKET..).unwrap_or(&[])
    }
}

/// It leaves on no link.
const NOWHERE: Link = Link {
    source: [0; 6],
    destination: [0; 6],
    vlan: None,
};
const PACKET: usize = IPV4_HEADER_BYTES + TCP_HEADER_BYTES;
const FRAME: usize = 14 + PACKET;
