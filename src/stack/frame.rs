//! Ethernet and IPv4 headers: bytes to checked meaning and back.
//!
//! IEEE 802.3 and 802.1Q, RFC 894, RFC 791. Parsing is total: any bytes give a header or a fault.

use core::net::Ipv4Addr;

use super::checksum;

/// Bytes of an Ethernet header without a tag.
pub const ETHERNET_HEADER_BYTES: usize = 14;
/// Bytes that an 802.1Q tag adds.
pub const VLAN_TAG_BYTES: usize = 4;
/// Bytes of an IPv4 header without options.
pub const IPV4_HEADER_BYTES: usize = 20;
/// Bytes of a TCP header without options.
pub const TCP_HEADER_BYTES: usize = 20;
/// Bytes of a UDP header.
pub const UDP_HEADER_BYTES: usize = 8;
/// Bytes of an ICMP header.
pub const ICMP_HEADER_BYTES: usize = 8;
/// EtherType of IPv4.
pub const ETHERTYPE_IPV4: u16 = 0x0800;
/// EtherType of ARP.
pub const ETHERTYPE_ARP: u16 = 0x0806;
/// EtherType of an 802.1Q tag.
pub const ETHERTYPE_VLAN: u16 = 0x8100;
/// EtherType of IPv6.
pub const ETHERTYPE_IPV6: u16 = 0x86dd;
/// IP protocol number of ICMP.
pub const PROTOCOL_ICMP: u8 = 1;
/// IP protocol number of TCP.
pub const PROTOCOL_TCP: u8 = 6;
/// IP protocol number of UDP.
pub const PROTOCOL_UDP: u8 = 17;
/// The Ethernet broadcast address.
pub const MAC_BROADCAST: [u8; 6] = [0xff; 6];
/// Time to live of packets that we make (RFC 1122 section 3.2.1.7; the assigned default is 64).
pub const DEFAULT_TTL: u8 = 64;

/// The bits of an 802.1Q tag that hold the VLAN id.
const VLAN_ID_MASK: u16 = 0x0fff;
const DONT_FRAGMENT: u16 = 0x4000;
const MORE_FRAGMENTS: u16 = 0x2000;
const FRAGMENT_OFFSET_MASK: u16 = 0x1fff;

/// Reads a big-endian 16-bit word at `at`, or None beyond the end.
#[must_use]
pub fn word_at(bytes: &[u8], at: usize) -> Option<u16> {
    let field = bytes.get(at..)?.first_chunk()?;
    Some(u16::from_be_bytes(*field))
}

/// Reads a big-endian 32-bit word at `at`, or None beyond the end.
#[must_use]
pub fn double_at(bytes: &[u8], at: usize) -> Option<u32> {
    let field = bytes.get(at..)?.first_chunk()?;
    Some(u32::from_be_bytes(*field))
}

/// Writes a big-endian 16-bit word at `at`, or returns None beyond the end.
#[must_use = "None means that nothing was written"]
pub fn put_word(bytes: &mut [u8], at: usize, word: u16) -> Option<()> {
    *bytes.get_mut(at..)?.first_chunk_mut()? = word.to_be_bytes();
    Some(())
}

/// Writes a big-endian 32-bit word at `at`, or returns None beyond the end.
#[must_use = "None means that nothing was written"]
pub fn put_double(bytes: &mut [u8], at: usize, double: u32) -> Option<()> {
    *bytes.get_mut(at..)?.first_chunk_mut()? = double.to_be_bytes();
    Some(())
}

/// Whether a MAC address names one station: neither group bit nor all zero.
#[must_use]
pub fn is_station(mac: [u8; 6]) -> bool {
    let [first, ..] = mac;
    first & 1 == 0 && mac != [0; 6]
}

/// An Ethernet header with at most one 802.1Q tag.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EthernetHeader {
    /// Destination MAC address.
    pub destination: [u8; 6],
    /// Source MAC address.
    pub source: [u8; 6],
    /// VLAN id, 1 to 4094; None for no tag and for a tag that only carries a priority (id 0).
    pub vlan: Option<u16>,
    /// EtherType of the payload.
    pub ether_type: u16,
}

