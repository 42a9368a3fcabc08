//! What the guard lets pass (RFC 9293 section 3.10.7, RFC 5961).

use core::time::Duration;

use super::config;
use super::peer::{ACK, FIN, PEER_ISS, PEER_PORT, PSH, RST, SYN, Script, Segment};
use crate::errno::Errno;
use crate::stack::isn::isn;
use crate::stack::{Change, Close, FlowOptions, FlowState, SEGMENT_MIN, StackConfig};

const NEXT: u32 = PEER_ISS + 1;

#[test]
fn the_initial_sequence_number_is_that_of_rfc_6528() {
    let mut script = Script::listening(FlowOptions::default());
    for port in [PEER_PORT, PEER_PORT + 1] {
        let answer = script.ask(&Segment::syn().at_port(port));
        assert_eq!(answer.tcp.seq, isn(script.now, script.key(port), &[1; 16]));
    }
}

#[test]
fn a_syn_sent_again_gets_the_same_answer_at_once() {
    let mut script = Script::listening(FlowOptions::default());
    let first = script.ask(&Segment::syn());
    script.now = script.now + Duration::from_millis(200);
    let again = script.ask(&Segment::syn());
    assert_eq!(first.bytes, again.bytes);
    assert_eq!(script.host.stack.live_flows(), 1);
    assert_eq!(script.count("syn_acks_sent_again"), 1);
}

#[test]
fn a_syn_for_an_open_flow_is_challenged() {
    let mut script = Script::listening(FlowOptions::default());
    let (flow, iss) = script.open(PEER_PORT);
    let answer = script.ask(&Segment {
        seq: 77_777,
        ..Segment::syn()
    });
    assert!(answer.is(ACK));
    assert_eq!((answer.tcp.seq, answer.tcp.ack), (iss + 1, NEXT));
    assert_eq!(script.host.facts(flow).state, FlowState::Established);
    // The restarted peer answers with the exact reset, and its next SYN finds a listener.
    script.tell(&Segment::new(RST, answer.tcp.ack, 0));
    assert_eq!(script.host.facts(flow).error, Some(Errno::CONNRESET));
    assert!(
        script
            .ask(&Segment {
                seq: 77_777,
                ..Segment::syn()
            })
            .is(SYN | ACK)
    );
}

#[test]
fn challenges_are_limited() {
    let mut script = Script::listening(FlowOptions::default());
    script.open(PEER_PORT);
    let mut answers = 0;
    for _ in 0..100 {
        answers += script
            .burst(&vec![
                Segment {
                    seq: 9,
                    ..Segment::syn()
                };
                32
            ])
            .len();
    }
    assert!((1000..1100).contains(&answers), "{answers}");
    assert_eq!(
        script.count("challenge_acks_limited"),
        3200 - answers as u64
    );
}

#[test]
fn only_the_exact_reset_ends_a_flow() {
    let mut script = Script::listening(FlowOptions::default());
    let (flow, _) = script.open(PEER_PORT);
    script.tell(&Segment::new(RST, NEXT - 1, 0));
    assert!(script.ask(&Segment::new(RST, NEXT + 1, 0)).is(ACK));
    assert!(script.ask(&Segment::new(RST | ACK, NEXT + 4000, 0)).is(ACK));
    script.tell(&Segment::new(RST, NEXT + 5000, 0));
    assert_eq!(script.host.facts(flow).error, None);
    script.tell(&Segment::new(RST, NEXT, 0));
    let facts = script.host.facts(flow);
    assert_eq!(
        (facts.state, facts.error),
        (FlowState::Closed, Some(Errno::CONNRESET))
    );
    assert!(
        script
            .host
            .changes
            .contains(&Change::Flow { flow, token: 9 })
    );
    script.host.stack.close(script.now, flow, Close::Graceful);
    assert!(script.wait(Duration::from_secs(1)).is_empty());
    assert_eq!(script.host.stack.facts(flow), None);
}

