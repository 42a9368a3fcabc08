//! Numbers for a parcel and what goes with it that a child of posix_spawn keeps when it closes all others
//! (posix_spawn_file_actions_addclosefrom_np).
//!
//! What the child is to close is said before there is a parcel, so its numbers are known then: until a parcel is there, copies of
//! a descriptor of ours keep them. One parcel can have them at a time.

use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::Mutex;

use crate::errno::{Errno, Result};
use crate::ffi::descriptor;
use crate::thread;

/// A parcel, its control socket, the registry's memory, the socket that accepted numbers have in common.
pub const COUNT: usize = 4;

#[derive(Clone, Copy, Debug)]
struct Kept {
    /// A forked child has its parent's mark, and numbers that may be anything.
    process: u32,
    numbers: [i32; COUNT],
    filler: i32,
}

/// Only ever tried: the thread that has it may be another process's.
static KEPT: Mutex<Option<Kept>> = Mutex::new(None);
static TAKEN: AtomicBool = AtomicBool::new(false);

/// The numbers, in order. They are kept from now on, by copies of `filler`, an internal descriptor that is never closed.
///
/// # Errors
/// EMFILE; EAGAIN while another thread does the same.
pub fn keep(filler: i32) -> Result<[i32; COUNT]> {
    let mut kept = KEPT.try_lock().map_err(|_| Errno::AGAIN)?;
    let process = thread::process();
    if let Some(found) = kept.filter(|found| found.process == process) {
        return Ok(found.numbers);
    }
    let mut numbers = [-1; COUNT];
    for at in 0..COUNT {
        let made = descriptor::internal_copy(filler);
        if let (Ok(made), Some(place)) = (made, numbers.get_mut(at)) {
            *place = made;
        } else {
            numbers.iter().for_each(|fd| descriptor::close(*fd));
            return Err(Errno::MFILE);
        }
    }
    numbers.sort_unstable();
    TAKEN.store(false, Ordering::Relaxed);
    *kept = Some(Kept {
        process,
        numbers,
        filler,
    });
    Ok(numbers)
}

/// The numbers, while a parcel has them.
#[derive(Debug)]
pub(super) struct Places(Kept);

impl Places {
    /// None: there are none, or another parcel has them.
    pub(super) fn take() -> Option<Self> {
        let kept = (*KEPT.try_lock().ok()?).filter(|kept| kept.process == thread::process())?;
        let is_mine = TAKEN
            .compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed)
            .is_ok();
        is_mine.then_some(Self(kept))
    }

    /// Puts `fd` at the place `at`, and closes it.
    pub(super) fn seat(&self, fd: i32, at: usize) -> Result<i32> {
        let place = self.0.numbers.get(at).copied().ok_or(Errno::MFILE)?;
        let seated = descriptor::replace(fd, place, true);
        descriptor::shut(fd);
        seated.map(|()| place)
    }
}

impl Drop for Places {
    fn drop(&mut self) {
        for number in self.0.numbers {
            // Neither is closed, so this cannot fail.
            let _ = descriptor::replace(self.0.filler, number, true);
        }
        TAKEN.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_stay_while_parcels_come_and_go() {
        let inode = |fd| {
            rustix::fs::fstat(descriptor::lend(fd).unwrap())
                .unwrap()
                .st_ino
        };
        let made = rustix::fs::memfd_create(c"filler", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let filler = descriptor::internalize(made).unwrap();
        let numbers = keep(filler).unwrap();
        assert!(numbers.is_sorted() && descriptor::is_internal(numbers[0]));
        let before = numbers.map(inode);
        for _ in 0..2 {
            let places = Places::take().unwrap();
            assert!(Places::take().is_none(), "one at a time");
            let own = rustix::fs::memfd_create(c"own", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
            let (own, other) = (descriptor::raw(own), numbers[2]);
            let its = inode(own);
            assert_eq!(places.seat(own, 2), Ok(other));
            assert_eq!(inode(other), its);
            drop(places);
            assert_eq!(numbers.map(inode), before);
        }
        assert_eq!(keep(filler), Ok(numbers));
    }
}
