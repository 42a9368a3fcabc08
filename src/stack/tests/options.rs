//! Options that show on the wire or in time: IP_MINTTL, IP_TTL, IP_TOS, TCP_SYNCNT, TCP_LINGER2, TCP_DEFER_ACCEPT, IP_RECVERR.

use core::net::SocketAddrV4;
use core::time::Duration;

use super::address;
use super::pair::Pair;
use super::peer::{ACK, FIN, PEER_ISS, PEER_PORT, PSH, RST, SYN, Script, Segment};
use crate::errno::Errno;
use crate::stack::{Close, ConnectRequest, FlowOptions, FlowState, Owner};

fn with(options: FlowOptions) -> Script {
    Script::listening(options)
}

/// A frame of the peer with another time to live.
fn from_afar(segment: &Segment, ttl: u8) -> Vec<u8> {
    let mut frame = segment.bytes(1, None);
    frame[14 + 8] = ttl;
    super::super::interface::seal(&mut frame[14..], false).unwrap();
    frame
}

#[test]
fn what_comes_from_too_far_away_does_not_count() {
    let mut script = with(FlowOptions {
        min_ttl: 64,
        ..FlowOptions::default()
    });
    let syn = Segment::syn();
    assert!(script.raw(&mut [from_afar(&syn, 63)]).is_empty());
    assert_eq!(script.count("syns_received"), 0);
    let (flow, iss) = script.open(PEER_PORT);
    let data = Segment::new(ACK | PSH, PEER_ISS + 1, iss + 1).carrying(b"abc");
    assert!(script.raw(&mut [from_afar(&data, 63)]).is_empty());
    assert_eq!(script.host.facts(flow).rx_total, 0);
    script.raw(&mut [from_afar(&data, 64)]);
    assert_eq!(script.host.facts(flow).rx_total, 3);
    // Nor does a reset from there.
    let reset = Segment::new(RST, PEER_ISS + 4, 0);
    script.raw(&mut [from_afar(&reset, 1)]);
    assert_eq!(script.host.facts(flow).state, FlowState::Established);
}

#[test]
fn every_packet_of_a_flow_has_its_tos_and_ttl() {
    let options = FlowOptions {
        tos: 0x10,
        ttl: 33,
        ..FlowOptions::default()
    };
    let mut script = with(options);
    let answer = script.ask(&Segment::syn());
    script.tell(&Segment::new(ACK, PEER_ISS + 1, answer.tcp.seq + 1));
    let flow = script.host.accept()[0];
    let mut heard = vec![answer];
    script.host.stack.send(script.now, flow, b"data");
    heard.extend(script.burst(&[]));
    // An acknowledgement made by us, and one by the engine.
    let far = Segment::new(ACK | PSH, PEER_ISS + 100_000, heard[0].tcp.seq + 1).carrying(b"x");
    heard.extend(script.burst(&[far]));
    let near = Segment::new(ACK | FIN, PEER_ISS + 1, heard[0].tcp.seq + 1);
    heard.extend(script.burst(&[near]));
    script.host.stack.close(script.now, flow, Close::Abort);
    heard.extend(script.burst(&[]));
    assert_eq!(heard.len(), 5, "{heard:?}");
    for one in &heard {
        assert_eq!((one.tcp.tos, one.tcp.ttl), (0x10, 33), "{one:?}");
    }
}

#[test]
fn syns_are_sent_again_as_often_as_the_program_says() {
    let mut pair = Pair::new();
    pair.cut = true;
    let options = FlowOptions {
        syn_count: 2,
        ..FlowOptions::default()
    };
    let far = SocketAddrV4::new(address(1), 80);
    // The neighbour must be known before the wire is cut.
    pair.cut = false;
    pair.a.listen(80, 1);
    pair.join();
    pair.cut = true;
    let flow = pair.b.connect_with(pair.now, far, options);
    pair.run(Duration::from_millis(6_900));
    assert_eq!(pair.b.facts(flow).error, None, "1 + 2 + 4 s");
    pair.run(Duration::from_millis(400));
    assert_eq!(pair.b.facts(flow).error, Some(Errno::TIMEDOUT));
}

/// A flow that was closed by us, in FIN-WAIT-2.
fn half_closed(linger2_s: i16) -> Script {
    let mut script = with(FlowOptions {
        linger2_s,
        ..FlowOptions::default()
    });
    let (flow, iss) = script.open(PEER_PORT);
    script.host.stack.close(script.now, flow, Close::Graceful);
    let fin = script.burst(&[]).remove(0);
    assert!(fin.is(FIN | ACK));
    script.burst(&[Segment::new(ACK, PEER_ISS + 1, iss + 2)]);
    script
}

#[test]
fn fin_wait_2_lasts_as_long_as_the_program_says() {
    let mut script = half_closed(3);
    assert!(script.wait(Duration::from_millis(2_900)).is_empty());
    assert_eq!(script.host.stack.live_flows(), 1);
    script.wait(Duration::from_millis(200));
    assert_eq!(script.host.stack.live_flows(), 0);
    let mut script = half_closed(0);
    let usual = script.host.stack.config().fin_timeout;
    script.wait(usual - Duration::from_secs(1));
    assert_eq!(script.host.stack.live_flows(), 1);
    let mut script = half_closed(-1);
    let sent = script.wait(Duration::from_millis(50));
    assert_eq!(script.host.stack.live_flows(), 0);
    assert!(sent.iter().all(|(_, heard)| heard.tcp.flags.0 & RST != 0));
}

