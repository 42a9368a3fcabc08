//! TCP segments that we make without smoltcp: RST, ACK, challenge ACK.
//!
//! RFC 9293 section 3.10.7 (which reset or acknowledgment answers what), RFC 5961 (challenge ACK).
//! Each is a whole Ethernet frame without options and SYN.

use super::checksum;
use super::demux::{FlowKey, TcpFlags, TcpFrame};
use super::frame::{
    Checksums, DEFAULT_TTL, ETHERTYPE_IPV4, EthernetHeader, IPV4_HEADER_BYTES, Ipv4Repr,
    PROTOCOL_TCP, TCP_HEADER_BYTES,
};

/// The link that a frame leaves on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Link {
    /// Our MAC address.
    pub source: [u8; 6],
    /// The next hop's.
    pub destination: [u8; 6],
    /// Our VLAN id, or None.
    pub vlan: Option<u16>,
}

impl Link {
    /// The Ethernet header of an IPv4 frame on this link.
    #[must_use]
    pub const fn ipv4_header(self) -> EthernetHeader {
        EthernetHeader {
            destination: self.destination,
            source: self.source,
            vlan: self.vlan,
            ether_type: ETHERTYPE_IPV4,
        }
    }
}

/// A segment that carries nothing but its header, or one byte that says nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ControlSegment {
    /// From `local` to `remote`.
    pub key: FlowKey,
    /// Sequence number.
    pub seq: u32,
    /// Acknowledgment number; 0 without ACK.
    pub ack: u32,
    /// Flags.
    pub flags: TcpFlags,
    /// Window field, not scaled.
    pub window: u16,
    /// Type of service.
    pub tos: u8,
    /// Time to live.
    pub ttl: u8,
    /// A byte follows the header. Its number is one that the peer has acknowledged, so that it never reads it.
    pub has_byte: bool,
}

impl ControlSegment {
    /// The reset that answers a segment for which there is no connection (RFC 9293 section
    /// 3.10.7.1); None when the segment is itself a reset.
    #[must_use]
    pub fn reset_for(offending: &TcpFrame) -> Option<Self> {
        if offending.flags.contains(TcpFlags::RST) {
            return None;
        }
        let reset = if offending.flags.contains(TcpFlags::ACK) {
            Self::bare(offending.key, offending.ack, 0, TcpFlags::RST)
        } else {
            let ack = offending.seq.wrapping_add(offending.sequence_len());
            Self::bare(offending.key, 0, ack, TcpFlags::RST.with(TcpFlags::ACK))
        };
        Some(reset)
    }

    /// The reset of a synchronised connection: the peer takes it when `seq` is what it expects next
    /// (RFC 5961 section 3.2).
    #[must_use]
    pub fn reset(key: FlowKey, snd_nxt: u32, rcv_nxt: u32) -> Self {
        Self::bare(key, snd_nxt, rcv_nxt, TcpFlags::RST.with(TcpFlags::ACK))
    }

    /// An acknowledgment, `<SEQ=SND.NXT><ACK=RCV.NXT><CTL=ACK>`. The same segment is the challenge
    /// ACK of RFC 5961 sections 3.2, 4.2 and 5.2; the caller limits its rate (section 7).
    #[must_use]
    pub fn acknowledge(key: FlowKey, snd_nxt: u32, rcv_nxt: u32, window: u16) -> Self {
        Self {
            window,
            ..Self::bare(key, snd_nxt, rcv_nxt, TcpFlags::ACK)
        }
    }

    /// Bytes of the frame.
    #[must_use]
    pub const fn frame_bytes(&self, vlan: Option<u16>) -> usize {
        EthernetHeader::bytes_for(vlan) + IPV4_HEADER_BYTES + self.segment_bytes()
    }

    const fn segment_bytes(&self) -> usize {
        TCP_HEADER_BYTES + self.has_byte as usize
    }

