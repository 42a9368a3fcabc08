//! A peer that was started again, and comes with ports of its connections before.

use core::net::SocketAddrV4;
use core::time::Duration;

use super::connect::{answer, arp_from, connecting};
use super::pair::{Host, Pair};
use super::peer::{ACK, FIN, PEER_ISS, PEER_PORT, PSH, RST, SYN, Script, Segment};
use super::{Port, address, config, mac};
use crate::device::BURST_MAX;
use crate::id::FlowId;
use crate::stack::{Close, ConnectRequest, FlowOptions, FlowState, Owner, StackConfig};

const PORT: u16 = 50_000;

fn connect(pair: &mut Pair) -> FlowId {
    let request = ConnectRequest {
        local_address: None,
        local_port: Some(PORT),
        remote: SocketAddrV4::new(address(1), 80),
        owner: Owner(2),
        token: 5,
        options: FlowOptions::default(),
    };
    let host = &mut pair.b;
    host.stack
        .connect(pair.now, &request, &mut host.memory, &mut host.port)
        .unwrap()
        .0
}

/// The client's stack is gone without a word, and another one is there, at a port of its own.
fn restart(pair: &mut Pair, secret: u8) {
    pair.b = Host::new(StackConfig {
        mac: mac(9),
        secret: [secret; 16],
        ..config(2)
    });
    pair.b.stack.announce(pair.now, &mut pair.b.port);
}

fn joined() -> (Pair, FlowId, FlowId) {
    let mut pair = Pair::new();
    pair.a.listen(80, 8);
    let client = connect(&mut pair);
    pair.run(Duration::from_millis(5));
    let server = pair.a.accept()[0];
    (pair, server, client)
}

fn count(host: &Host, name: &str) -> u64 {
    let mut found = 0;
    host.stack.counters().for_each(|each, value| {
        if each == name {
            found = value;
        }
    });
    found
}

/// Connects from the same port, which must take less than a look at any timer of a second.
fn connects_at_once(pair: &mut Pair) {
    let again = connect(pair);
    pair.run(Duration::from_millis(5));
    assert_eq!(pair.b.facts(again).state, FlowState::Established);
    assert_eq!(pair.a.accept().len(), 1);
}

#[test]
fn a_connection_of_before_does_not_hold_up_the_next_one() {
    for secret in 20..40 {
        let (mut pair, server, client) = joined();
        restart(&mut pair, secret);
        connects_at_once(&mut pair);
        assert_eq!(count(&pair.b, "syns_hastened"), 1);
        assert_eq!(count(&pair.a, "challenge_acks_sent"), 1);
        assert_eq!(pair.a.facts(server).state, FlowState::Closed, "{client:?}");
    }
}

#[test]
fn nor_does_one_whose_last_acknowledgement_was_lost() {
    let (mut pair, server, client) = joined();
    pair.b.stack.close(pair.now, client, Close::Graceful);
    pair.run(Duration::from_millis(2));
    pair.a.stack.close(pair.now, server, Close::Graceful);
    restart(&mut pair, 20);
    pair.turn();
    assert_eq!(pair.a.facts(server).state, FlowState::LastAck);
    connects_at_once(&mut pair);
    assert_eq!(pair.a.stack.live_flows(), 1, "the new one");
}

#[test]
fn nor_does_time_wait_whatever_the_number_of_the_syn() {
    let mut reset = 0;
    for secret in 20..60 {
        let (mut pair, server, client) = joined();
        pair.a.stack.close(pair.now, server, Close::Graceful);
        pair.run(Duration::from_millis(2));
        pair.b.stack.close(pair.now, client, Close::Graceful);
        pair.run(Duration::from_millis(2));
        assert_eq!(pair.a.stack.resting_flows(), 1);
        restart(&mut pair, secret);
        connects_at_once(&mut pair);
        reset += count(&pair.a, "time_wait_reset");
        let replaced = count(&pair.a, "time_wait_replaced");
        assert_eq!(count(&pair.a, "time_wait_reset") + replaced, 1);
    }
    assert!(
        (5..35).contains(&reset),
        "about half of the numbers: {reset}"
    );
}

