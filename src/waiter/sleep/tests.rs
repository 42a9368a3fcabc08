#![allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // small numbers

use std::os::fd::AsRawFd;

use super::*;
use crate::channel::layout::SLOTS;
use crate::channel::sync::Ordering as ChannelOrdering;
use crate::socket::fake::Fake;
use crate::thread;
use crate::waiter::slot;

/// A sleep in a process that drives no loop.
fn sleep(
    link: &Link,
    watch: Watch<'_>,
    fds: &mut [PollFd],
    deadline: Option<Instant>,
    sigmask: Option<SignalMask>,
    ready: &mut dyn FnMut() -> bool,
) -> Wake {
    let mut drive = Drive::new();
    super::sleep(link, watch, fds, deadline, sigmask, ready, &mut drive)
}

fn short() -> Option<Instant> {
    Some(monotonic() + Duration::from_micros(300))
}

fn sleep_shortly(link: &Link, object: Object) -> Wake {
    let mut fds = [PollFd::default(); OWN];
    let watch = Watch::Objects(&[object]);
    sleep(link, watch, &mut fds, short(), None, &mut || false)
}

#[test]
fn a_thread_keeps_its_slot_and_a_dead_ones_goes_to_the_next() {
    let fake = Fake::new();
    let object = fake.stream(1);
    let link = fake.link;
    assert_eq!(sleep_shortly(link, object), Wake::Timeout);
    let mine = thread::slot().unwrap();
    assert_eq!(sleep_shortly(link, object), Wake::Timeout);
    assert_eq!(thread::slot(), Some(mine));
    let other = |link| {
        std::thread::spawn(move || {
            sleep_shortly(link, object);
            (thread::slot().unwrap(), thread::id())
        })
        .join()
        .unwrap()
    };
    let (first, gone) = other(link);
    assert_ne!(first, mine);
    while crate::ffi::process::thread_lives(thread::process(), gone) {
        std::thread::yield_now();
    }
    assert_eq!(other(link).0, first, "with its eventfd");
    let cell = link.control.slot(first).unwrap();
    assert_eq!(cell.generation.load(ChannelOrdering::Relaxed), 2);
}

#[test]
fn what_comes_at_once_is_seen_without_a_sleep() {
    let fake = Fake::new();
    let object = fake.stream(1);
    let before = COUNTERS.waits_spun.value();
    // A look may be interrupted by other work on this machine for longer than it lasts; not each time.
    for _ in 0..1_000 {
        let mut looks = 0;
        let mut ready = || {
            looks += 1;
            looks > 1
        };
        let mut fds = [PollFd::default(); OWN];
        let watch = Watch::Objects(&[object]);
        let wake = sleep(fake.link, watch, &mut fds, short(), None, &mut ready);
        assert_ne!(wake, Wake::HostDead);
        if COUNTERS.waits_spun.value() > before {
            return;
        }
    }
    // With one CPU there is nothing to look for: the host cannot run meanwhile.
    assert_eq!(std::thread::available_parallelism().unwrap().get(), 1);
}

/// The leader of this process, which lives as long as the test, sleeps in all slots but `except`.
fn take_all_slots(link: &Link, except: Option<u32>) {
    let us = u64::from(thread::process()) << 32 | u64::from(thread::process()) | 1 << 31;
    for index in (0..SLOTS).filter(|index| Some(*index) != except) {
        let user = &link.control.slot(index).unwrap().user;
        user.store(us, ChannelOrdering::Relaxed);
    }
}

#[test]
fn a_slot_that_was_in_other_hands_tells_the_host_its_eventfd_again() {
    let fake = Fake::new();
    let object = fake.stream(1);
    let link = fake.link;
    let sleep_elsewhere = || {
        let slot = std::thread::spawn(move || {
            sleep_shortly(link, object);
            thread::slot()
        });
        slot.join().unwrap()
    };
    let slot = sleep_elsewhere().unwrap();
    assert_eq!(fake.messages(), 1);
    take_all_slots(link, Some(slot));
    // Another process had it meanwhile, and died; then the host freed it.
    let nobody: u64 = 0x7fff_fff0 << 32 | 5;
    for user in [nobody, 0] {
        let cell = link.control.slot(slot).unwrap();
        cell.user.store(user, ChannelOrdering::Relaxed);
        assert_eq!(sleep_elsewhere(), Some(slot));
        assert_eq!(fake.messages(), 1);
    }
}

#[test]
fn threads_that_do_not_sleep_lend_their_slots() {
    const THREADS: usize = SLOTS as usize + 40;
    let fake = Fake::new();
    let (link, object) = (fake.link, fake.stream(1));
    let mut limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    limit.current = limit.maximum;
    rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).unwrap();
    let (all, turn) = (std::sync::Barrier::new(THREADS), std::sync::Mutex::new(()));
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                let one_at_a_time = turn.lock();
                assert_eq!(sleep_shortly(link, object), Wake::Timeout);
                assert!(thread::slot().is_some());
                drop(one_at_a_time);
                // Alive until the last one has slept.
                all.wait();
            });
        }
    });
}

#[test]
fn a_lost_hosts_eventfds_are_closed() {
    let fake = Fake::new();
    let first = Slot::take(fake.link).unwrap().eventfd;
    // Another test may take the number at once: the eventfd's own id tells.
    let identity = |fd: i32| {
        let about = std::fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).ok()?;
        let id = about.lines().find(|line| line.starts_with("eventfd-id"))?;
        Some(id.to_owned())
    };
    let before = identity(first).unwrap();
    slot::forget_link_eventfds(fake.link.place());
    assert_ne!(identity(first), Some(before), "it was closed");
    assert!(Slot::take(fake.link).is_some());
    assert_eq!(fake.messages(), 2, "the host is told the new one");
}

