#![allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // small numbers

use core::time::Duration;

use super::*;
use crate::channel::cell::option;
use crate::socket::close::{self, How};
use crate::socket::connect::{self, Progress};
use crate::socket::fake::Fake;
use crate::socket::options::{self, LINGER_ON};
use crate::socket::wish::claim_anywhere;
use crate::time::monotonic;

fn peer(port: u16) -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 9), port)
}

fn ours(port: u16) -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 1), port)
}

fn now(fake: &Fake, listener: Object) -> Result<Accepted> {
    accept(fake.link, listener, None, true, None)
}

fn stream(accepted: Result<Accepted>) -> (Object, SocketAddrV4) {
    match accepted {
        Ok(Accepted::Stream(object, peer)) => (object, peer),
        other => panic!("{other:?}"),
    }
}

#[test]
fn connections_come_in_order_and_then_eagain() {
    let fake = Fake::new();
    let listener = fake.listener(1);
    assert_eq!(now(&fake, listener), Err(Errno::AGAIN));
    for n in 0..3 {
        fake.connection(listener, 3_000 + n, peer(100 + n as u16));
    }
    for n in 0..3 {
        let (object, from) = stream(now(&fake, listener));
        assert_eq!((object.index, from), (3_000 + n, peer(100 + n as u16)));
        assert_eq!(hold::descriptors(fake.link, object), 1);
        assert!(fake.link.control.held(0).unwrap().has(object.index));
    }
    assert_eq!(now(&fake, listener), Err(Errno::AGAIN));
    assert_eq!(
        fake.bells(0),
        [1],
        "only the listener has news for the host"
    );
}

#[test]
fn a_blocking_accept_waits_and_its_timeout_is_eagain() {
    let fake = Fake::new();
    let listener = fake.listener(1);
    let got = fake.once_asleep(
        listener,
        |link| accept(link, listener, None, false, None),
        |fake| fake.connection(listener, 3_000, peer(7)),
    );
    assert_eq!(stream(got).1, peer(7));
    let begin = monotonic();
    let deadline = begin + Duration::from_micros(1_700);
    assert_eq!(
        accept(fake.link, listener, None, false, Some(deadline)),
        Err(Errno::AGAIN)
    );
    assert!(monotonic() >= deadline);
}

#[test]
fn the_twin_of_a_wildcard_listener_ends_the_wait_too() {
    let fake = Fake::new();
    let listener = fake.listener(1);
    let (read, write) = rustix::pipe::pipe().unwrap();
    let twin = std::os::fd::AsRawFd::as_raw_fd(&read);
    let got = fake.once_asleep(
        listener,
        |link| accept(link, listener, Some(twin), false, None),
        |_| {
            rustix::io::write(&write, b"x").unwrap();
        },
    );
    assert_eq!(got, Ok(Accepted::Kernel));
    fake.connection(listener, 3_000, peer(7));
    let both = accept(fake.link, listener, Some(twin), false, None);
    assert_eq!(stream(both).0.index, 3_000, "ours goes first");
}

#[test]
fn an_accepted_socket_keeps_the_options_of_its_handshake() {
    let fake = Fake::new();
    let listener = fake.listener(1);
    let wanted = Options {
        bits: option::NODELAY,
        rcvtimeo_us: 5,
        linger: LINGER_ON,
        status_flags: 0o4000,
        ..Options::default()
    };
    wanted.apply(fake.cell(listener));
    fake.connection(listener, 3_000, peer(7));
    // As the host has given them.
    let given = Options {
        status_flags: 0,
        ..wanted
    };
    given.apply(fake.link.control.object(3_000).unwrap());
    Options::default().apply(fake.cell(listener));
    let (object, _) = stream(now(&fake, listener));
    assert_eq!(Options::of(fake.cell(object)), given);
}

