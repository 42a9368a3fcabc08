//! send and its kin.

use super::*;

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
fn a_send_takes_no_more_than_the_program_allows() {
    let fake = Fake::new();
    let object = fake.stream(1);
    let cell = fake.cell(object);
    cell.option.sndbuf.store(2_000, Ordering::Relaxed);
    cell.host.flags.fetch_or(flag::LIMITED, Ordering::Relaxed);
    assert_eq!(put(fake.link, object, &[1; 5_000], true), Ok(1_000));
    assert_eq!(put(fake.link, object, b"x", true), Err(Errno::AGAIN));
    // Taken by the stack it still counts; acknowledged it does not.
    fake.sent(object, 1_000);
    assert_eq!(put(fake.link, object, b"x", true), Err(Errno::AGAIN));
    assert_eq!(readiness::bits(cell, RING) & readiness::event::OUT, 0);
    cell.host.tx_acked.store(700, Ordering::Release);
    assert_ne!(readiness::bits(cell, RING) & readiness::event::OUT, 0);
    assert_eq!(put(fake.link, object, &[1; 5_000], true), Ok(700));
}

#[test]
fn a_blocking_send_of_more_than_is_allowed_writes_all() {
    let fake = Fake::new();
    let object = fake.stream(1);
    let cell = fake.cell(object);
    cell.option.sndbuf.store(600, Ordering::Relaxed);
    cell.host.flags.fetch_or(flag::LIMITED, Ordering::Relaxed);
    let mut seen = 0;
    let sent = fake.while_serving(
        |link| put(link, object, &[7; 2_500], false),
        |fake| {
            let bytes = fake.sent(object, usize::MAX).len() as u64;
            assert!(bytes <= 300, "{bytes}");
            seen += bytes;
            fake.cell(object)
                .host
                .tx_acked
                .store(seen, Ordering::Release);
            fake.sent(object, 0);
        },
    );
    assert_eq!(sent, Ok(2_500));
}

#[test]
fn what_is_urgent_and_what_waits_is_said_before_it_is_published() {
    let fake = Fake::new();
    let object = fake.stream(1);
    let write = &fake.cell(object).write;
    let put = |flags| send(fake.link, object, &[IoSlice::new(b"abc")], flags);
    let plain = SendFlags::default();
    let more = SendFlags {
        more: true,
        ..plain
    };
    let urgent = SendFlags {
        urgent: true,
        ..plain
    };
    let said = || {
        let [end, tail] = [&write.urgent_end, &write.tx_tail].map(|it| it.load(Ordering::Relaxed));
        (end, tail, write.more.load(Ordering::Relaxed))
    };
    put(more).unwrap();
    assert_eq!(said(), (0, 3, 1));
    put(urgent).unwrap();
    assert_eq!(said(), (6, 6, 0));
    put(plain).unwrap();
    assert_eq!(said(), (6, 9, 0));
}
