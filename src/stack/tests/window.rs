//! The receive ring, its memory, and the window that follows from it.

use core::net::SocketAddrV4;
use core::time::Duration;

use super::address;
use super::pair::Pair;
use super::peer::{ACK, FIN, PEER_ISS, PEER_PORT, PSH, SYN, Script, Segment};
use crate::stack::handshake::shift_of;
use crate::stack::{FlowOptions, FlowState};

const NEXT: u32 = PEER_ISS + 1;

fn ring(bytes: u32) -> FlowOptions {
    FlowOptions {
        rx_bytes: bytes,
        ..FlowOptions::default()
    }
}

/// The window scale option of a SYN-ACK.
fn scale(bytes: &[u8]) -> Option<u8> {
    let end = 34 + usize::from(bytes[46] >> 4) * 4;
    let mut options = &bytes[54..end];
    while let [kind, rest @ ..] = options {
        match kind {
            0 => return None,
            1 => options = rest,
            3 => return Some(rest[1]),
            _ => options = &options[usize::from(rest[0])..],
        }
    }
    None
}

#[test]
fn smoltcp_announces_the_scale_that_we_count_with() {
    for bytes in [4096_u32, 1 << 16, 1 << 17, 256 << 10, 1 << 20] {
        let mut script = Script::listening(ring(bytes));
        let answer = script.ask(&Segment::syn());
        assert_eq!(
            scale(&answer.bytes),
            Some(shift_of(bytes as usize)),
            "{bytes}"
        );
    }
}

#[test]
fn the_window_begins_at_one_page_and_grows_with_use() {
    let mut script = Script::listening(ring(64 << 10));
    let answer = script.ask(&Segment::syn());
    assert_eq!(answer.tcp.window, 4096);
    script.tell(&Segment::new(ACK, NEXT, answer.tcp.seq + 1));
    let flow = script.host.accept()[0];
    let shift = shift_of(64 << 10);
    let mut at = 0;
    let mut edges = vec![(0, 4096)];
    while at < 70_000 {
        let heard =
            script.ask(&Segment::new(ACK, NEXT + at, answer.tcp.seq + 1).carrying(&[7; 1000]));
        at += 1000;
        let read = script.host.read(script.now, flow, u64::from(at) - 1000);
        assert_eq!(read, [7; 1000]);
        assert_eq!(heard.tcp.ack, NEXT + at);
        edges.push((at, at + (u32::from(heard.tcp.window) << shift)));
        script.host.memory.check_untouched();
    }
    // The edge never moves back by more than the scale rounds off, and follows the memory.
    assert!(
        edges
            .windows(2)
            .all(|pair| pair[1].1 + (1 << shift) > pair[0].1),
        "{edges:?}"
    );
    assert_eq!(edges[2].1, 4096);
    assert!(
        edges[3].1 > 8000,
        "more than half of the page is used: {edges:?}"
    );
    assert!(
        edges.last().unwrap().1 > 130_000,
        "the whole ring is backed: {edges:?}"
    );
}

#[test]
fn what_lies_beyond_the_window_is_never_written() {
    let mut script = Script::listening(ring(64 << 10));
    let (flow, iss) = script.open(PEER_PORT);
    // Starts inside, ends beyond, with a FIN that must not count.
    let heard = script.ask(&Segment::new(ACK | FIN, NEXT + 4000, iss + 1).carrying(&[9; 1400]));
    assert_eq!(heard.tcp.ack, NEXT);
    // Wholly beyond.
    let heard = script.ask(&Segment::new(ACK, NEXT + 5000, iss + 1).carrying(&[9; 1400]));
    assert_eq!(heard.tcp.ack, NEXT);
    script.host.memory.check_untouched();
    assert_eq!(script.count("rx_segments_trimmed"), 1);
    assert_eq!(script.count("rx_segments_beyond_window"), 1);
    let filled = [[1; 1000], [2; 1000], [3; 1000], [4; 1000]].concat();
    let heard = script.burst(&[
        Segment::new(ACK, NEXT, iss + 1).carrying(&filled[..1400]),
        Segment::new(ACK, NEXT + 1400, iss + 1).carrying(&filled[1400..2800]),
        Segment::new(ACK, NEXT + 2800, iss + 1).carrying(&filled[2800..]),
    ]);
    // The 96 bytes that fitted were kept.
    assert_eq!(heard.last().unwrap().tcp.ack, NEXT + 4096);
    assert!(!script.host.facts(flow).rx_finished);
    let bytes = script.host.read(script.now, flow, 0);
    assert_eq!(
        (&bytes[..4000], &bytes[4000..]),
        (&filled[..], &[9; 96][..])
    );
}

