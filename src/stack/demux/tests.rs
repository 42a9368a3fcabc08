use super::*;
use crate::seeded::Seeded;
use crate::stack::counters::StackCounters;
use crate::stack::frame::{Checksums, Ipv4Repr, put_word};
use crate::stack::network::directed_broadcast;

const US: [u8; 6] = [2, 0, 0, 0, 0, 1];
const PEER: [u8; 6] = [2, 0, 0, 0, 0, 2];
const OUR_IP: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
const PEER_IP: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);

fn rules() -> Rules {
    Rules {
        mac: US,
        vlan: None,
        addresses: vec![Interface4 {
            address: OUR_IP,
            prefix_len: 24,
        }],
        trust_checksum: false,
    }
}

/// A frame to us, with right checksums.
#[derive(Clone)]
struct Made {
    destination_mac: [u8; 6],
    source_mac: [u8; 6],
    vlan: Option<u16>,
    source: Ipv4Addr,
    destination: Ipv4Addr,
    protocol: u8,
    transport: Vec<u8>,
    padding: usize,
}

impl Made {
    fn tcp(flags: u8, options: &[u8], payload: &[u8]) -> Self {
        let offset = u8::try_from((20 + options.len()) / 4).unwrap() << 4;
        let mut transport = vec![
            0x9c, 0x40, 0x18, 0xeb, 1, 2, 3, 4, 5, 6, 7, 8, offset, flags, 0x20, 0, 0, 0, 0, 0,
        ];
        transport.extend_from_slice(options);
        transport.extend_from_slice(payload);
        Self {
            destination_mac: US,
            source_mac: PEER,
            vlan: None,
            source: PEER_IP,
            destination: OUR_IP,
            protocol: PROTOCOL_TCP,
            transport,
            padding: 0,
        }
    }

    fn udp(payload: &[u8]) -> Self {
        let len = u16::try_from(8 + payload.len()).unwrap().to_be_bytes();
        let mut transport = vec![0, 53, 0, 54, len[0], len[1], 0, 0];
        transport.extend_from_slice(payload);
        Self {
            protocol: PROTOCOL_UDP,
            transport,
            ..Self::tcp(0, &[], &[])
        }
    }

    fn icmp(payload: &[u8]) -> Self {
        let mut transport = vec![8, 0, 0, 0, 0, 1, 0, 2];
        transport.extend_from_slice(payload);
        Self {
            protocol: PROTOCOL_ICMP,
            transport,
            ..Self::tcp(0, &[], &[])
        }
    }

    fn bytes(&self) -> Vec<u8> {
        let mut transport = self.transport.clone();
        let (at, pseudo) = match self.protocol {
            PROTOCOL_TCP => (Some(16), true),
            PROTOCOL_UDP => (Some(6), true),
            PROTOCOL_ICMP => (Some(2), false),
            _ => (None, false),
        };
        if let Some(at) = at.filter(|at| at + 2 <= transport.len()) {
            let len = u16::try_from(transport.len()).unwrap();
            let mut total = checksum::sum(&transport);
            if pseudo {
                let header =
                    checksum::pseudo_header(self.source, self.destination, self.protocol, len);
                total = checksum::add(total, header);
            }
            put_word(&mut transport, at, !total).unwrap();
        }
        let link = EthernetHeader {
            destination: self.destination_mac,
            source: self.source_mac,
            vlan: self.vlan,
            ether_type: ETHERTYPE_IPV4,
        };
        let offset = EthernetHeader::bytes_for(self.vlan);
        let mut bytes = vec![0; offset + 20];
        link.emit(&mut bytes).unwrap();
        let repr = Ipv4Repr {
            tos: 0x28,
            ttl: 64,
            protocol: self.protocol,
            source: self.source,
            destination: self.destination,
        };
        repr.emit(transport.len(), Checksums::Full, &mut bytes[offset..])
            .unwrap();
        bytes.extend_from_slice(&transport);
        bytes.extend(core::iter::repeat_n(0xaa, self.padding));
        bytes
    }

    fn class(&self) -> Class {
        classify(&self.bytes(), RxMeta::default(), &rules())
    }
}

/// Inserts IPv4 options into an untagged frame and repairs the header.
fn with_ip_options(mut bytes: Vec<u8>, options: &[u8]) -> Vec<u8> {
    assert_eq!(options.len() % 4, 0);
    bytes.splice(34..34, options.iter().copied());
    let header_bytes = 20 + options.len();
    bytes[14] = 0x40 | u8::try_from(header_bytes / 4).unwrap();
    let total = u16::try_from(bytes.len() - 14).unwrap();
    put_word(&mut bytes, 16, total).unwrap();
    put_word(&mut bytes, 24, 0).unwrap();
    let sum = checksum::checksum(&bytes[14..14 + header_bytes]);
    put_word(&mut bytes, 24, sum).unwrap();
    bytes
}

