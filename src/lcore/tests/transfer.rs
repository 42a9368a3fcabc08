//! Bytes from program to program.

use super::*;

#[test]
fn programs_on_two_hosts_echo() {
    let mut lab = Lab::new();
    let listener = lab.listen(16);
    let (out, into) = lab.connect(listener);
    assert_eq!(lab.client.program.send(out, b"ping"), 4);
    lab.server_told(into, event::IN);
    assert_eq!(lab.server.program.recv(into, 100), b"ping");
    lab.server.program.send(into, b"pong!");
    lab.client_told(out, event::IN);
    assert_eq!(lab.client.program.recv(out, 100), b"pong!");
    let fact = &lab.server.program.cell(into).fact;
    assert_eq!(fact.local_address.load(Ordering::Relaxed), SERVER.to_bits());
    assert_eq!(fact.listener.load(Ordering::Relaxed), listener);
    assert_eq!(lab.server.status.counters.flows_handed_over.value(), 1);
}

#[test]
fn bytes_whose_bell_was_lost_leave_with_what_comes_next() {
    let (mut lab, out, into) = Lab::connected();
    lab.turns(5);
    // Its writer was killed between the two.
    lab.server.program.send(into, b"late");
    let bells = lab.server.segments.control.doorbells(0).unwrap();
    assert!(bells.clear(into));
    lab.turns(5);
    assert_eq!(lab.client.program.bits(out) & event::IN, 0);
    lab.client.program.send(out, b"?");
    lab.client_told(out, event::IN);
    assert_eq!(lab.client.program.recv(out, 100), b"late");
}

#[test]
fn bulk_goes_both_ways_through_small_rings() {
    for seed in [1, 2, 3] {
        println!("seed={seed}");
        let mut faults = FaultConfig::none();
        faults.seed = seed;
        faults.loss = 10_000;
        bulk(faults, Layout::for_flows(64, 64 << 10, 16 << 10));
    }
    bulk(
        FaultConfig::none(),
        Layout::for_flows(64, 64 << 10, 16 << 10),
    );
}

#[test]
fn bulk_goes_both_ways_through_larger_rings_of_a_few() {
    let usual = Layout::for_flows(64, 16 << 10, 16 << 10);
    let mut faults = FaultConfig::none();
    faults.loss = 10_000;
    bulk(faults, usual.with_large_rings(64 << 10));
}

fn bulk(faults: FaultConfig, layout: Layout) {
    const TOTAL: usize = 400_000;
    let mut lab = Lab::with(faults, layout);
    let (out, into) = lab.connection();
    for object in [out, into] {
        assert_eq!(layout.is_large(object), layout.large_ring_bytes != 0);
    }
    let byte = |n: usize| (n.wrapping_mul(31) >> 3).to_le_bytes()[0];
    let data: Vec<u8> = (0..TOTAL).map(byte).collect();
    let (mut sent, mut echoed, mut back) = (0, Vec::new(), 0);
    let mut pending: Vec<u8> = Vec::new();
    let end = lab.now + Duration::from_secs(600);
    while back < TOTAL {
        assert!(lab.now < end, "sent={sent} back={back}");
        if sent < TOTAL {
            let until = (sent + 5_000).min(TOTAL);
            sent += lab.client.program.send(out, &data[sent..until]);
        }
        pending.extend(lab.server.program.recv(into, 7_000));
        if !pending.is_empty() {
            let count = lab.server.program.send(into, &pending);
            echoed.extend(pending.drain(..count));
        }
        for got in lab.client.program.recv(out, 9_000) {
            assert_eq!(got, byte(back), "at {back}");
            back += 1;
        }
        lab.turn();
    }
    assert_eq!(echoed, data);
}

#[test]
fn indices_are_used_again_with_a_new_generation() {
    let mut lab = Lab::new();
    let listener = lab.listen(16);
    let mut seen = Vec::new();
    for round in 0..20 {
        let (out, into) = lab.connect(listener);
        lab.client.program.send(out, &[round]);
        lab.server_told(into, event::IN);
        assert_eq!(lab.server.program.recv(into, 9), [round]);
        lab.server.program.close(into);
        lab.client_told(out, event::RDHUP);
        lab.client.program.close(out);
        lab.until(20, |lab| {
            lab.client.program.is_free(out) && lab.server.program.is_free(into)
        });
        seen.push(into);
    }
    seen.sort_unstable();
    seen.dedup();
    assert!(seen.len() <= 2, "the warm index is used first: {seen:?}");
}

#[test]
fn a_gap_of_a_minute_kills_nobody() {
    let (mut lab, out, into) = Lab::connected();
    lab.client.program.send(out, b"before");
    lab.now = lab.now + Duration::from_secs(60);
    lab.turns(200);
    assert_eq!(lab.server.program.recv(into, 10), b"before");
    assert_eq!(lab.server.status.counters.time_gaps.value(), 1);
}
