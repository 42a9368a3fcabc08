//! Peers that vanish: every flow ends, none too early.

use core::time::Duration;

use super::peer::{ACK, FIN, Heard, PEER_ISS, PEER_PORT, PSH, RST, SYN, Script, Segment};
use crate::errno::Errno;
use crate::stack::{Close, FlowOptions, FlowState};

const NEXT: u32 = PEER_ISS + 1;

#[test]
fn a_half_open_flow_is_given_up_after_its_retries() {
    let mut script = Script::listening(FlowOptions::default());
    script.ask(&Segment::syn());
    let again = script.wait(Duration::from_secs(200));
    assert_eq!(again.len(), 5, "synack_retries");
    assert!(again.iter().all(|(_, heard)| heard.is(SYN | ACK)));
    assert_eq!(script.host.stack.live_flows(), 0);
    assert_eq!(script.count("flows_timed_out_half_open"), 1);
    assert_eq!(script.host.stack.next_timer(), None);
}

#[test]
fn unacknowledged_data_ends_in_a_time_out() {
    let mut script = Script::listening(FlowOptions::default());
    let (flow, _) = script.open(PEER_PORT);
    script.host.stack.send(script.now, flow, b"anybody there?");
    script.wait(Duration::from_secs(900));
    assert_eq!(script.host.facts(flow).error, None);
    script.wait(Duration::from_secs(30));
    let facts = script.host.facts(flow);
    assert_eq!(
        (facts.state, facts.error),
        (FlowState::Closed, Some(Errno::TIMEDOUT))
    );
    assert!(facts.retransmits >= 10);
    assert!(script.wait(Duration::from_secs(1000)).is_empty());
}

#[test]
fn a_user_time_out_is_obeyed() {
    let options = FlowOptions {
        user_timeout_ms: 5_000,
        ..FlowOptions::default()
    };
    let mut script = Script::listening(options);
    let (flow, _) = script.open(PEER_PORT);
    script.wait(Duration::from_secs(3600));
    assert_eq!(
        script.host.facts(flow).error,
        None,
        "an idle flow is healthy"
    );
    script.host.stack.send(script.now, flow, b"x");
    script.wait(Duration::from_millis(4_900));
    assert_eq!(script.host.facts(flow).error, None);
    script.wait(Duration::from_millis(200));
    assert_eq!(script.host.facts(flow).error, Some(Errno::TIMEDOUT));
}

#[test]
fn a_peer_that_keeps_its_window_closed_but_answers_is_waited_for() {
    let mut script = Script::listening(FlowOptions::default());
    let (flow, iss) = script.open(PEER_PORT);
    let closed = Segment {
        window: 0,
        ..Segment::new(ACK, NEXT, iss + 1)
    };
    script.tell(&closed);
    script.host.stack.send(script.now, flow, b"patience");
    let end = script.now + Duration::from_secs(3000);
    let mut probes = 0;
    while script.now < end {
        let heard = script.wait(Duration::from_secs(1));
        for (_, probe) in heard {
            assert_eq!((probe.tcp.seq, probe.payload.len()), (iss + 1, 1));
            probes += 1;
            script.tell(&closed);
        }
    }
    assert!(probes > 40, "{probes}");
    assert_eq!(script.host.facts(flow).error, None);
    // And one that stops to answer is given up.
    script.wait(Duration::from_secs(1100));
    assert_eq!(script.host.facts(flow).error, Some(Errno::TIMEDOUT));
}

#[test]
fn fin_wait_2_is_left_by_an_orphan_only() {
    let mut script = Script::listening(FlowOptions::default());
    let (kept, kept_iss) = script.open(PEER_PORT);
    let (left, left_iss) = script.open(PEER_PORT + 1);
    script.host.stack.shutdown_write(script.now, kept);
    script.host.stack.close(script.now, left, Close::Graceful);
    script.wait(Duration::from_millis(1));
    script.tell(&Segment::new(ACK, NEXT, kept_iss + 2));
    script.tell(&Segment::new(ACK, NEXT, left_iss + 2).at_port(PEER_PORT + 1));
    assert_eq!(script.host.facts(kept).state, FlowState::FinWait2);
    assert!(script.host.facts(kept).tx_finished);
    script.wait(Duration::from_secs(59));
    assert_eq!(script.host.stack.live_flows(), 2);
    let heard = script.wait(Duration::from_secs(2));
    assert!(
        heard.iter().all(|(_, heard)| heard.is(RST | ACK)),
        "{heard:?}"
    );
    assert_eq!(script.host.stack.live_flows(), 1);
    script.wait(Duration::from_secs(3600));
    // The half-closed flow still receives.
    script.ask(&Segment::new(ACK | PSH, NEXT, kept_iss + 2).carrying(b"late answer"));
    assert_eq!(script.host.read(script.now, kept, 0), b"late answer");
}

