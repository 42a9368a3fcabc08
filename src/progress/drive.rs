//! A waiting thread of the program at the loop.

use core::ffi::c_int;
use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::MutexGuard;

use super::place::{self, HELPER, Loop, Next, Rest, Turned, WORDS};
use crate::ffi::engine;
use crate::ffi::signals::{self, Saved};
use crate::ffi::wait::SignalMask;
use crate::thread;
use crate::time::{Instant, monotonic};

/// What one call of the program's needs to drive: the token while it has it, and its signals blocked from the first turn to
/// the last. Both are given back when it is dropped.
#[derive(Default)]
pub struct Drive {
    at: Option<At>,
    saved: Option<Saved>,
    turned: bool,
    /// What the loop is about to sleep on.
    rest: Option<Rest>,
}

impl core::fmt::Debug for Drive {
    fn fmt(&self, out: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        out.debug_struct("Drive")
            .field("drives", &self.at.is_some())
            .field("saved", &self.saved)
            .finish_non_exhaustive()
    }
}

/// The token, and the loop behind it.
struct At {
    guard: MutexGuard<'static, Option<Box<dyn Loop>>>,
    cancel: c_int,
}

/// What a thread sleeps on instead of the loop.
#[derive(Clone, Copy, Debug)]
pub struct Resting {
    /// What ends the sleep.
    pub rest: Rest,
    /// The program's own signal mask.
    pub mask: SignalMask,
}

/// When the last turn that a [`Drive::errand`] made began, in nanoseconds.
static ASKED: AtomicU64 = AtomicU64::new(0);
/// What a turn needs of the stack of the thread that makes it: 18 KiB were measured with DPDK 22.11.
const STACK: u64 = 64 << 10;
/// Tries for the token that the helper is about to give.
const TRIES: u32 = 100;
/// Of them, those behind which the helper may run on this very CPU.
const YIELDS: u32 = 3;

impl Drive {
    /// Nothing taken yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether this thread may drive at all.
    #[must_use]
    pub fn may_drive(&self) -> bool {
        place::is_here() && thread::role() != thread::ENGINE
    }

    /// Whether a turn was made in this call.
    #[must_use]
    pub const fn has_turned(&self) -> bool {
        self.turned
    }

    /// When the last turn began, whoever made it.
    #[must_use]
    pub fn last_turn(&self) -> Instant {
        place::stamped()
    }

    /// One turn, in a call that returns at once whatever it finds: a program that never waits must receive as well.
    pub fn turn_once(&mut self) {
        if !self.turned && self.may_drive() && self.begin() {
            self.turn();
        }
    }

    /// One turn unless there was one a moment ago (a budget): for a call that finds nothing and does not wait.
    pub fn turn_if_due(&mut self) {
        if self.may_drive() && monotonic().since(place::stamped()) >= place::budget() {
            self.turn_once();
        }
    }

    /// Has the loop answer what the program has just asked: by a turn, and what is asked behind that without a wait in between by
    /// nothing but the answer, for a budget at most, so that what is to be sent for all of it leaves together.
    pub fn errand(&mut self) {
        if !self.may_drive() || !self.begin() {
            return;
        }
        let (last, now) = (place::stamped(), monotonic());
        if ASKED.load(Ordering::Relaxed) != last.nanos() || now.since(last) >= place::budget() {
            let (began, _) = self.turn();
            ASKED.store(began.nanos(), Ordering::Relaxed);
        } else if let Some(it) = self.at.as_mut().and_then(|at| at.guard.as_mut()) {
            it.errand(now);
        }
    }

    /// Whether this call drives, and was here a moment (a budget) before: `last` remembers when, in nanoseconds.
    #[must_use]
    pub fn is_soon_after(&self, last: &AtomicU64) -> bool {
        if !self.turned {
            return false;
        }
        let now = place::stamped();
        let soon = now.since(Instant::from_nanos(last.load(Ordering::Relaxed))) < place::budget();
        if !soon {
            last.store(now.nanos(), Ordering::Relaxed);
        }
        soon
    }

    /// `common.budget_us`.
    #[must_use]
    pub fn budget(&self) -> core::time::Duration {
        place::budget()
    }