#[test]
fn without_memory_the_window_closes_and_opens_again_when_there_is_some() {
    let mut script = Script::listening(ring(64 << 10));
    let (flow, iss) = script.open(PEER_PORT);
    script.host.memory.gives = false;
    let full = [5; 4096];
    let segments: Vec<Segment> = full
        .chunks(1024)
        .zip(0_u32..)
        .map(|(part, number)| Segment::new(ACK, NEXT + number * 1024, iss + 1).carrying(part))
        .collect();
    let heard = script.burst(&segments);
    let last = heard.last().unwrap();
    assert_eq!((last.tcp.ack, last.tcp.window), (NEXT + 4096, 0));
    assert!(script.count("ring_growth_refused") > 0);
    // A probe of one byte is answered and not taken.
    let answer = script.ask(&Segment::new(ACK, NEXT + 4096, iss + 1).carrying(&[6]));
    assert_eq!((answer.tcp.ack, answer.tcp.window), (NEXT + 4096, 0));
    assert_eq!(script.host.read(script.now, flow, 0), full);
    script.host.memory.check_untouched();
    script.host.memory.gives = true;
    let heard = script.wait(Duration::from_millis(50));
    let (_, update) = heard.last().expect("the peer must be told");
    assert_eq!(update.tcp.ack, NEXT + 4096);
    assert_eq!(
        u32::from(update.tcp.window) << shift_of(64 << 10),
        4096,
        "{update:?}"
    );
    let answer = script.ask(&Segment::new(ACK, NEXT + 4096, iss + 1).carrying(&[6]));
    assert_eq!(answer.tcp.ack, NEXT + 4097);
}

#[test]
fn a_slow_reader_closes_the_window_and_opens_it_by_reading() {
    let mut script = Script::listening(ring(4096));
    let (flow, iss) = script.open(PEER_PORT);
    let heard = script.burst(&[
        Segment::new(ACK, NEXT, iss + 1).carrying(&[1; 2048]),
        Segment::new(ACK, NEXT + 2048, iss + 1).carrying(&[2; 2048]),
    ]);
    assert_eq!(heard.len(), 1, "one ACK a burst: {heard:?}");
    assert_eq!((heard[0].tcp.ack, heard[0].tcp.window), (NEXT + 4096, 0));
    script.host.read(script.now, flow, 0);
    let heard = script.wait(Duration::from_millis(1));
    assert_eq!(
        (heard[0].1.tcp.ack, heard[0].1.tcp.window),
        (NEXT + 4096, 4096)
    );
}

#[test]
fn a_false_consumed_count_harms_nobody() {
    let mut script = Script::listening(ring(4096));
    let (flow, iss) = script.open(PEER_PORT);
    script.ask(&Segment::new(ACK | PSH, NEXT, iss + 1).carrying(&[1; 100]));
    script.host.stack.consumed(script.now, flow, 50);
    script.host.stack.consumed(script.now, flow, 20);
    script.host.stack.consumed(script.now, flow, u64::MAX);
    let answer = script.ask(&Segment::new(ACK | PSH, NEXT + 100, iss + 1).carrying(&[2; 100]));
    assert_eq!(answer.tcp.window, 3996, "100 bytes are not read");
    assert_eq!(script.host.facts(flow).rx_total, 200);
}

#[test]
fn bytes_lie_at_their_offset_modulo_the_capacity_also_out_of_order() {
    let mut script = Script::listening(ring(4096));
    let (flow, iss) = script.open(PEER_PORT);
    let byte = |offset: u32| u8::try_from(offset % 251).unwrap();
    let mut at = 0_u32;
    for round in 0..50_u32 {
        // Three pieces, the first one last.
        let pieces: Vec<Segment> = (0..3)
            .rev()
            .map(|piece| {
                let start = at + piece * 700;
                let bytes: Vec<u8> = (start..start + 700).map(byte).collect();
                Segment::new(ACK, NEXT + start, iss + 1).carrying(&bytes)
            })
            .collect();
        script.burst(&pieces);
        let bytes = script.host.read(script.now, flow, u64::from(at));
        let expected: Vec<u8> = (at..at + 2100).map(byte).collect();
        assert_eq!(bytes, expected, "round {round}");
        at += 2100;
        script.wait(Duration::from_millis(1));
    }
}

