//! ICMP: echo replies, destination unreachable, and what errors say about our packets.
//!
//! Read RFC 792, RFC 1122 section 3.2.2, RFC 1191 and RFC 5927 before editing.

use core::net::SocketAddrV4;
use core::ops::Range;

use super::checksum;
use super::demux::{FlowKey, IcmpFrame, UdpFrame};
use super::frame::{
    Checksums, DEFAULT_TTL, EthernetHeader, ICMP_HEADER_BYTES, IPV4_HEADER_BYTES, Ipv4Header,
    Ipv4Repr, PROTOCOL_ICMP, PROTOCOL_TCP, PROTOCOL_UDP, double_at, put_word, word_at,
};
use super::segment::Link;
use crate::errno::Errno;

const ECHO_REPLY: u8 = 0;
const DESTINATION_UNREACHABLE: u8 = 3;
const ECHO_REQUEST: u8 = 8;
const TIME_EXCEEDED: u8 = 11;
const PARAMETER_PROBLEM: u8 = 12;
const CODE_PORT: u8 = 3;
/// The longest error packet (RFC 1812 section 4.3.2.3).
const ERROR_PACKET_BYTES: usize = 576;
/// Type of service of an error: precedence 6, internetwork control (RFC 1812 section 4.3.2.5).
const ERROR_TOS: u8 = 0xc0;

/// Bytes of the frame that answers an echo request, or None when the message is none, was broadcast
/// (RFC 1122 section 3.2.2.6), or the answer is longer than `mtu`. `bytes` is the frame that `icmp`
/// was read from.
#[must_use]
pub fn echo_reply_bytes(
    bytes: &[u8],
    icmp: &IcmpFrame,
    mtu: usize,
    vlan: Option<u16>,
) -> Option<usize> {
    let message = bytes.get(icmp.message.clone())?;
    let packet = IPV4_HEADER_BYTES + message.len();
    let wanted = matches!(message, [ECHO_REQUEST, 0, ..]) && message.len() >= ICMP_HEADER_BYTES;
    (wanted && !icmp.broadcast && packet <= mtu).then(|| EthernetHeader::bytes_for(vlan) + packet)
}

/// Writes the answer to an echo request at the start of `out` and returns its length; None when
/// [`echo_reply_bytes`] says None or `out` is shorter than it says. All checksums are filled in.
#[must_use = "None means that there is no frame"]
pub fn echo_reply(
    bytes: &[u8],
    icmp: &IcmpFrame,
    mtu: usize,
    link: Link,
    out: &mut [u8],
) -> Option<usize> {
    let out = out.get_mut(..echo_reply_bytes(bytes, icmp, mtu, link.vlan)?)?;
    let repr = Ipv4Repr {
        tos: Ipv4Header::parse(bytes.get(icmp.ip.clone())?).ok()?.tos,
        ttl: DEFAULT_TTL,
        protocol: PROTOCOL_ICMP,
        source: icmp.destination,
        destination: icmp.source,
    };
    let request = bytes.get(icmp.message.clone())?;
    emit(link, repr, out, |message| {
        message.copy_from_slice(request);
        *message.first_mut()? = ECHO_REPLY;
        Some(())
    })
}

/// Bytes of the frame that says that nobody listens on a UDP port, or None when the datagram was
/// broadcast (RFC 1122 section 3.2.2).
#[must_use]
pub fn port_unreachable_bytes(udp: &UdpFrame, vlan: Option<u16>) -> Option<usize> {
    let headers = IPV4_HEADER_BYTES + ICMP_HEADER_BYTES;
    (!udp.broadcast)
        .then(|| EthernetHeader::bytes_for(vlan) + headers + quoted(udp.ip.clone()).len())
}

