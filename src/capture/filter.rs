//! Which frames are captured: a part of the language of pcap-filter(7).
//!
//! Primitives: `ip`, `ip6`, `arp`, `icmp`, `tcp`, `udp`; `[src|dst] host A`, `[src|dst] net A/LEN`, `[src|dst] port N`,
//! `[src|dst] portrange N-M`, each also behind `tcp`, `udp`, `ip` or `arp`; `less N`, `greater N` (bytes of the frame).
//! They are joined by `and` (`&&`), `or` (`||`) and `not` (`!`) with parentheses; `not` binds tightest, the others
//! equally and from left to right, as there.

use core::net::Ipv4Addr;

use crate::device::frame::LINK_HEADER_BYTES;
use crate::expression::{Expression, Term, Words};

/// A checked expression.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Filter(Option<Expression<Node>>);

#[derive(Clone, PartialEq, Eq, Debug)]
enum Node {
    /// An Ethernet type.
    Link(u16),
    /// A protocol of IPv4.
    Protocol(u8),
    /// An address inside a network given as address and mask.
    Net(Side, u32, u32),
    /// A port between two.
    Port(Side, u16, u16),
    Less(usize),
    Greater(usize),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Side {
    Source,
    Destination,
    Either,
}

/// What a filter looks at.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Parts {
    bytes: usize,
    link: u16,
    protocol: Option<u8>,
    addresses: Option<(u32, u32)>,
    ports: Option<(u16, u16)>,
}

const IPV4: u16 = 0x0800;
const ARP: u16 = 0x0806;
const IPV6: u16 = 0x86dd;
const VLAN: u16 = 0x8100;
const ICMP: u8 = 1;
const TCP: u8 = 6;
const UDP: u8 = 17;

impl Filter {
    /// The filter that admits everything.
    #[must_use]
    pub const fn all() -> Self {
        Self(None)
    }

    /// Reads an expression; an empty one admits everything.
    ///
    /// # Errors
    /// A line that says what is wrong.
    pub fn parse(text: &str) -> Result<Self, String> {
        Expression::parse(&mut Words::of(text)?).map(Self)
    }

    /// Whether the frame, from its MAC addresses on, is wanted.
    #[must_use]
    pub fn admits(&self, frame: &[u8]) -> bool {
        self.0
            .as_ref()
            .is_none_or(|filter| admits(filter, &Parts::of(frame)))
    }
}

fn admits(filter: &Expression<Node>, parts: &Parts) -> bool {
    filter.holds(&|node| node.admits(parts))
}

impl Term for Node {
    const SIDE_BY_SIDE: bool = false;

    fn parse(words: &mut Words) -> Result<Expression<Self>, String> {
        let protocol = match words.first() {
            Some("ip") => Some(Self::Link(IPV4)),
            Some("ip6") => Some(Self::Link(IPV6)),
            Some("arp") => Some(Self::Link(ARP)),
            Some("icmp") => Some(Self::Protocol(ICMP)),
            Some("tcp") => Some(Self::Protocol(TCP)),
            Some("udp") => Some(Self::Protocol(UDP)),
            _ => None,
        };
        let Some(protocol) = protocol.map(Expression::Is) else {
            return Self::qualified(words).map(Expression::Is);
        };
        words.next();
        let goes_on = ["src", "dst", "host", "net", "port", "portrange"];
        if words.first().is_some_and(|word| goes_on.contains(&word)) {
            let qualified = Expression::Is(Self::qualified(words)?);
            return Ok(Expression::And(Box::new(protocol), Box::new(qualified)));
        }
        Ok(protocol)
    }
}