    /// Writes the frame at the start of `out` and returns its length, or None when `out` is shorter
    /// than [`ControlSegment::frame_bytes`].
    #[must_use = "None means that there is no frame"]
    pub fn emit(&self, link: Link, checksums: Checksums, out: &mut [u8]) -> Option<usize> {
        let out = out.get_mut(..self.frame_bytes(link.vlan))?;
        let offset = link.ipv4_header().emit(out)?;
        let packet = out.get_mut(offset..)?;
        let repr = Ipv4Repr {
            tos: self.tos,
            ttl: self.ttl,
            protocol: PROTOCOL_TCP,
            source: *self.key.local.ip(),
            destination: *self.key.remote.ip(),
        };
        let bytes = self.segment_bytes();
        repr.emit(bytes, checksums, packet)?;
        if self.has_byte {
            *packet.get_mut(IPV4_HEADER_BYTES + TCP_HEADER_BYTES)? = 0;
        }
        let segment: &mut [u8; TCP_HEADER_BYTES] =
            packet.get_mut(IPV4_HEADER_BYTES..)?.first_chunk_mut()?;
        let [p1, p0] = self.key.local.port().to_be_bytes();
        let [q1, q0] = self.key.remote.port().to_be_bytes();
        let [s3, s2, s1, s0] = self.seq.to_be_bytes();
        let [a3, a2, a1, a0] = self.ack.to_be_bytes();
        let [w1, w0] = self.window.to_be_bytes();
        *segment = [
            p1,
            p0,
            q1,
            q0,
            s3,
            s2,
            s1,
            s0,
            a3,
            a2,
            a1,
            a0,
            DATA_OFFSET,
            self.flags.0,
            w1,
            w0,
            0,
            0,
            0,
            0,
        ];
        let pseudo = checksum::pseudo_header(
            repr.source,
            repr.destination,
            PROTOCOL_TCP,
            TCP_HEADER_WORD + u16::from(self.has_byte),
        );
        let [c1, c0] = match checksums {
            Checksums::Full => !checksum::add(pseudo, checksum::sum(segment)),
            Checksums::Port => pseudo,
        }
        .to_be_bytes();
        segment[16] = c1;
        segment[17] = c0;
        Some(out.len())
    }

    const fn bare(key: FlowKey, seq: u32, ack: u32, flags: TcpFlags) -> Self {
        Self {
            key,
            seq,
            ack,
            flags,
            window: 0,
            tos: 0,
            ttl: DEFAULT_TTL,
            has_byte: false,
        }
    }
}

/// Header length of five words, in its place in octet 12.
const DATA_OFFSET: u8 = 5 << 4;
/// [`TCP_HEADER_BYTES`] as the pseudo header has it. A byte of zero behind it adds nothing to a sum.
const TCP_HEADER_WORD: u16 = 20;

#[cfg(test)]
mod tests {
    use core::net::{Ipv4Addr, SocketAddrV4};

    use super::*;
    use crate::device::RxMeta;
    use crate::seeded::Seeded;
    use crate::stack::Interface4;
    use crate::stack::demux::{Class, Rules, classify};
    use crate::stack::frame::word_at;

    const US: [u8; 6] = [2, 0, 0, 0, 0, 1];
    const PEER: [u8; 6] = [2, 0, 0, 0, 0, 2];

    fn key() -> FlowKey {
        FlowKey {
            local: SocketAddrV4::new(Ipv4Addr::new(10, 77, 0, 1), 6379),
            remote: SocketAddrV4::new(Ipv4Addr::new(10, 77, 0, 2), 40_000),
        }
    }

    fn link(vlan: Option<u16>) -> Link {
        Link {
            source: US,
            destination: PEER,
            vlan,
        }
    }

    /// What the peer makes of the frame.
    fn at_peer(bytes: &[u8], vlan: Option<u16>) -> TcpFrame {
        let rules = Rules {
            mac: PEER,
            vlan,
            addresses: vec![Interface4 {
                address: *key().remote.ip(),
                prefix_len: 24,
            }],
            trust_checksum: false,
        };
        match classify(bytes, RxMeta::default(), &rules) {
            Class::Tcp(frame) => frame,
            other => panic!("{other:?}"),
        }
    }

