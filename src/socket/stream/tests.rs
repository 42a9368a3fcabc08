#![allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // small numbers

use core::time::Duration;
use std::sync::atomic::AtomicUsize;

use super::*;
use crate::channel::owner::Taken;
use crate::socket::close::{self, How};
use crate::socket::fake::{Fake, RING};
use crate::time::monotonic;

const PEEK: RecvFlags = RecvFlags {
    peek: true,
    waitall: false,
    dontwait: false,
    trunc: false,
};

fn get(fake: &Fake, object: Object, room: usize, flags: RecvFlags) -> Result<Vec<u8>> {
    recv_now(fake.link, object, room, flags, true)
}

fn recv_now(
    link: &Link,
    object: Object,
    room: usize,
    flags: RecvFlags,
    nonblocking: bool,
) -> Result<Vec<u8>> {
    let mut bytes = vec![0; room];
    let count = recv(
        link,
        object,
        &mut [IoSliceMut::new(&mut bytes)],
        flags,
        nonblocking,
    )?;
    bytes.truncate(count);
    Ok(bytes)
}

fn wait_for(link: &Link, object: Object, room: usize, flags: RecvFlags) -> Result<Vec<u8>> {
    recv_now(link, object, room, flags, false)
}

fn put(link: &Link, object: Object, bytes: &[u8], nonblocking: bool) -> Result<usize> {
    let flags = SendFlags {
        nonblocking,
        ..SendFlags::default()
    };
    send(link, object, &[IoSlice::new(bytes)], flags)
}

fn none() -> RecvFlags {
    RecvFlags::default()
}

#[test]
fn a_blocking_receive_returns_what_is_there() {
    let fake = Fake::new();
    let object = fake.stream(1);
    fake.receive(object, b"abc");
    assert_eq!(wait_for(fake.link, object, 100, none()).unwrap(), b"abc");
    let got = fake.once_asleep(
        object,
        |link| wait_for(link, object, 100, none()),
        |fake| fake.receive(object, b"later"),
    );
    assert_eq!(got.unwrap(), b"later");
    assert!(!fake.has_sleeper(object));
    assert!(fake.cell(object).watch.slots.is_empty());
}

#[test]
fn bytes_go_over_all_parts_and_round_the_end_of_the_ring() {
    let fake = Fake::new();
    let object = fake.stream(1);
    let cell = fake.cell(object);
    let near_end = u64::from(RING) * 3 - 5;
    cell.host.rx_tail.store(near_end, Ordering::Relaxed);
    cell.read.rx_head.store(near_end, Ordering::Relaxed);
    fake.receive(object, b"0123456789");
    let (mut a, mut b, mut c) = ([0; 3], [0; 0], [0; 20]);
    let parts = &mut [
        IoSliceMut::new(&mut a),
        IoSliceMut::new(&mut b),
        IoSliceMut::new(&mut c),
    ];
    assert_eq!(recv(fake.link, object, parts, none(), true), Ok(10));
    assert_eq!((&a[..], &c[..7]), (&b"012"[..], &b"3456789"[..]));
}

#[test]
fn a_receive_for_nothing_waits_for_nothing() {
    let fake = Fake::new();
    let object = fake.stream(1);
    assert_eq!(wait_for(fake.link, object, 0, none()), Ok(vec![]));
    assert_eq!(get(&fake, object, 1, none()), Err(Errno::AGAIN));
    let dontwait = RecvFlags {
        dontwait: true,
        ..none()
    };
    assert_eq!(wait_for(fake.link, object, 1, dontwait), Err(Errno::AGAIN));
}

#[test]
fn after_fin_there_is_nothing_for_ever() {
    let fake = Fake::new();
    let object = fake.stream(1);
    fake.receive(object, b"x");
    fake.finish(object);
    assert_eq!(wait_for(fake.link, object, 9, none()).unwrap(), b"x");
    for _ in 0..3 {
        assert_eq!(wait_for(fake.link, object, 9, none()).unwrap(), b"");
        assert_eq!(get(&fake, object, 9, PEEK).unwrap(), b"");
    }
}

#[test]
fn a_reset_is_told_once_behind_the_bytes() {
    let fake = Fake::new();
    let object = fake.stream(1);
    fake.receive(object, b"x");
    fake.fail(object, 104);
    assert_eq!(get(&fake, object, 9, none()).unwrap(), b"x");
    assert_eq!(get(&fake, object, 9, none()), Err(Errno::CONNRESET));
    assert_eq!(get(&fake, object, 9, none()).unwrap(), b"");
    assert_eq!(put(fake.link, object, b"y", true), Err(Errno::PIPE));
}

