//! Frames that are refused, and why.

use DropReason as D;

use super::*;
use crate::stack::counters::StackCounters;

/// The frame called `name` is refused for `reason`.
#[track_caller]
fn bad(name: &str, bytes: Vec<u8>, reason: DropReason) {
    assert_eq!(wire(&bytes), Class::Bad(reason), "{name}");
}

/// The frame called `name` is for somebody else, by `reason`.
#[track_caller]
fn not_ours(name: &str, bytes: Vec<u8>, reason: DropReason) {
    assert_eq!(wire(&bytes), Class::NotOurs(reason), "{name}");
}

fn tcp() -> Made {
    Made::tcp(0x10, &[], b"data")
}

fn flags(flags: u8) -> Vec<u8> {
    Made::tcp(flags, &[], &[]).bytes()
}

fn options(options: &[u8]) -> Vec<u8> {
    Made::tcp(0x10, options, &[]).bytes()
}

fn cut(bytes: Vec<u8>, len: usize) -> Vec<u8> {
    bytes[..len].to_vec()
}

fn flipped(mut bytes: Vec<u8>, at: usize) -> Vec<u8> {
    bytes[at] ^= 0x40;
    bytes
}

const MULTICAST: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 1);

#[test]
fn each_wrong_ethernet_header_has_its_reason() {
    bad("no bytes", vec![], D::EthernetTruncated);
    bad("13 bytes", cut(tcp().bytes(), 13), D::EthernetTruncated);
    not_ours(
        "other mac",
        tcp().but(|it| it.destination_mac = PEER),
        D::OtherMac,
    );
    bad(
        "group source",
        tcp().but(|it| it.source_mac = MAC_BROADCAST),
        D::SourceMac,
    );
    bad(
        "zero source",
        tcp().but(|it| it.source_mac = [0; 6]),
        D::SourceMac,
    );
    not_ours("tagged", tcp().but(|it| it.vlan = Some(7)), D::OtherVlan);
    not_ours(
        "ipv6",
        flipped(flipped(tcp().bytes(), 12), 13),
        D::EtherType,
    );
    bad(
        "link udp",
        Made::udp(b"").but(|it| it.destination_mac = MAC_BROADCAST),
        D::LinkBroadcast,
    );
    bad(
        "group broadcast",
        Made::udp(b"").but(|it| {
            it.destination_mac = [1, 0, 0x5e, 0, 0, 1];
            it.destination = Ipv4Addr::BROADCAST;
        }),
        D::LinkBroadcast,
    );
}

#[test]
fn each_wrong_ipv4_header_has_its_reason() {
    bad("no header", cut(tcp().bytes(), 14), D::Ipv4Truncated);
    bad("half header", cut(tcp().bytes(), 33), D::Ipv4Truncated);
    bad(
        "version 6",
        with_ip_byte(tcp().bytes(), 0, 0x65),
        D::Ipv4Version,
    );
    bad(
        "ihl 4",
        with_ip_byte(tcp().bytes(), 0, 0x44),
        D::Ipv4HeaderLength,
    );
    bad(
        "total above",
        with_ip_byte(tcp().bytes(), 3, 0xff),
        D::Ipv4TotalLength,
    );
    bad(
        "total below",
        with_ip_byte(tcp().bytes(), 3, 0x10),
        D::Ipv4TotalLength,
    );
    bad("cut payload", cut(tcp().bytes(), 55), D::Ipv4TotalLength);
    bad("ip checksum", flipped(tcp().bytes(), 22), D::Ipv4Checksum);
    bad(
        "option length 0",
        with_ip_options(tcp().bytes(), &[7, 0, 0, 0]),
        D::Ipv4Options,
    );
    bad(
        "option too long",
        with_ip_options(tcp().bytes(), &[7, 5, 0, 0]),
        D::Ipv4Options,
    );
    bad(
        "lsrr",
        with_ip_options(tcp().bytes(), &[131, 3, 4, 0]),
        D::SourceRoute,
    );
    bad(
        "ssrr",
        with_ip_options(tcp().bytes(), &[1, 137, 3, 4]),
        D::SourceRoute,
    );
    bad(
        "more fragments",
        with_ip_byte(tcp().bytes(), 6, 0x20),
        D::Fragment,
    );
    bad(
        "fragment offset",
        with_ip_byte(tcp().bytes(), 7, 1),
        D::Fragment,
    );
    for source in [
        Ipv4Addr::UNSPECIFIED,
        Ipv4Addr::BROADCAST,
        Ipv4Addr::new(10, 77, 0, 255),
        MULTICAST,
        Ipv4Addr::LOCALHOST,
    ] {
        let bytes = tcp().but(|it| it.source = source);
        bad(&format!("source {source}"), bytes, D::Source);
    }
    bad(
        "source ours",
        tcp().but(|it| it.source = OUR_IP),
        D::SourceOurs,
    );
    not_ours(
        "other ip",
        tcp().but(|it| it.destination = PEER_IP),
        D::OtherAddress,
    );
    not_ours(
        "multicast udp",
        Made::udp(b"").but(|it| it.destination = MULTICAST),
        D::Multicast,
    );
    not_ours("protocol", tcp().but(|it| it.protocol = 47), D::Protocol);
}

