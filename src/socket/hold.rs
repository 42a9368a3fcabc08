//! Who holds an object: how many descriptors of this process, and which processes of the family.
//!
//! The count is private to the process and copied by fork, as the descriptors are. The bit in the process cell's map is
//! what the host looks at; the host clears it when the process is gone.

use core::sync::atomic::Ordering;

use crate::attach::link::PLACES;
use crate::attach::{Link, Object};
use crate::channel::cell::process;
use crate::channel::sync::Ordering as ChannelOrdering;
use crate::errno::{Errno, Result};
use crate::ffi::pages::LazyWords;

static COUNTS: [LazyWords; PLACES] = [const { LazyWords::new() }; PLACES];

fn count(link: &Link, index: u32) -> Result<&'static core::sync::atomic::AtomicU32> {
    let words = COUNTS
        .get(link.place() as usize)
        .ok_or(Errno::NFILE)?
        .words(link.control.layout().objects)?;
    words.get(index as usize).ok_or(Errno::BADF)
}

/// One more descriptor of this process refers to `object`.
///
/// # Errors
/// ENOMEM when the first one finds no memory for the counts.
pub fn add(link: &Link, object: Object) -> Result<()> {
    let held = link.control.held(link.process()).ok_or(Errno::NFILE)?;
    // SeqCst, and the bit behind it: `drop_bit` of another thread clears the bit and looks at the count.
    count(link, object.index)?.fetch_add(1, Ordering::SeqCst);
    held.set(object.index);
    Ok(())
}

/// One descriptor less; true when it was this process's last, whose bit the caller must then clear with [`drop_bit`].
#[must_use]
pub fn subtract(link: &Link, object: Object) -> bool {
    let Ok(count) = count(link, object.index) else {
        return false;
    };
    count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| {
        count.checked_sub(1)
    }) == Ok(1)
}

/// This process holds `object` no more, unless another thread has just made a descriptor of it.
pub fn drop_bit(link: &Link, object: Object) {
    if let Some(held) = link.control.held(link.process()) {
        held.clear(object.index);
        if descriptors(link, object) > 0 {
            held.set(object.index);
        }
    }
}

/// Forgets all counts (in a forked child, whose parent's other threads were changing them).
pub fn forget_counts(link: &Link) {
    if let Some(words) = COUNTS.get(link.place() as usize) {
        words.clear();
    }
}

/// Visits the objects that this process holds without a descriptor.
pub fn for_each_idle(link: &Link, mut visit: impl FnMut(Object)) {
    let Some(held) = link.control.held(link.process()) else {
        return;
    };
    held.for_each(|index| {
        if let Some(object) = Object::at(link, index)
            && descriptors(link, object) == 0
        {
            visit(object);
        }
    });
}

/// Descriptors of this process that refer to `object`.
#[must_use]
pub fn descriptors(link: &Link, object: Object) -> u32 {
    count(link, object.index).map_or(0, |count| count.load(Ordering::SeqCst))
}

/// Whether another process of the family holds `object`.
#[must_use]
pub fn is_held_elsewhere(link: &Link, object: Object) -> bool {
    link.control.processes().any(|index| {
        index != link.process()
            && link
                .control
                .process(index)
                .is_some_and(|cell| cell.state.load(ChannelOrdering::Acquire) != process::FREE)
            && link
                .control
                .held(index)
                .is_some_and(|held| held.has(object.index))
    })
}
