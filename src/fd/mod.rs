//! From descriptor number to object: the table, what is agreed before attaching, and where a socket goes.
//!
//! Owns the meaning of every number that the program uses. May use `attach`, `socket`, `iomux`, `thread`, `base`,
//! `telemetry`, `ffi`. Any program thread, also in a signal handler. Invariant: a number never reaches an object that
//! it does not stand for: whoever takes an entry out of the table releases it, exactly once.

pub mod dissolve;
pub mod epoll;
pub mod foreign;
pub mod handover;
pub mod inflight;
mod joining;
pub mod options;
pub mod own;
pub mod passing;
pub mod registry;
pub mod revive;
pub mod route;
pub mod signals;
pub mod table;
pub mod touched;
pub mod twin;

use self::registry::Decision;
use self::table::{Entry, Handle, Record};
use self::touched::Touched;
use crate::attach::link::placed;
use crate::attach::{self, Link, Object};
use crate::ffi::{descriptor, process};
use crate::socket::{close, hold};
use crate::thread;

/// An accelerated socket, ready to be used.
#[derive(Clone, Copy, Debug)]
pub struct Socket {
    /// The host it lives in, which may be dead.
    pub link: &'static Link,
    /// The object.
    pub object: Object,
    /// The kernel twin listens too (a wildcard bind).
    pub merged: bool,
    /// The twin is a copy of the spare socket: nothing may be set on it.
    pub accepted: bool,
}

/// What a number stands for now.
#[derive(Clone, Copy, Debug)]
pub enum Target {
    /// The kernel's.
    Kernel,
    /// A TCP socket that is not routed; the kernel answers.
    Undecided(Record),
    /// Accelerated.
    Socket(Socket),
    /// An epoll that may hold accelerated sockets.
    Epoll(Record),
}

impl Socket {
    /// One that listens or connects, behind the program's own twin.
    const fn made(link: &'static Link, object: Object, merged: bool) -> Self {
        Self {
            link,
            object,
            merged,
            accepted: false,
        }
    }

    fn of(handle: Handle) -> Option<Self> {
        Some(Self {
            link: placed(handle.link)?,
            object: handle.object,
            merged: handle.merged,
            accepted: handle.accepted,
        })
    }

    /// The entry for the table.
    #[must_use]
    pub fn entry(&self) -> Entry {
        Entry::Socket(Handle {
            link: self.link.place(),
            object: self.object,
            merged: self.merged,
            accepted: self.accepted,
        })
    }
}

/// What `fd` stands for. A socket that another descriptor or process has routed is noticed here.
#[inline]
#[must_use]
pub fn target(fd: i32) -> Target {
    match table::entry(fd) {
        Entry::Kernel => Target::Kernel,
        Entry::Socket(handle) => Socket::of(handle).map_or(Target::Kernel, Target::Socket),
        Entry::Epoll(record) => Target::Epoll(record),
        Entry::Undecided(record) => resolve(fd, record),
    }
}

/// The socket behind `fd`, if it is accelerated.
#[inline]
#[must_use]
pub fn accelerated(fd: i32) -> Option<Socket> {
    match table::entry(fd) {
        Entry::Socket(handle) => Socket::of(handle),
        Entry::Undecided(record) => match resolve(fd, record) {
            Target::Socket(socket) => Some(socket),
            _ => None,
        },
        Entry::Kernel | Entry::Epoll(_) => None,
    }
}

#[cold]
fn resolve(fd: i32, record: Record) -> Target {
    loop {
        match registry::decision(record) {
            Decision::Undecided => return Target::Undecided(record),
            // A signal handler that interrupted the routing: the kernel answers, as before it.
            Decision::Routing { thread } if thread == thread::id() => return Target::Kernel,
            Decision::Routing { thread } if !process::process_lives(thread) => {
                registry::take_over_routing(record, thread);
            }
            Decision::Routing { .. } => attach::pause(),
            Decision::Kernel | Decision::Stale => {
                if !replace(fd, Entry::Undecided(record), Entry::Kernel) {
                    // The routing that we waited for has put the socket there, and its record is free.
                    return target(fd);
                }
                return Target::Kernel;
            }
            Decision::Routed { handle, family } => {
                let socket = Socket::of(handle).filter(|socket| socket.link.family() == family);
                let held = socket.filter(|socket| hold::add(socket.link, socket.object).is_ok());
                // A process that attached to another host cannot reach it; its kernel twin answers.
                let entry = held.map_or(Entry::Kernel, |socket| socket.entry());
                if !replace(fd, Entry::Undecided(record), entry) {
                    release(entry);
                    return target(fd);
                }
                return held.map_or(Target::Kernel, Target::Socket);
            }
        }
    }
}

/// Puts `new` at `fd` if `old` is still there, and releases `old` then. `new` must be retained.
fn replace(fd: i32, old: Entry, new: Entry) -> bool {
    let done = table::replace(fd, old, new);
    if done {
        release(old);
    }
    done
}

/// Whether this is a child that shares our memory (vfork): it may only make system calls.
#[must_use]
pub fn is_foreign() -> bool {
    process::pid() != thread::process()
}

/// One more descriptor stands for `entry`. False when it cannot be counted; the new number is then the kernel's.
#[must_use]
pub fn retain(entry: Entry) -> bool {
    match entry {
        Entry::Kernel => {}
        Entry::Undecided(record) => registry::retain_socket(record),
        Entry::Epoll(record) => registry::retain_epoll(record),
        Entry::Socket(handle) => {
            return Socket::of(handle)
                .is_some_and(|socket| hold::add(socket.link, socket.object).is_ok());
        }
    }
    true
}

