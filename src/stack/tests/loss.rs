//! How fast a loss is mended, on a path of 0.2 ms in virtual time.

use core::time::Duration;

use super::config;
use super::pair::{Faults, Pair};
use super::peer::{ACK, FIN, PEER_ISS, PEER_PORT, Script, Segment};
use crate::id::FlowId;
use crate::stack::{Close, FlowOptions, FlowState, StackConfig};

fn roomy(host: u8) -> StackConfig {
    StackConfig {
        tx_buffer_bytes: 256 << 10,
        ..config(host)
    }
}

/// Two ends with a connection between them; from then on the wire loses `loss` of 10 000 frames each way.
struct Path {
    pair: Pair,
    a: FlowId,
    b: FlowId,
    read: [u64; 2],
}

impl Path {
    fn new(loss: usize, seed: u64) -> Self {
        let mut pair = Pair::with(roomy(1), roomy(2), seed);
        pair.a.listen(80, 4);
        let (a, b) = pair.join();
        pair.faults = Faults {
            loss,
            ..Faults::default()
        };
        Self {
            pair,
            a,
            b,
            read: [0; 2],
        }
    }

    /// What happens now; both ends read.
    fn turn(&mut self) {
        self.pair.turn();
        let now = self.pair.now;
        self.read[0] += self.pair.a.read(now, self.a, self.read[0]).len() as u64;
        self.read[1] += self.pair.b.read(now, self.b, self.read[1]).len() as u64;
        self.pair.turn();
    }

    /// To the next event.
    fn advance(&mut self) {
        let next = self.pair.next().expect("nothing is under way");
        self.pair.now = next.max(self.pair.now + Duration::from_micros(1));
    }

    /// How long `bytes` from `a` take.
    fn carry(&mut self, bytes: u64) -> Duration {
        let begin = self.pair.now;
        let end = self.read[1] + bytes;
        let mut left = bytes;
        loop {
            let room = self.pair.a.facts(self.a).tx_room;
            let part = room.min(usize::try_from(left).unwrap());
            if part > 0 {
                let now = self.pair.now;
                left -= self.pair.a.stack.send(now, self.a, &vec![7; part]) as u64;
            }
            self.turn();
            if self.read[1] == end {
                return self.pair.now.since(begin);
            }
            self.advance();
        }
    }

    /// How long a request of 64 bytes takes until its answer of `bytes` is there.
    fn ask(&mut self, bytes: u64) -> Duration {
        let begin = self.pair.now;
        let (asked, answered) = (self.read[0] + 64, self.read[1] + bytes);
        self.pair.b.stack.send(begin, self.b, &[1; 64]);
        self.turn();
        while self.read[0] < asked {
            self.advance();
            self.turn();
        }
        let now = self.pair.now;
        let answer = vec![2; usize::try_from(bytes).unwrap()];
        assert_eq!(self.pair.a.stack.send(now, self.a, &answer), answer.len());
        self.turn();
        while self.read[1] < answered {
            self.advance();
            self.turn();
        }
        self.pair.now.since(begin)
    }
}

/// How long an answer of `bytes` takes in 999 of 1 000 cases, and in 990.
fn answers(bytes: u64, loss: usize) -> [Duration; 2] {
    let mut path = Path::new(loss, 5);
    let mut times: Vec<Duration> = (0..2_000).map(|_| path.ask(bytes)).collect();
    times.sort();
    let found = [990, 999].map(|part| times[times.len() * part / 1000]);
    println!("{bytes} bytes, {loss} of 10 000 frames lost: p99, p99.9 {found:?}");
    found
}

#[test]
fn a_lost_answer_comes_again_soon() {
    let millis = Duration::from_millis;
    for bytes in [64, 4 << 10, 32 << 10] {
        // By the engine's own time-out it were one second, and three.
        let [p99, p999] = answers(bytes, 100);
        assert!(p99 < millis(80) && p999 < millis(500));
    }
    let [p99, p999] = answers(4 << 10, 10);
    assert!(p99 < millis(1) && p999 < millis(100));
}

