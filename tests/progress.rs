//! The loop token, the drivers and the helper over a loop that only counts: a process of its own, because a process has one
//! loop.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "in a test a surprise is a failure"
)]

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use knet::progress::{self, Drive, Loop, Next, Rest, Settings, Turned};
use knet::thread;
use knet::time::{Instant, monotonic};
use rustix::event::EventfdFlags;

/// What the loop has seen.
#[derive(Default)]
struct Seen {
    turns: AtomicU64,
    errands: AtomicU64,
    rests: AtomicU64,
    wakes: AtomicU64,
    heard: AtomicU64,
    /// Who is at the loop.
    inside: AtomicU32,
    /// The last turn's thread.
    by: AtomicU32,
    /// Asleep, as the loop itself was told.
    asleep: AtomicBool,
}

struct Counting {
    seen: Arc<Seen>,
    bell: Arc<OwnedFd>,
    mail: OwnedFd,
    port: OwnedFd,
}

impl Loop for Counting {
    fn enter(&mut self) {
        let before = self.seen.inside.swap(thread::id(), Ordering::SeqCst);
        assert_eq!(before, 0, "two at the loop");
    }

    fn turn(&mut self, _now: Instant) -> Turned {
        assert_eq!(self.seen.inside.load(Ordering::SeqCst), thread::id());
        assert!(
            thread::is_ours(),
            "the calls of a driver are not interposed"
        );
        self.seen.turns.fetch_add(1, Ordering::SeqCst);
        self.seen.by.store(thread::id(), Ordering::SeqCst);
        Turned {
            worked: false,
            next: Next::Sleep,
        }
    }

    fn errand(&mut self, _now: Instant) {
        assert_eq!(self.seen.inside.load(Ordering::SeqCst), thread::id());
        self.seen.errands.fetch_add(1, Ordering::SeqCst);
    }

    fn rest(&mut self, _now: Instant) -> Option<Rest> {
        assert!(!self.seen.asleep.swap(true, Ordering::SeqCst));
        self.seen.rests.fetch_add(1, Ordering::SeqCst);
        Some(Rest {
            on: [&*self.bell, &self.mail, &self.port].map(AsRawFd::as_raw_fd),
            until: None,
        })
    }

    fn wake(&mut self) {
        assert!(self.seen.asleep.swap(false, Ordering::SeqCst));
        self.seen.wakes.fetch_add(1, Ordering::SeqCst);
    }

    fn hear(&mut self) {
        self.seen.heard.fetch_add(1, Ordering::SeqCst);
        let mut count = [0; 8];
        let _ = rustix::io::read(&*self.bell, &mut count);
    }

    fn leave(&mut self) {
        let before = self.seen.inside.swap(0, Ordering::SeqCst);
        assert_eq!(before, thread::id());
    }
}

fn eventfd() -> OwnedFd {
    rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap()
}

fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let end = monotonic() + Duration::from_secs(20);
    while !condition() {
        assert!(monotonic() < end, "{what}");
        std::thread::yield_now();
    }
}

#[test]
fn threads_drive_in_turn_and_the_helper_takes_over() {
    knet::ffi::real::resolve();
    thread::remember_process();
    assert!(!progress::is_here() && !progress::was_here());
    assert!(!Drive::new().may_drive());
    let seen = Arc::new(Seen::default());
    let bell = Arc::new(eventfd());
    let counting = Counting {
        seen: Arc::clone(&seen),
        bell: Arc::clone(&bell),
        mail: eventfd(),
        port: eventfd(),
    };
    let settings = Settings {
        budget: Duration::from_micros(50),
        grace: Duration::from_micros(200),
    };
    progress::install(Box::new(counting), settings).unwrap();
    assert!(progress::is_here() && progress::was_here());

    // Nobody drives: the helper does, and sleeps on the port when there is nothing.
    let me = thread::id();
    wait_until("the helper rests", || seen.asleep.load(Ordering::SeqCst));
    let helper = seen.by.load(Ordering::SeqCst);
    assert_ne!(helper, me);
    // The bell wakes it.
    let turns = seen.turns.load(Ordering::SeqCst);
    rustix::io::write(&*bell, &1_u64.to_ne_bytes()).unwrap();
    wait_until("the helper hears the bell", || {
        seen.heard.load(Ordering::SeqCst) > 0 && seen.turns.load(Ordering::SeqCst) > turns
    });

    // What is asked behind a question that a turn answered needs no turn of its own; behind a wait it does.
    let errands = || seen.errands.load(Ordering::SeqCst);
    wait_until("questions behind each other share a turn", || {
        Drive::new().errand();
        errands() > 0
    });
    let mut drive = Drive::new();
    while !drive.begin() {
        std::thread::yield_now();
    }
    drive.turn();
    drop(drive);
    let before = errands();
    let turns = seen.turns.load(Ordering::SeqCst);
    wait_until("a question behind a wait has its turn", || {
        Drive::new().errand();
        seen.turns.load(Ordering::SeqCst) > turns
    });
    assert_eq!(errands(), before);

    // A thread of the program takes the token, wakes the loop, and has its signals blocked meanwhile.
    let mut drive = Drive::new();
    wait_until("the token is had", || {
        let mut drive = Drive::new();
        drive.begin()
    });
    while !drive.begin() {
        std::thread::yield_now();
    }
    assert!(!seen.asleep.load(Ordering::SeqCst));
    drive.turn();
    assert_eq!(seen.by.load(Ordering::SeqCst), me);
    assert!(drive.has_turned() && thread::is_ours());
    let other = std::thread::spawn(|| Drive::new().begin());
    assert!(!other.join().unwrap(), "it has one token");

    // It sleeps on the port: the helper sleeps too, and nobody is at the loop.
    let resting = drive.rest().unwrap();
    assert_eq!(resting.rest.on[0], bell.as_raw_fd());
    drive.let_go();
    assert!(!thread::is_ours());
    assert_eq!(seen.inside.load(Ordering::SeqCst), 0);
    assert!(seen.asleep.load(Ordering::SeqCst));
    drive.awake(false);
    assert!(!seen.asleep.load(Ordering::SeqCst), "who wakes drives");
    drop(drive);

    // It computes: the helper takes over, without a word.
    wait_until("the helper takes over", || {
        seen.by.load(Ordering::SeqCst) == helper && seen.asleep.load(Ordering::SeqCst)
    });

    // Two threads and the helper, each at the loop for a turn, now and then asleep.
    let threads: Vec<_> = (0..3)
        .map(|number| {
            std::thread::spawn(move || {
                for round in 0..2_000 {
                    let mut drive = Drive::new();
                    if drive.begin() {
                        drive.turn();
                        if (round + number) % 7 == 0 && drive.rest().is_some() {
                            drive.let_go();
                            std::thread::yield_now();
                            drive.awake(false);
                        }
                    }
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    wait_until("the helper looks after it", || {
        seen.by.load(Ordering::SeqCst) == helper && seen.asleep.load(Ordering::SeqCst)
    });

    assert!(progress::retire());
    assert!(!progress::is_here() && progress::was_here());
    assert!(!Drive::new().begin(), "it is over");
    assert_eq!(
        progress::install(
            Box::new(Counting {
                seen,
                bell,
                mail: eventfd(),
                port: eventfd()
            }),
            settings
        ),
        Err(knet::errno::Errno::ALREADY)
    );
}