#[test]
fn an_orphan_with_data_is_given_up() {
    let mut script = Script::listening(FlowOptions::default());
    let (flow, _) = script.open(PEER_PORT);
    script
        .host
        .stack
        .send(script.now, flow, b"nobody takes this");
    script.host.stack.close(script.now, flow, Close::Graceful);
    script.wait(Duration::from_secs(119));
    assert_eq!(script.host.stack.live_flows(), 1);
    script.wait(Duration::from_secs(2));
    assert_eq!(script.host.stack.live_flows(), 0);
    assert_eq!(script.count("flows_timed_out_orphan"), 1);
}

#[test]
fn an_orphan_whose_bytes_are_acknowledged_has_its_time_anew() {
    let mut script = Script::listening(FlowOptions::default());
    let (flow, iss) = script.open(PEER_PORT);
    let small = |ack| Segment {
        window: 2,
        ..Segment::new(ACK, NEXT, ack)
    };
    script.tell(&small(iss + 1));
    script.host.stack.send(script.now, flow, b"slowly");
    script.host.stack.leave(script.now, flow);
    script.host.stack.close(script.now, flow, Close::Graceful);
    script.wait(Duration::from_secs(100));
    script.tell(&small(iss + 3));
    script.wait(Duration::from_secs(119));
    assert_eq!(script.host.stack.live_flows(), 1);
    script.wait(Duration::from_secs(2));
    assert_eq!(script.host.stack.live_flows(), 0);
    assert_eq!(script.count("flows_timed_out_orphan"), 1);
}

#[test]
fn keepalive_probes_and_then_resets() {
    let options = FlowOptions {
        keepalive: true,
        keepidle_s: 10,
        keepintvl_s: 3,
        keepcnt: 2,
        ..FlowOptions::default()
    };
    let mut script = Script::listening(options);
    let (flow, iss) = script.open(PEER_PORT);
    let heard = script.wait(Duration::from_millis(10_500));
    assert_eq!(heard.len(), 1);
    assert_eq!(
        (
            heard[0].1.tcp.seq,
            heard[0].1.tcp.ack,
            heard[0].1.payload.len()
        ),
        (iss, NEXT, 0)
    );
    // An answer lets it be healthy again.
    script.tell(&Segment::new(ACK, NEXT, iss + 1));
    let heard = script.wait(Duration::from_secs(15));
    assert_eq!(heard.len(), 2, "{heard:?}");
    assert_eq!(script.host.facts(flow).error, None);
    let heard = script.wait(Duration::from_secs(3));
    assert!(heard.last().unwrap().1.is(RST | ACK));
    assert_eq!(script.host.facts(flow).error, Some(Errno::TIMEDOUT));
}

#[test]
fn keepalive_can_be_turned_on_later() {
    let mut script = Script::listening(FlowOptions::default());
    let (flow, _) = script.open(PEER_PORT);
    script.wait(Duration::from_secs(1));
    let options = FlowOptions {
        keepalive: true,
        keepidle_s: 5,
        ..FlowOptions::default()
    };
    script.host.stack.set_options(flow, &options);
    assert_eq!(script.wait(Duration::from_secs(6)).len(), 1);
}

#[test]
fn a_flow_in_time_wait_keeps_its_data_for_the_program() {
    let mut script = Script::listening(FlowOptions::default());
    let (flow, iss) = script.open(PEER_PORT);
    script.host.stack.shutdown_write(script.now, flow);
    script.wait(Duration::from_millis(1));
    let heard = script.burst(&[Segment::new(ACK | FIN, NEXT, iss + 2).carrying(b"reply")]);
    assert_eq!(heard.last().unwrap().tcp.ack, NEXT + 6);
    let facts = script.host.facts(flow);
    assert_eq!(
        (
            facts.state,
            facts.rx_total,
            facts.rx_finished,
            facts.tx_finished
        ),
        (FlowState::TimeWait, 5, true, true)
    );
    assert_eq!(script.host.stack.time_wait.len(), 1);
    script.wait(Duration::from_secs(300));
    assert_eq!(script.host.read(script.now, flow, 0), b"reply");
    script.host.stack.close(script.now, flow, Close::Graceful);
    assert!(script.wait(Duration::from_secs(1)).is_empty());
    assert_eq!(script.host.stack.facts(flow), None);
}

#[test]
fn every_byte_taken_by_send_leaves_before_the_fin() {
    let mut script = Script::listening(FlowOptions::default());
    let (flow, iss) = script.open(PEER_PORT);
    assert_eq!(script.host.stack.send(script.now, flow, &[3; 5000]), 5000);
    script.host.stack.close(script.now, flow, Close::Graceful);
    let mut got = 0_u32;
    let mut finished = false;
    let mut heard: Vec<Heard> = script
        .wait(Duration::from_millis(1))
        .into_iter()
        .map(|(_, heard)| heard)
        .collect();
    while !heard.is_empty() && !finished {
        for heard in heard {
            got = got.max(heard.tcp.seq - iss - 1 + u32::try_from(heard.payload.len()).unwrap());
            finished |= heard.is(FIN | ACK);
        }
        heard = script.burst(&[Segment::new(ACK, NEXT, iss + 1 + got + u32::from(finished))]);
    }
    assert_eq!((got, finished), (5000, true));
    script.ask(&Segment::new(ACK | FIN, NEXT, iss + 5002));
    assert_eq!(script.host.stack.live_flows(), 0);
}
