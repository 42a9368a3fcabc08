//! Sockets and epolls that live on when this process, or a child that shares its memory, executes another program.
//!
//! Before exec everything without FD_CLOEXEC is put into a parcel, and a process cell holds it ([`crate::attach::parcel`]). The
//! program that is executed takes it out when its preloaded object is loaded: numbers, epolls and what they watch are what they
//! were, and at no moment has nobody held them.
//!
//! DEVIATION: what another thread opens between the parcel and exec is not in it. A program that does not load the object
//! gets the kernel twins, which are not connected; the connections end when nobody else has them, and a line says so.

use rustix::fs::FileType;

use super::table::{self, Entry, Handle};
use super::{Socket, epoll, foreign, is_foreign, registry, release, twin};
use crate::attach::fork::{self, Heir};
use crate::attach::parcel::{self, Parcel, Row};
use crate::attach::{self, Link, link};
use crate::errno::{Errno, Result};
use crate::ffi::{descriptor, environment};
use crate::socket::{close, hold};
use crate::{progress, waiter};

/// How a program is executed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum How {
    /// In the place of the calling one.
    Here,
    /// In a child that another call makes, which may move descriptors (posix_spawn).
    Spawned,
}

/// The name in the environment by which the new program finds its parcel.
pub const NAME: &[u8] = b"KNET_EXEC";

/// Whether anything of ours may be handed over: most programs that execute another one have nothing.
#[must_use]
pub fn is_needed() -> bool {
    table::end() > 0
}

/// The present host, when what lives in it can be handed over.
fn living() -> Option<&'static Link> {
    // A host inside this process ends with it; one inside its parent does not.
    let dies = progress::is_here() && !is_foreign();
    link().filter(|link| !link.is_dead() && !dies)
}

/// Visits what is inherited: numbers, what they stand for, their sockets' inodes.
fn inherited(how: How, visit: &mut dyn FnMut(Row, Entry)) {
    let mut each = |fd: i32, entry: Entry| {
        let Ok(file) = descriptor::lend(fd) else {
            return;
        };
        let Ok(flags) = rustix::io::fcntl_getfd(file) else {
            return;
        };
        let stays = flags.contains(rustix::io::FdFlags::CLOEXEC);
        // posix_spawn may make a copy of it that is inherited.
        if entry == Entry::Kernel || (stays && how == How::Here) {
            return;
        }
        let Ok(found) = rustix::fs::fstat(file) else {
            return;
        };
        let is_socket = FileType::from_raw_mode(found.st_mode) == FileType::Socket;
        if !is_socket && !matches!(entry, Entry::Epoll(_)) {
            // Closed behind our back, and the number is a file's.
            return;
        }
        let inode = found.st_ino;
        let row = Row {
            fd,
            entry: entry.pack(),
            inode,
        };
        visit(row, entry);
    };
    if is_foreign() {
        foreign::for_each(&mut each);
        table::for_each(0, table::end(), |fd, entry| {
            if foreign::entry(fd) == entry {
                each(fd, entry);
            }
        });
    } else {
        table::for_each(0, table::end(), each);
    }
}

/// Puts what is inherited into a parcel; None when there is nothing.
///
/// # Errors
/// EAGAIN when the family has no process cell left, EMFILE, what memfd_create(2) says.
pub fn pack(how: How) -> Result<Option<Parcel>> {
    let link = living();
    let mut count = 0;
    let mut of_host = false;
    let other_process = how == How::Spawned || is_foreign();
    inherited(how, &mut |_, entry| {
        count += 1;
        if other_process {
            super::hold_record_for_child(entry);
        }
        of_host |= match entry {
            Entry::Socket(_) => true,
            Entry::Epoll(record) => link.is_some_and(|link| epoll::has_joined(link, record)),
            _ => false,
        };
    });
    if count == 0 {
        return Ok(None);
    }
    let mut parcel = Parcel::new()?;
    if let Some(link) = link.filter(|_| of_host) {
        let heir = if how == How::Here && !is_foreign() {
            Heir::Executed
        } else {
            Heir::Spawned
        };
        let (_, control) = fork::reserve_for(link, heir, |cell| {
            let held = link.control.held(cell).ok_or(Errno::PROTO)?;
            inherited(how, &mut |_, entry| match entry {
                Entry::Socket(handle) if handle.link == link.number() => {
                    held.set(handle.object.index);
                }
                Entry::Epoll(record) if epoll::has_joined(link, record) => {
                    fork::hold_epoll(link, cell, record.index);
                }
                _ => {}
            });
            Ok(())
        })?;
        parcel.set_control(control);
    }
    if let Some(memory) = registry::shared_memory() {
        parcel.set_region(memory)?;
    }
    let mut result = Ok(());
    inherited(how, &mut |row, entry| {
        let is_there = match entry {
            Entry::Socket(handle) => link.is_some_and(|link| link.number() == handle.link),
            _ => registry::shared_memory().is_some(),
        };
        if is_there && result.is_ok() {
            result = parcel.push(row);
        }
    });
    result?;
    let spare = twin::known_spare().and_then(|fd| {
        let found = rustix::fs::fstat(descriptor::lend(fd).ok()?).ok()?;
        Some(found.st_ino)
    });
    parcel.send(how == How::Spawned, spare.unwrap_or(0))?;
    Ok(Some(parcel))
}

