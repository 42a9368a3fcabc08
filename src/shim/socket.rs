//! Making, binding, connecting, accepting and naming sockets.
//!
//! # Safety
//! Arguments go to the original as they came, or through `cvt`.

#![allow(unsafe_code)]

use core::ffi::c_int;
use core::net::SocketAddrV4;

use libc::{sockaddr, socklen_t};

use super::cvt;
use crate::channel::cell::{kind, operation, option};
use crate::channel::sync::Ordering;
use crate::errno::{Errno, Result};
use crate::fd::dissolve::dissolve;
use crate::fd::inflight::InFlight;
use crate::fd::revive;
use crate::fd::route::{self, Routed};
use crate::fd::table;
use crate::fd::touched::Touched;
use crate::fd::{self, Socket, Target, options, own, twin};
use crate::ffi::{descriptor, errno, handler, real};
use crate::readiness::{self, event};
use crate::socket::close::How;
use crate::socket::{close, connect as connecting, listener, state};
use crate::time::{Instant, monotonic};

/// The bits of a socket type that are flags.
const TYPE_FLAGS: c_int = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;

/// socket(2).
///
/// # Safety
/// As for the C function.
pub unsafe fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    // SAFETY: numbers only.
    let fd = unsafe { real::socket(domain, kind, protocol) };
    if fd < 0 {
        return fd;
    }
    let tcp = domain == libc::AF_INET
        && kind & !TYPE_FLAGS == libc::SOCK_STREAM
        && (protocol == 0 || protocol == libc::IPPROTO_TCP);
    if tcp {
        let saved = errno::save();
        let nonblocking = kind & libc::SOCK_NONBLOCK != 0;
        fd::made_socket(
            fd,
            if nonblocking {
                Touched::NONBLOCKING
            } else {
                Touched::NOTHING
            },
        );
        errno::restore(saved);
    } else {
        fd::drop_stale(fd);
    }
    fd
}