#[test]
fn a_stream_that_loses_goes_on() {
    // Mbit/s at the least; by the engine alone they were 190, 1 and 0, and on a clean path 6 700.
    for (loss, least) in [(0, 6_000), (10, 1_000), (100, 200), (300, 25)] {
        let mut path = Path::new(loss, 3);
        let took = path.carry(16 << 20);
        let rate = u128::from((16_u64 << 20) * 8 * 1000) / took.as_nanos();
        println!("{loss} of 10 000 frames lost: {rate} Mbit/s");
        assert!(rate >= least, "{rate} Mbit/s with {loss}");
        if loss == 0 {
            let counters = path.pair.a.stack.counters();
            assert_eq!(counters.segments_mended.value(), 0);
            assert_eq!(path.pair.a.facts(path.a).retransmits, 0);
        }
    }
}

/// What `script` hears in `span` but for acknowledgements: how long after now, sequence number, length.
fn heard(script: &mut Script, span: Duration) -> Vec<(u64, u32, usize)> {
    let begin = script.now;
    script
        .wait(span)
        .into_iter()
        .filter(|(_, heard)| !heard.payload.is_empty())
        .map(|(at, heard)| {
            let late = at.since(begin).as_millis();
            (
                u64::try_from(late).unwrap(),
                heard.tcp.seq,
                heard.payload.len(),
            )
        })
        .collect()
}

/// A connection whose peer is this test; a segment was sent and acknowledged after a millisecond.
pub(super) fn scripted() -> (Script, FlowId, u32) {
    let mut script = Script::listening(FlowOptions {
        nodelay: true,
        ..FlowOptions::default()
    });
    let (flow, iss) = script.open(PEER_PORT);
    script.host.stack.send(script.now, flow, b"x");
    script.wait(Duration::from_millis(1));
    script.tell(&Segment::new(ACK, PEER_ISS + 1, iss + 2));
    (script, flow, iss + 2)
}

#[test]
fn a_peer_that_is_late_is_asked_and_sent_nothing_again() {
    let (mut script, flow, una) = scripted();
    script.host.stack.send(script.now, flow, &[7; 100]);
    let sent = heard(&mut script, Duration::from_millis(150));
    assert_eq!(sent.len(), 2, "{sent:?}");
    assert_eq!(sent[0], (0, una, 100));
    // A byte that it has acknowledged, later than it may wait.
    assert_eq!((sent[1].1, sent[1].2), (una - 1, 1));
    assert!(sent[1].0 >= 40);
    script.tell(&Segment::new(ACK, PEER_ISS + 1, una + 100));
    assert_eq!(heard(&mut script, Duration::from_secs(2)), []);
    assert_eq!(script.host.facts(flow).retransmits, 0);
}

#[test]
fn a_peer_that_says_it_has_nothing_is_sent_it_once_and_then_ever_more_seldom() {
    let (mut script, flow, una) = scripted();
    script.host.stack.send(script.now, flow, &[7; 100]);
    let sent = heard(&mut script, Duration::from_millis(100));
    assert_eq!(sent.len(), 2, "{sent:?}");
    let nothing = Segment::new(ACK, PEER_ISS + 1, una);
    let again = script.burst(core::slice::from_ref(&nothing));
    assert_eq!((again[0].tcp.seq, again[0].payload.len()), (una, 100));
    // It answers each question so: what is too long for the path never arrives.
    let mut times = Vec::new();
    let begin = script.now;
    while script.now.since(begin) < Duration::from_secs(20) {
        for (_, seq, length) in heard(&mut script, Duration::from_millis(5)) {
            if length == 1 {
                times.extend(
                    script
                        .burst(core::slice::from_ref(&nothing))
                        .iter()
                        .map(|_| script.now),
                );
            } else {
                assert_eq!((seq, length), (una, 100));
                times.push(script.now);
            }
        }
    }
    assert!((5..10).contains(&times.len()), "{times:?}");
    let gaps: Vec<_> = times
        .windows(2)
        .map(|pair| pair[1].since(pair[0]))
        .collect();
    assert!(gaps.is_sorted(), "{gaps:?}");
}

