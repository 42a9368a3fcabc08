//! Connections that we begin: neighbours, refusals, ICMP, ports, the loop to ourselves.

use core::net::{Ipv4Addr, SocketAddrV4};
use core::time::Duration;

use super::pair::Pair;
use super::peer::{ACK, PEER_PORT, RST, SYN, Script, Segment};
use super::{address, config, mac};
use crate::errno::Errno;
use crate::id::FlowId;
use crate::stack::arp::ArpFrame;
use crate::stack::checksum;
use crate::stack::demux::TcpFrame;
use crate::stack::frame::{
    Checksums, ETHERTYPE_IPV4, EthernetHeader, Ipv4Repr, PROTOCOL_ICMP, PROTOCOL_UDP, put_word,
};
use crate::stack::{
    Change, Close, ConnectRequest, FlowOptions, FlowState, ListenRequest, Owner, StackConfig,
};

const PEER: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 77, 0, 2), 7000);

fn request(remote: SocketAddrV4) -> ConnectRequest {
    ConnectRequest {
        local_address: None,
        local_port: None,
        remote,
        owner: Owner(3),
        token: 31,
        options: FlowOptions::default(),
    }
}

fn arp(script: &Script) -> Vec<ArpFrame> {
    script
        .others
        .iter()
        .filter_map(|bytes| ArpFrame::parse(&bytes[14..]))
        .collect()
}

/// What the station with `mac` says of itself.
pub(super) fn arp_from(host: u8, mac: [u8; 6], reply: bool) -> Vec<u8> {
    let frame = ArpFrame {
        destination: super::mac(1),
        reply,
        sender_mac: mac,
        sender: address(host),
        target_mac: super::mac(1),
        target: address(1),
    };
    let mut bytes = vec![0; ArpFrame::frame_bytes(None)];
    frame.emit(None, &mut bytes).unwrap();
    bytes
}

/// A script whose SYN to the peer has left; returns the flow and the SYN.
pub(super) fn connecting(options: FlowOptions) -> (Script, FlowId, TcpFrame) {
    let mut script = Script::new();
    let flow = script.host.connect_with(script.now, PEER, options);
    assert!(
        script.wait(Duration::from_millis(1)).is_empty(),
        "nobody knows the MAC yet"
    );
    let mut heard = script.raw(&mut [arp_from(2, mac(2), true)]);
    assert_eq!(heard.len(), 1);
    let syn = heard.remove(0);
    assert!(syn.is(SYN));
    (script, flow, syn.tcp)
}

pub(super) fn answer(syn: &TcpFrame, flags: u8, seq: u32, ack: u32) -> Segment {
    Segment {
        port: PEER.port(),
        to: syn.key.remote.port(),
        ..Segment::new(flags, seq, ack)
    }
}

#[test]
fn the_syn_leaves_with_the_answer_to_arp() {
    let mut script = Script::new();
    let flow = script.host.connect(script.now, PEER);
    assert!(script.wait(Duration::from_millis(40)).is_empty());
    let asked = arp(&script);
    assert_eq!(asked.len(), 1);
    assert_eq!((asked[0].reply, asked[0].target), (false, address(2)));
    let heard = script.raw(&mut [arp_from(2, mac(2), true)]);
    assert!(heard[0].is(SYN));
    let syn = heard[0].tcp.clone();
    let ack = script.ask(&answer(&syn, SYN | ACK, 900, syn.seq + 1));
    assert_eq!((ack.tcp.seq, ack.tcp.ack), (syn.seq + 1, 901));
    assert_eq!(script.host.facts(flow).state, FlowState::Established);
    assert!(
        script
            .host
            .changes
            .contains(&Change::Flow { flow, token: 5 })
    );
}

#[test]
fn an_urgent_pointer_before_the_handshake_marks_nothing() {
    const URG: u8 = 0x20;
    let mut script = Script::new();
    let flow = script.host.connect(script.now, PEER);
    let heard = script.raw(&mut [arp_from(2, mac(2), true)]);
    let syn = heard[0].tcp.clone();
    let heard = script.burst(&[answer(&syn, ACK | URG, 900, syn.seq)]);
    assert!(heard[0].is(RST) && heard[1].is(SYN), "{heard:?}");
    script.ask(&answer(&syn, SYN | ACK, 900, syn.seq + 1));
    assert_eq!(script.host.facts(flow).urgent.end, 0);
    assert_eq!(script.count("urgent_marks"), 0);
}