#[test]
fn each_wrong_segment_has_its_reason() {
    for destination in [MULTICAST, Ipv4Addr::BROADCAST] {
        let bytes = tcp().but(|it| it.destination = destination);
        bad(&format!("to {destination}"), bytes, D::TcpBroadcast);
    }
    bad(
        "link tcp",
        tcp().but(|it| it.destination_mac = MAC_BROADCAST),
        D::TcpBroadcast,
    );
    bad(
        "tcp short",
        tcp().but(|it| it.transport = vec![0; 19]),
        D::TcpTruncated,
    );
    bad(
        "tcp offset 4",
        tcp().but(|it| {
            it.transport = [&[1; 12][..], &[0x40; 8]].concat();
        }),
        D::TcpTruncated,
    );
    bad(
        "tcp offset 15",
        tcp().but(|it| {
            it.transport = [&[1; 12][..], &[0xf0; 8]].concat();
        }),
        D::TcpTruncated,
    );
    bad("tcp checksum", flipped(tcp().bytes(), 54), D::TcpChecksum);
    bad("no flags", flags(0), D::TcpFlagsNone);
    bad("only ecn flags", flags(0xc0), D::TcpFlagsNone);
    bad("all flags", flags(0x3f), D::TcpFlagsAll);
    bad("all eight", flags(0xff), D::TcpFlagsAll);
    bad("syn fin", flags(0x03), D::TcpFlagsSynFin);
    bad("syn rst", flags(0x16), D::TcpFlagsSynRst);
    bad("option length 0", options(&[8, 0, 0, 0]), D::TcpOptions);
    bad("option length 1", options(&[1, 1, 8, 1]), D::TcpOptions);
    bad("option beyond", options(&[8, 10, 0, 0]), D::TcpOptions);
    bad("option cut", options(&[1, 1, 1, 8]), D::TcpOptions);
    bad("mss length 3", options(&[2, 3, 0, 0]), D::TcpOptions);
}

#[test]
fn each_wrong_datagram_and_message_has_its_reason() {
    bad(
        "udp short",
        Made::udp(b"").but(|it| it.transport = vec![1; 7]),
        D::UdpTruncated,
    );
    bad(
        "udp length 7",
        Made::udp(b"").but(|it| it.transport = vec![1, 1, 1, 1, 0, 7, 0, 0]),
        D::UdpTruncated,
    );
    bad(
        "udp length 9",
        Made::udp(b"").but(|it| it.transport = vec![1, 1, 1, 1, 0, 9, 0, 0]),
        D::UdpTruncated,
    );
    bad(
        "udp checksum",
        flipped(Made::udp(b"xx").bytes(), 42),
        D::UdpChecksum,
    );
    bad(
        "icmp short",
        Made::icmp(b"").but(|it| it.transport = vec![8; 7]),
        D::IcmpTruncated,
    );
    bad(
        "icmp checksum",
        flipped(Made::icmp(b"xx").bytes(), 42),
        D::IcmpChecksum,
    );
}

#[test]
fn port_zero_is_refused() {
    for at in [0, 2] {
        let mut made = Made::tcp(0x02, &[], &[]);
        made.transport[at..at + 2].fill(0);
        assert_eq!(made.class(), Class::Bad(DropReason::PortZero));
    }
}

#[test]
fn a_land_frame_is_refused_unless_we_looped_it() {
    let mut made = Made {
        source: OUR_IP,
        ..Made::tcp(0x02, &[], &[])
    };
    let source = [made.transport[2], made.transport[3]];
    made.transport[..2].copy_from_slice(&source);
    assert_eq!(made.class(), Class::Bad(DropReason::Land));
    let mut bytes = made.bytes();
    // A loop need not fill in checksums.
    put_word(&mut bytes, 24, 0).unwrap();
    put_word(&mut bytes, 50, 0).unwrap();
    assert!(matches!(classify_looped(&bytes, &rules()), Class::Tcp(_)));
}

#[test]
fn every_reason_has_a_counter_of_its_own() {
    let counters = StackCounters::new();
    let mut names = std::collections::BTreeSet::new();
    for reason in DropReason::ALL {
        assert!(names.insert(reason.name()), "{}", reason.name());
        reason.counter(&counters).raise();
    }
    let mut raised = std::collections::BTreeSet::new();
    counters.for_each(|name, value| {
        assert!(value <= 1, "{name}");
        if value == 1 {
            raised.insert(name);
        }
        assert_eq!(name.starts_with("rx_dropped_"), value == 1, "{name}");
    });
    assert_eq!(names, raised);
}
