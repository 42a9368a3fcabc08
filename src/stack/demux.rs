//! Demultiplexing: one received frame to what it is for, or to the reason why it is dropped.
//!
//! RFC 1122 sections 3.2.1 and 3.3.6, RFC 9293 section 3.1. Pure and total: no state, any bytes.

use core::net::{Ipv4Addr, SocketAddrV4};
use core::ops::Range;

use super::Interface4;
use super::checksum;
use super::drop_reason::DropReason;
use super::frame::{
    ETHERTYPE_ARP, ETHERTYPE_IPV4, EthernetHeader, ICMP_HEADER_BYTES, IPV4_HEADER_BYTES,
    Ipv4Header, MAC_BROADCAST, PROTOCOL_ICMP, PROTOCOL_TCP, PROTOCOL_UDP, TCP_HEADER_BYTES,
    UDP_HEADER_BYTES, double_at, is_station, word_at,
};
use super::header_option::{TcpOptions, check_ipv4_options};
use super::network;
use super::siphash::siphash_of_12;
use crate::device::RxMeta;

/// Both ends of a TCP connection as we see it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FlowKey {
    /// Our end.
    pub local: SocketAddrV4,
    /// The peer's end.
    pub remote: SocketAddrV4,
}

impl FlowKey {
    /// The key as the other end has it.
    #[must_use]
    pub const fn reversed(self) -> Self {
        Self {
            local: self.remote,
            remote: self.local,
        }
    }

    /// The 4-tuple as 12 bytes, for hashing: addresses, then ports, ours first.
    #[must_use]
    pub fn to_bytes(self) -> [u8; 12] {
        let [a, b, c, d] = self.local.ip().octets();
        let [e, f, g, h] = self.remote.ip().octets();
        let [i, j] = self.local.port().to_be_bytes();
        let [k, l] = self.remote.port().to_be_bytes();
        [a, b, c, d, e, f, g, h, i, j, k, l]
    }

    /// SipHash of [`FlowKey::to_bytes`], from registers.
    pub(crate) fn keyed_hash(&self, secret: &[u8; 16]) -> u64 {
        let address = |end: &SocketAddrV4| u32::from_le_bytes(end.ip().octets());
        let port = |end: &SocketAddrV4| u32::from(end.port().swap_bytes());
        let (local, remote) = (&self.local, &self.remote);
        siphash_of_12(
            secret,
            u64::from(address(local)) | u64::from(address(remote)) << 32,
            port(local) | port(remote) << 16,
        )
    }
}

/// The eight flag bits of a TCP header.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct TcpFlags(pub u8);

impl TcpFlags {
    /// No more data from the sender.
    pub const FIN: Self = Self(0x01);
    /// Synchronise sequence numbers.
    pub const SYN: Self = Self(0x02);
    /// Reset the connection.
    pub const RST: Self = Self(0x04);
    /// Push.
    pub const PSH: Self = Self(0x08);
    /// The acknowledgment field is significant.
    pub const ACK: Self = Self(0x10);
    /// The urgent pointer is significant.
    pub const URG: Self = Self(0x20);
    /// FIN, SYN, RST, PSH, ACK and URG together.
    pub const ALL: Self = Self(0x3f);

    /// Whether every flag of `flags` is set.
    #[must_use]
    pub const fn contains(self, flags: Self) -> bool {
        self.0 & flags.0 == flags.0
    }

    /// Both sets together.
    #[must_use]
    pub const fn with(self, flags: Self) -> Self {
        Self(self.0 | flags.0)
    }
}

