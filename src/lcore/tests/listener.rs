//! Listeners: their port, and what becomes of who waits.

use super::*;

#[test]
fn a_port_that_was_closed_can_be_listened_on_at_once() {
    let mut lab = Lab::new();
    let low = lab.server.program.claim();
    let high = lab.listen(4);
    assert!(low < high);
    // Both bells are rung before the lcore looks, which finds the one of the lower index first.
    lab.server.program.close(high);
    lab.server.program.listen(low, ENDPOINT, 4);
    lab.turns(3);
    assert_eq!(lab.server.program.answer(low), Some(0));
}

#[test]
fn two_listeners_on_one_port_are_refused() {
    let mut lab = Lab::new();
    lab.listen(16);
    let second = lab.server.program.claim();
    lab.server.program.listen(second, ENDPOINT, 16);
    lab.until(1, |lab| lab.server.program.answer(second).is_some());
    assert_eq!(
        lab.server.program.answer(second),
        Some(number(Errno::ADDRINUSE))
    );
    lab.server.program.close(second);
    lab.until(1, |lab| lab.server.program.is_free(second));
}

#[test]
fn a_closed_listener_resets_who_waits_and_frees_its_port() {
    let mut lab = Lab::new();
    let listener = lab.listen(16);
    let out = lab.client.program.claim();
    lab.client.program.connect(out, ENDPOINT);
    lab.until(5, |lab| lab.server.program.bits(listener) != 0);
    lab.server.program.close(listener);
    lab.until(5, |lab| lab.client.program.bits(out) & event::ERR != 0);
    lab.until(5, |lab| lab.server.program.is_free(listener));
    let again = lab.listen(16);
    lab.connect(again);
}

#[test]
fn a_shut_listener_fails_and_may_not_be_reached() {
    let mut lab = Lab::new();
    let listener = lab.listen(16);
    let cell = lab.server.program.cell(listener);
    cell.write.shut.store(shut::READ, Ordering::Relaxed);
    lab.server.program.ring(listener);
    lab.until(1, |lab| lab.server.program.kind(listener) == kind::FAILED);
    let out = lab.client.program.claim();
    lab.client.program.connect(out, ENDPOINT);
    lab.until(5, |lab| lab.client.program.kind(out) == kind::FAILED);
}

#[test]
fn a_shut_listener_may_listen_again_without_what_it_had_queued() {
    let mut lab = Lab::new();
    let listener = lab.listen(16);
    lab.connect(listener);
    let out = lab.client.program.claim();
    lab.client.program.connect(out, ENDPOINT);
    lab.until(5, |lab| lab.server.program.bits(listener) != 0);
    let cell = lab.server.program.cell(listener);
    cell.write.shut.store(shut::READ, Ordering::Relaxed);
    lab.server.program.ring(listener);
    lab.until(5, |lab| lab.client.program.bits(out) & event::ERR != 0);
    let cell = lab.server.program.cell(listener);
    assert_eq!(cell.host.error.load(Ordering::Relaxed), 0);
    cell.write.shut.store(0, Ordering::Relaxed);
    lab.server.program.listen(listener, ENDPOINT, 4);
    lab.until(1, |lab| lab.server.program.kind(listener) == kind::LISTENER);
    assert_eq!(lab.server.program.answer(listener), Some(0));
    assert_eq!(lab.server.program.accept(listener), None);
    let (out, into) = lab.connect(listener);
    lab.client.program.send(out, b"again");
    lab.server_told(into, event::IN);
    assert_eq!(lab.server.program.recv(into, 9), b"again");
    lab.server.program.close(listener);
    lab.until(1, |lab| lab.server.program.is_free(listener));
}
