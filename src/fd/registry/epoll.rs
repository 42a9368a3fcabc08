//! Epolls: who holds one, how many kernel descriptors are in it, and who looks at it from outside.

use core::sync::atomic::{AtomicU32, Ordering};

use super::holders::{self, Holders};
use super::{Region, region};
use crate::fd::table::Record;
use crate::thread;

/// Epolls of a family; more cannot watch accelerated sockets. The channel has as many.
pub const EPOLLS: usize = crate::channel::layout::EPOLLS as usize;

/// Values of [`EpollRecord::used`].
mod used {
    pub(super) const FREE: u32 = 0;
    /// Somebody is taking or freeing it; a sweep leaves it alone.
    pub(super) const CHANGING: u32 = 1;
    pub(super) const TAKEN: u32 = 2;
}

#[repr(C)]
#[derive(Debug, Default)]
pub(super) struct EpollRecord {
    /// See [`used`].
    used: AtomicU32,
    generation: AtomicU32,
    /// Kernel descriptors that were added and not deleted; closing one does not lower it.
    kernel_items: AtomicU32,
    /// Epolls that it was added to and not deleted from (bits 0 to 30), and whether poll or select asked about it (bit 31).
    nestings: AtomicU32,
    holders: Holders,
}

/// See [`EpollRecord::nestings`].
const POLLED: u32 = 1 << 31;

/// Descriptors of this process that stand for each record. Copied by fork with the table.
static COUNTS: [AtomicU32; EPOLLS] = [const { AtomicU32::new(0) }; EPOLLS];

/// Takes an epoll record for this process.
#[must_use]
pub fn new_epoll() -> Option<Record> {
    let region = region()?;
    let take = |cell: &EpollRecord| {
        cell.used
            .compare_exchange(
                used::FREE,
                used::CHANGING,
                Ordering::AcqRel,
                Ordering::Relaxed,
            )
            .is_ok()
    };
    let mut found = region.epolls.iter().position(take);
    if found.is_none() {
        for (index, cell) in (0..).zip(&region.epolls) {
            cell.holders.sweep();
            free_unheld_epoll(region, index, cell);
        }
        found = region.epolls.iter().position(take);
    }
    let index = found?;
    let cell = region.epolls.get(index)?;
    cell.kernel_items.store(0, Ordering::Relaxed);
    cell.nestings.store(0, Ordering::Relaxed);
    cell.holders.add(thread::process());
    COUNTS.get(index)?.store(1, Ordering::Relaxed);
    let generation = cell.generation.load(Ordering::Acquire);
    cell.used.store(used::TAKEN, Ordering::Release);
    Some(Record {
        index: u32::try_from(index).ok()?,
        generation,
    })
}

/// Frees the record when nobody holds it. Of two that find it so, one does.
fn free_unheld_epoll(region: &Region, index: u32, cell: &EpollRecord) {
    if !cell.holders.is_empty()
        || cell
            .used
            .compare_exchange(
                used::TAKEN,
                used::CHANGING,
                Ordering::AcqRel,
                Ordering::Relaxed,
            )
            .is_err()
    {
        return;
    }
    if !cell.holders.is_empty() {
        // Freed and taken again between our two looks.
        cell.used.store(used::TAKEN, Ordering::Release);
        return;
    }
    for socket in region.used_sockets() {
        socket.forget_epoll(index);
    }
    cell.holders.clear();
    cell.generation.fetch_add(1, Ordering::AcqRel);
    cell.used.store(used::FREE, Ordering::Release);
}

fn epoll(record: Record) -> Option<&'static EpollRecord> {
    let found = region()?.epolls.get(record.index as usize)?;
    (found.generation.load(Ordering::Acquire) == record.generation).then_some(found)
}

/// Another descriptor of this process stands for the epoll.
pub fn retain_epoll(record: Record) {
    if let Some(count) = COUNTS.get(record.index as usize) {
        count.fetch_add(1, Ordering::Relaxed);
    }
}

/// What is left of an epoll after a descriptor was closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Left {
    /// This process still has a descriptor of it.
    Here,
    /// Only other processes do.
    Elsewhere,
    /// Nobody does. The record is still taken, until [`end_epoll`].
    Nowhere,
}

/// A descriptor of this process does not stand for the epoll any more. `leave` runs with the last one, while the index is
/// still this process's.
#[must_use]
pub fn release_epoll(record: Record, leave: impl FnOnce()) -> Left {
    let last = COUNTS
        .get(record.index as usize)
        .is_some_and(|count| count.fetch_sub(1, Ordering::AcqRel) == 1);
    if !last {
        return Left::Here;
    }
    leave();
    match epoll(record) {
        Some(cell) if cell.holders.remove(thread::process()) => Left::Nowhere,
        _ => Left::Elsewhere,
    }
}

/// Frees the record of an epoll that nobody holds.
pub fn end_epoll(record: Record) {
    if let (Some(cell), Some(region)) = (epoll(record), region()) {
        free_unheld_epoll(region, record.index, cell);
    }
}