/// A TCP segment that passed every check.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TcpFrame {
    /// Whose it is.
    pub key: FlowKey,
    /// The station that sent it; a reply may go back there.
    pub source_mac: [u8; 6],
    /// The IP packet in the frame, without trailing Ethernet padding.
    pub ip: Range<usize>,
    /// Offset of the TCP header in the frame.
    pub tcp: usize,
    /// Offset of the payload in the frame.
    pub payload: usize,
    /// Bytes of payload.
    pub payload_len: usize,
    /// Sequence number.
    pub seq: u32,
    /// Acknowledgment number; has a meaning only with ACK.
    pub ack: u32,
    /// Flags.
    pub flags: TcpFlags,
    /// Window field, not scaled.
    pub window: u16,
    /// The maximum segment size option.
    pub mss: Option<u16>,
    /// The window scale option, as sent.
    pub window_scale: Option<u8>,
    /// The SACK permitted option is there.
    pub sack_permitted: bool,
    /// Type of service of the packet.
    pub tos: u8,
    /// Its time to live.
    pub ttl: u8,
}

impl TcpFrame {
    /// Sequence numbers that the segment takes: payload, SYN and FIN (SEG.LEN of RFC 9293 section
    /// 3.4).
    #[must_use]
    pub fn sequence_len(&self) -> u32 {
        let controls = u32::from(self.flags.contains(TcpFlags::SYN))
            + u32::from(self.flags.contains(TcpFlags::FIN));
        // A payload is below 64 KiB: its length comes from a 16-bit field.
        u32::try_from(self.payload_len)
            .unwrap_or(u32::MAX)
            .wrapping_add(controls)
    }
}

/// A UDP datagram that passed every check.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UdpFrame {
    /// Address and port it was sent to; a broadcast address when [`UdpFrame::broadcast`].
    pub local: SocketAddrV4,
    /// The sender.
    pub remote: SocketAddrV4,
    /// The station that sent it.
    pub source_mac: [u8; 6],
    /// The IP packet in the frame.
    pub ip: Range<usize>,
    /// The payload in the frame.
    pub payload: Range<usize>,
    /// It was sent to a broadcast address, of the network or of the link.
    pub broadcast: bool,
}

/// An ICMP message with a right checksum.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct IcmpFrame {
    /// The sender.
    pub source: Ipv4Addr,
    /// Where it was sent to.
    pub destination: Ipv4Addr,
    /// The station that sent it.
    pub source_mac: [u8; 6],
    /// The IP packet in the frame.
    pub ip: Range<usize>,
    /// The ICMP message in the frame, at least 8 bytes.
    pub message: Range<usize>,
    /// It was sent to a broadcast address, of the network or of the link.
    pub broadcast: bool,
}

/// What a frame is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Class {
    /// A TCP segment for one of our addresses.
    Tcp(TcpFrame),
    /// A UDP datagram for one of our addresses or a broadcast address.
    Udp(UdpFrame),
    /// An ICMP message for one of our addresses or a broadcast address.
    Icmp(IcmpFrame),
    /// An ARP packet; the range is its place in the frame.
    Arp(Range<usize>),
    /// Well-formed as far as was looked, and for somebody else.
    NotOurs(DropReason),
    /// Malformed, forged or refused.
    Bad(DropReason),
}

/// What the check of a frame needs to know.
#[derive(Clone, Debug)]
pub struct Rules {
    /// Our MAC address.
    pub mac: [u8; 6],
    /// Our VLAN id, or None for untagged frames.
    pub vlan: Option<u16>,
    /// Our addresses.
    pub addresses: Vec<Interface4>,
    /// TCP and UDP checksums may be partial: the sum of the pseudo header, as a kernel of this machine leaves it to a port
    /// that fills in the rest (Linux CHECKSUM_PARTIAL).
    pub trust_checksum: bool,
}

impl Rules {
    /// Whether `address` is one of ours.
    #[must_use]
    pub fn is_ours(&self, address: Ipv4Addr) -> bool {
        self.addresses
            .iter()
            .any(|interface| interface.address == address)
    }

    /// Whether `address` is the limited broadcast address or that of one of our networks.
    #[must_use]
    pub fn is_broadcast(&self, address: Ipv4Addr) -> bool {
        network::is_broadcast(&self.addresses, address)
    }
}