#[test]
fn a_reset_with_data_unread_leaves_the_data() {
    let mut script = Script::listening(FlowOptions::default());
    let (flow, iss) = script.open(PEER_PORT);
    script.ask(&Segment::new(ACK | PSH, NEXT, iss + 1).carrying(b"last words"));
    script.tell(&Segment::new(RST, NEXT + 10, 0));
    assert_eq!(script.host.facts(flow).error, Some(Errno::CONNRESET));
    assert_eq!(script.host.read(script.now, flow, 0), b"last words");
}

#[test]
fn a_reset_after_the_peers_fin_is_a_broken_pipe() {
    let mut script = Script::listening(FlowOptions::default());
    let (flow, iss) = script.open(PEER_PORT);
    script.ask(&Segment::new(ACK | FIN, NEXT, iss + 1));
    script.tell(&Segment::new(RST, NEXT + 1, 0));
    assert_eq!(script.host.facts(flow).error, Some(Errno::PIPE));
}

#[test]
fn a_reset_drops_a_half_open_flow() {
    let mut script = Script::listening(FlowOptions::default());
    script.ask(&Segment::syn());
    script.tell(&Segment::new(RST, NEXT + 1, 0).at_port(PEER_PORT + 1));
    // In the window, but not exact.
    assert!(script.ask(&Segment::new(RST, NEXT + 1, 0)).is(ACK));
    assert_eq!(script.host.stack.live_flows(), 1);
    script.tell(&Segment::new(RST, NEXT, 0));
    assert_eq!(script.host.stack.live_flows(), 0);
    assert_eq!(script.host.memory.returned.len(), 1);
    assert!(script.host.changes.is_empty(), "nobody was told of it");
    assert!(script.ask(&Segment::new(ACK, NEXT, 1)).is(RST));
}

#[test]
fn a_full_accept_queue_drops_syns_and_the_last_ack() {
    let mut script = Script::new();
    let listener = script.host.listen(80, 3);
    let answers: Vec<u32> = (0..3)
        .map(|port| {
            script
                .ask(&Segment::syn().at_port(PEER_PORT + port))
                .tcp
                .seq
        })
        .collect();
    // Too many handshakes at once.
    script.tell(&Segment::syn().at_port(PEER_PORT + 9));
    assert_eq!(script.count("syn_dropped_backlog_full"), 1);
    script.host.stack.set_backlog(listener, 1);
    let ack = |port: u16| {
        Segment::new(ACK, NEXT, answers[usize::from(port)] + 1).at_port(PEER_PORT + port)
    };
    script.tell(&ack(0));
    script.tell(&ack(1));
    // Linux queues one more than the backlog; the third waits outside.
    script.tell(&ack(2));
    assert_eq!(script.count("ack_dropped_accept_queue_full"), 1);
    script.tell(&Segment::syn().at_port(PEER_PORT + 9));
    assert_eq!(script.count("syn_dropped_accept_queue_full"), 1);
    assert_eq!(script.host.accept().len(), 2);
    script.tell(&ack(2));
    assert_eq!(script.host.accept().len(), 1);
    assert_eq!(script.count("flows_accepted"), 3);
}

#[test]
fn the_oldest_handshake_gives_way_after_a_second() {
    let mut script = Script::new();
    script.host.listen(80, 3);
    for port in 0..3 {
        script.ask(&Segment::syn().at_port(PEER_PORT + port));
    }
    script.wait(Duration::from_millis(900));
    script.tell(&Segment::syn().at_port(PEER_PORT + 9));
    assert_eq!(script.count("syn_dropped_backlog_full"), 1);
    script.wait(Duration::from_millis(200));
    // Each new SYN takes the place of one old handshake.
    for port in 10..13 {
        assert!(
            script
                .ask(&Segment::syn().at_port(PEER_PORT + port))
                .is(SYN | ACK)
        );
        assert_eq!(script.host.stack.live_flows(), 3);
    }
    assert_eq!(script.count("flows_gave_way_half_open"), 3);
    // These are young.
    script.tell(&Segment::syn().at_port(PEER_PORT + 20));
    assert_eq!(script.count("syn_dropped_backlog_full"), 2);
    assert_eq!(script.host.memory.returned.len(), 3);
}

