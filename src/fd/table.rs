//! The table from descriptor number to what we know of it: one word a number, read with one load.
//!
//! # Safety
//! The table is one private anonymous mapping of [`NUMBERS`] zeroed words, made once and never unmapped; a fork copies
//! it. It is reached only through atomics.

#![allow(unsafe_code)]

use core::ptr;
use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU64, Ordering};

use crate::attach::Object;

/// Numbers that can have an entry (the kernel's default `fs.nr_open`); larger ones are the kernel's.
pub const NUMBERS: usize = 1 << 20;

/// What a descriptor number stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Entry {
    /// Nothing of ours.
    Kernel,
    /// A TCP socket that has not been routed: a record of [`super::registry`].
    Undecided(Record),
    /// An accelerated socket.
    Socket(Handle),
    /// An epoll: a record of [`super::registry`], whose index is the channel's epoll number.
    Epoll(Record),
}

/// A record of the registry, and the generation that tells reuse.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record {
    /// Index.
    pub index: u32,
    /// Low bits of the record's generation.
    pub generation: u32,
}

/// An accelerated socket as the table keeps it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Handle {
    /// Place of the link ([`crate::attach::link::placed`]).
    pub link: u32,
    /// The object.
    pub object: Object,
    /// The kernel twin listens too (a wildcard bind).
    pub merged: bool,
    /// The twin is a copy of the spare socket: nothing may be set on it.
    pub accepted: bool,
}

const TAG_UNDECIDED: u64 = 1;
const TAG_SOCKET: u64 = 2;
const TAG_EPOLL: u64 = 3;
const TAG_MASK: u64 = 7;
const MERGED: u64 = 1 << 3;
const ACCEPTED: u64 = 1 << 4;
const LINK_SHIFT: u32 = 5;
const LINK_MASK: u64 = (1 << 5) - 1;
const INDEX_SHIFT: u32 = 10;
const INDEX_MASK: u64 = (1 << 22) - 1;
const GENERATION_SHIFT: u32 = 32;

const _: () = assert!(crate::attach::link::LINKS as u64 - 1 == LINK_MASK);
const _: () = assert!((crate::channel::layout::OBJECTS_MAX as u64) <= INDEX_MASK);

fn part(word: u64, shift: u32, mask: u64) -> u32 {
    u32::try_from(word >> shift & mask).unwrap_or(u32::MAX)
}

impl Entry {
    /// The entry as one word; 0 is [`Entry::Kernel`].
    #[must_use]
    pub fn pack(self) -> u64 {
        let place = |index: u32, generation: u32| {
            (u64::from(index) & INDEX_MASK) << INDEX_SHIFT
                | u64::from(generation) << GENERATION_SHIFT
        };
        match self {
            Self::Kernel => 0,
            Self::Undecided(record) => TAG_UNDECIDED | place(record.index, record.generation),
            Self::Epoll(record) => TAG_EPOLL | place(record.index, record.generation),
            Self::Socket(handle) => {
                TAG_SOCKET
                    | if handle.merged { MERGED } else { 0 }
                    | if handle.accepted { ACCEPTED } else { 0 }
                    | (u64::from(handle.link) & LINK_MASK) << LINK_SHIFT
                    | place(handle.object.index, handle.object.generation)
            }
        }
    }

    /// Reads a word made by [`Entry::pack`].
    #[must_use]
    pub fn unpack(word: u64) -> Self {
        let index = part(word, INDEX_SHIFT, INDEX_MASK);
        let generation = part(word, GENERATION_SHIFT, u64::from(u32::MAX));
        match word & TAG_MASK {
            TAG_UNDECIDED => Self::Undecided(Record { index, generation }),
            TAG_EPOLL => Self::Epoll(Record { index, generation }),
            TAG_SOCKET => Self::Socket(Handle {
                link: part(word, LINK_SHIFT, LINK_MASK),
                object: Object { index, generation },
                merged: word & MERGED != 0,
                accepted: word & ACCEPTED != 0,
            }),
            _ => Self::Kernel,
        }
    }
}

static TABLE: AtomicPtr<AtomicU64> = AtomicPtr::new(ptr::null_mut());
/// 1 + the highest number that ever had an entry.
static END: AtomicI32 = AtomicI32::new(0);

/// Makes the table. False when there is no memory: everything is then the kernel's.
pub fn ensure() -> bool {
    if !TABLE.load(Ordering::Acquire).is_null() {
        return true;
    }
    let bytes = NUMBERS * size_of::<u64>();
    let protection = rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE;
    let flags = rustix::mm::MapFlags::PRIVATE | rustix::mm::MapFlags::NORESERVE;
    // SAFETY: a new mapping at an address of the kernel's choice aliases nothing.
    let Ok(map) =
        (unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), bytes, protection, flags) })
    else {
        return false;
    };
    // SAFETY: just mapped; DONTDUMP changes no contents, and a kernel that refuses it only dumps more.
    let _ = unsafe { rustix::mm::madvise(map, bytes, rustix::mm::Advice::LinuxDontDump) };
    let place = map.cast::<AtomicU64>();
    if TABLE
        .compare_exchange(ptr::null_mut(), place, Ordering::AcqRel, Ordering::Acquire)
        .is_err()
    {
        // SAFETY: nobody has seen this mapping.
        let _ = unsafe { rustix::mm::munmap(map, bytes) };
    }
    true
}

