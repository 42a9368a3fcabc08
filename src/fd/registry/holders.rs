//! The processes that hold a record, and how one that died without a word is found.

use core::sync::atomic::{AtomicU32, Ordering};

use crate::ffi::process;
use crate::thread;

/// Processes that a record can list; with more it is never freed.
const HOLDERS: usize = 8;

/// The processes that hold a record.
#[repr(C)]
#[derive(Debug, Default)]
pub(super) struct Holders {
    pids: [AtomicU32; HOLDERS],
    /// Non-zero: some holder found no place, so the record stays.
    crowded: AtomicU32,
}

impl Holders {
    pub(super) fn add(&self, pid: u32) {
        let add = || {
            self.pids.iter().any(|place| {
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
        let places = self.pids.iter();
        let count = places
            .filter(|place| place.load(Ordering::Acquire) == pid)
            .count();
        if count == 1 {
            self.add(pid);
        }
    }

    /// The child takes the place that its parent has held for it, or another one.
    fn inherit(&self, parent: u32, child: u32) {
        let take = |place: &AtomicU32| {
            parent != 0
                && place
                    .compare_exchange(parent, child, Ordering::AcqRel, Ordering::Acquire)
                    .is_ok()
        };
        if !self.pids.iter().any(take) {
            self.add(child);
        }
    }

    /// Removes one process; says whether nobody is left.
    pub(super) fn remove(&self, pid: u32) -> bool {
        for place in &self.pids {
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
        for place in &self.pids {
            let _ = place.compare_exchange(pid, 0, Ordering::AcqRel, Ordering::Relaxed);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.crowded.load(Ordering::Acquire) == 0
            && self
                .pids
                .iter()
                .all(|place| place.load(Ordering::Acquire) == 0)
    }

    /// Removes processes that are gone; says whether nobody is left.
    pub(super) fn sweep(&self) -> bool {
        for place in &self.pids {
            let pid = place.load(Ordering::Acquire);
            if pid != 0 && !process::process_lives(pid) {
                // Another sweeper may have been quicker.
                let _ = place.compare_exchange(pid, 0, Ordering::AcqRel, Ordering::Relaxed);
            }
        }
        self.is_empty()
    }

    pub(super) fn clear(&self) {
        for place in &self.pids {
            place.store(0, Ordering::Release);
        }
        self.crowded.store(0, Ordering::Release);
    }
}

/// In a forked child of `parent`: a descriptor of it stands for the record that `holders` belong to, and `count` counts. False
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
        for _ in 0..20 {
            holders.add(child.unsigned_abs());
        }
        holders.add(living);
        assert_eq!(
            holders.crowded.load(Ordering::Relaxed),
            0,
            "the dead make room"
        );
        assert!(holders.remove(living) || holders.sweep());
        for _ in 0..10 {
            holders.add(living);
        }
        assert!(!holders.remove(living), "a crowded record is never freed");
    }
}
