#![allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // small numbers

use std::os::fd::{AsRawFd, OwnedFd};

use super::*;
use crate::channel::cell::INLINE_ITEMS;
use crate::socket::close::{self, How};
use crate::socket::fake::{Fake, RING};
use crate::socket::hold;

const IN: u32 = event::IN;
const OUT: u32 = event::OUT;
/// EPOLL_CTL_ADD.
const ADD: i32 = 1;

struct Set {
    fake: Fake,
    link: &'static Link,
    epoll: u32,
    kernel: OwnedFd,
}

fn set() -> Set {
    let fake = Fake::new();
    let link = fake.link;
    Set {
        link,
        epoll: create(link).unwrap(),
        kernel: rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC).unwrap(),
        fake,
    }
}

impl Set {
    fn watch(&self, object: Object, events: u32, data: u64) {
        let events = EpollEvent { events, data };
        let fd = i32::try_from(object.index).unwrap();
        add(self.link, self.epoll, object, fd, events, false).unwrap();
    }

    fn change(&self, object: Object, events: u32, data: u64) -> Result<()> {
        let events = EpollEvent { events, data };
        let fd = i32::try_from(object.index).unwrap();
        modify(self.link, self.epoll, object, fd, events, false)
    }

    fn look(&self, room: usize) -> Vec<(u64, u32)> {
        self.wait(room, Some(Duration::ZERO)).unwrap()
    }

    fn wait(&self, room: usize, timeout: Option<Duration>) -> Result<Vec<(u64, u32)>> {
        wait_on(
            self.link,
            self.epoll,
            self.kernel.as_raw_fd(),
            room,
            timeout,
        )
    }

    fn add_kernel(&self, fd: i32, data: u64) {
        let event = EpollEvent { events: IN, data };
        wait::epoll_ctl(self.kernel.as_raw_fd(), ADD, fd, Some(event)).unwrap();
        count_kernel_item(self.link, self.epoll, true);
    }

    fn sleeps(&self) -> bool {
        let mut found = false;
        self.link
            .control
            .epoll(self.epoll)
            .unwrap()
            .slots
            .for_each(|slot| {
                let cell = self.link.control.slot(slot).unwrap();
                found |= cell.sleeping.load(Ordering::SeqCst) == 1;
            });
        found
    }

    /// Waits on another thread; `event` happens as soon as it sleeps.
    fn once_asleep(&self, event: impl FnOnce(&Self)) -> Result<Vec<(u64, u32)>> {
        let (link, epoll, kernel) = (self.link, self.epoll, self.kernel.as_raw_fd());
        std::thread::scope(|scope| {
            let call = scope.spawn(move || wait_on(link, epoll, kernel, 8, None));
            while !self.sleeps() {
                std::thread::yield_now();
            }
            event(self);
            call.join().unwrap()
        })
    }
}

fn wait_on(
    link: &Link,
    epoll: u32,
    kernel: i32,
    room: usize,
    timeout: Option<Duration>,
) -> Result<Vec<(u64, u32)>> {
    let mut events = vec![EpollEvent::default(); room];
    let count = wait(link, epoll, kernel, &mut events, timeout, None)?;
    Ok(events[..count]
        .iter()
        .map(|event| ({ event.data }, { event.events }))
        .collect())
}

#[test]
fn level_triggered_reports_as_long_as_it_is_true() {
    let set = set();
    let object = set.fake.stream(1);
    set.watch(object, IN, u64::MAX - 5);
    assert_eq!(set.look(8), []);
    set.fake.receive(object, b"x");
    for _ in 0..3 {
        assert_eq!(set.look(8), [(u64::MAX - 5, IN)]);
    }
    let cell = set.fake.cell(object);
    cell.read.rx_head.store(1, Ordering::Relaxed);
    assert_eq!(set.look(8), []);
}