fn word(fd: i32) -> Option<&'static AtomicU64> {
    let table = TABLE.load(Ordering::Acquire);
    let number = usize::try_from(fd).ok()?;
    if table.is_null() || number >= NUMBERS {
        return None;
    }
    // SAFETY: inside the mapping, which is never unmapped.
    let place = unsafe { table.add(number) };
    // SAFETY: aligned, zero-initialised, only used as an atomic.
    Some(unsafe { &*place })
}

/// What `fd` stands for, as the table says.
#[inline]
#[must_use]
pub fn entry(fd: i32) -> Entry {
    // Most numbers of most programs: one compare.
    if fd >= END.load(Ordering::Acquire) {
        return Entry::Kernel;
    }
    // Acquire: pairs with `exchange`, so that what was made before the entry is seen.
    word(fd).map_or(Entry::Kernel, |word| {
        Entry::unpack(word.load(Ordering::Acquire))
    })
}

/// Puts `entry` at `fd` and returns what was there. Whoever gets the old entry releases it, exactly once.
pub fn exchange(fd: i32, entry: Entry) -> Entry {
    if entry == Entry::Kernel && fd >= END.load(Ordering::Acquire) {
        return Entry::Kernel;
    }
    let Some(word) = word(fd) else {
        return Entry::Kernel;
    };
    let old = Entry::unpack(word.swap(entry.pack(), Ordering::AcqRel));
    END.fetch_max(fd.saturating_add(1), Ordering::AcqRel);
    old
}

/// Puts `new` at `fd` when `old` is still there.
pub fn replace(fd: i32, old: Entry, new: Entry) -> bool {
    word(fd).is_some_and(|word| {
        word.compare_exchange(old.pack(), new.pack(), Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    })
}

/// 1 + the highest number that can have an entry.
#[must_use]
pub fn end() -> i32 {
    END.load(Ordering::Acquire)
}

/// Visits the entries of `first` to `last` that are not the kernel's.
pub fn for_each(first: i32, last: i32, mut visit: impl FnMut(i32, Entry)) {
    let last = last.min(end().saturating_sub(1));
    for fd in first.max(0)..=last {
        let entry = entry(fd);
        if entry != Entry::Kernel {
            visit(fd, entry);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_survive_packing() {
        let record = Record {
            index: 4_095,
            generation: 0xdead_beef,
        };
        let handle = Handle {
            link: 7,
            object: Object {
                index: (1 << 21) - 1,
                generation: u32::MAX,
            },
            merged: true,
            accepted: false,
        };
        for entry in [
            Entry::Kernel,
            Entry::Undecided(record),
            Entry::Epoll(record),
            Entry::Socket(handle),
            Entry::Socket(Handle {
                merged: false,
                accepted: true,
                link: 0,
                ..handle
            }),
        ] {
            assert_eq!(Entry::unpack(entry.pack()), entry);
        }
        assert_eq!(Entry::Kernel.pack(), 0);
    }

    /// More numbers than a hard limit of descriptors may let a test open.
    #[test]
    fn a_hundred_thousand_numbers_and_more_keep_their_entries() {
        assert!(ensure());
        let numbers = 200_000..200_000 + (1 << 17) + 20_000;
        let handle = |fd: i32| {
            let index = fd.unsigned_abs();
            Entry::Socket(Handle {
                link: 3,
                object: Object {
                    index,
                    generation: !index,
                },
                merged: fd % 2 == 0,
                accepted: fd % 3 == 0,
            })
        };
        for fd in numbers.clone() {
            assert_eq!(exchange(fd, handle(fd)), Entry::Kernel);
        }
        assert!(end() >= numbers.end);
        let mut seen = 0;
        for_each(numbers.start, numbers.end - 1, |fd, entry| {
            assert_eq!(entry, handle(fd));
            seen += 1;
        });
        assert_eq!(seen, numbers.len());
        for fd in numbers.clone() {
            assert!(replace(fd, handle(fd), Entry::Kernel));
        }
        for_each(numbers.start, numbers.end - 1, |fd, _| {
            panic!("{fd} is left")
        });
        let beyond = i32::try_from(NUMBERS).unwrap();
        assert_eq!(exchange(beyond, handle(1)), Entry::Kernel);
        assert_eq!(entry(beyond), Entry::Kernel, "the kernel's");
    }

    #[test]
    fn an_old_entry_goes_to_one_taker() {
        assert!(ensure());
        let fd = 900_001;
        let entry = Entry::Epoll(Record {
            index: 1,
            generation: 2,
        });
        assert_eq!(exchange(fd, entry), Entry::Kernel);
        assert_eq!(super::entry(fd), entry);
        let takers: Vec<_> = (0..4)
            .map(|_| std::thread::spawn(move || exchange(fd, Entry::Kernel)))
            .collect();
        let got: Vec<_> = takers
            .into_iter()
            .map(|taker| taker.join().unwrap())
            .collect();
        assert_eq!(got.iter().filter(|old| **old == entry).count(), 1);
        assert_eq!(super::entry(-1), Entry::Kernel);
        assert_eq!(super::entry(i32::MAX), Entry::Kernel);
        assert!(!replace(fd, entry, Entry::Kernel));
    }
}