#[test]
fn handshakes_that_fill_the_flow_table_give_way_too() {
    let mut script = Script::with(StackConfig {
        max_flows: 3,
        ..config(1)
    });
    // A backlog that no flood can fill here.
    script.host.listen(80, 100);
    for port in 0..3 {
        script.ask(&Segment::syn().at_port(PEER_PORT + port));
    }
    script.tell(&Segment::syn().at_port(PEER_PORT + 9));
    assert_eq!(script.count("syn_dropped_flow_table_full"), 1);
    script.wait(Duration::from_millis(1_100));
    for port in 10..13 {
        script.open(PEER_PORT + port);
    }
    assert_eq!(script.count("flows_gave_way_half_open"), 3);
    // Connections never give way.
    script.wait(Duration::from_millis(1_100));
    script.tell(&Segment::syn().at_port(PEER_PORT + 20));
    assert_eq!(script.count("syn_dropped_flow_table_full"), 2);
    assert_eq!(script.host.stack.live_flows(), 3);
}

#[test]
fn unlisten_resets_half_open_and_waiting_flows() {
    let mut script = Script::new();
    let listener = script.host.listen(80, 3);
    let first = script.ask(&Segment::syn());
    script.ask(&Segment::syn().at_port(PEER_PORT + 1));
    script.tell(&Segment::new(ACK, NEXT, first.tcp.seq + 1));
    script.host.changes.clear();
    let host = &mut script.host;
    host.stack
        .unlisten(script.now, listener, &mut host.memory, &mut host.port);
    let resets = script.wait(Duration::from_millis(1));
    assert_eq!(
        resets
            .iter()
            .filter(|(_, heard)| heard.is(RST | ACK))
            .count(),
        2
    );
    assert_eq!(script.host.stack.live_flows(), 0);
    assert_eq!(script.host.memory.returned.len(), 2);
    let gone = script
        .host
        .changes
        .iter()
        .filter(|change| matches!(change, Change::Gone { .. }))
        .count();
    assert_eq!(gone, 1, "only the one that waited was ever told of");
    // The port is free, and strangers hear so.
    assert!(script.ask(&Segment::syn()).is(RST | ACK));
    script.host.listen(80, 3);
}

#[test]
fn strangers_are_reset_as_rfc_9293_says_and_not_without_end() {
    let mut script = Script::new();
    let reset = script.ask(&Segment::syn());
    assert!(reset.is(RST | ACK));
    assert_eq!((reset.tcp.seq, reset.tcp.ack), (0, NEXT));
    let reset = script.ask(&Segment::new(ACK, 1, 4711).carrying(b"?"));
    assert!(reset.is(RST));
    assert_eq!(reset.tcp.seq, 4711);
    script.tell(&Segment::new(RST, 1, 1));
    let mut answers = 0;
    for _ in 0..100 {
        answers += script.burst(&vec![Segment::syn(); 32]).len();
    }
    assert!((900..1100).contains(&answers), "{answers}");
    assert_eq!(script.count("resets_limited"), 3200 - answers as u64);
}

#[test]
fn no_memory_drops_the_syn() {
    let mut script = Script::listening(FlowOptions::default());
    script.host.memory.rings_left = 0;
    script.tell(&Segment::syn());
    assert_eq!(script.count("syn_dropped_no_memory"), 1);
    script.host.memory.rings_left = 1;
    assert!(script.ask(&Segment::syn()).is(SYN | ACK));
}

