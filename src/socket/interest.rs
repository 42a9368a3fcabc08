//! Interest items: which epolls watch an object, under which descriptor, for what.
//!
//! An object's items lie in its cell, more in the family's spill table. They are changed under the object's
//! `items_owner`; a collector reads them without it and looks twice.

use crate::attach::{Link, Object};
use crate::channel::cell::{Item, ObjectCell, SpillItem, item};
use crate::channel::sync::Ordering;
use crate::errno::{Errno, Result};
use crate::readiness;
use crate::waiter::owner::{self, Held};

/// What an item watches and what it tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Interest {
    /// The descriptor it was added under.
    pub fd: i32,
    /// Event bits and flags.
    pub events: u32,
    /// The program's data.
    pub data: u64,
}

/// The word that names an epoll in its items.
///
/// # Errors
/// EBADF when there is no such epoll.
pub fn epoll_word(link: &Link, epoll: u32) -> Result<u32> {
    let cell = link.control.epoll(epoll).ok_or(Errno::BADF)?;
    Ok(item::word(epoll, cell))
}

/// A descriptor as it was stored.
fn signed(word: u32) -> i32 {
    i32::from_ne_bytes(word.to_ne_bytes())
}

/// Whether the epoll that `word` names was freed meanwhile.
fn is_stale(link: &Link, word: u32) -> bool {
    item::epoll(word).is_some_and(|epoll| epoll_word(link, epoll).is_ok_and(|now| now != word))
}

/// The object's items, in its cell and beyond.
fn items<'a>(
    link: &'a Link,
    object: Object,
    cell: &'a ObjectCell,
) -> impl Iterator<Item = &'a Item> {
    let spilled = if cell.read.spilled.load(Ordering::Acquire) == 0 {
        &[]
    } else {
        link.control.header().spill.as_slice()
    };
    cell.items.iter().chain(
        spilled
            .iter()
            .filter(move |spill| belongs(spill, object))
            .map(|spill| &spill.item),
    )
}

fn belongs(spill: &SpillItem, object: Object) -> bool {
    spill.object.load(Ordering::Acquire) == object.index
        && spill.generation.load(Ordering::Acquire) == object.generation
}

/// Reads an item of the epoll `word` names; None when it is another's. Looks twice, because a change may go on.
#[must_use]
pub fn read(item: &Item, word: u32) -> Option<Interest> {
    let once = || {
        (item.epoll.load(Ordering::Acquire) == word).then(|| Interest {
            fd: signed(item.fd.load(Ordering::Acquire)),
            events: item.events.load(Ordering::Acquire),
            data: item.data.load(Ordering::Acquire),
        })
    };
    let mut seen = once()?;
    loop {
        let again = once()?;
        if again == seen {
            return Some(again);
        }
        seen = again;
    }
}

/// Visits the object's items that belong to the epoll `word` names; says whether there was one.
pub fn for_each(
    link: &Link,
    object: Object,
    cell: &ObjectCell,
    word: u32,
    mut visit: impl FnMut(&Item, Interest),
) -> bool {
    let mut found = false;
    for item in items(link, object, cell) {
        if let Some(interest) = read(item, word) {
            found = true;
            visit(item, interest);
        }
    }
    found
}

/// Runs `change` as the only one that changes the object's items.
fn alone<T>(
    link: &Link,
    object: Object,
    change: impl FnOnce(&ObjectCell) -> Result<T>,
) -> Result<T> {
    let cell = object.cell(link).ok_or(Errno::BADF)?;
    let word = &cell.read.items_owner;
    let held = owner::take(link, word);
    if held == Held::FromDead {
        // What it had begun is nobody's now.
        for item in items(link, object, cell) {
            if item.epoll.load(Ordering::Acquire) == item::CLAIMED {
                item.epoll.store(item::FREE, Ordering::Release);
            }
        }
    }
    let result = change(cell);
    if held != Held::Nested {
        owner::release(word, || ());
    }
    result
}

fn find<'a>(
    link: &'a Link,
    object: Object,
    cell: &'a ObjectCell,
    word: u32,
    fd: i32,
) -> Option<&'a Item> {
    items(link, object, cell).find(|item| {
        item.epoll.load(Ordering::Acquire) == word && signed(item.fd.load(Ordering::Acquire)) == fd
    })
}

fn write(item: &Item, word: u32, edge: u32, interest: Interest) {
    item.epoll.store(item::CLAIMED, Ordering::Release);
    item.fd.store(
        u32::from_ne_bytes(interest.fd.to_ne_bytes()),
        Ordering::Release,
    );
    item.events.store(interest.events, Ordering::Release);
    // Another edge than the present one, so that what is ready now is news (ep_insert, ep_modify).
    item.seen_edge
        .store(edge.wrapping_sub(1), Ordering::Release);
    item.data.store(interest.data, Ordering::Release);
    item.epoll.store(word, Ordering::Release);
}

