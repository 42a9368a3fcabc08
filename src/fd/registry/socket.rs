//! Undecided sockets: who holds one, in which kernel epolls it is, and who routes it.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::holders::{self, Holders};
use super::{Region, region};
use crate::fd::table::{Entry, Handle, Record};
use crate::fd::touched::Touched;
use crate::ffi::process;
use crate::thread;

/// Undecided sockets of a family at the same time; more are the kernel's.
pub const SOCKETS: usize = 4_096;
/// Epolls that can hold an undecided socket.
pub const INTERESTS: usize = 8;

/// A registration of an undecided socket's twin in a kernel epoll.
#[repr(C)]
#[derive(Debug, Default)]
struct Interest {
    /// Epoll record index + 1; 0 = free; [`CLAIMED`] = being filled in.
    epoll: AtomicU32,
    fd: AtomicU32,
    events: AtomicU32,
    _pad: AtomicU32,
    data: AtomicU64,
}

const CLAIMED: u32 = u32::MAX;

/// A registration as the program made it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Registration {
    /// Epoll record.
    pub epoll: u32,
    /// The number it was added under.
    pub fd: i32,
    /// Events and flags.
    pub events: u32,
    /// The program's data.
    pub data: u64,
}

/// Values of a socket record's state word, besides a packed [`Entry::Socket`].
mod state {
    pub(super) const FREE: u64 = 0;
    pub(super) const UNDECIDED: u64 = 1 << 60;
    pub(super) const KERNEL: u64 = 2 << 60;
    /// Plus the thread that is routing it.
    pub(super) const ROUTING: u64 = 3 << 60;
    pub(super) const KIND: u64 = 7 << 60;
    /// A packed entry is kept beside; this says so.
    pub(super) const ROUTED: u64 = 4 << 60;
}

#[repr(C)]
#[derive(Debug, Default)]
pub(super) struct SocketRecord {
    state: AtomicU64,
    /// The packed entry once it is routed.
    routed: AtomicU64,
    family: AtomicU64,
    generation: AtomicU32,
    /// [`Touched`].
    touched: AtomicU32,
    holders: Holders,
    interests: [Interest; INTERESTS],
}

/// Descriptors of this process that stand for each record. Copied by fork with the table.
static COUNTS: [AtomicU32; SOCKETS] = [const { AtomicU32::new(0) }; SOCKETS];

impl SocketRecord {
    /// The registrations in epoll `index` die with it.
    pub(super) fn forget_epoll(&self, index: u32) {
        if self.state.load(Ordering::Relaxed) == state::FREE {
            return;
        }
        for interest in &self.interests {
            let _ =
                interest
                    .epoll
                    .compare_exchange(index + 1, 0, Ordering::AcqRel, Ordering::Relaxed);
        }
    }
}

/// Where a socket record stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Decision {
    /// The kernel answers, until it is routed.
    Undecided,
    /// Another thread is routing it.
    Routing {
        /// That thread.
        thread: u32,
    },
    /// The kernel's for good.
    Kernel,
    /// The stack's.
    Routed {
        /// The object.
        handle: Handle,
        /// The family whose memory it lies in ([`crate::attach::Link::family`]).
        family: u64,
    },
    /// The record was given to another socket: nothing is known.
    Stale,
}

fn socket(record: Record) -> Option<&'static SocketRecord> {
    let found = region()?.sockets.get(record.index as usize)?;
    (found.generation.load(Ordering::Acquire) == record.generation).then_some(found)
}

