//! The end of sending to a peer that has ended before, whose window closes and opens (LAST-ACK, CLOSING).

use core::time::Duration;
use std::collections::VecDeque;

use super::loss::scripted as open;
use super::peer::{ACK, FIN, Heard, PEER_ISS, Script, Segment};
use crate::stack::FlowState;
use crate::time::Instant;

/// The peer's next number once it has ended.
const ENDED: u32 = PEER_ISS + 2;

/// An acknowledgement of a peer that has ended.
fn has(ack: u32, window: u16) -> Segment {
    let mut segment = Segment::new(ACK, ENDED, ack);
    segment.window = window;
    segment
}

/// What a peer has that answers, with `window`, each segment that carries something.
struct Taken {
    /// The number below which it has everything.
    next: u32,
    /// It has our FIN.
    ended: bool,
    /// When something came last that it did not have.
    at: Instant,
}

/// Lets the peer take from `next` on until nothing new comes for `span`.
fn take(script: &mut Script, next: u32, window: u16, span: Duration) -> Taken {
    let mut taken = Taken {
        next,
        ended: false,
        at: script.now,
    };
    let mut heard: VecDeque<Heard> = script.burst(&[has(next, window)]).into();
    while script.now.since(taken.at) < span {
        while let Some(segment) = heard.pop_front() {
            let length = u32::try_from(segment.payload.len()).unwrap();
            let is_end = segment.is(ACK | FIN);
            if segment.tcp.seq == taken.next && (length > 0 || is_end) {
                taken.next += length + u32::from(is_end);
                taken.ended |= is_end;
                taken.at = script.now;
            }
            if length > 0 || is_end {
                heard.extend(script.burst(&[has(taken.next, window)]));
            }
        }
        let later = script.wait(Duration::from_millis(1));
        heard.extend(later.into_iter().map(|(_, segment)| segment));
    }
    taken
}

#[test]
fn a_window_that_opens_in_last_ack_lets_the_rest_go() {
    let (mut script, flow, una) = open();
    script.burst(&[Segment::new(ACK | FIN, PEER_ISS + 1, una)]);
    script.host.stack.send(script.now, flow, &vec![7; 20_000]);
    script.wait(Duration::from_micros(10));
    script.host.stack.shutdown_write(script.now, flow);
    assert_eq!(script.host.facts(flow).state, FlowState::LastAck);
    // All that left is there, and there is no place for more.
    let mut next = una;
    for _ in 0..10 {
        script.burst(&[has(next, 0)]);
        next = script
            .host
            .stack
            .view_of(script.now, flow)
            .map_or(next, |view| next + view.in_flight);
        script.wait(Duration::from_millis(30));
    }
    script.wait(Duration::from_secs(100));
    assert!(next < una + 20_000);
    let begin = script.now;
    let taken = take(&mut script, next, 60_000, Duration::from_secs(3));
    assert_eq!((taken.next, taken.ended), (una + 20_001, true));
    assert!(taken.at.since(begin) < Duration::from_millis(100));
    assert_eq!(script.host.facts(flow).state, FlowState::Closed);
}

#[test]
fn a_program_that_ends_behind_a_closed_window_is_heard_to_its_last_byte() {
    for tells in [false, true] {
        let (mut script, flow, una) = open();
        script.burst(&[Segment::new(ACK | FIN, PEER_ISS + 1, una)]);
        script.host.stack.send(script.now, flow, &vec![7; 20_000]);
        script.wait(Duration::from_micros(10));
        // What is under way is lost, and its time-out finds the window closed.
        script.burst(&[has(una, 0)]);
        script.wait(Duration::from_secs(10));
        script.host.stack.shutdown_write(script.now, flow);
        script.wait(Duration::from_secs(100));
        // The peer tells of its window, or that is lost and it must be asked.
        let begin = script.now;
        while !tells && script.wait(Duration::from_millis(1)).is_empty() {}
        let taken = take(&mut script, una, 60_000, Duration::from_secs(5));
        assert_eq!((taken.next, taken.ended), (una + 20_001, true), "{tells}");
        let most = if tells { 1 } else { 130 };
        assert!(taken.at.since(begin) < Duration::from_secs(most), "{tells}");
    }
}

#[test]
fn a_fin_behind_a_closed_window_is_asked_for() {
    let (mut script, flow, una) = open();
    script.host.stack.send(script.now, flow, &[7; 500]);
    script.host.stack.shutdown_write(script.now, flow);
    script.wait(Duration::from_micros(10));
    // The peer ends at the same time and has a part, for which it has closed its window.
    let mut end = Segment::new(ACK | FIN, PEER_ISS + 1, una + 100);
    end.window = 0;
    script.burst(&[end]);
    assert_eq!(script.host.facts(flow).state, FlowState::Closing);
    script.wait(Duration::from_secs(30));
    // That it opens is lost: a question brings it.
    let asked = script.wait(Duration::from_secs(125));
    assert!(asked.iter().any(|(_, heard)| heard.payload.len() == 1));
    let taken = take(&mut script, una + 100, 60_000, Duration::from_secs(5));
    assert_eq!((taken.next, taken.ended), (una + 501, true));
}

