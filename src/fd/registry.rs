//! What a family of processes must agree on before it is attached: undecided sockets and epolls.
//!
//! One anonymous shared mapping, made at the first TCP socket or epoll and inherited by every child (design D10). A record
//! lists the processes that hold it; one that dies without a word is found when the records run out.
//!
//! # Safety
//! The mapping holds one zeroed `Region`, which consists of atomics only, and is never unmapped.

#![allow(unsafe_code)]

use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use super::table::{Entry, Handle, Record};
use crate::ffi::process;
use crate::thread;

/// Undecided sockets of a family at the same time; more are the kernel's.
pub const SOCKETS: usize = 4_096;
/// Epolls of a family; more cannot watch accelerated sockets. The channel has as many.
pub const EPOLLS: usize = crate::channel::layout::EPOLLS as usize;
/// Processes that a record can list; with more it is never freed.
const HOLDERS: usize = 6;
/// Epolls that can hold an undecided socket.
pub const INTERESTS: usize = 8;

/// The processes that hold a record.
#[repr(C)]
#[derive(Debug, Default)]
struct Holders {
    pids: [AtomicU32; HOLDERS],
    /// Non-zero: some holder found no place, so the record stays.
    crowded: AtomicU32,
}

impl Holders {
    fn add(&self, pid: u32) {
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

    /// Removes one process; says whether nobody is left.
    fn remove(&self, pid: u32) -> bool {
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

    fn is_empty(&self) -> bool {
        self.crowded.load(Ordering::Acquire) == 0
            && self
                .pids
                .iter()
                .all(|place| place.load(Ordering::Acquire) == 0)
    }

    /// Removes processes that are gone; says whether nobody is left.
    fn sweep(&self) -> bool {
        for place in &self.pids {
            let pid = place.load(Ordering::Acquire);
            if pid != 0 && !process::process_lives(pid) {
                // Another sweeper may have been quicker.
                let _ = place.compare_exchange(pid, 0, Ordering::AcqRel, Ordering::Relaxed);
            }
        }
        self.is_empty()
    }

    fn clear(&self) {
        for place in &self.pids {
            place.store(0, Ordering::Release);
        }
        self.crowded.store(0, Ordering::Release);
    }
}

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
struct SocketRecord {
    state: AtomicU64,
    /// The packed entry once it is routed.
    routed: AtomicU64,
    family: AtomicU64,
    generation: AtomicU32,
    _pad: AtomicU32,
    holders: Holders,
    interests: [Interest; INTERESTS],
}

/// Values of [`EpollRecord::used`].
mod used {
    pub(super) const FREE: u32 = 0;
    /// Somebody is taking or freeing it; a sweep leaves it alone.
    pub(super) const CHANGING: u32 = 1;
    pub(super) const TAKEN: u32 = 2;
}

#[repr(C)]
#[derive(Debug, Default)]
struct EpollRecord {
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

#[repr(C)]
#[derive(Debug)]
struct Region {
    /// 1 + the highest socket record ever used, so that pages behind it stay untouched.
    sockets_end: AtomicU32,
    sockets: [SocketRecord; SOCKETS],
    epolls: [EpollRecord; EPOLLS],
}

static REGION: AtomicPtr<Region> = AtomicPtr::new(ptr::null_mut());

/// Descriptors of this process that stand for each record. Copied by fork with the table.
static SOCKET_COUNTS: [AtomicU32; SOCKETS] = [const { AtomicU32::new(0) }; SOCKETS];
static EPOLL_COUNTS: [AtomicU32; EPOLLS] = [const { AtomicU32::new(0) }; EPOLLS];

/// Makes the region. False when there is no memory: nothing is accelerated then.
pub fn ensure() -> bool {
    if !REGION.load(Ordering::Acquire).is_null() {
        return true;
    }
    let bytes = size_of::<Region>();
    let protection = rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE;
    let flags = rustix::mm::MapFlags::SHARED | rustix::mm::MapFlags::NORESERVE;
    // SAFETY: a new mapping at an address of the kernel's choice aliases nothing.
    let Ok(map) =
        (unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), bytes, protection, flags) })
    else {
        return false;
    };
    if REGION
        .compare_exchange(
            ptr::null_mut(),
            map.cast(),
            Ordering::AcqRel,
            Ordering::Acquire,
        )
        .is_err()
    {
        // SAFETY: nobody has seen this mapping.
        let _ = unsafe { rustix::mm::munmap(map, bytes) };
    }
    true
}

