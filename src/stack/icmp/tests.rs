use core::net::Ipv4Addr;

use super::*;
use crate::device::RxMeta;
use crate::seeded::Seeded;
use crate::stack::Interface4;
use crate::stack::demux::{Class, Rules, TcpFlags, classify};
use crate::stack::frame::MAC_BROADCAST;
use crate::stack::segment::ControlSegment;

const US: [u8; 6] = [2, 0, 0, 0, 0, 1];
const PEER: [u8; 6] = [2, 0, 0, 0, 0, 2];
const OUR_IP: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
const PEER_IP: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
const ROUTER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 254);

fn rules(mac: [u8; 6], address: Ipv4Addr) -> Rules {
    Rules {
        mac,
        vlan: None,
        addresses: vec![Interface4 {
            address,
            prefix_len: 24,
        }],
        trust_checksum: false,
    }
}

fn us() -> Rules {
    rules(US, OUR_IP)
}

fn to_peer() -> Link {
    Link {
        source: US,
        destination: PEER,
        vlan: None,
    }
}

/// A frame from `source` to `destination` around `transport`, whose own checksum the caller made.
fn frame(
    source: Ipv4Addr,
    destination: Ipv4Addr,
    mac: [u8; 6],
    protocol: u8,
    transport: &[u8],
) -> Vec<u8> {
    let link = Link {
        source: PEER,
        destination: mac,
        vlan: None,
    };
    let mut bytes = vec![0; 34];
    link.ipv4_header().emit(&mut bytes).unwrap();
    let repr = Ipv4Repr {
        tos: 0x20,
        ttl: 9,
        protocol,
        source,
        destination,
    };
    repr.emit(transport.len(), Checksums::Full, &mut bytes[14..])
        .unwrap();
    bytes.extend_from_slice(transport);
    bytes
}

fn message(kind: u8, code: u8, rest: u32, body: &[u8]) -> Vec<u8> {
    let mut message = vec![kind, code, 0, 0];
    message.extend_from_slice(&rest.to_be_bytes());
    message.extend_from_slice(body);
    let sum = checksum::checksum(&message);
    put_word(&mut message, 2, sum).unwrap();
    message
}