#[test]
fn who_leaves_ready_objects_behind_wakes_one_sleeper() {
    let set = set();
    let cell = set.link.control.epoll(set.epoll).unwrap();
    let sleeping = |slot: u32| &set.link.control.slot(slot).unwrap().sleeping;
    let asleep = || {
        for slot in [40, 41] {
            cell.slots.add(slot);
            sleeping(slot).store(1, Ordering::SeqCst);
        }
    };
    let awake = || [40, 41].map(|slot| sleeping(slot).load(Ordering::SeqCst) == 0);
    let edges = [set.fake.stream(1), set.fake.stream(2)];
    for object in edges {
        set.watch(object, IN | flag::ET, u64::from(object.index));
        set.fake.receive(object, b"x");
    }
    asleep();
    assert_eq!(set.look(1).len(), 1);
    assert_eq!(awake(), [true, false], "one object is left for one sleeper");
    asleep();
    assert_eq!(set.look(1).len(), 1);
    assert_eq!(set.look(1), []);
    assert_eq!(awake(), [false, false], "nothing is left");
    set.watch(set.fake.stream(3), OUT, 3);
    asleep();
    assert_eq!(set.look(8), [(3, OUT)]);
    assert_eq!(awake(), [true, false], "level-triggered: it is ready still");
}

#[test]
fn an_edge_is_reported_once_with_all_that_is_true() {
    let set = set();
    let object = set.fake.stream(1);
    set.watch(object, IN | OUT | event::RDHUP | flag::ET, 7);
    assert_eq!(set.look(8), [(7, OUT)], "what is true at ADD is news");
    assert_eq!(set.look(8), []);
    set.fake.receive(object, b"x");
    assert_eq!(set.look(8), [(7, IN | OUT)]);
    assert_eq!(set.look(8), []);
    set.fake.receive(object, b"y");
    set.fake.finish(object);
    assert_eq!(
        set.look(8),
        [(7, IN | OUT | event::RDHUP)],
        "two edges before a look are one report"
    );
    set.change(object, IN | flag::ET, 8).unwrap();
    assert_eq!(set.look(8), [(8, IN)], "MOD makes it news again");
    assert_eq!(set.look(8), []);
}

#[test]
fn one_shot_fires_once_until_it_is_armed_again() {
    let set = set();
    let object = set.fake.stream(1);
    set.fake.receive(object, b"x");
    set.watch(object, IN | flag::ONESHOT, 7);
    assert_eq!(set.look(8), [(7, IN)]);
    set.fake.receive(object, b"y");
    set.fake.fail(object, 104);
    assert_eq!(set.look(8), [], "not even ERR and HUP");
    set.change(object, OUT | flag::ONESHOT, 9).unwrap();
    let bits = OUT | event::ERR | event::HUP;
    assert_eq!(set.look(8), [(9, bits)]);
    assert_eq!(set.look(8), []);
}

#[test]
fn err_and_hup_come_unasked() {
    let set = set();
    let object = set.fake.stream(1);
    set.watch(object, 0, 7);
    assert_eq!(set.look(8), []);
    set.fake.fail(object, 104);
    assert_eq!(set.look(8), [(7, event::ERR | event::HUP)]);
}

#[test]
fn wrong_uses_have_linux_errnos() {
    let set = set();
    let object = set.fake.stream(1);
    let events = EpollEvent {
        events: IN,
        data: 1,
    };
    let other = create(set.link).unwrap();
    assert_eq!(set.change(object, IN, 1), Err(Errno::NOENT));
    assert_eq!(delete(set.link, set.epoll, object, 1), Err(Errno::NOENT));
    set.watch(object, IN, 1);
    let again = |epoll, fd| add(set.link, epoll, object, fd, events, false);
    assert_eq!(again(set.epoll, 1), Err(Errno::EXIST));
    assert_eq!(again(set.epoll, 2), Ok(()), "a dup is another key");
    assert_eq!(again(other, 1), Ok(()), "another epoll too");
    assert_eq!(again(EPOLLS, 1), Err(Errno::BADF));
    let exclusive = EpollEvent {
        events: IN | flag::EXCLUSIVE | flag::ONESHOT,
        data: 1,
    };
    assert_eq!(
        add(set.link, other, object, 9, exclusive, false),
        Err(Errno::INVAL)
    );
    assert_eq!(
        set.change(object, IN | flag::EXCLUSIVE, 1),
        Err(Errno::INVAL)
    );
    assert_eq!(set.wait(0, None), Err(Errno::INVAL));
    set.fake.receive(object, b"x");
    assert_eq!(set.look(8), [(1, IN), (1, IN)], "both descriptors");
    delete(set.link, set.epoll, object, 1).unwrap();
    delete(set.link, set.epoll, object, 2).unwrap();
    assert_eq!(set.look(8), []);
    assert!(set.fake.cell(object).watch.epolls.has(other));
    assert!(!set.fake.cell(object).watch.epolls.has(set.epoll));
}