#[test]
fn segment_sizes_are_clamped_both_ways() {
    let mut script = Script::listening(FlowOptions {
        max_segment: 500,
        ..FlowOptions::default()
    });
    let answer = script.ask(&Segment {
        options: vec![2, 4, 35, 40],
        ..Segment::syn()
    });
    assert_eq!(answer.tcp.mss, Some(500));
    script.tell(&Segment::new(ACK, NEXT, answer.tcp.seq + 1));
    let flow = script.host.accept()[0];
    assert_eq!(script.host.facts(flow).mss, 500);
    script.host.stack.send(script.now, flow, &[1; 1200]);
    let sizes: Vec<usize> = script
        .wait(Duration::from_millis(1))
        .iter()
        .map(|(_, heard)| heard.payload.len())
        .collect();
    assert_eq!(sizes, [500, 500], "the rest waits for Nagle");
}

#[test]
fn one_acknowledgement_opens_the_window_by_a_bounded_number_of_segments() {
    let mut script = Script::listening(FlowOptions {
        max_segment: 1,
        ..FlowOptions::default()
    });
    let (flow, iss) = script.open(PEER_PORT);
    let segment = u32::from(script.host.facts(flow).mss);
    assert_eq!(
        segment,
        u32::from(SEGMENT_MIN),
        "what no program may ask for"
    );
    let window = |script: &Script| {
        let table = &script.host.stack.table;
        let index = table.resolve(flow).unwrap();
        table.look(index).unwrap().0.engine.congestion_window()
    };
    let mut acked = iss + 1;
    let mut grown = 0;
    for _ in 0..12 {
        let room = script.host.facts(flow).tx_room;
        script.host.stack.send(script.now, flow, &vec![1; room]);
        for (_, heard) in script.wait(Duration::from_millis(1)) {
            acked += u32::try_from(heard.payload.len()).unwrap();
        }
        let before = window(&script);
        for heard in script.burst(&[Segment::new(ACK, NEXT, acked)]) {
            acked += u32::try_from(heard.payload.len()).unwrap();
        }
        grown = grown.max(window(&script) - before);
    }
    // All pieces, and the acknowledgement itself.
    assert_eq!(grown, 65 * segment);
}

#[test]
fn closing_with_unread_bytes_resets() {
    let mut script = Script::listening(FlowOptions::default());
    let (flow, iss) = script.open(PEER_PORT);
    script.ask(&Segment::new(ACK | PSH, NEXT, iss + 1).carrying(b"unread"));
    script.host.stack.close(script.now, flow, Close::Graceful);
    let heard = script.wait(Duration::from_secs(1));
    assert_eq!(heard.len(), 1);
    assert!(heard[0].1.is(RST | ACK));
    assert_eq!(
        (heard[0].1.tcp.seq, heard[0].1.tcp.ack),
        (iss + 1, NEXT + 6)
    );
    assert_eq!(script.host.stack.live_flows(), 0);
}

#[test]
fn data_after_close_resets() {
    let mut script = Script::listening(FlowOptions::default());
    let (flow, iss) = script.open(PEER_PORT);
    script.host.stack.close(script.now, flow, Close::Graceful);
    let fin = script.wait(Duration::from_millis(1));
    assert!(fin[0].1.is(FIN | ACK));
    script.tell(&Segment::new(ACK, NEXT, iss + 2));
    let heard = script.burst(&[Segment::new(ACK | PSH, NEXT, iss + 2).carrying(b"late")]);
    assert!(heard.iter().any(|heard| heard.is(RST | ACK)), "{heard:?}");
    assert_eq!(script.host.stack.live_flows(), 0);
    assert_eq!(script.count("flows_reset_data_after_close"), 1);
}

#[test]
fn abort_resets() {
    let mut script = Script::listening(FlowOptions::default());
    let (flow, _) = script.open(PEER_PORT);
    script.host.stack.close(script.now, flow, Close::Abort);
    let heard = script.wait(Duration::from_secs(1));
    assert_eq!(heard.len(), 1);
    assert!(heard[0].1.is(RST | ACK));
    assert!(
        script
            .host
            .changes
            .contains(&Change::Gone { flow, token: 9 })
    );
}

