//! Frames that concern another lcore than the one that received them.

use super::*;
use crate::device::{Device, RxFrame, RxMeta, TxMeta, TxQueue};
use crate::stack::checksum::checksum;

/// An Ethernet frame from the client's station.
fn from_client(ether_type: [u8; 2], body: &[u8]) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 0x0a, 2, 0, 0, 0, 0, 0x0b];
    frame.extend(ether_type);
    frame.extend(body);
    frame.resize(frame.len().max(60), 0);
    frame
}

/// Puts a frame into the queue.
fn put(tx: &mut dyn TxQueue, frame: &[u8]) {
    tx.alloc(frame.len()).unwrap().copy_from_slice(frame);
    tx.commit(frame.len(), TxMeta::default());
}

#[test]
fn arp_is_answered_once_and_known_to_all() {
    let (a, mut b) = pair(FaultConfig::none(), FaultConfig::none(), 1_500);
    let mut crew = Crew::new(SERVER, a, 3);
    let (mut rx, mut tx) = b.queue_pair(0).unwrap();
    let mut body = vec![0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 0x0b];
    body.extend(CLIENT.octets());
    body.extend([0; 6]);
    body.extend(SERVER.octets());
    let request = from_client([8, 6], &body);
    let mut now = Instant::from_millis(1);
    put(tx.as_mut(), &request);
    tx.flush(now);
    let mut answers = 0;
    for _ in 0..5 {
        crew.turn(now);
        answers += rx.rx_burst(now, &mut |_| {});
        now = now + Duration::from_micros(20);
    }
    assert_eq!(answers, 1);
    assert_eq!(crew.sum("rx_arp_packets"), 1);
    let known: Vec<u64> = crew
        .lcores
        .iter()
        .map(|lcore| {
            let gauges = lcore.count().gauges;
            gauges
                .iter()
                .find(|(name, _)| *name == "neighbors")
                .unwrap()
                .1
        })
        .collect();
    assert_eq!(known, [1, 1, 1]);
}

#[test]
fn an_icmp_error_ends_the_connect_that_it_is_about_at_its_lcore() {
    let (a, mut b) = pair(FaultConfig::none(), FaultConfig::none(), 1_500);
    let mut crew = Crew::new(SERVER, a, 4);
    let (mut rx, mut tx) = b.queue_pair(0).unwrap();
    let mut now = Instant::from_millis(1);
    // Known to all: no ARP comes first.
    let mut body = vec![0, 1, 8, 0, 6, 4, 0, 2, 2, 0, 0, 0, 0, 0x0b];
    body.extend(CLIENT.octets());
    body.extend([2, 0, 0, 0, 0, 0x0a]);
    body.extend(SERVER.octets());
    let reply = from_client([8, 6], &body);
    for lcore in 0..4 {
        let object = crew.program.claim_at(lcore);
        crew.program.connect(object, SocketAddrV4::new(CLIENT, 81));
    }
    let mut syns = Vec::new();
    for _ in 0..50 {
        crew.turn(now);
        let mut asked = false;
        rx.rx_burst(now, &mut |frames| {
            for frame in frames {
                match frame.bytes[12..14] {
                    [8, 0] => syns.push(frame.bytes.to_vec()),
                    _ => asked = true,
                }
            }
        });
        if asked {
            put(tx.as_mut(), &reply);
            tx.flush(now);
        }
        now = now + Duration::from_millis(1);
    }
    assert_eq!(syns.len(), 4);
    for syn in &syns {
        // Port unreachable (RFC 792: type 3, code 3), with the header and 8 bytes of what it is about.
        let mut message = vec![3, 3, 0, 0, 0, 0, 0, 0];
        message.extend(&syn[14..14 + 28]);
        let sum = checksum(&message);
        message[2..4].copy_from_slice(&sum.to_be_bytes());
        let mut packet = vec![0x45, 0, 0, 56, 0, 1, 0, 0, 64, 1, 0, 0];
        packet.extend(CLIENT.octets());
        packet.extend(SERVER.octets());
        let sum = checksum(&packet);
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
        packet.extend(message);
        let error = from_client([8, 0], &packet);
        put(tx.as_mut(), &error);
    }
    tx.flush(now);
    for _ in 0..5 {
        crew.turn(now);
        now = now + Duration::from_micros(20);
    }
    let ended: Vec<_> = (0..4)
        .map(|lcore| crew.count(lcore, "flows_ended_icmp"))
        .collect();
    assert_eq!(ended, [1, 1, 1, 1]);
}

#[test]
fn frames_for_an_lcore_that_stands_still_are_dropped_and_counted() {
    let mut lab = Lab::new(2);
    let listener = lab.listen(64);
    let (out, into) = lab.connect(listener, 8);
    // ARP goes to all.
    let mut frames = vec![from_client([8, 6], &[0; 28]); 32];
    let counters = &lab.server.statuses[0].counters;
    let peers = lab.server.lcores[0].peers.as_mut().unwrap();
    for _ in 0..20 {
        let mut burst: Vec<_> = frames
            .iter_mut()
            .map(|bytes| RxFrame {
                bytes,
                meta: RxMeta::default(),
            })
            .collect();
        assert_eq!(peers.sort(&mut burst, counters), 32);
    }
    peers.publish();
    assert_eq!(counters.frames_dropped_ring_full.value(), 20 * 32 - 512);
    // It goes on, and so do its connections.
    carries(&mut lab, true, &out, &into);
    carries(&mut lab, false, &into, &out);
}