    /// Takes the token; false when somebody else drives.
    pub fn begin(&mut self) -> bool {
        if self.at.is_some() {
            return true;
        }
        if !engine::has_stack(STACK) {
            return false;
        }
        let helper = HELPER.load(Ordering::Relaxed);
        match WORDS.driver() {
            0 => {}
            driver if driver == helper => WORDS.want(),
            _ => return false,
        }
        // Before the token: a handler must never find its own thread at the loop.
        let fresh = self.saved.is_none();
        if fresh {
            self.saved = Some(signals::block());
        }
        let is_near = |driver: u32| driver == 0 || driver == helper;
        let me = thread::id();
        let mut taken = WORDS.take_to_drive(me);
        for left in (0..TRIES).rev() {
            if taken.is_some() || !is_near(WORDS.driver()) {
                break;
            }
            if left < YIELDS {
                rustix::thread::sched_yield();
            } else {
                core::hint::spin_loop();
            }
            taken = WORDS.take_to_drive(me);
        }
        let Some(taken) = taken else {
            if fresh {
                self.open_signals();
            }
            return false;
        };
        if taken.must_arm {
            place::arm(place::grace());
        }
        let Some(guard) = place::borrow() else {
            // It is over.
            WORDS.give();
            self.open_signals();
            return false;
        };
        thread::set_role(thread::DRIVER);
        let mut at = At {
            guard,
            cancel: signals::forbid_cancel(),
        };
        if let Some(it) = at.guard.as_mut() {
            it.enter();
            if taken.was_asleep {
                it.wake();
            }
        }
        self.at = Some(at);
        true
    }

    /// A turn, and when it began. Without the token nothing happens.
    pub fn turn(&mut self) -> (Instant, Turned) {
        self.turned = true;
        let now = monotonic();
        let it = self.at.as_mut().and_then(|at| at.guard.as_mut());
        let turned = it.map(|it| it.turn(now)).unwrap_or(Turned {
            worked: false,
            next: Next::Over,
        });
        place::stamp(now);
        (now, turned)
    }

    /// Prepares a sleep of the loop; None when something came up. Ends with [`Drive::let_go`] or [`Drive::stay`].
    pub fn rest(&mut self) -> Option<Resting> {
        let it = self.at.as_mut()?.guard.as_mut()?;
        let rest = it.rest(monotonic())?;
        self.rest = Some(rest);
        let mask = self.saved.as_ref().map(Saved::mask).unwrap_or_default();
        Some(Resting { rest, mask })
    }

    /// Does not sleep after all.
    pub fn stay(&mut self) {
        self.rest = None;
        if let Some(it) = self.at.as_mut().and_then(|at| at.guard.as_mut()) {
            it.wake();
        }
    }

    /// Gives the token back to sleep on what [`Drive::rest`] said. Signals stay blocked: the sleep itself opens them.
    pub fn let_go(&mut self) {
        let (true, Some(rest)) = (self.at.is_some(), self.rest.take()) else {
            return;
        };
        place::disarm(&rest);
        WORDS.fall_asleep(false);
        self.leave();
    }

    /// The sleep is over: drives again, unless somebody else does by now. `rang`: a ringer was readable.
    pub fn awake(&mut self, rang: bool) {
        if self.begin()
            && rang
            && let Some(it) = self.at.as_mut().and_then(|at| at.guard.as_mut())
        {
            it.hear();
        }
    }

    /// Signals that came since the first turn, wait, and are open in `mask` (None: the program's own).
    #[must_use]
    pub fn pending(&self, mask: Option<SignalMask>) -> SignalMask {
        let own = self.saved.as_ref().map(Saved::mask).unwrap_or_default();
        SignalMask(signals::pending().0 & !mask.unwrap_or(own).0)
    }

    /// Gives the token back; signals stay as they are.
    fn leave(&mut self) {
        let Some(At { mut guard, cancel }) = self.at.take() else {
            return;
        };
        if let Some(it) = guard.as_mut() {
            it.leave();
        }
        drop(guard);
        thread::set_role(thread::PROGRAM);
        WORDS.give();
        signals::allow_cancel(cancel);
    }

    /// Gives the token back and lets signals in, which run here.
    pub fn end(&mut self) {
        self.leave();
        self.open_signals();
    }

    fn open_signals(&mut self) {
        if let Some(saved) = self.saved.take() {
            signals::restore(&saved);
        }
    }

    /// Gives the token back and lets in what `mask` opens besides, as ppoll does: `look` is a ppoll that returns at once.
    pub fn end_with(&mut self, look: impl FnOnce()) {
        self.leave();
        look();
        self.open_signals();
    }
}

impl Drop for Drive {
    fn drop(&mut self) {
        self.end();
    }
}