/// Brings a flow that we close first to TIME-WAIT; returns our next sequence number.
fn rest(script: &mut Script) -> u32 {
    let (flow, iss) = script.open(PEER_PORT);
    script.host.stack.close(script.now, flow, Close::Graceful);
    script.wait(Duration::from_millis(1));
    let last = script.ask(&Segment::new(FIN | ACK, NEXT, iss + 2));
    assert!(last.is(ACK));
    assert_eq!((last.tcp.seq, last.tcp.ack), (iss + 2, NEXT + 1));
    assert_eq!(
        script.host.stack.live_flows(),
        0,
        "the flow is freed at once"
    );
    assert_eq!(script.host.memory.returned.len(), 1);
    iss + 2
}

#[test]
fn time_wait_answers_the_fin_again() {
    let mut script = Script::listening(FlowOptions::default());
    let snd_nxt = rest(&mut script);
    script.now = script.now + Duration::from_secs(1);
    let again = script.ask(&Segment::new(FIN | ACK, NEXT, snd_nxt));
    assert!(again.is(ACK));
    assert_eq!((again.tcp.seq, again.tcp.ack), (snd_nxt, NEXT + 1));
}

#[test]
fn time_wait_gives_way_to_a_newer_syn_only() {
    let mut script = Script::listening(FlowOptions::default());
    let snd_nxt = rest(&mut script);
    let old = script.ask(&Segment::syn());
    assert!(old.is(ACK), "an old SYN is only acknowledged");
    let new = script.ask(&Segment {
        seq: NEXT + 100,
        ..Segment::syn()
    });
    assert!(new.is(SYN | ACK));
    assert!(
        new.tcp.seq.wrapping_sub(snd_nxt) > 60_000 && new.tcp.seq.wrapping_sub(snd_nxt) < 1 << 31
    );
    assert_eq!(script.host.stack.time_wait.len(), 0);
}

#[test]
fn a_guess_does_not_lead_our_answers_away() {
    let mut script = Script::listening(FlowOptions::default());
    let (flow, iss) = script.open(PEER_PORT);
    let mut forged = Segment::new(ACK, NEXT + 500_000, iss + 1).bytes(1, None);
    forged[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 66]);
    script.raw(&mut [forged]);
    script.others.clear();
    script.host.stack.send(script.now, flow, b"secret");
    assert_eq!(
        script.wait(Duration::from_millis(1))[0].1.payload,
        b"secret"
    );
    // The peer itself may move, and its next segment says where to.
    let mut moved = Segment::new(ACK, NEXT, iss + 7).bytes(1, None);
    moved[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 3]);
    script.raw(&mut [moved]);
    script.host.stack.send(script.now, flow, b"again");
    script.wait(Duration::from_millis(1));
    assert_eq!(script.others[0][..6], [2, 0, 0, 0, 0, 3]);
}

#[test]
fn a_panic_drops_one_flow_and_the_stack_lives() {
    let mut script = Script::listening(FlowOptions::default());
    let (first, iss) = script.open(PEER_PORT);
    let (second, other_iss) = script.open(PEER_PORT + 1);
    script.host.stack.poison = true;
    let reset = script.ask(&Segment::new(ACK | PSH, NEXT, iss + 1).carrying(b"boom"));
    script.host.stack.poison = false;
    assert!(reset.is(RST | ACK));
    assert_eq!(reset.tcp.seq, iss + 1);
    assert_eq!(script.host.facts(first).error, Some(Errno::CONNRESET));
    assert_eq!(script.count("flows_dropped_panic"), 1);
    script.ask(
        &Segment::new(ACK | PSH, NEXT, other_iss + 1)
            .at_port(PEER_PORT + 1)
            .carrying(b"fine"),
    );
    assert_eq!(script.host.read(script.now, second, 0), b"fine");
    script.host.stack.close(script.now, first, Close::Graceful);
    script.wait(Duration::from_secs(1));
    assert_eq!(script.host.stack.live_flows(), 1);
}