impl Node {
    fn qualified(words: &mut Words) -> Result<Self, String> {
        let mut word = words.next().unwrap_or_default();
        let side = match word.as_str() {
            "src" => Side::Source,
            "dst" => Side::Destination,
            _ => Side::Either,
        };
        if side != Side::Either {
            word = words
                .next()
                .ok_or("src and dst want host, net, port or portrange")?;
        }
        match word.as_str() {
            "host" => {
                let text = words.value(&word)?;
                let address: Ipv4Addr = text
                    .parse()
                    .map_err(|_| format!("{text} is no IPv4 address"))?;
                Ok(Self::Net(side, address.to_bits(), u32::MAX))
            }
            "net" => {
                let text = words.value(&word)?;
                let bad = || format!("{text} is no network: ADDRESS/LENGTH");
                let (address, len) = text.split_once('/').ok_or_else(bad)?;
                let address: Ipv4Addr = address.parse().map_err(|_| bad())?;
                let len: u32 = len.parse().ok().filter(|len| *len <= 32).ok_or_else(bad)?;
                let mask = u32::MAX.checked_shl(32 - len).unwrap_or(0);
                if address.to_bits() & !mask != 0 {
                    return Err(format!("{text} has bits behind its length"));
                }
                Ok(Self::Net(side, address.to_bits(), mask))
            }
            "port" => {
                let text = words.value(&word)?;
                let port = text.parse().map_err(|_| format!("{text} is no port"))?;
                Ok(Self::Port(side, port, port))
            }
            "portrange" => {
                let text = words.value(&word)?;
                let bad = || format!("{text} is no range of ports: FIRST-LAST");
                let (first, last) = text.split_once('-').ok_or_else(bad)?;
                let (first, last) = (
                    first.parse().map_err(|_| bad())?,
                    last.parse().map_err(|_| bad())?,
                );
                Ok(Self::Port(side, first, last))
            }
            "less" | "greater" if side == Side::Either => {
                let text = words.value(&word)?;
                let bytes = text
                    .parse()
                    .map_err(|_| format!("{text} is no number of bytes"))?;
                Ok(if word == "less" {
                    Self::Less(bytes)
                } else {
                    Self::Greater(bytes)
                })
            }
            other => Err(format!(
                "{other}: a filter is made of ip, ip6, arp, icmp, tcp, udp, src, dst, host, net, port, portrange, less, greater, and, or, not"
            )),
        }
    }

    fn admits(&self, parts: &Parts) -> bool {
        match self {
            Self::Link(link) => parts.link == *link,
            Self::Protocol(protocol) => parts.protocol == Some(*protocol),
            Self::Net(side, address, mask) => parts
                .addresses
                .is_some_and(|ends| side.of(ends, |end| (end ^ address) & mask == 0)),
            Self::Port(side, first, last) => parts
                .ports
                .is_some_and(|ends| side.of(ends, |port| (*first..=*last).contains(&port))),
            Self::Less(bytes) => parts.bytes <= *bytes,
            Self::Greater(bytes) => parts.bytes >= *bytes,
        }
    }
}

impl Side {
    fn of<T: Copy>(self, (source, destination): (T, T), is: impl Fn(T) -> bool) -> bool {
        match self {
            Self::Source => is(source),
            Self::Destination => is(destination),
            Self::Either => is(source) || is(destination),
        }
    }
}

impl Parts {
    fn of(frame: &[u8]) -> Self {
        let mut parts = Self {
            bytes: frame.len(),
            link: word(frame, 12).unwrap_or(0),
            ..Self::default()
        };
        let mut at = LINK_HEADER_BYTES - 4;
        if parts.link == VLAN {
            parts.link = word(frame, 16).unwrap_or(0);
            at = LINK_HEADER_BYTES;
        }
        let packet = frame.get(at..).unwrap_or_default();
        match parts.link {
            IPV4 => parts.ipv4(packet),
            // RFC 826: the protocol addresses of sender and target.
            ARP => parts.addresses = double(packet, 14).zip(double(packet, 24)),
            _ => {}
        }
        parts
    }

