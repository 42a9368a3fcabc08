//! The memory of rings: given back, shared out, run out.

use super::*;

/// KiB that a memfd holds.
fn held(fd: &std::os::fd::OwnedFd) -> i64 {
    rustix::fs::fstat(fd).unwrap().st_blocks / 2
}

#[test]
fn an_idle_connection_gives_its_pages_back_and_goes_on() {
    let (mut lab, out, into) = Lab::connected();
    let before = (
        held(lab.server.segments.receive_fd()),
        held(lab.server.segments.control_fd()),
    );
    for round in 0..3_u8 {
        let words = vec![round; 1_024];
        // A writer that cannot grow its ring asks for room; one that can puts memory there itself.
        if lab.client.program.send(out, &words) == 0 {
            lab.client_told(out, event::OUT);
            assert_eq!(lab.client.program.send(out, &words), 1_024);
        }
        lab.server_told(into, event::IN);
        assert_eq!(lab.server.program.recv(into, 2_000), words);
        let cell = lab.server.program.cell(into);
        if cell.host.tx_backed.load(Ordering::Relaxed) == 0 {
            assert_ne!(lab.server.program.bits(into) & event::OUT, 0);
            assert!(lab.server.program.control.tx_populate(into, 8_192));
            cell.write.tx_grown.store(8_192, Ordering::Release);
        }
        assert_eq!(lab.server.program.send(into, &words), 1_024);
        lab.client_told(out, event::IN);
        assert_eq!(lab.client.program.recv(out, 2_000), words);
        lab.turns(40_000);
        for (host, object) in [(&lab.server, into), (&lab.client, out)] {
            let cell = host.program.cell(object);
            assert_eq!(cell.host.tx_backed.load(Ordering::Relaxed), 0, "{object}");
        }
        let after = (
            held(lab.server.segments.receive_fd()),
            held(lab.server.segments.control_fd()),
        );
        assert_eq!(after, (before.0 - 4, before.1 - 4), "a page of each ring");
    }
}

#[test]
fn a_ring_that_may_not_grow_stays_small_and_its_bytes_arrive() {
    let (mut lab, out, into) = Lab::connected();
    lab.client.mailbox.post(Mail::Share {
        share: Share {
            flows: 16,
            ring_bytes: 16 << 10,
        },
    });
    let data: Vec<u8> = (0..50_000_u32).map(|n| n.to_le_bytes()[0]).collect();
    let (mut sent, mut got) = (0, Vec::new());
    lab.until(60, |lab| {
        sent += lab.client.program.send(out, &data[sent..]);
        got.extend(lab.server.program.recv(into, 100_000));
        got.len() == data.len()
    });
    assert_eq!(got, data);
    assert!(lab.client.status.counters.flows_refused_no_memory.value() > 0);
}

/// Lets the memory of the server's (or the client's) family run out, or come back.
fn pages(lab: &Lab, server: bool, left: u64) {
    let host = if server { &lab.server } else { &lab.client };
    host.segments.pages_left.store(left, Ordering::Relaxed);
}

#[test]
fn without_memory_nobody_listens_or_connects_and_with_it_everybody_does() {
    let mut lab = Lab::new();
    pages(&lab, true, 0);
    let listener = lab.server.program.claim();
    lab.server.program.listen(listener, ENDPOINT, 16);
    lab.until(1, |lab| lab.server.program.answer(listener).is_some());
    assert_eq!(
        lab.server.program.answer(listener),
        Some(number(Errno::NOSPC))
    );
    lab.server.program.close(listener);
    pages(&lab, true, u64::MAX);
    let listener = lab.listen(16);
    for left in 0..2 {
        // The transmit ring has no page, then the receive ring.
        pages(&lab, false, left);
        let out = lab.client.program.claim();
        lab.client.program.connect(out, ENDPOINT);
        lab.until(1, |lab| lab.client.program.answer(out).is_some());
        assert_eq!(
            lab.client.program.answer(out),
            Some(number(Errno::NOBUFS)),
            "{left} pages"
        );
        lab.client.program.close(out);
        lab.turns(10);
    }
    pages(&lab, false, u64::MAX);
    lab.connect(listener);
}

