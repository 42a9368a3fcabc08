//! epoll_create and epoll_ctl.
//!
//! # Safety
//! Arguments go to the original as they came; an event is read as the caller promises.

#![allow(unsafe_code)]

use core::ffi::c_int;

use libc::epoll_event;

use super::cvt;
use crate::errno::{Errno, Result};
use crate::fd::registry::{self, Registration};
use crate::fd::table::{self, Entry, Record};
use crate::fd::{self, Socket, Target, epoll};
use crate::ffi::wait::EpollEvent;
use crate::ffi::{errno, real};
use crate::iomux::epoll_set;

/// epoll_create(2).
///
/// # Safety
/// As for the C function.
pub unsafe fn epoll_create(size: c_int) -> c_int {
    // SAFETY: numbers only.
    made(unsafe { real::epoll_create(size) })
}

/// epoll_create1(2).
///
/// # Safety
/// As for the C function.
pub unsafe fn epoll_create1(flags: c_int) -> c_int {
    // SAFETY: numbers only.
    made(unsafe { real::epoll_create1(flags) })
}

fn made(fd: c_int) -> c_int {
    if fd >= 0 {
        let saved = errno::save();
        epoll::made(fd);
        errno::restore(saved);
    }
    fd
}

/// epoll_ctl(2).
///
/// # Safety
/// As for the C function.
pub unsafe fn epoll_ctl(
    epfd: c_int,
    operation: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> c_int {
    // SAFETY: the caller's arguments, unchanged.
    let kernel = || unsafe { real::epoll_ctl(epfd, operation, fd, event) };
    if cvt::is_nowhere(event) && operation != libc::EPOLL_CTL_DEL {
        // Read before anything else is looked at; the kernel says so too.
        return cvt::done(Err(Errno::FAULT));
    }
    // The usual case by itself: a pair of targets is built in memory, which a program that changes its mind for each request pays.
    if let Entry::Epoll(record) = table::entry(epfd)
        && let Some(socket) = fd::accelerated(fd)
    {
        // SAFETY: as the caller promises.
        let event = unsafe { read_event(event) };
        return cvt::done(control(epfd, record, operation, fd, socket, event));
    }
    match (fd::target(epfd), fd::target(fd)) {
        (Target::Epoll(record), Target::Socket(socket)) => {
            // SAFETY: as the caller promises.
            let event = unsafe { read_event(event) };
            cvt::done(control(epfd, record, operation, fd, socket, event))
        }
        (_, Target::Epoll(inner)) if operation == libc::EPOLL_CTL_ADD => {
            // Before the kernel looks at it.
            epoll::nest(fd, inner);
            let result = kernel();
            if result != 0 {
                let saved = errno::save();
                epoll::unnest(inner);
                errno::restore(saved);
            } else if let Target::Epoll(record) = fd::target(epfd) {
                epoll::count_kernel_item(record, true);
            }
            result
        }
        (Target::Epoll(record), target) => {
            let result = kernel();
            if result == 0 {
                match operation {
                    libc::EPOLL_CTL_ADD => epoll::count_kernel_item(record, true),
                    libc::EPOLL_CTL_DEL => epoll::count_kernel_item(record, false),
                    _ => {}
                }
                if let (Target::Epoll(inner), libc::EPOLL_CTL_DEL) = (target, operation) {
                    epoll::unnest(inner);
                }
                if let Target::Undecided(socket) = target {
                    // SAFETY: as the caller promises.
                    let event = unsafe { read_event(event) };
                    remember(record, socket, operation, fd, event);
                    follow(epfd, record, operation, fd, event);
                }
            }
            result
        }
        (Target::Kernel, Target::Undecided(socket)) => {
            let result = kernel();
            if result == 0 && operation != libc::EPOLL_CTL_DEL {
                // SAFETY: as the caller promises.
                let event = unsafe { read_event(event) };
                let saved = errno::save();
                remember_unknown(epfd, socket, operation, fd, event);
                errno::restore(saved);
            }
            result
        }
        (Target::Kernel, Target::Socket(socket)) => {
            // An epoll that was made behind our back.
            match adopt(epfd, fd) {
                Ok(record) => {
                    // SAFETY: as the caller promises.
                    let event = unsafe { read_event(event) };
                    cvt::done(control(epfd, record, operation, fd, socket, event))
                }
                Err(error) => cvt::done(Err(error)),
            }
        }
        _ => kernel(),
    }
}

/// The program's event, or None for one that is nowhere.
///
/// # Safety
/// Nowhere or readable.
unsafe fn read_event(event: *const epoll_event) -> Option<EpollEvent> {
    if cvt::is_nowhere(event) {
        return None;
    }
    // SAFETY: somewhere; the layouts are the same (asserted beside the type).
    Some(unsafe { event.cast::<EpollEvent>().read_unaligned() })
}

/// Keeps what the kernel epoll was told of an undecided socket.
fn remember(epoll: Record, socket: Record, operation: c_int, fd: c_int, event: Option<EpollEvent>) {
    if operation == libc::EPOLL_CTL_DEL {
        registry::unregister(socket, epoll.index, fd);
        return;
    }
    let Some(event) = event else { return };
    let kept = registry::register(
        socket,
        Registration {
            epoll: epoll.index,
            fd,
            events: event.events,
            data: event.data,
        },
    );
    if !kept && registry::begin_routing(socket) {
        crate::warn!(
            "epoll: a socket in more than {} epolls stays with the kernel",
            registry::INTERESTS
        );
        registry::end_routing(socket, registry::Decision::Kernel);
    }
}

/// An undecided socket was added to the kernel epoll while another thread routed it: it goes after the others, where the
/// routing has not found it.
fn follow(epfd: c_int, epoll: Record, operation: c_int, fd: c_int, event: Option<EpollEvent>) {
    let Target::Socket(socket) = fd::target(fd) else {
        return;
    };
    if operation == libc::EPOLL_CTL_DEL {
        // Moved already, perhaps.
        let _ = epoll_set::delete(socket.link, epoll.index, socket.object, fd);
        return;
    }
    let Some(event) = event else { return };
    let (link, object, merged) = (socket.link, socket.object, socket.merged);
    epoll::join(link, epoll);
    if !merged && crate::ffi::wait::epoll_ctl(epfd, libc::EPOLL_CTL_DEL, fd, None).is_ok() {
        epoll::count_kernel_item(epoll, false);
    }
    let followed = match epoll_set::add(link, epoll.index, object, fd, event, merged) {
        // The routing has moved it, perhaps as it was before.
        Err(Errno::EXIST) => epoll_set::modify(link, epoll.index, object, fd, event, merged),
        other => other,
    };
    if let Err(error) = followed {
        crate::warn!(
            "epoll: a registration was lost fd={fd} errno={}",
            error.raw_os_error()
        );
    }
}

/// An undecided socket was added to an epoll that we do not know: one that was made behind our back, or one too many.
fn remember_unknown(
    epfd: c_int,
    socket: Record,
    operation: c_int,
    fd: c_int,
    event: Option<EpollEvent>,
) {
    epoll::made(epfd);
    if let Entry::Epoll(record) = table::entry(epfd) {
        // What it holds already is not known: it is always asked.
        epoll::count_kernel_item(record, true);
        remember(record, socket, operation, fd, event);
        follow(epfd, record, operation, fd, event);
    } else if registry::begin_routing(socket) {
        crate::warn!(
            "epoll: a socket in an epoll beyond the first {} stays with the kernel",
            registry::EPOLLS
        );
        registry::end_routing(socket, registry::Decision::Kernel);
    }
}

/// Makes an unknown epoll known.
fn adopt(epfd: c_int, fd: c_int) -> Result<Record> {
    // What the kernel says of the twin tells whether it is an epoll at all.
    match crate::ffi::wait::epoll_ctl(epfd, libc::EPOLL_CTL_DEL, fd, None) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(error) => return Err(error),
    }
    epoll::made(epfd);
    match table::entry(epfd) {
        Entry::Epoll(record) => {
            // What it holds already is not known: it is always asked.
            epoll::count_kernel_item(record, true);
            Ok(record)
        }
        _ => Err(Errno::NOSPC),
    }
}

