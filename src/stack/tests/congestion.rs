//! The congestion window, which the engine keeps to itself, as it is measured.

use core::time::Duration;

use super::config;
use super::pair::Pair;
use super::peer::{ACK, PEER_ISS, PEER_PORT, Script, Segment};
use crate::id::FlowId;
use crate::stack::{FlowOptions, FlowView, StackConfig};

/// A sender that always has more than the window lets out, on a path of 40 ms.
struct Bulk {
    pair: Pair,
    from: FlowId,
    to: FlowId,
    read: u64,
}

impl Bulk {
    fn new(loss: usize) -> Self {
        let roomy = |host| StackConfig {
            tx_buffer_bytes: 256 << 10,
            ..config(host)
        };
        let mut pair = Pair::with(roomy(1), roomy(2), 11);
        pair.a.listen(80, 4);
        let (from, to) = pair.join();
        pair.delay = Duration::from_millis(20);
        pair.faults.loss = loss;
        Self {
            pair,
            from,
            to,
            read: 0,
        }
    }

    /// A turn at the next event.
    fn turn(&mut self) {
        let now = self.pair.now;
        let facts = self.pair.a.facts(self.from);
        self.pair
            .a
            .stack
            .send(now, self.from, &vec![1; facts.tx_room]);
        self.read += self.pair.b.read(now, self.to, self.read).len() as u64;
        self.pair.turn();
        let next = self.pair.next().expect("something is under way");
        self.pair.now = next.max(now + Duration::from_micros(1));
    }

    fn view(&self) -> FlowView {
        let facts = self.pair.a.facts(self.from);
        let stack = &self.pair.a.stack;
        stack
            .view_one(self.pair.now, facts.local, facts.remote)
            .expect("it lives")
    }

    /// What the engine itself says.
    fn truth(&self) -> u32 {
        let stack = &self.pair.a.stack;
        let index = stack.table.resolve(self.from).expect("it lives");
        let (hot, _) = stack.table.look(index).expect("it lives");
        hot.engine.congestion_window()
    }
}

#[test]
fn the_window_is_measured_where_it_is_in_the_way() {
    let mut bulk = Bulk::new(0);
    assert_eq!(bulk.view().congestion_window, None, "nothing was held up");
    let mut seen = Vec::new();
    for _ in 0..400 {
        bulk.turn();
        let view = bulk.view();
        // One that is as before may be of before: then something else is in the way now.
        let Some(measured) = view
            .congestion_window
            .filter(|measured| seen.last() != Some(measured))
        else {
            continue;
        };
        // What is in flight fills it but for less than a segment.
        let segment = u32::from(view.facts.mss);
        let truth = bulk.truth();
        assert_eq!(measured, view.in_flight);
        assert!(
            measured <= truth && truth < measured + segment,
            "measured {measured}, is {truth}"
        );
        seen.push(measured);
    }
    assert!(seen.len() >= 3 && seen.is_sorted(), "it grows: {seen:?}");
}

#[test]
fn a_loss_shows_in_the_measured_window() {
    let mut bulk = Bulk::new(100);
    let (mut most, mut least_after) = (0, u32::MAX);
    for _ in 0..4_000 {
        bulk.turn();
        if let Some(measured) = bulk.view().congestion_window {
            most = most.max(measured);
            if bulk.view().facts.retransmits > 0 {
                least_after = least_after.min(measured);
            }
        }
    }
    assert!(bulk.view().facts.retransmits > 0);
    assert!(least_after < most / 2, "{most}, then {least_after}");
}

#[test]
fn the_time_out_that_is_told_is_the_one_after_which_a_segment_leaves_again() {
    let mut script = Script::listening(FlowOptions::default());
    let (flow, iss) = script.open(PEER_PORT);
    let view = |script: &Script| script.host.stack.view_of(script.now, flow).unwrap();
    // An answer after 100 ms, and one after 190 ms.
    for (number, late) in [(1, 100), (2, 190)] {
        script.host.stack.send(script.now, flow, b"x");
        script.wait(Duration::from_millis(late));
        script.tell(&Segment::new(ACK, PEER_ISS + 1, iss + 1 + number));
    }
    assert!(view(&script).rttvar_us > 0);
    assert_eq!(view(&script).slow_start_threshold, None);
    script.host.stack.send(script.now, flow, &[7; 4000]);
    let mut told = view(&script).rto;
    let mut left = script.now;
    let mut seen = Vec::new();
    while seen.len() < 5 {
        for (at, heard) in script.wait(Duration::from_millis(1)) {
            match heard.payload.len() {
                // It begins when the peer was asked in vain.
                1 => left = at,
                0 => {}
                _ if at > left => {
                    seen.push((at.since(left), told));
                    (left, told) = (at, view(&script).rto);
                }
                _ => {}
            }
        }
    }
    for (took, told) in &seen {
        assert!(took.abs_diff(*told) <= *took / 100, "{seen:?}");
    }
    assert!(
        seen.last().unwrap().1 > 10 * seen.first().unwrap().1,
        "{seen:?}"
    );
    // 0.7 of what was on its way, but two segments at least.
    let mss = u32::from(view(&script).facts.mss);
    assert_eq!(
        view(&script).slow_start_threshold,
        Some((4000 / 10 * 7).max(2 * mss))
    );
}