#[test]
fn data_with_an_old_acknowledgement_is_taken() {
    let mut script = Script::listening(ring(64 << 10));
    let (flow, iss) = script.open(PEER_PORT);
    script.host.stack.send(script.now, flow, &[1; 100]);
    script.wait(Duration::from_millis(1));
    script.tell(&Segment::new(ACK, NEXT, iss + 101));
    let answer = script.ask(&Segment::new(ACK, NEXT, iss + 50).carrying(b"crossed"));
    assert_eq!(answer.tcp.ack, NEXT + 7);
    assert_eq!(script.host.facts(flow).tx_acked, 100);
}

#[test]
fn a_small_ring_needs_no_scale_and_a_peer_without_scale_gets_none() {
    let mut script = Script::listening(ring(256 << 10));
    let answer = script.ask(&Segment {
        options: vec![2, 4, 5, 180],
        ..Segment::syn()
    });
    assert_eq!(scale(&answer.bytes), None);
    script.tell(&Segment::new(ACK, NEXT, answer.tcp.seq + 1));
    let heard = script.ask(&Segment::new(ACK, NEXT, answer.tcp.seq + 1).carrying(&[1; 1000]));
    assert_eq!(heard.tcp.window, 3096);
    assert!(answer.is(SYN | ACK));
}

#[test]
fn a_lowered_mtu_of_the_port_cuts_smaller_segments() {
    let mut script = Script::listening(FlowOptions::default());
    let (flow, _) = script.open(PEER_PORT);
    let longest = |script: &mut Script, flow, text: &[u8]| {
        script.host.stack.send(script.now, flow, text);
        let sent = script.wait(Duration::from_millis(20));
        sent.iter().map(|(_, heard)| heard.bytes.len()).max()
    };
    // Segments of the peer's MSS first.
    let before = longest(&mut script, flow, &[1; 3_000]).unwrap();
    script.host.stack.set_port_mtu(600);
    assert_eq!(script.count("flows_mtu_lowered"), 1);
    let (other, _) = script.open(PEER_PORT + 1);
    let after = longest(&mut script, other, &[2; 3_000]).unwrap();
    assert!(before > 614 && after <= 614, "{before} {after}");
    script.host.stack.set_port_mtu(1_500);
    let (third, _) = script.open(PEER_PORT + 2);
    assert_eq!(longest(&mut script, third, &[3; 3_000]), Some(before));
    assert_eq!(script.count("flows_mtu_lowered"), 1);
}

#[test]
fn an_answer_carries_the_acknowledgement_once_the_program_has_shown_that_it_answers() {
    let mut script = Script::listening(FlowOptions::default());
    let (flow, iss) = script.open(PEER_PORT);
    let (mut seq, mut ack) = (NEXT, iss + 1);
    let answer = |script: &mut Script, seq: u32, ack: u32| {
        script
            .host
            .read(script.now, flow, u64::from(seq - NEXT) - 4);
        assert_eq!(script.host.stack.send(script.now, flow, b"pong"), 4);
        let heard = script.burst(&[]);
        assert_eq!(heard.len(), 1);
        assert_eq!((heard[0].tcp.seq, heard[0].tcp.ack), (ack, seq));
        assert_eq!(heard[0].payload, b"pong");
    };
    // Nothing is known of it yet.
    let first = script.ask(&Segment::new(ACK | PSH, seq, ack).carrying(b"ping"));
    assert!(first.is(ACK));
    seq += 4;
    answer(&mut script, seq, ack);
    ack += 4;
    // Now it is.
    for _ in 0..3 {
        script.tell(&Segment::new(ACK | PSH, seq, ack).carrying(b"ping"));
        seq += 4;
        answer(&mut script, seq, ack);
        ack += 4;
    }
    // Two segments are acknowledged at once, answer or not.
    script.tell(&Segment::new(ACK, seq, ack).carrying(&[1; 1460]));
    let both = script.ask(&Segment::new(ACK, seq + 1460, ack).carrying(&[1; 1460]));
    seq += 2920;
    assert_eq!((both.tcp.ack, both.payload.len()), (seq, 0));
}

#[test]
fn an_acknowledgement_waits_40_ms_for_an_answer_and_not_again() {
    let mut script = Script::listening(FlowOptions::default());
    let (flow, iss) = script.open(PEER_PORT);
    script.ask(&Segment::new(ACK | PSH, NEXT, iss + 1).carrying(b"ping"));
    script.host.stack.send(script.now, flow, b"pong");
    assert_eq!(script.burst(&[]).len(), 1);
    script.tell(&Segment::new(ACK | PSH, NEXT + 4, iss + 5).carrying(b"note"));
    let begin = script.now;
    let late = script.wait(Duration::from_millis(200));
    assert_eq!(late.len(), 1);
    assert_eq!(late[0].1.tcp.ack, NEXT + 8);
    let waited = late[0].0.since(begin);
    assert!(
        waited >= Duration::from_millis(40) && waited < Duration::from_millis(50),
        "{waited:?}"
    );
    // It did not answer: the next one is acknowledged at once.
    let next = script.ask(&Segment::new(ACK | PSH, NEXT + 8, iss + 5).carrying(b"note"));
    assert_eq!(next.tcp.ack, NEXT + 12);
}