#[test]
fn more_items_than_fit_into_the_cell_work_too() {
    let set = set();
    let object = set.fake.stream(1);
    let many = u64::try_from(INLINE_ITEMS).unwrap() + 3;
    for fd in 0..many {
        let events = EpollEvent {
            events: IN,
            data: fd,
        };
        let fd = i32::try_from(fd).unwrap();
        add(set.link, set.epoll, object, fd, events, false).unwrap();
    }
    set.fake.receive(object, b"x");
    let all: Vec<_> = (0..many).map(|data| (data, IN)).collect();
    assert_eq!(set.look(32), all);
    let other = set.fake.stream(2);
    set.watch(other, IN, 99);
    for fd in 0..i32::try_from(many).unwrap() {
        delete(set.link, set.epoll, object, fd).unwrap();
    }
    set.fake.receive(other, b"x");
    assert_eq!(set.look(32), [(99, IN)]);
}

#[test]
fn few_places_go_round_fairly() {
    let set = set();
    for index in 1..=5 {
        let object = set.fake.stream(index);
        set.watch(object, IN, u64::from(index));
        set.fake.receive(object, b"x");
    }
    let mut seen = Vec::new();
    for _ in 0..5 {
        let found = set.look(2);
        assert_eq!(found.len(), 2);
        seen.extend(found.into_iter().map(|(data, _)| data));
    }
    assert_eq!(seen, [1, 2, 3, 4, 5, 1, 2, 3, 4, 5]);
}

#[test]
fn both_halves_get_their_turn() {
    let set = set();
    let (read, write) = rustix::pipe::pipe().unwrap();
    rustix::io::write(&write, b"x").unwrap();
    set.add_kernel(read.as_raw_fd(), 70);
    let object = set.fake.stream(1);
    set.watch(object, IN, 7);
    set.fake.receive(object, b"x");
    let mut seen: Vec<_> = (0..4)
        .flat_map(|_| set.look(1))
        .map(|found| found.0)
        .collect();
    assert_ne!(seen[0], seen[1]);
    seen.sort_unstable();
    assert_eq!(seen, [7, 7, 70, 70]);
    let mut both = set.look(8);
    both.sort_unstable();
    assert_eq!(both, [(7, IN), (70, IN)]);
}

#[test]
fn the_two_halves_of_a_wildcard_listener_are_one_event() {
    let set = set();
    let listener = set.fake.listener(1);
    let (read, write) = rustix::pipe::pipe().unwrap();
    let events = EpollEvent {
        events: IN,
        data: 7,
    };
    let fd = read.as_raw_fd();
    add(set.link, set.epoll, listener, fd, events, true).unwrap();
    set.add_kernel(fd, 7);
    let other = set.fake.stream(2);
    set.watch(other, OUT, 8);
    rustix::io::write(&write, b"x").unwrap();
    let peer = core::net::SocketAddrV4::new(core::net::Ipv4Addr::LOCALHOST, 1);
    for _ in 0..2 {
        set.fake.connection(listener, 3_000, peer);
        let mut found = set.look(8);
        found.sort_unstable();
        assert_eq!(found, [(7, IN), (8, OUT)]);
    }
    set.fake.cell(listener).queue.heads[0].store(2, Ordering::Relaxed);
    let mut found = set.look(8);
    found.sort_unstable();
    assert_eq!(found, [(7, IN), (8, OUT)], "the kernel's half alone");
}

