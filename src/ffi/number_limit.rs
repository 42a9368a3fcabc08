//! The limit on descriptor numbers of this process (RLIMIT_NOFILE), where the program has taken all of them and a descriptor of our
//! own is needed that Linux would not need: numbers above the soft limit, as far as the hard one goes.
//!
//! DEVIATION: while one of them is made (of an attach: while it lasts, as a host inside this process opens files of its own),
//! another thread of the program may get a number above its soft limit, and a program that another thread executes or that a
//! child without fork handlers (vfork, posix_spawn, system) executes keeps the higher soft limit. Where the soft limit is the hard
//! one there is no number, and the call says EMFILE.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

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
pub struct Room(());

impl Room {
    /// None: there is no more to be had, or another thread has it at the moment.
    fn make() -> Option<Self> {
        if !take() {
            return None;
        }
        let before = getrlimit(Resource::Nofile);
        let raised = before.current.map(|soft| {
            let most = before.maximum.unwrap_or(u64::MAX);
            (soft, soft.saturating_add(NUMBERS).min(most))
        });
        if let Some((soft, raised)) = raised.filter(|(soft, raised)| raised > soft) {
            BEFORE.store(soft, Ordering::Relaxed);
            RAISED.store(raised, Ordering::Relaxed);
            if set_soft(raised).is_ok() {
                return Some(Self(()));
            }
        }
        give_back();
        None
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        give_back();
    }
}

/// Behind fork, in the child: what another thread of the parent had raised is nobody's here.
pub fn child() {
    if BUSY.load(Ordering::Acquire) {
        give_back();
    }
}

fn give_back() {
    let raised = RAISED.load(Ordering::Relaxed);
    // Unless the program has set another one meanwhile. Lowering what was raised cannot fail.
    if raised != 0 && getrlimit(Resource::Nofile).current == Some(raised) {
        let _ = set_soft(BEFORE.load(Ordering::Relaxed));
    }
    // Not before: a child of another thread's that is made meanwhile must know what to set back.
    RAISED.store(0, Ordering::Relaxed);
    BUSY.store(false, Ordering::Release);
}

fn set_soft(soft: u64) -> Result<()> {
    let limit = Rlimit {
        current: Some(soft),
        maximum: getrlimit(Resource::Nofile).maximum,
    };
    setrlimit(Resource::Nofile, limit)
}

/// Some thread has raised the limit. A handler that interrupts it gives up after some tries.
static BUSY: AtomicBool = AtomicBool::new(false);
/// The program's soft limit while it is raised.
static BEFORE: AtomicU64 = AtomicU64::new(0);
/// What it was raised to; 0 = it is not.
static RAISED: AtomicU64 = AtomicU64::new(0);

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

#[cfg(test)]
mod tests {
    use super::*;

    fn soft() -> Option<u64> {
        getrlimit(Resource::Nofile).current
    }

    #[test]
    fn a_child_forked_while_there_is_more_room_has_the_limit_of_its_program() {
        let hard = getrlimit(Resource::Nofile).maximum;
        let before = Rlimit {
            current: Some(900),
            maximum: hard,
        };
        let whole = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, before).unwrap();
        let room = Room::make().unwrap();
        assert_eq!(soft(), Some(900 + NUMBERS));
        // As fork leaves it: nobody in the child drops the room.
        core::mem::forget(room);
        child();
        assert_eq!(soft(), Some(900));
        assert!(Room::make().is_some(), "the child has room of its own");
        assert_eq!(soft(), Some(900));
        child();
        assert_eq!(soft(), Some(900), "nothing was raised");
        setrlimit(Resource::Nofile, whole).unwrap();
    }
}