    fn offending(flags: TcpFlags, payload_len: usize) -> TcpFrame {
        TcpFrame {
            key: key(),
            source_mac: PEER,
            ip: 14..54 + payload_len,
            tcp: 34,
            payload: 54,
            payload_len,
            seq: 0xffff_fffe,
            ack: 77,
            flags,
            window: 1,
            mss: None,
            window_scale: None,
            sack_permitted: false,
            tos: 0,
            ttl: 64,
            segments: 1,
        }
    }

    #[test]
    fn a_segment_is_read_back_by_the_other_end_with_right_checksums() {
        let mut random = Seeded::new(5);
        for round in 0..2_000 {
            let vlan = (round % 2 == 0).then_some(9);
            let segment =
                ControlSegment::acknowledge(key(), random.double(), random.double(), random.word());
            let mut out = [0xee; 80];
            let len = segment.emit(link(vlan), Checksums::Full, &mut out).unwrap();
            assert_eq!(len, segment.frame_bytes(vlan));
            let frame = at_peer(&out[..len], vlan);
            assert_eq!(frame.key, key().reversed());
            assert_eq!((frame.seq, frame.ack), (segment.seq, segment.ack));
            assert_eq!((frame.flags, frame.window), (TcpFlags::ACK, segment.window));
        }
    }

    #[test]
    fn a_short_buffer_gets_nothing() {
        let segment = ControlSegment::reset(key(), 1, 2);
        let mut out = [0; 54];
        assert_eq!(
            segment.emit(link(None), Checksums::Full, &mut out[..53]),
            None
        );
        assert_eq!(segment.emit(link(Some(1)), Checksums::Full, &mut out), None);
        assert_eq!(
            segment.emit(link(None), Checksums::Full, &mut out),
            Some(54)
        );
    }

    #[test]
    fn a_port_that_fills_in_checksums_finds_the_pseudo_header_sum() {
        let segment = ControlSegment::acknowledge(key(), 1, 2, 3);
        let mut full = [0; 54];
        let mut port = [0; 54];
        segment
            .emit(link(None), Checksums::Full, &mut full)
            .unwrap();
        segment
            .emit(link(None), Checksums::Port, &mut port)
            .unwrap();
        assert_eq!(word_at(&port, 24), Some(0));
        // What the port does: sum the segment with what lies in the field.
        assert_eq!(Some(!checksum::sum(&port[34..])), word_at(&full, 50));
    }

    #[test]
    fn resets_follow_rfc_9293_section_3_10_7_1() {
        let ack = TcpFlags::ACK;
        let rst_ack = TcpFlags::RST.with(ack);
        // (flags, payload, answer: flags, seq, ack); SEG.SEQ is 2 below the wrap, SEG.ACK is 77.
        let cases = [
            (TcpFlags::SYN, 0, Some((rst_ack, 0, 0xffff_ffff))),
            (TcpFlags::SYN, 10, Some((rst_ack, 0, 9))),
            (TcpFlags::FIN, 4, Some((rst_ack, 0, 3))),
            (TcpFlags::PSH, 3, Some((rst_ack, 0, 1))),
            (TcpFlags::SYN.with(ack), 0, Some((TcpFlags::RST, 77, 0))),
            (ack, 100, Some((TcpFlags::RST, 77, 0))),
            (TcpFlags::FIN.with(ack), 0, Some((TcpFlags::RST, 77, 0))),
            (TcpFlags::RST, 0, None),
            (rst_ack, 0, None),
        ];
        for (flags, payload, answer) in cases {
            let reset = ControlSegment::reset_for(&offending(flags, payload));
            assert_eq!(
                reset.map(|reset| (reset.flags, reset.seq, reset.ack)),
                answer,
                "{flags:?}"
            );
            assert!(reset.is_none_or(|reset| reset.key == key() && reset.window == 0));
        }
    }
}