#[test]
fn what_was_asked_for_behind_a_closed_window_is_no_round_trip() {
    let (mut script, flow, una) = open();
    let before = script.host.facts(flow).srtt_us;
    script.host.stack.send(script.now, flow, &[7; 100]);
    script.wait(Duration::from_micros(10));
    let mut closed = Segment::new(ACK, PEER_ISS + 1, una);
    closed.window = 0;
    script.burst(&[closed]);
    script.wait(Duration::from_secs(20));
    script.burst(&[Segment::new(ACK, PEER_ISS + 1, una + 100)]);
    assert_eq!(script.host.facts(flow).tx_acked, 101);
    assert_eq!(script.host.facts(flow).srtt_us, before);
}

#[test]
fn what_is_lost_in_last_ack_behind_a_closed_window_comes_again() {
    let (mut script, flow, una) = open();
    script.burst(&[Segment::new(ACK | FIN, PEER_ISS + 1, una)]);
    script.host.stack.send(script.now, flow, &vec![7; 20_000]);
    script.wait(Duration::from_micros(10));
    script.host.stack.shutdown_write(script.now, flow);
    assert_eq!(script.host.facts(flow).state, FlowState::LastAck);
    let under_way = script
        .host
        .stack
        .view_of(script.now, flow)
        .map_or(0, |view| view.in_flight);
    assert!(under_way > 1_460, "{under_way}");
    // The first segment is there and has filled the window; the rest is lost.
    script.burst(&[has(una + 1_460, 0)]);
    script.wait(Duration::from_secs(20));
    let begin = script.now;
    let taken = take(&mut script, una + 1_460, 60_000, Duration::from_secs(3));
    assert_eq!((taken.next, taken.ended), (una + 20_001, true));
    assert!(taken.at.since(begin) < Duration::from_millis(500));
}

/// Whether all of `bytes` from `una` on is sent again within 150 ms, when each question is answered by `told`.
fn comes_soon(script: &mut Script, told: &Segment, una: u32, bytes: usize) -> bool {
    let begin = script.now;
    let mut heard = script.burst(core::slice::from_ref(told));
    while !heard
        .iter()
        .any(|heard| heard.tcp.seq == una && heard.payload.len() == bytes)
    {
        if script.now.since(begin) > Duration::from_millis(150) {
            return false;
        }
        heard = if heard.is_empty() {
            let later = script.wait(Duration::from_millis(1));
            later.into_iter().map(|(_, heard)| heard).collect()
        } else {
            script.burst(core::slice::from_ref(told))
        };
    }
    true
}

#[test]
fn a_window_that_opens_ends_a_long_wait() {
    for last in [false, true] {
        let (mut script, flow, una) = open();
        let told = |window| {
            let mut segment = Segment::new(ACK, PEER_ISS + 1 + u32::from(last), una);
            segment.window = window;
            segment
        };
        if last {
            script.burst(&[Segment::new(ACK | FIN, PEER_ISS + 1, una)]);
        }
        script.host.stack.send(script.now, flow, &[7; 700]);
        script.wait(Duration::from_micros(10));
        if last {
            script.host.stack.shutdown_write(script.now, flow);
            assert_eq!(script.host.facts(flow).state, FlowState::LastAck);
        }
        // It is lost again and again, and the next time-out is far away.
        script.wait(Duration::from_secs(60));
        script.burst(&[told(0)]);
        assert!(comes_soon(&mut script, &told(60_000), una, 700), "{last}");
    }
}

#[test]
fn the_window_of_an_acknowledgement_that_was_overtaken_does_not_count() {
    let (mut script, flow, una) = open();
    script.burst(&[Segment::new(ACK | FIN, PEER_ISS + 1, una)]);
    script.host.stack.send(script.now, flow, &vec![7; 20_000]);
    script.wait(Duration::from_micros(10));
    let view = |script: &Script| script.host.stack.view_of(script.now, flow).unwrap();
    let there = view(&script).in_flight;
    script.burst(&[has(una + there, 0)]);
    // One from before, with a window of then.
    script.burst(&[has(una, 50_000)]);
    assert_eq!(view(&script).peer_window.0, 0);
    script.host.stack.shutdown_write(script.now, flow);
    assert_eq!(
        script.host.facts(flow).state,
        FlowState::CloseWait,
        "it waits for the window"
    );
    let taken = take(&mut script, una + there, 60_000, Duration::from_secs(3));
    assert_eq!((taken.next, taken.ended), (una + 20_001, true));
}