#[test]
fn nobody_answers_arp() {
    let mut script = Script::new();
    let flow = script.host.connect(script.now, PEER);
    let start = script.now;
    script.wait(Duration::from_millis(2_990));
    assert_eq!(script.host.facts(flow).error, None);
    assert_eq!(arp(&script).len(), 3);
    script.wait(Duration::from_millis(20));
    assert_eq!(
        script.host.facts(flow).error,
        Some(Errno::HOSTUNREACH),
        "since {start:?}"
    );
    // Remembered for a moment: the next one hears at once.
    let next = script.host.connect(script.now, PEER);
    assert_eq!(script.host.facts(next).error, Some(Errno::HOSTUNREACH));
    script.host.stack.close(script.now, flow, Close::Graceful);
    script.host.stack.close(script.now, next, Close::Graceful);
    script.wait(Duration::from_secs(5));
    assert_eq!(
        (
            script.host.stack.live_flows(),
            script.host.memory.returned.len()
        ),
        (0, 2)
    );
}

#[test]
fn the_gateway_is_asked_for_what_is_far() {
    let mut script = Script::new();
    script.host.connect(
        script.now,
        SocketAddrV4::new(Ipv4Addr::new(192, 0, 2, 1), 80),
    );
    script.wait(Duration::from_millis(1));
    assert_eq!(arp(&script)[0].target, address(254));
}

#[test]
fn a_reset_refuses_only_with_the_right_acknowledgement() {
    let (mut script, flow, syn) = connecting(FlowOptions::default());
    script.tell(&answer(&syn, RST, 0, 0));
    script.tell(&answer(&syn, RST | ACK, 0, syn.seq));
    assert_eq!(script.host.facts(flow).error, None);
    script.tell(&answer(&syn, RST | ACK, 0, syn.seq + 1));
    assert_eq!(script.host.facts(flow).error, Some(Errno::CONNREFUSED));
}

#[test]
fn syns_are_sent_again_and_then_it_is_over() {
    let (mut script, flow, syn) = connecting(FlowOptions::default());
    let again = script.wait(Duration::from_secs(300));
    assert_eq!(again.len(), 6, "syn_retries");
    assert!(
        again
            .iter()
            .all(|(_, heard)| heard.is(SYN) && heard.tcp.seq == syn.seq)
    );
    assert_eq!(script.host.facts(flow).error, Some(Errno::TIMEDOUT));
}

/// An ICMP error of type 3 that quotes our segment.
pub(super) fn unreachable(code: u8, mtu: u16, quoted: &[u8]) -> Vec<u8> {
    let message_len = 8 + quoted.len().min(40);
    let mut packet = vec![0; 20 + message_len];
    let repr = Ipv4Repr {
        tos: 0,
        ttl: 64,
        protocol: PROTOCOL_ICMP,
        source: address(254),
        destination: address(1),
    };
    repr.emit(message_len, Checksums::Full, &mut packet)
        .unwrap();
    packet[20] = 3;
    packet[21] = code;
    packet[26..28].copy_from_slice(&mtu.to_be_bytes());
    packet[28..].copy_from_slice(&quoted[..message_len - 8]);
    let sum = checksum::checksum(&packet[20..]);
    put_word(&mut packet, 22, sum).unwrap();
    frame(&packet)
}

fn frame(packet: &[u8]) -> Vec<u8> {
    let header = EthernetHeader {
        destination: mac(1),
        source: mac(2),
        vlan: None,
        ether_type: ETHERTYPE_IPV4,
    };
    let mut bytes = vec![0; 14];
    header.emit(&mut bytes).unwrap();
    bytes.extend(packet);
    bytes
}

