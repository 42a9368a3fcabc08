//! Descriptors of an attach, or of a parcel, that is under way. A child that another thread forks meanwhile closes its copies:
//! each of them would keep something open that must end with its parent (the host's end of a socket, a lock, the config).

use core::sync::atomic::{AtomicI32, Ordering};

use crate::ffi::descriptor;

/// An attach has fewer than eight of them at a time, and a parcel four.
const PLACES: usize = 16;
/// Descriptor + 1; 0 = none.
static OPEN: [AtomicI32; PLACES] = [const { AtomicI32::new(0) }; PLACES];

/// Notes a descriptor until it is closed, or belongs to somebody who looks after forks himself.
pub(super) fn note(fd: i32) {
    let word = fd.saturating_add(1);
    if OPEN
        .iter()
        .any(|place| place.load(Ordering::Relaxed) == word)
    {
        return;
    }
    let take = |place: &AtomicI32| {
        place
            .compare_exchange(0, word, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    };
    // None free: a child would keep a copy until it ends.
    let _ = OPEN.iter().any(take);
}

/// It is closed, or somebody else's.
pub(super) fn forget(fd: i32) {
    let word = fd.saturating_add(1);
    for place in &OPEN {
        // Another descriptor's place.
        let _ = place.compare_exchange(word, 0, Ordering::AcqRel, Ordering::Relaxed);
    }
}

/// Closes a noted descriptor.
pub(super) fn close(fd: i32) {
    forget(fd);
    descriptor::close(fd);
}

/// In a forked child: the attach was the parent's.
pub(super) fn close_parents() {
    for place in &OPEN {
        let word = place.swap(0, Ordering::Relaxed);
        if word > 0 {
            descriptor::close(word - 1);
        }
    }
}
