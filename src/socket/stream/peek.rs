//! Where MSG_PEEK begins: SO_PEEK_OFF, after sk_peek_offset and its kin of Linux.

use super::RecvFlags;
use crate::channel::cell::ObjectCell;
use crate::channel::sync::Ordering;

/// Bytes behind the first unread one at which a receive begins: 0 unless it peeks and SO_PEEK_OFF is on.
pub(super) fn offset(cell: &ObjectCell, flags: RecvFlags) -> u64 {
    if !flags.peek {
        return 0;
    }
    u64::from(
        cell.read
            .peek_offset
            .load(Ordering::Relaxed)
            .saturating_sub(1),
    )
}

/// A receive has got `count` bytes: what is peeked moves the offset on, what is taken moves it back.
pub(super) fn note(cell: &ObjectCell, flags: RecvFlags, count: usize) {
    if cell.read.peek_offset.load(Ordering::Relaxed) != 0 {
        follow(cell, flags, count);
    }
}

#[cold]
fn follow(cell: &ObjectCell, flags: RecvFlags, count: usize) {
    let count = u32::try_from(count).unwrap_or(u32::MAX);
    let _ = cell
        .read
        .peek_offset
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |word| {
            let offset = word.checked_sub(1)?;
            let offset = if flags.peek {
                offset.saturating_add(count).min(OFFSET_MAX)
            } else {
                offset.saturating_sub(count)
            };
            Some(offset + 1)
        });
}

/// It is an int.
const OFFSET_MAX: u32 = i32::MAX.unsigned_abs();
