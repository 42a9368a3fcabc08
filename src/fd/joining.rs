//! A process joins the family of a socket that came in a message: what its own numbers stand for gets records of that family's
//! registry. It is attached to no host yet, so nothing of it is accelerated.

use super::registry::{self, Region};
use super::table::{self, Entry};
use super::{Target, target};
use crate::errno::{Errno, Result};
use crate::ffi::{descriptor, process};
use crate::iomux::scratch::Scratch;

/// This process agrees in `memory`, an internal descriptor, from now on. Not while other threads may be using what it has.
///
/// # Errors
/// EBUSY when there are other threads and something to move, ENOMEM, EPROTO when the memory is none of a registry.
pub(super) fn move_to_registry(memory: i32) -> Result<()> {
    if registry::is_present(memory)? {
        // It was executed by a member.
        descriptor::close(memory);
        return Ok(());
    }
    let mut count = 0;
    table::for_each(0, table::end(), |fd, _| {
        // What is decided is the kernel's, and leaves the table here.
        count += usize::from(!matches!(target(fd), Target::Kernel));
    });
    if count > 0 && !process::is_alone() {
        return Err(Errno::BUSY);
    }
    let mut moved = Scratch::filled(count, (-1, Entry::Kernel, Entry::Kernel))?;
    let moved = moved.as_mut_slice();
    let mut places = moved.iter_mut();
    table::for_each(0, table::end(), |fd, entry| {
        if let Some(place) = places.next() {
            *place = (fd, entry, Entry::Kernel);
        }
    });
    let old = registry::change_to(memory)?;
    for (fd, ..) in moved.iter() {
        // Nothing is released: the counts are made anew.
        table::exchange(*fd, Entry::Kernel);
    }
    registry::forget_counts();
    if let Some(old) = old {
        // Sockets name the epolls that they are in.
        move_all(old, moved, |entry| matches!(entry, Entry::Epoll(_)));
        move_all(old, moved, |entry| matches!(entry, Entry::Undecided(_)));
        registry::leave(old);
    }
    for (fd, _, new) in moved.iter() {
        super::release(table::exchange(*fd, *new));
    }
    Ok(())
}

/// Number, its entry before and behind.
type Moved = (i32, Entry, Entry);

fn move_all(old: &Region, moved: &mut [Moved], is_one: impl Fn(Entry) -> bool) {
    for at in 0..moved.len() {
        let (before, rest) = moved.split_at_mut(at);
        let Some((_, entry, new)) = rest.first_mut() else {
            return;
        };
        if !is_one(*entry) {
            continue;
        }
        let twin = before.iter().find(|(_, other, _)| other == entry);
        if let Some((.., known)) = twin {
            // Entries of this process's own records are always retained.
            let _ = super::retain(*known);
            *new = *known;
            continue;
        }
        let epoll = |index: u32| {
            let behind = |(_, old, new): &Moved| match (old, new) {
                (Entry::Epoll(old), Entry::Epoll(new)) if old.index == index => Some(new.index),
                _ => None,
            };
            before.iter().find_map(behind)
        };
        let record = match *entry {
            Entry::Epoll(record) => registry::copy_epoll(old, record).map(Entry::Epoll),
            Entry::Undecided(record) => {
                registry::copy_socket(old, record, epoll).map(Entry::Undecided)
            }
            Entry::Kernel | Entry::Socket(_) => None,
        };
        *new = record.unwrap_or(Entry::Kernel);
    }
}
