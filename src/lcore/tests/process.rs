//! Processes and threads that die, families that end, programs that break the contract.

use super::*;
use crate::channel::cell::process;

/// What the control thread says when the process in `cell` is no more.
fn gone(cell: u32, pid: u32) -> Mail {
    Mail::ProcessGone {
        owner: OWNER,
        cell,
        pid,
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
    lab.server.mailbox.post(gone(0, 1_000));
    lab.turns(2);
    let slot = lab.server.segments.control.slot(3).unwrap();
    assert_eq!(slot.user.load(Ordering::SeqCst), 0);
    assert_eq!(slot.sleeping.load(Ordering::SeqCst), 1);
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
    let before = generation(&lab, object);
    lab.client.program.ring(object);
    lab.turns(3);
    assert!(taken(&lab, object));
    assert_eq!(generation(&lab, object), before);
    lab.client.program.hold(object);
    // What a process took and never used goes with it.
    lab.client.mailbox.post(gone(0, program::PID));
    lab.turns(3);
    assert!(!taken(&lab, object));
    assert_eq!(generation(&lab, object), before + 1);
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
    lab.server.mailbox.post(gone(0, 1_000));
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
    lab.server.mailbox.post(gone(1, 1_001));
    lab.until(5, |lab| lab.client.program.bits(out) & event::RDHUP != 0);
    lab.client.program.close(out);
    lab.until(20, |lab| {
        lab.server.program.is_free(into) && lab.server.program.is_free(listener)
    });
}

#[test]
fn a_detached_family_ends_with_its_last_flow() {
    let (mut lab, out, into) = Lab::connected();
    let data = vec![5; 20_000];
    assert_eq!(lab.server.program.send(into, &data), 4_096);
    lab.turns(5);
    assert_eq!(
        lab.server.program.send(into, &data[4_096..]),
        data.len() - 4_096
    );
    lab.server.mailbox.post(gone(0, 1_000));
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
fn a_family_is_given_up_but_for_what_the_peer_has_whole() {
    let mut lab = Lab::new();
    let listener = lab.listen(16);
    let (whole, whole_into) = lab.connect(listener);
    let (part, part_into) = lab.connect(listener);
    lab.server.program.send(whole_into, b"all of it");
    // More than the peer's window takes.
    let mut sent = 0;
    while let more @ 1.. = lab.server.program.send(part_into, &vec![3; 100_000]) {
        sent += more;
        lab.turns(20);
    }
    lab.server.mailbox.post(Mail::Detach { owner: OWNER });
    lab.turns(20);
    lab.server.mailbox.post(Mail::GiveUp { owner: OWNER });
    lab.turns(20);
    let bits = lab.client.program.bits(part);
    assert_eq!(bits & event::ERR, event::ERR, "{sent}");
    let bits = lab.client.program.bits(whole);
    assert_eq!(bits & (event::ERR | event::RDHUP), event::RDHUP);
    assert_eq!(lab.client.program.recv(whole, 100), b"all of it");
    assert_eq!(lab.server.lcore.stack.live_flows(), 1);
    // It ends by itself when the peer closes.
    lab.client.program.close(whole);
    lab.turns(20);
    assert_eq!(lab.server.status.take_ended(), [OWNER]);
}

#[test]
fn who_has_a_flow_that_is_given_up_is_told_of_a_reset() {
    let mut lab = Lab::new();
    let listener = lab.listen(16);
    let (_out, into) = lab.connect(listener);
    let begun = lab.server.program.claim();
    let nobody = core::net::SocketAddrV4::new(lab::NOBODY, 9);
    lab.server.program.connect(begun, nobody);
    lab.until(1, |lab| lab.server.program.answer(begun) == Some(0));
    assert_eq!(lab.server.program.kind(begun), kind::CONNECTING);
    lab.server.mailbox.post(Mail::GiveUp { owner: OWNER });
    lab.turns(20);
    for object in [into, begun] {
        let host = &lab.server.program.cell(object).host;
        let error = host.error.load(Ordering::Relaxed);
        assert_eq!(error, number(Errno::CONNRESET));
        let ends = event::ERR | event::HUP;
        assert_eq!(lab.server.program.bits(object) & ends, ends);
    }
    assert_eq!(lab.server.program.kind(begun), kind::FAILED);
}

#[test]
fn an_abandoned_family_ends_at_once() {
    let (mut lab, out, _into) = Lab::connected();
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
    lab.server_told(good_into, event::IN);
    assert_eq!(lab.server.program.recv(good_into, 10), b"fine");
}
