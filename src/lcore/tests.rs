//! The host's half of the contract, driven turn by turn in virtual time by programs that only write cells.

mod aloft;
mod held;
mod info;
mod lab;
mod monkey;
mod offers;
mod payload;
#[path = "../../tests/support/program.rs"]
pub(crate) mod program;
mod several;
mod summons;
mod watch;

use core::time::Duration;
use std::sync::Arc;

pub(crate) use lab::stack_config;
use lab::{ENDPOINT, Lab, OWNER, SERVER};

use super::{Mail, Share};
use crate::channel::cell::{flag, kind, process, shut};
use crate::channel::layout::Layout;
use crate::channel::sync::Ordering;
use crate::device::fault::FaultConfig;
use crate::errno::Errno;
use crate::readiness::event;

fn number(errno: Errno) -> u32 {
    errno.raw_os_error().unsigned_abs()
}

#[test]
fn programs_on_two_hosts_echo() {
    let mut lab = Lab::new();
    let listener = lab.listen(16);
    let (out, into) = lab.connect(listener);
    assert_eq!(lab.client.program.send(out, b"ping"), 4);
    lab.until(1, |lab| lab.server.program.bits(into) & event::IN != 0);
    assert_eq!(lab.server.program.recv(into, 100), b"ping");
    lab.server.program.send(into, b"pong!");
    lab.until(1, |lab| lab.client.program.bits(out) & event::IN != 0);
    assert_eq!(lab.client.program.recv(out, 100), b"pong!");
    let fact = &lab.server.program.cell(into).fact;
    assert_eq!(fact.local_address.load(Ordering::Relaxed), SERVER.to_bits());
    assert_eq!(fact.listener.load(Ordering::Relaxed), listener);
    assert_eq!(lab.server.status.counters.flows_handed_over.value(), 1);
}

#[test]
fn a_close_sends_the_rest_and_fin_and_frees_both_ends() {
    let mut lab = Lab::new();
    let listener = lab.listen(16);
    let (out, into) = lab.connect(listener);
    let generation = lab
        .client
        .program
        .cell(out)
        .host
        .generation
        .load(Ordering::Relaxed);
    lab.client.program.send(out, b"last words");
    lab.client.program.close(out);
    lab.until(1, |lab| lab.server.program.bits(into) & event::RDHUP != 0);
    assert_eq!(lab.server.program.recv(into, 100), b"last words");
    assert_eq!(
        lab.server
            .program
            .cell(into)
            .host
            .error
            .load(Ordering::Relaxed),
        0
    );
    lab.server.program.close(into);
    lab.until(20, |lab| {
        lab.client.program.is_free(out) && lab.server.program.is_free(into)
    });
    assert!(!lab.client.program.control.taken().unwrap().has(out));
    let after = lab
        .client
        .program
        .cell(out)
        .host
        .generation
        .load(Ordering::Relaxed);
    assert_eq!(after, generation + 1);
}

