//! epoll, poll and select.
//!
//! # Safety
//! Arguments go to the original as they came, or through `cvt`; lists of the program are used for the length
//! that came with them, during the call only.

#![allow(unsafe_code)]

use core::ffi::c_int;
use core::time::Duration;

use libc::{epoll_event, fd_set, nfds_t, pollfd, sigset_t, size_t, timespec, timeval};

use super::cvt;
use crate::attach::{self, Link};
use crate::errno::{Errno, Result};
use crate::fd::registry::{self, Registration};
use crate::fd::revive;
use crate::fd::table::{self, Entry, Record};
use crate::fd::{self, Socket, Target, epoll};
use crate::ffi::wait::{EpollEvent, SignalMask};
use crate::ffi::{errno, real};
use crate::iomux::scratch::Scratch;
use crate::iomux::{self, PollEntry, Sets, epoll_set};
use crate::time::monotonic;

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
    if event.is_null() && operation != libc::EPOLL_CTL_DEL {
        // Read before anything else is looked at; the kernel says so too.
        return cvt::done(Err(Errno::FAULT));
    }
    match (fd::target(epfd), fd::target(fd)) {
        (Target::Epoll(record), Target::Socket(socket)) => {
            // SAFETY: as the caller promises.
            let event = unsafe { read_event(event) };
            cvt::done(control(epfd, record, operation, fd, socket, event))
        }
        (Target::Epoll(record), target) => {
            let result = kernel();
            if result == 0 {
                match operation {
                    libc::EPOLL_CTL_ADD => epoll::count_kernel_item(record, true),
                    libc::EPOLL_CTL_DEL => epoll::count_kernel_item(record, false),
                    _ => {}
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

/// The program's event, or None for null.
///
/// # Safety
/// Null or readable.
unsafe fn read_event(event: *const epoll_event) -> Option<EpollEvent> {
    if event.is_null() {
        return None;
    }
    // SAFETY: not null; the layouts are the same (asserted beside the type).
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
    if events.is_null() {
        // DEVIATION: Linux looks at the pointer only when there is an event to write.
        return cvt::done(Err(Errno::FAULT));
    }
    // SAFETY: not null, as many as the caller promises; only written to. The layouts are the same.
    let events = unsafe { core::slice::from_raw_parts_mut(events.cast::<EpollEvent>(), room) };
    cvt::number(epoll::wait(epfd, record, events, timeout, mask))
}

/// EP_MAX_EVENTS of Linux.
const EVENTS_MAX: usize = i32::MAX as usize / 16;

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
            let mask = unsafe { cvt::mask(mask) };
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
            let timeout = match unsafe { cvt::span(timeout) } {
                Ok(timeout) => timeout,
                Err(error) => return cvt::done(Err(error)),
            };
            // SAFETY: as the caller promises.
            let mask = unsafe { cvt::mask(mask) };
            // SAFETY: as the caller promises.
            unsafe { wait_on(epfd, record, events, room, timeout, mask) }
        }
        // SAFETY: the caller's arguments, unchanged.
        None => unsafe { real::epoll_pwait2(epfd, events, room, timeout, mask) },
    }
}

/// What poll and select ask about a number. A socket of a host that is gone is its twin, which is hung up.
fn asked_of(link: &Link, fd: c_int) -> iomux::Target {
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

fn is_accelerated(fd: c_int) -> bool {
    // An undecided entry may have been routed by another process.
    !matches!(table::entry(fd), Entry::Kernel) && matches!(fd::target(fd), Target::Socket(_))
}

/// The list of poll(2) when it names an accelerated socket.
///
/// # Safety
/// `count` entries.
unsafe fn polled<'a>(fds: *mut pollfd, count: nfds_t) -> Option<&'a mut [pollfd]> {
    attach::link()?;
    let count = usize::try_from(count).ok()?;
    if fds.is_null() || !fds.is_aligned() || count > table::NUMBERS {
        return None;
    }
    // SAFETY: not null, aligned, as many as the caller promises.
    let list = unsafe { core::slice::from_raw_parts_mut(fds, count) };
    list.iter()
        .any(|entry| is_accelerated(entry.fd))
        .then_some(list)
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
        entry.target = asked_of(link, fd.fd);
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
    let mask = unsafe { cvt::mask(mask) };
    // SAFETY: as the caller promises.
    let timeout = unsafe { cvt::span(timeout) };
    cvt::number(timeout.and_then(|timeout| poll_list(list, timeout, mask)))
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

/// A set of select(2) as words; None for null.
///
/// # Safety
/// Null, or as many words as `count` numbers need.
unsafe fn words<'a>(set: *mut fd_set, count: u32) -> Option<&'a mut [u64]> {
    if set.is_null() {
        return None;
    }
    let words = count.div_ceil(64) as usize;
    // SAFETY: not null, aligned (checked by the caller), as long as the program promises.
    Some(unsafe { core::slice::from_raw_parts_mut(set.cast::<u64>(), words) })
}

/// The sets when they name an accelerated socket.
///
/// # Safety
/// As select(2).
unsafe fn selected<'a>(count: c_int, sets: [*mut fd_set; 3]) -> Option<(u32, Sets<'a>)> {
    attach::link()?;
    let count = u32::try_from(count).ok()?;
    let bad = |set: &*mut fd_set| !set.cast::<u64>().is_aligned();
    if count as usize > table::NUMBERS || sets.iter().any(bad) {
        return None;
    }
    let [read, write, except] = sets.map(|set| {
        // SAFETY: aligned; as the caller promises.
        unsafe { words(set, count) }
    });
    let sets = Sets {
        read,
        write,
        except,
    };
    let end = c_int::try_from(count).ok()?.min(table::end());
    let names = |set: &Option<&mut [u64]>, fd: c_int| {
        let (word, bit) = (usize::try_from(fd / 64).unwrap_or(usize::MAX), fd % 64);
        set.as_ref()
            .and_then(|set| set.get(word))
            .is_some_and(|word| word & (1 << bit) != 0)
    };
    let any = (0..end).any(|fd| {
        (names(&sets.read, fd) || names(&sets.write, fd) || names(&sets.except, fd))
            && is_accelerated(fd)
    });
    any.then_some((count, sets))
}

/// Waits as select(2) does.
fn select_sets(
    count: u32,
    sets: &mut Sets<'_>,
    timeout: Option<Duration>,
    mask: Option<SignalMask>,
) -> Result<usize> {
    // What was asked, for another look after one that found nothing.
    let mut asked = [[0; SETS_KEPT]; 3];
    let kept = [&mut sets.read, &mut sets.write, &mut sets.except];
    let is_kept = count as usize <= SETS_KEPT * 64;
    if is_kept {
        for (copy, set) in asked.iter_mut().zip(kept) {
            copy.iter_mut()
                .zip(set.iter().flat_map(|set| set.iter()))
                .for_each(|(copy, word)| *copy = *word);
        }
    }
    let mut is_first = true;
    revive::in_slices(timeout, |slice| {
        let link = attach::link().ok_or(Errno::INTR)?;
        if !core::mem::replace(&mut is_first, false) && is_kept {
            let kept = [&mut sets.read, &mut sets.write, &mut sets.except];
            for (copy, set) in asked.iter().zip(kept) {
                set.iter_mut()
                    .flat_map(|set| set.iter_mut())
                    .zip(copy)
                    .for_each(|(word, copy)| *word = *copy);
            }
        }
        let slice = if is_kept { slice } else { timeout };
        let target = |fd| asked_of(link, fd);
        iomux::select(link, count, sets, &target, slice, mask)
    })
}

/// Words of a set of select(2) that are kept: FD_SETSIZE numbers. A longer set is asked about once.
const SETS_KEPT: usize = libc::FD_SETSIZE / 64;

/// select(2). The time that is left is written back, as Linux does.
///
/// # Safety
/// As for the C function.
pub unsafe fn select(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    // SAFETY: as the caller promises.
    let Some((number, mut sets)) = (unsafe { selected(count, [read, write, except]) }) else {
        // SAFETY: the caller's arguments, unchanged.
        return unsafe { real::select(count, read, write, except, timeout) };
    };
    // SAFETY: as the caller promises.
    let span = match unsafe { cvt::span_micros(timeout) } {
        Ok(span) => span,
        Err(error) => return cvt::done(Err(error)),
    };
    let begun = monotonic();
    let result = select_sets(number, &mut sets, span, None);
    if let Some(span) = span {
        let left = span.saturating_sub(monotonic().since(begun));
        let left = timeval {
            tv_sec: libc::time_t::try_from(left.as_secs()).unwrap_or(libc::time_t::MAX),
            tv_usec: libc::suseconds_t::from(left.subsec_micros()),
        };
        // SAFETY: not null, since there was a span; writable as the caller promises.
        unsafe { timeout.write_unaligned(left) };
    }
    cvt::number(result)
}

/// pselect(2).
///
/// # Safety
/// As for the C function.
pub unsafe fn pselect(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: as the caller promises.
    let Some((number, mut sets)) = (unsafe { selected(count, [read, write, except]) }) else {
        // SAFETY: the caller's arguments, unchanged.
        return unsafe { real::pselect(count, read, write, except, timeout, mask) };
    };
    // SAFETY: as the caller promises.
    let mask = unsafe { cvt::mask(mask) };
    // SAFETY: as the caller promises.
    let span = unsafe { cvt::span(timeout) };
    cvt::number(span.and_then(|span| select_sets(number, &mut sets, span, mask)))
}
