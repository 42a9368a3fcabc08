use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;
use std::os::unix::fs::FileTypeExt;
use std::path::PathBuf;

use rustix::event::{PollFd, PollFlags};

use super::*;
use crate::device::frame::numbered;

const MTU: usize = 1500;

/// A folder of the test's own that goes with it, and the socket path in it.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("knet-unix-{}-{number}", std::process::id()));
        std::fs::create_dir(&path).expect("a new folder");
        Self(path)
    }

    fn socket(&self) -> PathBuf {
        self.0.join("wire")
    }

    fn host(&self, last: u8) -> Host {
        self.faulty(last, FaultConfig::none())
    }

    fn faulty(&self, last: u8, faults: FaultConfig) -> Host {
        let path = self.socket();
        let path = path.to_str().expect("a path in text");
        let mut device = UnixDevice::open(path, faults, [2, 0, 0, 0, 0, last], MTU).expect(path);
        let (rx, tx) = device.queue_pair(0).expect("the first time");
        Host {
            device,
            rx,
            tx,
            seen: Vec::new(),
        }
    }

    fn has_socket(&self) -> bool {
        std::fs::metadata(self.socket()).is_ok_and(|file| file.file_type().is_socket())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// One port and what it received.
struct Host {
    device: UnixDevice,
    rx: Box<dyn RxQueue>,
    tx: Box<dyn TxQueue>,
    seen: Vec<Vec<u8>>,
}

impl Host {
    fn put(&mut self, bytes: &[u8]) {
        self.tx
            .alloc(bytes.len())
            .expect("room")
            .copy_from_slice(bytes);
        self.tx.commit(bytes.len(), TxMeta::default());
    }

    fn send(&mut self, now: Instant, bytes: &[u8]) -> usize {
        self.put(bytes);
        self.tx.flush(now)
    }

    fn poll(&mut self, now: Instant) -> usize {
        let seen = &mut self.seen;
        self.rx.rx_burst(now, &mut |burst| {
            seen.extend(burst.iter().map(|frame| frame.bytes.to_vec()));
        })
    }

    fn drain(&mut self, now: Instant) {
        while self.poll(now) > 0 {}
    }

    /// Whether the wait descriptor is readable now.
    fn is_woken(&self) -> bool {
        let fd = self.rx.wait_fd().expect("a wait descriptor");
        let mut set = [PollFd::new(&fd, PollFlags::IN)];
        let at_once = rustix::time::Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        rustix::event::poll(&mut set, Some(&at_once)).expect("poll") == 1
    }
}

/// Polls all in virtual time until both links are up; at most ten virtual seconds.
fn join(now: &mut Instant, one: &mut Host, other: &mut Host) {
    let limit = *now + Duration::from_secs(10);
    while !(one.device.link_up() && other.device.link_up()) {
        one.poll(*now);
        other.poll(*now);
        let due = one
            .rx
            .next_due()
            .into_iter()
            .chain(other.rx.next_due())
            .min();
        *now = due.map_or(*now, |due| due.max(*now));
        assert!(*now < limit, "no link");
    }
}

#[test]
fn ten_thousand_frames_pass_each_way_with_a_new_peer_in_the_middle() {
    let folder = Folder::new();
    let mut now = Instant::ZERO;
    let mut a = folder.host(1);
    let mut b = folder.host(2);
    join(&mut now, &mut a, &mut b);
    let half = |a: &mut Host, b: &mut Host, now: &mut Instant, numbers: core::ops::Range<u32>| {
        for number in numbers {
            a.put(&numbered(number));
            b.put(&numbered(number + 1_000_000));
            if number % 30 == 29 {
                while a.tx.room() < 64 || b.tx.room() < 64 {
                    a.tx.flush(*now);
                    b.tx.flush(*now);
                    a.poll(*now);
                    b.poll(*now);
                }
                *now = *now + Duration::from_micros(10);
            }
        }
        a.drain(*now);
        b.drain(*now);
    };
    half(&mut a, &mut b, &mut now, 0..4_980);
    assert!(b.seen.iter().cloned().eq((0..4_980).map(numbered)));
    drop(b);
    a.drain(now);
    assert!(!a.device.link_up());
    assert_eq!(a.send(now, &numbered(7)), 0);
    assert_eq!(a.device.stats().tx_dropped, 1);

    let mut b = folder.host(2);
    join(&mut now, &mut a, &mut b);
    half(&mut a, &mut b, &mut now, 4_980..10_020);
    assert!(b.seen.iter().cloned().eq((4_980..10_020).map(numbered)));
    assert!(
        a.seen
            .iter()
            .cloned()
            .eq((1_000_000..1_010_020).map(numbered))
    );
    let stats = a.device.stats();
    assert_eq!((stats.tx_frames, stats.rx_frames), (10_020, 10_020));
    assert_eq!((stats.tx_dropped, stats.rx_missed), (1, 0));
    drop((a, b));
    assert!(!folder.has_socket());
}

#[test]
fn when_the_listener_goes_the_other_listens_and_the_file_goes_with_the_last() {
    let folder = Folder::new();
    let mut now = Instant::ZERO;
    let mut a = folder.host(1);
    let mut b = folder.host(2);
    join(&mut now, &mut a, &mut b);
    a.send(now, &numbered(1));
    b.drain(now);
    // What was sent before the end still arrives.
    a.send(now, &numbered(2));
    drop(a);
    assert!(!folder.has_socket());
    b.drain(now);
    assert_eq!(b.seen, [numbered(1), numbered(2)]);
    assert!(!b.device.link_up());
    b.drain(now);
    assert!(folder.has_socket(), "the survivor listens at once");
    let mut a = folder.host(3);
    join(&mut now, &mut a, &mut b);
    assert_eq!(a.send(now, &numbered(3)), 1);
    b.drain(now);
    assert_eq!(b.seen.last(), Some(&numbered(3)));
    drop(a);
    assert!(folder.has_socket());
    drop(b);
    assert!(!folder.has_socket());
}

#[test]
fn frames_of_a_peer_that_went_without_reading_are_received() {
    // The kernel reports the end once, to whichever comes first: a send or a receive.
    for sends_first in [true, false] {
        let folder = Folder::new();
        let mut now = Instant::ZERO;
        let mut a = folder.host(1);
        let mut b = folder.host(2);
        join(&mut now, &mut a, &mut b);
        assert_eq!(a.send(now, &numbered(1)), 1);
        assert_eq!(b.send(now, &numbered(2)), 1);
        assert_eq!(b.send(now, &numbered(3)), 1);
        drop(b);
        if sends_first {
            assert_eq!(a.send(now, &numbered(4)), 0);
            assert_eq!(a.send(now, &numbered(5)), 0);
        }
        a.drain(now);
        assert_eq!(
            a.seen,
            [numbered(2), numbered(3)],
            "sends first: {sends_first}"
        );
        assert!(!a.device.link_up());
        assert_eq!(a.device.stats().tx_frames, 1);
        let dropped = if sends_first { 2 } else { 0 };
        assert_eq!(a.device.stats().tx_dropped, dropped);
        assert_eq!(a.tx.room(), 64);
    }
}

#[test]
fn a_stale_file_is_replaced_and_anything_else_is_left_alone() {
    let folder = Folder::new();
    let stale = std::os::unix::net::UnixListener::bind(folder.socket()).unwrap();
    // A socket of another type is in use by somebody else.
    let path = folder.socket();
    let path = path.to_str().unwrap();
    let busy = UnixDevice::open(path, FaultConfig::none(), [2; 6], MTU).expect_err("in use");
    assert!(busy.message.contains("socket of another program"), "{busy}");
    drop(stale);
    assert!(folder.has_socket());
    let mut now = Instant::ZERO;
    let (mut a, mut b) = (folder.host(1), folder.host(2));
    join(&mut now, &mut a, &mut b);
    drop((a, b));

    std::fs::write(path, "text").unwrap();
    let file = UnixDevice::open(path, FaultConfig::none(), [2; 6], MTU).expect_err("a file");
    assert!(file.message.contains("not a socket"), "{file}");
    assert_eq!(std::fs::read_to_string(path).unwrap(), "text");
}

#[test]
fn a_listener_whose_file_was_removed_makes_it_again() {
    let folder = Folder::new();
    let mut now = Instant::from_millis(5);
    let mut a = folder.host(1);
    a.poll(now);
    std::fs::remove_file(folder.socket()).unwrap();
    // Another host may take the path meanwhile: then the first finds it there.
    let mut b = folder.host(2);
    join(&mut now, &mut a, &mut b);
    assert_eq!(a.send(now, &numbered(1)), 1);
    b.drain(now);
    assert_eq!(b.seen, [numbered(1)]);
    drop(b);
    a.drain(now);
    // The other never sent anything, so it may have turned us away: no attempt before its time.
    a.drain(now);
    assert!(!folder.has_socket());
    now = a.rx.next_due().expect("an attempt is due");
    a.drain(now);
    assert!(folder.has_socket());
    std::fs::remove_file(folder.socket()).unwrap();
    now = a.rx.next_due().expect("a look at the file is due");
    a.poll(now);
    a.poll(now);
    assert!(folder.has_socket());
    // A file that is somebody else's by now stays when the listener goes.
    std::fs::remove_file(folder.socket()).unwrap();
    std::fs::write(folder.socket(), "text").unwrap();
    drop(a);
    assert_eq!(std::fs::read_to_string(folder.socket()).unwrap(), "text");
}

#[test]
fn starters_that_race_end_up_as_one_link() {
    for _ in 0..20 {
        let folder = Folder::new();
        let barrier = std::sync::Barrier::new(2);
        let (mut a, mut b) = std::thread::scope(|scope| {
            let start = |last| {
                barrier.wait();
                folder.host(last)
            };
            let first = scope.spawn(move || start(1));
            let second = scope.spawn(move || start(2));
            (first.join().unwrap(), second.join().unwrap())
        });
        let mut now = Instant::ZERO;
        join(&mut now, &mut a, &mut b);
        assert_eq!(a.send(now, &numbered(1)), 1);
        assert_eq!(b.send(now, &numbered(2)), 1);
        a.drain(now);
        b.drain(now);
        assert_eq!(
            (a.seen.as_slice(), b.seen.as_slice()),
            (&[numbered(2)][..], &[numbered(1)][..])
        );
    }
}

#[test]
fn a_third_host_is_turned_away_and_comes_in_when_there_is_room() {
    let folder = Folder::new();
    let mut now = Instant::ZERO;
    let mut a = folder.host(1);
    let mut b = folder.host(2);
    join(&mut now, &mut a, &mut b);
    let mut c = folder.host(3);
    a.poll(now);
    c.poll(now);
    assert!(!c.device.link_up() && a.device.link_up());
    assert!(!a.is_woken(), "the third must not keep the listener awake");
    // Its attempts are bounded: a second of polling every millisecond makes few of them.
    let mut attempts = 0;
    for _ in 0..1_000 {
        now = now + Duration::from_millis(1);
        c.poll(now);
        attempts += usize::from(c.device.link_up());
        a.poll(now);
        c.poll(now);
        assert!(!c.device.link_up());
    }
    assert!((1..10).contains(&attempts), "{attempts}");
    b.send(now, &numbered(9));
    drop(b);
    join(&mut now, &mut a, &mut c);
    assert_eq!(c.send(now, &numbered(1)), 1);
    a.drain(now);
    assert_eq!(a.seen, [numbered(9), numbered(1)]);
}

#[test]
fn a_new_peer_waits_until_the_old_ones_frames_are_received() {
    let folder = Folder::new();
    let mut now = Instant::ZERO;
    let mut a = folder.host(1);
    let mut b = folder.host(2);
    join(&mut now, &mut a, &mut b);
    for number in 0..40 {
        b.put(&numbered(number));
    }
    assert_eq!(b.tx.flush(now), 40);
    drop(b);
    let mut c = folder.host(3);
    assert!(c.device.link_up());
    assert_eq!(c.send(now, &numbered(40)), 1);
    while a.seen.len() < 41 {
        assert!(now < Instant::from_millis(100), "{} frames", a.seen.len());
        a.poll(now);
        now = now + Duration::from_millis(1);
    }
    assert!(a.seen.iter().cloned().eq((0..41).map(numbered)));
    assert!(a.device.link_up());
}

#[test]
fn a_full_socket_keeps_frames_in_order_and_wakes_when_there_is_room() {
    let folder = Folder::new();
    let mut now = Instant::ZERO;
    let mut a = folder.host(1);
    let mut b = folder.host(2);
    join(&mut now, &mut a, &mut b);
    let mut sent = 0;
    while a.tx.room() > 0 {
        a.put(&numbered(sent));
        sent += 1;
        a.tx.flush(now);
        assert!(sent < 100_000, "the socket never fills");
    }
    assert!(a.tx.alloc(60).is_none());
    assert!(!a.is_woken());
    assert!(b.is_woken());
    b.drain(now);
    assert!(!b.is_woken());
    assert!(a.is_woken(), "room that is wanted wakes");
    assert_eq!(a.tx.flush(now), 64);
    assert!(!a.is_woken(), "room that is not wanted does not");
    b.drain(now);
    assert!(b.seen.iter().cloned().eq((0..sent).map(numbered)));
    assert_eq!(a.device.stats().tx_dropped, 0);
}

#[test]
fn the_wait_descriptor_tells_of_a_frame_a_peer_and_its_end() {
    let folder = Folder::new();
    let now = Instant::ZERO;
    let mut a = folder.host(1);
    a.poll(now);
    assert!(!a.is_woken());
    let mut b = folder.host(2);
    assert!(a.is_woken(), "a peer knocks");
    a.poll(now);
    assert!(!a.is_woken() && a.device.link_up());
    assert_eq!(a.rx.next_due(), None, "a link that is up wants no visits");
    b.send(now, &numbered(1));
    assert!(a.is_woken(), "a frame waits");
    a.drain(now);
    assert!(!a.is_woken());
    drop(b);
    assert!(a.is_woken(), "the peer went");
    a.drain(now);
    assert!(!a.is_woken() && !a.device.link_up());
}

#[test]
fn a_frame_longer_than_the_mtu_is_missed() {
    let folder = Folder::new();
    let mut now = Instant::ZERO;
    let mut a = folder.host(1);
    let path = folder.socket();
    let mut jumbo =
        UnixDevice::open(path.to_str().unwrap(), FaultConfig::none(), [2; 6], 9_000).unwrap();
    let (rx, tx) = jumbo.queue_pair(0).unwrap();
    let mut b = Host {
        device: jumbo,
        rx,
        tx,
        seen: Vec::new(),
    };
    join(&mut now, &mut a, &mut b);
    b.send(now, &vec![1; MTU + LINK_HEADER_BYTES + 1]);
    b.send(now, &vec![2; MTU + LINK_HEADER_BYTES]);
    a.drain(now);
    assert_eq!(a.seen, [vec![2; MTU + LINK_HEADER_BYTES]]);
    assert_eq!(
        (a.device.stats().rx_missed, a.device.stats().rx_frames),
        (1, 1)
    );
}

#[test]
fn faults_strike_what_is_received_and_add_up() {
    for seed in [1, 7] {
        let folder = Folder::new();
        let faults = FaultConfig {
            loss: 10_000,
            duplicate: 10_000,
            reorder: 10_000,
            corrupt: 0,
            delay_min_us: 50,
            delay_max_us: 90,
            seed,
        };
        let mut now = Instant::ZERO;
        let mut a = folder.host(1);
        let mut b = folder.faulty(2, faults);
        join(&mut now, &mut a, &mut b);
        for number in 0..5_000 {
            a.put(&numbered(number));
            if number % 10 == 9 {
                assert_eq!(a.tx.flush(now), 10, "seed {seed}");
                b.poll(now);
                now = now + Duration::from_micros(30);
            }
        }
        while let Some(due) = b.rx.next_due() {
            now = now.max(due);
            b.drain(now);
        }
        let counts = b.device.received_counts();
        let arrived = u64::try_from(b.seen.len()).unwrap();
        assert_eq!(counts.pushed, 5_000, "seed {seed}");
        assert_eq!(
            counts.pushed,
            arrived - counts.duplicated + counts.lost,
            "seed {seed}"
        );
        assert!(
            counts.lost > 20 && counts.duplicated > 20 && counts.reordered > 20,
            "seed {seed}"
        );
        assert_eq!(b.device.stats().rx_frames, arrived, "seed {seed}");
        for bytes in &b.seen {
            let number = u32::from_be_bytes(bytes[..4].try_into().unwrap());
            assert_eq!(*bytes, numbered(number), "seed {seed}");
        }
    }
}

#[test]
fn a_queue_is_taken_once() {
    let folder = Folder::new();
    let path = folder.socket();
    let path = path.to_str().unwrap();
    let mut device = UnixDevice::open(path, FaultConfig::none(), [2; 6], MTU).unwrap();
    assert!(matches!(device.queue_pair(1), Err(Errno::INVAL)));
    let halves = device.queue_pair(0);
    assert!(matches!(device.queue_pair(0), Err(Errno::INVAL)));
    // The file stays until the last half is gone.
    drop(device);
    assert!(folder.has_socket());
    drop(halves);
    assert!(!folder.has_socket());
}