#[test]
fn a_reset_ends_a_wait() {
    let fake = Fake::new();
    let object = fake.stream(1);
    let got = fake.once_asleep(
        object,
        |link| wait_for(link, object, 100, none()),
        |fake| fake.fail(object, 104),
    );
    assert_eq!(got, Err(Errno::CONNRESET));
}

#[test]
fn peeked_bytes_stay_and_thrown_away_ones_go() {
    let fake = Fake::new();
    let object = fake.stream(1);
    fake.receive(object, b"abcdef");
    assert_eq!(get(&fake, object, 4, PEEK).unwrap(), b"abcd");
    let trunc = RecvFlags {
        trunc: true,
        ..none()
    };
    assert_eq!(get(&fake, object, 2, trunc).unwrap(), [0, 0]);
    assert_eq!(get(&fake, object, 9, none()).unwrap(), b"cdef");
}

#[test]
fn waitall_waits_for_all_and_fin_ends_it() {
    let fake = Fake::new();
    let object = fake.stream(1);
    let all = RecvFlags {
        waitall: true,
        ..none()
    };
    fake.receive(object, b"ab");
    let mut rest = [&b"cd"[..], &b"ef"[..]].into_iter();
    let got = fake.while_serving(
        |link| wait_for(link, object, 6, all),
        |fake| {
            if fake.has_sleeper(object)
                && let Some(part) = rest.next()
            {
                fake.receive(object, part);
            }
        },
    );
    assert_eq!(got.unwrap(), b"abcdef");
    fake.receive(object, b"gh");
    let got = fake.once_asleep(
        object,
        |link| wait_for(link, object, 6, all),
        |fake| fake.finish(object),
    );
    assert_eq!(got.unwrap(), b"gh");
}

#[test]
fn waitall_takes_more_than_the_ring_holds() {
    let fake = Fake::new();
    let object = fake.stream(1);
    let total = 3 * RING as usize + 17;
    let sent: Vec<u8> = (0..total).map(|n| (n % 251) as u8).collect();
    let mut left = &sent[..];
    let got = fake.while_serving(
        |link| {
            let all = RecvFlags {
                waitall: true,
                ..none()
            };
            wait_for(link, object, total, all)
        },
        |fake| {
            let cell = fake.cell(object);
            let queued = readiness::readable_bytes(cell) as usize;
            let (now, later) = left.split_at(left.len().min(RING as usize - queued).min(1_000));
            if !now.is_empty() {
                fake.receive(object, now);
            }
            left = later;
        },
    );
    assert!(got.unwrap() == sent);
}

#[test]
fn a_peek_with_waitall_waits_without_taking() {
    let fake = Fake::new();
    let object = fake.stream(1);
    fake.receive(object, b"ab");
    let flags = RecvFlags {
        waitall: true,
        ..PEEK
    };
    let got = fake.once_asleep(
        object,
        |link| wait_for(link, object, 4, flags),
        |fake| fake.receive(object, b"cd"),
    );
    assert_eq!(got.unwrap(), b"abcd");
    assert_eq!(get(&fake, object, 9, none()).unwrap(), b"abcd");
}

#[test]
fn the_receive_timeout_is_eagain_and_never_early() {
    let fake = Fake::new();
    let object = fake.stream(1);
    fake.cell(object)
        .read
        .rcvtimeo_us
        .store(2_500, Ordering::Relaxed);
    let begin = monotonic();
    assert_eq!(wait_for(fake.link, object, 9, none()), Err(Errno::AGAIN));
    assert!(monotonic().since(begin) >= Duration::from_micros(2_500));
}

#[test]
fn the_low_water_mark_holds_a_blocking_receive() {
    let fake = Fake::new();
    let object = fake.stream(1);
    fake.cell(object).read.rcvlowat.store(4, Ordering::Relaxed);
    fake.receive(object, b"ab");
    assert_eq!(
        get(&fake, object, 9, none()).unwrap(),
        b"ab",
        "non-blocking"
    );
    fake.receive(object, b"ab");
    let mut rest = [&b"c"[..], &b"d"[..]].into_iter();
    let got = fake.while_serving(
        |link| wait_for(link, object, 9, none()),
        |fake| {
            if fake.has_sleeper(object)
                && let Some(part) = rest.next()
            {
                fake.receive(object, part);
            }
        },
    );
    assert_eq!(got.unwrap(), b"abcd");
    // Less than the mark when no more is asked for.
    fake.receive(object, b"xy");
    assert_eq!(wait_for(fake.link, object, 2, none()).unwrap(), b"xy");
    // What is there at the time-out is returned.
    fake.receive(object, b"z");
    fake.cell(object)
        .read
        .rcvtimeo_us
        .store(1_000, Ordering::Relaxed);
    assert_eq!(wait_for(fake.link, object, 9, none()).unwrap(), b"z");
}

