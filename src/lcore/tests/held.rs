//! What a cork or MSG_MORE holds back, and what lets it go.

use core::time::Duration;

use super::lab::Lab;
use crate::channel::cell::option;
use crate::channel::sync::Ordering;

/// A connection whose client has a cork.
fn corked() -> (Lab, u32, u32) {
    let (lab, out, into) = Lab::connected();
    set_cork(&lab, out, true);
    (lab, out, into)
}

fn set_cork(lab: &Lab, object: u32, on: bool) {
    let line = &lab.client.program.cell(object).option;
    let bits = if on { option::CORK } else { 0 };
    line.bits.store(bits, Ordering::Relaxed);
    line.changed.fetch_add(1, Ordering::Release);
    lab.client.program.ring(object);
}

/// Bytes that have come after so much time.
fn came(lab: &mut Lab, into: u32, span: Duration) -> usize {
    let end = lab.now + span;
    while lab.now < end {
        lab.turn();
    }
    lab.server.program.recv(into, 1 << 20).len()
}

#[test]
fn whole_segments_leave_and_the_rest_waits_for_its_time() {
    let (mut lab, out, into) = corked();
    let mss = 1_460;
    let mut sent = lab.client.program.send(out, &[7; 3_000]);
    assert_eq!(sent, 3_000);
    let at_once = Duration::from_millis(100);
    assert_eq!(came(&mut lab, into, at_once), 2 * mss);
    // More that does not fill it begins no new time.
    sent += lab.client.program.send(out, &[7; 100]);
    assert_eq!(came(&mut lab, into, Duration::from_millis(50)), 0);
    assert_eq!(
        came(&mut lab, into, Duration::from_millis(100)),
        sent - 2 * mss
    );
    let counters = &lab.client.status.counters;
    assert_eq!(counters.holds_timed_out.value(), 1);
}

#[test]
fn the_next_bytes_have_a_time_of_their_own() {
    let (mut lab, out, into) = corked();
    for _ in 0..2 {
        lab.client.program.send(out, b"ten bytes.");
        assert_eq!(came(&mut lab, into, Duration::from_millis(150)), 0);
        assert_eq!(came(&mut lab, into, Duration::from_millis(100)), 10);
    }
}

#[test]
fn what_is_filled_up_leaves_and_the_clock_stops() {
    let (mut lab, out, into) = corked();
    lab.client.program.send(out, &[1; 1_000]);
    assert_eq!(came(&mut lab, into, Duration::from_millis(50)), 0);
    lab.client.program.send(out, &[1; 460]);
    assert_eq!(came(&mut lab, into, Duration::from_millis(50)), 1_460);
    lab.client.program.send(out, b"rest");
    // The time of the first bytes would be over here.
    assert_eq!(came(&mut lab, into, Duration::from_millis(150)), 0);
    assert_eq!(came(&mut lab, into, Duration::from_millis(100)), 4);
}

#[test]
fn a_cork_that_is_pulled_and_a_push_let_go() {
    let (mut lab, out, into) = corked();
    let soon = Duration::from_millis(20);
    lab.client.program.send(out, b"first");
    assert_eq!(came(&mut lab, into, soon), 0);
    set_cork(&lab, out, false);
    assert_eq!(came(&mut lab, into, soon), 5);
    let write = &lab.client.program.cell(out).write;
    write.more.store(1, Ordering::Relaxed);
    lab.client.program.send(out, b"second");
    assert_eq!(came(&mut lab, into, soon), 0);
    let write = &lab.client.program.cell(out).write;
    write.pushed.store(11, Ordering::Relaxed);
    lab.client.program.ring(out);
    assert_eq!(came(&mut lab, into, soon), 6);
}

#[test]
fn an_end_takes_what_is_held_along() {
    for close in [false, true] {
        let (mut lab, out, into) = corked();
        lab.client.program.send(out, b"last");
        assert_eq!(came(&mut lab, into, Duration::from_millis(20)), 0);
        if close {
            lab.client.program.close(out);
        } else {
            lab.client.program.shutdown_write(out);
        }
        assert_eq!(came(&mut lab, into, Duration::from_millis(20)), 4);
        assert_eq!(lab.client.status.counters.holds_timed_out.value(), 0);
    }
}
