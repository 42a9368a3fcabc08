use core::time::Duration;
use std::os::fd::{AsRawFd, OwnedFd};

use super::*;
use crate::ffi::wait::PollFd;
use crate::socket::close;
use crate::socket::fake::Fake;
use crate::socket::hold;

const IN: u32 = event::IN;

fn kernel_epoll() -> OwnedFd {
    rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC).unwrap()
}

fn is_readable(fd: i32) -> bool {
    let mut fds = [PollFd {
        fd,
        events: 1,
        revents: 0,
    }];
    wait::ppoll(&mut fds, Some(Duration::ZERO), None).unwrap() == 1
}

fn look(link: &Link, epoll: u32, kernel: i32) -> Vec<(u64, u32)> {
    let mut events = [EpollEvent::default(); 8];
    let count =
        epoll_set::wait(link, epoll, kernel, &mut events, Some(Duration::ZERO), None).unwrap();
    events[..count]
        .iter()
        .map(|event| ({ event.data }, { event.events }))
        .collect()
}

/// The heralds of a process are known by epoll index, whatever the link: this is the one test that makes some.
#[test]
fn a_kernel_epoll_is_readable_exactly_when_its_sockets_have_events() {
    let mut fake = Fake::new();
    let link = fake.link;
    let (inner, muted) = (
        epoll_set::create(link).unwrap(),
        epoll_set::create(link).unwrap(),
    );
    let (kernel, outer) = (kernel_epoll(), kernel_epoll());
    let (kernel, outer) = (kernel.as_raw_fd(), outer.as_raw_fd());
    let object = fake.stream(1);
    let cell = fake.cell(object);
    hold::add(link, object).unwrap();
    let watch = |events| EpollEvent { events, data: 7 };
    epoll_set::add(link, inner, object, 1, watch(IN), false).unwrap();
    announce(link, inner, kernel).unwrap();
    wait::epoll_ctl(outer, ADD, kernel, Some(watch(IN))).unwrap();
    let seen = || {
        settle_all(link);
        is_readable(outer)
    };
    assert!(!seen());
    fake.receive(object, b"x");
    assert!(is_readable(outer), "the host rings");
    assert!(seen());
    assert_eq!(look(link, inner, kernel), [(7, IN)]);
    assert!(seen(), "level-triggered");
    cell.read.rx_head.store(1, Ordering::Release);
    assert!(!seen());
    // Edge-triggered: used up by its report.
    let edge = IN | epoll_set::flag::ET;
    epoll_set::modify(link, inner, object, 1, watch(edge), false).unwrap();
    fake.receive(object, b"x");
    fake.receive(object, b"x");
    assert!(seen());
    assert_eq!(look(link, inner, kernel), [(7, IN)]);
    assert!(!seen());
    // A kernel descriptor behind the herald is found, also with room for one.
    let (read, write) = rustix::pipe::pipe().unwrap();
    wait::epoll_ctl(
        kernel,
        ADD,
        read.as_raw_fd(),
        Some(EpollEvent {
            events: IN,
            data: 8,
        }),
    )
    .unwrap();
    epoll_set::count_kernel_item(link, inner, true);
    rustix::io::write(&write, b"x").unwrap();
    epoll_set::modify(link, inner, object, 1, watch(IN), false).unwrap();
    for _ in 0..3 {
        let mut found = [EpollEvent::default()];
        assert_eq!(kernel_events(link, inner, kernel, &mut found), Ok(1));
        assert_eq!({ found[0].data }, 8);
    }
    wait::epoll_ctl(kernel, 2, read.as_raw_fd(), None).unwrap();
    epoll_set::count_kernel_item(link, inner, false);
    // Nobody asks any more: nothing is written, until somebody does again.
    announce(link, muted, kernel_epoll().as_raw_fd()).unwrap();
    let other = fake.stream(2);
    epoll_set::add(link, muted, other, 2, watch(IN), false).unwrap();
    mute(link, muted);
    fake.receive(other, b"x");
    let herald = eventfds::of(muted).unwrap().number();
    assert!(!is_readable(herald));
    announce(link, muted, kernel).unwrap();
    assert!(is_readable(herald));
    // The host dies: ERR and HUP, whether or not it could ring.
    assert!(seen());
    cell.read.rx_head.store(3, Ordering::Release);
    assert!(!seen());
    fake.die();
    link.lose();
    assert!(seen());
    assert_eq!(look(link, inner, kernel).len(), 1);
    close::release(link, object);
    assert!(!seen(), "its last descriptor is gone");
    forget(inner);
    forget(muted);
}

/// Its epoll is one that the other test does not use: heralds are known by their number.
#[test]
fn a_child_without_a_share_drains_no_herald_and_rests_while_it_speaks_to_its_parent() {
    let fake = Fake::new();
    let link = fake.link;
    let epoll = (0..6)
        .map(|_| epoll_set::create(link).unwrap())
        .last()
        .unwrap();
    let kernel = kernel_epoll();
    let kernel = kernel.as_raw_fd();
    let object = fake.stream(1);
    hold::add(link, object).unwrap();
    let watch = EpollEvent {
        events: IN,
        data: 7,
    };
    epoll_set::add(link, epoll, object, 1, watch, false).unwrap();
    announce(link, epoll, kernel).unwrap();
    fake.receive(object, b"x");
    settle(link, epoll);
    let cell = link.control.epoll(epoll).unwrap();
    let state = || cell.herald.load(Ordering::SeqCst);
    let before = state();
    assert!(is_readable(kernel));
    // As in a fork that found no process cell: the eventfd and the kernel epoll are its parent's too.
    link.disown();
    settle(link, epoll);
    settle_all(link);
    mute(link, epoll);
    announce(link, epoll, kernel).unwrap();
    assert_eq!(look(link, epoll, kernel), []);
    let span = Duration::from_millis(60);
    let used = || rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime).tv_nsec;
    let (begin, worked) = (crate::time::monotonic(), used());
    let mut events = [EpollEvent::default(); 1];
    let found = epoll_set::wait(link, epoll, kernel, &mut events, Some(span), None);
    assert_eq!(found, Ok(0));
    assert!(crate::time::monotonic().since(begin) >= span);
    let worked = Duration::from_nanos(u64::try_from((used() - worked).max(0)).unwrap());
    assert!(worked < span / 3, "{worked:?}: it looked all the time");
    assert_eq!(state(), before);
    assert!(is_readable(kernel), "its parent is told");
    forget(epoll);
}

#[test]
fn the_herald_is_taken_out_and_the_order_stays() {
    let event = |data| EpollEvent { events: IN, data };
    let mut events = [event(1), event(mark()), event(2), event(3)];
    assert_eq!(strip(&mut events), 3);
    let left: Vec<_> = events[..3].iter().map(|event| event.data).collect();
    assert_eq!(left, [1, 2, 3]);
    assert_eq!(strip(&mut events[..3]), 3);
    assert_eq!(strip(&mut []), 0);
}