    fn ipv4(&mut self, packet: &[u8]) {
        self.protocol = packet.get(9).copied();
        self.addresses = double(packet, 12).zip(double(packet, 16));
        let header = usize::from(packet.first().copied().unwrap_or(0) & 0xf) * 4;
        let is_first = word(packet, 6).is_some_and(|fragment| fragment & 0x1fff == 0);
        if is_first && matches!(self.protocol, Some(TCP | UDP)) {
            self.ports = word(packet, header).zip(word(packet, header + 2));
        }
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u16> {
    let bytes = bytes.get(at..at.checked_add(2)?)?;
    Some(u16::from_be_bytes(bytes.try_into().ok()?))
}

fn double(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_be_bytes(bytes.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A TCP segment from 10.0.0.1:1000 to 10.0.9.2:80.
    fn segment(vlan: bool) -> Vec<u8> {
        let mut frame = vec![2; 12];
        if vlan {
            frame.extend([0x81, 0x00, 0x00, 0x07]);
        }
        frame.extend([0x08, 0x00]);
        frame.extend([
            0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, TCP, 0, 0, 10, 0, 0, 1, 10, 0, 9, 2,
        ]);
        frame.extend([0x03, 0xe8, 0x00, 0x50]);
        frame.extend([0; 16]);
        frame
    }

    fn arp() -> Vec<u8> {
        let mut frame = vec![2; 12];
        frame.extend([0x08, 0x06, 0, 1, 8, 0, 6, 4, 0, 1]);
        frame.extend([2, 2, 2, 2, 2, 2, 10, 0, 0, 1]);
        frame.extend([0, 0, 0, 0, 0, 0, 10, 0, 0, 9]);
        frame
    }

    #[track_caller]
    fn admits(text: &str, frame: &[u8]) -> bool {
        Filter::parse(text).unwrap().admits(frame)
    }

    #[test]
    fn expressions_mean_what_they_mean_to_pcap() {
        for vlan in [false, true] {
            let frame = segment(vlan);
            for yes in [
                "",
                "ip",
                "tcp",
                "host 10.0.0.1",
                "src host 10.0.0.1",
                "dst host 10.0.9.2",
                "net 10.0.0.0/8",
                "dst net 10.0.9.0/24",
                "port 80",
                "src port 1000",
                "portrange 70-90",
                "tcp port 80",
                "tcp dst port 80",
                "not udp",
                "!arp&&tcp",
                "udp or tcp",
                "(udp or tcp) and port 80",
                "less 100",
                "greater 20",
                "host 10.0.0.1 and not port 22",
                "udp and udp or tcp",
            ] {
                assert!(admits(yes, &frame), "{yes}");
            }
            for no in [
                "arp",
                "udp",
                "icmp",
                "ip6",
                "host 10.0.0.3",
                "dst host 10.0.0.1",
                "src port 80",
                "udp port 80",
                "port 81",
                "net 11.0.0.0/8",
                "not tcp",
                "tcp and (arp or udp)",
                "greater 200",
                "less 20",
                // From left to right, as in pcap-filter(7).
                "tcp or tcp and udp",
            ] {
                assert!(!admits(no, &frame), "{no}");
            }
        }
        assert!(admits("arp host 10.0.0.9", &arp()) && admits("host 10.0.0.1", &arp()));
        assert!(!admits("ip host 10.0.0.1", &arp()) && !admits("port 1", &arp()));
        let mut fragment = segment(false);
        fragment[21] = 5;
        assert!(!admits("port 80", &fragment) && admits("tcp", &fragment));
    }

    #[test]
    fn what_is_no_expression_is_refused() {
        for bad in [
            "and",
            "tcp and",
            "tcp tcp",
            "host",
            "host x",
            "host 1.2.3",
            "net 10.0.0.1",
            "net 10.0.0.1/8",
            "net 10.0.0.0/33",
            "port 70000",
            "portrange 5",
            "src",
            "src tcp",
            "src less 5",
            "(tcp",
            "tcp)",
            "not",
            "hello",
            "less x",
        ] {
            assert!(Filter::parse(bad).is_err(), "{bad}");
        }
        let deep = "(".repeat(10_000);
        Filter::parse(&deep).unwrap_err();
        let nested = format!("{}tcp{}", "(".repeat(40), ")".repeat(40));
        assert!(Filter::parse(&nested).unwrap_err().contains("nested"));
        Filter::parse(&"not ".repeat(100)).unwrap_err();
    }

    #[test]
    fn a_cut_frame_never_panics() {
        let filter =
            Filter::parse("tcp port 80 or arp host 10.0.0.1 or udp src portrange 1-2").unwrap();
        for whole in [segment(false), segment(true), arp()] {
            for len in 0..whole.len() {
                let _ = filter.admits(&whole[..len]);
            }
        }
    }
}
