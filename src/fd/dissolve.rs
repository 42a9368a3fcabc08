//! connect(2) with AF_UNSPEC: the connection is dissolved, and the socket is as it was before it was routed.
//!
//! The object is let go of with a reset, as tcp_disconnect of Linux does, and the numbers of this process go back to an
//! undecided record. The twin, which has kept its options and the address that it was bound to, answers again.

use rustix::fs::OFlags;

use super::registry::{self, Registration};
use super::table::{self, Entry, Record};
use super::{Socket, epoll, options, release, twin};
use crate::channel::sync::Ordering;
use crate::errno::{Errno, Result};
use crate::ffi::descriptor;
use crate::ffi::process;
use crate::ffi::wait::{self, EpollEvent};
use crate::iomux::epoll_set::flag;
use crate::socket::options::LINGER_ON;
use crate::socket::{interest, state};

/// EPOLL_CTL_ADD.
const EPOLL_ADD: i32 = 1;

/// Lets go of what the socket was routed to. The kernel must then dissolve the twin's own part.
///
/// DEVIATION: no error is pending afterwards; Linux says ECONNRESET once. A process that shares the socket keeps the connection.
///
/// # Errors
/// ENFILE when too many sockets are undecided, EMFILE, EBADF.
pub fn dissolve(socket: Socket) -> Result<()> {
    let cell = state::cell(socket.link, socket.object)?;
    let flags = cell.read.status_flags.load(Ordering::Relaxed);
    let record = registry::new_socket().ok_or(Errno::NFILE)?;
    let old = socket.entry();
    let done = if socket.accepted {
        fresh_twin(old)
    } else {
        Ok(())
    };
    if let Err(error) = done {
        registry::release_socket(record);
        return Err(error);
    }
    // Nobody hears of it by the reset that follows.
    cell.wish.linger.store(LINGER_ON, Ordering::Relaxed);
    interest::registrations(socket.link, socket.object, |epoll, found| {
        give_back(record, epoll, found);
    });
    let new = Entry::Undecided(record);
    table::for_each(0, table::end(), |number, entry| {
        if entry != old {
            return;
        }
        set_flags(number, flags);
        registry::retain_socket(record);
        if table::replace(number, old, new) {
            release(old);
        } else {
            registry::release_socket(record);
        }
    });
    // The hold of its making.
    registry::release_socket(record);
    Ok(())
}

/// Puts a socket of its own behind every number that has only a copy of the spare one.
fn fresh_twin(old: Entry) -> Result<()> {
    let fresh = twin::unused()?;
    let mut result = Ok(());
    table::for_each(0, table::end(), |number, entry| {
        if entry == old && result.is_ok() {
            result = put(fresh, number);
        }
    });
    descriptor::close(fresh);
    result
}

fn put(fresh: i32, number: i32) -> Result<()> {
    let flags = rustix::io::fcntl_getfd(descriptor::lend(number)?)?;
    process::duplicate_onto(fresh, number)?;
    rustix::io::fcntl_setfd(descriptor::lend(number)?, flags)
}

/// The open file description is the twin's own again.
fn set_flags(number: i32, flags: u32) {
    let flags = OFlags::from_bits_retain(flags & options::SETTABLE);
    // A number that was closed meanwhile has no flags.
    let _ = descriptor::lend(number).and_then(|fd| {
        let before = rustix::fs::fcntl_getfl(fd)?;
        let others = before - OFlags::from_bits_retain(options::SETTABLE);
        rustix::fs::fcntl_setfl(fd, others | flags)
    });
}

/// Puts the twin into the kernel epoll that the object was registered in, and remembers it.
fn give_back(record: Record, epoll: u32, found: interest::Interest) {
    let Some((epfd, epoll_record)) = epoll::descriptor_of(epoll) else {
        return;
    };
    let event = EpollEvent {
        events: found.events & !flag::TWIN,
        data: found.data,
    };
    // The twin of a wildcard listener stands there already.
    if wait::epoll_ctl(epfd, EPOLL_ADD, found.fd, Some(event)).is_ok() {
        epoll::count_kernel_item(epoll_record, true);
    }
    let kept = registry::register(
        record,
        Registration {
            epoll,
            fd: found.fd,
            events: event.events,
            data: event.data,
        },
    );
    if !kept {
        crate::warn!("epoll: a registration was forgotten fd={}", found.fd);
    }
}