#[test]
fn every_connection_goes_to_one_of_many_threads() {
    let fake = Fake::new();
    let listener = fake.listener(1);
    let link = fake.link;
    let mut got = Vec::new();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(move || {
                    let mut mine = Vec::new();
                    while let Ok(Accepted::Stream(object, _)) =
                        accept(link, listener, None, false, None)
                    {
                        mine.push(object.index);
                    }
                    mine
                })
            })
            .collect();
        for n in 0..300 {
            fake.connection(listener, 3_000 + n, peer(1));
        }
        while accept_ring::queued(&fake.cell(listener).queue) > 0 {
            std::thread::yield_now();
        }
        close::shutdown(link, listener, How::Read).unwrap();
        for thread in threads {
            got.extend(thread.join().unwrap());
        }
    });
    got.sort_unstable();
    assert_eq!(got, (3_000..3_300).collect::<Vec<_>>());
    for index in got {
        let object = Object::at(link, index).unwrap();
        assert_eq!(hold::descriptors(link, object), 1);
    }
    assert_eq!(now(&fake, listener), Err(Errno::INVAL));
}

#[test]
fn listen_waits_for_the_answer_and_gives_a_refused_index_back() {
    let fake = Fake::new();
    let listener = fake.while_serving(
        |link| listen(link, ours(80), 5, &Options::default()),
        |fake| {
            fake.bells(0);
        },
    );
    let listener = listener.unwrap();
    assert_eq!(local_address(fake.link, listener), Ok(ours(80)));
    assert_eq!(hold::descriptors(fake.link, listener), 1);
    let again = fake.while_serving(
        |link| set_backlog(link, listener, 9),
        |fake| {
            fake.bells(0);
        },
    );
    assert_eq!(again, Ok(()));
    let cell = fake.cell(listener);
    assert_eq!(cell.wish.backlog.load(Ordering::Relaxed), 9);
    let mut rung = Vec::new();
    let refused = fake.while_serving(
        |link| listen(link, ours(80), 5, &Options::default()),
        |fake| rung.extend(fake.bells(98)),
    );
    assert_eq!(refused, Err(Errno::ADDRINUSE));
    rung.extend(fake.bells(98));
    let last = *rung.last().unwrap();
    assert!(!fake.link.control.held(0).unwrap().has(last));
}

#[test]
fn connect_goes_on_by_itself_and_tells_how_it_ended() {
    let fake = Fake::new();
    let begin = |fake: &Fake| {
        fake.while_serving(
            |link| connect::start(link, None, peer(80), &Options::default()).unwrap(),
            |fake| {
                fake.bells(0);
            },
        )
    };
    let object = begin(&fake);
    assert_eq!(connect::progress(fake.link, object), Ok(Progress::Going));
    assert_eq!(peer_address(fake.link, object), Err(Errno::NOTCONN));
    let ended = fake.once_asleep(
        object,
        |link| connect::wait(link, object),
        |fake| {
            let host = &fake.cell(object).host;
            host.kind.store(kind::STREAM, Ordering::Release);
            fake.alert(object);
        },
    );
    assert_eq!(ended, Ok(()));
    assert_eq!(
        connect::progress(fake.link, object),
        Ok(Progress::Connected)
    );
    assert_eq!(peer_address(fake.link, object), Ok(peer(80)));

    let object = begin(&fake);
    let sndtimeo = &fake.cell(object).read.sndtimeo_us;
    sndtimeo.store(800, Ordering::Relaxed);
    assert_eq!(connect::wait(fake.link, object), Err(Errno::INPROGRESS));
    sndtimeo.store(0, Ordering::Relaxed);
    let ended = fake.once_asleep(
        object,
        |link| connect::wait(link, object),
        |fake| {
            let host = &fake.cell(object).host;
            host.error.store(111, Ordering::Release);
            host.kind.store(kind::FAILED, Ordering::Release);
            fake.alert(object);
        },
    );
    assert_eq!(ended, Err(Errno::CONNREFUSED));
    assert_eq!(options::take_error(fake.link, object), Ok(0), "taken");
}