/// Says what a frame received from the wire is.
#[must_use]
pub fn classify(bytes: &[u8], meta: RxMeta, rules: &Rules) -> Class {
    let origin = Origin {
        checksum_known: meta.checksum_good || meta.checksum_partial,
        may_be_partial: rules.trust_checksum,
        from_loop: false,
    };
    if meta.checksum_bad && !origin.checksum_known {
        return Class::Bad(DropReason::PortChecksum);
    }
    classify_from(bytes, origin, rules)
}

/// Says what a frame that we sent to ourselves is: its source may be our own address, even the same
/// endpoint, and its TCP, UDP and ICMP checksums need not be filled in.
#[must_use]
pub fn classify_looped(bytes: &[u8], rules: &Rules) -> Class {
    classify_from(
        bytes,
        Origin {
            checksum_known: true,
            may_be_partial: false,
            from_loop: true,
        },
        rules,
    )
}

/// Where a frame came from, as far as the checks care.
#[derive(Clone, Copy)]
struct Origin {
    checksum_known: bool,
    may_be_partial: bool,
    from_loop: bool,
}

#[inline]
fn classify_from(bytes: &[u8], origin: Origin, rules: &Rules) -> Class {
    match ethernet(bytes, origin, rules) {
        Ok(class) => class,
        Err(
            reason @ (DropReason::OtherMac
            | DropReason::OtherVlan
            | DropReason::EtherType
            | DropReason::OtherAddress
            | DropReason::Multicast
            | DropReason::Protocol),
        ) => Class::NotOurs(reason),
        Err(reason) => Class::Bad(reason),
    }
}

#[inline]
fn ethernet(bytes: &[u8], origin: Origin, rules: &Rules) -> Result<Class, DropReason> {
    let (header, offset) = EthernetHeader::parse(bytes).ok_or(DropReason::EthernetTruncated)?;
    let [first, ..] = header.destination;
    let link_broadcast = first & 1 != 0;
    if header.destination != rules.mac && !link_broadcast {
        return Err(DropReason::OtherMac);
    }
    if !is_station(header.source) {
        return Err(DropReason::SourceMac);
    }
    if header.vlan != rules.vlan {
        return Err(DropReason::OtherVlan);
    }
    let payload = bytes.get(offset..).ok_or(DropReason::EthernetTruncated)?;
    match header.ether_type {
        ETHERTYPE_IPV4 => {
            let link = Link {
                source_mac: header.source,
                group: link_broadcast,
                multicast: link_broadcast && header.destination != MAC_BROADCAST,
                offset,
            };
            ipv4(payload, link, origin, rules)
        }
        ETHERTYPE_ARP => Ok(Class::Arp(offset..bytes.len())),
        _ => Err(DropReason::EtherType),
    }
}

/// What the IPv4 checks need from the frame around the packet.
#[derive(Clone, Copy)]
struct Link {
    source_mac: [u8; 6],
    group: bool,
    multicast: bool,
    offset: usize,
}

