//! Model checks of the sleep protocol: whoever sleeps is woken.

use loom::sync::Arc;
use loom::thread;

use super::*;
use crate::channel::sync::AtomicU32;

fn check(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

const OBJECT: u32 = 1;
const SLOT: u32 = 2;
const EPOLL: u32 = 0;

/// The host receives a byte; returns whether it writes the sleeper's eventfd.
fn receive(control: &Control) -> bool {
    let cell = control.object(OBJECT).unwrap();
    cell.host.rx_tail.store(1, Ordering::Release);
    let mut wakes = false;
    alert(control, OBJECT, News::State, |slot| {
        assert_eq!(slot, SLOT);
        assert!(!wakes, "one write a sleep");
        wakes = true;
    });
    wakes
}

#[test]
fn loom_who_sleeps_on_an_object_is_woken() {
    check(|| {
        let control = Arc::new(Control::of(2, 3, 0));
        let host = {
            let control = Arc::clone(&control);
            thread::spawn(move || receive(&control))
        };
        let cell = control.object(OBJECT).unwrap();
        let slot = control.slot(SLOT).unwrap();
        begin_sleep(slot, || {
            cell.watch.slots.add(SLOT);
        });
        let sleeps = readable_bytes(cell) == 0;
        let woken = host.join().unwrap();
        assert!(!sleeps || woken, "asleep for ever");
        assert_eq!(end_sleep(slot), woken);
    });
}

#[test]
fn loom_who_sleeps_on_an_epoll_is_woken_and_finds_the_object() {
    check(|| {
        let control = Arc::new(Control::of(2, 3, 1));
        control.object(OBJECT).unwrap().watch.epolls.add(EPOLL);
        let host = {
            let control = Arc::clone(&control);
            thread::spawn(move || receive(&control))
        };
        let slot = control.slot(SLOT).unwrap();
        begin_sleep(slot, || {
            control.epoll(EPOLL).unwrap().slots.add(SLOT);
        });
        let sleeps = !control.ready(EPOLL).unwrap().may_have_any();
        let woken = host.join().unwrap();
        assert!(!sleeps || woken, "asleep for ever");
        let mut found = false;
        control.ready(EPOLL).unwrap().take(0, |index| {
            assert_eq!(index, OBJECT);
            assert_eq!(readable_bytes(control.object(index).unwrap()), 1);
            found = true;
            true
        });
        assert!(found);
    });
}

#[test]
fn loom_a_collector_and_an_alert_lose_nothing() {
    check(|| {
        let control = Arc::new(Control::of(2, 3, 1));
        let cell = control.object(OBJECT).unwrap();
        cell.watch.epolls.add(EPOLL);
        // Ready from before, for nothing: a collector takes the bit while the byte comes.
        control.ready(EPOLL).unwrap().set(OBJECT);
        let host = {
            let control = Arc::clone(&control);
            thread::spawn(move || {
                receive(&control);
            })
        };
        let collect = |control: &Control| {
            let mut seen = false;
            control.ready(EPOLL).unwrap().take(0, |index| {
                seen |= readable_bytes(control.object(index).unwrap()) == 1;
                true
            });
            seen
        };
        let first = collect(&control);
        host.join().unwrap();
        assert!(first || collect(&control), "the byte is never reported");
    });
}

#[test]
fn loom_the_lcore_does_not_sleep_through_a_bell() {
    check(|| {
        let control = Arc::new(Control::of(2, 0, 0));
        let wish = Arc::new(AtomicU32::new(0));
        let program = {
            let (control, wish) = (Arc::clone(&control), Arc::clone(&wish));
            thread::spawn(move || {
                wish.store(1, Ordering::Relaxed);
                ring_doorbell(&control, OBJECT).is_some()
            })
        };
        begin_lcore_sleep(&control, 0);
        let sleeps = !control.doorbells(0).unwrap().may_have_any();
        let woken = program.join().unwrap();
        assert!(!sleeps || woken, "asleep for ever");
        end_lcore_sleep(&control, 0);
        let mut heard = 0;
        control.doorbells(0).unwrap().take(0, |index| {
            assert_eq!((index, wish.load(Ordering::Relaxed)), (OBJECT, 1));
            heard += 1;
            true
        });
        assert_eq!(heard, 1);
    });
}

#[test]
fn loom_two_ringers_wake_the_lcore_once() {
    check(|| {
        let control = Arc::new(Control::of(2, 0, 0));
        let ringers: Vec<_> = (0..2)
            .map(|index| {
                let control = Arc::clone(&control);
                thread::spawn(move || ring_doorbell(&control, index).is_some())
            })
            .collect();
        begin_lcore_sleep(&control, 0);
        let sleeps = !control.doorbells(0).unwrap().may_have_any();
        let writes = ringers
            .into_iter()
            .map(|ringer| usize::from(ringer.join().unwrap()))
            .sum::<usize>();
        assert!(writes <= 1);
        assert!(!sleeps || writes == 1, "asleep for ever");
    });
}

#[test]
fn loom_who_waits_for_room_gets_an_edge() {
    const RING: u32 = 3;
    check(|| {
        let control = Arc::new(Control::of(2, 3, 0));
        let cell = control.object(OBJECT).unwrap();
        cell.host.tx_backed.store(RING, Ordering::Relaxed);
        cell.host.kind.store(kind::STREAM, Ordering::Relaxed);
        cell.write.tx_reserved.store(3, Ordering::Relaxed);
        cell.write.tx_tail.store(3, Ordering::Relaxed);
        let host = {
            let control = Arc::clone(&control);
            thread::spawn(move || {
                // Takes everything out, then looks whether somebody wants room.
                let cell = control.object(OBJECT).unwrap();
                cell.host.tx_head.store(3, Ordering::SeqCst);
                fence(Ordering::SeqCst);
                let mut woken = false;
                if cell.write.want_room.load(Ordering::SeqCst) == 1 {
                    cell.write.want_room.store(0, Ordering::SeqCst);
                    alert(&control, OBJECT, News::State, |_| woken = true);
                }
                woken
            })
        };
        let slot = control.slot(SLOT).unwrap();
        begin_sleep(slot, || {
            cell.watch.slots.add(SLOT);
        });
        let sleeps = bits(cell, RING) & event::OUT == 0;
        let woken = host.join().unwrap();
        assert!(!sleeps || woken, "asleep for ever");
    });
}

/// An eventfd that loom follows.
struct Count(AtomicU32);

impl herald::Eventfd for Arc<Count> {
    fn write(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }

    fn drain(&self) {
        self.0.store(0, Ordering::SeqCst);
    }

    fn await_write(&self) {
        if self.0.load(Ordering::SeqCst) == 0 {
            self.write();
        }
    }
}

/// The host receives a byte and rings the herald of the epoll.
fn receive_and_ring(control: &Control, eventfd: &Arc<Count>) {
    let cell = control.object(OBJECT).unwrap();
    cell.host.rx_tail.store(1, Ordering::Release);
    alert(control, OBJECT, News::State, |slot| {
        assert_eq!(slot, herald::slot(EPOLL));
        herald::Eventfd::write(eventfd);
    });
}

fn has_events(control: &Control) -> bool {
    control
        .ready(EPOLL)
        .unwrap()
        .any(|index| readable_bytes(control.object(index).unwrap()) == 1)
}

fn check_herald(state: u32, readable: u32) {
    check(move || {
        let control = Arc::new(Control::of(2, 0, 1));
        let eventfd = Arc::new(Count(AtomicU32::new(readable)));
        let epoll = control.epoll(EPOLL).unwrap();
        epoll.herald.store(state, Ordering::Relaxed);
        control.object(OBJECT).unwrap().watch.epolls.add(EPOLL);
        let host = {
            let (control, eventfd) = (Arc::clone(&control), Arc::clone(&eventfd));
            thread::spawn(move || receive_and_ring(&control, &eventfd))
        };
        herald::settle(epoll, || has_events(&control), &eventfd);
        host.join().unwrap();
        assert!(
            eventfd.0.load(Ordering::SeqCst) > 0,
            "an event that nobody is told of"
        );
        // The byte is read: the next settling makes it unreadable again, and another byte rings.
        control.ready(EPOLL).unwrap().clear(OBJECT);
        herald::settle(epoll, || has_events(&control), &eventfd);
        assert_eq!(eventfd.0.load(Ordering::SeqCst), 0);
        receive_and_ring(&control, &eventfd);
        assert_eq!(eventfd.0.load(Ordering::SeqCst), 1);
    });
}

#[test]
fn loom_a_herald_that_is_settled_is_readable_when_there_is_an_event() {
    check_herald(crate::channel::cell::herald::CLEAN, 0);
    check_herald(crate::channel::cell::herald::DIRTY, 1);
    check_herald(crate::channel::cell::herald::RUNG, 1);
}

/// Two threads wait on an epoll each, or both on the same, for one byte: one of them finds it.
fn check_that_one_of_two_gets_it(epolls: [u32; 2], exclusive: bool) {
    use crate::channel::cell::item;
    check(move || {
        let control = Arc::new(Control::of(2, 2, 2));
        let cell = control.object(OBJECT).unwrap();
        for (item, epoll) in cell.items.iter().zip(epolls) {
            cell.watch.epolls.add(epoll);
            if exclusive {
                let word = item::word(epoll, control.epoll(epoll).unwrap());
                item.epoll.store(word, Ordering::Relaxed);
                item.events.store(item::EXCLUSIVE | 1, Ordering::Relaxed);
                cell.read.exclusive.store(1, Ordering::Relaxed);
            }
        }
        // The second sleeps already.
        control.epoll(epolls[1]).unwrap().slots.add(1);
        control
            .slot(1)
            .unwrap()
            .sleeping
            .store(1, Ordering::Relaxed);
        let host = {
            let control = Arc::clone(&control);
            thread::spawn(move || {
                let mut woken = [false; 2];
                let cell = control.object(OBJECT).unwrap();
                cell.host.rx_tail.store(1, Ordering::Release);
                alert(&control, OBJECT, News::State, |slot| {
                    woken[slot as usize] = true
                });
                woken
            })
        };
        let slot = control.slot(0).unwrap();
        begin_sleep(slot, || {
            control.epoll(epolls[0]).unwrap().slots.add(0);
        });
        let finds = |epoll: u32| control.ready(epoll).unwrap().has(OBJECT);
        let awake = finds(epolls[0]);
        let woken = host.join().unwrap();
        assert!(
            ((awake || woken[0]) && finds(epolls[0])) || (woken[1] && finds(epolls[1])),
            "asleep for ever"
        );
    });
}

#[test]
fn loom_one_of_two_who_share_an_epoll_is_woken() {
    check_that_one_of_two_gets_it([0, 0], false);
}

#[test]
fn loom_one_of_two_exclusive_epolls_is_told() {
    check_that_one_of_two_gets_it([0, 1], true);
}