/// As [`scripted`], behind so much that was acknowledged that six segments may leave at once.
fn wide() -> (Script, FlowId, u32) {
    let (mut script, flow, mut una) = scripted();
    let segment = usize::from(script.host.facts(flow).mss);
    for count in [1, 2, 3, 4, 5, 6] {
        script
            .host
            .stack
            .send(script.now, flow, &vec![7; count * segment]);
        while script.host.facts(flow).tx_acked < script.host.facts(flow).tx_total {
            script.wait(Duration::from_micros(500));
            una = script
                .host
                .stack
                .view_of(script.now, flow)
                .map_or(una, |view| una + view.in_flight);
            script.burst(&[Segment::new(ACK, PEER_ISS + 1, una)]);
        }
    }
    (script, flow, una)
}

/// Numbers and lengths of what leaves at once because of `segment`.
fn answers_to(script: &mut Script, segment: Segment) -> Vec<(u32, usize)> {
    script
        .burst(&[segment])
        .iter()
        .map(|heard| (heard.tcp.seq, heard.payload.len()))
        .collect()
}

#[test]
fn a_hole_is_mended_when_the_peer_holds_three_segments_behind_it() {
    let (mut script, flow, una) = wide();
    let segment = usize::from(script.host.facts(flow).mss);
    let step = u32::try_from(segment).unwrap();
    script
        .host
        .stack
        .send(script.now, flow, &vec![7; 5 * segment]);
    assert_eq!(heard(&mut script, Duration::from_micros(10)).len(), 5);
    let holds = |count: u32| {
        Segment::new(ACK, PEER_ISS + 1, una).holding(una + step, una + (1 + count) * step)
    };
    assert_eq!(answers_to(&mut script, holds(1)), []);
    assert_eq!(answers_to(&mut script, holds(3)), [(una, segment)]);
    assert_eq!(answers_to(&mut script, holds(4)), []);
    // The hole behind it too, as soon as it shows.
    let partial =
        Segment::new(ACK, PEER_ISS + 1, una + step).holding(una + 2 * step, una + 5 * step);
    assert_eq!(answers_to(&mut script, partial), [(una + step, segment)]);
}

#[test]
fn a_segment_that_is_overtaken_is_given_a_moment() {
    let (mut script, flow, una) = wide();
    let segment = usize::from(script.host.facts(flow).mss);
    let step = u32::try_from(segment).unwrap();
    script
        .host
        .stack
        .send(script.now, flow, &vec![7; 2 * segment]);
    assert_eq!(heard(&mut script, Duration::from_micros(10)).len(), 2);
    let holds = Segment::new(ACK, PEER_ISS + 1, una).holding(una + step, una + 2 * step);
    assert_eq!(answers_to(&mut script, holds), []);
    assert_eq!(heard(&mut script, Duration::from_micros(900)), []);
    let again = heard(&mut script, Duration::from_millis(3));
    assert_eq!(again.len(), 1, "{again:?}");
    assert_eq!((again[0].1, again[0].2), (una, segment));
}

#[test]
fn what_a_time_out_sends_again_left_now() {
    let (mut script, flow, una) = scripted();
    script.host.stack.send(script.now, flow, &[7; 100]);
    while script.host.facts(flow).retransmits == 0 {
        script.wait(Duration::from_millis(10));
    }
    let view = script.host.stack.view_of(script.now, flow).unwrap();
    assert!(view.quiet_ms <= 10, "{} ms", view.quiet_ms);
    // An acknowledgement of it says nothing of the path.
    let srtt = script.host.facts(flow).srtt_us;
    script.tell(&Segment::new(ACK, PEER_ISS + 1, una + 100));
    assert_eq!(script.host.facts(flow).srtt_us, srtt);
}