#[test]
fn icmp_ends_a_connect() {
    let expected = [
        (0, Errno::NETUNREACH),
        (1, Errno::HOSTUNREACH),
        (3, Errno::CONNREFUSED),
        (13, Errno::HOSTUNREACH),
    ];
    for (code, errno) in expected {
        let mut script = Script::new();
        let flow = script.host.connect(script.now, PEER);
        script.wait(Duration::from_millis(1));
        let syn = script.raw(&mut [arp_from(2, mac(2), true)]).remove(0);
        // One that quotes a number we never sent is forged.
        let mut forged = syn.bytes[14..].to_vec();
        forged[24] ^= 0x40;
        script.raw(&mut [unreachable(code, 0, &forged)]);
        assert_eq!(script.host.facts(flow).error, None, "{code}");
        script.raw(&mut [unreachable(code, 0, &syn.bytes[14..])]);
        assert_eq!(script.host.facts(flow).error, Some(errno), "{code}");
    }
}

#[test]
fn icmp_does_not_end_an_open_flow_but_explains_its_end() {
    let options = FlowOptions {
        user_timeout_ms: 3_000,
        ..FlowOptions::default()
    };
    let mut script = Script::listening(options);
    let (flow, _) = script.open(PEER_PORT);
    script.host.stack.send(script.now, flow, b"lost");
    let sent = script.wait(Duration::from_millis(1));
    script.raw(&mut [unreachable(1, 0, &sent[0].1.bytes[14..])]);
    assert_eq!(script.host.facts(flow).error, None);
    script.wait(Duration::from_secs(4));
    assert_eq!(script.host.facts(flow).error, Some(Errno::HOSTUNREACH));
}

#[test]
fn an_explanation_is_forgotten_when_the_peer_answers_again() {
    let options = FlowOptions {
        user_timeout_ms: 3_000,
        ..FlowOptions::default()
    };
    let mut script = Script::listening(options);
    let (flow, iss) = script.open(PEER_PORT);
    script.host.stack.send(script.now, flow, b"lost");
    let sent = script.wait(Duration::from_millis(1));
    script.raw(&mut [unreachable(1, 0, &sent[0].1.bytes[14..])]);
    script.tell(&Segment::new(ACK, sent[0].1.tcp.ack, iss + 5));
    script.host.stack.send(script.now, flow, b"lost again");
    script.wait(Duration::from_secs(4));
    assert_eq!(script.host.facts(flow).error, Some(Errno::TIMEDOUT));
}

#[test]
fn a_smaller_path_mtu_makes_smaller_segments() {
    let mut script = Script::listening(FlowOptions {
        nodelay: true,
        ..FlowOptions::default()
    });
    let (flow, iss) = script.open(PEER_PORT);
    script.host.stack.send(script.now, flow, &[4; 1460]);
    let sent = script.wait(Duration::from_millis(1));
    assert_eq!(sent[0].1.payload.len(), 1460);
    let again = script.raw(&mut [unreachable(4, 1300, &sent[0].1.bytes[14..])]);
    assert_eq!(script.host.facts(flow).mss, 1240);
    assert_eq!((again[0].tcp.seq, again[0].payload.len()), (iss + 1, 1240));
}

#[test]
fn what_cannot_be_reached_is_refused_at_once() {
    let mut script = Script::with(StackConfig {
        gateway: None,
        ephemeral_ports: (50_000, 50_001),
        ..config(1)
    });
    let host = &mut script.host;
    let now = script.now;
    let mut connect = |request: &ConnectRequest| {
        host.stack
            .connect(now, request, &mut host.memory, &mut host.port)
            .map(|(_, local)| local)
    };
    let far = SocketAddrV4::new(Ipv4Addr::new(192, 0, 2, 1), 80);
    assert_eq!(connect(&request(far)), Err(Errno::NETUNREACH));
    assert_eq!(
        connect(&request(SocketAddrV4::new(address(255), 80))),
        Err(Errno::NETUNREACH)
    );
    assert_eq!(
        connect(&request(SocketAddrV4::new(Ipv4Addr::new(224, 0, 0, 1), 80))),
        Err(Errno::NETUNREACH)
    );
    let foreign = ConnectRequest {
        local_address: Some(address(9)),
        ..request(PEER)
    };
    assert_eq!(connect(&foreign), Err(Errno::ADDRNOTAVAIL));
    let fixed = ConnectRequest {
        local_port: Some(1234),
        ..request(PEER)
    };
    assert_eq!(connect(&fixed), Ok(SocketAddrV4::new(address(1), 1234)));
    assert_eq!(connect(&fixed), Err(Errno::ADDRNOTAVAIL));
    let mut ports: Vec<u16> = (0..2)
        .map(|_| connect(&request(PEER)).unwrap().port())
        .collect();
    ports.sort_unstable();
    assert_eq!(ports, [50_000, 50_001]);
    assert_eq!(connect(&request(PEER)), Err(Errno::ADDRNOTAVAIL));
    script.host.memory.rings_left = 0;
    let host = &mut script.host;
    let other = request(SocketAddrV4::new(address(3), 80));
    assert_eq!(
        host.stack
            .connect(now, &other, &mut host.memory, &mut host.port)
            .map(|_| ()),
        Err(Errno::NOBUFS)
    );
}

