//! Where the loop of this process lies.

use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use core::time::Duration;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};

use super::helper;
use super::words::Words;
use crate::errno::{Errno, Result};
use crate::ffi::{descriptor, engine};
use crate::thread;
use crate::time::{Instant, monotonic};

/// What a turn came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Turned {
    /// It did something.
    pub worked: bool,
    /// What the idle policy says.
    pub next: Next,
}

/// What to do after a turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// Another turn at once.
    Turn,
    /// Let others of the CPU run first.
    Yield,
    /// Sleep until something happens.
    Sleep,
    /// There will be no other turn: the loop is over.
    Over,
}

/// Descriptors at the start of [`Rest::on`] that others ring: the bell of programs, and the control thread's.
pub const RINGERS: usize = 2;

/// What a loop that sleeps is woken by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rest {
    /// Readable when there is something to do: what others ring, and the port.
    pub on: [i32; RINGERS + 1],
    /// The next timer.
    pub until: Option<Instant>,
}

/// The loop, as those who drive it see it. Nothing in it blocks or runs code of the program's.
pub trait Loop: Send {
    /// The calling thread drives from now on.
    fn enter(&mut self);
    /// A turn at `now`.
    fn turn(&mut self, now: Instant) -> Turned;
    /// Answers what programs ask, at `now`, and nothing else; what is to be sent leaves with the next turn.
    fn errand(&mut self, now: Instant);
    /// Tells everybody that the loop sleeps, arms the port and looks once more. None = something came up: it is awake.
    fn rest(&mut self, now: Instant) -> Option<Rest>;
    /// It is awake again after [`Loop::rest`].
    fn wake(&mut self);
    /// One of the ringers was readable.
    fn hear(&mut self);
    /// The calling thread leaves.
    fn leave(&mut self);
}

/// What of the config those who drive must know.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// `common.budget_us`
    pub budget: Duration,
    /// `common.inline_grace_us`
    pub grace: Duration,
}

pub(super) static WORDS: Words = Words::new();
static LOOP: Mutex<Option<Box<dyn Loop>>> = Mutex::new(None);
/// The process whose loop it is; 0 = none (any more). A forked child has its parent's number here, and no loop.
static PROCESS: AtomicU32 = AtomicU32::new(0);
/// The process that installed the loop, also when it is over.
static PROCESS_EVER: AtomicU32 = AtomicU32::new(0);
/// A loop was installed once.
static EVER: AtomicBool = AtomicBool::new(false);
/// When the last turn was, in nanoseconds of the monotonic clock.
static STAMP: AtomicU64 = AtomicU64::new(0);
static BUDGET_NANOS: AtomicU64 = AtomicU64::new(0);
static GRACE_NANOS: AtomicU64 = AtomicU64::new(0);
/// Threads of the program that sleep until somebody else's turn wakes them.
static WAITING: AtomicU32 = AtomicU32::new(0);
/// Once in how many graces the helper looks, because nobody waits for it; 0 = each.
static SELDOM: AtomicU32 = AtomicU32::new(0);
/// The helper's timer.
static TIMER: AtomicI32 = AtomicI32::new(-1);
/// What is slept on, and the timer.
static SLEPT_ON: [AtomicI32; RINGERS + 1] = [const { AtomicI32::new(-1) }; RINGERS + 1];
static SLEPT_UNTIL: AtomicU64 = AtomicU64::new(u64::MAX);
/// Thread id of the helper.
pub(super) static HELPER: AtomicU32 = AtomicU32::new(0);

/// The thread that ends the program by exit(3); 0 = none.
static ENDING: AtomicU32 = AtomicU32::new(0);
/// When it began to, in nanoseconds of the monotonic clock.
static ENDING_SINCE: AtomicU64 = AtomicU64::new(0);
/// A program that is still there after this has exit handlers of its own that wait, perhaps for its threads.
const ENDING_TIME: Duration = Duration::from_secs(2);

/// The calling thread ends the program.
pub fn end() {
    ENDING_SINCE.store(monotonic().nanos(), Ordering::Relaxed);
    ENDING.store(thread::id(), Ordering::Release);
}