/// epoll_ctl of an accelerated socket.
fn control(
    epfd: c_int,
    record: Record,
    operation: c_int,
    fd: c_int,
    socket: Socket,
    event: Option<EpollEvent>,
) -> Result<()> {
    let (link, object, merged) = (socket.link, socket.object, socket.merged);
    epoll::join(link, record);
    // The kernel half of a wildcard listener stands in the kernel epoll with the same data.
    let kernel = |event| crate::ffi::wait::epoll_ctl(epfd, operation, fd, event);
    match operation {
        libc::EPOLL_CTL_ADD => {
            let event = event.ok_or(Errno::FAULT)?;
            epoll_set::add(link, record.index, object, fd, event, merged)?;
            if merged {
                match kernel(Some(event)) {
                    Ok(()) => epoll::count_kernel_item(record, true),
                    Err(error) => {
                        epoll_set::delete(link, record.index, object, fd)?;
                        return Err(error);
                    }
                }
            }
            Ok(())
        }
        libc::EPOLL_CTL_MOD => {
            let event = event.ok_or(Errno::FAULT)?;
            epoll_set::modify(link, record.index, object, fd, event, merged)?;
            if merged { kernel(Some(event)) } else { Ok(()) }
        }
        libc::EPOLL_CTL_DEL => {
            epoll_set::delete(link, record.index, object, fd)?;
            if merged && kernel(None).is_ok() {
                epoll::count_kernel_item(record, false);
            }
            Ok(())
        }
        _ => Err(Errno::INVAL),
    }
}
