//! A listener is one, at every lcore.

use std::sync::Arc;

use super::super::summons::{pipe, rung};
use super::*;
use crate::channel::accept_ring;
use crate::channel::cell::{flag, option, shut};
use crate::errno::Errno;
use crate::lcore::Mail;
use crate::stack::demux::FlowKey;

#[test]
fn the_backlog_is_that_of_the_listener_whoever_receives() {
    let mut lab = Lab::new(4);
    let listener = lab.listen(4);
    let out = lab.begin(40);
    let end = lab.now + Duration::from_millis(900);
    while lab.now < end {
        lab.turn();
    }
    let waiting = lab.server.sum("flows_handed_over");
    // One more than asked for, as Linux does, and each lcore but one may be late.
    assert!((5..=8).contains(&waiting), "{waiting} wait");
    // A second listen makes room for the others, which ask again.
    lab.server.program.listen(listener, ENDPOINT, 100);
    lab.until_up(false, &out);
}

#[test]
fn options_of_a_listener_are_those_of_all_its_connections() {
    let mut lab = Lab::new(3);
    let listener = lab.listen(64);
    let cell = lab.server.program.cell(listener);
    cell.option.ttl.store(33, Ordering::Relaxed);
    cell.option.changed.fetch_add(1, Ordering::SeqCst);
    lab.server.program.ring(listener);
    lab.turn();
    lab.turn();
    let (_, into) = lab.connect(listener, 24);
    for object in into {
        let FlowKey { local, remote } = lab.server.key(object);
        let lcore = lab.server.lcore_of(object) as usize;
        let stack = &lab.server.lcores[lcore].stack;
        let view = stack.view_one(lab.now, local, remote).unwrap();
        assert_eq!(view.options.ttl, 33);
    }
}

#[test]
fn listen_is_answered_when_every_lcore_listens() {
    let mut lab = Lab::new(2);
    let listener = lab.server.program.claim();
    lab.server.program.listen(listener, ENDPOINT, 8);
    for _ in 0..5 {
        lab.server.lcores[0].turn(lab.now, Duration::ZERO);
        lab.pass(1);
    }
    assert_eq!(lab.server.program.answer(listener), None);
    // Shut before it was answered: that is seen to as well.
    lab.server.lcores[1].turn(lab.now, Duration::ZERO);
    lab.server.lcores[0].turn(lab.now, Duration::ZERO);
    assert_eq!(lab.server.program.answer(listener), Some(0));
    assert_eq!(lab.server.program.kind(listener), kind::LISTENER);
    // The port is taken, at the first lcore, which all ask.
    let second = lab.server.program.claim();
    lab.server.program.listen(second, ENDPOINT, 8);
    lab.turn();
    let refused = Errno::ADDRINUSE.raw_os_error().unsigned_abs();
    assert_eq!(lab.server.program.answer(second), Some(refused));
}

#[test]
fn a_listener_that_ends_resets_what_waits_at_every_lcore_and_can_begin_anew() {
    let mut lab = Lab::new(3);
    let listener = lab.listen(64);
    for round in 0..3 {
        let out = lab.begin(24);
        lab.until_up(false, &out);
        lab.until(5, |lab| {
            let cell = lab.server.program.cell(listener);
            accept_ring::queued(&cell.queue) == 24
        });
        // Some are taken and live on.
        let kept = lab.server.program.accept_at(listener, 1).unwrap();
        let cell = lab.server.program.cell(listener);
        cell.write.shut.store(shut::READ, Ordering::SeqCst);
        lab.server.program.ring(listener);
        lab.until(5, |lab| {
            let over = |object: &&u32| {
                let flags = lab
                    .client
                    .program
                    .cell(**object)
                    .host
                    .flags
                    .load(Ordering::Relaxed);
                flags & flag::OVER != 0
            };
            out.iter().filter(over).count() == 23
        });
        assert_eq!(lab.server.program.kind(kept), kind::STREAM);
        lab.server.program.close(kept);
        for object in out {
            lab.client.program.close(object);
        }
        let cell = lab.server.program.cell(listener);
        cell.write.shut.store(0, Ordering::SeqCst);
        lab.server.program.listen(listener, ENDPOINT, 64);
        lab.until(1, |lab| lab.server.program.answer(listener).is_some());
        assert_eq!(
            lab.server.program.answer(listener),
            Some(0),
            "round {round}"
        );
        assert_eq!(
            lab.server.program.accept(listener),
            None,
            "its queues are empty"
        );
    }
    lab.server.program.close(listener);
    lab.server.lcores[0].turn(lab.now, Duration::ZERO);
    assert!(
        !lab.server.program.is_free(listener),
        "another lcore may still fill its queue"
    );
    lab.until(1, |lab| lab.server.program.is_free(listener));
    // The index is used again.
    let again = lab.listen(8);
    assert_eq!(again, listener);
    lab.connect(again, 4);
}