#[test]
fn an_empty_pool_is_not_searched_at_each_sleep() {
    let fake = Fake::new();
    let link = fake.link;
    take_all_slots(link, None);
    assert!(Slot::take(link).is_none());
    link.control
        .slot(7)
        .unwrap()
        .user
        .store(0, ChannelOrdering::Relaxed);
    let mut searches = 0;
    while Slot::take(link).is_none() {
        searches += 1;
    }
    assert_ne!(searches, 0);
    assert_eq!(thread::slot(), Some(7));
}

#[test]
fn an_empty_pool_means_looking_again_and_again() {
    let fake = Fake::new();
    let object = fake.stream(1);
    take_all_slots(fake.link, None);
    let before = COUNTERS.waits_sliced_no_slot.value();
    assert_eq!(sleep_shortly(fake.link, object), Wake::Timeout);
    assert!(COUNTERS.waits_sliced_no_slot.value() > before);
    let mut looks = 0;
    let mut fds = [PollFd::default(); OWN];
    let woken = sleep(
        fake.link,
        Watch::Objects(&[object]),
        &mut fds,
        None,
        None,
        &mut || {
            looks += u32::from(fake.link.control.object(1).is_some());
            looks > 100
        },
    );
    assert_eq!(woken, Wake::Ready);
}

#[test]
fn a_sleep_inside_a_sleep_makes_the_outer_one_look_again() {
    let fake = Fake::new();
    let object = fake.stream(1);
    let link = fake.link;
    let slot = Slot::take(link).unwrap();
    let eventfd = slot.eventfd;
    let objects = [object];
    let outer = Sleeping::begin(link, Watch::Objects(&objects), slot);
    readiness::begin_sleep(outer.slot.cell, || outer.watch.add(link, outer.slot.index));
    // A signal handler of this thread waits on the same object.
    assert_eq!(sleep_shortly(link, object), Wake::Timeout);
    let mut fds = [PollFd {
        fd: eventfd,
        events: POLLIN,
        revents: 0,
    }];
    assert_eq!(look(&mut fds, None), Ok(1), "the outer ppoll would return");
    let woken = outer.run(&mut [PollFd::default(); OWN], short(), None, &mut || false);
    assert_eq!(woken, Some(Wake::Timeout));
    drop(outer);
    assert!(fake.cell(object).watch.slots.is_empty());
    assert_eq!(look(&mut fds, None), Ok(0));
}

#[test]
fn an_eventfd_closed_behind_our_back_is_replaced() {
    let fake = Fake::new();
    let object = fake.stream(1);
    let link = fake.link;
    let got = fake.once_asleep(
        object,
        |link| {
            let taken = Slot::take(link).unwrap();
            slot::pretend_eventfd(link, taken.index, 1_000_000);
            let mut fds = [PollFd::default(); OWN];
            let cell = link.control.object(1).unwrap();
            let watch = Watch::Objects(&[object]);
            sleep(link, watch, &mut fds, None, None, &mut || {
                cell.host.rx_tail.load(ChannelOrdering::Acquire) > 0
            })
        },
        |fake| fake.receive(object, b"x"),
    );
    assert_eq!(got, Wake::Ready);
    assert_eq!(sleep_shortly(link, object), Wake::Timeout);
}

#[test]
fn kernel_descriptors_and_the_hosts_end_wake_too() {
    let mut fake = Fake::new();
    let object = fake.stream(1);
    let (read, write) = rustix::pipe::pipe().unwrap();
    let mut fds = [PollFd::default(); OWN + 1];
    fds[OWN].fd = read.as_raw_fd();
    fds[OWN].events = POLLIN;
    let wait = |link, fds: &mut [PollFd]| {
        sleep(
            link,
            Watch::Objects(&[object]),
            fds,
            short(),
            None,
            &mut || false,
        )
    };
    assert_eq!(wait(fake.link, &mut fds), Wake::Timeout);
    rustix::io::write(&write, b"x").unwrap();
    assert_eq!(wait(fake.link, &mut fds), Wake::Kernel);
    rustix::io::read(&read, &mut [0; 1]).unwrap();
    fake.die();
    assert_eq!(wait(fake.link, &mut fds), Wake::HostDead);
    assert_eq!(wait(fake.link, &mut fds), Wake::Timeout, "told once");
}

#[test]
fn a_foreign_sleeper_is_woken_by_the_host() {
    let fake = Fake::new();
    let cell = fake.link.control.slot(9).unwrap();
    cell.user.store(1 << 32 | 1, ChannelOrdering::Relaxed);
    slot::wake(fake.link, 9);
    let mut kicked = Vec::new();
    let kicks = &fake.link.control.header().kicks.slots;
    kicks.drain(|slot| kicked.push(slot));
    assert_eq!(kicked, [9]);
}

#[test]
fn the_mask_opens_a_signal_for_the_wait_only() {
    use crate::ffi::handler::testing;

    let fake = Fake::new();
    let object = fake.stream(1);
    let _turn = testing::turn();
    testing::block(true);
    testing::install(true);
    testing::send(thread::id());
    assert_eq!(sleep_shortly(fake.link, object), Wake::Timeout, "blocked");
    let mut fds = [PollFd::default(); OWN];
    let watch = Watch::Objects(&[object]);
    let mask = Some(SignalMask(0));
    let woken = sleep(fake.link, watch, &mut fds, None, mask, &mut || false);
    assert_eq!(woken, Wake::Interrupted);
    testing::send(thread::id());
    assert_eq!(
        sleep_shortly(fake.link, object),
        Wake::Timeout,
        "blocked again"
    );
    assert_eq!(look(&mut [], mask), Err(Errno::INTR));
    testing::block(false);
}