#[test]
fn a_flow_knows_nothing_of_the_losses_of_the_one_before() {
    let mut pair = Pair::with(roomy(1), roomy(2), 4);
    pair.a.listen(80, 4);
    for _ in 0..3 {
        let (a, b) = pair.join();
        let (_, cold) = pair.a.stack.table.look(a.index).unwrap();
        assert!(!cold.recovery.is_alert());
        pair.a.stack.send(pair.now, a, &[1; 9_000]);
        pair.cut = true;
        pair.run(Duration::from_millis(700));
        let (_, cold) = pair.a.stack.table.look(a.index).unwrap();
        assert!(cold.recovery.is_alert());
        pair.a.stack.close(pair.now, a, Close::Abort);
        pair.b.stack.close(pair.now, b, Close::Abort);
        pair.run(Duration::from_millis(10));
        pair.cut = false;
    }
}

#[test]
fn a_lost_fin_comes_again_soon() {
    let (mut script, flow, una) = scripted();
    script.host.stack.shutdown_write(script.now, flow);
    script.wait(Duration::from_millis(100));
    let nothing = Segment::new(ACK, PEER_ISS + 1, una);
    let again = script.burst(core::slice::from_ref(&nothing));
    assert_eq!(again.len(), 1);
    assert!(again[0].is(ACK | FIN));
    assert_eq!(again[0].tcp.seq, una);
}

#[test]
fn a_fin_that_gets_lost_again_and_again_comes_until_it_is_there() {
    let (mut script, flow, una) = scripted();
    script.host.stack.shutdown_write(script.now, flow);
    let mut fins = 0;
    // The peer says each time that all it has not got is the FIN.
    let nothing = Segment::new(ACK, PEER_ISS + 1, una);
    for _ in 0..20 {
        fins += script
            .wait(Duration::from_secs(2))
            .iter()
            .filter(|(_, heard)| heard.is(ACK | FIN))
            .count();
        fins += script
            .burst(core::slice::from_ref(&nothing))
            .iter()
            .filter(|heard| heard.is(ACK | FIN))
            .count();
    }
    assert!((8..16).contains(&fins), "{fins} in 40 s");
    assert_eq!(script.host.facts(flow).error, None);
    script.tell(&Segment::new(ACK, PEER_ISS + 1, una + 1));
    assert_eq!(script.host.facts(flow).state, FlowState::FinWait2);
    assert!(script.wait(Duration::from_secs(10)).is_empty());
}

#[test]
fn what_was_received_before_is_acknowledged_each_time() {
    let (mut script, _, una) = scripted();
    let bytes = Segment::new(ACK, PEER_ISS + 1, una).carrying(b"hello");
    script.burst(core::slice::from_ref(&bytes));
    for _ in 0..5 {
        let answer = script.ask(&bytes);
        assert_eq!((answer.tcp.ack, answer.payload.len()), (PEER_ISS + 6, 0));
    }
    // What comes with it counts: a FIN of before, and an acknowledgement of now.
    let fin = Segment::new(ACK | FIN, PEER_ISS + 6, una);
    script.burst(core::slice::from_ref(&fin));
    for _ in 0..3 {
        assert_eq!(script.ask(&fin).tcp.ack, PEER_ISS + 7);
    }
}

#[test]
fn a_window_that_closes_over_a_loss_is_asked_for() {
    let (mut script, flow, una) = scripted();
    script.host.stack.send(script.now, flow, &[7; 100]);
    script.wait(Duration::from_micros(10));
    let mut closed = Segment::new(ACK, PEER_ISS + 1, una);
    closed.window = 0;
    script.burst(core::slice::from_ref(&closed));
    // That it opens again is lost, or never told.
    script.wait(Duration::from_secs(100));
    assert!(!heard(&mut script, Duration::from_secs(130)).is_empty());
    let open = Segment::new(ACK, PEER_ISS + 1, una);
    script.burst(core::slice::from_ref(&open));
    let again = heard(&mut script, Duration::from_secs(130));
    assert!(
        again
            .iter()
            .any(|(_, seq, length)| (*seq, *length) == (una, 100)),
        "{again:?}"
    );
}

