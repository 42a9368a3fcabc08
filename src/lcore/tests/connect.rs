//! Attempts to connect that come to nothing.

use super::*;

#[test]
fn a_refused_connect_says_so() {
    let mut lab = Lab::new();
    let out = lab.client.program.claim();
    lab.client.program.connect(out, ENDPOINT);
    lab.until(5, |lab| lab.client.program.kind(out) == kind::FAILED);
    let host = &lab.client.program.cell(out).host;
    assert_eq!(
        host.error.load(Ordering::Relaxed),
        number(Errno::CONNREFUSED)
    );
    assert_ne!(host.flags.load(Ordering::Relaxed) & flag::OVER, 0);
    lab.client.program.close(out);
    lab.until(1, |lab| lab.client.program.is_free(out));
}

#[test]
fn connects_behind_each_other_are_answered_at_once_and_leave_with_one_turn() {
    let mut lab = Lab::new();
    // The neighbor is known behind the first one.
    let first = lab.client.program.claim();
    lab.client.program.connect(first, ENDPOINT);
    lab.until(5, |lab| lab.client.program.kind(first) == kind::FAILED);
    let turns = |lab: &Lab| lab.client.status.counters.turns.value();
    let before = turns(&lab);
    let frames = |lab: &Lab| lab.server.lcore.stack.counters().rx_tcp_segments.value();
    let heard = frames(&lab);
    let outs = [0; 3].map(|_| {
        let out = lab.client.program.claim();
        lab.client.program.connect(out, ENDPOINT);
        lab.client.lcore.errand(lab.now);
        assert_eq!(lab.client.program.answer(out), Some(0));
        assert_eq!(lab.client.program.kind(out), kind::CONNECTING);
        out
    });
    assert_eq!(turns(&lab), before, "no turn was made");
    lab.server.lcore.turn(lab.now, Duration::ZERO);
    assert_eq!(frames(&lab), heard, "nothing has left");
    lab.client.lcore.turn(lab.now, Duration::ZERO);
    lab.server.lcore.turn(lab.now, Duration::ZERO);
    assert_eq!(frames(&lab), heard + 3);
    for out in outs {
        lab.until(5, |lab| lab.client.program.kind(out) == kind::FAILED);
    }
}

#[test]
fn a_shutdown_gives_up_an_attempt_to_connect() {
    let mut lab = Lab::new();
    let out = lab.client.program.claim();
    lab.client
        .program
        .connect(out, core::net::SocketAddrV4::new(lab::NOBODY, 9));
    lab.until(1, |lab| lab.client.program.answer(out) == Some(0));
    assert_eq!(lab.client.program.kind(out), kind::CONNECTING);
    let cell = lab.client.program.cell(out);
    cell.write
        .shut
        .store(shut::READ | shut::WRITE, Ordering::Relaxed);
    lab.client.program.ring(out);
    lab.until(1, |lab| lab.client.program.kind(out) == kind::FAILED);
    lab.client.program.close(out);
    lab.until(1, |lab| lab.client.program.is_free(out));
    assert!(!lab.client.program.control.taken().unwrap().has(out));
}
