//! Idle connections give their memory back, and nothing is lost by it.

use core::time::Duration;

use super::peer::{ACK, PEER_ISS, PEER_PORT, Script, Segment};
use crate::id::FlowId;
use crate::stack::FlowOptions;
use crate::stack::sweep::REST_AFTER;

const NEXT: u32 = PEER_ISS + 1;
const PART: u32 = 1000;
const RING: u32 = 64 << 10;

/// What the stream carries from `offset` on.
fn pattern(offset: u32) -> Vec<u8> {
    (offset..offset + PART)
        .map(|at| (at / 7).to_le_bytes()[0])
        .collect()
}

fn script() -> (Script, FlowId, u32) {
    let mut script = Script::listening(FlowOptions {
        rx_bytes: RING,
        ..FlowOptions::default()
    });
    script.host.memory.rests = true;
    let (flow, iss) = script.open(PEER_PORT);
    (script, flow, iss + 1)
}

/// One part arrives and is read.
fn part(script: &mut Script, flow: FlowId, offset: u32, ack: u32) {
    script.burst(&[Segment::new(ACK, NEXT + offset, ack).carrying(&pattern(offset))]);
    script.host.memory.check_untouched();
    let read = script.host.read(script.now, flow, u64::from(offset));
    assert_eq!(read, pattern(offset), "at {offset}");
}

#[test]
fn an_idle_flow_rests_and_what_comes_later_arrives() {
    let (mut script, flow, ack) = script();
    let mut at = 0;
    for round in 1..=3 {
        // Small talk leaves it resting with the pages that it needed; bulk wakes all of it.
        let parts = if round == 1 { 3 } else { 200 };
        for _ in 0..parts {
            part(&mut script, flow, at, ack);
            at += PART;
        }
        script.wait(REST_AFTER * 3);
        assert_eq!(script.count("flows_rested"), round);
        let ring = &script.host.memory.rings[&script.host.ring(flow)];
        assert_eq!((ring.backed, ring.parts.len()), (0, 0));
        assert_eq!(script.host.stack.next_timer(), None, "nobody looks again");
    }
    // One request after the rest needs a page, or two where it lies across.
    part(&mut script, flow, at, ack);
    let ring = script.host.ring(flow);
    assert!(script.host.memory.rings[&ring].parts.len() <= 2);
}

#[test]
fn bytes_behind_a_gap_keep_their_memory() {
    let (mut script, flow, ack) = script();
    script.burst(&[Segment::new(ACK, NEXT + PART, ack).carrying(&pattern(PART))]);
    script.wait(REST_AFTER * 6);
    assert_eq!(script.count("flows_rested"), 0);
    script.burst(&[Segment::new(ACK, NEXT, ack).carrying(&pattern(0))]);
    let read = script.host.read(script.now, flow, 0);
    assert_eq!(read, [pattern(0), pattern(PART)].concat());
    script.wait(REST_AFTER * 3);
    assert_eq!(script.count("flows_rested"), 1, "the gap is filled");
}

#[test]
fn without_memory_a_segment_for_a_resting_flow_is_dropped_and_comes_again() {
    let (mut script, flow, ack) = script();
    part(&mut script, flow, 0, ack);
    script.wait(REST_AFTER * 3);
    assert_eq!(script.count("flows_rested"), 1);
    script.host.memory.gives = false;
    script.burst(&[Segment::new(ACK, NEXT + PART, ack).carrying(&pattern(PART))]);
    script.host.memory.check_untouched();
    assert_eq!(script.host.facts(flow).rx_total, u64::from(PART));
    script.host.memory.gives = true;
    part(&mut script, flow, PART, ack);
}

#[test]
fn what_is_not_read_or_not_acknowledged_keeps_its_memory() {
    let (mut script, flow, ack) = script();
    script.burst(&[Segment::new(ACK, NEXT, ack).carrying(&pattern(0))]);
    script.wait(REST_AFTER * 3);
    assert_eq!(script.count("flows_rested"), 0);
    assert_eq!(script.host.read(script.now, flow, 0), pattern(0));
    assert_eq!(script.host.stack.send(script.now, flow, b"answer"), 6);
    script.wait(Duration::from_secs(20));
    assert_eq!(script.count("flows_rested"), 0);
    script.tell(&Segment::new(ACK, NEXT + PART, ack + 6));
    script.wait(REST_AFTER * 3);
    assert_eq!(script.count("flows_rested"), 1);
}