#[inline]
fn ipv4(padded: &[u8], link: Link, origin: Origin, rules: &Rules) -> Result<Class, DropReason> {
    let header = Ipv4Header::parse(padded)?;
    let packet = padded
        .get(..header.total_bytes)
        .ok_or(DropReason::Ipv4TotalLength)?;
    // A looped frame may have been made for a port that fills in checksums.
    if !origin.from_loop && !header.verify(packet) {
        return Err(DropReason::Ipv4Checksum);
    }
    if header.header_bytes > IPV4_HEADER_BYTES {
        check_ipv4_options(
            packet
                .get(IPV4_HEADER_BYTES..header.header_bytes)
                .unwrap_or(&[]),
        )?;
    }
    let source = header.source;
    if !is_host(source) || rules.is_broadcast(source) {
        return Err(DropReason::Source);
    }
    let destination = header.destination;
    let to_us = rules.is_ours(destination);
    let broadcast = !to_us && rules.is_broadcast(destination);
    if !to_us {
        if header.protocol == PROTOCOL_TCP && (broadcast || destination.is_multicast()) {
            return Err(DropReason::TcpBroadcast);
        }
        if destination.is_multicast() {
            return Err(DropReason::Multicast);
        }
        if !broadcast {
            return Err(DropReason::OtherAddress);
        }
        if link.multicast {
            return Err(DropReason::LinkBroadcast);
        }
    } else if link.group {
        let tcp = header.protocol == PROTOCOL_TCP;
        return Err(if tcp {
            DropReason::TcpBroadcast
        } else {
            DropReason::LinkBroadcast
        });
    }
    if header.is_fragment {
        return Err(DropReason::Fragment);
    }
    let transport = packet.get(header.header_bytes..).unwrap_or(&[]);
    if !origin.from_loop && rules.is_ours(source) {
        return Err(if is_land(&header, transport) {
            DropReason::Land
        } else {
            DropReason::SourceOurs
        });
    }
    let ip = Place {
        header,
        link,
        broadcast,
        packet: link.offset..link.offset + packet.len(),
        transport: link.offset + header.header_bytes,
    };
    match header.protocol {
        PROTOCOL_TCP => tcp(transport, ip, origin),
        PROTOCOL_UDP => udp(transport, ip, origin),
        PROTOCOL_ICMP => icmp(transport, ip, origin),
        _ => Err(DropReason::Protocol),
    }
}

/// A checked IPv4 packet and where it lies in the frame.
struct Place {
    header: Ipv4Header,
    link: Link,
    broadcast: bool,
    packet: Range<usize>,
    transport: usize,
}

impl Place {
    /// Whether the checksum over pseudo header and `transport` is right.
    fn verify(&self, transport: &[u8]) -> bool {
        let Ok(length) = u16::try_from(transport.len()) else {
            return false;
        };
        let header = &self.header;
        let pseudo =
            checksum::pseudo_header(header.source, header.destination, header.protocol, length);
        checksum::add(pseudo, checksum::sum(transport)) == 0xffff
    }

    /// Whether the checksum `field` of `transport` is right for a frame of this origin.
    fn accepts(&self, origin: Origin, transport: &[u8], field: u16) -> bool {
        if origin.checksum_known {
            return true;
        }
        let header = &self.header;
        let is_partial = || {
            u16::try_from(transport.len()).is_ok_and(|length| {
                checksum::pseudo_header(header.source, header.destination, header.protocol, length)
                    == field
            })
        };
        (origin.may_be_partial && is_partial()) || self.verify(transport)
    }

    /// Both endpoints, (destination, source), from the first four bytes of `transport`.
    fn endpoints(&self, transport: &[u8]) -> Option<(SocketAddrV4, SocketAddrV4)> {
        let remote = SocketAddrV4::new(self.header.source, word_at(transport, 0)?);
        let local = SocketAddrV4::new(self.header.destination, word_at(transport, 2)?);
        Some((local, remote))
    }
}

#[inline]
fn tcp(segment: &[u8], ip: Place, origin: Origin) -> Result<Class, DropReason> {
    let fixed: &[u8; TCP_HEADER_BYTES] = segment.first_chunk().ok_or(DropReason::TcpTruncated)?;
    let header_bytes = usize::from(fixed[12] >> 4) * 4;
    if header_bytes < TCP_HEADER_BYTES || header_bytes > segment.len() {
        return Err(DropReason::TcpTruncated);
    }
    if !ip.accepts(origin, segment, u16::from_be_bytes([fixed[16], fixed[17]])) {
        return Err(DropReason::TcpChecksum);
    }
    let (local, remote) = ip.endpoints(fixed).ok_or(DropReason::TcpTruncated)?;
    if local.port() == 0 || remote.port() == 0 {
        return Err(DropReason::PortZero);
    }
    let flags = TcpFlags(fixed[13]);
    check_tcp_flags(flags)?;
    let options = TcpOptions::parse(segment.get(TCP_HEADER_BYTES..header_bytes).unwrap_or(&[]))?;
    Ok(Class::Tcp(TcpFrame {
        key: FlowKey { local, remote },
        source_mac: ip.link.source_mac,
        ip: ip.packet,
        tcp: ip.transport,
        payload: ip.transport + header_bytes,
        payload_len: segment.len() - header_bytes,
        seq: double_at(fixed, 4).ok_or(DropReason::TcpTruncated)?,
        ack: double_at(fixed, 8).ok_or(DropReason::TcpTruncated)?,
        flags,
        window: word_at(fixed, 14).ok_or(DropReason::TcpTruncated)?,
        mss: options.mss,
        window_scale: options.window_scale,
        sack_permitted: options.sack_permitted,
        tos: ip.header.tos,
        ttl: ip.header.ttl,
    }))
}