/// Adds the object under `interest.fd` to an epoll.
///
/// # Errors
/// EEXIST when it is there, ENOSPC when there is no room for more, EBADF.
pub fn add(link: &Link, object: Object, epoll: u32, interest: Interest) -> Result<()> {
    let word = epoll_word(link, epoll)?;
    alone(link, object, |cell| {
        if find(link, object, cell, word, interest.fd).is_some() {
            return Err(Errno::EXIST);
        }
        let item = claim(link, object, cell).ok_or(Errno::NOSPC)?;
        if interest.events & item::EXCLUSIVE != 0 {
            cell.read.exclusive.store(1, Ordering::SeqCst);
        }
        cell.watch.epolls.add(epoll);
        let edge = readiness::edge(cell, interest.events);
        write(item, word, edge, interest);
        Ok(())
    })
}

fn claim<'a>(link: &'a Link, object: Object, cell: &'a ObjectCell) -> Option<&'a Item> {
    let own = |item: &&Item| {
        let word = item.epoll.load(Ordering::Acquire);
        (word == item::FREE || is_stale(link, word))
            && item
                .epoll
                .compare_exchange(word, item::CLAIMED, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
    };
    if let Some(item) = cell.items.iter().find(own) {
        return Some(item);
    }
    let spilled = link.control.header().spill.iter().find(|spill| {
        let word = spill.item.epoll.load(Ordering::Acquire);
        let owner = spill.object.load(Ordering::Acquire);
        let freed = link.control.object(owner).is_none_or(|cell| {
            cell.host.generation.load(Ordering::Acquire) != spill.generation.load(Ordering::Acquire)
        });
        let usable =
            word == item::FREE || (word != item::CLAIMED && (freed || is_stale(link, word)));
        usable
            && spill
                .item
                .epoll
                .compare_exchange(word, item::CLAIMED, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
    })?;
    spilled.object.store(object.index, Ordering::Release);
    spilled
        .generation
        .store(object.generation, Ordering::Release);
    cell.read.spilled.store(1, Ordering::Release);
    Some(&spilled.item)
}

/// Changes an item; `interest.fd` says which.
///
/// # Errors
/// ENOENT when it is not there, what `check` says of its present events, EBADF.
pub fn modify(
    link: &Link,
    object: Object,
    epoll: u32,
    interest: Interest,
    check: impl FnOnce(u32) -> Result<()>,
) -> Result<()> {
    let word = epoll_word(link, epoll)?;
    alone(link, object, |cell| {
        let item = find(link, object, cell, word, interest.fd).ok_or(Errno::NOENT)?;
        check(item.events.load(Ordering::Acquire))?;
        let edge = readiness::edge(cell, interest.events);
        write(item, word, edge, interest);
        Ok(())
    })
}

/// Takes an item out.
///
/// # Errors
/// ENOENT when it is not there, EBADF.
pub fn remove(link: &Link, object: Object, epoll: u32, fd: i32) -> Result<()> {
    let word = epoll_word(link, epoll)?;
    alone(link, object, |cell| {
        let item = find(link, object, cell, word, fd).ok_or(Errno::NOENT)?;
        item.epoll.store(item::FREE, Ordering::Release);
        unwatch_unused(link, object, cell, epoll, word);
        Ok(())
    })
}

/// Ends the watch of an epoll that has no item here any more (it was freed, or a removal was cut short).
pub fn unwatch(link: &Link, object: Object, epoll: u32) {
    // A handle that is no more has nothing to unwatch.
    let _ = epoll_word(link, epoll).and_then(|word| {
        alone(link, object, |cell| {
            unwatch_unused(link, object, cell, epoll, word);
            Ok(())
        })
    });
}

fn unwatch_unused(link: &Link, object: Object, cell: &ObjectCell, epoll: u32, word: u32) {
    let used = items(link, object, cell).any(|item| item.epoll.load(Ordering::Acquire) == word);
    if !used {
        cell.watch.epolls.remove(epoll);
    }
}

/// Visits the object's items in epolls that are there: the epoll, and what it was told.
pub fn registrations(link: &Link, object: Object, mut visit: impl FnMut(u32, Interest)) {
    let Some(cell) = object.cell(link) else {
        return;
    };
    for item in items(link, object, cell) {
        let word = item.epoll.load(Ordering::Acquire);
        if let Some(epoll) = item::epoll(word)
            && !is_stale(link, word)
            && let Some(interest) = read(item, word)
        {
            visit(epoll, interest);
        }
    }
}

/// Takes the object out of every epoll: its last descriptor is gone (epoll(7), Q6).
pub fn forget_object(link: &Link, object: Object) {
    // A handle that is no more has no items.
    let _ = alone(link, object, |cell| {
        for item in items(link, object, cell) {
            item.epoll.store(item::FREE, Ordering::Release);
        }
        cell.watch.epolls.clear();
        Ok(())
    });
}