/// bind(2).
///
/// # Safety
/// As for the C function.
pub unsafe fn bind(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int {
    // SAFETY: the caller's arguments, unchanged.
    let kernel = || unsafe { real::bind(fd, address, len) };
    match fd::target(fd) {
        Target::Undecided(record) => {
            fd::touch(fd, Touched::NAME);
            // SAFETY: as the caller promises.
            match unsafe { cvt::ipv4(address, len) } {
                Some(wanted) => route::bind(record, fd, wanted, kernel),
                None => kernel(),
            }
        }
        // The address is copied first (move_addr_to_kernel).
        Target::Socket(_) if cvt::is_nowhere(address) && len > 0 => cvt::done(Err(Errno::FAULT)),
        // inet_bind of a socket that is bound or connected already.
        Target::Socket(_) => cvt::done(Err(Errno::INVAL)),
        Target::Kernel | Target::Epoll(_) => kernel(),
    }
}

/// listen(2).
///
/// # Safety
/// As for the C function.
pub unsafe fn listen(fd: c_int, backlog: c_int) -> c_int {
    // SAFETY: numbers only.
    let kernel = || unsafe { real::listen(fd, backlog) };
    loop {
        match fd::target(fd) {
            Target::Undecided(record) => match route::listen(record, fd, backlog, kernel) {
                Routed::Kernel(result) => return result,
                Routed::Stack(result) => return cvt::done(result),
                Routed::Again => {}
            },
            // It is as one that never was connected (inet_stream_connect: SS_UNCONNECTED), at another port.
            Target::Socket(socket) if has_failed(socket) => {
                if let Err(error) = dissolve(socket) {
                    return cvt::done(Err(error));
                }
            }
            Target::Socket(socket) => return cvt::done(listen_again(fd, socket, backlog, kernel)),
            Target::Kernel | Target::Epoll(_) => return kernel(),
        }
    }
}

/// Whether a connect of the socket has failed and a call has told so. A listener that was shut looks the same to the host, and
/// stays what it is: other processes may have it.
fn has_failed(socket: Socket) -> bool {
    state::cell(socket.link, socket.object).is_ok_and(|cell| {
        cell.host.kind.load(Ordering::Acquire) == kind::FAILED
            && cell.wish.operation.load(Ordering::Relaxed) == operation::CONNECT
            && cell.wish.told.load(Ordering::Acquire) != 0
            && cell.host.error.load(Ordering::Acquire) == 0
    })
}

/// A second listen changes the backlog, or begins anew after a shutdown; of a connection it is refused.
fn listen_again(
    fd: c_int,
    socket: Socket,
    backlog: c_int,
    kernel: impl Fn() -> c_int,
) -> Result<()> {
    let (link, object) = (socket.link, socket.object);
    let cell = state::cell(link, object)?;
    let what = cell.host.kind.load(Ordering::Acquire);
    let shut = !socket.accepted && readiness::is_disconnected(cell, what);
    if what != kind::LISTENER && !shut {
        return Err(Errno::INVAL);
    }
    if kernel() != 0 {
        return Err(errno::last());
    }
    let backlog = u32::try_from(backlog).unwrap_or(u32::MAX);
    if !shut {
        return listener::set_backlog(link, object, backlog);
    }
    // A port that the kernel chose may be another one now.
    let again =
        twin::local(fd).and_then(|local| listener::listen_anew(link, object, local, backlog));
    if again.is_err() {
        twin::stop_listening(fd);
    }
    again
}

/// connect(2).
///
/// # Safety
/// As for the C function.
pub unsafe fn connect(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int {
    // SAFETY: the caller's arguments, unchanged.
    let kernel = || unsafe { real::connect(fd, address, len) };
    loop {
        match fd::target(fd) {
            Target::Undecided(record) => {
                // SAFETY: as the caller promises.
                let Some(remote) = (unsafe { cvt::ipv4(address, len) }) else {
                    return kernel();
                };
                match route::connect(record, fd, remote, kernel) {
                    Routed::Kernel(result) => return result,
                    Routed::Stack(Err(error)) => return cvt::done(Err(error)),
                    Routed::Stack(Ok(())) => match fd::target(fd) {
                        Target::Socket(socket) => return cvt::done(finish(socket)),
                        // Closed by another thread meanwhile.
                        _ => return cvt::done(Err(Errno::BADF)),
                    },
                    Routed::Again => {}
                }
            }
            Target::Socket(_) if cvt::is_nowhere(address) && len > 0 => {
                return cvt::done(Err(Errno::FAULT));
            }
            Target::Socket(socket) => {
                // SAFETY: as the caller promises.
                let remote = unsafe { cvt::ipv4(address, len) };
                // SAFETY: as the caller promises.
                if unsafe { cvt::is_unspec(address, len) } {
                    return match dissolve(socket) {
                        Ok(()) => kernel(),
                        Err(error) => cvt::done(Err(error)),
                    };
                }
                return cvt::done(connect_on(fd, socket, remote));
            }
            Target::Kernel | Target::Epoll(_) => return kernel(),
        }
    }
}

/// Waits for the end of a connection attempt that has just begun. A non-blocking call never waits for it, however near it
/// is: the next call tells it.
fn finish(socket: Socket) -> Result<()> {
    if is_nonblocking(socket)? {
        return Err(Errno::INPROGRESS);
    }
    let _held = InFlight::of(&socket);
    connecting::wait(socket.link, socket.object)
}

/// connect(2) of a socket that is routed already (inet_stream_connect).
fn connect_on(fd: c_int, socket: Socket, remote: Option<SocketAddrV4>) -> Result<()> {
    use connecting::Progress;

    let cell = state::cell(socket.link, socket.object)?;
    let what = cell.host.kind.load(Ordering::Acquire);
    if what == kind::LISTENER && !readiness::is_disconnected(cell, what) {
        return Err(Errno::ISCONN);
    }
    match connecting::progress(socket.link, socket.object)? {
        // Told once to a socket that was connecting.
        Progress::Connected
            if !socket.accepted && connecting::tell(socket.link, socket.object)? =>
        {
            Ok(())
        }
        Progress::Connected => Err(Errno::ISCONN),
        Progress::Going if is_nonblocking(socket)? => Err(Errno::ALREADY),
        Progress::Going => {
            let _held = InFlight::of(&socket);
            connecting::wait(socket.link, socket.object)
        }
        Progress::Failed => {
            if connecting::tell(socket.link, socket.object)? {
                return Err(state::take_error(cell).unwrap_or(Errno::CONNABORTED));
            }
            let remote = remote.ok_or(Errno::INVAL)?;
            route::connect_again(fd, socket, remote)?;
            finish(socket)
        }
    }
}

/// Whether the open file description says not to block.
pub(super) fn is_nonblocking(socket: Socket) -> Result<bool> {
    let cell = state::cell(socket.link, socket.object)?;
    Ok(twin::is_nonblocking(
        cell.read.status_flags.load(Ordering::Relaxed),
    ))
}

/// accept(2).
///
/// # Safety
/// As for the C function.
pub unsafe fn accept(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int {
    match fd::target(fd) {
        // SAFETY: as the caller promises.
        Target::Socket(socket) => unsafe { accept_on(fd, socket, address, len, 0) },
        _ => {
            // SAFETY: the caller's arguments, unchanged.
            let made = unsafe { real::accept(fd, address, len) };
            if made >= 0 {
                fd::drop_stale(made);
            }
            made
        }
    }
}

/// accept4(2).
///
/// # Safety
/// As for the C function.
pub unsafe fn accept4(
    fd: c_int,
    address: *mut sockaddr,
    len: *mut socklen_t,
    flags: c_int,
) -> c_int {
    match fd::target(fd) {
        // SAFETY: as the caller promises.
        Target::Socket(socket) => unsafe { accept_on(fd, socket, address, len, flags) },
        _ => {
            // SAFETY: the caller's arguments, unchanged.
            let made = unsafe { real::accept4(fd, address, len, flags) };
            if made >= 0 {
                fd::drop_stale(made);
            }
            made
        }
    }
}

/// accept4(2) of an accelerated listener.
///
/// # Safety
/// As for the C function.
unsafe fn accept_on(
    fd: c_int,
    socket: Socket,
    address: *mut sockaddr,
    len: *mut socklen_t,
    flags: c_int,
) -> c_int {
    if flags & !TYPE_FLAGS != 0 {
        return cvt::done(Err(Errno::INVAL));
    }
    let taken = take(fd, socket, flags);
    // SAFETY: as the caller promises.
    let room = unsafe { cvt::check_address_room(address, len) };
    match taken {
        Ok(Taken::Stream(made, _) | Taken::Kernel(made)) if room.is_err() => {
            // The connection is lost, as on Linux (do_accept).
            // SAFETY: numbers only.
            unsafe { super::descriptor::close(made) };
            cvt::answer(room.map(|()| made))
        }
        Ok(Taken::Stream(made, peer)) => {
            // SAFETY: as the caller promises; checked above.
            let put = unsafe { cvt::put_address(peer, address, len) };
            // Checked above, so it cannot fail; the connection is there in any case.
            cvt::answer(put.map(|()| made))
        }
        Ok(Taken::Kernel(made)) => {
            fd::drop_stale(made);
            // SAFETY: as the caller promises.
            if !address.is_null() && unsafe { real::getpeername(made, address, len) } != 0 {
                // Reset already: Linux gives the address that it had; nobody can use it.
                crate::debug!("accept: the peer of descriptor {made} is gone");
            }
            made
        }
        Err(error) => cvt::done(Err(error)),
    }
}

enum Taken {
    /// From the stack.
    Stream(c_int, SocketAddrV4),
    /// From the kernel twin of a wildcard listener.
    Kernel(c_int),
}

/// Takes a connection. The number comes first: with none left the connection stays queued (accept(2), EMFILE).
fn take(fd: c_int, socket: Socket, flags: c_int) -> Result<Taken> {
    let (link, object) = (socket.link, socket.object);
    let cell = state::cell(link, object)?;
    if cell.host.kind.load(Ordering::Acquire) != kind::LISTENER && !link.is_dead() {
        return Err(Errno::INVAL);
    }
    let nonblocking = is_nonblocking(socket)?;
    let deadline = state::deadline(&cell.read.rcvtimeo_us);
    let twin = socket.merged.then_some(fd);
    // Kept until the connection is taken: a close meanwhile leaves it to this call.
    let _held = if nonblocking {
        None
    } else {
        InFlight::of(&socket)
    };
    loop {
        if revive::is_lost(&socket) {
            match take_from_lost(fd, socket, flags, nonblocking, deadline)? {
                Some(taken) => return Ok(taken),
                // It is another host's now.
                None => match fd::target(fd) {
                    Target::Socket(found) => return take(fd, found, flags),
                    _ => return Err(Errno::BADF),
                },
            }
        }
        let ready = || state::bits(link, object) & (event::IN | event::HUP) != 0 || link.is_dead();
        if ready() {
            match take_from_stack(fd, socket, flags) {
                Err(Errno::AGAIN) => {}
                other => return other,
            }
        }
        if let Some(taken) = take_from_kernel(twin, flags)? {
            return Ok(taken);
        }
        if nonblocking {
            if state::look_again(link, object)? {
                continue;
            }
            return Err(Errno::AGAIN);
        }
        state::until(link, object, twin, deadline, &mut || ready())?;
    }
}

/// Takes a connection from the kernel twin, where there is one.
fn take_from_kernel(twin: Option<c_int>, flags: c_int) -> Result<Option<Taken>> {
    let Some(twin) = twin else { return Ok(None) };
    let nowhere = core::ptr::null_mut();
    // SAFETY: null pointers ask for no address; the twin never blocks.
    let made = unsafe { real::accept4(twin, nowhere, core::ptr::null_mut(), flags) };
    if made >= 0 {
        return Ok(Some(Taken::Kernel(made)));
    }
    match errno::last() {
        Errno::AGAIN => Ok(None),
        error => Err(error),
    }
}

/// accept of a listener whose host is gone: only its kernel twin can have a connection, until another host serves it. None
/// when one does.
fn take_from_lost(
    fd: c_int,
    socket: Socket,
    flags: c_int,
    nonblocking: bool,
    deadline: Option<Instant>,
) -> Result<Option<Taken>> {
    let twin = socket.merged.then_some(fd);
    loop {
        revive::listeners();
        if table::entry(fd) != socket.entry() {
            return Ok(None);
        }
        if !revive::is_lost(&socket) {
            // The host lives, but has ended what this process held: its control socket was closed behind our back.
            return Err(Errno::INVAL);
        }
        if let Some(taken) = take_from_kernel(twin, flags)? {
            return Ok(Some(taken));
        }
        let now = monotonic();
        if nonblocking || deadline.is_some_and(|deadline| deadline <= now) {
            return Err(Errno::AGAIN);
        }
        let slice = now + revive::SLICE;
        let end = deadline.map_or(slice, |deadline| deadline.min(slice));
        match state::until(socket.link, socket.object, twin, Some(end), &mut || false) {
            Ok(()) | Err(Errno::AGAIN) => {}
            Err(Errno::INTR) if deadline.is_none() && handler::handlers_restart() => {}
            Err(error) => return Err(error),
        }
    }
}

fn take_from_stack(fd: c_int, socket: Socket, flags: c_int) -> Result<Taken> {
    let (link, listener_object) = (socket.link, socket.object);
    let close_on_exec = flags & libc::SOCK_CLOEXEC != 0;
    let bits = state::cell(link, listener_object)?
        .option
        .bits
        .load(Ordering::Relaxed);
    let number = if bits & option::HANDS_DOWN == 0 {
        twin::number(close_on_exec)?
    } else {
        own::number(fd, close_on_exec)?
    };
    let accepted = listener::accept(link, listener_object, None, true, None);
    let (object, peer) = match accepted {
        Ok(listener::Accepted::Stream(object, peer)) => (object, peer),
        Ok(listener::Accepted::Kernel) => {
            descriptor::close(number);
            return Err(Errno::AGAIN);
        }
        Err(error) => {
            descriptor::close(number);
            return Err(error);
        }
    };
    if let Some(cell) = object.cell(link) {
        if flags & libc::SOCK_NONBLOCK != 0 {
            let bits = u32::try_from(libc::O_NONBLOCK).unwrap_or(0);
            cell.read.status_flags.fetch_or(bits, Ordering::Relaxed);
        }
        state::tell_number(cell, number);
    }
    let stream = Socket {
        link,
        object,
        merged: false,
        accepted: true,
    };
    fd::release(table::exchange(number, stream.entry()));
    Ok(Taken::Stream(number, peer))
}

/// shutdown(2).
///
/// # Safety
/// As for the C function.
pub unsafe fn shutdown(fd: c_int, how: c_int) -> c_int {
    match fd::target(fd) {
        Target::Socket(socket) => {
            let how = match how {
                libc::SHUT_RD => How::Read,
                libc::SHUT_WR => How::Write,
                libc::SHUT_RDWR => How::Both,
                _ => return cvt::done(Err(Errno::INVAL)),
            };
            let result = close::shutdown(socket.link, socket.object, how);
            if result.is_ok() && !socket.accepted && how != How::Write {
                // The twin of a listener stops listening as well; of a connection it is not connected.
                twin::stop_listening(fd);
            }
            cvt::done(result)
        }
        // SAFETY: numbers only.
        _ => unsafe { real::shutdown(fd, how) },
    }
}

/// getsockname(2).
///
/// # Safety
/// As for the C function.
pub unsafe fn getsockname(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int {
    match fd::target(fd) {
        Target::Socket(socket) => {
            let local = local_address(fd, socket);
            // SAFETY: as the caller promises.
            cvt::done(local.and_then(|local| unsafe { put_name(local, address, len) }))
        }
        // SAFETY: the caller's arguments, unchanged.
        _ => unsafe { real::getsockname(fd, address, len) },
    }
}

/// Without a connection any more, the address is the one that bind() gave, if any (inet_reset_saddr).
fn local_address(fd: c_int, socket: Socket) -> Result<SocketAddrV4> {
    let (link, object) = (socket.link, socket.object);
    let mut local = listener::local_address(link, object)?;
    let cell = state::cell(link, object)?;
    let what = cell.host.kind.load(Ordering::Acquire);
    if !socket.accepted && readiness::is_disconnected(cell, what) {
        local.set_ip(*twin::local(fd)?.ip());
    }
    Ok(local)
}

/// getpeername(2).
///
/// # Safety
/// As for the C function.
pub unsafe fn getpeername(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int {
    match fd::target(fd) {
        Target::Socket(socket) => {
            let peer = listener::peer_address(socket.link, socket.object);
            // SAFETY: as the caller promises.
            cvt::done(peer.and_then(|peer| unsafe { put_name(peer, address, len) }))
        }
        // SAFETY: the caller's arguments, unchanged.
        _ => unsafe { real::getpeername(fd, address, len) },
    }
}

/// An address that must be written: unlike accept, null is EFAULT.
unsafe fn put_name(name: SocketAddrV4, address: *mut sockaddr, len: *mut socklen_t) -> Result<()> {
    if cvt::is_nowhere(address) {
        return Err(Errno::FAULT);
    }
    // SAFETY: as the caller promises.
    unsafe { cvt::put_address(name, address, len) }
}

/// The status flags of the open file description, as F_GETFL gives them.
pub(super) fn status_flags(socket: Socket) -> Result<u32> {
    let cell = state::cell(socket.link, socket.object)?;
    let settable = cell.read.status_flags.load(Ordering::Relaxed) & options::SETTABLE;
    Ok(settable | u32::try_from(libc::O_RDWR).unwrap_or(0))
}

/// F_SETFL.
pub(super) fn set_status_flags(socket: Socket, flags: u32) -> Result<()> {
    let cell = state::cell(socket.link, socket.object)?;
    let kept = |old: u32| Some((old & !options::SETTABLE) | (flags & options::SETTABLE));
    // The function always says Some, so this cannot fail.
    let _ = cell
        .read
        .status_flags
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, kept);
    Ok(())
}
