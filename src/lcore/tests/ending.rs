//! How connections end: close, shutdown, reset, and what was sent before.

use super::*;

#[test]
fn a_close_sends_the_rest_and_fin_and_frees_both_ends() {
    let (mut lab, out, into) = Lab::connected();
    let before = generation(&lab, out);
    lab.client.program.send(out, b"last words");
    lab.client.program.close(out);
    lab.server_told(into, event::RDHUP);
    assert_eq!(lab.server.program.recv(into, 100), b"last words");
    let error = &lab.server.program.cell(into).host.error;
    assert_eq!(error.load(Ordering::Relaxed), 0);
    lab.server.program.close(into);
    lab.until(20, |lab| {
        lab.client.program.is_free(out) && lab.server.program.is_free(into)
    });
    assert!(!lab.client.program.control.taken().unwrap().has(out));
    assert_eq!(generation(&lab, out), before + 1);
}

#[test]
fn a_peer_that_never_reads_does_not_keep_what_was_closed() {
    let (mut lab, _, into) = Lab::connected();
    // More than the peer's ring and the stack's own buffer hold: the rest waits in the transmit ring.
    let mut idle = 0;
    while idle < 1_000 {
        let sent = lab.server.program.send(into, &[7; 4_096]);
        lab.turn();
        idle = if sent == 0 { idle + 1 } else { 0 };
    }
    lab.server.program.close(into);
    let closed = lab.now;
    lab.until(130, |lab| lab.server.program.is_free(into));
    assert!(
        lab.now.since(closed) >= Duration::from_secs(119),
        "its time"
    );
}

/// Sees to it that the client's close is a reset: SO_LINGER without a time, or bytes that are never read.
fn provoke_reset(lab: &mut Lab, out: u32, into: u32, linger: bool) {
    if linger {
        let wish = &lab.client.program.cell(out).wish;
        wish.linger.store(1 << 31, Ordering::Relaxed);
    } else {
        lab.server.program.send(into, b"never read");
        lab.client_told(out, event::IN);
    }
}

#[test]
fn unread_bytes_and_linger_zero_reset() {
    for linger in [false, true] {
        let (mut lab, out, into) = Lab::connected();
        provoke_reset(&mut lab, out, into, linger);
        lab.client.program.close(out);
        lab.server_told(into, event::ERR);
        let error = &lab.server.program.cell(into).host.error;
        assert_eq!(error.load(Ordering::Relaxed), number(Errno::CONNRESET));
        lab.server.program.close(into);
        lab.until(5, |lab| {
            lab.server.program.is_free(into) && lab.client.program.is_free(out)
        });
    }
}

#[test]
fn bytes_received_before_a_reset_stay_readable() {
    let (mut lab, out, into) = Lab::connected();
    lab.client.program.send(out, b"still here");
    lab.server_told(into, event::IN);
    provoke_reset(&mut lab, out, into, true);
    lab.client.program.close(out);
    lab.server_told(into, event::ERR);
    assert_eq!(lab.server.program.recv(into, 100), b"still here");
}

#[test]
fn bytes_sent_before_an_aborting_close_leave_before_the_reset() {
    for linger in [false, true] {
        let (mut lab, out, into) = Lab::connected();
        provoke_reset(&mut lab, out, into, linger);
        // The lcore hears of both in the same turn.
        lab.client.program.send(out, b"the last words");
        lab.client.program.close(out);
        lab.server_told(into, event::ERR);
        assert_eq!(lab.server.program.recv(into, 100), b"the last words");
    }
}

#[test]
fn shutdown_is_half_a_close() {
    let (mut lab, out, into) = Lab::connected();
    lab.client.program.shutdown_write(out);
    lab.server_told(into, event::RDHUP);
    lab.server.program.send(into, b"answer");
    lab.client_told(out, event::IN);
    assert_eq!(lab.client.program.recv(out, 100), b"answer");
    lab.server.program.shutdown_write(into);
    lab.client_told(out, event::HUP);
}