impl EthernetHeader {
    /// Reads a header; the second value is the offset of the payload. None when the bytes are too
    /// few.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<(Self, usize)> {
        let (destination, rest) = bytes.split_first_chunk::<6>()?;
        let (source, rest) = rest.split_first_chunk::<6>()?;
        let mut header = Self {
            destination: *destination,
            source: *source,
            vlan: None,
            ether_type: word_at(rest, 0)?,
        };
        if header.ether_type != ETHERTYPE_VLAN {
            return Some((header, ETHERNET_HEADER_BYTES));
        }
        let id = word_at(rest, 2)? & VLAN_ID_MASK;
        header.vlan = (id != 0).then_some(id);
        header.ether_type = word_at(rest, 4)?;
        Some((header, ETHERNET_HEADER_BYTES + VLAN_TAG_BYTES))
    }

    /// Bytes that [`EthernetHeader::emit`] writes for this `vlan`.
    #[must_use]
    pub const fn bytes_for(vlan: Option<u16>) -> usize {
        match vlan {
            Some(_) => ETHERNET_HEADER_BYTES + VLAN_TAG_BYTES,
            None => ETHERNET_HEADER_BYTES,
        }
    }

    /// Writes the header at the start of `out` and returns its length, or None when `out` is short.
    #[must_use]
    pub fn emit(&self, out: &mut [u8]) -> Option<usize> {
        let bytes = Self::bytes_for(self.vlan);
        let out = out.get_mut(..bytes)?;
        let (destination, rest) = out.split_first_chunk_mut::<6>()?;
        let (source, rest) = rest.split_first_chunk_mut::<6>()?;
        *destination = self.destination;
        *source = self.source;
        match self.vlan {
            Some(id) => {
                put_word(rest, 0, ETHERTYPE_VLAN)?;
                put_word(rest, 2, id & VLAN_ID_MASK)?;
                put_word(rest, 4, self.ether_type)?;
            }
            None => put_word(rest, 0, self.ether_type)?,
        }
        Some(bytes)
    }
}

/// Why bytes are no IPv4 header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ipv4Fault {
    /// Fewer bytes than the header says it has.
    Truncated,
    /// The version is not 4.
    Version,
    /// The header length is below 20 bytes.
    HeaderLength,
    /// The total length is below the header length, or beyond the bytes there are.
    TotalLength,
}

/// An IPv4 header whose lengths fit each other and the bytes it was read from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ipv4Header {
    /// Bytes of the header with options, 20 to 60.
    pub header_bytes: usize,
    /// Bytes of header and payload.
    pub total_bytes: usize,
    /// Type of service (DSCP and ECN).
    pub tos: u8,
    /// Identification.
    pub ident: u16,
    /// DF.
    pub dont_fragment: bool,
    /// MF is set or the offset is not 0: part of a larger packet.
    pub is_fragment: bool,
    /// Payload offset of this fragment, in units of 8 bytes.
    pub fragment_offset: u16,
    /// Time to live.
    pub ttl: u8,
    /// Protocol of the payload.
    pub protocol: u8,
    /// Source address.
    pub source: Ipv4Addr,
    /// Destination address.
    pub destination: Ipv4Addr,
}

impl Ipv4Header {
    /// Reads a header whose whole packet lies in `packet` (trailing padding allowed). The checksum
    /// is not verified here; see [`Ipv4Header::verify`].
    ///
    /// # Errors
    /// The first [`Ipv4Fault`] found.
    pub fn parse(packet: &[u8]) -> Result<Self, Ipv4Fault> {
        let header = Self::parse_quoted(packet)?;
        if header.total_bytes > packet.len() {
            return Err(Ipv4Fault::TotalLength);
        }
        Ok(header)
    }