/// Counts kernel descriptors in the epoll, up or down, and returns their number.
pub fn count_kernel_items(record: Record, change: i32) -> u32 {
    let Some(cell) = epoll(record) else { return 0 };
    let step = |now: u32| Some(now.saturating_add_signed(change));
    let before = cell
        .kernel_items
        .fetch_update(Ordering::AcqRel, Ordering::Acquire, step)
        .unwrap_or(0);
    before.saturating_add_signed(change)
}

/// The epoll was added to another one, or deleted from it. Says whether somebody may look at it from outside now.
pub fn count_nestings(record: Record, change: i32) -> bool {
    let Some(cell) = epoll(record) else {
        return false;
    };
    // One that lay in an epoll which was closed stays counted; it is only told more than needed.
    let step = |now: u32| match now & !POLLED {
        0 if change < 0 => None,
        _ => Some(now.saturating_add_signed(change)),
    };
    let before = cell
        .nestings
        .fetch_update(Ordering::AcqRel, Ordering::Acquire, step);
    before.map_or_else(|now| now, |now| now.saturating_add_signed(change)) != 0
}

/// The epoll is asked about by poll or select.
pub fn note_polled(record: Record) {
    if let Some(cell) = epoll(record)
        && cell.nestings.load(Ordering::Relaxed) & POLLED == 0
    {
        cell.nestings.fetch_or(POLLED, Ordering::AcqRel);
    }
}

/// Whether somebody may look at the epoll from outside.
#[must_use]
pub fn is_nested(record: Record) -> bool {
    epoll(record).is_some_and(|cell| cell.nestings.load(Ordering::Acquire) != 0)
}

/// Before a fork: the child is going to have descriptors that stand for the record.
pub fn hold_epoll_for_child(record: Record) {
    if let Some(cell) = epoll(record) {
        cell.holders.hold_for_child(thread::process());
    }
}

/// As [`super::hold_socket_for_heir`], for an epoll.
pub fn hold_epoll_for_heir(record: Record, heir: u32) {
    if let Some(cell) = epoll(record) {
        cell.holders.hold_for_heir(heir);
    }
}

/// As [`super::adopt_socket`], for an epoll.
#[must_use]
pub fn adopt_epoll(record: Record, parent: u32) -> bool {
    let (Some(cell), Some(count)) = (epoll(record), COUNTS.get(record.index as usize)) else {
        return false;
    };
    holders::adopt(count, &cell.holders, parent, || epoll(record).is_some())
}

/// Whether a descriptor of this process stands for epoll `index`.
#[must_use]
pub fn has_epoll(index: u32) -> bool {
    COUNTS
        .get(index as usize)
        .is_some_and(|count| count.load(Ordering::Relaxed) > 0)
}

/// As [`super::socket::copy_socket`], for an epoll.
pub fn copy_epoll(old: &Region, record: Record) -> Option<Record> {
    let from = old.epolls.get(record.index as usize)?;
    let new = new_epoll()?;
    let to = epoll(new)?;
    for (to, from) in [
        (&to.kernel_items, &from.kernel_items),
        (&to.nestings, &from.nestings),
    ] {
        to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
    }
    Some(new)
}

/// Leaves all records of a region.
pub(super) fn leave(region: &Region) {
    for cell in &region.epolls {
        cell.holders.remove_all(thread::process());
    }
}

/// As [`super::socket::leave_rest`], for epolls.
pub(super) fn leave_rest(region: &Region, heir: u32) {
    for ((index, cell), count) in (0..).zip(&region.epolls).zip(&COUNTS) {
        if count.load(Ordering::Relaxed) == 0 {
            cell.holders.remove_all(heir);
            cell.holders.remove_all(thread::process());
            free_unheld_epoll(region, index, cell);
        }
    }
}

/// See [`super::change_holder`].
pub(super) fn change_holder(region: &Region, from: u32, to: u32) {
    for (index, cell) in (0..).zip(&region.epolls) {
        if cell.holders.change(from, to) {
            free_unheld_epoll(region, index, cell);
        }
    }
}

/// In a forked child: no descriptor is counted yet.
pub(super) fn forget_counts() {
    super::clear(&COUNTS);
}

#[cfg(test)]
mod tests {
    use super::super::ensure;
    use super::*;

    #[test]
    fn an_epoll_ends_with_its_last_descriptor() {
        assert!(ensure());
        let record = new_epoll().unwrap();
        retain_epoll(record);
        assert_eq!(count_kernel_items(record, 2), 2);
        assert_eq!(count_kernel_items(record, -3), 0);
        assert_eq!(release_epoll(record, || ()), Left::Here);
        assert_eq!(release_epoll(record, || ()), Left::Nowhere);
        end_epoll(record);
        assert_eq!(epoll(record).map(|_| ()), None);
    }
}
