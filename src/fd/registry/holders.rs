//! The processes that hold a record, and how one that died without a word is found.

use core::sync::atomic::{AtomicU32, Ordering};

use crate::channel::layout::PROCS;
use crate::ffi::process;
use crate::thread;

/// Processes that a record can list: all that a family can have with a share of its host, and those that are about to come. With
/// more (children that the host has refused) it is never freed.
const HOLDERS: usize = 320;
const _: () = assert!(HOLDERS > PROCS as usize);

/// A place with this bit is that of a program which a process is about to have executed by a child, as [`heir`] says.
const HEIR: u32 = 1 << 31;
/// Bits of a process id (PID_MAX_LIMIT).
const PID_BITS: u32 = 22;

/// What stands in the places of a program whose process is not known yet; process `pid` has it executed. Another one at each
/// `turn`, as far as one process can have children made at the same time.
pub(super) const fn heir(pid: u32, turn: u32) -> u32 {
    HEIR | (turn << PID_BITS & !HEIR) | pid & ((1 << PID_BITS) - 1)
}

/// The process that takes a place away, should it end.
const fn keeper(place: u32) -> u32 {
    if place & HEIR == 0 {
        place
    } else {
        place & ((1 << PID_BITS) - 1)
    }
}

/// The processes that hold a record.
#[repr(C)]
#[derive(Debug)]
pub(super) struct Holders {
    /// Places at and behind this one were not used since the record was free: those few that were are looked at.
    end: AtomicU32,
    /// Non-zero: some holder found no place, so the record stays.
    crowded: AtomicU32,
    pids: [AtomicU32; HOLDERS],
}

impl Default for Holders {
    fn default() -> Self {
        Self {
            end: AtomicU32::new(0),
            crowded: AtomicU32::new(0),
            pids: [const { AtomicU32::new(0) }; HOLDERS],
        }
    }
}

impl Holders {
    /// The places that may be taken.
    fn places(&self) -> impl Iterator<Item = &AtomicU32> {
        // Acquire: pairs with the raise in `add`, which is before the place is taken.
        let end = self.end.load(Ordering::Acquire) as usize;
        self.pids.iter().take(end)
    }

    pub(super) fn add(&self, pid: u32) {
        let add = || {
            (1..).zip(&self.pids).any(|(end, place)| {
                if self.end.load(Ordering::Relaxed) < end {
                    self.end.fetch_max(end, Ordering::AcqRel);
                }
                place
                    .compare_exchange(0, pid, Ordering::AcqRel, Ordering::Acquire)
                    .is_ok()
            })
        };
        if add() {
            return;
        }
        // A place may be that of a child which ended without a word.
        self.sweep();
        if !add() {
            self.crowded.store(1, Ordering::Release);
        }
    }

    /// Before a fork of process `pid`: a second place is its child's, until the child takes it. A fork that fails leaves it to the
    /// next one.
    pub(super) fn hold_for_child(&self, pid: u32) {
        let count = self
            .places()
            .filter(|place| place.load(Ordering::Acquire) == pid)
            .count();
        if count == 1 {
            self.add(pid);
        }
    }

    fn lists(&self, pid: u32) -> bool {
        self.places()
            .any(|place| place.load(Ordering::Acquire) == pid)
    }

    /// Before a program is executed by another process: a place is its, until it takes it or the other process takes it back.
    pub(super) fn hold_for_heir(&self, heir: u32) {
        if !self.lists(heir) {
            self.add(heir);
        }
    }

    /// The child takes the place that its parent has held for it, as `parent`, or another one.
    fn inherit(&self, parent: u32, child: u32) {
        let take = |place: &AtomicU32| {
            parent != 0
                && place
                    .compare_exchange(parent, child, Ordering::AcqRel, Ordering::Acquire)
                    .is_ok()
        };
        // The parent may have put the child there, see `change`.
        if !self.places().any(take) && !self.lists(child) {
            self.add(child);
        }
    }

    /// Who is listed as `from` is from now on listed as `to`; 0 = not at all. Says whether nobody is left.
    pub(super) fn change(&self, from: u32, to: u32) -> bool {
        for place in self.places() {
            // Another one's place.
            let _ = place.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed);
        }
        self.is_empty()
    }

    /// Removes one process; says whether nobody is left.
    pub(super) fn remove(&self, pid: u32) -> bool {
        for place in self.places() {
            if place
                .compare_exchange(pid, 0, Ordering::AcqRel, Ordering::Acquire)
                .is_ok()
            {
                break;
            }
        }
        self.is_empty()
    }

    /// Removes one process however often it is listed.
    pub(super) fn remove_all(&self, pid: u32) {
        self.change(pid, 0);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.crowded.load(Ordering::Acquire) == 0
            && self
                .places()
                .all(|place| place.load(Ordering::Acquire) == 0)
    }

    /// Removes processes that are gone; says whether nobody is left.
    pub(super) fn sweep(&self) -> bool {
        for place in self.places() {
            let pid = place.load(Ordering::Acquire);
            if pid != 0 && !process::process_lives(keeper(pid)) {
                // Another sweeper may have been quicker.
                let _ = place.compare_exchange(pid, 0, Ordering::AcqRel, Ordering::Relaxed);
            }
        }
        self.is_empty()
    }

    pub(super) fn clear(&self) {
        for place in self.places() {
            place.store(0, Ordering::Release);
        }
        self.end.store(0, Ordering::Release);
        self.crowded.store(0, Ordering::Release);
    }
}