#[test]
fn the_last_descriptor_lets_go_and_rings() {
    let fake = Fake::new();
    let object = fake.stream(1);
    hold::add(fake.link, object).unwrap();
    hold::add(fake.link, object).unwrap();
    close::release(fake.link, object);
    assert!(fake.link.control.held(0).unwrap().has(1));
    assert_eq!(fake.bells(0), [0_u32; 0]);
    close::release(fake.link, object);
    assert!(!fake.link.control.held(0).unwrap().has(1));
    assert_eq!(fake.bells(0), [1]);
    close::release(fake.link, object);
    assert_eq!(fake.bells(0), [0_u32; 0], "one too many changes nothing");
}

#[test]
fn linger_waits_for_the_acknowledged_fin_or_its_time() {
    let fake = Fake::new();
    let object = fake.stream(1);
    hold::add(fake.link, object).unwrap();
    let cell = fake.cell(object);
    assert_eq!(close::linger(fake.link, object), Ok(()), "off");
    cell.wish.linger.store(LINGER_ON | 30, Ordering::Relaxed);
    let ended = fake.once_asleep(
        object,
        |link| close::linger(link, object),
        |fake| {
            assert_eq!(cell.write.shut.load(Ordering::Relaxed), 3);
            let done = crate::channel::cell::flag::TX_FINISHED;
            cell.host.flags.fetch_or(done, Ordering::Release);
            fake.alert(object);
        },
    );
    assert_eq!(ended, Ok(()));
    let other = fake.stream(2);
    hold::add(fake.link, other).unwrap();
    hold::add(fake.link, other).unwrap();
    fake.cell(other)
        .wish
        .linger
        .store(LINGER_ON | 30, Ordering::Relaxed);
    assert_eq!(close::linger(fake.link, other), Ok(()), "not the last one");
}

#[test]
fn accept_goes_round_among_the_lcores() {
    let fake = Fake::of_lcores(3);
    let listener = fake.listener(0);
    for lcore in [0, 1, 2] {
        for n in 0..3 {
            fake.connection(listener, fake.first_of(lcore) + n, peer(n as u16));
        }
    }
    let mut seen = Vec::new();
    for _ in 0..9 {
        let (object, _) = stream(now(&fake, listener));
        let lcore = fake.link.control.lcore_of(object.index);
        assert_eq!(fake.rang_at(listener), [lcore], "who makes room is told");
        seen.push(lcore);
    }
    assert_eq!(now(&fake, listener), Err(Errno::AGAIN));
    // Nobody waits until another one's queue is empty.
    for three in seen.chunks(3) {
        let mut three = three.to_vec();
        three.sort_unstable();
        assert_eq!(three, [0, 1, 2]);
    }
    // With one queue filled it is found wherever the round begins.
    for n in 10..14 {
        fake.connection(listener, fake.first_of(1) + n, peer(n as u16));
        stream(now(&fake, listener));
    }
}

#[test]
fn what_asks_goes_to_the_lcore_of_its_index() {
    let fake = Fake::of_lcores(2);
    let options = Options::default();
    let objects: Vec<_> = (0..4)
        .map(|_| claim_anywhere(fake.link, &options).unwrap())
        .collect();
    let lcores = objects
        .iter()
        .map(|object| fake.link.control.lcore_of(object.index))
        .collect::<Vec<_>>();
    assert_eq!(lcores[0], lcores[2]);
    assert_ne!(lcores[0], lcores[1], "connections go round");
    for (object, lcore) in objects.into_iter().zip(lcores) {
        fake.link.ring(object.index);
        assert_eq!(fake.rang_at(object), [lcore]);
    }
    let listener = claim(fake.link, FIRST_LCORE, &options, false).unwrap();
    assert_eq!(fake.link.control.lcore_of(listener.index), FIRST_LCORE);
}