#[test]
fn the_table_has_a_limit() {
    let mut script = Script::with(StackConfig {
        max_flows: 2,
        ..config(1)
    });
    script.host.listen(80, 8);
    script.open(PEER_PORT);
    script.open(PEER_PORT + 1);
    script.tell(&Segment::syn().at_port(PEER_PORT + 2));
    assert_eq!(script.count("syn_dropped_flow_table_full"), 1);
    let host = &mut script.host;
    let refused = host
        .stack
        .connect(script.now, &request(PEER), &mut host.memory, &mut host.port);
    assert_eq!(refused.map(|_| ()), Err(Errno::NOBUFS));
}

#[test]
fn listening_is_arbitrated() {
    let mut script = Script::new();
    let mut listen = |local| {
        script.host.stack.listen(&ListenRequest {
            local,
            backlog: 1,
            owner: Owner(1),
            token: 1,
            options: FlowOptions::default(),
            shares: None,
        })
    };
    assert_eq!(
        listen(SocketAddrV4::new(address(9), 80)),
        Err(Errno::ADDRNOTAVAIL)
    );
    listen(SocketAddrV4::new(address(1), 80)).unwrap();
    assert_eq!(
        listen(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 80)),
        Err(Errno::ADDRINUSE)
    );
    assert_eq!(
        listen(SocketAddrV4::new(address(1), 80)),
        Err(Errno::ADDRINUSE)
    );
}

#[test]
fn we_reach_ourselves_without_a_wire() {
    let mut pair = Pair::new();
    pair.a.listen(80, 8);
    pair.cut = true;
    let client = pair.a.connect(pair.now, SocketAddrV4::new(address(1), 80));
    pair.run(Duration::from_millis(1));
    let server = pair.a.accept()[0];
    assert_eq!(pair.a.facts(client).state, FlowState::Established);
    let mut sent = 0;
    let mut got = 0;
    while got < 300_000 {
        sent += pair
            .a
            .stack
            .send(pair.now, client, &vec![6; (300_000 - sent).min(20_000)]);
        pair.run(Duration::from_millis(1));
        let bytes = pair.a.read(pair.now, server, got as u64);
        assert!(bytes.iter().all(|byte| *byte == 6));
        got += bytes.len();
    }
    pair.a.stack.close(pair.now, client, Close::Graceful);
    pair.run(Duration::from_millis(1));
    assert!(pair.a.facts(server).rx_finished);
    pair.a.stack.close(pair.now, server, Close::Graceful);
    pair.run(Duration::from_millis(1));
    assert_eq!(pair.a.stack.live_flows(), 0);
    let refused = pair.a.connect(pair.now, SocketAddrV4::new(address(1), 81));
    pair.run(Duration::from_millis(1));
    assert_eq!(pair.a.facts(refused).error, Some(Errno::CONNREFUSED));
}