/// Changes bytes of the IPv4 header of an untagged frame and repairs its checksum.
fn with_ip_byte(mut bytes: Vec<u8>, at: usize, value: u8) -> Vec<u8> {
    bytes[14 + at] = value;
    put_word(&mut bytes, 24, 0).unwrap();
    let sum = checksum::checksum(&bytes[14..34]);
    put_word(&mut bytes, 24, sum).unwrap();
    bytes
}

fn wire(bytes: &[u8]) -> Class {
    classify(bytes, RxMeta::default(), &rules())
}

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
fn each_wrong_frame_has_its_reason() {
    use DropReason as D;
    let tcp = || Made::tcp(0x10, &[], b"data");
    let flags = |flags: u8| Made::tcp(flags, &[], &[]).bytes();
    let options = |options: &[u8]| Made::tcp(0x10, options, &[]).bytes();
    let cut = |bytes: Vec<u8>, len: usize| bytes[..len].to_vec();
    let flipped = |mut bytes: Vec<u8>, at: usize| {
        bytes[at] ^= 0x40;
        bytes
    };
    let multicast = Ipv4Addr::new(224, 0, 0, 1);
    let cases: Vec<(&str, Vec<u8>, Class)> = vec![
        ("no bytes", vec![], Class::Bad(D::EthernetTruncated)),
        (
            "13 bytes",
            cut(tcp().bytes(), 13),
            Class::Bad(D::EthernetTruncated),
        ),
        (
            "other mac",
            Made {
                destination_mac: PEER,
                ..tcp()
            }
            .bytes(),
            Class::NotOurs(D::OtherMac),
        ),
        (
            "group source",
            Made {
                source_mac: MAC_BROADCAST,
                ..tcp()
            }
            .bytes(),
            Class::Bad(D::SourceMac),
        ),
        (
            "zero source",
            Made {
                source_mac: [0; 6],
                ..tcp()
            }
            .bytes(),
            Class::Bad(D::SourceMac),
        ),
        (
            "tagged",
            Made {
                vlan: Some(7),
                ..tcp()
            }
            .bytes(),
            Class::NotOurs(D::OtherVlan),
        ),
        (
            "ipv6",
            flipped(flipped(tcp().bytes(), 12), 13),
            Class::NotOurs(D::EtherType),
        ),
        (
            "no header",
            cut(tcp().bytes(), 14),
            Class::Bad(D::Ipv4Truncated),
        ),
        (
            "half header",
            cut(tcp().bytes(), 33),
            Class::Bad(D::Ipv4Truncated),
        ),
        (
            "version 6",
            with_ip_byte(tcp().bytes(), 0, 0x65),
            Class::Bad(D::Ipv4Version),
        ),
        (
            "ihl 4",
            with_ip_byte(tcp().bytes(), 0, 0x44),
            Class::Bad(D::Ipv4HeaderLength),
        ),
        (
            "total above",
            with_ip_byte(tcp().bytes(), 3, 0xff),
            Class::Bad(D::Ipv4TotalLength),
        ),
        (
            "total below",
            with_ip_byte(tcp().bytes(), 3, 0x10),
            Class::Bad(D::Ipv4TotalLength),
        ),
        (
            "cut payload",
            cut(tcp().bytes(), 55),
            Class::Bad(D::Ipv4TotalLength),
        ),
        (
            "ip checksum",
            flipped(tcp().bytes(), 22),
            Class::Bad(D::Ipv4Checksum),
        ),
        (
            "option length 0",
            with_ip_options(tcp().bytes(), &[7, 0, 0, 0]),
            Class::Bad(D::Ipv4Options),
        ),
        (
            "option too long",
            with_ip_options(tcp().bytes(), &[7, 5, 0, 0]),
            Class::Bad(D::Ipv4Options),
        ),
        (
            "lsrr",
            with_ip_options(tcp().bytes(), &[131, 3, 4, 0]),
            Class::Bad(D::SourceRoute),
        ),
        (
            "ssrr",
            with_ip_options(tcp().bytes(), &[1, 137, 3, 4]),
            Class::Bad(D::SourceRoute),
        ),
        (
            "more fragments",
            with_ip_byte(tcp().bytes(), 6, 0x20),
            Class::Bad(D::Fragment),
        ),
        (
            "fragment offset",
            with_ip_byte(tcp().bytes(), 7, 1),
            Class::Bad(D::Fragment),
        ),
        (
            "source zero",
            Made {
                source: Ipv4Addr::UNSPECIFIED,
                ..tcp()
            }
            .bytes(),
            Class::Bad(D::Source),
        ),
        (
            "source broadcast",
            Made {
                source: Ipv4Addr::BROADCAST,
                ..tcp()
            }
            .bytes(),
            Class::Bad(D::Source),
        ),
        (
            "source net",
            Made {
                source: Ipv4Addr::new(10, 77, 0, 255),
                ..tcp()
            }
            .bytes(),
            Class::Bad(D::Source),
        ),
        (
            "source multicast",
            Made {
                source: multicast,
                ..tcp()
            }
            .bytes(),
            Class::Bad(D::Source),
        ),
        (
            "source loopback",
            Made {
                source: Ipv4Addr::LOCALHOST,
                ..tcp()
            }
            .bytes(),
            Class::Bad(D::Source),
        ),
        (
            "source ours",
            Made {
                source: OUR_IP,
                ..tcp()
            }
            .bytes(),
            Class::Bad(D::SourceOurs),
        ),
        (
            "other ip",
            Made {
                destination: PEER_IP,
                ..tcp()
            }
            .bytes(),
            Class::NotOurs(D::OtherAddress),
        ),
        (
            "multicast udp",
            Made {
                destination: multicast,
                ..Made::udp(b"")
            }
            .bytes(),
            Class::NotOurs(D::Multicast),
        ),
        (
            "multicast tcp",
            Made {
                destination: multicast,
                ..tcp()
            }
            .bytes(),
            Class::Bad(D::TcpBroadcast),
        ),
        (
            "broadcast tcp",
            Made {
                destination: Ipv4Addr::BROADCAST,
                ..tcp()
            }
            .bytes(),
            Class::Bad(D::TcpBroadcast),
        ),
        (
            "link tcp",
            Made {
                destination_mac: MAC_BROADCAST,
                ..tcp()
            }
            .bytes(),
            Class::Bad(D::TcpBroadcast),
        ),
        (
            "link udp",
            Made {
                destination_mac: MAC_BROADCAST,
                ..Made::udp(b"")
            }
            .bytes(),
            Class::Bad(D::LinkBroadcast),
        ),
        (
            "group broadcast",
            Made {
                destination_mac: [1, 0, 0x5e, 0, 0, 1],
                destination: Ipv4Addr::BROADCAST,
                ..Made::udp(b"")
            }
            .bytes(),
            Class::Bad(D::LinkBroadcast),
        ),
        (
            "protocol",
            Made {
                protocol: 47,
                ..tcp()
            }
            .bytes(),
            Class::NotOurs(D::Protocol),
        ),
        (
            "tcp short",
            Made {
                transport: vec![0; 19],
                ..tcp()
            }
            .bytes(),
            Class::Bad(D::TcpTruncated),
        ),
        (
            "tcp offset 4",
            Made {
                transport: [&[1; 12][..], &[0x40; 8]].concat(),
                ..tcp()
            }
            .bytes(),
            Class::Bad(D::TcpTruncated),
        ),
        (
            "tcp offset 15",
            Made {
                transport: [&[1; 12][..], &[0xf0; 8]].concat(),
                ..tcp()
            }
            .bytes(),
            Class::Bad(D::TcpTruncated),
        ),
        (
            "tcp checksum",
            flipped(tcp().bytes(), 54),
            Class::Bad(D::TcpChecksum),
        ),
        ("no flags", flags(0), Class::Bad(D::TcpFlagsNone)),
        ("only ecn flags", flags(0xc0), Class::Bad(D::TcpFlagsNone)),
        ("all flags", flags(0x3f), Class::Bad(D::TcpFlagsAll)),
        ("all eight", flags(0xff), Class::Bad(D::TcpFlagsAll)),
        ("syn fin", flags(0x03), Class::Bad(D::TcpFlagsSynFin)),
        ("syn rst", flags(0x16), Class::Bad(D::TcpFlagsSynRst)),
        (
            "option length 0",
            options(&[8, 0, 0, 0]),
            Class::Bad(D::TcpOptions),
        ),
        (
            "option length 1",
            options(&[1, 1, 8, 1]),
            Class::Bad(D::TcpOptions),
        ),
        (
            "option beyond",
            options(&[8, 10, 0, 0]),
            Class::Bad(D::TcpOptions),
        ),
        (
            "option cut",
            options(&[1, 1, 1, 8]),
            Class::Bad(D::TcpOptions),
        ),
        (
            "mss length 3",
            options(&[2, 3, 0, 0]),
            Class::Bad(D::TcpOptions),
        ),
        (
            "udp short",
            Made {
                transport: vec![1; 7],
                ..Made::udp(b"")
            }
            .bytes(),
            Class::Bad(D::UdpTruncated),
        ),
        (
            "udp length 7",
            Made {
                transport: vec![1, 1, 1, 1, 0, 7, 0, 0],
                ..Made::udp(b"")
            }
            .bytes(),
            Class::Bad(D::UdpTruncated),
        ),
        (
            "udp length 9",
            Made {
                transport: vec![1, 1, 1, 1, 0, 9, 0, 0],
                ..Made::udp(b"")
            }
            .bytes(),
            Class::Bad(D::UdpTruncated),
        ),
        (
            "udp checksum",
            flipped(Made::udp(b"xx").bytes(), 42),
            Class::Bad(D::UdpChecksum),
        ),
        (
            "icmp short",
            Made {
                transport: vec![8; 7],
                ..Made::icmp(b"")
            }
            .bytes(),
            Class::Bad(D::IcmpTruncated),
        ),
        (
            "icmp checksum",
            flipped(Made::icmp(b"xx").bytes(), 42),
            Class::Bad(D::IcmpChecksum),
        ),
    ];
    for (name, bytes, class) in cases {
        assert_eq!(wire(&bytes), class, "{name}");
    }
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

/// Whatever the class says lies inside the frame.
fn check_places(bytes: &[u8], class: &Class) {
    let len = bytes.len();
    match class {
        Class::Tcp(frame) => {
            assert!(frame.ip.start < frame.tcp && frame.tcp + 20 <= frame.payload);
            assert_eq!(frame.payload + frame.payload_len, frame.ip.end);
            assert!(frame.ip.end <= len);
        }
        Class::Udp(frame) => {
            assert!(frame.payload.start <= frame.payload.end && frame.payload.end <= frame.ip.end);
            assert!(frame.ip.end <= len);
        }
        Class::Icmp(frame) => {
            assert!(
                frame.message.len() >= 8
                    && frame.message.end == frame.ip.end
                    && frame.ip.end <= len
            );
        }
        Class::Arp(place) => assert!(place.start <= place.end && place.end <= len),
        Class::NotOurs(_) | Class::Bad(_) => {}
    }
}

#[test]
fn random_mutated_and_cut_frames_are_always_classified() {
    let mut random = Seeded::new(4);
    let trusting = Rules {
        trust_checksum: true,
        ..rules()
    };
    let mut accepted = 0_u32;
    for round in 0..200_000 {
        let payload = vec![0x55; random.below(40)];
        let options = vec![random.byte(); random.below(11) * 4];
        let mut bytes = match random.below(5) {
            0 => (0..random.below(100)).map(|_| random.byte()).collect(),
            1 => Made::udp(&payload).bytes(),
            2 => Made::icmp(&payload).bytes(),
            _ => Made::tcp(random.byte(), &options, &payload).bytes(),
        };
        for _ in 0..random.below(4) {
            if !bytes.is_empty() {
                let at = random.below(bytes.len());
                bytes[at] = random.byte();
            }
        }
        bytes.truncate(
            bytes.len() - random.below(bytes.len() + 1) * usize::from(random.below(3) == 0),
        );
        // Repairing the header checksum lets damaged frames reach the later checks.
        if bytes.len() >= 34 && random.below(2) == 0 {
            let header_bytes = (usize::from(bytes[14] & 15) * 4).clamp(20, bytes.len() - 14);
            put_word(&mut bytes, 24, 0).unwrap();
            let sum = checksum::checksum(&bytes[14..14 + header_bytes]);
            put_word(&mut bytes, 24, sum).unwrap();
        }
        let chosen = if round % 2 == 0 { &trusting } else { &rules() };
        let class = classify(&bytes, RxMeta::default(), chosen);
        check_places(&bytes, &class);
        accepted += u32::from(!matches!(class, Class::Bad(_) | Class::NotOurs(_)));
        check_places(&bytes, &classify_looped(&bytes, chosen));
    }
    assert!(
        accepted > 10_000,
        "the frames are too damaged to test anything: {accepted}"
    );
}