/// Connections and listeners that end if the program is executed that cannot take them over.
#[must_use]
pub fn count_lost() -> usize {
    let mut lost = 0;
    inherited(How::Here, &mut |_, entry| {
        if let Entry::Socket(handle) = entry
            && let Some(socket) = Socket::of(handle)
            && !socket.link.is_dead()
            && (is_foreign() || hold::is_held_elsewhere(socket.link, socket.object))
        {
            // Somebody else has it as well: nothing ends.
            return;
        }
        lost += usize::from(matches!(entry, Entry::Socket(_)));
    });
    lost
}

/// When this object is loaded: takes over what the program before this one left.
pub fn unpack() {
    let Some(fd) = environment::take_number(NAME) else {
        return;
    };
    // A number that is not open, or something else's, is no parcel.
    let Ok(head) = parcel::head(fd) else {
        return;
    };
    crate::thread::remember_process();
    for inherited in [fd, head.control, head.region] {
        if let Ok(lent) = descriptor::lend(inherited) {
            let _ = rustix::io::fcntl_setfd(lent, rustix::io::FdFlags::CLOEXEC);
        }
    }
    let move_away = |fd: i32| {
        descriptor::own(fd)
            .ok_or(Errno::BADF)
            .and_then(descriptor::internalize)
    };
    let region = move_away(head.region)
        .and_then(|memory| registry::take_over(memory).inspect_err(|_| descriptor::close(memory)));
    let link = move_away(head.control)
        .and_then(|control| attach::resume(control, |_| Ok(())))
        .ok();
    if let Some(link) = link {
        waiter::forget_predecessors_slots(link);
    }
    if table::ensure() && (region.is_ok() || registry::ensure()) {
        let lost = settle(fd, &head, link, region.is_ok());
        if lost > 0 {
            crate::error!("{lost} accelerated sockets of the program before this one are lost");
        }
        registry::leave_rest();
    }
    if let Some(link) = link {
        let_go(link);
    }
    descriptor::shut(fd);
}

/// Gives each number its entry; says how many sockets could not be taken over.
fn settle(fd: i32, head: &parcel::Head, link: Option<&'static Link>, has_records: bool) -> usize {
    let mut lost = 0;
    let mut take = |number: i32, row: Row| {
        let done = match Entry::unpack(row.entry) {
            Entry::Socket(handle) => link.is_some_and(|link| take_socket(number, handle, link)),
            entry if has_records => take_record(number, entry, head.packer, link),
            _ => true,
        };
        lost += usize::from(!done);
    };
    let inode = |number: i32| {
        let found = rustix::fs::fstat(descriptor::lend(number).ok()?).ok()?;
        Some(found.st_ino)
    };
    let each = |visit: &mut dyn FnMut(Row) -> bool| {
        // What cannot be read is not there.
        let _ = parcel::for_each(fd, head.rows, visit);
    };
    if !head.moved {
        each(&mut |row| {
            if inode(row.fd) == Some(row.inode) {
                take(row.fd, row);
            }
            true
        });
        return lost;
    }
    super::for_each_open(|number| {
        let Some(mine) = inode(number) else { return };
        let mut found = None;
        each(&mut |row| {
            let here = row.inode == mine && row.fd == number;
            if here || (row.inode == mine && mine != head.spare) {
                found = Some(row);
            }
            !here
        });
        if let Some(row) = found {
            take(number, row);
        }
    });
    lost
}

fn take_socket(number: i32, handle: Handle, link: &'static Link) -> bool {
    let handle = Handle {
        link: link.number(),
        ..handle
    };
    if handle.object.cell(link).is_none() || hold::add(link, handle.object).is_err() {
        return false;
    }
    close::settle_predecessor(link, handle.object);
    release(table::exchange(number, Entry::Socket(handle)));
    true
}

fn take_record(number: i32, entry: Entry, packer: u32, link: Option<&'static Link>) -> bool {
    let taken = match entry {
        Entry::Undecided(record) => registry::adopt_socket(record, packer),
        Entry::Epoll(record) => registry::adopt_epoll(record, packer),
        _ => false,
    };
    if taken {
        release(table::exchange(number, entry));
        if let (Entry::Epoll(record), Some(link)) = (entry, link) {
            epoll::join(link, record);
        }
    }
    // A record that is gone was never more than the kernel's.
    true
}

/// What the cell holds and nobody here has a number of: it was closed on the way.
fn let_go(link: &Link) {
    hold::for_each_idle(link, |object| {
        hold::drop_bit(link, object);
        link.ring(object.index);
    });
    epoll::let_go(link);
}