fn udp(datagram: &[u8], ip: Place, origin: Origin) -> Result<Class, DropReason> {
    let (local, remote) = ip.endpoints(datagram).ok_or(DropReason::UdpTruncated)?;
    let length = usize::from(word_at(datagram, 4).ok_or(DropReason::UdpTruncated)?);
    let sum = word_at(datagram, 6).ok_or(DropReason::UdpTruncated)?;
    if length < UDP_HEADER_BYTES {
        return Err(DropReason::UdpTruncated);
    }
    let datagram = datagram.get(..length).ok_or(DropReason::UdpTruncated)?;
    // RFC 768: zero means that the sender made no checksum.
    if sum != 0 && !ip.accepts(origin, datagram, sum) {
        return Err(DropReason::UdpChecksum);
    }
    if local.port() == 0 {
        return Err(DropReason::PortZero);
    }
    Ok(Class::Udp(UdpFrame {
        local,
        remote,
        source_mac: ip.link.source_mac,
        ip: ip.packet,
        payload: ip.transport + UDP_HEADER_BYTES..ip.transport + length,
        broadcast: ip.broadcast,
    }))
}

fn icmp(message: &[u8], ip: Place, origin: Origin) -> Result<Class, DropReason> {
    if message.len() < ICMP_HEADER_BYTES {
        return Err(DropReason::IcmpTruncated);
    }
    if !origin.checksum_known && !checksum::verify(message) {
        return Err(DropReason::IcmpChecksum);
    }
    Ok(Class::Icmp(IcmpFrame {
        source: ip.header.source,
        destination: ip.header.destination,
        source_mac: ip.link.source_mac,
        message: ip.transport..ip.packet.end,
        ip: ip.packet,
        broadcast: ip.broadcast,
    }))
}

/// Whether a packet may come from `address` (RFC 1122 section 3.2.1.3, RFC 6890).
fn is_host(address: Ipv4Addr) -> bool {
    let [first, ..] = address.octets();
    // 0/8 this network, 127/8 loopback, 224/4 multicast, 240/4 reserved and limited broadcast.
    first != 0 && first != 127 && first < 224
}

/// Whether both endpoints of a TCP or UDP packet are the same.
fn is_land(header: &Ipv4Header, transport: &[u8]) -> bool {
    header.source == header.destination
        && matches!(header.protocol, PROTOCOL_TCP | PROTOCOL_UDP)
        && word_at(transport, 0).is_some_and(|source| word_at(transport, 2) == Some(source))
}

fn check_tcp_flags(flags: TcpFlags) -> Result<(), DropReason> {
    if flags.0 & TcpFlags::ALL.0 == 0 {
        return Err(DropReason::TcpFlagsNone);
    }
    if flags.contains(TcpFlags::ALL) {
        return Err(DropReason::TcpFlagsAll);
    }
    if flags.contains(TcpFlags::SYN.with(TcpFlags::FIN)) {
        return Err(DropReason::TcpFlagsSynFin);
    }
    if flags.contains(TcpFlags::SYN.with(TcpFlags::RST)) {
        return Err(DropReason::TcpFlagsSynRst);
    }
    Ok(())
}

#[cfg(test)]
mod tests;
