//! epoll_wait and its kin.
//!
//! # Safety
//! Arguments go to the original as they came, or through `cvt`; lists of the program are used for the length
//! that came with them, during the call only.

#![allow(unsafe_code)]

use core::ffi::c_int;
use core::time::Duration;

use libc::{epoll_event, sigset_t, timespec};

use super::cvt;
use crate::attach;
use crate::errno::{Errno, Result};
use crate::fd::epoll;
use crate::fd::table::{self, Entry, Record};
use crate::ffi::real;
use crate::ffi::wait::{self, EpollEvent, PollFd, SignalMask};
use crate::iomux::{self, PollEntry, Target};

/// The epoll behind `epfd` when its wait is ours.
fn waited(epfd: c_int) -> Option<Record> {
    if attach::link().is_none() && (!attach::may_accelerate() || real::is_single_threaded()) {
        // Nobody can route a socket and add it while the one thread waits.
        return None;
    }
    match table::entry(epfd) {
        Entry::Epoll(record) => Some(record),
        _ => None,
    }
}

/// A wait without a place for events: EFAULT once there is one, which stays (ep_send_events).
fn wait_for_nothing(
    epfd: c_int,
    record: Record,
    timeout: Option<Duration>,
    mask: Option<SignalMask>,
) -> Result<usize> {
    let count = match attach::link() {
        Some(link) => {
            // Asked about from outside, it shows its accelerated sockets too.
            epoll::polled(epfd, record);
            let mut set = [PollEntry {
                target: Target::Kernel(epfd),
                events: libc::POLLIN,
                revents: 0,
            }];
            iomux::poll(link, &mut set, timeout, mask)?
        }
        None => {
            let mut set = [PollFd {
                fd: epfd,
                events: libc::POLLIN,
                revents: 0,
            }];
            wait::ppoll(&mut set, timeout, mask)?
        }
    };
    if count == 0 { Ok(0) } else { Err(Errno::FAULT) }
}

/// EP_MAX_EVENTS of Linux.
const EVENTS_MAX: usize = i32::MAX as usize / 16;

/// A wait on an epoll of ours.
///
/// # Safety
/// `room` writable events.
unsafe fn wait_on(
    epfd: c_int,
    record: Record,
    events: *mut epoll_event,
    room: c_int,
    timeout: Option<Duration>,
    mask: Option<SignalMask>,
) -> c_int {
    let room = match usize::try_from(room) {
        Ok(room) if room > 0 && room <= EVENTS_MAX => room,
        _ => return cvt::done(Err(Errno::INVAL)),
    };
    if cvt::is_beyond(events) {
        return cvt::done(Err(Errno::FAULT));
    }
    if cvt::is_nowhere(events) {
        return cvt::number(wait_for_nothing(epfd, record, timeout, mask));
    }
    // SAFETY: somewhere, as many as the caller promises; only written to. The layouts are the same.
    let events = unsafe { core::slice::from_raw_parts_mut(events.cast::<EpollEvent>(), room) };
    cvt::number(epoll::wait(epfd, record, events, timeout, mask))
}

/// epoll_wait(2).
///
/// # Safety
/// As for the C function.
pub unsafe fn epoll_wait(
    epfd: c_int,
    events: *mut epoll_event,
    room: c_int,
    timeout: c_int,
) -> c_int {
    match waited(epfd) {
        // SAFETY: as the caller promises.
        Some(record) => unsafe { wait_on(epfd, record, events, room, cvt::millis(timeout), None) },
        // SAFETY: the caller's arguments, unchanged.
        None => unsafe { real::epoll_wait(epfd, events, room, timeout) },
    }
}

/// epoll_pwait(2).
///
/// # Safety
/// As for the C function.
pub unsafe fn epoll_pwait(
    epfd: c_int,
    events: *mut epoll_event,
    room: c_int,
    timeout: c_int,
    mask: *const sigset_t,
) -> c_int {
    match waited(epfd) {
        Some(record) => {
            // SAFETY: as the caller promises.
            let mask = match unsafe { cvt::mask(mask) } {
                Ok(mask) => mask,
                Err(error) => return cvt::done(Err(error)),
            };
            // SAFETY: as the caller promises.
            unsafe { wait_on(epfd, record, events, room, cvt::millis(timeout), mask) }
        }
        // SAFETY: the caller's arguments, unchanged.
        None => unsafe { real::epoll_pwait(epfd, events, room, timeout, mask) },
    }
}

/// epoll_pwait2(2).
///
/// # Safety
/// As for the C function.
pub unsafe fn epoll_pwait2(
    epfd: c_int,
    events: *mut epoll_event,
    room: c_int,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    match waited(epfd) {
        Some(record) => {
            // SAFETY: as the caller promises.
            let timeout = unsafe { cvt::span(timeout) };
            // SAFETY: as the caller promises.
            let mask = unsafe { cvt::mask(mask) };
            match timeout.and_then(|timeout| Ok((timeout, mask?))) {
                // SAFETY: as the caller promises.
                Ok((timeout, mask)) => unsafe {
                    wait_on(epfd, record, events, room, timeout, mask)
                },
                Err(error) => cvt::done(Err(error)),
            }
        }
        // SAFETY: the caller's arguments, unchanged.
        None => unsafe { real::epoll_pwait2(epfd, events, room, timeout, mask) },
    }
}