#[test]
fn a_peer_that_never_reads_does_not_keep_what_was_closed() {
    let mut lab = Lab::new();
    let listener = lab.listen(16);
    let (_, into) = lab.connect(listener);
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
    let listener = lab.listen(16);
    let (out, into) = lab.connect(listener);
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

/// KiB that a memfd holds.
fn held(fd: &std::os::fd::OwnedFd) -> i64 {
    rustix::fs::fstat(fd).unwrap().st_blocks / 2
}

#[test]
fn an_idle_connection_gives_its_pages_back_and_goes_on() {
    let mut lab = Lab::new();
    let listener = lab.listen(16);
    let (out, into) = lab.connect(listener);
    let before = (
        held(lab.server.segments.receive_fd()),
        held(lab.server.segments.control_fd()),
    );
    for round in 0..3_u8 {
        let words = vec![round; 1_024];
        // A writer that cannot grow its ring asks for room; one that can puts memory there itself.
        if lab.client.program.send(out, &words) == 0 {
            lab.until(1, |lab| lab.client.program.bits(out) & event::OUT != 0);
            assert_eq!(lab.client.program.send(out, &words), 1_024);
        }
        lab.until(1, |lab| lab.server.program.bits(into) & event::IN != 0);
        assert_eq!(lab.server.program.recv(into, 2_000), words);
        let cell = lab.server.program.cell(into);
        if cell.host.tx_backed.load(Ordering::Relaxed) == 0 {
            assert_ne!(lab.server.program.bits(into) & event::OUT, 0);
            assert!(lab.server.program.control.tx_populate(into, 8_192));
            cell.write.tx_grown.store(8_192, Ordering::Release);
        }
        assert_eq!(lab.server.program.send(into, &words), 1_024);
        lab.until(1, |lab| lab.client.program.bits(out) & event::IN != 0);
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
fn a_kicked_slot_is_woken_and_one_without_a_descriptor_later() {
    let mut lab = Lab::new();
    lab.turns(2);
    let kick = |lab: &Lab| {
        let _ = crate::readiness::kick_slot(&lab.server.program.control, 9);
    };
    kick(&lab);
    lab.turn();
    let counters = Arc::clone(&lab.server.status.counters);
    assert_eq!(counters.wakeups_dropped_no_waiter.value(), 1);
    let flags = rustix::event::EventfdFlags::NONBLOCK;
    let ours = rustix::event::eventfd(0, flags).unwrap();
    let count = || {
        let mut bytes = [0; 8];
        rustix::io::read(&ours, &mut bytes).map(|_| u64::from_ne_bytes(bytes))
    };
    lab.server.mailbox.post(Mail::Waiter {
        owner: OWNER,
        slot: 9,
        eventfd: Arc::new(ours.try_clone().unwrap()),
    });
    lab.turn();
    assert_eq!(count(), Ok(1), "what was missed is made up for");
    lab.turn();
    assert_eq!(count(), Err(Errno::AGAIN));
    kick(&lab);
    lab.turn();
    assert_eq!(count(), Ok(1));
}

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
fn only_the_user_of_a_dead_threads_slot_is_written() {
    let mut lab = Lab::new();
    lab.turns(2);
    let dead = 1_000 << 32 | 1_002;
    {
        // A sibling that takes the slot at the same time may sleep in it already.
        let slot = lab.server.segments.control.slot(3).unwrap();
        slot.user.store(dead, Ordering::SeqCst);
        slot.sleeping.store(1, Ordering::SeqCst);
    }
    lab.server.mailbox.post(Mail::ProcessGone {
        owner: OWNER,
        cell: 0,
        pid: 1_000,
    });
    lab.turns(2);
    let slot = lab.server.segments.control.slot(3).unwrap();
    assert_eq!(slot.user.load(Ordering::SeqCst), 0);
    assert_eq!(slot.sleeping.load(Ordering::SeqCst), 1);
}

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
fn unread_bytes_and_linger_zero_reset() {
    for linger in [false, true] {
        let mut lab = Lab::new();
        let listener = lab.listen(16);
        let (out, into) = lab.connect(listener);
        if linger {
            let wish = &lab.client.program.cell(out).wish;
            wish.linger.store(1 << 31, Ordering::Relaxed);
        } else {
            lab.server.program.send(into, b"never read");
            lab.until(1, |lab| lab.client.program.bits(out) & event::IN != 0);
        }
        lab.client.program.close(out);
        lab.until(1, |lab| lab.server.program.bits(into) & event::ERR != 0);
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
    let mut lab = Lab::new();
    let listener = lab.listen(16);
    let (out, into) = lab.connect(listener);
    lab.client.program.send(out, b"still here");
    lab.until(1, |lab| lab.server.program.bits(into) & event::IN != 0);
    lab.client
        .program
        .cell(out)
        .wish
        .linger
        .store(1 << 31, Ordering::Relaxed);
    lab.client.program.close(out);
    lab.until(1, |lab| lab.server.program.bits(into) & event::ERR != 0);
    assert_eq!(lab.server.program.recv(into, 100), b"still here");
}

#[test]
fn bytes_sent_before_an_aborting_close_leave_before_the_reset() {
    for linger in [false, true] {
        let mut lab = Lab::new();
        let listener = lab.listen(16);
        let (out, into) = lab.connect(listener);
        if linger {
            let wish = &lab.client.program.cell(out).wish;
            wish.linger.store(1 << 31, Ordering::Relaxed);
        } else {
            lab.server.program.send(into, b"never read");
            lab.until(1, |lab| lab.client.program.bits(out) & event::IN != 0);
        }
        // The lcore hears of both in the same turn.
        lab.client.program.send(out, b"the last words");
        lab.client.program.close(out);
        lab.until(1, |lab| lab.server.program.bits(into) & event::ERR != 0);
        assert_eq!(lab.server.program.recv(into, 100), b"the last words");
    }
}

#[test]
fn shutdown_is_half_a_close() {
    let mut lab = Lab::new();
    let listener = lab.listen(16);
    let (out, into) = lab.connect(listener);
    lab.client.program.shutdown_write(out);
    lab.until(1, |lab| lab.server.program.bits(into) & event::RDHUP != 0);
    lab.server.program.send(into, b"answer");
    lab.until(1, |lab| lab.client.program.bits(out) & event::IN != 0);
    assert_eq!(lab.client.program.recv(out, 100), b"answer");
    lab.server.program.shutdown_write(into);
    lab.until(1, |lab| lab.client.program.bits(out) & event::HUP != 0);
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
    lab.until(1, |lab| lab.server.program.bits(into) & event::IN != 0);
    assert_eq!(lab.server.program.recv(into, 9), b"again");
    lab.server.program.close(listener);
    lab.until(1, |lab| lab.server.program.is_free(listener));
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

/// A bell of an index's last user may be answered when the next one has taken the index and does not hold it yet.
#[test]
fn a_late_bell_does_not_free_what_was_just_taken() {
    let mut lab = Lab::new();
    let half = lab.client.program.control.layout().first_host_object();
    let taken = |lab: &Lab, object| lab.client.program.control.taken().unwrap().has(object);
    let object = lab
        .client
        .program
        .control
        .taken()
        .unwrap()
        .claim(0, 0..half)
        .unwrap();
    let generation = |lab: &Lab| {
        let host = &lab.client.program.cell(object).host;
        host.generation.load(Ordering::Relaxed)
    };
    let before = generation(&lab);
    lab.client.program.ring(object);
    lab.turns(3);
    assert!(taken(&lab, object));
    assert_eq!(generation(&lab), before);
    lab.client.program.hold(object);
    // What a process took and never used goes with it.
    lab.client.mailbox.post(Mail::ProcessGone {
        owner: OWNER,
        cell: 0,
        pid: program::PID,
    });
    lab.turns(3);
    assert!(!taken(&lab, object));
    assert_eq!(generation(&lab), before + 1);
}

#[test]
fn a_killed_process_lets_go_of_what_only_it_held() {
    let mut lab = Lab::new();
    let listener = lab.listen(16);
    let (out, into) = lab.connect(listener);
    // A forked child holds the listener and the flow as well.
    let child = lab::attach(&lab.server.segments, 1);
    child.hold(listener);
    child.hold(into);
    lab.server.mailbox.post(Mail::Process {
        owner: OWNER,
        cell: 1,
    });
    lab.turns(3);
    lab.server.program.send(into, b"queued by the parent");
    lab.server.mailbox.post(Mail::ProcessGone {
        owner: OWNER,
        cell: 0,
        pid: 1_000,
    });
    lab.turns(50);
    assert_eq!(lab.client.program.recv(out, 100), b"queued by the parent");
    let it = lab.server.segments.control.process(0).unwrap();
    assert_eq!(it.state.load(Ordering::SeqCst), process::FREE);
    assert_eq!(
        lab.client.program.bits(out) & event::RDHUP,
        0,
        "the child lives"
    );
    let (_, second) = {
        let again = lab.client.program.claim();
        lab.client.program.connect(again, ENDPOINT);
        lab.until(5, |lab| lab.server.program.bits(listener) != 0);
        (again, child.accept(listener).unwrap())
    };
    child.send(second, b"hello");
    lab.server.mailbox.post(Mail::ProcessGone {
        owner: OWNER,
        cell: 1,
        pid: 1_001,
    });
    lab.until(5, |lab| lab.client.program.bits(out) & event::RDHUP != 0);
    lab.client.program.close(out);
    lab.until(20, |lab| {
        lab.server.program.is_free(into) && lab.server.program.is_free(listener)
    });
}

#[test]
fn a_detached_family_ends_with_its_last_flow() {
    let mut lab = Lab::new();
    let listener = lab.listen(16);
    let (out, into) = lab.connect(listener);
    let data = vec![5; 20_000];
    assert_eq!(lab.server.program.send(into, &data), 4_096);
    lab.turns(5);
    assert_eq!(
        lab.server.program.send(into, &data[4_096..]),
        data.len() - 4_096
    );
    lab.server.mailbox.post(Mail::ProcessGone {
        owner: OWNER,
        cell: 0,
        pid: 1_000,
    });
    lab.server.mailbox.post(Mail::Detach { owner: OWNER });
    let mut received = Vec::new();
    let end = lab.now + Duration::from_secs(20);
    while lab.client.program.bits(out) & event::RDHUP == 0 || received.len() < data.len() {
        assert!(lab.now < end, "{} bytes came", received.len());
        received.extend(lab.client.program.recv(out, 3_000));
        lab.turn();
    }
    assert_eq!(received, data);
    assert!(lab.server.status.take_ended().is_empty());
    lab.client.program.close(out);
    let mut ended = Vec::new();
    let status = Arc::clone(&lab.server.status);
    lab.until(20, |_| {
        ended.extend(status.take_ended());
        !ended.is_empty()
    });
    assert_eq!(ended, [OWNER]);
}

#[test]
fn an_abandoned_family_ends_at_once() {
    let mut lab = Lab::new();
    let listener = lab.listen(16);
    let (out, _into) = lab.connect(listener);
    lab.server.mailbox.post(Mail::Detach { owner: OWNER });
    lab.turns(20);
    assert!(
        lab.server.status.take_ended().is_empty(),
        "the peer has not closed"
    );
    lab.server.mailbox.post(Mail::Abandon { owner: OWNER });
    lab.turns(20);
    assert_eq!(lab.server.status.take_ended(), [OWNER]);
    assert_ne!(lab.client.program.bits(out) & event::ERR, 0);
}

#[test]
fn a_program_that_breaks_its_channel_harms_only_itself() {
    let mut lab = Lab::new();
    let listener = lab.listen(16);
    let (good_out, good_into) = lab.connect(listener);
    let (bad_out, bad_into) = lab.connect(listener);
    let (worse_out, worse_into) = lab.connect(listener);
    let cell = lab.server.program.cell(bad_into);
    cell.write.tx_tail.store(u64::MAX, Ordering::Release);
    lab.server.program.ring(bad_into);
    let cell = lab.server.program.cell(worse_into);
    cell.read.rx_head.store(77, Ordering::Release);
    lab.server.program.ring(worse_into);
    let objects = lab.server.program.control.layout().objects;
    for object in [0, 5, objects / 2 - 1, objects / 2 + 50, objects - 1] {
        lab.server.program.ring(object);
        lab.server
            .program
            .cell(object)
            .wish
            .wish
            .store(9, Ordering::Release);
        lab.server.program.ring(object);
    }
    lab.until(5, |lab| {
        lab.client.program.bits(bad_out) & event::ERR != 0
            && lab.client.program.bits(worse_out) & event::ERR != 0
    });
    assert_eq!(
        lab.server.status.counters.objects_broken_by_program.value(),
        2
    );
    lab.client.program.send(good_out, b"fine");
    lab.until(1, |lab| lab.server.program.bits(good_into) & event::IN != 0);
    assert_eq!(lab.server.program.recv(good_into, 10), b"fine");
}

#[test]
fn indices_are_used_again_with_a_new_generation() {
    let mut lab = Lab::new();
    let listener = lab.listen(16);
    let mut seen = Vec::new();
    for round in 0..20 {
        let (out, into) = lab.connect(listener);
        lab.client.program.send(out, &[round]);
        lab.until(1, |lab| lab.server.program.bits(into) & event::IN != 0);
        assert_eq!(lab.server.program.recv(into, 9), [round]);
        lab.server.program.close(into);
        lab.until(1, |lab| lab.client.program.bits(out) & event::RDHUP != 0);
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
    let mut lab = Lab::new();
    let listener = lab.listen(16);
    let (out, into) = lab.connect(listener);
    lab.client.program.send(out, b"before");
    lab.now = lab.now + Duration::from_secs(60);
    lab.turns(200);
    assert_eq!(lab.server.program.recv(into, 10), b"before");
    assert_eq!(lab.server.status.counters.time_gaps.value(), 1);
}

#[test]
fn a_ring_that_may_not_grow_stays_small_and_its_bytes_arrive() {
    let mut lab = Lab::new();
    let listener = lab.listen(16);
    let (out, into) = lab.connect(listener);
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
        let mut lab = Lab::new();
        let listener = lab.listen(16);
        let (out, into) = lab.connect(listener);
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