/// In a child that `parent` stands for: a descriptor of it stands for the record that `holders` belong to, and `count` counts. False
/// when another thread of the parent closed its own before the fork, and the record is another's.
pub(super) fn adopt(
    count: &AtomicU32,
    holders: &Holders,
    parent: u32,
    is_it_still: impl Fn() -> bool,
) -> bool {
    if count.load(Ordering::Relaxed) == 0 {
        holders.inherit(parent, thread::process());
        if !is_it_still() {
            holders.remove(thread::process());
            return false;
        }
    }
    count.fetch_add(1, Ordering::Relaxed);
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_adopts_what_is_still_there() {
        let holders = Holders::default();
        let count = AtomicU32::new(0);
        assert!(adopt(&count, &holders, 0, || true));
        assert!(adopt(&count, &holders, 0, || true));
        assert_eq!(count.load(Ordering::Relaxed), 2);
        assert!(holders.remove(thread::process()), "held once");
        let count = AtomicU32::new(0);
        assert!(!adopt(&count, &holders, 0, || false));
        assert!(holders.is_empty());
        assert_eq!(count.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn what_the_parent_closes_behind_the_fork_is_the_childs() {
        let holders = Holders::default();
        let parent = thread::process() + 1;
        holders.add(parent);
        holders.hold_for_child(parent);
        holders.hold_for_child(parent);
        assert!(!holders.remove(parent), "the child has not come yet");
        let count = AtomicU32::new(0);
        assert!(adopt(&count, &holders, parent, || true));
        assert!(holders.remove(thread::process()));
        assert!(holders.is_empty());
    }

    #[test]
    fn what_was_held_for_a_spawned_program_ends_with_it() {
        let (parent, child) = (thread::process(), thread::process() + 1);
        let holders = Holders::default();
        let word = heir(parent, 700);
        assert_ne!(word, heir(parent, 701));
        let begin = || {
            holders.add(parent);
            holders.hold_for_heir(word);
            holders.hold_for_heir(word);
            assert!(!holders.remove(parent), "the program has not come yet");
            assert!(!holders.sweep(), "who has it executed lives");
        };
        begin();
        assert!(holders.change(word, 0), "it was not executed");
        begin();
        assert!(!holders.change(word, child), "it is the child's");
        holders.inherit(word, child);
        assert!(holders.remove(child), "and only once");
        begin();
        holders.inherit(word, child);
        assert!(!holders.change(word, child), "the child was quicker");
        assert!(holders.remove(child));
    }

    #[test]
    fn as_many_processes_as_a_family_has_can_hold_a_record_and_leave_it() {
        let holders = Holders::default();
        let family = 1..=PROCS;
        for pid in family.clone() {
            holders.add(pid);
        }
        for pid in family {
            assert!(!holders.is_empty());
            assert_eq!(holders.remove(pid), pid == PROCS);
        }
        assert_eq!(holders.crowded.load(Ordering::Relaxed), 0);
        assert_eq!(holders.end.load(Ordering::Relaxed), PROCS);
        holders.clear();
        holders.add(5);
        assert_eq!(holders.end.load(Ordering::Relaxed), 1, "few are looked at");
    }

    #[test]
    fn a_dead_process_holds_nothing() {
        let holders = Holders::default();
        let child = process::clone_silent().unwrap();
        if child == 0 {
            process::exit(0);
        }
        process::reap_silent(child).unwrap();
        holders.add(child.unsigned_abs());
        assert!(!holders.is_empty());
        assert!(holders.sweep());
        let living = thread::process();
        for _ in 0..=HOLDERS {
            holders.add(child.unsigned_abs());
        }
        holders.add(heir(child.unsigned_abs(), 3));
        holders.add(living);
        assert_eq!(
            holders.crowded.load(Ordering::Relaxed),
            0,
            "the dead make room"
        );
        assert!(holders.remove(living) || holders.sweep());
        for _ in 0..=HOLDERS {
            holders.add(living);
        }
        assert!(!holders.remove(living), "a crowded record is never freed");
    }
}