fn deferring(seconds: u16) -> Script {
    with(FlowOptions {
        defer_accept_s: seconds,
        ..FlowOptions::default()
    })
}

#[test]
fn a_deferred_connection_is_accepted_with_its_first_bytes() {
    let mut script = deferring(7);
    let answer = script.ask(&Segment::syn());
    let (next, ack) = (PEER_ISS + 1, answer.tcp.seq + 1);
    script.tell(&Segment::new(ACK, next, ack));
    assert!(script.host.accept().is_empty());
    assert_eq!(script.count("acks_deferred"), 1);
    script.burst(&[Segment::new(ACK | PSH, next, ack).carrying(b"hello")]);
    let flow = script.host.accept()[0];
    assert_eq!(script.host.facts(flow).rx_total, 5);
}

#[test]
fn a_deferred_connection_is_accepted_without_bytes_when_its_time_is_over() {
    let mut script = deferring(3);
    let answer = script.ask(&Segment::syn());
    let bare = Segment::new(ACK, PEER_ISS + 1, answer.tcp.seq + 1);
    script.tell(&bare);
    // The peer answers each SYN-ACK that is sent again.
    let mut accepted = None;
    for _ in 0..80 {
        for (_, heard) in script.wait(Duration::from_millis(100)) {
            assert!(heard.is(SYN | ACK));
            script.burst(core::slice::from_ref(&bare));
        }
        if !script.host.accept().is_empty() {
            accepted = Some(script.now);
            break;
        }
    }
    let waited = accepted.unwrap().millis() - 500;
    assert!((3_000..7_500).contains(&waited), "{waited} ms");
}

#[test]
fn syns_that_cross_make_one_connection() {
    let mut script = Script::new();
    let peer = SocketAddrV4::new(address(2), PEER_PORT);
    // Who asks for our address tells its own.
    let request = ConnectRequest {
        local_address: None,
        local_port: Some(80),
        remote: peer,
        owner: Owner(1),
        token: 1,
        options: FlowOptions::default(),
    };
    let host = &mut script.host;
    let (flow, _) = host
        .stack
        .connect(script.now, &request, &mut host.memory, &mut host.port)
        .unwrap();
    script.wait(Duration::from_millis(1));
    let syn = script.raw(&mut [super::connect::arp_from(2, super::mac(2), true)]);
    assert!(syn[0].is(SYN));
    let iss = syn[0].tcp.seq;
    let answer = script.ask(&Segment::syn());
    assert!(answer.is(SYN | ACK), "{answer:?}");
    assert_eq!((answer.tcp.seq, answer.tcp.ack), (iss, PEER_ISS + 1));
    assert_eq!(script.host.facts(flow).state, FlowState::SynReceived);
    // The peer's own answer to our SYN.
    let theirs = Segment {
        flags: SYN | ACK,
        ack: iss + 1,
        ..Segment::syn()
    };
    script.burst(&[theirs]);
    assert_eq!(script.host.facts(flow).state, FlowState::Established);
    assert_eq!(script.count("flows_connected"), 1);
    script.burst(&[Segment::new(ACK | PSH, PEER_ISS + 1, iss + 1).carrying(b"abc")]);
    assert_eq!(script.host.facts(flow).rx_total, 3);
    script.host.stack.send(script.now, flow, b"de");
    let sent = script.burst(&[]);
    assert_eq!(
        (sent[0].tcp.seq, &sent[0].payload[..]),
        (iss + 1, &b"de"[..])
    );
}

#[test]
fn a_socket_connects_to_itself() {
    let mut pair = Pair::new();
    pair.cut = true;
    let here = SocketAddrV4::new(address(1), 4_000);
    let request = ConnectRequest {
        local_address: None,
        local_port: Some(4_000),
        remote: here,
        owner: Owner(1),
        token: 1,
        options: FlowOptions::default(),
    };
    let host = &mut pair.a;
    let (flow, local) = host
        .stack
        .connect(pair.now, &request, &mut host.memory, &mut host.port)
        .unwrap();
    assert_eq!(local, here);
    pair.run(Duration::from_millis(5));
    assert_eq!(pair.a.facts(flow).state, FlowState::Established);
    pair.a.stack.send(pair.now, flow, b"to myself");
    pair.run(Duration::from_millis(5));
    assert_eq!(pair.a.read(pair.now, flow, 0), b"to myself");
    pair.a.stack.shutdown_write(pair.now, flow);
    pair.run(Duration::from_millis(100));
    let facts = pair.a.facts(flow);
    assert!(facts.rx_finished && facts.tx_finished, "{facts:?}");
}

#[test]
fn a_program_that_asks_for_errors_hears_them_and_goes_on() {
    for asks in [false, true] {
        let mut script = with(FlowOptions {
            receive_errors: asks,
            ..FlowOptions::default()
        });
        let (flow, iss) = script.open(PEER_PORT);
        script.host.stack.send(script.now, flow, b"lost");
        let sent = script.wait(Duration::from_millis(1));
        script.host.changes.clear();
        script.raw(&mut [super::connect::unreachable(1, 0, &sent[0].1.bytes[14..])]);
        let facts = script.host.facts(flow);
        assert_eq!(facts.soft_error, asks.then_some(Errno::HOSTUNREACH));
        assert_eq!((facts.error, script.host.changes.is_empty()), (None, !asks));
        script.tell(&Segment::new(ACK, PEER_ISS + 1, iss + 5));
        assert_eq!(script.host.facts(flow).soft_error, None);
    }
}