/// A descriptor that stood for `entry` is gone.
pub fn release(entry: Entry) {
    match entry {
        Entry::Kernel => {}
        Entry::Undecided(record) => registry::release_socket(record),
        Entry::Epoll(record) => epoll::release(record),
        Entry::Socket(handle) => {
            if let Some(socket) = Socket::of(handle) {
                close::release(socket.link, socket.object);
            }
        }
    }
}

/// A call returned `fd` as a new descriptor: what the table said of it was closed behind our back.
pub fn drop_stale(fd: i32) {
    if table::entry(fd) == Entry::Kernel {
        return;
    }
    if is_foreign() {
        foreign::put(fd, Entry::Kernel);
    } else {
        release(table::exchange(fd, Entry::Kernel));
    }
}

/// Takes the entry of a number that is about to be closed; the caller releases it.
#[must_use]
pub fn take(fd: i32) -> Entry {
    if table::entry(fd) == Entry::Kernel || is_foreign() {
        return Entry::Kernel;
    }
    table::exchange(fd, Entry::Kernel)
}

/// `copy` became a duplicate of `fd`.
pub fn duplicate(fd: i32, copy: i32) {
    if fd == copy {
        return;
    }
    let entry = table::entry(fd);
    let nothing = entry == Entry::Kernel && table::entry(copy) == Entry::Kernel;
    if nothing && !foreign::is_used() {
        return;
    }
    if is_foreign() {
        return foreign::duplicate(fd, copy);
    }
    if nothing {
        return;
    }
    let entry = if retain(entry) { entry } else { Entry::Kernel };
    release(table::exchange(copy, entry));
}

/// Visits the numbers that are open. Without /proc those below 1024.
pub(crate) fn for_each_open(mut visit: impl FnMut(i32)) {
    use rustix::fs::{Mode, OFlags, RawDir};

    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(folder) = rustix::fs::open(c"/proc/self/fd", flags, Mode::empty()) else {
        return (0..1_024).for_each(visit);
    };
    let folder = descriptor::raw(folder);
    let mut space = [core::mem::MaybeUninit::uninit(); 2_048];
    if let Ok(lent) = descriptor::lend(folder) {
        let mut entries = RawDir::new(lent, &mut space);
        while let Some(Ok(entry)) = entries.next() {
            let number = entry
                .file_name()
                .to_str()
                .ok()
                .and_then(|name| name.parse().ok());
            if let Some(number) = number.filter(|number| *number != folder) {
                visit(number);
            }
        }
    }
    descriptor::shut(folder);
}

/// The program is about to change `what` about `fd`, which is noted where it is not routed yet.
pub fn touch(fd: i32, what: Touched) {
    if let Target::Undecided(record) = target(fd) {
        registry::touch(record, what);
    }
}

/// The program has set TCP_NODELAY of `fd` to this, which is noted where it is not routed yet.
pub fn note_nodelay(fd: i32, on: bool) {
    if let Target::Undecided(record) = target(fd) {
        registry::note_nodelay(record, on);
    }
}

/// A new socket of the kernel: undecided when it may be accelerated later. `touched` is what socket(2) was told.
pub fn made_socket(fd: i32, touched: Touched) {
    drop_stale(fd);
    if !attach::may_accelerate() || !table::ensure() || !registry::ensure() {
        return;
    }
    thread::remember_process();
    if is_foreign() {
        return;
    }
    // None: too many undecided sockets at a time; this one is the kernel's.
    if let Some(record) = registry::new_socket() {
        registry::is_fresh(record, touched);
        release(table::exchange(fd, Entry::Undecided(record)));
    }
}

/// Before a fork, in the parent: what it closes right behind the fork is held until the child has it.
pub fn hold_for_child() {
    table::for_each(0, table::end(), |_, entry| hold_record_for_child(entry));
}

fn hold_record_for_child(entry: Entry) {
    match entry {
        Entry::Undecided(record) => registry::hold_socket_for_child(record),
        Entry::Epoll(record) => registry::hold_epoll_for_child(record),
        Entry::Kernel | Entry::Socket(_) => {}
    }
}

/// In a forked child of `parent`: it holds what its table says, no more and no less. Other threads of the parent were in the
/// middle of opening and closing when it was copied.
pub fn adopt_after_fork(parent: u32) {
    if table::end() == 0 {
        return;
    }
    registry::forget_counts();
    table::for_each(0, table::end(), |fd, entry| {
        let is_ours = match entry {
            Entry::Undecided(record) => registry::adopt_socket(record, parent),
            Entry::Epoll(record) => registry::adopt_epoll(record, parent),
            Entry::Kernel | Entry::Socket(_) => true,
        };
        if !is_ours {
            // Nothing is released: it was not counted.
            table::exchange(fd, Entry::Kernel);
        }
    });
    epoll::adopt_after_fork();
    epoll::forget_parents_bell();
    inflight::forget_parents();
    if let Some(link) = attach::link().filter(|link| !link.is_dead()) {
        let each = |visit: &mut dyn FnMut(Object)| {
            table::for_each(0, table::end(), |_, entry| {
                if let Entry::Socket(handle) = entry
                    && handle.link == link.place()
                {
                    visit(handle.object);
                }
            });
        };
        close::hold_only(link, &each);
    }
}
