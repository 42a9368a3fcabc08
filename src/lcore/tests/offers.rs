//! Of those who watch a listener with EPOLLEXCLUSIVE one is told, and the others when that one does not run.

use super::lab::Lab;
use crate::channel::cell::item;
use crate::channel::sync::Ordering;

/// Two epolls watch a new listener of the server, a slot sleeps on each.
fn watched() -> (Lab, u32) {
    let mut lab = Lab::new();
    let listener = lab.listen(16);
    let control = &lab.server.program.control;
    let cell = control.object(listener).unwrap();
    for (entry, epoll) in cell.items.iter().zip([0, 1]) {
        let word = item::word(epoll, control.epoll(epoll).unwrap());
        entry.events.store(item::EXCLUSIVE | 1, Ordering::Relaxed);
        entry.epoll.store(word, Ordering::Relaxed);
        cell.watch.epolls.add(epoll);
        control.epoll(epoll).unwrap().slots.add(epoll);
        let slot = control.slot(epoll).unwrap();
        slot.sleeping.store(1, Ordering::Relaxed);
    }
    cell.read.exclusive.store(1, Ordering::Relaxed);
    (lab, listener)
}

fn told(lab: &Lab) -> Vec<u32> {
    let control = &lab.server.program.control;
    let is_told = |slot: &u32| {
        control
            .slot(*slot)
            .unwrap()
            .sleeping
            .load(Ordering::Relaxed)
            == 0
    };
    [0, 1].into_iter().filter(is_told).collect()
}

/// A client connects; nobody has accepted yet.
fn connected(lab: &mut Lab, listener: u32) {
    let out = lab.client.program.claim();
    lab.client.program.connect(out, super::ENDPOINT);
    lab.until(5, |lab| lab.server.program.bits(listener) != 0);
}

#[test]
fn the_others_are_told_when_the_first_does_not_run() {
    let (mut lab, listener) = watched();
    connected(&mut lab, listener);
    assert_eq!(told(&lab).len(), 1);
    lab.turns(20);
    assert_eq!(told(&lab).len(), 2);
    let counters = &lab.server.status.counters;
    assert_eq!(counters.offers_repeated.value(), 1);
}

#[test]
fn who_is_awake_may_take_his_time() {
    let (mut lab, listener) = watched();
    connected(&mut lab, listener);
    let first = told(&lab)[0];
    // Awake: his slot is no sleeper's any more.
    let control = &lab.server.program.control;
    control.epoll(first).unwrap().slots.remove(first);
    lab.turns(50);
    assert_eq!(told(&lab), [first]);
    assert_eq!(lab.server.status.counters.offers_repeated.value(), 0);
}
