//! Peers that say what is not true, and strangers that guess: they get little sent, and nobody else hears of it.

use core::time::Duration;

use super::peer::{ACK, FIN, Heard, PEER_ISS, PEER_PORT, Script, Segment};
use crate::id::FlowId;
use crate::stack::{FlowOptions, FlowState};

/// A connection whose peer is this test, behind so much that was acknowledged that some segments may leave at once, and the first
/// number that is not acknowledged.
fn open() -> (Script, FlowId, u32) {
    let mut script = Script::listening(FlowOptions {
        nodelay: true,
        ..FlowOptions::default()
    });
    let (flow, iss) = script.open(PEER_PORT);
    let mut una = iss + 1;
    for _ in 0..6 {
        script.host.stack.send(script.now, flow, &vec![7; 3_000]);
        while script.host.facts(flow).tx_acked < script.host.facts(flow).tx_total {
            script.wait(Duration::from_micros(500));
            una += in_flight(&script, flow);
            script.burst(&[has(una)]);
        }
    }
    (script, flow, una)
}

fn in_flight(script: &Script, flow: FlowId) -> u32 {
    let view = script.host.stack.view_of(script.now, flow);
    view.map_or(0, |view| view.in_flight)
}

/// The peer has everything below `ack`.
fn has(ack: u32) -> Segment {
    Segment::new(ACK, PEER_ISS + 1, ack)
}

fn bytes(heard: &[Heard]) -> usize {
    heard.iter().map(|segment| segment.payload.len()).sum()
}

#[test]
fn what_has_not_left_cannot_be_acknowledged() {
    let (mut script, flow, una) = open();
    script.host.stack.send(script.now, flow, &vec![7; 60_000]);
    script.wait(Duration::from_micros(10));
    let left = in_flight(&script, flow);
    assert!(left < 60_000, "{left}");
    let acked = script.host.facts(flow).tx_acked;
    let answer = script.ask(&has(una + left + 1));
    assert!(answer.is(ACK) && answer.payload.is_empty());
    script.burst(&[has(una + 60_000)]);
    assert_eq!(script.host.facts(flow).tx_acked, acked);
    // Nothing of it ends what was not ended.
    let later = script.wait(Duration::from_secs(5));
    assert!(later.iter().all(|(_, heard)| !heard.is(ACK | FIN)));
    assert_eq!(script.host.facts(flow).state, FlowState::Established);
}

#[test]
fn an_old_segment_of_a_stranger_acknowledges_nothing() {
    let (mut script, flow, una) = open();
    script.host.stack.send(script.now, flow, &vec![7; 1_000]);
    script.wait(Duration::from_micros(10));
    let acked = script.host.facts(flow).tx_acked;
    let mut guess = Segment::new(ACK, PEER_ISS.wrapping_sub(1 << 29), una + 1_000).carrying(b"x");
    guess.window = 0;
    let answer = script.ask(&guess);
    assert_eq!((answer.tcp.ack, answer.payload.len()), (PEER_ISS + 1, 0));
    assert_eq!(script.host.facts(flow).tx_acked, acked);
}

#[test]
fn an_end_that_comes_with_bytes_of_before_is_heard() {
    let (mut script, flow, una) = open();
    script.burst(&[has(una).carrying(b"hello")]);
    let mut again = has(una).carrying(b"hello");
    again.flags |= FIN;
    let answer = script.ask(&again);
    assert_eq!(answer.tcp.ack, PEER_ISS + 7);
    assert_eq!(script.host.facts(flow).state, FlowState::CloseWait);
}

#[test]
fn a_peer_that_acknowledges_byte_by_byte_gets_no_more_sent() {
    let (mut script, flow, una) = open();
    script.host.stack.send(script.now, flow, &vec![7; 8_000]);
    script.wait(Duration::from_micros(10));
    let left = in_flight(&script, flow);
    let end = una + left;
    let mut sent = 0;
    for got in 0..1_000 {
        let lie = has(una + got).holding(end - 5_000, end);
        sent += bytes(&script.burst(&[lie]));
    }
    assert!(sent < 3 * 1_460, "{left} under way, {sent} sent");
}