/// Writes a port unreachable error about `udp`, which was read from `bytes`, and returns its
/// length; None when [`port_unreachable_bytes`] says None or `out` is shorter than it says. The
/// caller limits the rate (RFC 1812 section 4.3.2.8). All checksums are filled in.
#[must_use = "None means that there is no frame"]
pub fn port_unreachable(bytes: &[u8], udp: &UdpFrame, link: Link, out: &mut [u8]) -> Option<usize> {
    let out = out.get_mut(..port_unreachable_bytes(udp, link.vlan)?)?;
    let repr = Ipv4Repr {
        tos: ERROR_TOS,
        ttl: DEFAULT_TTL,
        protocol: PROTOCOL_ICMP,
        source: *udp.local.ip(),
        destination: *udp.remote.ip(),
    };
    let quote = bytes.get(quoted(udp.ip.clone()))?;
    emit(link, repr, out, |message| {
        let (header, rest) = message.split_first_chunk_mut::<ICMP_HEADER_BYTES>()?;
        *header = [DESTINATION_UNREACHABLE, CODE_PORT, 0, 0, 0, 0, 0, 0];
        rest.copy_from_slice(quote);
        Some(())
    })
}

/// As much of an offending packet as an error quotes.
fn quoted(packet: Range<usize>) -> Range<usize> {
    let most = packet.start + ERROR_PACKET_BYTES - IPV4_HEADER_BYTES - ICMP_HEADER_BYTES;
    packet.start..packet.end.min(most)
}

/// Fills `out`, which has just the right length, with an ICMP message that `fill` writes.
fn emit(
    link: Link,
    repr: Ipv4Repr,
    out: &mut [u8],
    fill: impl FnOnce(&mut [u8]) -> Option<()>,
) -> Option<usize> {
    let length = out.len();
    let offset = link.ipv4_header().emit(out)?;
    let packet = out.get_mut(offset..)?;
    repr.emit(
        packet.len().checked_sub(IPV4_HEADER_BYTES)?,
        Checksums::Full,
        packet,
    )?;
    let message = packet.get_mut(IPV4_HEADER_BYTES..)?;
    fill(message)?;
    put_word(message, 2, 0)?;
    let sum = checksum::checksum(message);
    put_word(message, 2, sum)?;
    Some(length)
}

/// What an error says about a packet that we sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IcmpErrorKind {
    /// The network cannot be reached.
    NetUnreachable,
    /// The host cannot be reached.
    HostUnreachable,
    /// The host does not speak the protocol.
    ProtocolUnreachable,
    /// Nobody listens on the port.
    PortUnreachable,
    /// DF is set and the next link takes packets of this many bytes at most (RFC 1191).
    FragmentationNeeded(u16),
    /// A filter refuses it.
    AdminProhibited,
    /// The time to live ran out.
    TimeExceeded,
    /// A header field is wrong.
    ParameterProblem,
}

impl IcmpErrorKind {
    /// What the program is told, as Linux does (tcp(7), ip(7), "Error handling").
    #[must_use]
    pub const fn errno(self) -> Errno {
        match self {
            Self::NetUnreachable => Errno::NETUNREACH,
            Self::HostUnreachable | Self::AdminProhibited | Self::TimeExceeded => {
                Errno::HOSTUNREACH
            }
            Self::ProtocolUnreachable => Errno::NOPROTOOPT,
            Self::PortUnreachable => Errno::CONNREFUSED,
            Self::FragmentationNeeded(_) => Errno::MSGSIZE,
            Self::ParameterProblem => Errno::PROTO,
        }
    }

    /// A hard error of RFC 1122 section 4.2.3.9. It ends a connection attempt; an established
    /// connection it does not touch (RFC 5927 section 5.2).
    #[must_use]
    pub const fn is_hard(self) -> bool {
        matches!(self, Self::ProtocolUnreachable | Self::PortUnreachable)
    }
}

/// The transport of a quoted packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Transport {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