/// As many connections as a burst has frames, each from a port of its own; the server's ends.
fn burst_of(script: &mut Script) -> Vec<(FlowId, u32)> {
    let ports = (PEER_PORT..).take(BURST_MAX);
    ports.map(|port| script.open(port)).collect()
}

#[test]
fn each_fin_of_a_burst_is_acknowledged_before_its_flow_rests() {
    let mut script = Script::new();
    script.host.port = Port::new(BURST_MAX);
    script.host.listen(80, 64);
    let flows = burst_of(&mut script);
    for (flow, _) in &flows {
        script.host.stack.close(script.now, *flow, Close::Graceful);
    }
    script.wait(Duration::from_millis(1));
    let fins: Vec<Segment> = (PEER_PORT..)
        .zip(&flows)
        .map(|(port, (_, iss))| Segment::new(FIN | ACK, PEER_ISS + 1, iss + 2).at_port(port))
        .collect();
    let heard = script.burst(&fins);
    assert_eq!(heard.len(), BURST_MAX, "acknowledgements");
    assert_eq!(script.host.stack.live_flows(), 0);
}

#[test]
fn each_syn_of_a_burst_is_hastened() {
    let mut script = Script::new();
    script.host.port = Port::new(BURST_MAX);
    let to = SocketAddrV4::new(address(2), 7_000);
    for _ in 0..BURST_MAX {
        script.host.connect(script.now, to);
    }
    script.wait(Duration::from_millis(1));
    let syns = script.raw(&mut [arp_from(2, mac(2), true)]);
    assert_eq!(syns.len(), BURST_MAX);
    let challenges: Vec<Segment> = syns
        .iter()
        .map(|syn| answer(&syn.tcp, ACK, 900, 1))
        .collect();
    let heard = script.burst(&challenges);
    for flags in [RST, SYN] {
        let count = heard.iter().filter(|heard| heard.is(flags)).count();
        assert_eq!(count, BURST_MAX, "of {} with {flags}", heard.len());
    }
}

#[test]
fn a_fin_and_bytes_of_before_are_reset_as_well() {
    for (flags, payload) in [(FIN | ACK, 0), (PSH | ACK, 9), (SYN | ACK, 0)] {
        let (mut script, flow, syn) = connecting(FlowOptions::default());
        let old = answer(&syn, flags, 900, 77).carrying(&[1; 9][..payload]);
        let heard = script.burst(&[old]);
        assert!(heard.len() == 2 && heard[0].is(RST), "{flags}: {heard:?}");
        assert_eq!(heard[0].tcp.seq, 77);
        assert_eq!((heard[1].tcp.flags.0, heard[1].tcp.seq), (SYN, syn.seq));
        assert_eq!(script.host.facts(flow).state, FlowState::SynSent);
    }
}

#[test]
fn a_syn_is_hastened_once() {
    let (mut script, flow, syn) = connecting(FlowOptions::default());
    let heard = script.burst(&[answer(&syn, ACK, 900, syn.seq.wrapping_sub(5_000))]);
    assert_eq!(heard.len(), 2, "{heard:?}");
    assert!(heard[0].is(RST));
    assert_eq!(heard[0].tcp.seq, syn.seq.wrapping_sub(5_000));
    assert!(heard[1].is(SYN));
    assert_eq!(heard[1].tcp.seq, syn.seq);
    let heard = script.burst(&[answer(&syn, ACK, 900, syn.seq.wrapping_sub(5_000))]);
    assert!(heard.len() == 1 && heard[0].is(RST), "{heard:?}");
    assert!(script.wait(Duration::from_millis(900)).is_empty());
    let again = script.wait(Duration::from_secs(6));
    assert!(!again.is_empty() && again[0].1.is(SYN), "it goes on trying");
    let ack = script.ask(&answer(&syn, SYN | ACK, 900, syn.seq.wrapping_add(1)));
    assert!(ack.is(ACK));
    assert_eq!(script.host.facts(flow).state, FlowState::Established);
}