    /// As [`Ipv4Header::parse`], for a packet that an ICMP error quotes only in part.
    ///
    /// # Errors
    /// The first [`Ipv4Fault`] found.
    pub fn parse_quoted(packet: &[u8]) -> Result<Self, Ipv4Fault> {
        let fixed: &[u8; IPV4_HEADER_BYTES] = packet.first_chunk().ok_or(Ipv4Fault::Truncated)?;
        let [
            version_ihl,
            tos,
            len1,
            len0,
            id1,
            id0,
            frag1,
            frag0,
            ttl,
            protocol,
            _,
            _,
            rest @ ..,
        ] = *fixed;
        let [s0, s1, s2, s3, d0, d1, d2, d3] = rest;
        if version_ihl >> 4 != 4 {
            return Err(Ipv4Fault::Version);
        }
        let header_bytes = usize::from(version_ihl & 0x0f) * 4;
        if header_bytes < IPV4_HEADER_BYTES {
            return Err(Ipv4Fault::HeaderLength);
        }
        if header_bytes > packet.len() {
            return Err(Ipv4Fault::Truncated);
        }
        let total_bytes = usize::from(u16::from_be_bytes([len1, len0]));
        if total_bytes < header_bytes {
            return Err(Ipv4Fault::TotalLength);
        }
        let fragment = u16::from_be_bytes([frag1, frag0]);
        Ok(Self {
            header_bytes,
            total_bytes,
            tos,
            ident: u16::from_be_bytes([id1, id0]),
            dont_fragment: fragment & DONT_FRAGMENT != 0,
            is_fragment: fragment & (MORE_FRAGMENTS | FRAGMENT_OFFSET_MASK) != 0,
            fragment_offset: fragment & FRAGMENT_OFFSET_MASK,
            ttl,
            protocol,
            source: Ipv4Addr::new(s0, s1, s2, s3),
            destination: Ipv4Addr::new(d0, d1, d2, d3),
        })
    }

    /// Whether the header checksum of `packet`, which this header was read from, is right.
    #[must_use]
    pub fn verify(&self, packet: &[u8]) -> bool {
        packet
            .get(..self.header_bytes)
            .is_some_and(checksum::verify)
    }
}

/// Who fills in the checksums of a frame that we make.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Checksums {
    /// We do, all of them.
    Full,
    /// The port does: the IPv4 header checksum is 0 and the TCP field holds the pseudo header's
    /// sum, as ports that insert checksums want it.
    Port,
}

/// What is written into a packet that we make; it has no options and DF set, so its identification
/// is free (RFC 6864 section 4.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ipv4Repr {
    /// Type of service.
    pub tos: u8,
    /// Time to live.
    pub ttl: u8,
    /// Protocol of the payload.
    pub protocol: u8,
    /// Source address.
    pub source: Ipv4Addr,
    /// Destination address.
    pub destination: Ipv4Addr,
}