#[test]
fn shutdown_by_another_thread_ends_a_blocking_receive() {
    let fake = Fake::new();
    let object = fake.stream(1);
    let got = fake.once_asleep(
        object,
        |link| wait_for(link, object, 9, none()),
        |fake| close::shutdown(fake.link, object, How::Both).unwrap(),
    );
    assert_eq!(got.unwrap(), b"");
    assert_eq!(put(fake.link, object, b"y", true), Err(Errno::PIPE));
    fake.cell(object)
        .host
        .flags
        .fetch_or(flag::OVER, Ordering::Relaxed);
    assert_eq!(
        close::shutdown(fake.link, object, How::Write),
        Err(Errno::NOTCONN)
    );
}

#[test]
fn the_end_of_the_host_is_a_reset() {
    let mut fake = Fake::new();
    let object = fake.stream(1);
    let link = fake.link;
    let got = std::thread::scope(|scope| {
        let call = scope.spawn(move || wait_for(link, object, 9, none()));
        while !fake.has_sleeper(object) {
            std::thread::yield_now();
        }
        fake.die();
        call.join().unwrap()
    });
    assert_eq!(got, Err(Errno::CONNRESET));
    assert!(link.is_dead());
    assert_eq!(get(&fake, object, 9, none()).unwrap(), b"");
    assert_eq!(put(link, object, b"y", false), Err(Errno::PIPE));
    let other = fake.stream(2);
    assert_eq!(put(link, other, b"y", false), Err(Errno::CONNRESET));
}

#[test]
fn a_non_blocking_send_is_short_and_then_eagain() {
    let fake = Fake::new();
    let object = fake.stream(1);
    let bytes: Vec<u8> = (0..RING + 100).map(|n| (n % 251) as u8).collect();
    assert_eq!(put(fake.link, object, &bytes, true), Ok(RING as usize));
    assert_eq!(put(fake.link, object, &bytes, true), Err(Errno::AGAIN));
    assert_eq!(fake.cell(object).write.want_room.load(Ordering::Relaxed), 1);
    assert_eq!(queued_bytes(fake.cell(object)), u64::from(RING));
    assert!(fake.sent(object, 10) == bytes[..10]);
    assert_eq!(put(fake.link, object, &bytes, true), Ok(10), "partial room");
    assert!(fake.sent(object, RING as usize)[..100] == bytes[10..110]);
    assert!(fake.bells(0).contains(&1));
}

#[test]
fn a_short_write_asks_for_an_edge_when_there_is_room() {
    let fake = Fake::new();
    let object = fake.stream(1);
    let bytes = vec![b'x'; RING as usize + 1];
    assert_eq!(put(fake.link, object, &bytes, true), Ok(RING as usize));
    let edge = || fake.cell(object).host.edge.load(Ordering::Relaxed);
    let before = edge();
    assert_eq!(fake.sent(object, RING as usize).len(), RING as usize);
    assert_eq!(edge(), before + 1);
}

#[test]
fn a_send_gathers_its_parts() {
    let fake = Fake::new();
    let object = fake.stream(1);
    let parts = [&b"ab"[..], b"", b"cde"].map(IoSlice::new);
    assert_eq!(send(fake.link, object, &parts, SendFlags::default()), Ok(5));
    assert_eq!(fake.sent(object, 99), b"abcde");
    assert_eq!(send(fake.link, object, &[], SendFlags::default()), Ok(0));
}

#[test]
fn the_pending_error_goes_before_epipe() {
    let fake = Fake::new();
    let object = fake.stream(1);
    fake.fail(object, 110);
    assert_eq!(put(fake.link, object, b"a", false), Err(Errno::TIMEDOUT));
    assert_eq!(put(fake.link, object, b"a", false), Err(Errno::PIPE));
    let other = fake.stream(2);
    close::shutdown(fake.link, other, How::Write).unwrap();
    assert_eq!(put(fake.link, other, b"a", false), Err(Errno::PIPE));
}

