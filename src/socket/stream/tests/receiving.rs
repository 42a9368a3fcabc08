//! recv and its kin.

use super::*;

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
fn waitall_before_a_part_without_memory_waits_for_its_byte_and_leaves_what_came_with_it() {
    let fake = Fake::new();
    let object = fake.stream(1);
    let all = RecvFlags {
        waitall: true,
        cut: true,
        ..none()
    };
    fake.receive(object, b"abc");
    let got = fake.once_asleep(
        object,
        |link| wait_for(link, object, 3, all),
        |fake| fake.receive(object, b"d"),
    );
    assert_eq!(got.unwrap(), b"abc");
    let got = fake.once_asleep(
        object,
        |link| wait_for(link, object, 3, all),
        |fake| fake.receive(object, b"efg"),
    );
    assert_eq!(got.unwrap(), b"d");
    assert_eq!(get(&fake, object, 9, none()).unwrap(), b"efg");
    fake.receive(object, b"hij");
    let got = fake.once_asleep(
        object,
        |link| wait_for(link, object, 3, all),
        |fake| fake.fail(object, 104),
    );
    assert_eq!(got.unwrap(), b"hij");
    assert_eq!(get(&fake, object, 9, none()), Err(Errno::CONNRESET));
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
fn the_last_bytes_come_although_a_mark_is_beyond_the_buffer() {
    let fake = Fake::new();
    let object = fake.stream(1);
    let mark = options::low_water(fake.link, u32::MAX);
    let cell = fake.cell(object);
    for (mark, rcvbuf) in [(mark, 0), (4_000, 2_000)] {
        cell.read.rcvlowat.store(mark, Ordering::Relaxed);
        cell.option.rcvbuf.store(rcvbuf, Ordering::Relaxed);
        fake.receive(object, b"a");
        let got = fake.once_asleep(
            object,
            |link| wait_for(link, object, 3, none()),
            |fake| fake.receive(object, b"bc"),
        );
        assert_eq!(got.unwrap(), b"abc");
    }
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
    let in_parts = |room: usize, parts: &[&'static [u8]]| {
        let mut rest = parts.iter();
        let got = fake.while_serving(
            |link| wait_for(link, object, room, none()),
            |fake| {
                if fake.has_sleeper(object)
                    && let Some(part) = rest.next()
                {
                    fake.receive(object, part);
                }
            },
        );
        got.unwrap()
    };
    // It counts from what was taken on.
    assert_eq!(in_parts(9, &[b"c", b"d", b"ef"]), b"abcdef");
    // It wakes nobody sooner who wants less.
    assert_eq!(in_parts(2, &[b"u", b"v", b"w", b"x"]), b"uv");
    assert_eq!(get(&fake, object, 9, none()).unwrap(), b"wx");
    // Less than the mark when no more is asked for, and it is there.
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
    let _turn = testing::turn();
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
            // Signals come until one hit the sleep, which may begin a moment after its place was taken; or many were survived where
            // none may end it.
            let none_ends_it = restart && timeout_us == 0;
            let mut survived = 0;
            while !call.is_finished() {
                if fake.has_sleeper(object) {
                    let before = testing::RUNS.load(Ordering::SeqCst);
                    testing::send(thread);
                    while testing::RUNS.load(Ordering::SeqCst) == before && !call.is_finished() {
                        std::thread::yield_now();
                    }
                    survived += 1;
                }
                if survived == 200 && none_ends_it {
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
