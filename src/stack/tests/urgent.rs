//! Urgent pointers in both directions, segment by segment.

use core::time::Duration;

use super::config;
use super::pair::Pair;
use super::peer::{ACK, FIN, PEER_ISS, PEER_PORT, PSH, Script, Segment};
use crate::id::FlowId;
use crate::stack::{FlowOptions, StackConfig, UrgentMark};

const URG: u8 = 0x20;

fn open() -> (Script, FlowId, u32) {
    let mut script = Script::listening(FlowOptions::default());
    let (flow, iss) = script.open(PEER_PORT);
    (script, flow, iss)
}

/// A segment of the peer whose urgent pointer says `pointer`.
fn pointing(script: &mut Script, segment: &Segment, pointer: u16) {
    let mut frame = Segment {
        flags: segment.flags | URG,
        ..segment.clone()
    }
    .bytes(1, None);
    frame[14 + 38..14 + 40].copy_from_slice(&pointer.to_be_bytes());
    super::super::interface::seal(&mut frame[14..], false).unwrap();
    script.raw(&mut [frame]);
}

fn mark(end: u64, overtaken: u64) -> UrgentMark {
    UrgentMark { end, overtaken }
}

/// The urgent pointer of a segment of ours; None without the flag.
fn pointer_of(bytes: &[u8]) -> Option<u16> {
    (bytes[14 + 33] & URG != 0).then(|| u16::from_be_bytes([bytes[14 + 38], bytes[14 + 39]]))
}

#[test]
fn a_pointer_names_the_byte_before_it() {
    let (mut script, flow, iss) = open();
    let data = Segment::new(ACK | PSH, PEER_ISS + 1, iss + 1).carrying(b"abc");
    pointing(&mut script, &data, 3);
    let facts = script.host.facts(flow);
    assert_eq!((facts.rx_total, facts.urgent), (3, mark(3, 0)));
    assert_eq!(script.count("urgent_marks"), 1);
    // The same segment again is no news, nor is a pointer to what was received.
    pointing(&mut script, &data, 3);
    pointing(
        &mut script,
        &Segment::new(ACK, PEER_ISS + 4, iss + 1).carrying(b"d"),
        0,
    );
    assert_eq!(script.host.facts(flow).urgent, mark(4, 3));
    assert_eq!(script.count("urgent_marks"), 2);
}

#[test]
fn a_pointer_may_run_ahead_of_the_bytes() {
    let (mut script, flow, iss) = open();
    pointing(&mut script, &Segment::new(ACK, PEER_ISS + 1, iss + 1), 10);
    let facts = script.host.facts(flow);
    assert_eq!((facts.rx_total, facts.urgent), (0, mark(10, 0)));
    // A later segment repeats it.
    pointing(
        &mut script,
        &Segment::new(ACK, PEER_ISS + 1, iss + 1).carrying(b"12345"),
        10,
    );
    assert_eq!(script.host.facts(flow).urgent, mark(10, 0));
    assert_eq!(script.count("urgent_marks"), 1);
}

#[test]
fn a_byte_that_was_read_is_not_overtaken() {
    let (mut script, flow, iss) = open();
    let first = Segment::new(ACK, PEER_ISS + 1, iss + 1).carrying(b"a");
    pointing(&mut script, &first, 1);
    script.host.read(script.now, flow, 0);
    let second = Segment::new(ACK, PEER_ISS + 2, iss + 1).carrying(b"b");
    pointing(&mut script, &second, 1);
    assert_eq!(script.host.facts(flow).urgent, mark(2, 0));
}

#[test]
fn a_pointer_behind_the_end_marks_nothing() {
    let (mut script, flow, iss) = open();
    script.burst(&[Segment::new(ACK | FIN, PEER_ISS + 1, iss + 1)]);
    pointing(&mut script, &Segment::new(ACK, PEER_ISS + 2, iss + 1), 5);
    assert_eq!(script.host.facts(flow).urgent, mark(0, 0));
}