#[test]
fn a_blocking_send_of_more_than_the_ring_writes_all() {
    let fake = Fake::new();
    let object = fake.stream(1);
    let bytes: Vec<u8> = (0..RING * 5 + 3).map(|n| (n % 251) as u8).collect();
    let mut got = Vec::new();
    let sent = fake.while_serving(
        |link| put(link, object, &bytes, false),
        |fake| got.extend(fake.sent(object, 700)),
    );
    assert_eq!(sent, Ok(bytes.len()));
    got.extend(fake.sent(object, usize::MAX));
    got.extend(fake.sent(object, usize::MAX));
    assert!(got == bytes);
}

#[test]
fn writers_of_at_most_the_ring_never_mix() {
    let fake = Fake::new();
    let object = fake.stream(1);
    let link = fake.link;
    const WRITERS: usize = 4;
    const ROUNDS: usize = 60;
    let left = AtomicUsize::new(WRITERS);
    let mut got = Vec::new();
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let left = &left;
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let len = [1, 100, 1_500, RING as usize][(writer + round) % 4];
                    let mut record = vec![writer as u8; len];
                    record.push(255);
                    record.truncate(len.max(2).min(RING as usize));
                    *record.last_mut().unwrap() = 255;
                    assert_eq!(put(link, object, &record, false), Ok(record.len()));
                }
                left.fetch_sub(1, Ordering::Relaxed);
            });
        }
        while left.load(Ordering::Relaxed) > 0 {
            got.extend(fake.sent(object, 900));
            std::thread::yield_now();
        }
    });
    for _ in 0..10 {
        got.extend(fake.sent(object, usize::MAX));
    }
    let records: Vec<_> = got.split(|&byte| byte == 255).collect();
    assert_eq!(records.len(), WRITERS * ROUNDS + 1);
    for record in records {
        assert!(record.windows(2).all(|pair| pair[0] == pair[1]));
    }
}

#[test]
fn the_send_timeout_returns_what_went_out() {
    let fake = Fake::new();
    let object = fake.stream(1);
    let cell = fake.cell(object);
    cell.read.sndtimeo_us.store(1_500, Ordering::Relaxed);
    assert_eq!(put(fake.link, object, &[1; 4_000], false), Ok(4_000));
    let begin = monotonic();
    assert_eq!(put(fake.link, object, &[2; 100], false), Ok(96));
    assert_eq!(put(fake.link, object, &[2; 100], false), Err(Errno::AGAIN));
    assert!(monotonic().since(begin) >= Duration::from_micros(3_000));
}

#[test]
fn a_handler_appends_behind_the_call_that_it_interrupted() {
    let fake = Fake::new();
    let object = fake.stream(1);
    let cell = fake.cell(object);
    let me = crate::thread::id();
    assert_eq!(cell.write.tx_owner.take(me), Taken::Owned);
    let outer = byte_ring::reserve(&cell.host, &cell.write, RING, 3, false).range;
    assert_eq!(put(fake.link, object, b"handler", true), Ok(7));
    assert_eq!(fake.sent(object, 99), b"", "not before the owner publishes");
    fake.link.control.tx_copy_in(object.index, outer, b"abc");
    owner::release(&cell.write.tx_owner, || byte_ring::publish(&cell.write));
    assert_eq!(fake.sent(object, 99), b"abchandler");
    // Without room a handler gets EAGAIN, whatever its socket's mode.
    assert_eq!(cell.write.tx_owner.take(me), Taken::Owned);
    let all = byte_ring::reserve(&cell.host, &cell.write, RING, u64::from(RING), false);
    assert_eq!(all.range.len(), RING);
    assert_eq!(put(fake.link, object, b"x", true), Err(Errno::AGAIN));
    assert_eq!(put(fake.link, object, b"x", false), Err(Errno::AGAIN));
    owner::release(&cell.write.tx_owner, || byte_ring::publish(&cell.write));
}

#[test]
fn a_writer_that_died_stops_nobody() {
    let fake = Fake::new();
    let object = fake.stream(1);
    let cell = fake.cell(object);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            assert_eq!(cell.write.tx_owner.take(crate::thread::id()), Taken::Owned);
            let lost = byte_ring::reserve(&cell.host, &cell.write, RING, 50, false);
            assert_eq!(lost.range.len(), 50);
        });
    });
    assert_eq!(put(fake.link, object, b"alive", false), Ok(5));
    assert_eq!(fake.sent(object, 99), b"alive");
}