fn icmp_of(bytes: &[u8], rules: &Rules) -> IcmpFrame {
    match classify(bytes, RxMeta::default(), rules) {
        Class::Icmp(icmp) => icmp,
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_echo_request_of_any_size_that_fits_is_answered() {
    for size in [0, 1, 56, 57, 1_471, 1_472, 1_473] {
        let body: Vec<u8> = (0..size).map(|at: usize| at.to_le_bytes()[0]).collect();
        let request = frame(
            PEER_IP,
            OUR_IP,
            US,
            PROTOCOL_ICMP,
            &message(8, 0, 0x1234_0001, &body),
        );
        let icmp = icmp_of(&request, &us());
        let mut out = vec![0xee; 1_600];
        let len = echo_reply(&request, &icmp, 1_500, to_peer(), &mut out);
        assert_eq!(len, echo_reply_bytes(&request, &icmp, 1_500, None));
        if size > 1_472 {
            assert_eq!(len, None);
            continue;
        }
        let len = len.unwrap();
        assert_eq!(len, request.len());
        assert_eq!(
            echo_reply(&request, &icmp, 1_500, to_peer(), &mut out[..len - 1]),
            None
        );
        let answer = icmp_of(&out[..len], &rules(PEER, PEER_IP));
        assert_eq!((answer.source, answer.destination), (OUR_IP, PEER_IP));
        assert_eq!(
            &out[answer.message.clone()],
            message(0, 0, 0x1234_0001, &body)
        );
        assert_eq!(out[15], 0x20, "type of service is given back");
    }
}

#[test]
fn a_broadcast_echo_request_and_other_messages_are_not_answered() {
    let body = [0; 8];
    let broadcast = Ipv4Addr::new(10, 77, 0, 255);
    let cases = [
        frame(
            PEER_IP,
            broadcast,
            MAC_BROADCAST,
            PROTOCOL_ICMP,
            &message(8, 0, 1, &body),
        ),
        frame(PEER_IP, OUR_IP, US, PROTOCOL_ICMP, &message(0, 0, 1, &body)),
        frame(PEER_IP, OUR_IP, US, PROTOCOL_ICMP, &message(8, 1, 1, &body)),
        frame(
            PEER_IP,
            OUR_IP,
            US,
            PROTOCOL_ICMP,
            &message(13, 0, 1, &body),
        ),
    ];
    for request in cases {
        let icmp = icmp_of(&request, &us());
        assert_eq!(
            echo_reply(&request, &icmp, 1_500, to_peer(), &mut [0; 200]),
            None
        );
    }
}

#[test]
fn an_unreachable_port_is_told_with_a_quote_that_the_sender_understands() {
    for (size, quote) in [(0, 28), (100, 128), (1_000, 548)] {
        let mut datagram = vec![0, 53, 0x30, 0x39, 0, 0, 0, 0];
        datagram.resize(8 + size, 0x61);
        let length = u16::try_from(datagram.len()).unwrap();
        put_word(&mut datagram, 4, length).unwrap();
        let bytes = frame(PEER_IP, OUR_IP, US, PROTOCOL_UDP, &datagram);
        let Class::Udp(udp) = classify(&bytes, RxMeta::default(), &us()) else {
            panic!()
        };
        let mut out = vec![0; 1_600];
        let len = port_unreachable(&bytes, &udp, to_peer(), &mut out).unwrap();
        assert_eq!(Some(len), port_unreachable_bytes(&udp, None));
        assert_eq!(len, 14 + 20 + 8 + quote);
        let icmp = icmp_of(&out[..len], &rules(PEER, PEER_IP));
        let error = parse_error(&out[..len], &icmp).unwrap();
        assert_eq!(
            (error.kind, error.transport),
            (IcmpErrorKind::PortUnreachable, Transport::Udp)
        );
        assert_eq!(error.key.local, SocketAddrV4::new(PEER_IP, 53));
        assert_eq!(error.key.remote, SocketAddrV4::new(OUR_IP, 12_345));
        let broadcast = UdpFrame {
            broadcast: true,
            ..udp
        };
        assert_eq!(
            port_unreachable(&bytes, &broadcast, to_peer(), &mut out),
            None
        );
    }
}

/// The IP packet of a segment that we sent to the peer.
fn our_segment() -> Vec<u8> {
    let key = FlowKey {
        local: SocketAddrV4::new(OUR_IP, 40_000),
        remote: SocketAddrV4::new(PEER_IP, 80),
    };
    let mut out = [0; 54];
    let segment = ControlSegment {
        flags: TcpFlags::SYN,
        ..ControlSegment::acknowledge(key, 0xabcd_ef01, 0, 9)
    };
    segment.emit(to_peer(), Checksums::Full, &mut out).unwrap();
    out[14..].to_vec()
}

fn error_from_router(kind: u8, code: u8, rest: u32, quote: &[u8]) -> Option<IcmpError> {
    let bytes = frame(
        ROUTER,
        OUR_IP,
        US,
        PROTOCOL_ICMP,
        &message(kind, code, rest, quote),
    );
    parse_error(&bytes, &icmp_of(&bytes, &us()))
}

#[test]
fn each_error_is_told_apart() {
    use IcmpErrorKind as K;
    let cases = [
        (3, 0, 0, Some((K::NetUnreachable, Errno::NETUNREACH, false))),
        (
            3,
            1,
            0,
            Some((K::HostUnreachable, Errno::HOSTUNREACH, false)),
        ),
        (
            3,
            2,
            0,
            Some((K::ProtocolUnreachable, Errno::NOPROTOOPT, true)),
        ),
        (
            3,
            3,
            0,
            Some((K::PortUnreachable, Errno::CONNREFUSED, true)),
        ),
        (
            3,
            4,
            1_400,
            Some((K::FragmentationNeeded(1_400), Errno::MSGSIZE, false)),
        ),
        (
            3,
            4,
            10,
            Some((K::FragmentationNeeded(68), Errno::MSGSIZE, false)),
        ),
        (
            3,
            9,
            0,
            Some((K::AdminProhibited, Errno::HOSTUNREACH, false)),
        ),
        (
            3,
            13,
            0,
            Some((K::AdminProhibited, Errno::HOSTUNREACH, false)),
        ),
        (3, 16, 0, None),
        (11, 0, 0, Some((K::TimeExceeded, Errno::HOSTUNREACH, false))),
        (12, 0, 0, Some((K::ParameterProblem, Errno::PROTO, false))),
        (4, 0, 0, None),
        (5, 1, 0, None),
        (8, 0, 0, None),
    ];
    for (kind, code, rest, expected) in cases {
        let error = error_from_router(kind, code, rest, &our_segment()[..28]);
        let told = error.map(|error| (error.kind, error.kind.errno(), error.kind.is_hard()));
        assert_eq!(told, expected, "type {kind} code {code}");
        if let Some(error) = error {
            assert_eq!((error.seq, error.transport), (0xabcd_ef01, Transport::Tcp));
            assert_eq!(error.key.local, SocketAddrV4::new(OUR_IP, 40_000));
            assert_eq!(error.key.remote, SocketAddrV4::new(PEER_IP, 80));
        }
    }
}

#[test]
fn a_router_that_states_no_mtu_means_the_next_plateau() {
    for (packet_bytes, mtu) in [
        (9_000, 8_166),
        (1_500, 1_492),
        (1_492, 1_006),
        (69, 68),
        (40, 68),
    ] {
        assert_eq!(next_mtu(0, packet_bytes), mtu, "{packet_bytes}");
    }
}

#[test]
fn a_quote_of_what_we_cannot_have_sent_is_refused() {
    let good = our_segment();
    assert!(error_from_router(3, 1, 0, &good).is_some());
    let with = |at: usize, value: u8| {
        let mut quote = good.clone();
        quote[at] = value;
        error_from_router(3, 1, 0, &quote)
    };
    assert_eq!(with(12, 99), None, "another source");
    assert_eq!(with(0, 0x65), None, "version 6");
    assert_eq!(with(0, 0x4f), None, "options beyond the quote");
    assert_eq!(with(7, 1), None, "a later fragment");
    assert_eq!(with(9, 47), None, "another protocol");
    assert_eq!(error_from_router(3, 1, 0, &good[..27]), None, "too short");
    assert_eq!(error_from_router(3, 1, 0, &[]), None, "no quote");
}

#[test]
fn random_messages_are_read_or_refused() {
    let mut random = Seeded::new(31);
    let mut read = 0;
    for _ in 0..100_000 {
        let mut quote = our_segment();
        for _ in 0..random.below(3) {
            let at = random.below(quote.len());
            quote[at] = random.byte();
        }
        quote.truncate(random.below(41));
        let kind = [3, 3, 11, 12, 8, random.byte()][random.below(6)];
        let body = message(
            kind,
            u8::try_from(random.below(18)).unwrap(),
            random.double(),
            &quote,
        );
        let bytes = frame(ROUTER, OUR_IP, US, PROTOCOL_ICMP, &body);
        let icmp = icmp_of(&bytes, &us());
        read += u32::from(parse_error(&bytes, &icmp).is_some());
        let mut out = vec![0; random.below(120)];
        if let Some(len) = echo_reply(&bytes, &icmp, 1_500, to_peer(), &mut out) {
            assert!(len <= out.len());
        }
        // A caller that mixes up frames gets nothing worse than None or a refused length.
        let cut = &bytes[..random.below(bytes.len())];
        assert!(parse_error(cut, &icmp).is_none() || icmp.message.end <= cut.len());
    }
    assert!(read > 1_000, "{read}");
}
