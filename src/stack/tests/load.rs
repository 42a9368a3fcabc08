//! Many flows, full ports, jumping clocks, garbage.

use core::net::SocketAddrV4;
use core::time::Duration;
use std::collections::HashMap;

use super::pair::{Faults, Host, Pair};
use super::peer::{ACK, FIN, PEER_ISS, PEER_PORT, PSH, RST, SYN, Script, Segment};
use super::{address, config};
use crate::device::TxQueue;
use crate::id::FlowId;
use crate::seeded::Seeded;
use crate::stack::{Change, Close, FlowOptions, FlowState, StackConfig};

const NEXT: u32 = PEER_ISS + 1;

/// Flows with small rings, so that many fit into a test.
fn small() -> FlowOptions {
    FlowOptions {
        rx_bytes: 4096,
        nodelay: true,
        ..FlowOptions::default()
    }
}

fn crowded(host: u8, flows: usize) -> StackConfig {
    StackConfig {
        max_flows: flows,
        tx_buffer_bytes: 4096,
        ephemeral_ports: (1024, 65_535),
        ..config(host)
    }
}

/// `count` connections from `b` to `a`.
fn join_many(pair: &mut Pair, count: usize) -> Vec<(FlowId, FlowId)> {
    pair.a.listen_with(80, 4096, small());
    let mut ends = Vec::new();
    let mut clients: HashMap<SocketAddrV4, FlowId> = HashMap::new();
    let ask = SocketAddrV4::new(address(1), 80);
    for _ in 0..count {
        let flow = pair.b.connect_with(pair.now, ask, small());
        clients.insert(pair.b.facts(flow).local, flow);
        if clients.len().is_multiple_of(64) {
            pair.run(Duration::from_millis(1));
        }
    }
    pair.run(Duration::from_millis(10));
    for flow in pair.a.accept() {
        ends.push((flow, clients[&pair.a.facts(flow).remote]));
    }
    assert_eq!(ends.len(), count);
    ends
}

#[test]
fn a_thousand_flows_survive_jumps_of_the_clock() {
    let mut pair = Pair::with(crowded(1, 1000), crowded(2, 1000), 5);
    let ends = join_many(&mut pair, 1000);
    let mut random = Seeded::new(6);
    for round in 0..40_u64 {
        for (a, b) in &ends {
            let (from, to) = if round % 2 == 0 {
                (&mut pair.a, *a)
            } else {
                (&mut pair.b, *b)
            };
            assert_eq!(from.stack.send(pair.now, to, &[1; 10]), 10);
        }
        // The turn stands still for up to half a second, with everything under way.
        pair.turn();
        pair.now = pair.now + Duration::from_millis(random.below(501) as u64);
        for _ in 0..12 {
            pair.turn();
            pair.now = pair.now + Duration::from_millis(1 + random.below(500) as u64);
        }
        for (a, b) in &ends {
            let (host, flow) = if round % 2 == 0 {
                (&mut pair.b, *b)
            } else {
                (&mut pair.a, *a)
            };
            assert_eq!(host.read(pair.now, flow, round / 2 * 10).len(), 10);
        }
    }
    for (a, b) in &ends {
        assert_eq!(
            (pair.a.facts(*a).error, pair.b.facts(*b).error),
            (None, None)
        );
    }
    assert_eq!(
        (pair.a.stack.live_flows(), pair.b.stack.live_flows()),
        (1000, 1000)
    );
}

#[test]
fn an_idle_crowd_costs_nothing() {
    let mut pair = Pair::with(crowded(1, 2000), crowded(2, 2000), 5);
    let ends = join_many(&mut pair, 2000);
    pair.run(Duration::from_secs(40));
    // No timer is armed for an idle flow, and no turn touches one.
    assert_eq!(pair.a.stack.wheel.armed(), 0);
    assert_eq!(pair.a.stack.next_timer(), None);
    let now = pair.now;
    let idle = pair
        .a
        .stack
        .transmit(now, &mut pair.a.memory, &mut pair.a.port)
        + pair
            .a
            .stack
            .expire(now, &mut pair.a.memory, &mut pair.a.port);
    assert_eq!(idle, 0);
    let (a, _) = ends[1234];
    pair.a.stack.send(now, a, b"one of many");
    assert_eq!(pair.a.stack.dirty.len(), 1);
    let sent = pair
        .a
        .stack
        .transmit(now, &mut pair.a.memory, &mut pair.a.port);
    assert_eq!(sent, 1, "only the flow that has something is asked");
}