#[test]
fn before_the_handshake_ends_a_call_waits_or_says_eagain() {
    let fake = Fake::new();
    let object = fake.stream(1);
    let cell = fake.cell(object);
    cell.host.kind.store(kind::CONNECTING, Ordering::Relaxed);
    assert_eq!(put(fake.link, object, b"a", true), Err(Errno::AGAIN));
    assert_eq!(get(&fake, object, 1, none()), Err(Errno::AGAIN));
    let sent = fake.once_asleep(
        object,
        |link| put(link, object, b"abc", false),
        |fake| {
            cell.host.kind.store(kind::STREAM, Ordering::Release);
            fake.alert(object);
        },
    );
    assert_eq!(sent, Ok(3));
    cell.host.kind.store(kind::FAILED, Ordering::Relaxed);
    cell.host.error.store(111, Ordering::Relaxed);
    assert_eq!(put(fake.link, object, b"a", true), Err(Errno::CONNREFUSED));
    assert_eq!(get(&fake, object, 1, none()).unwrap(), b"");
}

#[test]
fn two_readers_never_get_the_same_byte() {
    let fake = Fake::new();
    let object = fake.stream(1);
    let link = fake.link;
    let mut counts = [0_usize; 256];
    const TOTAL: usize = 40_000;
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(move || {
                    let mut seen = Vec::new();
                    loop {
                        let got = wait_for(link, object, 37, none()).unwrap();
                        if got.is_empty() {
                            return seen;
                        }
                        seen.extend(got);
                    }
                })
            })
            .collect();
        let mut sent = 0;
        while sent < TOTAL {
            let queued = readiness::readable_bytes(fake.cell(object)) as usize;
            let count = (RING as usize - queued).min(500).min(TOTAL - sent);
            let bytes: Vec<u8> = (sent..sent + count).map(|n| (n % 256) as u8).collect();
            fake.receive(object, &bytes);
            sent += count;
            std::thread::yield_now();
        }
        fake.finish(object);
        for reader in readers {
            for byte in reader.join().unwrap() {
                counts[usize::from(byte)] += 1;
            }
        }
    });
    for (byte, count) in counts.into_iter().enumerate() {
        let expected = TOTAL / 256 + usize::from(byte < TOTAL % 256);
        assert_eq!(count, expected, "byte {byte}");
    }
}

#[test]
fn a_handle_that_is_no_more_is_ebadf() {
    let fake = Fake::new();
    let object = fake.stream(1);
    fake.cell(object)
        .host
        .generation
        .fetch_add(1, Ordering::Relaxed);
    assert_eq!(get(&fake, object, 1, none()), Err(Errno::BADF));
    assert_eq!(put(fake.link, object, b"x", true), Err(Errno::BADF));
    let listener = fake.listener(2);
    assert_eq!(get(&fake, listener, 1, none()), Err(Errno::NOTCONN));
}

#[test]
fn a_handler_ends_a_wait_or_not_as_it_was_installed() {
    use crate::ffi::handler::testing;
    use std::sync::mpsc;

    let fake = Fake::new();
    let object = fake.stream(1);
    let _turn = testing::TURN.lock().unwrap();
    let interrupted = |restart: bool, timeout_us: u64| {
        testing::install(restart);
        let rcvtimeo = &fake.cell(object).read.rcvtimeo_us;
        rcvtimeo.store(timeout_us, Ordering::Relaxed);
        let link = fake.link;
        let (tell, told) = mpsc::channel();
        std::thread::scope(|scope| {
            let call = scope.spawn(move || {
                tell.send(crate::thread::id()).unwrap();
                wait_for(link, object, 9, none())
            });
            let thread = told.recv().unwrap();
            // Signals come until one hit the sleep, or three were survived.
            let mut survived = 0;
            while !call.is_finished() {
                if fake.has_sleeper(object) {
                    let before = testing::RUNS.load(Ordering::SeqCst);
                    testing::send(thread);
                    while testing::RUNS.load(Ordering::SeqCst) == before {
                        std::thread::yield_now();
                    }
                    survived += 1;
                }
                if survived == 200 {
                    fake.receive(object, b"late");
                    break;
                }
                std::thread::yield_now();
            }
            call.join().unwrap()
        })
    };
    assert_eq!(interrupted(false, 0), Err(Errno::INTR));
    assert_eq!(
        interrupted(true, 60_000_000),
        Err(Errno::INTR),
        "a time-out"
    );
    assert_eq!(interrupted(true, 0).unwrap(), b"late");
}
