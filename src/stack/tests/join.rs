//! Segments of a burst that are joined before they are looked at.

use super::peer::{ACK, FIN, PEER_ISS, PEER_PORT, PSH, Script, Segment};
use crate::stack::FlowOptions;

const NEXT: u32 = PEER_ISS + 1;
const PIECE: u32 = 700;

/// Bytes of the stream from `at` on.
fn text(at: u32, bytes: u32) -> Vec<u8> {
    (at..at + bytes)
        .map(|place| u8::try_from(place % 251).unwrap())
        .collect()
}

/// Segment `number` of a stream of equal ones.
fn piece(number: u32, iss: u32) -> Segment {
    Segment::new(ACK, NEXT + number * PIECE, iss + 1).carrying(&text(number * PIECE, PIECE))
}

#[test]
fn a_run_of_segments_is_taken_as_one() {
    let mut script = Script::listening(FlowOptions::default());
    let (flow, iss) = script.open(PEER_PORT);
    let segments: Vec<Segment> = (0..5).map(|number| piece(number, iss)).collect();
    let heard = script.burst(&segments);
    assert_eq!(heard.last().unwrap().tcp.ack, NEXT + 5 * PIECE);
    assert_eq!(heard.len(), 1, "one acknowledgement for all of them");
    assert_eq!(script.host.read(script.now, flow, 0), text(0, 5 * PIECE));
    assert_eq!(script.count("rx_segments_joined"), 5);
    // The last acknowledgement of the handshake, and these.
    assert_eq!(script.count("rx_tcp_segments"), 2 + 5);
}

#[test]
fn flows_whose_segments_take_turns_get_their_own_bytes() {
    let mut script = Script::listening(FlowOptions::default());
    let (one, one_iss) = script.open(PEER_PORT);
    let (other, other_iss) = script.open(PEER_PORT + 1);
    let other_piece = |number| {
        let bytes: Vec<u8> = text(number * PIECE, PIECE)
            .iter()
            .map(|byte| !byte)
            .collect();
        Segment::new(ACK, NEXT + number * PIECE, other_iss + 1)
            .carrying(&bytes)
            .at_port(PEER_PORT + 1)
    };
    script.burst(&[
        piece(0, one_iss),
        piece(1, one_iss),
        other_piece(0),
        other_piece(1),
        piece(2, one_iss),
        other_piece(2),
    ]);
    assert_eq!(script.host.read(script.now, one, 0), text(0, 3 * PIECE));
    let inverted: Vec<u8> = text(0, 3 * PIECE).iter().map(|byte| !byte).collect();
    assert_eq!(script.host.read(script.now, other, 0), inverted);
    assert_eq!(script.count("rx_segments_joined"), 4);
}

#[test]
fn segments_behind_a_gap_are_answered_one_by_one() {
    let mut script = Script::listening(FlowOptions::default());
    let (flow, iss) = script.open(PEER_PORT);
    let behind: Vec<Segment> = (1..5).map(|number| piece(number, iss)).collect();
    let heard = script.burst(&behind);
    assert!(
        heard.len() >= 3,
        "the peer counts three duplicates: {heard:?}"
    );
    assert!(heard.iter().all(|one| one.tcp.ack == NEXT));
    script.burst(&[piece(0, iss)]);
    assert_eq!(script.host.read(script.now, flow, 0), text(0, 5 * PIECE));
    assert_eq!(script.count("rx_segments_joined"), 0);
}

#[test]
fn what_says_more_than_its_bytes_is_looked_at_by_itself() {
    let mut script = Script::listening(FlowOptions::default());
    let (flow, iss) = script.open(PEER_PORT);
    let at = |number: u32, flags| {
        Segment::new(flags, NEXT + number * PIECE, iss + 1).carrying(&text(number * PIECE, PIECE))
    };
    // A repetition in the middle, and an end.
    script.burst(&[
        at(0, ACK),
        at(0, ACK),
        at(1, ACK | PSH),
        at(2, ACK),
        at(3, ACK | FIN),
    ]);
    assert_eq!(script.host.read(script.now, flow, 0), text(0, 4 * PIECE));
    assert!(script.host.facts(flow).rx_finished);
    assert_eq!(script.count("rx_segments_joined"), 2);
}

#[test]
fn a_run_beyond_the_window_is_cut_where_the_window_ends() {
    let mut script = Script::listening(FlowOptions::default());
    let (flow, iss) = script.open(PEER_PORT);
    script.host.memory.gives = false;
    let segments: Vec<Segment> = (0..7).map(|number| piece(number, iss)).collect();
    let heard = script.burst(&segments);
    assert_eq!(heard.last().unwrap().tcp.ack, NEXT + 4096);
    script.host.memory.check_untouched();
    assert_eq!(script.host.read(script.now, flow, 0), text(0, 4096));
}