fn region() -> Option<&'static Region> {
    let place = REGION.load(Ordering::Acquire);
    // SAFETY: null or the mapping of `ensure`, which is page aligned, zeroed, large enough and never unmapped.
    unsafe { place.as_ref() }
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
    SOCKET_COUNTS.get(index)?.store(1, Ordering::Relaxed);
    let generation = cell.generation.load(Ordering::Acquire);
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
    if let Some(count) = SOCKET_COUNTS.get(record.index as usize) {
        count.fetch_add(1, Ordering::Relaxed);
    }
}

/// A descriptor of this process does not stand for the record any more.
pub fn release_socket(record: Record) {
    let last = SOCKET_COUNTS
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
    EPOLL_COUNTS.get(index)?.store(1, Ordering::Relaxed);
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
    let end = region.sockets_end.load(Ordering::Acquire) as usize;
    for socket in region.sockets.iter().take(end) {
        if socket.state.load(Ordering::Relaxed) == state::FREE {
            continue;
        }
        for interest in &socket.interests {
            // A registration dies with its epoll.
            let _ =
                interest
                    .epoll
                    .compare_exchange(index + 1, 0, Ordering::AcqRel, Ordering::Relaxed);
        }
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
    if let Some(count) = EPOLL_COUNTS.get(record.index as usize) {
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
    let last = EPOLL_COUNTS
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

/// In a forked child, before [`adopt_socket`] and [`adopt_epoll`]: what other threads of the parent were doing to the counts
/// is never finished here, so they are made anew.
pub fn forget_counts() {
    for count in SOCKET_COUNTS.iter().chain(&EPOLL_COUNTS) {
        if count.load(Ordering::Relaxed) != 0 {
            count.store(0, Ordering::Relaxed);
        }
    }
}

/// In a forked child: a descriptor of it stands for the record. False when the parent closed its own meanwhile, and the
/// record is another's.
#[must_use]
pub fn adopt_socket(record: Record) -> bool {
    let (Some(cell), Some(count)) = (socket(record), SOCKET_COUNTS.get(record.index as usize))
    else {
        return false;
    };
    adopt(count, &cell.holders, || socket(record).is_some())
}

/// As [`adopt_socket`], for an epoll.
#[must_use]
pub fn adopt_epoll(record: Record) -> bool {
    let (Some(cell), Some(count)) = (epoll(record), EPOLL_COUNTS.get(record.index as usize)) else {
        return false;
    };
    adopt(count, &cell.holders, || epoll(record).is_some())
}

fn adopt(count: &AtomicU32, holders: &Holders, is_it_still: impl Fn() -> bool) -> bool {
    if count.load(Ordering::Relaxed) == 0 {
        holders.add(thread::process());
        if !is_it_still() {
            holders.remove(thread::process());
            return false;
        }
    }
    count.fetch_add(1, Ordering::Relaxed);
    true
}

/// Whether a descriptor of this process stands for epoll `index`.
#[must_use]
pub fn has_epoll(index: u32) -> bool {
    EPOLL_COUNTS
        .get(index as usize)
        .is_some_and(|count| count.load(Ordering::Relaxed) > 0)
}

#[cfg(test)]
mod tests {
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

    #[test]
    fn a_child_adopts_what_is_still_there() {
        let cell = SocketRecord::default();
        let count = AtomicU32::new(0);
        assert!(adopt(&count, &cell.holders, || true));
        assert!(adopt(&count, &cell.holders, || true));
        assert_eq!(count.load(Ordering::Relaxed), 2);
        assert!(cell.holders.remove(thread::process()), "held once");
        let count = AtomicU32::new(0);
        assert!(!adopt(&count, &cell.holders, || false));
        assert!(cell.holders.is_empty());
        assert_eq!(count.load(Ordering::Relaxed), 0);
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