/// Takes a socket record for this process.
#[must_use]
pub fn new_socket() -> Option<Record> {
    let region = region()?;
    // As a routing of this thread: nobody sweeps it before it has a holder, unless this thread is gone.
    let mine = state::ROUTING | u64::from(thread::id());
    let take = |cell: &SocketRecord| {
        cell.state
            .compare_exchange(state::FREE, mine, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    };
    // A hint would help little: undecided sockets are few and short-lived.
    let mut found = region.sockets.iter().position(take);
    if found.is_none() {
        for cell in &region.sockets {
            cell.holders.sweep();
            free_unheld(cell);
        }
        found = region.sockets.iter().position(take);
    }
    let index = found?;
    let cell = region.sockets.get(index)?;
    let end = u32::try_from(index).ok()?.checked_add(1)?;
    region.sockets_end.fetch_max(end, Ordering::AcqRel);
    cell.holders.add(thread::process());
    COUNTS.get(index)?.store(1, Ordering::Relaxed);
    let generation = cell.generation.load(Ordering::Acquire);
    cell.touched.store(Touched::ALL.0, Ordering::Relaxed);
    cell.state.store(state::UNDECIDED, Ordering::Release);
    Some(Record {
        index: u32::try_from(index).ok()?,
        generation,
    })
}

/// Frees the record when nobody holds it. Of two that find it so, one does.
fn free_unheld(cell: &SocketRecord) {
    let word = cell.state.load(Ordering::Acquire);
    let owner = u32::try_from(word & u64::from(u32::MAX)).unwrap_or(0);
    let is_busy = word & state::KIND == state::ROUTING && process::process_lives(owner);
    if word == state::FREE || is_busy || !cell.holders.is_empty() {
        return;
    }
    let mine = state::ROUTING | u64::from(thread::id());
    if cell
        .state
        .compare_exchange(word, mine, Ordering::AcqRel, Ordering::Relaxed)
        .is_err()
    {
        return;
    }
    if !cell.holders.is_empty() {
        // Freed and taken again between our two looks.
        cell.state.store(word, Ordering::Release);
        return;
    }
    for interest in &cell.interests {
        interest.epoll.store(0, Ordering::Relaxed);
    }
    cell.holders.clear();
    cell.generation.fetch_add(1, Ordering::AcqRel);
    cell.state.store(state::FREE, Ordering::Release);
}

/// Another descriptor of this process stands for the record.
pub fn retain_socket(record: Record) {
    if let Some(count) = COUNTS.get(record.index as usize) {
        count.fetch_add(1, Ordering::Relaxed);
    }
}

/// A descriptor of this process does not stand for the record any more.
pub fn release_socket(record: Record) {
    let last = COUNTS
        .get(record.index as usize)
        .is_some_and(|count| count.fetch_sub(1, Ordering::AcqRel) == 1);
    if last
        && let Some(cell) = socket(record)
        && cell.holders.remove(thread::process())
    {
        free_unheld(cell);
    }
}

/// Where the record stands.
#[must_use]
pub fn decision(record: Record) -> Decision {
    let Some(cell) = socket(record) else {
        return Decision::Stale;
    };
    let word = cell.state.load(Ordering::Acquire);
    match word & state::KIND {
        state::UNDECIDED => Decision::Undecided,
        state::KERNEL => Decision::Kernel,
        state::ROUTING => Decision::Routing {
            thread: u32::try_from(word & u64::from(u32::MAX)).unwrap_or(0),
        },
        state::ROUTED => match Entry::unpack(cell.routed.load(Ordering::Acquire)) {
            Entry::Socket(handle) => Decision::Routed {
                handle,
                family: cell.family.load(Ordering::Acquire),
            },
            _ => Decision::Stale,
        },
        _ => Decision::Stale,
    }
}

/// The record's socket is one of this moment, of which only `touched` differs from every other one.
pub fn is_fresh(record: Record, touched: Touched) {
    if let Some(cell) = socket(record) {
        cell.touched.store(touched.0, Ordering::Relaxed);
    }
}

/// The program is about to change something about the record's socket.
pub fn touch(record: Record, what: Touched) {
    if let Some(cell) = socket(record) {
        cell.touched.fetch_or(what.0, Ordering::AcqRel);
    }
}

/// TCP_NODELAY of the record's socket was set to this.
pub fn note_nodelay(record: Record, on: bool) {
    if let Some(cell) = socket(record) {
        if on {
            cell.touched
                .fetch_or(Touched::NODELAY_ON.0, Ordering::AcqRel);
        } else {
            cell.touched
                .fetch_and(!Touched::NODELAY_ON.0, Ordering::AcqRel);
        }
    }
}

/// What may have been changed about the record's socket.
#[must_use]
pub fn touched(record: Record) -> Touched {
    socket(record).map_or(Touched::ALL, |cell| {
        Touched(cell.touched.load(Ordering::Acquire))
    })
}

/// Whether one descriptor of this process stands for the record, and no other.
#[must_use]
pub fn is_single(record: Record) -> bool {
    COUNTS
        .get(record.index as usize)
        .is_some_and(|count| count.load(Ordering::Acquire) == 1)
}

/// Takes the right to route the record; false when somebody else has it or it is decided.
pub fn begin_routing(record: Record) -> bool {
    let word = state::ROUTING | u64::from(thread::id());
    socket(record).is_some_and(|cell| {
        cell.state
            .compare_exchange(state::UNDECIDED, word, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    })
}

/// Takes the right to route from `dead`, a thread that is gone.
pub fn take_over_routing(record: Record, dead: u32) {
    if let Some(cell) = socket(record) {
        // Whoever is quicker makes it undecided again, which is all.
        let _ = cell.state.compare_exchange(
            state::ROUTING | u64::from(dead),
            state::UNDECIDED,
            Ordering::AcqRel,
            Ordering::Relaxed,
        );
    }
}

/// Ends the routing begun by this thread: the kernel's, the stack's, or undecided still.
pub fn end_routing(record: Record, decision: Decision) {
    let Some(cell) = socket(record) else { return };
    let word = match decision {
        Decision::Routed { handle, family } => {
            cell.family.store(family, Ordering::Release);
            cell.routed
                .store(Entry::Socket(handle).pack(), Ordering::Release);
            state::ROUTED
        }
        Decision::Kernel => state::KERNEL,
        _ => state::UNDECIDED,
    };
    cell.state.store(word, Ordering::Release);
    // Its last descriptor may have been closed meanwhile.
    free_unheld(cell);
}

/// Remembers that the record's twin was added to a kernel epoll (or changed there). False when there is no room: it
/// must then stay with the kernel.
pub fn register(record: Record, wanted: Registration) -> bool {
    let Some(cell) = socket(record) else {
        return false;
    };
    let fd = wanted.fd.unsigned_abs();
    let mine = |interest: &&Interest| {
        interest.epoll.load(Ordering::Acquire) == wanted.epoll + 1
            && interest.fd.load(Ordering::Relaxed) == fd
    };
    let place = cell.interests.iter().find(mine).or_else(|| {
        cell.interests.iter().find(|interest| {
            interest
                .epoll
                .compare_exchange(0, CLAIMED, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
        })
    });
    let Some(place) = place else { return false };
    place.fd.store(fd, Ordering::Relaxed);
    place.events.store(wanted.events, Ordering::Relaxed);
    place.data.store(wanted.data, Ordering::Relaxed);
    place.epoll.store(wanted.epoll + 1, Ordering::Release);
    true
}

/// Forgets a registration.
pub fn unregister(record: Record, epoll: u32, fd: i32) {
    let Some(cell) = socket(record) else { return };
    for interest in &cell.interests {
        if interest.epoll.load(Ordering::Acquire) == epoll + 1
            && interest.fd.load(Ordering::Relaxed) == fd.unsigned_abs()
        {
            interest.epoll.store(0, Ordering::Release);
        }
    }
}

/// Takes the registrations out, one by one.
pub fn take_registrations(record: Record, mut visit: impl FnMut(Registration)) {
    let Some(cell) = socket(record) else { return };
    for interest in &cell.interests {
        let epoll = interest.epoll.load(Ordering::Acquire);
        if epoll == 0 || epoll == CLAIMED {
            continue;
        }
        let found = Registration {
            epoll: epoll - 1,
            fd: i32::try_from(interest.fd.load(Ordering::Relaxed)).unwrap_or(-1),
            events: interest.events.load(Ordering::Relaxed),
            data: interest.data.load(Ordering::Relaxed),
        };
        interest.epoll.store(0, Ordering::Release);
        visit(found);
    }
}

/// Before a fork: the child is going to have descriptors that stand for the record.
pub fn hold_socket_for_child(record: Record) {
    if let Some(cell) = socket(record) {
        cell.holders.hold_for_child(thread::process());
    }
}

/// Before a program is executed by another process: it may have descriptors that stand for the record.
pub fn hold_socket_for_heir(record: Record, heir: u32) {
    if let Some(cell) = socket(record) {
        cell.holders.hold_for_heir(heir);
    }
}

/// In a child that is listed as `parent`: a descriptor of it stands for the record. False when the parent closed its own meanwhile, and the
/// record is another's.
#[must_use]
pub fn adopt_socket(record: Record, parent: u32) -> bool {
    let (Some(cell), Some(count)) = (socket(record), COUNTS.get(record.index as usize)) else {
        return false;
    };
    holders::adopt(count, &cell.holders, parent, || socket(record).is_some())
}

/// An undecided socket of `old`, which this process has left, gets a record of the present region. `epoll` says what became of the
/// epolls that it is in. None when there is no room.
pub fn copy_socket(
    old: &Region,
    record: Record,
    epoll: impl Fn(u32) -> Option<u32>,
) -> Option<Record> {
    let from = old.sockets.get(record.index as usize)?;
    let new = new_socket()?;
    for interest in &from.interests {
        let index = interest.epoll.load(Ordering::Relaxed);
        if index == 0 || index == CLAIMED {
            continue;
        }
        if let Some(epoll) = epoll(index - 1) {
            // As many places as it had.
            register(
                new,
                Registration {
                    epoll,
                    fd: i32::try_from(interest.fd.load(Ordering::Relaxed)).unwrap_or(-1),
                    events: interest.events.load(Ordering::Relaxed),
                    data: interest.data.load(Ordering::Relaxed),
                },
            );
        }
    }
    Some(new)
}

/// Leaves all records of a region.
pub(super) fn leave(region: &Region) {
    for cell in region.used_sockets() {
        cell.holders.remove_all(thread::process());
    }
}

/// Leaves the records that this process, listed as itself or as `heir`, has no descriptor of: a program before it did.
pub(super) fn leave_rest(region: &Region, heir: u32) {
    for (cell, count) in region.used_sockets().zip(&COUNTS) {
        if count.load(Ordering::Relaxed) == 0 {
            // In this order: the other process puts the one in the place of the other.
            cell.holders.remove_all(heir);
            cell.holders.remove_all(thread::process());
            free_unheld(cell);
        }
    }
}

/// See [`super::change_holder`].
pub(super) fn change_holder(region: &Region, from: u32, to: u32) {
    for cell in region.used_sockets() {
        if cell.holders.change(from, to) {
            free_unheld(cell);
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
    use crate::attach::Object;

    #[test]
    fn a_socket_is_routed_once_and_its_dups_see_it() {
        assert!(ensure());
        let record = new_socket().unwrap();
        retain_socket(record);
        assert_eq!(decision(record), Decision::Undecided);
        assert!(begin_routing(record));
        assert!(!begin_routing(record));
        assert_eq!(
            decision(record),
            Decision::Routing {
                thread: thread::id()
            }
        );
        let handle = Handle {
            link: 1,
            object: Object {
                index: 5,
                generation: 6,
            },
            merged: false,
            accepted: false,
        };
        let routed = Decision::Routed { handle, family: 3 };
        end_routing(record, routed);
        assert_eq!(decision(record), routed);
        release_socket(record);
        assert_eq!(decision(record), routed);
        release_socket(record);
        assert_eq!(decision(record), Decision::Stale);
    }

    #[test]
    fn registrations_are_kept_by_epoll_and_number() {
        assert!(ensure());
        let record = new_socket().unwrap();
        let first = Registration {
            epoll: 3,
            fd: 9,
            events: 1,
            data: u64::MAX,
        };
        let other = Registration { fd: 10, ..first };
        assert!(register(record, first));
        assert!(register(record, other));
        assert!(register(
            record,
            Registration {
                events: 4,
                data: 0,
                ..first
            }
        ));
        unregister(record, 3, 10);
        let mut seen = Vec::new();
        take_registrations(record, |found| seen.push(found));
        assert_eq!(
            seen,
            [Registration {
                events: 4,
                data: 0,
                ..first
            }]
        );
        for fd in 0..INTERESTS {
            assert!(register(
                record,
                Registration {
                    fd: i32::try_from(fd).unwrap(),
                    ..first
                }
            ));
        }
        assert!(!register(record, Registration { fd: 99, ..first }));
        release_socket(record);
    }

    #[test]
    fn a_record_that_is_being_taken_is_not_swept() {
        let cell = SocketRecord::default();
        let generation = || cell.generation.load(Ordering::Relaxed);
        // Its taker lives and has not come to say that it holds it.
        let taker = state::ROUTING | u64::from(thread::process());
        cell.state.store(taker, Ordering::Relaxed);
        free_unheld(&cell);
        assert_eq!(
            (cell.state.load(Ordering::Relaxed), generation()),
            (taker, 0)
        );
        cell.holders.add(thread::process());
        cell.state.store(state::UNDECIDED, Ordering::Relaxed);
        free_unheld(&cell);
        assert_eq!(cell.state.load(Ordering::Relaxed), state::UNDECIDED);
        cell.holders.remove(thread::process());
        free_unheld(&cell);
        // A second one that found it empty comes too late.
        free_unheld(&cell);
        assert_eq!(
            (cell.state.load(Ordering::Relaxed), generation()),
            (state::FREE, 1)
        );
        cell.state
            .store(state::ROUTING | 0x7fff_fff0, Ordering::Relaxed);
        free_unheld(&cell);
        assert_eq!(generation(), 2, "a taker that is gone takes nothing");
    }

    #[test]
    fn a_routing_that_nobody_waits_for_any_more_frees_its_record() {
        assert!(ensure());
        let record = new_socket().unwrap();
        assert!(begin_routing(record));
        release_socket(record);
        assert_ne!(decision(record), Decision::Stale, "it is still routed");
        end_routing(record, Decision::Kernel);
        assert_eq!(decision(record), Decision::Stale);
    }
}