#[test]
fn everything_below_an_advertised_edge_is_taken_whatever_was_acknowledged_since() {
    for odd in 1..=9_u32 {
        let mut script = Script::listening(ring(256 << 10));
        let (flow, iss) = script.open(PEER_PORT);
        let shift = shift_of(256 << 10);
        let (mut at, mut edge) = (0, 4096);
        let mut send = |script: &mut Script, at: &mut u32, bytes: u32| {
            let payload = vec![7; bytes as usize];
            let heard = script.burst(&[Segment::new(ACK, NEXT + *at, iss + 1).carrying(&payload)]);
            *at += bytes;
            for one in heard {
                edge = edge.max(one.tcp.ack - NEXT + (u32::from(one.tcp.window) << shift));
            }
            edge
        };
        while at < 400_000 {
            send(&mut script, &mut at, 1000 + odd);
            script
                .host
                .read(script.now, flow, u64::from(at - 1000 - odd));
        }
        // Nothing is read any more: the peer fills what it was ever offered.
        let mut left = send(&mut script, &mut at, odd) - at;
        assert!(left > 200_000, "{left}");
        while left > 0 {
            left = send(&mut script, &mut at, left.min(1400 - odd)) - at;
        }
        let heard = script.ask(&Segment::new(ACK, NEXT + at, iss + 1).carrying(&[8]));
        assert_eq!(heard.tcp.ack, NEXT + at, "{odd}");
    }
}

/// A ring of 64 KiB, of which the program wants no more than `kib` KiB as its window.
fn ceiling(kib: u16) -> FlowOptions {
    FlowOptions {
        window_kib: kib,
        ..ring(64 << 10)
    }
}

const SHIFT: u8 = 1;

#[test]
fn a_small_receive_buffer_holds_the_window_down_and_reading_opens_it() {
    let mut script = Script::listening(ceiling(2));
    let answer = script.ask(&Segment::syn());
    assert_eq!(answer.tcp.window, 2_048);
    assert_eq!(shift_of(64 << 10), SHIFT);
    let iss = answer.tcp.seq;
    script.tell(&Segment::new(ACK, NEXT, iss + 1));
    let flow = script.host.accept()[0];
    let mut read = 0;
    for round in 0..40_u32 {
        let at = NEXT + round * 2_048;
        let heard = script.burst(&[
            Segment::new(ACK, at, iss + 1).carrying(&[1; 1_024]),
            Segment::new(ACK, at + 1_024, iss + 1).carrying(&[2; 1_024]),
            // Beyond what may come.
            Segment::new(ACK, at + 2_048, iss + 1).carrying(&[3; 1_024]),
        ]);
        let last = heard.last().unwrap();
        assert_eq!((last.tcp.ack, last.tcp.window), (at + 2_048, 0), "{round}");
        read += script.host.read(script.now, flow, read).len() as u64;
        let heard = script.wait(Duration::from_millis(1));
        let update = heard.last().expect("the peer must be told").1.tcp.window;
        assert_eq!(u32::from(update) << SHIFT, 2_048, "{round}");
    }
    script.host.memory.check_untouched();
}

#[test]
fn a_receive_buffer_set_later_takes_nothing_back_and_a_larger_one_opens_at_once() {
    let mut script = Script::listening(ring(64 << 10));
    let (flow, iss) = script.open(PEER_PORT);
    // 4096 were advertised with the SYN-ACK.
    script.host.stack.set_options(flow, &ceiling(2));
    let full: Vec<Segment> = (0..4)
        .map(|part| Segment::new(ACK, NEXT + part * 1_024, iss + 1).carrying(&[5; 1_024]))
        .collect();
    let heard = script.burst(&full);
    let last = &heard.last().unwrap().tcp;
    assert_eq!((last.ack, last.window), (NEXT + 4_096, 0));
    // Half of it is read: what is not read is still as much as may be there.
    script.host.stack.consumed(script.now, flow, 2_048);
    assert!(script.wait(Duration::from_millis(1)).is_empty());
    script.host.stack.set_options(flow, &ceiling(8));
    let heard = script.wait(Duration::from_millis(1));
    let update = heard.last().expect("the peer must be told").1.tcp.window;
    assert_eq!(
        u32::from(update) << SHIFT,
        4_096,
        "as far as there is memory"
    );
}

