//! Which frames are captured: a part of the language of pcap-filter(7).
//!
//! Primitives: `ip`, `ip6`, `arp`, `icmp`, `tcp`, `udp`; `[src|dst] host A`, `[src|dst] net A/LEN`, `[src|dst] port N`,
//! `[src|dst] portrange N-M`, each also behind `tcp`, `udp`, `ip` or `arp`; `less N`, `greater N` (bytes of the frame).
//! They are joined by `and` (`&&`), `or` (`||`) and `not` (`!`) with parentheses; `not` binds tightest, the others
//! equally and from left to right, as there.

use core::net::Ipv4Addr;

use crate::device::frame::LINK_HEADER_BYTES;

/// Words of an expression at most.
const WORDS_MAX: usize = 256;
/// Parentheses within each other at most, so that a turn's work is bounded.
const DEPTH_MAX: usize = 32;

/// A checked expression.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Filter(Option<Node>);

#[derive(Clone, PartialEq, Eq, Debug)]
enum Node {
    Not(Box<Self>),
    And(Box<Self>, Box<Self>),
    Or(Box<Self>, Box<Self>),
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
        let words = words(text);
        if words.is_empty() {
            return Ok(Self::all());
        }
        if words.len() > WORDS_MAX {
            return Err(format!("the filter has more than {WORDS_MAX} words"));
        }
        let mut parser = Parser {
            words: &words,
            depth: 0,
        };
        let node = parser.expression()?;
        match parser.words.first() {
            None => Ok(Self(Some(node))),
            Some(word) => Err(format!("the filter goes on where it should end: {word}")),
        }
    }

    /// Whether the frame, from its MAC addresses on, is wanted.
    #[must_use]
    pub fn admits(&self, frame: &[u8]) -> bool {
        self.0
            .as_ref()
            .is_none_or(|node| node.admits(&Parts::of(frame)))
    }
}

/// Words, with the signs that need no blanks around them.
fn words(text: &str) -> Vec<String> {
    let mut spaced = text.replace('(', " ( ").replace(')', " ) ");
    spaced = spaced
        .replace("&&", " and ")
        .replace("||", " or ")
        .replace('!', " not ");
    spaced.split_whitespace().map(str::to_owned).collect()
}

struct Parser<'a> {
    words: &'a [String],
    depth: usize,
}

impl<'a> Parser<'a> {
    fn next(&mut self) -> Option<&'a str> {
        let (first, rest) = self.words.split_first()?;
        self.words = rest;
        Some(first)
    }

    fn take(&mut self, wanted: &str) -> bool {
        let is = self.words.first().is_some_and(|word| word == wanted);
        if is {
            self.next();
        }
        is
    }

    fn expression(&mut self) -> Result<Node, String> {
        let mut node = self.factor()?;
        loop {
            if self.take("and") {
                node = Node::And(Box::new(node), Box::new(self.factor()?));
            } else if self.take("or") {
                node = Node::Or(Box::new(node), Box::new(self.factor()?));
            } else {
                return Ok(node);
            }
        }
    }

    fn factor(&mut self) -> Result<Node, String> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(format!("the filter is nested deeper than {DEPTH_MAX}"));
        }
        let node = if self.take("not") {
            Node::Not(Box::new(self.factor()?))
        } else if self.take("(") {
            let inner = self.expression()?;
            if !self.take(")") {
                return Err("a parenthesis is not closed".to_owned());
            }
            inner
        } else {
            self.primitive()?
        };
        self.depth -= 1;
        Ok(node)
    }

    fn primitive(&mut self) -> Result<Node, String> {
        let Some(first) = self.words.first().map(String::as_str) else {
            return Err("the filter ends where a word should follow".to_owned());
        };
        let protocol = match first {
            "ip" => Some(Node::Link(IPV4)),
            "ip6" => Some(Node::Link(IPV6)),
            "arp" => Some(Node::Link(ARP)),
            "icmp" => Some(Node::Protocol(ICMP)),
            "tcp" => Some(Node::Protocol(TCP)),
            "udp" => Some(Node::Protocol(UDP)),
            _ => None,
        };
        let Some(protocol) = protocol else {
            return self.qualified();
        };
        self.next();
        let goes_on = ["src", "dst", "host", "net", "port", "portrange"];
        if self
            .words
            .first()
            .is_some_and(|word| goes_on.contains(&word.as_str()))
        {
            return Ok(Node::And(Box::new(protocol), Box::new(self.qualified()?)));
        }
        Ok(protocol)
    }

    fn qualified(&mut self) -> Result<Node, String> {
        let mut word = self.next().unwrap_or_default();
        let side = match word {
            "src" => Side::Source,
            "dst" => Side::Destination,
            _ => Side::Either,
        };
        if side != Side::Either {
            word = self
                .next()
                .ok_or("src and dst want host, net, port or portrange")?;
        }
        let mut value = || self.next().ok_or_else(|| format!("{word} wants a value"));
        match word {
            "host" => {
                let text = value()?;
                let address: Ipv4Addr = text
                    .parse()
                    .map_err(|_| format!("{text} is no IPv4 address"))?;
                Ok(Node::Net(side, address.to_bits(), u32::MAX))
            }
            "net" => {
                let text = value()?;
                let bad = || format!("{text} is no network: ADDRESS/LENGTH");
                let (address, len) = text.split_once('/').ok_or_else(bad)?;
                let address: Ipv4Addr = address.parse().map_err(|_| bad())?;
                let len: u32 = len.parse().ok().filter(|len| *len <= 32).ok_or_else(bad)?;
                let mask = u32::MAX.checked_shl(32 - len).unwrap_or(0);
                if address.to_bits() & !mask != 0 {
                    return Err(format!("{text} has bits behind its length"));
                }
                Ok(Node::Net(side, address.to_bits(), mask))
            }
            "port" => {
                let text = value()?;
                let port = text.parse().map_err(|_| format!("{text} is no port"))?;
                Ok(Node::Port(side, port, port))
            }
            "portrange" => {
                let text = value()?;
                let bad = || format!("{text} is no range of ports: FIRST-LAST");
                let (first, last) = text.split_once('-').ok_or_else(bad)?;
                let (first, last) = (
                    first.parse().map_err(|_| bad())?,
                    last.parse().map_err(|_| bad())?,
                );
                Ok(Node::Port(side, first, last))
            }
            "less" | "greater" if side == Side::Either => {
                let text = value()?;
                let bytes = text
                    .parse()
                    .map_err(|_| format!("{text} is no number of bytes"))?;
                Ok(if word == "less" {
                    Node::Less(bytes)
                } else {
                    Node::Greater(bytes)
                })
            }
            other => Err(format!(
                "{other}: a filter is made of ip, ip6, arp, icmp, tcp, udp, src, dst, host, net, port, portrange, less, greater, and, or, not"
            )),
        }
    }
}

impl Node {
    fn admits(&self, parts: &Parts) -> bool {
        match self {
            Self::Not(node) => !node.admits(parts),
            Self::And(one, other) => one.admits(parts) && other.admits(parts),
            Self::Or(one, other) => one.admits(parts) || other.admits(parts),
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