#[test]
fn a_sleeper_is_woken_by_either_half_by_add_and_by_shutdown() {
    let set = set();
    let object = set.fake.stream(1);
    set.watch(object, IN, 7);
    let woken = set.once_asleep(|set| set.fake.receive(object, b"x"));
    assert_eq!(woken, Ok(vec![(7, IN)]));
    set.fake
        .cell(object)
        .read
        .rx_head
        .store(1, Ordering::Relaxed);
    let (read, write) = rustix::pipe::pipe().unwrap();
    let woken = set.once_asleep(|set| {
        set.add_kernel(read.as_raw_fd(), 70);
        rustix::io::write(&write, b"x").unwrap();
    });
    assert_eq!(woken, Ok(vec![(70, IN)]));
    rustix::io::read(&read, &mut [0; 1]).unwrap();
    let other = set.fake.stream(2);
    let woken = set.once_asleep(|set| set.watch(other, OUT | flag::ET, 8));
    assert_eq!(woken, Ok(vec![(8, OUT)]));
    let woken = set.once_asleep(|set| close::shutdown(set.link, object, How::Read).unwrap());
    assert_eq!(woken, Ok(vec![(7, IN)]));
}

#[test]
fn no_timeout_is_early() {
    let set = set();
    let object = set.fake.stream(1);
    set.watch(object, IN, 7);
    for micros in [1, 150, 900, 2_300] {
        let timeout = Duration::from_micros(micros);
        let begin = monotonic();
        assert_eq!(set.wait(8, Some(timeout)), Ok(vec![]));
        assert!(monotonic().since(begin) >= timeout);
    }
}

#[test]
fn a_closed_socket_leaves_every_epoll_with_its_last_descriptor() {
    let set = set();
    let object = set.fake.stream(1);
    hold::add(set.link, object).unwrap();
    hold::add(set.link, object).unwrap();
    set.watch(object, OUT, 7);
    close::release(set.link, object);
    assert_eq!(set.look(8), [(7, OUT)], "a dup is left");
    close::release(set.link, object);
    assert_eq!(set.look(8), []);
    assert!(set.fake.cell(object).watch.epolls.is_empty());
}

#[test]
fn a_freed_epolls_items_mean_nothing_to_the_next_one() {
    let set = set();
    let object = set.fake.stream(1);
    set.watch(object, OUT, 7);
    release(set.link, set.epoll);
    assert_eq!(create(set.link), Ok(set.epoll), "the same index");
    set.fake.receive(object, b"x");
    assert_eq!(set.look(8), []);
    assert!(!set.fake.cell(object).watch.epolls.has(set.epoll));
    for fd in 0..i32::try_from(INLINE_ITEMS).unwrap() {
        let events = EpollEvent {
            events: OUT,
            data: 1,
        };
        add(set.link, set.epoll, object, fd, events, false).unwrap();
    }
    let cell = set.fake.cell(object);
    assert_eq!(
        cell.read.spilled.load(Ordering::Relaxed),
        0,
        "stale items are used again"
    );
}

#[test]
fn a_forked_childs_hold_keeps_the_epoll() {
    let set = set();
    hold_for_child(set.link, 0, 1);
    let cell = set.link.control.epoll(set.epoll).unwrap();
    assert_eq!(cell.used.load(Ordering::Relaxed), 2);
    release(set.link, set.epoll);
    assert_eq!(cell.used.load(Ordering::Relaxed), 1);
    assert_eq!(cell.generation.load(Ordering::Relaxed), 0);
}

#[test]
fn the_end_of_the_host_makes_everything_ready() {
    let mut set = set();
    let (one, two) = (set.fake.stream(1), set.fake.stream(4_000));
    set.watch(one, IN, 7);
    set.watch(two, flag::ET, 8);
    set.fake.die();
    let found = set.wait(8, None).unwrap();
    assert_eq!(found.len(), 2);
    let bits = event::ERR | event::HUP;
    assert!(found.iter().all(|(_, events)| events & bits == bits));
    assert_eq!(set.look(8).len(), 1, "the edge was reported");
}