/// Four flows with 2000 bytes each to send, and a small port that takes nothing: its peer has gone.
fn stuck() -> Script {
    let mut script = Script::listening(FlowOptions {
        nodelay: true,
        ..FlowOptions::default()
    });
    script.host.port = super::Port::new(8);
    let opened: Vec<_> = (0..4)
        .map(|number| script.open(PEER_PORT + number))
        .collect();
    script.host.port.stuck = true;
    for (flow, _) in &opened {
        assert_eq!(script.host.stack.send(script.now, *flow, &[7; 2000]), 2000);
    }
    script
}

#[test]
fn a_full_port_delays_and_loses_nothing() {
    let mut script = stuck();
    let host = &mut script.host;
    host.stack
        .transmit(script.now, &mut host.memory, &mut host.port);
    assert_eq!(
        host.port.room(),
        4,
        "half of the small port stays free for replies"
    );
    assert!(host.stack.next_timer().is_some());
    // A reply to a received frame still finds a buffer, and so does the question where its peer is now.
    script.tell(&Segment {
        seq: 1,
        ..Segment::syn()
    });
    assert_eq!(script.host.port.room(), 2);
    assert_eq!(script.count("tx_dropped_no_buffer"), 0);
    script.host.port.stuck = false;
    let heard = script.wait(Duration::from_millis(5));
    let bytes: usize = heard.iter().map(|(_, heard)| heard.payload.len()).sum();
    assert_eq!(bytes, 8000);
    assert_eq!(
        heard.iter().filter(|(_, heard)| heard.is(ACK)).count(),
        5,
        "{heard:?}"
    );
}

#[test]
fn a_port_that_takes_nothing_lets_the_loop_rest() {
    let mut script = stuck();
    let end = script.now + Duration::from_secs(1);
    let mut turns = 0;
    while script.now < end {
        assert!(script.host.turn(script.now, &mut []).is_empty());
        turns += 1;
        let due = script.host.stack.next_timer().expect("it asks again");
        script.now = due.max(script.now + Duration::from_micros(1));
    }
    assert!((100..300).contains(&turns), "{turns} turns in a second");
    script.host.port.stuck = false;
    let heard = script.wait(Duration::from_secs(1));
    let fresh: usize = heard.iter().map(|(_, heard)| heard.payload.len()).sum();
    assert!(fresh >= 8000, "{fresh} bytes");
}

#[test]
fn a_burst_of_requests_finds_room_for_its_replies() {
    let mut script = Script::new();
    script.host.port = super::Port::new(8);
    for _ in 0..5 {
        script.host.port.alloc(60).unwrap();
        script
            .host
            .port
            .commit(60, crate::device::TxMeta::default());
    }
    let heard = script.burst(&vec![Segment::syn(); 8]);
    assert_eq!(heard.len(), 8, "each SYN to a closed port is refused");
    assert_eq!(script.count("tx_dropped_no_buffer"), 0);
}

#[test]
fn one_acknowledgement_a_flow_and_burst() {
    let mut script = Script::listening(FlowOptions {
        rx_bytes: 64 << 10,
        ..FlowOptions::default()
    });
    let (_, iss) = script.open(PEER_PORT);
    let burst: Vec<Segment> = (0..4)
        .map(|number| Segment::new(ACK, NEXT + number * 500, iss + 1).carrying(&[1; 500]))
        .collect();
    let heard = script.burst(&burst);
    assert_eq!(heard.len(), 1);
    assert_eq!(heard[0].tcp.ack, NEXT + 2000);
}

