//! The limit on descriptor numbers of this process (RLIMIT_NOFILE), where the program has taken all of them and a descriptor of our
//! own is needed that Linux would not need: numbers above the soft limit, as far as the hard one goes.
//!
//! DEVIATION: while one of them is made, another thread of the program may get a number above its soft limit. Where the soft limit
//! is the hard one there is no number, and the call says EMFILE.

use core::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{EventfdFlags, eventfd};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::descriptor;
use crate::errno::{Errno, Result};

/// Runs `make`, and once more with more numbers when the program has taken all.
///
/// # Errors
/// What `make` says.
pub fn with_room<T>(make: impl Fn() -> Result<T>) -> Result<T> {
    match make() {
        Err(Errno::MFILE) => {}
        made => return made,
    }
    let _room = Room::make();
    make()
}

/// More numbers, when the program has left few: for a step that makes several descriptors.
#[must_use]
pub fn room_for_several() -> Option<Room> {
    let soft = getrlimit(Resource::Nofile).current?;
    let lowest = eventfd(0, EventfdFlags::CLOEXEC).map(descriptor::raw);
    if let Ok(lowest) = lowest {
        descriptor::shut(lowest);
    }
    let is_short = match lowest {
        Ok(lowest) => u64::try_from(lowest).is_ok_and(|lowest| lowest + NUMBERS > soft),
        Err(error) => error == Errno::MFILE,
    };
    if is_short { Room::make() } else { None }
}

/// The soft limit is raised while this lives.
#[derive(Debug)]
pub struct Room {
    before: Rlimit,
    raised: u64,
}

impl Room {
    /// None: there is no more to be had, or another thread has it at the moment.
    fn make() -> Option<Self> {
        let before = getrlimit(Resource::Nofile);
        let soft = before.current?;
        let raised = soft
            .saturating_add(NUMBERS)
            .min(before.maximum.unwrap_or(u64::MAX));
        if raised == soft || !take() {
            return None;
        }
        let more = Rlimit {
            current: Some(raised),
            maximum: before.maximum,
        };
        if setrlimit(Resource::Nofile, more).is_err() {
            BUSY.store(false, Ordering::Release);
            return None;
        }
        Some(Self { before, raised })
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        // Unless the program has set another one meanwhile. Lowering what was raised cannot fail.
        if getrlimit(Resource::Nofile).current == Some(self.raised) {
            let _ = setrlimit(Resource::Nofile, self.before);
        }
        BUSY.store(false, Ordering::Release);
    }
}

/// Some thread has raised the limit. A handler that interrupts it gives up after some tries.
static BUSY: AtomicBool = AtomicBool::new(false);

fn take() -> bool {
    (0..TRIES).any(|_| {
        let taken = !BUSY.swap(true, Ordering::Acquire);
        if !taken {
            rustix::thread::sched_yield();
        }
        taken
    })
}

const TRIES: u32 = 1_000;
/// Numbers that a step needs at most: an attach with a host inside this process is the longest one.
const NUMBERS: u64 = 64;
