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
    use crate::ffi::process;

    fn soft() -> Option<u64> {
        getrlimit(Resource::Nofile).current
    }

    /// Runs `check` in a process of its own with a soft limit of 900: the limit is all threads', and so is who has raised it.
    fn alone(check: impl FnOnce() -> bool) {
        let child = process::clone_silent().unwrap();
        if child == 0 {
            process::exit(i32::from(
                !(set_soft(900).is_ok() && check() && soft() == Some(900)),
            ));
        }
        let pid = rustix::process::Pid::from_raw(child);
        // __WCLONE, which rustix does not name: a child without an exit signal.
        let options = rustix::process::WaitOptions::from_bits_retain(0x8000_0000);
        let (_, status) = rustix::process::waitpid(pid, options).unwrap().unwrap();
        assert_eq!(status.exit_status(), Some(0));
    }

    #[test]
    fn a_child_forked_while_there_is_more_room_has_the_limit_of_its_program() {
        alone(|| {
            let room = Room::make();
            let raised = soft() == Some(900 + NUMBERS);
            // As fork leaves it: nobody in the child drops the room.
            core::mem::forget(room);
            child();
            let back = soft() == Some(900);
            let again = Room::make().is_some() && soft() == Some(900);
            child();
            raised && back && again
        });
    }

    #[test]
    fn the_limit_is_put_back_whether_or_not_the_step_succeeds() {
        alone(|| {
            let mut raised = [false; 2];
            let steps = [Ok(5), Err(Errno::NFILE)];
            let done = steps.iter().zip(&mut raised).all(|(step, raised)| {
                let tries = core::cell::Cell::new(0);
                let seen = core::cell::Cell::new(None);
                let made = with_room(|| {
                    tries.set(tries.get() + 1);
                    seen.set(soft());
                    if tries.get() == 1 {
                        Err(Errno::MFILE)
                    } else {
                        *step
                    }
                });
                *raised = seen.get() == Some(900 + NUMBERS);
                made == *step && tries.get() == 2 && soft() == Some(900)
            });
            done && raised == [true; 2] && !BUSY.load(Ordering::Relaxed)
        });
    }

    #[test]
    fn a_limit_that_the_program_sets_meanwhile_stays() {
        alone(|| {
            let stays = [300, 950, 900 + 2 * NUMBERS].into_iter().all(|theirs| {
                let _ = set_soft(900);
                let room = Room::make();
                let _ = set_soft(theirs);
                let had = room.is_some();
                drop(room);
                had && soft() == Some(theirs)
            });
            stays && set_soft(900).is_ok() && Room::make().is_some()
        });
    }

    #[test]
    fn where_the_soft_limit_is_the_hard_one_nothing_changes() {
        alone(|| {
            let both = Rlimit {
                current: Some(900),
                maximum: Some(900),
            };
            let refused = with_room(|| Err::<(), _>(Errno::MFILE));
            let _ = setrlimit(Resource::Nofile, both);
            let none = Room::make().is_none() && !BUSY.load(Ordering::Relaxed);
            none && refused == Err(Errno::MFILE)
        });
    }
}