#[test]
fn a_whole_connection_fits_into_one_burst() {
    let mut script = Script::listening(FlowOptions::default());
    let iss = crate::stack::isn::isn(script.now, script.key(PEER_PORT), &[1; 16]);
    script.burst(&[
        Segment::syn(),
        Segment::new(ACK, NEXT, iss + 1),
        Segment::new(ACK | PSH, NEXT, iss + 1).carrying(b"all at once"),
        Segment::new(ACK | FIN, NEXT + 11, iss + 1),
    ]);
    // The SYN-ACK has not left when the ACK comes, which only a guess can do; nothing breaks.
    assert_eq!(script.host.stack.live_flows(), 1);
    script.wait(Duration::from_millis(1));
    let heard = script.burst(&[
        Segment::new(ACK, NEXT, iss + 1),
        Segment::new(ACK | PSH, NEXT, iss + 1).carrying(b"all at once"),
        Segment::new(ACK | FIN, NEXT + 11, iss + 1),
    ]);
    assert_eq!(heard.last().unwrap().tcp.ack, NEXT + 12);
    let flow = script.host.accept()[0];
    assert_eq!(script.host.read(script.now, flow, 0), b"all at once");
    assert_eq!(script.host.facts(flow).state, FlowState::CloseWait);
}

#[test]
fn checksums_are_left_to_a_port_that_can() {
    let mut script = Script::with(StackConfig {
        tx_checksum_offload: true,
        trust_checksum: true,
        ..config(1)
    });
    script.host.listen(80, 8);
    let mut frames = [Segment::syn().bytes(1, None)];
    let sent = script.host.turn(script.now, &mut frames);
    assert_eq!(
        sent[0][24..26],
        [0, 0],
        "the IPv4 header checksum is the port's"
    );
    let length = u16::try_from(sent[0].len() - 34).unwrap();
    let pseudo = crate::stack::checksum::pseudo_header(address(1), address(2), 6, length);
    assert_eq!(sent[0][50..52], pseudo.to_be_bytes());
}

/// What the lcore was told, checked as it must be.
#[derive(Debug, Default)]
struct Book {
    known: HashMap<FlowId, u32>,
    gone: usize,
}

impl Book {
    /// Reads the changes so far.
    fn drain(&mut self, host: &mut Host) {
        for change in host.changes.drain(..) {
            match change {
                Change::Accepted { listener, flow, .. } => {
                    assert!(self.known.insert(flow, flow.index + 1).is_none());
                    host.stack.accepted(listener, flow);
                    host.stack.set_token(flow, flow.index + 1);
                }
                Change::Flow { flow, token } => assert_eq!(self.known.get(&flow), Some(&token)),
                Change::Gone { flow, token } => {
                    assert_eq!(
                        self.known.remove(&flow),
                        Some(token),
                        "gone twice or never told of"
                    );
                    assert_eq!(host.stack.facts(flow), None);
                    self.gone += 1;
                }
            }
        }
    }
}