#[test]
fn every_edge_reaches_one_of_many_waiters() {
    let set = set();
    let object = set.fake.stream(1);
    set.watch(object, IN | flag::ET, 7);
    let (link, epoll, kernel) = (set.link, set.epoll, set.kernel.as_raw_fd());
    let total = std::thread::scope(|scope| {
        let waiters: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(move || {
                    let mut read = 0;
                    loop {
                        wait_on(link, epoll, kernel, 4, None).unwrap();
                        let mut bytes = [0; 64];
                        // Edge-triggered: until it would block.
                        loop {
                            let part = &mut [std::io::IoSliceMut::new(&mut bytes)];
                            let flags = crate::socket::stream::RecvFlags::default();
                            match crate::socket::stream::recv(link, object, part, flags, true) {
                                Ok(0) => return read,
                                Ok(count) => read += count,
                                Err(Errno::AGAIN) => break,
                                Err(error) => panic!("{error}"),
                            }
                        }
                    }
                })
            })
            .collect();
        let mut sent = 0;
        while sent < 20_000 {
            let queued = crate::readiness::readable_bytes(set.fake.cell(object)) as usize;
            let count = (RING as usize - queued).min(97).min(20_000 - sent);
            set.fake.receive(object, &vec![1; count]);
            sent += count;
        }
        set.fake.finish(object);
        // Who got the last edge ends; the others are told by an edge each.
        let mut total = 0;
        for waiter in waiters {
            while !waiter.is_finished() {
                set.fake.alert(object);
                std::thread::yield_now();
            }
            total += waiter.join().unwrap();
        }
        total
    });
    assert_eq!(total, 20_000);
}

#[test]
fn a_child_without_a_share_writes_nothing_that_its_parent_reads() {
    let set = set();
    let (link, object) = (set.link, set.fake.stream(1));
    let (read, write) = rustix::pipe::pipe().unwrap();
    set.add_kernel(read.as_raw_fd(), 9);
    set.watch(object, IN, 7);
    hold::add(link, object).unwrap();
    set.fake.receive(object, b"x");
    rustix::io::write(&write, b"x").unwrap();
    let cell = link.control.epoll(set.epoll).unwrap();
    let seen = || {
        let words = [
            &cell.cursor,
            &cell.kernel_items,
            &cell.used,
            &cell.generation,
        ];
        let words = words.map(|word| word.load(Ordering::Relaxed));
        (
            words,
            link.control.ready(set.epoll).unwrap().has(object.index),
        )
    };
    // Every second look of a parent begins at the kernel's half.
    let _ = set.look(8);
    let before = seen();
    link.disown();
    for _ in 0..2 {
        assert_eq!(set.look(8), [(9, IN)], "its parent's pipe is its own too");
        assert_eq!(seen(), before);
    }
    assert_eq!(
        gather(
            link,
            set.epoll,
            cell,
            set.kernel.as_raw_fd(),
            KernelHalf::Ready,
            &mut [EpollEvent::default(); 4]
        ),
        Ok(1)
    );
    assert_eq!(
        collect_lost(link, set.epoll, &mut [EpollEvent::default(); 4]),
        0
    );
    assert_eq!(seen(), before);
}

#[test]
fn a_child_without_a_share_waits_until_its_deadline_and_takes_no_slot() {
    let set = set();
    let begin = monotonic();
    let span = Duration::from_millis(15);
    set.link.disown();
    let slots = || {
        let slots =
            (0..crate::channel::layout::SLOTS).filter_map(|slot| set.link.control.slot(slot));
        slots
            .filter(|slot| slot.user.load(Ordering::Relaxed) != 0)
            .count()
    };
    assert_eq!(set.wait(8, Some(span)), Ok(vec![]));
    assert!(monotonic().since(begin) >= span);
    let begin = monotonic();
    let mut fds = [PollFd::default(); OWN];
    let object = set.fake.stream(1);
    let watch = Watch::Objects(&[object]);
    let woken = waiter::sleep(
        set.link,
        watch,
        &mut fds,
        Some(begin + span),
        None,
        &mut || false,
        &mut Drive::new(),
    );
    assert_eq!(woken, Wake::Timeout);
    assert!(monotonic().since(begin) >= span);
    assert_eq!(slots(), 0);
}