#[test]
fn who_guesses_marks_nothing() {
    let (mut script, flow, iss) = open();
    let next = PEER_ISS + 1;
    for (seq, ack) in [
        // Anywhere ahead of the window, and behind what was received.
        (next.wrapping_add(1 << 30), iss + 1),
        (next.wrapping_sub(1000), iss + 1),
        // In the window, but it acknowledges what was never sent, or what nobody remembers.
        (next, iss + 1000),
        (next, (iss + 1).wrapping_sub((1 << 30) + 1)),
    ] {
        pointing(&mut script, &Segment::new(ACK, seq, ack), 100);
        assert_eq!(script.host.facts(flow).urgent, mark(0, 0), "{seq} {ack}");
    }
    assert_eq!(script.count("urgent_marks"), 0);
    let data = Segment::new(ACK | PSH, next, iss + 1).carrying(b"abc");
    pointing(&mut script, &data, 3);
    assert_eq!(script.host.facts(flow).urgent, mark(3, 0));
}

#[test]
fn segments_point_until_the_urgent_byte_is_acknowledged() {
    let (mut script, flow, iss) = open();
    // Something in flight, so that Nagle's rule would hold a small segment back.
    script.host.stack.send(script.now, flow, b"first");
    let sent = script.burst(&[]);
    assert_eq!(sent.len(), 1);
    assert_eq!(pointer_of(&sent[0].bytes), None);
    script.host.stack.mark_urgent(flow, 8);
    script.host.stack.send(script.now, flow, b"abc");
    let sent = script.burst(&[]);
    assert_eq!(sent.len(), 1, "urgent bytes wait for nobody");
    assert_eq!(sent[0].payload, b"abc");
    assert_eq!(pointer_of(&sent[0].bytes), Some(3));
    // Sent again it points from where it begins.
    let again = script.wait(Duration::from_secs(3));
    let (_, again) = again
        .iter()
        .find(|(_, heard)| heard.payload.len() > 1)
        .unwrap();
    assert_eq!(again.tcp.seq, iss + 1);
    assert_eq!(pointer_of(&again.bytes), Some(8));
    script.burst(&[Segment::new(ACK, PEER_ISS + 1, iss + 9)]);
    script.host.stack.send(script.now, flow, b"x");
    let sent = script.burst(&[]);
    assert_eq!(pointer_of(&sent[0].bytes), None);
    // And Nagle's rule holds again.
    script.host.stack.send(script.now, flow, b"y");
    assert!(script.burst(&[]).is_empty());
}

#[test]
fn an_acknowledgement_alone_does_not_point() {
    let (mut script, flow, iss) = open();
    script.host.stack.mark_urgent(flow, 3);
    script.host.stack.send(script.now, flow, b"abc");
    script.burst(&[]);
    let answer = script.ask(&Segment::new(ACK | FIN, PEER_ISS + 1, iss + 1));
    assert_eq!(pointer_of(&answer.bytes), None);
}

#[test]
fn no_segment_of_urgent_data_is_cut_by_the_port() {
    for urgent in [false, true] {
        let cutting = StackConfig {
            tx_checksum_offload: true,
            tso_bytes: 65_000,
            ..config(2)
        };
        let mut pair = Pair::with(config(1), cutting, 1);
        pair.b.port.fills = true;
        pair.a.listen(80, 4);
        let (a, b) = pair.join();
        // The window opens as bytes come.
        for _ in 0..4 {
            let from = pair.a.facts(a).rx_total;
            pair.b.stack.send(pair.now, b, &[7; 10_000]);
            if urgent {
                let end = pair.b.facts(b).tx_total;
                pair.b.stack.mark_urgent(b, end);
            }
            pair.run(Duration::from_millis(50));
            pair.a.read(pair.now, a, from);
        }
        let facts = pair.a.facts(a);
        assert_eq!(facts.rx_total, 40_000);
        assert_eq!(facts.urgent.end, if urgent { 40_000 } else { 0 });
        assert_eq!(pair.b.port.super_frames == 0, urgent);
    }
}