/// Whether a thread ends the program.
#[must_use]
pub fn is_ending() -> bool {
    ENDING.load(Ordering::Relaxed) != 0
}

/// Until when the calling thread must see nothing of the loop's end, as one of those that the kernel is about to take away while
/// another one ends the program. Always None in a forked child, which has no other thread.
#[must_use]
pub fn hidden_until() -> Option<Instant> {
    // Acquire: pairs with `end`.
    let ending = ENDING.load(Ordering::Acquire);
    let is_one = ending != 0
        && PROCESS_EVER.load(Ordering::Relaxed) == thread::process()
        && thread::role() == thread::PROGRAM
        && ending != thread::id();
    let since = Instant::from_nanos(ENDING_SINCE.load(Ordering::Relaxed));
    is_one
        .then_some(since + ENDING_TIME)
        .filter(|end| monotonic() < *end)
}

/// Whether this process has a loop that its threads drive.
#[inline]
#[must_use]
pub fn is_here() -> bool {
    let process = PROCESS.load(Ordering::Relaxed);
    process != 0 && process == thread::process()
}

/// Whether this process, or the one that it was forked from, has or had a loop: it cannot have another one.
#[must_use]
pub fn was_here() -> bool {
    EVER.load(Ordering::Relaxed)
}

pub(super) fn budget() -> Duration {
    Duration::from_nanos(BUDGET_NANOS.load(Ordering::Relaxed))
}

pub(super) fn grace() -> Duration {
    Duration::from_nanos(GRACE_NANOS.load(Ordering::Relaxed))
}

/// Remembers that a turn was made at `now`.
pub(super) fn stamp(now: Instant) {
    STAMP.store(now.nanos(), Ordering::Relaxed);
}

/// When the last turn was.
pub(super) fn stamped() -> Instant {
    Instant::from_nanos(STAMP.load(Ordering::Relaxed))
}

/// Makes `it` the loop of this process and starts the helper. Called by a thread of ours.
///
/// # Errors
/// EALREADY when there was one; EMFILE, EAGAIN.
pub fn install(it: Box<dyn Loop>, settings: Settings) -> Result<()> {
    if EVER.swap(true, Ordering::Relaxed) {
        return Err(Errno::ALREADY);
    }
    let nanos = |span: Duration| u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
    BUDGET_NANOS.store(nanos(settings.budget), Ordering::Relaxed);
    GRACE_NANOS.store(nanos(settings.grace), Ordering::Relaxed);
    let flags = TimerfdFlags::CLOEXEC;
    let timer = rustix::time::timerfd_create(TimerfdClockId::Monotonic, flags)?;
    let timer = descriptor::keep(descriptor::raw(timer));
    TIMER.store(timer, Ordering::Relaxed);
    *LOOP.lock().unwrap_or_else(PoisonError::into_inner) = Some(it);
    // Nobody has turned yet: the helper does so at once.
    arm(Duration::from_nanos(1));
    // Before the helper, which ends when there is nothing to look after.
    PROCESS_EVER.store(thread::process(), Ordering::Relaxed);
    PROCESS.store(thread::process(), Ordering::Release);
    engine::spawn(helper::body).inspect_err(|_| stop())
}

/// The loop, for whoever has the token; None when it is over.
pub(super) fn borrow() -> Option<MutexGuard<'static, Option<Box<dyn Loop>>>> {
    let guard = match LOOP.try_lock() {
        Ok(guard) => guard,
        Err(TryLockError::Poisoned(guard)) => guard.into_inner(),
        // Only at the end, by `retire`.
        Err(TryLockError::WouldBlock) => return None,
    };
    guard.is_some().then_some(guard)
}

/// No thread drives any more.
pub fn stop() {
    PROCESS.store(0, Ordering::Relaxed);
}

/// Whether the helper has nothing to look after any more.
pub(super) fn is_over() -> bool {
    PROCESS.load(Ordering::Relaxed) == 0 && was_here()
}