#[test]
fn random_segments_and_calls_keep_every_promise() {
    let mut random = Seeded::new(77);
    let mut script = Script::listening(small());
    script.host.port = super::Port::new(256);
    let mut book = Book::default();
    // What the peer knows of each of its ports.
    let mut peers: HashMap<u16, (u32, u32)> = HashMap::new();
    for _ in 0..60_000 {
        let port = PEER_PORT + u16::try_from(random.below(12)).unwrap();
        let (mut seq, mut ack) = peers.get(&port).copied().unwrap_or((PEER_ISS, 0));
        let mut flags = [
            SYN,
            ACK,
            ACK,
            ACK | PSH,
            ACK | PSH,
            ACK | FIN,
            RST,
            RST | ACK,
        ][random.below(8)];
        if random.below(20) == 0 {
            flags = random.byte();
        }
        if random.below(6) == 0 {
            seq = seq.wrapping_add(random.double() % 9000).wrapping_sub(4500);
        }
        if random.below(6) == 0 {
            ack = ack.wrapping_add(random.double() % 9000).wrapping_sub(4500);
        }
        let payload = vec![
            1;
            if flags & PSH != 0 {
                random.below(1400)
            } else {
                0
            }
        ];
        let mut bytes = Segment {
            window: random.word(),
            ..Segment::new(flags, seq, ack)
                .at_port(port)
                .carrying(&payload)
        }
        .bytes(1, None);
        if random.below(30) == 0 {
            let at = random.below(bytes.len());
            bytes[at] ^= random.byte();
        }
        for heard in script.raw(&mut [bytes]) {
            let key = heard.tcp.key.local.port();
            let length = heard.tcp.sequence_len();
            peers.insert(key, (heard.tcp.ack, heard.tcp.seq.wrapping_add(length)));
        }
        book.drain(&mut script.host);
        let flows: Vec<FlowId> = book.known.keys().copied().collect();
        if !flows.is_empty() {
            let flow = flows[random.below(flows.len())];
            let now = script.now;
            match random.below(30) {
                0 => script.host.stack.close(now, flow, Close::Graceful),
                1 => script.host.stack.close(now, flow, Close::Abort),
                2 => script.host.stack.shutdown_write(now, flow),
                3..8 => drop(
                    script
                        .host
                        .stack
                        .send(now, flow, &vec![2; random.below(3000)]),
                ),
                8..14 => script
                    .host
                    .stack
                    .consumed(now, flow, u64::from(random.double())),
                _ => {}
            }
        }
        script.now = script.now + Duration::from_micros(u64::from(random.double() % 20_000));
        if random.below(500) == 0 {
            script.wait(Duration::from_millis(random.below(3000) as u64));
            book.drain(&mut script.host);
            script.host.memory.check_untouched();
        }
    }
    assert_eq!(script.count("flows_dropped_panic"), 0);
    assert!(book.gone > 100, "too little happened: {}", book.gone);
    for flow in book.known.keys() {
        script.host.stack.close(script.now, *flow, Close::Graceful);
    }
    script.wait(Duration::from_secs(400));
    book.drain(&mut script.host);
    assert_eq!((script.host.stack.live_flows(), book.known.len()), (0, 0));
    assert!(script.host.memory.rings.is_empty(), "every ring came back");
    assert_eq!(script.host.stack.next_timer(), None);
    script.open(PEER_PORT + 100);
}

#[test]
fn connections_come_and_go_over_a_bad_wire() {
    let mut pair = Pair::with(crowded(1, 64), crowded(2, 64), 8);
    pair.faults = Faults {
        loss: 300,
        duplicate: 300,
        reorder: 300,
    };
    pair.a.listen_with(80, 64, small());
    let (mut at_a, mut at_b) = (Book::default(), Book::default());
    let mut clients: HashMap<FlowId, usize> = HashMap::new();
    let mut done = 0;
    let mut started = 0;
    let request = [5; 300];
    while done < 300 || !at_a.known.is_empty() {
        while clients.len() < 20 && started < 300 {
            let flow = pair
                .b
                .connect_with(pair.now, SocketAddrV4::new(address(1), 80), small());
            at_b.known.insert(flow, 5);
            clients.insert(flow, 0);
            started += 1;
        }
        pair.turn();
        at_a.drain(&mut pair.a);
        at_b.drain(&mut pair.b);
        for flow in at_a.known.keys().copied().collect::<Vec<_>>() {
            // An echo that ends with its client.
            let facts = pair.a.facts(flow);
            let fresh = facts.rx_total - facts.tx_total;
            if fresh > 0 {
                let bytes = pair.a.read(pair.now, flow, facts.tx_total);
                assert_eq!(pair.a.stack.send(pair.now, flow, &bytes), bytes.len());
            } else if facts.rx_finished && facts.tx_acked == facts.tx_total || facts.error.is_some()
            {
                pair.a.stack.close(pair.now, flow, Close::Graceful);
            }
        }
        for (flow, sent) in clients.clone() {
            let Some(facts) = pair.b.stack.facts(flow) else {
                continue;
            };
            assert_eq!(facts.error, None);
            if facts.state == FlowState::Established && sent == 0 {
                clients.insert(flow, pair.b.stack.send(pair.now, flow, &request));
            }
            if facts.rx_total == 300 {
                assert_eq!(pair.b.read(pair.now, flow, 0), request);
                pair.b.stack.close(pair.now, flow, Close::Graceful);
                clients.remove(&flow);
                done += 1;
            }
        }
        pair.now = pair
            .next()
            .unwrap_or(pair.now)
            .max(pair.now + Duration::from_micros(50));
    }
    pair.faults = Faults::default();
    pair.run(Duration::from_secs(300));
    at_a.drain(&mut pair.a);
    at_b.drain(&mut pair.b);
    assert_eq!((at_b.gone, at_a.known.len(), at_b.known.len()), (300, 0, 0));
    assert!(pair.a.memory.rings.is_empty() && pair.b.memory.rings.is_empty());
}