#[test]
fn without_memory_a_syn_is_dropped_and_comes_again() {
    let mut lab = Lab::new();
    let listener = lab.listen(16);
    pages(&lab, true, 0);
    let out = lab.client.program.claim();
    lab.client.program.connect(out, ENDPOINT);
    lab.until(2, |lab| {
        lab.server.status.counters.flows_refused_no_memory.value() > 0
    });
    assert_eq!(lab.client.program.kind(out), kind::CONNECTING);
    assert_eq!(lab.server.program.bits(listener), 0);
    pages(&lab, true, u64::MAX);
    // The SYN is sent again.
    lab.until(5, |lab| {
        lab.client.program.kind(out) == kind::STREAM && lab.server.program.bits(listener) != 0
    });
    // Memory for receiving but none for sending: reset, and counted.
    pages(&lab, true, 1);
    let refused = lab.server.status.counters.flows_refused_no_memory.value();
    let second = lab.client.program.claim();
    lab.client.program.connect(second, ENDPOINT);
    lab.until(5, |lab| {
        let cell = lab.client.program.cell(second);
        cell.host.error.load(Ordering::Relaxed) == number(Errno::CONNRESET)
    });
    assert_eq!(
        lab.server.status.counters.flows_refused_no_memory.value(),
        refused + 1
    );
}

#[test]
fn without_more_memory_the_window_stays_and_with_it_all_arrives() {
    const TOTAL: usize = 60_000;
    for (server, client) in [(0, u64::MAX), (u64::MAX, 0), (0, 0), (3, 3)] {
        let (mut lab, out, into) = Lab::connected();
        pages(&lab, true, server);
        pages(&lab, false, client);
        let data: Vec<u8> = (0..=250).cycle().take(TOTAL).collect();
        let (mut sent, mut got) = (0, Vec::new());
        let back = lab.now + Duration::from_millis(500);
        let end = lab.now + Duration::from_secs(20);
        while got.len() < TOTAL {
            assert!(lab.now < end, "{server} {client}: {} of {TOTAL}", got.len());
            if lab.now > back {
                if server == 0 {
                    // A byte has one place in the ring, and only the first page is there.
                    assert!(got.len() >= 4_096, "{}", got.len());
                }
                pages(&lab, true, u64::MAX);
                pages(&lab, false, u64::MAX);
            }
            sent += lab.client.program.send(out, &data[sent..]);
            lab.turn();
            got.extend(lab.server.program.recv(into, 65_536));
        }
        assert_eq!(got, data);
    }
}

#[test]
fn a_connection_never_shows_a_byte_of_the_one_that_had_its_ring_before() {
    const OLD: u8 = 0xee;
    const TOTAL: usize = 60_000;
    for seed in 1..=4 {
        let mut faults = FaultConfig::none();
        (faults.seed, faults.loss, faults.reorder) = (seed, 30_000, 200_000);
        let mut lab = Lab::with(faults, Layout::for_flows(64, 64 << 10, 32 << 10));
        let listener = lab.listen(16);
        let (out, before) = lab.connect(listener);
        let (mut sent, mut got) = (0, 0);
        let old = vec![OLD; TOTAL];
        lab.until(60, |lab| {
            sent += lab.client.program.send(out, &old[sent..]);
            got += lab.server.program.recv(before, 65_536).len();
            got == TOTAL
        });
        lab.client.program.close(out);
        lab.server.program.close(before);
        lab.until(60, |lab| lab.server.program.is_free(before));
        let (out, into) = lab.connect(listener);
        assert_eq!(into, before, "its ring is taken first");
        let mut page = [0; 4_096];
        let at = lab.server.segments.layout().rx_ring_at(into) + (48 << 10);
        rustix::io::pread(lab.server.segments.receive_fd(), &mut page, at).unwrap();
        assert_eq!(page, [OLD; 4_096], "and has the bytes of before");
        let data: Vec<u8> = (0..200).cycle().take(TOTAL).collect();
        let (mut sent, mut got, mut waited) = (0, 0, 0);
        lab.until(120, |lab| {
            let (cell, program) = (lab.server.program.cell(into), &lab.server.program);
            sent += lab.client.program.send(out, &data[sent..]);
            // FIONREAD and what MSG_TRUNC may throw away, then MSG_PEEK of more than there is, then recv.
            let there = crate::readiness::readable_bytes(cell);
            assert!(got as u64 + there <= sent as u64);
            let view =
                crate::channel::byte_ring::readable(&cell.host, &cell.read, 64 << 10, 0, u64::MAX);
            assert_eq!(u64::from(view.range.len()), there);
            let mut peeked = vec![0; view.range.len() as usize];
            assert!(program.receive.copy_out(into, view.range, &mut peeked));
            assert_eq!(peeked, data[got..got + peeked.len()]);
            // Gaps are filled while bytes wait.
            waited += 1;
            if waited % 16 == 0 {
                let taken = program.recv(into, 65_536);
                assert_eq!(taken, data[got..got + taken.len()]);
                got += taken.len();
            }
            got == TOTAL
        });
    }
}