#[test]
fn a_queue_that_the_program_breaks_ends_the_listener_at_every_lcore() {
    let mut lab = Lab::new(2);
    let listener = lab.listen(64);
    let (out, into) = lab.connect(listener, 8);
    // What was taken is known.
    lab.turn();
    let cell = lab.server.program.cell(listener);
    cell.queue.heads[1].store(77_777, Ordering::SeqCst);
    let bells = lab.server.program.control.doorbells(1).unwrap();
    bells.set(listener);
    lab.until(1, |lab| lab.server.program.kind(listener) == kind::FAILED);
    assert_eq!(lab.server.sum("objects_broken_by_program"), 1);
    // What was accepted lives on; nobody listens any more.
    carries(&mut lab, true, &out, &into);
    let late = lab.begin(6);
    lab.until(5, |lab| {
        let refused = |object: &u32| lab.client.program.kind(*object) == kind::FAILED;
        late.iter().all(refused)
    });
}

#[test]
fn listeners_that_share_a_port_have_an_lcore_each() {
    let mut lab = Lab::new(2);
    let one = lab.listen_at(ENDPOINT, 64, option::REUSEPORT);
    let other = lab.listen_at(ENDPOINT, 64, option::REUSEPORT);
    let out = lab.begin(24);
    let mut accepted = [Vec::new(), Vec::new()];
    lab.until(5, |lab| {
        for (list, listener) in accepted.iter_mut().zip([one, other]) {
            list.extend(lab.server.program.accept(listener));
        }
        accepted.iter().map(Vec::len).sum::<usize>() == out.len()
    });
    for (lcore, list) in (0..).zip(&accepted) {
        assert!(!list.is_empty());
        assert!(
            list.iter()
                .all(|object| lab.server.lcore_of(*object) == lcore)
        );
    }
}

#[test]
fn signals_of_a_listener_are_of_no_other_listener_at_its_index() {
    let mut lab = Lab::new(2);
    let listener = lab.listen(64);
    let pipe = pipe();
    let host = &lab.server.program.cell(listener).host;
    let generation = host.generation.load(Ordering::Relaxed);
    lab.server.say(|| Mail::Signals {
        owner: OWNER,
        object: listener,
        generation,
        is_new: false,
        urgent: false,
        pipe: Some(Arc::new(pipe.try_clone().unwrap())),
    });
    lab.turn();
    lab.turn();
    let signalled = |lab: &mut Lab, listener: u32| {
        let before: Vec<_> = (0..2)
            .map(|lcore| lab.server.count(lcore, "signals_sent"))
            .collect();
        let (out, into) = lab.connect(listener, 16);
        for object in out {
            lab.client.program.close(object);
        }
        for object in into {
            lab.server.program.close(object);
        }
        let after = (0..2).map(|lcore| lab.server.count(lcore, "signals_sent"));
        let more: Vec<_> = after
            .zip(before)
            .map(|(after, before)| after > before)
            .collect();
        (more, rung(&pipe) > 0)
    };
    assert_eq!(signalled(&mut lab, listener), (vec![true, true], true));
    // It listens no more, and listens again: it is the same one.
    let cell = lab.server.program.cell(listener);
    cell.write.shut.store(shut::READ, Ordering::SeqCst);
    lab.server.program.ring(listener);
    lab.until(1, |lab| lab.server.program.kind(listener) == kind::FAILED);
    cell_listens_again(&mut lab, listener);
    assert_eq!(signalled(&mut lab, listener), (vec![true, true], true));
    lab.server.program.close(listener);
    lab.until(1, |lab| lab.server.program.is_free(listener));
    rung(&pipe);
    let again = lab.listen(64);
    assert_eq!(again, listener);
    assert_eq!(signalled(&mut lab, again), (vec![false, false], false));
}

fn cell_listens_again(lab: &mut Lab, listener: u32) {
    let cell = lab.server.program.cell(listener);
    cell.write.shut.store(0, Ordering::SeqCst);
    lab.server.program.listen(listener, ENDPOINT, 64);
    lab.until(1, |lab| lab.server.program.answer(listener) == Some(0));
}
