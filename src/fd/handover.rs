//! Sockets and epolls that live on when this process, or a child that shares its memory, executes another program.
//!
//! Before exec everything without FD_CLOEXEC is put into a parcel, and a process cell holds it ([`crate::attach::parcel`]). The
//! program that is executed takes it out when its preloaded object is loaded: numbers, epolls and what they watch are what they
//! were, and at no moment has nobody held them.
//!
//! DEVIATION: what another thread opens between the parcel and exec is not in it; an epoll that posix_spawn moves to another
//! number loses the accelerated half of what it watches. A program that does not load the object gets the kernel twins, which are
//! not connected; the connections end when nobody else has them, and a line says so.

use rustix::fs::FileType;

use super::table::{self, Entry, Handle};
use super::{Socket, epoll, foreign, is_foreign, registry, release, twin};
use crate::attach::fork::{self, Heir};
use crate::attach::parcel::{self, Parcel, Row, places};
use crate::attach::{self, Link, link};
use crate::errno::{Errno, Result};
use crate::ffi::number_limit::room_for_several;
use crate::ffi::{descriptor, environment, process, wait};
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

/// The numbers that a child of posix_spawn must not close, in order.
///
/// # Errors
/// EMFILE; EAGAIN while another thread asks for the first time.
pub fn kept_numbers() -> Result<[i32; places::COUNT]> {
    let _room = room_for_several();
    places::keep(twin::spare()?)
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

/// What is on its way to a program that is about to be executed.
#[derive(Debug)]
pub struct Package {
    parcel: Parcel,
    heir: Option<u32>,
}

impl Package {
    /// Where the parcel is.
    #[must_use]
    pub const fn number(&self) -> i32 {
        self.parcel.number()
    }

    /// Behind the call: nothing was executed, or a process of its own, `child`, has it.
    pub fn end(mut self, child: Option<u32>) {
        self.parcel.close();
        if let Some(heir) = self.heir {
            // A child that is quicker has put itself there.
            registry::change_holder(heir, child.unwrap_or(0));
        }
    }
}

/// Puts what is inherited into a parcel; None when there is nothing.
///
/// # Errors
/// EAGAIN when the family has no process cell left, EMFILE, what memfd_create(2) says, EFBIG.
pub fn pack(how: How) -> Result<Option<Package>> {
    let heir = match how {
        How::Spawned => Some(registry::next_heir()),
        // What this process holds is the new program's; a child that shares our memory holds nothing yet.
        How::Here => is_foreign().then(process::pid),
    };
    let packed = fill(how, heir);
    if let (Some(heir), Ok(None) | Err(_)) = (heir, &packed) {
        registry::change_holder(heir, 0);
    }
    Ok(packed?.map(|parcel| Package { parcel, heir }))
}

fn fill(how: How, heir: Option<u32>) -> Result<Option<Parcel>> {
    let link = living();
    let mut count = 0;
    let mut of_host = false;
    inherited(how, &mut |_, entry| {
        count += 1;
        match (entry, heir) {
            (Entry::Undecided(record), Some(heir)) => registry::hold_socket_for_heir(record, heir),
            (Entry::Epoll(record), Some(heir)) => registry::hold_epoll_for_heir(record, heir),
            _ => {}
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
    let _room = room_for_several();
    let mut parcel = Parcel::new(how == How::Spawned)?;
    if let Some(link) = link.filter(|_| of_host) {
        let whose = if heir.is_none() {
            Heir::Executed
        } else {
            Heir::Spawned
        };
        let (_, control) = fork::reserve_for(link, whose, |cell| {
            let held = link.control.held(cell).ok_or(Errno::PROTO)?;
            inherited(how, &mut |_, entry| match entry {
                Entry::Socket(handle) if handle.link == link.place() => {
                    held.set(handle.object.index);
                }
                Entry::Epoll(record) if epoll::has_joined(link, record) => {
                    fork::hold_epoll(link, cell, record.index);
                }
                _ => {}
            });
            Ok(())
        })?;
        parcel.set_control(control)?;
    }
    if let Some(memory) = registry::shared_memory() {
        parcel.set_region(memory)?;
    }
    if let Some(spare) = twin::known_spare() {
        parcel.set_spare(spare)?;
    }
    let mut result = Ok(());
    inherited(how, &mut |row, entry| {
        let is_there = match entry {
            Entry::Socket(handle) => link.is_some_and(|link| link.place() == handle.link),
            _ => registry::shared_memory().is_some(),
        };
        if is_there && result.is_ok() {
            result = parcel.push(row);
        }
    });
    result?;
    parcel.send(how == How::Spawned, heir.unwrap_or_else(process::pid))?;
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
    let all = [fd, head.control, head.region, head.spare];
    if !head.is_of_this_build {
        for fd in all {
            descriptor::shut(fd);
        }
        crate::error!(
            "the accelerated sockets of the program before this one are lost: {} cannot take over what {} has left; kernel sockets \
             are used (restart the program)",
            parcel::Maker::present(),
            head.maker
        );
        return;
    }
    for inherited in all {
        if let Ok(lent) = descriptor::lend(inherited) {
            let _ = rustix::io::fcntl_setfd(lent, rustix::io::FdFlags::CLOEXEC);
        }
    }
    let move_away = |fd: i32| {
        descriptor::own(fd)
            .ok_or(Errno::BADF)
            .and_then(descriptor::internalize)
    };
    if let Ok(spare) = move_away(head.spare) {
        twin::take_over(spare);
    }
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
        registry::leave_rest(head.heir);
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
            entry if has_records => take_record(number, entry, head.heir, link),
            _ => true,
        };
        lost += usize::from(!done);
    };
    let each = |visit: &mut dyn FnMut(Row)| {
        // What cannot be read is not there.
        let _ = parcel::for_each(fd, head.rows, visit);
    };
    each(&mut |row| {
        let is_it = match Entry::unpack(row.entry) {
            Entry::Epoll(_) => is_epoll(row.fd),
            _ => socket_inode(row.fd) == Some(row.inode),
        };
        if is_it {
            take(row.fd, row);
        }
    });
    if head.moved {
        for_each_moved(|moved| {
            each(&mut |row| {
                for (number, inode) in moved.iter_mut() {
                    if *inode == row.inode && !matches!(Entry::unpack(row.entry), Entry::Epoll(_)) {
                        take(*number, row);
                        *inode = 0;
                    }
                }
            });
        });
    }
    lost
}

/// The inode by which the socket `number` is known again. An epoll has none of its own.
fn socket_inode(number: i32) -> Option<u64> {
    let found = rustix::fs::fstat(descriptor::lend(number).ok()?).ok()?;
    let is_socket = FileType::from_raw_mode(found.st_mode) == FileType::Socket;
    is_socket.then_some(found.st_ino)
}

/// Whether `number` is an epoll: only one says of a socket that it does not contain it.
fn is_epoll(number: i32) -> bool {
    twin::spare()
        .is_ok_and(|spare| wait::epoll_ctl(number, DELETE, spare, None) == Err(Errno::NOENT))
}

/// EPOLL_CTL_DEL.
const DELETE: i32 = 2;
/// A number and its inode.
type Moved = (i32, u64);
/// Numbers for which the rows are read once.
const MOVED: usize = 128;

/// Visits the sockets whose numbers nobody has claimed, many at a time, with their inodes. A copy of the spare socket is nobody's
/// in particular.
fn for_each_moved(mut visit: impl FnMut(&mut [Moved])) {
    let spare = twin::known_spare().and_then(socket_inode);
    let mut moved = [(-1, 0); MOVED];
    let mut used = 0;
    super::for_each_open(|number| {
        if table::entry(number) != Entry::Kernel || descriptor::is_internal(number) {
            return;
        }
        let Some(inode) = socket_inode(number).filter(|inode| Some(*inode) != spare) else {
            return;
        };
        if let Some(place) = moved.get_mut(used) {
            *place = (number, inode);
            used += 1;
        }
        if used == MOVED {
            visit(&mut moved);
            used = 0;
        }
    });
    visit(moved.get_mut(..used).unwrap_or(&mut []));
}

fn take_socket(number: i32, handle: Handle, link: &'static Link) -> bool {
    let handle = Handle {
        link: link.place(),
        ..handle
    };
    if handle.object.cell(link).is_none() || hold::add(link, handle.object).is_err() {
        return false;
    }
    close::settle_predecessor(link, handle.object);
    release(table::exchange(number, Entry::Socket(handle)));
    true
}

fn take_record(number: i32, entry: Entry, heir: u32, link: Option<&'static Link>) -> bool {
    let taken = match entry {
        Entry::Undecided(record) => registry::adopt_socket(record, heir),
        Entry::Epoll(record) => registry::adopt_epoll(record, heir),
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