impl Ipv4Repr {
    /// Writes a header for `payload_bytes` at the start of `out`. None when `out` is short or the
    /// packet too long.
    #[must_use = "None means that nothing was written"]
    pub fn emit(&self, payload_bytes: usize, checksums: Checksums, out: &mut [u8]) -> Option<()> {
        let total = u16::try_from(IPV4_HEADER_BYTES.checked_add(payload_bytes)?).ok()?;
        let header: &mut [u8; IPV4_HEADER_BYTES] = out.first_chunk_mut()?;
        let [len1, len0] = total.to_be_bytes();
        let [frag1, frag0] = DONT_FRAGMENT.to_be_bytes();
        let [s0, s1, s2, s3] = self.source.octets();
        let [d0, d1, d2, d3] = self.destination.octets();
        *header = [
            0x45,
            self.tos,
            len1,
            len0,
            0,
            0,
            frag1,
            frag0,
            self.ttl,
            self.protocol,
            0,
            0,
            s0,
            s1,
            s2,
            s3,
            d0,
            d1,
            d2,
            d3,
        ];
        if checksums == Checksums::Full {
            let sum = checksum::checksum(header);
            put_word(header, 10, sum)?;
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seeded::Seeded;

    const US: [u8; 6] = [2, 0, 0, 0, 0, 1];
    const PEER: [u8; 6] = [2, 0, 0, 0, 0, 2];

    fn repr() -> Ipv4Repr {
        Ipv4Repr {
            tos: 0x10,
            ttl: 64,
            protocol: PROTOCOL_TCP,
            source: Ipv4Addr::new(10, 77, 0, 1),
            destination: Ipv4Addr::new(10, 77, 0, 2),
        }
    }

    #[test]
    fn an_ethernet_header_comes_back_as_it_was_written() {
        for vlan in [None, Some(1), Some(4094)] {
            let header = EthernetHeader {
                destination: PEER,
                source: US,
                vlan,
                ether_type: ETHERTYPE_ARP,
            };
            let mut bytes = [0_u8; 18];
            let len = header.emit(&mut bytes).unwrap();
            assert_eq!(len, EthernetHeader::bytes_for(vlan));
            assert_eq!(EthernetHeader::parse(&bytes[..len]), Some((header, len)));
            assert_eq!(EthernetHeader::parse(&bytes[..len - 1]), None);
            assert_eq!(header.emit(&mut bytes[..len - 1]), None);
        }
    }

    #[test]
    fn a_priority_tag_is_no_vlan() {
        let mut bytes = [0_u8; 18];
        let header = EthernetHeader {
            destination: PEER,
            source: US,
            vlan: Some(1),
            ether_type: ETHERTYPE_IPV4,
        };
        header.emit(&mut bytes).unwrap();
        put_word(&mut bytes, 14, 0xe000).unwrap();
        let (read, offset) = EthernetHeader::parse(&bytes).unwrap();
        assert_eq!(
            (read.vlan, read.ether_type, offset),
            (None, ETHERTYPE_IPV4, 18)
        );
    }

    #[test]
    fn an_ipv4_header_comes_back_as_it_was_written() {
        let mut packet = [0_u8; 46];
        repr().emit(20, Checksums::Full, &mut packet).unwrap();
        let header = Ipv4Header::parse(&packet).unwrap();
        assert!(header.verify(&packet));
        assert_eq!(
            (
                header.header_bytes,
                header.total_bytes,
                header.tos,
                header.ttl
            ),
            (20, 40, 0x10, 64)
        );
        assert_eq!(
            (header.source, header.destination),
            (repr().source, repr().destination)
        );
        assert!(header.dont_fragment && !header.is_fragment);
        repr().emit(20, Checksums::Port, &mut packet).unwrap();
        assert_eq!(word_at(&packet, 10), Some(0));
        assert_eq!(repr().emit(65_516, Checksums::Full, &mut packet), None);
    }

    #[test]
    fn each_wrong_length_of_an_ipv4_header_is_its_own_fault() {
        let mut good = [0_u8; 40];
        repr().emit(20, Checksums::Full, &mut good).unwrap();
        let cases: [(usize, u8, Ipv4Fault); 6] = [
            (0, 0x65, Ipv4Fault::Version),
            (0, 0x44, Ipv4Fault::HeaderLength),
            (0, 0x4f, Ipv4Fault::Truncated),
            (3, 19, Ipv4Fault::TotalLength),
            (3, 41, Ipv4Fault::TotalLength),
            (2, 1, Ipv4Fault::TotalLength),
        ];
        for (at, value, fault) in cases {
            let mut packet = good;
            packet[at] = value;
            assert_eq!(
                Ipv4Header::parse(&packet),
                Err(fault),
                "byte {at} = {value:#x}"
            );
        }
        assert_eq!(Ipv4Header::parse(&good[..19]), Err(Ipv4Fault::Truncated));
        assert_eq!(Ipv4Header::parse(&good[..39]), Err(Ipv4Fault::TotalLength));
        assert_eq!(
            Ipv4Header::parse_quoted(&good[..28]).map(|header| header.total_bytes),
            Ok(40)
        );
    }

    #[test]
    fn random_bytes_never_give_lengths_beyond_the_bytes() {
        let mut random = Seeded::new(3);
        for _ in 0..100_000 {
            let len = random.below(64);
            let mut bytes: Vec<u8> = (0..len).map(|_| random.byte()).collect();
            if let Some((_, offset)) = EthernetHeader::parse(&bytes) {
                assert!(offset <= len);
            }
            if let Some(first) = bytes.first_mut() {
                *first = 0x40 | (*first & 0x0f);
            }
            if let Some(third) = bytes.get_mut(2) {
                *third = 0;
            }
            if let Ok(header) = Ipv4Header::parse(&bytes) {
                assert!(header.header_bytes <= header.total_bytes && header.total_bytes <= len);
            }
        }
    }
}