/// A connection under Nagle's rule: 100 bytes are under way, 200 wait for them.
fn held_back() -> (Script, FlowId, u32) {
    let mut script = Script::listening(FlowOptions::default());
    let (flow, iss) = script.open(PEER_PORT);
    script.host.stack.send(script.now, flow, b"x");
    script.wait(Duration::from_millis(1));
    script.burst(&[has(iss + 2)]);
    script.host.stack.send(script.now, flow, &[7; 100]);
    script.wait(Duration::from_micros(10));
    script.host.stack.send(script.now, flow, &[7; 200]);
    (script, flow, iss + 2)
}

/// Lengths of what is sent in `span`, questions not among them.
fn sent_in(script: &mut Script, span: Duration) -> Vec<usize> {
    let sent = script.wait(span);
    sent.iter()
        .map(|(_, heard)| heard.payload.len())
        .filter(|length| *length > 1)
        .collect()
}

#[test]
fn what_waits_for_more_is_sent_again_with_it_once() {
    let (mut script, flow, una) = held_back();
    assert_eq!(sent_in(&mut script, Duration::from_millis(400)), [300]);
    assert_eq!(script.host.facts(flow).retransmits, 1);
    script.burst(&[has(una + 300)]);
    assert!(sent_in(&mut script, Duration::from_secs(5)).is_empty());
}

#[test]
fn what_was_sent_again_with_more_tells_nothing_of_the_path() {
    let (mut script, flow, una) = held_back();
    let srtt = script.host.facts(flow).srtt_us;
    // It is asked, and has nothing.
    assert!(sent_in(&mut script, Duration::from_millis(100)).is_empty());
    assert_eq!(bytes(&script.burst(&[has(una)])), 300);
    assert_eq!(script.host.facts(flow).retransmits, 1);
    script.burst(&[has(una + 300)]);
    assert_eq!(script.host.facts(flow).srtt_us, srtt);
}

#[test]
fn false_reports_of_what_is_held_draw_a_segment() {
    let (mut script, flow, una) = open();
    script.host.stack.send(script.now, flow, &vec![7; 8_000]);
    script.wait(Duration::from_micros(10));
    let end = una + in_flight(&script, flow);
    let lies = [
        (end, una),
        (end + 5_000, end + 900_000),
        (una.wrapping_sub(9_000), una),
        (una.wrapping_sub(9_000), end),
        (una + 1, una.wrapping_add(1 << 31)),
        (una + 1, una),
        (una, una),
        (una + 1_460, end),
    ];
    let mut sent = 0;
    for turn in 0..2_000 {
        let (left, right) = lies[turn % lies.len()];
        sent += bytes(&script.burst(&[has(una).holding(left, right)]));
    }
    assert!(sent < 3 * 1_460, "{sent}");
    script.burst(&[has(end)]);
    assert_eq!(
        script.host.facts(flow).tx_acked,
        script.host.facts(flow).tx_total
    );
}

#[test]
fn a_window_that_flutters_draws_little() {
    for last in [false, true] {
        let (mut script, flow, una) = open();
        let seq = PEER_ISS + 1 + u32::from(last);
        if last {
            script.burst(&[Segment::new(ACK | FIN, PEER_ISS + 1, una)]);
        }
        script.host.stack.send(script.now, flow, &vec![7; 8_000]);
        script.wait(Duration::from_micros(10));
        script.host.stack.shutdown_write(script.now, flow);
        for windows in [[0, 1], [0, 60_000], [1, 60_000]] {
            let mut sent = 0;
            for turn in 0..1_000 {
                let mut told = Segment::new(ACK, seq, una);
                told.window = windows[turn % 2];
                sent += bytes(&script.burst(&[told]));
            }
            assert!(sent < 3 * 1_460, "{last} {windows:?}: {sent}");
        }
    }
}