#[test]
fn arp_answers_announces_and_follows_a_changed_mac() {
    let mut script = Script::new();
    script.host.listen(80, 8);
    let mut tx = core::mem::replace(&mut script.host.port, super::Port::new(64));
    script.host.stack.announce(script.now, &mut tx);
    script.host.port = tx;
    script.wait(Duration::from_secs(5));
    assert!(
        arp(&script)
            .iter()
            .filter(|frame| frame.sender == address(1) && frame.target == address(1))
            .count()
            >= 2
    );
    script.others.clear();
    script.raw(&mut [arp_from(2, mac(2), false)]);
    assert!(arp(&script)[0].reply);
    // The peer moves while we have something to say: the next try goes to the new place.
    let (flow, _) = script.open(PEER_PORT);
    script.raw(&mut [arp_from(2, mac(9), true)]);
    script.host.stack.send(script.now, flow, b"hello?");
    script.wait(Duration::from_millis(1));
    script.others.clear();
    script.wait(Duration::from_secs(2));
    assert!(
        script.others.iter().any(|bytes| bytes[..6] == mac(9)),
        "sent again to the new MAC address"
    );
}

#[test]
fn another_station_with_our_address_is_counted() {
    let mut script = Script::new();
    script.raw(&mut [arp_from(1, mac(9), true)]);
    script.raw(&mut [arp_from(1, mac(9), true)]);
    assert_eq!(script.count("arp_duplicates"), 2);
    assert_eq!(arp(&script).len(), 1, "defended once in ten seconds");
}

#[test]
fn echo_and_closed_udp_ports_are_answered() {
    let mut script = Script::new();
    let mut echo = vec![0; 20 + 8 + 56];
    let repr = Ipv4Repr {
        tos: 0,
        ttl: 64,
        protocol: PROTOCOL_ICMP,
        source: address(2),
        destination: address(1),
    };
    repr.emit(64, Checksums::Full, &mut echo).unwrap();
    echo[20] = 8;
    let sum = checksum::checksum(&echo[20..]);
    put_word(&mut echo, 22, sum).unwrap();
    script.raw(&mut [frame(&echo)]);
    assert_eq!((script.others.len(), script.others[0][34]), (1, 0));
    assert_eq!(script.count("icmp_echoes_sent"), 1);
    let mut datagram = vec![0; 20 + 8];
    Ipv4Repr {
        protocol: PROTOCOL_UDP,
        ..repr
    }
    .emit(8, Checksums::Full, &mut datagram)
    .unwrap();
    datagram[20..26].copy_from_slice(&[0, 9, 0, 9, 0, 8]);
    script.raw(&mut [frame(&datagram)]);
    assert_eq!(
        (script.others.len(), &script.others[1][34..36]),
        (2, &[3, 3][..])
    );
    // A scan of ports is not answered for ever.
    for _ in 0..200 {
        script.raw(&mut [frame(&datagram)]);
    }
    assert_eq!(script.count("icmp_errors_sent"), 100);
    assert_eq!(script.count("icmp_errors_limited"), 101);
}

#[test]
fn a_vlan_tag_is_on_every_frame() {
    let mut script = Script::with(StackConfig {
        vlan: Some(42),
        ..config(1)
    });
    script.host.listen(80, 8);
    let (flow, _) = script.open(PEER_PORT);
    script.host.stack.send(script.now, flow, b"tagged");
    let heard = script.wait(Duration::from_millis(1));
    assert_eq!(heard[0].1.bytes[12..16], [0x81, 0, 0, 42]);
}

#[test]
fn both_ends_may_begin_at_once() {
    let (mut script, flow, syn) = connecting(FlowOptions::default());
    script.burst(&[answer(&syn, SYN, 900, 0)]);
    assert_eq!(script.host.facts(flow).state, FlowState::SynReceived);
    // Our SYN-ACK leaves with smoltcp's time-out, and the peer, which has it all, acknowledges.
    let heard = script.wait(Duration::from_millis(1_100));
    let ours = heard
        .iter()
        .find(|(_, heard)| heard.is(SYN | ACK))
        .expect("a SYN-ACK");
    assert_eq!((ours.1.tcp.seq, ours.1.tcp.ack), (syn.seq, 901));
    script.burst(&[answer(&syn, ACK, 901, syn.seq + 1)]);
    assert_eq!(script.host.facts(flow).state, FlowState::Established);
}
