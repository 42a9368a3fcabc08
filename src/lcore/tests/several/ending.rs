//! What ends, ends at every lcore.

use super::super::program::PID;
use super::*;
use crate::lcore::Mail;

#[test]
fn a_process_that_ends_lets_go_of_its_objects_at_every_lcore() {
    let mut lab = Lab::new(2);
    let listener = lab.listen(64);
    let (out, into) = lab.connect(listener, 16);
    // Claimed and not used: nothing of the stack's.
    let claimed = lab.server.program.claim_at(1);
    lab.server.say(|| Mail::ProcessGone {
        owner: OWNER,
        cell: 0,
        pid: PID,
    });
    lab.until(5, |lab| {
        let closed = |object: &u32| lab.client.program.bits(*object) & event::RDHUP != 0;
        out.iter().all(closed)
    });
    assert_eq!(lab.server.sum("processes_gone"), 1);
    lab.until(1, |lab| {
        !lab.server.program.control.taken().unwrap().has(claimed)
    });
    lab.until(1, |lab| lab.server.program.is_free(listener));
    for object in out {
        lab.client.program.close(object);
    }
    lab.server.say(|| Mail::Detach { owner: OWNER });
    let mut ended = vec![0; 2];
    lab.until(30, |lab| {
        for (count, status) in ended.iter_mut().zip(&lab.server.statuses) {
            *count += status.take_ended().len();
        }
        ended == [1, 1]
    });
    drop(into);
}

#[test]
fn a_family_that_ends_with_a_listener_ends_at_every_lcore() {
    let mut lab = Lab::new(4);
    let listener = lab.listen(64);
    lab.connect(listener, 8);
    lab.begin(8);
    lab.turn();
    lab.server.say(|| Mail::Detach { owner: OWNER });
    let mut ended = 0;
    lab.until(200, |lab| {
        let lists = lab.server.statuses.iter();
        ended += lists.map(|status| status.take_ended().len()).sum::<usize>();
        ended == 4
    });
    assert_eq!(lab.server.sum("families_muted"), 0);
}

#[test]
fn a_listener_ends_though_its_family_has_ended_at_another_lcore() {
    let mut lab = Lab::new(2);
    lab.server.mailboxes[1].post(Mail::Detach { owner: OWNER });
    let mut ended = 0;
    lab.until(5, |lab| {
        ended += lab.server.statuses[1].take_ended().len();
        ended == 1
    });
    let listener = lab.listen(8);
    lab.server.program.close(listener);
    lab.until(1, |lab| lab.server.program.is_free(listener));
    lab.server.mailboxes[0].post(Mail::Detach { owner: OWNER });
    lab.until(5, |lab| !lab.server.statuses[0].take_ended().is_empty());
}