#[test]
fn a_window_that_closes_and_opens_over_a_loss_does_not_end_it() {
    let (mut script, flow, una) = scripted();
    script.host.stack.send(script.now, flow, &[7; 1_000]);
    assert_eq!(heard(&mut script, Duration::from_micros(10)).len(), 1);
    // The peer has some of it and closes, and opens by less than what is under way: the rest was beyond its window.
    for window in [0, 600] {
        let mut some = Segment::new(ACK, PEER_ISS + 1, una + 300);
        some.window = window;
        script.burst(&[some]);
    }
    let again = heard(&mut script, Duration::from_secs(5));
    assert!(
        again
            .iter()
            .filter(|(_, seq, length)| *seq == una + 300 && *length > 1)
            .count()
            >= 2,
        "{again:?}"
    );
    script.tell(&Segment::new(ACK, PEER_ISS + 1, una + 1_000));
    assert_eq!(script.host.facts(flow).tx_acked, 1_001);
    assert_eq!(heard(&mut script, Duration::from_secs(300)), []);
}

#[test]
fn a_reader_that_rests_and_a_path_that_loses_end_together() {
    for seed in 0..10 {
        let mut path = Path::new(500, seed);
        path.pair.faults.reorder = 300;
        path.pair.faults.duplicate = 300;
        let total = 600_000_u64;
        let mut left = usize::try_from(total).unwrap();
        let mut next_read = path.pair.now;
        let begin = path.pair.now;
        while path.read[1] < total {
            let room = path.pair.a.facts(path.a).tx_room.min(left);
            if room > 0 {
                let now = path.pair.now;
                left -= path.pair.a.stack.send(now, path.a, &vec![7; room]);
                if left == 0 {
                    path.pair.a.stack.shutdown_write(now, path.a);
                }
            }
            path.pair.turn();
            let now = path.pair.now;
            if now >= next_read {
                path.read[1] += path.pair.b.read(now, path.b, path.read[1]).len() as u64;
                next_read = now + Duration::from_millis(300);
                path.pair.turn();
            }
            let next = path.pair.next().map_or(next_read, |at| at.min(next_read));
            path.pair.now = next.max(path.pair.now + Duration::from_micros(1));
            assert!(
                path.pair.now.since(begin) < Duration::from_secs(30),
                "seed {seed}: {} read",
                path.read[1]
            );
        }
    }
}

#[test]
fn a_flight_that_is_lost_as_a_whole_comes_again_soon() {
    for flight in [8, 64, 200_u64] {
        let mut path = Path::new(0, 3);
        path.carry(4 << 20);
        path.turn();
        let now = path.pair.now;
        let bytes = usize::try_from(flight << 10).unwrap();
        assert_eq!(path.pair.a.stack.send(now, path.a, &vec![7; bytes]), bytes);
        path.pair.cut = true;
        path.turn();
        path.pair.cut = false;
        let end = path.read[1] + (flight << 10);
        while path.read[1] < end {
            path.advance();
            path.turn();
        }
        let took = path.pair.now.since(now);
        println!("{flight} KiB lost at once: {took:?}");
        assert!(took < Duration::from_millis(300), "{flight}: {took:?}");
    }
}

#[test]
fn what_is_too_long_for_a_path_that_becomes_narrower_comes_again_soon() {
    for flight in [2, 8, 64, 200_u64] {
        let mut path = Path::new(0, 3);
        path.carry(4 << 20);
        path.turn();
        path.pair.path_mtu = 1_280;
        let took = path.carry(flight << 10);
        println!("{flight} KiB too long: {took:?}");
        assert!(took < Duration::from_millis(10), "{flight}: {took:?}");
    }
}
