#![allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // small numbers

use std::os::fd::AsRawFd;

use super::*;
use crate::iomux::select::{Sets, select};
use crate::socket::fake::Fake;

const IN: i16 = 0x001;
const OUT: i16 = 0x004;
const HUP: i16 = 0x010;
const NVAL: i16 = 0x020;
const RDNORM: i16 = 0x040;

fn entry(target: Target, events: i16) -> PollEntry {
    PollEntry {
        target,
        events,
        revents: 0x7fff,
    }
}

fn look(fake: &Fake, entries: &mut [PollEntry]) -> Vec<i16> {
    let count = poll(fake.link, entries, Some(Duration::ZERO), None).unwrap();
    let found: Vec<_> = entries.iter().map(|entry| entry.revents).collect();
    assert_eq!(count, found.iter().filter(|&&revents| revents != 0).count());
    found
}

#[test]
fn objects_and_kernel_descriptors_are_found_together() {
    let fake = Fake::new();
    let object = fake.stream(1);
    let (read, write) = rustix::pipe::pipe().unwrap();
    let mut entries = [
        entry(Target::Kernel(read.as_raw_fd()), IN),
        entry(Target::Object(object), IN | RDNORM | OUT),
        entry(Target::Kernel(-1), IN),
        entry(Target::Kernel(write.as_raw_fd()), OUT),
        entry(Target::Object(object), IN),
        entry(Target::Object(object), 0),
        entry(Target::Kernel(i32::MAX), IN),
    ];
    assert_eq!(look(&fake, &mut entries), [0, OUT, 0, OUT, 0, 0, NVAL]);
    rustix::io::write(&write, b"x").unwrap();
    fake.receive(object, b"x");
    assert_eq!(
        look(&fake, &mut entries),
        [IN, IN | RDNORM | OUT, 0, OUT, IN, 0, NVAL]
    );
    fake.fail(object, 104);
    let found = look(&fake, &mut entries);
    assert_eq!(found[5], 0x008 | HUP, "ERR and HUP come unasked");
}

#[test]
fn a_wildcard_listener_is_its_two_halves() {
    let fake = Fake::new();
    let listener = fake.listener(1);
    let (read, write) = rustix::pipe::pipe().unwrap();
    let both = Target::Both(listener, read.as_raw_fd());
    let mut entries = [
        entry(both, IN),
        entry(Target::Kernel(write.as_raw_fd()), OUT),
    ];
    assert_eq!(look(&fake, &mut entries), [0, OUT]);
    rustix::io::write(&write, b"x").unwrap();
    assert_eq!(look(&fake, &mut entries), [IN, OUT]);
    rustix::io::read(&read, &mut [0; 1]).unwrap();
    let peer = core::net::SocketAddrV4::new(core::net::Ipv4Addr::LOCALHOST, 1);
    fake.connection(listener, 3_000, peer);
    assert_eq!(look(&fake, &mut entries), [IN, OUT]);
}

#[test]
fn a_wait_ends_by_either_side_or_the_deadline() {
    let fake = Fake::new();
    let (one, two) = (fake.stream(1), fake.stream(2));
    let (read, write) = rustix::pipe::pipe().unwrap();
    let entries = [
        entry(Target::Object(one), IN),
        entry(Target::Object(two), IN),
        entry(Target::Kernel(read.as_raw_fd()), IN),
    ];
    let call = |link: &Link| {
        let mut entries = entries;
        let count = poll(link, &mut entries, None, None).unwrap();
        (count, entries.map(|entry| entry.revents))
    };
    let found = fake.once_asleep(one, call, |fake| fake.receive(two, b"x"));
    assert_eq!(found, (1, [0, IN, 0]));
    assert!(fake.cell(one).watch.slots.is_empty());
    let head = &fake.cell(two).read.rx_head;
    head.store(1, crate::channel::sync::Ordering::Relaxed);
    let found = fake.once_asleep(one, call, |_| {
        rustix::io::write(&write, b"x").unwrap();
    });
    assert_eq!(found, (1, [0, 0, IN]));
    rustix::io::read(&read, &mut [0; 1]).unwrap();
    for micros in [1, 120, 700, 1_900] {
        let timeout = Duration::from_micros(micros);
        let begin = monotonic();
        let mut entries = entries;
        assert_eq!(poll(fake.link, &mut entries, Some(timeout), None), Ok(0));
        assert!(monotonic().since(begin) >= timeout);
    }
}

#[test]
fn many_entries_work_and_too_many_are_einval() {
    let fake = Fake::new();
    let object = fake.stream(1);
    let mut entries = vec![entry(Target::Object(object), OUT); 300];
    entries[299] = entry(Target::Kernel(-5), IN);
    assert_eq!(
        look(&fake, &mut entries)
            .iter()
            .filter(|&&r| r == OUT)
            .count(),
        299
    );
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile)
        .current
        .unwrap();
    if let Ok(limit) = usize::try_from(limit)
        && limit < 2_000_000
    {
        let mut entries = vec![entry(Target::Kernel(-1), IN); limit + 1];
        assert_eq!(poll(fake.link, &mut entries, None, None), Err(Errno::INVAL));
    }
}

#[test]
fn select_counts_bits_and_knows_closed_descriptors() {
    let fake = Fake::new();
    let object = fake.stream(1);
    let (read, write) = rustix::pipe::pipe().unwrap();
    let (read, write) = (read.as_raw_fd(), write.as_raw_fd());
    // Descriptor 900 stands for the object.
    let target = |fd: i32| {
        if fd == 900 {
            Target::Object(object)
        } else {
            Target::Kernel(fd)
        }
    };
    let set = |fds: &[i32]| {
        let mut words = [0_u64; 16];
        for &fd in fds {
            words[fd as usize / 64] |= 1 << (fd % 64);
        }
        words
    };
    let ask = |reads: &mut [u64], writes: &mut [u64]| {
        let mut sets = Sets {
            read: Some(reads),
            write: Some(writes),
            except: None,
        };
        select(
            fake.link,
            901,
            &mut sets,
            &target,
            Some(Duration::ZERO),
            None,
        )
    };
    let (mut reads, mut writes) = (set(&[read, 900]), set(&[write, 900]));
    assert_eq!(ask(&mut reads, &mut writes), Ok(2));
    assert_eq!((reads, writes), (set(&[]), set(&[write, 900])));
    fake.finish(object);
    let (mut reads, mut writes) = (set(&[read, 900]), set(&[900]));
    assert_eq!(ask(&mut reads, &mut writes), Ok(2));
    assert_eq!((reads, writes), (set(&[900]), set(&[900])));
    let closed = 899;
    let (mut reads, mut writes) = (set(&[900, closed]), set(&[]));
    assert_eq!(ask(&mut reads, &mut writes), Err(Errno::BADF));
    assert_eq!(reads, set(&[900, closed]), "untouched");
}

#[test]
fn select_is_not_ended_by_what_nobody_asked() {
    let fake = Fake::new();
    let object = fake.stream(1);
    fake.fail(object, 104);
    let mut excepts = [1_u64 << 5; 1];
    let mut sets = Sets {
        read: None,
        write: None,
        except: Some(&mut excepts),
    };
    let timeout = Duration::from_micros(1_500);
    let begin = monotonic();
    let target = |_| Target::Object(object);
    let found = select(fake.link, 6, &mut sets, &target, Some(timeout), None);
    assert_eq!(found, Ok(0));
    assert!(monotonic().since(begin) >= timeout);
    assert_eq!(excepts, [0]);
}
