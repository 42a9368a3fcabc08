//! Where a receive begins and ends inside what is there: urgent data and SO_PEEK_OFF.

use super::*;
use crate::channel::cell::option;
use crate::readiness::event;

/// A stream in which "abcdef" came, of which `urgent` is the urgent byte's place.
fn marked(urgent: u64) -> (Fake, Object) {
    let fake = Fake::new();
    let object = fake.stream(1);
    let cell = fake.cell(object);
    cell.fact.urgent.store(urgent + 1, Ordering::Relaxed);
    cell.host.flags.fetch_or(flag::URGENT, Ordering::Release);
    fake.receive(object, b"abcdef");
    (fake, object)
}

fn take_urgent(fake: &Fake, object: Object, peek: bool) -> Result<Vec<u8>> {
    let mut byte = [0];
    let parts = &mut [IoSliceMut::new(&mut byte)];
    let count = recv_urgent(fake.link, object, parts, peek, false)?;
    Ok(byte[..count].to_vec())
}

#[test]
fn a_receive_ends_at_the_mark_and_the_next_steps_over_it() {
    let (fake, object) = marked(2);
    assert_eq!(get(&fake, object, 9, none()).unwrap(), b"ab");
    assert_eq!(get(&fake, object, 9, PEEK).unwrap(), b"def");
    assert_eq!(get(&fake, object, 9, none()).unwrap(), b"def");
    assert_eq!(take_urgent(&fake, object, false), Err(Errno::INVAL));
    // The last byte of all: it is stepped over, and nothing is left.
    let (fake, object) = marked(5);
    assert_eq!(get(&fake, object, 9, none()).unwrap(), b"abcde");
    assert_eq!(get(&fake, object, 9, PEEK), Err(Errno::AGAIN));
    assert_eq!(take_urgent(&fake, object, true).unwrap(), b"f");
    assert_eq!(get(&fake, object, 9, none()), Err(Errno::AGAIN));
    assert_eq!(take_urgent(&fake, object, true), Err(Errno::INVAL));
}

#[test]
fn the_urgent_byte_is_taken_once_and_tells_itself_until_then() {
    let (fake, object) = marked(2);
    let bits = || readiness::bits(fake.cell(object), RING) & event::PRI;
    assert_eq!(bits(), event::PRI);
    assert_eq!(take_urgent(&fake, object, true).unwrap(), b"c");
    assert_eq!(take_urgent(&fake, object, false).unwrap(), b"c");
    assert_eq!(take_urgent(&fake, object, false), Err(Errno::INVAL));
    assert_eq!(bits(), 0);
}

#[test]
fn in_line_the_urgent_byte_is_one_like_any_other() {
    let (fake, object) = marked(2);
    let bits = &fake.cell(object).option.bits;
    bits.store(option::OOB_INLINE, Ordering::Relaxed);
    assert_eq!(take_urgent(&fake, object, false), Err(Errno::INVAL));
    assert_eq!(get(&fake, object, 9, none()).unwrap(), b"ab");
    assert_eq!(get(&fake, object, 9, none()).unwrap(), b"cdef");
}

#[test]
fn an_announced_byte_is_waited_for_by_nobody() {
    let (fake, object) = marked(8);
    assert_eq!(take_urgent(&fake, object, false), Err(Errno::AGAIN));
    assert_eq!(get(&fake, object, 9, none()).unwrap(), b"abcdef");
    fake.finish(object);
    assert_eq!(take_urgent(&fake, object, false).unwrap(), b"");
}

#[test]
fn a_blocking_receive_waits_for_more_than_the_byte_it_steps_over() {
    let (fake, object) = marked(5);
    assert_eq!(wait_for(fake.link, object, 9, none()).unwrap(), b"abcde");
    for flags in [PEEK, none()] {
        let got = fake.once_asleep(
            object,
            |link| wait_for(link, object, 9, flags),
            |fake| fake.receive(object, b"g"),
        );
        assert!(got.unwrap().starts_with(b"g"));
    }
}

#[test]
fn waitall_gives_up_at_the_mark() {
    let all = RecvFlags {
        waitall: true,
        ..none()
    };
    let (fake, object) = marked(4);
    assert_eq!(wait_for(fake.link, object, 6, all).unwrap(), b"abcd");
    let peek_all = RecvFlags { peek: true, ..all };
    let (fake, object) = marked(4);
    assert_eq!(wait_for(fake.link, object, 6, peek_all).unwrap(), b"abcd");
}

#[test]
fn peeking_goes_on_where_it_stopped() {
    let fake = Fake::new();
    let object = fake.stream(1);
    let offset = &fake.cell(object).read.peek_offset;
    // SO_PEEK_OFF 1.
    offset.store(2, Ordering::Relaxed);
    fake.receive(object, b"abcdef");
    assert_eq!(get(&fake, object, 2, PEEK).unwrap(), b"bc");
    assert_eq!(get(&fake, object, 9, PEEK).unwrap(), b"def");
    assert_eq!(get(&fake, object, 9, PEEK), Err(Errno::AGAIN));
    assert_eq!(offset.load(Ordering::Relaxed), 7);
    assert_eq!(get(&fake, object, 4, none()).unwrap(), b"abcd");
    assert_eq!(
        offset.load(Ordering::Relaxed),
        3,
        "what is read is behind us"
    );
    assert_eq!(get(&fake, object, 9, none()).unwrap(), b"ef");
    assert_eq!(offset.load(Ordering::Relaxed), 1);
    let got = fake.once_asleep(
        object,
        |link| wait_for(link, object, 9, PEEK),
        |fake| fake.receive(object, b"g"),
    );
    assert_eq!(got.unwrap(), b"g");
}
