//! poll and ppoll.
//!
//! # Safety
//! Arguments go to the original as they came, or through `cvt`; lists of the program are used for the length
//! that came with them, during the call only.

#![allow(unsafe_code)]

use core::ffi::c_int;
use core::time::Duration;

use libc::{nfds_t, pollfd, sigset_t, size_t, timespec};

use super::cvt;
use crate::attach::{self, Link};
use crate::errno::{Errno, Result};
use crate::fd::revive;
use crate::fd::table::{self, Entry};
use crate::fd::{self, Target, epoll};
use crate::ffi::real;
use crate::ffi::wait::SignalMask;
use crate::iomux::scratch::Scratch;
use crate::iomux::{self, PollEntry};

/// What poll and select ask about a number. A socket of a host that is gone is its twin, which is hung up.
pub(super) fn asked(link: &Link, fd: c_int) -> iomux::Target {
    match fd::target(fd) {
        Target::Socket(socket) if socket.link.number() == link.number() => {
            if socket.merged {
                iomux::Target::Both(socket.object, fd)
            } else {
                iomux::Target::Object(socket.object)
            }
        }
        _ => iomux::Target::Kernel(fd),
    }
}

/// Whether the kernel alone cannot answer about `fd`: an accelerated socket, or an epoll that may hold some.
fn is_ours(fd: c_int) -> bool {
    match table::entry(fd) {
        Entry::Kernel => false,
        Entry::Epoll(record) => epoll::polled(fd, record),
        // An undecided entry may have been routed by another process.
        Entry::Undecided(_) | Entry::Socket(_) => matches!(fd::target(fd), Target::Socket(_)),
    }
}

/// Whether one of `fds` is. Each epoll among them is noticed.
pub(super) fn any_is_ours(fds: impl Iterator<Item = c_int>) -> bool {
    fds.fold(false, |any, fd| {
        let is_known = any && !matches!(table::entry(fd), Entry::Epoll(_));
        is_known || is_ours(fd) || any
    })
}

/// The list of poll(2) when it names an accelerated socket.
///
/// # Safety
/// `count` entries.
unsafe fn polled<'a>(fds: *mut pollfd, count: nfds_t) -> Option<&'a mut [pollfd]> {
    attach::link()?;
    let count = usize::try_from(count).ok()?;
    if cvt::is_nowhere(fds) || !fds.is_aligned() || count > table::NUMBERS {
        return None;
    }
    // SAFETY: somewhere, aligned, as many as the caller promises.
    let list = unsafe { core::slice::from_raw_parts_mut(fds, count) };
    any_is_ours(list.iter().map(|entry| entry.fd)).then_some(list)
}

fn poll_list(
    list: &mut [pollfd],
    timeout: Option<Duration>,
    mask: Option<SignalMask>,
) -> Result<usize> {
    revive::in_slices(timeout, |slice| poll_once(list, slice, mask))
}

fn poll_once(
    list: &mut [pollfd],
    timeout: Option<Duration>,
    mask: Option<SignalMask>,
) -> Result<usize> {
    let link = attach::link().ok_or(Errno::INTR)?;
    let nothing = PollEntry {
        target: iomux::Target::Kernel(-1),
        events: 0,
        revents: 0,
    };
    let mut scratch = Scratch::filled(list.len(), nothing)?;
    let entries = scratch.as_mut_slice();
    for (entry, fd) in entries.iter_mut().zip(&*list) {
        entry.target = asked(link, fd.fd);
        entry.events = fd.events;
    }
    let count = iomux::poll(link, entries, timeout, mask)?;
    for (fd, entry) in list.iter_mut().zip(&*entries) {
        fd.revents = entry.revents;
    }
    Ok(count)
}

/// poll(2).
///
/// # Safety
/// As for the C function.
pub unsafe fn poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
    // SAFETY: as the caller promises.
    match unsafe { polled(fds, count) } {
        Some(list) => cvt::number(poll_list(list, cvt::millis(timeout), None)),
        // SAFETY: the caller's arguments, unchanged.
        None => unsafe { real::poll(fds, count, timeout) },
    }
}

/// The checked poll of _FORTIFY_SOURCE.
///
/// # Safety
/// As for the C function.
pub unsafe fn __poll_chk(fds: *mut pollfd, count: nfds_t, timeout: c_int, room: size_t) -> c_int {
    if fits(count, room) {
        // SAFETY: as the caller promises.
        return unsafe { poll(fds, count, timeout) };
    }
    // SAFETY: the caller's arguments, unchanged; an overflow is libc's to report.
    unsafe { real::__poll_chk(fds, count, timeout, room) }
}

fn fits(count: nfds_t, room: size_t) -> bool {
    usize::try_from(count).is_ok_and(|count| count <= room / size_of::<pollfd>())
}

/// ppoll(2).
///
/// # Safety
/// As for the C function.
pub unsafe fn ppoll(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: as the caller promises.
    let Some(list) = (unsafe { polled(fds, count) }) else {
        // SAFETY: the caller's arguments, unchanged.
        return unsafe { real::ppoll(fds, count, timeout, mask) };
    };
    // SAFETY: as the caller promises.
    let timeout = unsafe { cvt::span(timeout) };
    let result = timeout.and_then(|timeout| {
        // SAFETY: as the caller promises.
        let mask = unsafe { cvt::mask(mask) }?;
        poll_list(list, timeout, mask)
    });
    cvt::number(result)
}

/// The checked ppoll of _FORTIFY_SOURCE.
///
/// # Safety
/// As for the C function.
pub unsafe fn __ppoll_chk(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
    room: size_t,
) -> c_int {
    if fits(count, room) {
        // SAFETY: as the caller promises.
        return unsafe { ppoll(fds, count, timeout, mask) };
    }
    // SAFETY: the caller's arguments, unchanged; an overflow is libc's to report.
    unsafe { real::__ppoll_chk(fds, count, timeout, mask, room) }
}