/// Ends the loop: once nobody is at it, it is dropped. False when somebody does not leave it within a second.
#[must_use]
pub fn retire() -> bool {
    stop();
    // The helper sees it at its next look, and ends.
    arm(Duration::from_nanos(1));
    let end = monotonic() + RETIRE_WAIT;
    loop {
        if let Ok(mut guard) = LOOP.try_lock() {
            drop(guard.take());
            return true;
        }
        if monotonic() >= end {
            return false;
        }
        pause(Duration::from_millis(1));
    }
}

const RETIRE_WAIT: Duration = Duration::from_secs(1);

pub(super) fn spec(span: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(span.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(span.subsec_nanos()),
    }
}

/// Waits; for threads of ours, and for the rare waits at an end.
pub(super) fn pause(span: Duration) {
    // What ends it earlier does not matter: the caller looks again.
    let _ = rustix::event::poll(&mut [], Some(&spec(span)));
}

/// The helper's timer: `first` from now, then once a grace.
pub(super) fn arm(first: Duration) {
    SELDOM.store(0, Ordering::Relaxed);
    set_timer(first, grace());
}

/// Looks once in so many graces from now on, unless somebody waits. More than one: `arm` ends it.
pub(super) fn look_seldom(graces: u32) {
    if WAITING.load(Ordering::SeqCst) == 0 && SELDOM.swap(graces, Ordering::SeqCst) != graces {
        let span = grace().saturating_mul(graces);
        set_timer(span, span);
        // Who came meanwhile has not seen the mark, or sees to it.
        if WAITING.load(Ordering::SeqCst) != 0 {
            arm(grace());
        }
    }
}

/// A thread that sleeps until somebody else's turn wakes it, while this lives.
#[derive(Debug)]
pub struct Waiting(bool);

impl Waiting {
    /// Begins to wait.
    #[must_use]
    pub fn begin() -> Self {
        let counts = is_here();
        if counts {
            WAITING.fetch_add(1, Ordering::SeqCst);
            if SELDOM.load(Ordering::SeqCst) != 0 {
                arm(grace());
            }
        }
        Self(counts)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if self.0 {
            WAITING.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// Nobody needs the helper, but for a thread that was torn out of its sleep (see [`helper`]); `rest` is what is slept on.
pub(super) fn disarm(rest: &Rest) {
    SELDOM.store(0, Ordering::Relaxed);
    let until = rest.until.map_or(u64::MAX, Instant::nanos);
    for (place, fd) in SLEPT_ON.iter().zip(rest.on) {
        place.store(fd, Ordering::Relaxed);
    }
    SLEPT_UNTIL.store(until, Ordering::Relaxed);
    set_timer(helper::LOST, helper::LOST);
}

/// What was given to [`disarm`].
pub(super) fn slept_on() -> Rest {
    let until = SLEPT_UNTIL.load(Ordering::Relaxed);
    Rest {
        on: SLEPT_ON.each_ref().map(|fd| fd.load(Ordering::Relaxed)),
        until: (until != u64::MAX).then(|| Instant::from_nanos(until)),
    }
}

fn set_timer(first: Duration, then: Duration) {
    let times = Itimerspec {
        it_interval: spec(then),
        it_value: spec(first),
    };
    let Ok(timer) = descriptor::lend(TIMER.load(Ordering::Relaxed)) else {
        return;
    };
    if let Err(errno) = rustix::time::timerfd_settime(timer, TimerfdTimerFlags::empty(), &times) {
        crate::debug!("inline timer not set errno={}", errno.raw_os_error());
    }
}

/// Waits for the helper's timer.
pub(super) fn wait_timer() {
    let mut count = [0; 8];
    let waited = descriptor::lend(timer()).and_then(|timer| rustix::io::read(timer, &mut count));
    if waited.is_err_and(|errno| errno != Errno::INTR) {
        // Closed behind our back: looks in the old way.
        pause(grace().max(Duration::from_millis(1)));
    }
}

pub(super) fn timer() -> i32 {
    TIMER.load(Ordering::Relaxed)
}
