//! What is read from a frame, and what a frame is refused for.

mod fuzz;
mod made;
mod wrong;

use made::{Made, OUR_IP, PEER, PEER_IP, rules, wire, with_ip_byte, with_ip_options};

use super::*;
use crate::stack::frame::put_word;
use crate::stack::network::directed_broadcast;
use crate::stack::siphash::siphash;

#[test]
fn a_segment_gives_key_numbers_and_places() {
    let mut made = Made::tcp(0x18, &[2, 4, 5, 0xb4, 1, 3, 3, 7, 4, 2, 1, 1], b"hello");
    made.padding = 3;
    let bytes = made.bytes();
    let Class::Tcp(frame) = wire(&bytes) else {
        panic!("{:?}", wire(&bytes))
    };
    assert_eq!(frame.key.remote, SocketAddrV4::new(PEER_IP, 40_000));
    assert_eq!(frame.key.local, SocketAddrV4::new(OUR_IP, 6_379));
    assert_eq!(
        (frame.seq, frame.ack, frame.window),
        (0x0102_0304, 0x0506_0708, 0x2000)
    );
    assert_eq!((frame.source_mac, frame.tos), (PEER, 0x28));
    assert_eq!(
        (frame.mss, frame.window_scale, frame.sack_permitted),
        (Some(1_460), Some(7), true)
    );
    assert_eq!(frame.ip, 14..bytes.len() - 3);
    assert_eq!((frame.tcp, frame.payload, frame.payload_len), (34, 66, 5));
    assert_eq!(
        &bytes[frame.payload..frame.payload + frame.payload_len],
        b"hello"
    );
    assert_eq!(frame.sequence_len(), 5);
    assert_eq!(frame.key.reversed().reversed(), frame.key);
    assert_eq!(
        frame.key.to_bytes(),
        [10, 77, 0, 1, 10, 77, 0, 2, 0x18, 0xeb, 0x9c, 0x40]
    );
    let secret = [0x5a; 16];
    let hash = siphash(&secret, &frame.key.to_bytes());
    assert_eq!(frame.key.keyed_hash(&secret), hash);
}

#[test]
fn a_datagram_and_an_echo_request_give_their_places() {
    let bytes = Made::udp(b"abc").bytes();
    let Class::Udp(frame) = wire(&bytes) else {
        panic!()
    };
    assert_eq!(
        (&bytes[frame.payload.clone()], frame.broadcast),
        (&b"abc"[..], false)
    );
    assert_eq!((frame.remote.port(), frame.local.port()), (53, 54));
    let bytes = Made::icmp(b"ping").bytes();
    let Class::Icmp(frame) = wire(&bytes) else {
        panic!()
    };
    assert_eq!(
        (frame.message, frame.source, frame.destination),
        (34..46, PEER_IP, OUR_IP)
    );
}

#[test]
fn arp_is_handed_on_whole() {
    let mut bytes = Made::udp(b"").bytes();
    put_word(&mut bytes, 12, ETHERTYPE_ARP).unwrap();
    bytes[..6].fill(0xff);
    assert_eq!(wire(&bytes), Class::Arp(14..bytes.len()));
}

#[test]
fn ip_options_are_stepped_over() {
    let bytes = with_ip_options(Made::tcp(0x10, &[], b"xy").bytes(), &[0x94, 4, 0, 0]);
    let Class::Tcp(frame) = wire(&bytes) else {
        panic!("{:?}", wire(&bytes))
    };
    assert_eq!((frame.tcp, frame.payload, frame.payload_len), (38, 58, 2));
}

#[test]
fn a_udp_broadcast_is_said_to_be_one() {
    for address in [Ipv4Addr::BROADCAST, Ipv4Addr::new(10, 77, 0, 255)] {
        let made = Made {
            destination: address,
            destination_mac: MAC_BROADCAST,
            ..Made::udp(b"x")
        };
        assert!(matches!(
            made.class(),
            Class::Udp(UdpFrame {
                broadcast: true,
                ..
            })
        ));
    }
}

#[test]
fn a_checksum_is_believed_as_the_port_and_the_rules_say() {
    let mut bytes = Made::tcp(0x10, &[], b"data").bytes();
    bytes[54] ^= 1;
    let good = RxMeta {
        checksum_good: true,
        ..RxMeta::default()
    };
    assert!(matches!(classify(&bytes, good, &rules()), Class::Tcp(_)));
    let partial = RxMeta {
        checksum_partial: true,
        ..RxMeta::default()
    };
    assert!(matches!(classify(&bytes, partial, &rules()), Class::Tcp(_)));
    let trusting = Rules {
        trust_checksum: true,
        ..rules()
    };
    // Neither right nor partial.
    assert_eq!(
        classify(&bytes, RxMeta::default(), &trusting),
        Class::Bad(DropReason::TcpChecksum)
    );
    let right = Made::tcp(TcpFlags::SYN.0, &[], b"").bytes();
    assert!(matches!(
        classify(&right, RxMeta::default(), &trusting),
        Class::Tcp(_)
    ));
    let mut half = right.clone();
    let at =
        |n: usize| Ipv4Addr::from_bits(u32::from_be_bytes(right[n..n + 4].try_into().unwrap()));
    let length = u16::try_from(right.len() - 34).unwrap();
    let pseudo = checksum::pseudo_header(at(26), at(30), 6, length);
    put_word(&mut half, 50, pseudo).unwrap();
    assert!(matches!(
        classify(&half, RxMeta::default(), &trusting),
        Class::Tcp(_)
    ));
    assert_eq!(
        classify(&half, RxMeta::default(), &rules()),
        Class::Bad(DropReason::TcpChecksum)
    );
    let bad = RxMeta {
        checksum_bad: true,
        ..RxMeta::default()
    };
    assert_eq!(
        classify(&bytes, bad, &rules()),
        Class::Bad(DropReason::PortChecksum)
    );
    // The IPv4 header's is always looked at.
    bytes[22] ^= 1;
    assert_eq!(
        classify(&bytes, good, &trusting),
        Class::Bad(DropReason::Ipv4Checksum)
    );
}

#[test]
fn a_vlan_is_taken_only_when_it_is_ours() {
    let tagged = Rules {
        vlan: Some(7),
        ..rules()
    };
    let on = |vlan| {
        classify(
            &Made {
                vlan,
                ..Made::tcp(0x10, &[], b"v")
            }
            .bytes(),
            RxMeta::default(),
            &tagged,
        )
    };
    let Class::Tcp(frame) = on(Some(7)) else {
        panic!()
    };
    assert_eq!(
        (frame.ip.start, frame.payload, frame.payload_len),
        (18, 58, 1)
    );
    assert_eq!(on(None), Class::NotOurs(DropReason::OtherVlan));
    assert_eq!(on(Some(8)), Class::NotOurs(DropReason::OtherVlan));
}

#[test]
fn networks_without_a_broadcast_address_have_none() {
    let of = |prefix_len| {
        directed_broadcast(Interface4 {
            address: OUR_IP,
            prefix_len,
        })
    };
    assert_eq!(of(24), Some(Ipv4Addr::new(10, 77, 0, 255)));
    assert_eq!(of(30), Some(Ipv4Addr::new(10, 77, 0, 3)));
    assert_eq!((of(31), of(32), of(200)), (None, None, None));
    assert_eq!(of(0), Some(Ipv4Addr::BROADCAST));
}