#[test]
fn little_room_is_not_told_of() {
    let mut script = Script::listening(ceiling(4));
    let (flow, iss) = script.open(PEER_PORT);
    let full: Vec<Segment> = (0..4)
        .map(|part| Segment::new(ACK, NEXT + part * 1_024, iss + 1).carrying(&[5; 1_024]))
        .collect();
    script.burst(&full);
    script.host.stack.consumed(script.now, flow, 1_000);
    // A probe finds the window closed: 1000 bytes are less than a segment.
    let answer = script.ask(&Segment::new(ACK, NEXT + 4_096, iss + 1).carrying(&[6]));
    assert_eq!((answer.tcp.ack, answer.tcp.window), (NEXT + 4_096, 0));
    script.host.stack.consumed(script.now, flow, 2_000);
    let heard = script.wait(Duration::from_millis(1));
    let update = heard.last().expect("the peer must be told").1.tcp.window;
    assert_eq!(u32::from(update) << SHIFT, 2_000);
}

#[test]
fn an_answer_that_the_program_makes_between_two_turns_carries_the_first_acknowledgement() {
    let mut script = Script::listening(FlowOptions::default());
    script.host.stack.await_program();
    let (flow, iss) = script.open(PEER_PORT);
    script.tell(&Segment::new(ACK | PSH, NEXT, iss + 1).carrying(b"ping"));
    script.host.read(script.now, flow, 0);
    script.host.stack.send(script.now, flow, b"pong");
    let heard = script.burst(&[]);
    assert_eq!(heard.len(), 1);
    assert_eq!(
        (heard[0].payload.as_slice(), heard[0].tcp.ack),
        (b"pong".as_slice(), NEXT + 4)
    );
    // The end of the peer, and ours.
    script.tell(&Segment::new(ACK | FIN, NEXT + 4, iss + 5));
    script.host.stack.shutdown_write(script.now, flow);
    let heard = script.burst(&[]);
    assert_eq!(heard.len(), 1);
    assert!(heard[0].is(ACK | FIN));
    assert_eq!(heard[0].tcp.ack, NEXT + 5);
    assert!(!script.host.stack.await_no_more(), "all was carried");
}

#[test]
fn an_acknowledgement_that_nobody_carries_leaves_with_the_first_idle_turn_or_after_a_millisecond() {
    for idles in [true, false] {
        let mut script = Script::listening(FlowOptions::default());
        script.host.stack.await_program();
        let (_, iss) = script.open(PEER_PORT);
        let ping = Segment::new(ACK | PSH, NEXT, iss + 1).carrying(b"ping");
        script.tell(&ping);
        assert!(script.burst(&[]).is_empty());
        let begin = script.now;
        let heard = if idles {
            assert!(script.host.stack.await_no_more());
            script.burst(&[]).pop().map(|heard| (script.now, heard))
        } else {
            script.wait(Duration::from_millis(30)).pop()
        };
        let (at, heard) = heard.unwrap();
        assert!(heard.is(ACK) && heard.payload.is_empty());
        assert_eq!(heard.tcp.ack, NEXT + 4);
        assert!(at.since(begin) <= Duration::from_millis(2));
        // More than a first request is acknowledged at once.
        let more = script.ask(&Segment::new(ACK | PSH, NEXT + 4, iss + 1).carrying(b"more"));
        assert_eq!(more.tcp.ack, NEXT + 8);
    }
}

#[test]
fn the_end_of_a_handshake_waits_for_the_request() {
    let mut pair = Pair::new();
    pair.a.stack.await_program();
    pair.b.listen(80, 16);
    let remote = SocketAddrV4::new(address(2), 80);
    let flow = pair.a.connect(pair.now, remote);
    let mut steps = 0;
    while pair.a.facts(flow).state != FlowState::Established {
        pair.run(Duration::from_micros(100));
        steps += 1;
        assert!(steps < 100, "no hand-shake");
    }
    assert!(pair.b.accept().is_empty(), "nothing was acknowledged yet");
    pair.a.stack.send(pair.now, flow, b"request");
    pair.run(Duration::from_micros(300));
    let accepted = pair.b.accept();
    assert_eq!(accepted.len(), 1);
    assert_eq!(pair.b.read(pair.now, accepted[0], 0), b"request");
    assert_eq!(
        pair.b.stack.counters().rx_tcp_segments.value(),
        2,
        "SYN and request"
    );
}