/// Every request of a burst is answered in the turn that takes it. Prints what that costs: `KNET_TEST_FLOWS` asks for as
/// many flows, for long enough to be a figure in a release build.
#[test]
fn every_request_is_answered_in_its_turn() {
    let only = std::env::var("KNET_TEST_FLOWS")
        .ok()
        .and_then(|text| text.parse().ok());
    let counts = only.map_or_else(|| vec![1, 100, 3_000], |count| vec![count]);
    let rounds = if only.is_some() { 2_000_000 } else { 10_000 };
    for count in counts {
        let mut script = Script::with(StackConfig {
            max_flows: count,
            tx_buffer_bytes: 4096,
            ..config(1)
        });
        script.host.listen_with(80, 4096, small());
        let mut flows = Vec::new();
        for number in 0..count {
            // Port and address together name so many peers.
            let port = u16::try_from(1024 + number % 60_000).unwrap();
            let to = u16::try_from(80 + number / 60_000).unwrap();
            if to != 80 && port == 1024 {
                script.host.listen_with(to, 4096, small());
            }
            let answer = script.ask(&Segment {
                to,
                ..Segment::syn().at_port(port)
            });
            script.tell(&Segment {
                to,
                ..Segment::new(ACK, NEXT, answer.tcp.seq + 1).at_port(port)
            });
            flows.push((script.host.accept()[0], to, port, answer.tcp.seq));
        }
        let mut random = Seeded::new(3);
        let mut at = vec![0_u32; count];
        let (mut spent, mut done) = (0, 0_u64);
        while done < rounds {
            let mut chosen: Vec<usize> = (0..32.min(count)).map(|_| random.below(count)).collect();
            chosen.sort_unstable();
            chosen.dedup();
            let mut frames: Vec<Vec<u8>> = chosen
                .iter()
                .map(|index| {
                    let (_, to, port, iss) = flows[*index];
                    let done = at[*index];
                    let segment =
                        Segment::new(ACK | PSH, NEXT + done, iss + 1 + done).at_port(port);
                    Segment {
                        to,
                        ..segment.carrying(&[1; 64])
                    }
                    .bytes(1, None)
                })
                .collect();
            let mut burst: Vec<crate::device::RxFrame<'_>> = frames
                .iter_mut()
                .map(|bytes| crate::device::RxFrame {
                    bytes,
                    meta: crate::device::RxMeta::default(),
                })
                .collect();
            let host = &mut script.host;
            let start = crate::time::monotonic();
            host.stack
                .ingress(script.now, &mut burst, &mut host.memory, &mut host.port);
            for index in &chosen {
                let flow = flows[*index].0;
                host.stack
                    .consumed(script.now, flow, u64::from(at[*index]) + 64);
                host.stack.send(script.now, flow, &[2; 64]);
                at[*index] += 64;
            }
            host.stack
                .expire(script.now, &mut host.memory, &mut host.port);
            host.stack
                .transmit(script.now, &mut host.memory, &mut host.port);
            host.stack.take_changes(&mut host.changes);
            spent += crate::time::monotonic().since(start).as_nanos();
            host.changes.clear();
            let sent = host.port.take();
            // A flow that was not chosen for a second sends its reply again.
            assert!(sent.len() >= chosen.len());
            done += chosen.len() as u64;
            script.now = script.now + Duration::from_micros(50);
        }
        println!(
            "{count} flows: {} ns a request and reply",
            spent / u128::from(done)
        );
    }
}

#[test]
fn a_reply_without_a_buffer_is_lost_and_counted() {
    let mut script = Script::new();
    script.host.port = super::Port::new(4);
    script.host.port.stuck = true;
    script.burst(&vec![Segment::syn(); 10]);
    assert_eq!(script.count("tx_dropped_no_buffer"), 6);
    script.host.port.stuck = false;
    assert_eq!(
        script.burst(&[Segment::syn()]).len(),
        5,
        "those that fit leave later"
    );
}