/// An error about a packet that we sent. The quote is checked as far as it goes; whether such a
/// packet is under way is for the flow to say: `seq` must lie between SND.UNA and SND.NXT (RFC 5927
/// section 4.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IcmpError {
    /// What is said.
    pub kind: IcmpErrorKind,
    /// The transport of the quoted packet.
    pub transport: Transport,
    /// Both ends, ours first, as the flow table has them.
    pub key: FlowKey,
    /// The quoted TCP sequence number; 0 for UDP.
    pub seq: u32,
}

/// Reads an error from the message of `icmp`, which was read from `bytes`. None for what is no
/// error, is not about a TCP or UDP packet from the address that it was sent to, or quotes too
/// little of it. Source quench (RFC 6633) and redirects are no errors.
#[must_use]
pub fn parse_error(bytes: &[u8], icmp: &IcmpFrame) -> Option<IcmpError> {
    let message = bytes.get(icmp.message.clone())?;
    let (header, quote) = message.split_first_chunk::<ICMP_HEADER_BYTES>()?;
    let [kind, code, ..] = *header;
    if icmp.broadcast
        || !matches!(
            kind,
            DESTINATION_UNREACHABLE | TIME_EXCEEDED | PARAMETER_PROBLEM
        )
    {
        return None;
    }
    let packet = Ipv4Header::parse_quoted(quote).ok()?;
    if packet.source != icmp.destination || packet.fragment_offset != 0 {
        return None;
    }
    let head: &[u8; 8] = quote.get(packet.header_bytes..)?.first_chunk()?;
    let (transport, seq) = match packet.protocol {
        PROTOCOL_TCP => (Transport::Tcp, double_at(head, 4)?),
        PROTOCOL_UDP => (Transport::Udp, 0),
        _ => return None,
    };
    let kind = match (kind, code) {
        // Codes: RFC 792, RFC 1122 section 3.2.2.1, RFC 1812 section 5.2.7.1.
        (DESTINATION_UNREACHABLE, 0 | 6 | 8 | 11) => IcmpErrorKind::NetUnreachable,
        (DESTINATION_UNREACHABLE, 1 | 5 | 7 | 12) => IcmpErrorKind::HostUnreachable,
        (DESTINATION_UNREACHABLE, 2) => IcmpErrorKind::ProtocolUnreachable,
        (DESTINATION_UNREACHABLE, CODE_PORT) => IcmpErrorKind::PortUnreachable,
        (DESTINATION_UNREACHABLE, 4) => {
            IcmpErrorKind::FragmentationNeeded(next_mtu(word_at(header, 6)?, packet.total_bytes))
        }
        (DESTINATION_UNREACHABLE, 9 | 10 | 13..=15) => IcmpErrorKind::AdminProhibited,
        (TIME_EXCEEDED, 0 | 1) => IcmpErrorKind::TimeExceeded,
        (PARAMETER_PROBLEM, _) => IcmpErrorKind::ParameterProblem,
        _ => return None,
    };
    let key = FlowKey {
        local: SocketAddrV4::new(packet.source, word_at(head, 0)?),
        remote: SocketAddrV4::new(packet.destination, word_at(head, 2)?),
    };
    Some(IcmpError {
        kind,
        transport,
        key,
        seq,
    })
}

/// Usual MTUs (RFC 1191 section 7.1).
const PLATEAUS: [u16; 10] = [
    32_000, 17_914, 8_166, 4_352, 2_002, 1_492, 1_006, 508, 296, MIN_MTU,
];
/// Every link takes packets of this many bytes (RFC 791 section 3.2).
const MIN_MTU: u16 = 68;

/// The MTU that an error states; an old router states 0, and then it is the next plateau below the
/// packet.
fn next_mtu(stated: u16, packet_bytes: usize) -> u16 {
    if stated != 0 {
        return stated.max(MIN_MTU);
    }
    PLATEAUS
        .into_iter()
        .find(|plateau| usize::from(*plateau) < packet_bytes)
        .unwrap_or(MIN_MTU)
}

#[cfg(test)]
mod tests;
