//! Where a TCP socket goes: decided at bind, listen and connect, once, for good (design D3, D4).
//!
//! The kernel is the port arbiter: it is asked first, and its errno is the answer. What goes to the stack leaves every
//! kernel epoll that holds it and enters ours with the same data, events and flags.

use core::net::{Ipv4Addr, SocketAddrV4};

use super::registry::{self, Decision, Registration};
use super::table::{self, Entry, Handle, Record};
use super::touched::Touched;
use super::{Socket, epoll, options, own, revive, signals, twin};
use crate::attach::{self, Link, Standing};
use crate::channel::cell::option;
use crate::channel::policy::PolicyPage;
use crate::channel::sync::Ordering;
use crate::errno::{Errno, Result};
use crate::ffi::wait::{self, EpollEvent};
use crate::ffi::{errno, sockopt};
use crate::iomux::epoll_set;
use crate::socket::{connect, hold, listener, state};
use crate::waiter;

/// EPOLL_CTL_DEL.
const EPOLL_DELETE: i32 = 2;

/// What a routed call came to.
#[derive(Clone, Copy, Debug)]
pub enum Routed {
    /// The kernel answered this; errno is set when it is -1.
    Kernel(i32),
    /// The stack answered.
    Stack(Result<()>),
    /// Another thread was routing: look again.
    Again,
}

/// Attaches when some socket is undecided: after the call that follows it would be too late.
pub fn attach_for_undecided() {
    if !attach::may_accelerate() {
        return;
    }
    let mut any = false;
    table::for_each(0, table::end(), |_, entry| {
        any |= matches!(entry, Entry::Undecided(_));
    });
    if super::is_foreign() {
        return;
    }
    if any {
        ensure();
    } else {
        attach::before_rights_go();
    }
}

/// Attaches, and wakes who waits on an epoll since before.
fn ensure() -> Standing {
    attaching(attach::ensure)
}

/// As [`ensure`], but does not wait for a host that cannot be had now.
pub(super) fn ensure_now() -> Standing {
    attaching(attach::ensure_now)
}

fn attaching(attach: impl FnOnce() -> Standing) -> Standing {
    let before = attach::link().map(Link::number);
    if attach::link::all_taken() {
        // Sockets may have been closed since.
        forget_long_lost();
    }
    let standing = attach();
    let now = attach::link().map(Link::number);
    if now != before {
        epoll::ring_bell();
        if before.is_some() {
            revive::host_changed();
        }
        forget_long_lost();
    }
    standing
}

/// Lets go of what belongs to hosts that were lost long ago, and of their channels as far as no descriptor knows them any more.
fn forget_long_lost() {
    for link in attach::link::long_lost() {
        // As the link's own descriptors, one host later than it died.
        waiter::forget_link_eventfds(link.place());
        let mut is_known = false;
        table::for_each(0, table::end(), |_, entry| {
            is_known |= matches!(entry, Entry::Socket(handle) if handle.link == link.place());
        });
        if !is_known && link.forget_memory() {
            hold::forget_counts(link);
            epoll_set::forget_counts(link);
            link.vacate();
        }
    }
}

fn refused() -> i32 {
    errno::set(Errno::ADDRNOTAVAIL);
    -1
}

/// bind(2) of an undecided socket; `kernel` is the call itself.
pub fn bind(record: Record, fd: i32, address: SocketAddrV4, kernel: impl Fn() -> i32) -> i32 {
    let for_good = |result: i32| {
        // An address of the kernel's: the decision is made with it.
        if result == 0 {
            settle(record, Decision::Kernel);
        }
        result
    };
    if address.ip().is_loopback() {
        return for_good(kernel());
    }
    let saved = errno::save();
    let result = match ensure() {
        Standing::Kernel => return kernel(),
        Standing::Refused => return refused(),
        Standing::Attached(link) => {
            let policy = &link.control.header().policy;
            let port = address.port();
            let served = port == 0 || policy.accelerates_port(port);
            if policy.is_ours(*address.ip()) && served {
                twin::with_free_bind(fd, kernel)
            } else if address.ip().is_unspecified() && served {
                kernel()
            } else {
                for_good(kernel())
            }
        }
    };
    if result == 0 {
        errno::restore(saved);
    }
    result
}

/// Takes the decision without a routing of its own.
fn settle(record: Record, decision: Decision) {
    if registry::begin_routing(record) {
        registry::end_routing(record, decision);
    }
}

/// Ends a routing: the decision, and what the call returns.
fn end(record: Record, decision: Decision, routed: Routed) -> Routed {
    registry::end_routing(record, decision);
    routed
}

/// Ends a routing in favour of the kernel and makes the call there.
fn to_kernel(record: Record, kernel: impl Fn() -> i32) -> Routed {
    registry::end_routing(record, Decision::Kernel);
    Routed::Kernel(kernel())
}

/// listen(2) of an undecided socket; `kernel` is the call itself.
pub fn listen(record: Record, fd: i32, backlog: i32, kernel: impl Fn() -> i32) -> Routed {
    if !registry::begin_routing(record) {
        return Routed::Again;
    }
    // The kernel gives an unbound socket a port.
    registry::touch(record, Touched::NAME);
    let Ok(local) = twin::local(fd) else {
        return to_kernel(record, kernel);
    };
    if local.ip().is_loopback() {
        return to_kernel(record, kernel);
    }
    let saved = errno::save();
    let wildcard = local.ip().is_unspecified();
    let link = match ensure() {
        Standing::Refused => return end(record, Decision::Undecided, Routed::Kernel(refused())),
        Standing::Kernel => return without_host(record, local, kernel),
        Standing::Attached(link) => link,
    };
    let policy = &link.control.header().policy;
    let ours = wildcard || policy.is_ours(*local.ip());
    // What is bound to another interface hears nothing of ours (SO_BINDTODEVICE).
    let ours = ours && is_reached(sockopt::interface(fd), policy);
    if !ours || (local.port() != 0 && !policy.accelerates_port(local.port())) {
        return to_kernel(record, kernel);
    }
    match attach::open_device(link) {
        Standing::Attached(_) => {}
        Standing::Refused => return end(record, Decision::Undecided, Routed::Kernel(refused())),
        Standing::Kernel if wildcard => return to_kernel(record, kernel),
        // The bind stands, but nobody can serve the address (design D6).
        Standing::Kernel => return end(record, Decision::Undecided, Routed::Kernel(refused())),
    }
    // The kernel has the port from here on; an unbound socket gets one.
    let result = kernel();
    if result != 0 {
        return end(record, Decision::Undecided, Routed::Kernel(result));
    }
    let local = twin::local(fd).unwrap_or(local);
    if !policy.accelerates_port(local.port()) {
        return end(record, Decision::Kernel, Routed::Kernel(0));
    }
    let mut options = options::read(fd, Touched::ALL);
    if own::hands_down(fd) {
        options.bits |= option::HANDS_DOWN;
    }
    // A negative backlog is the largest one, as in Linux.
    let backlog = u32::try_from(backlog).unwrap_or(u32::MAX);
    match listener::listen_where_free(link, local, backlog, &options) {
        Ok(object) => {
            install(record, fd, Socket::made(link, object, wildcard));
            errno::restore(saved);
            Routed::Stack(Ok(()))
        }
        Err(error) if wildcard => {
            crate::warn!(
                "listen {local}: only the kernel serves it errno={}",
                error.raw_os_error()
            );
            errno::restore(saved);
            end(record, Decision::Kernel, Routed::Kernel(0))
        }
        Err(error) => {
            twin::stop_listening(fd);
            end(record, Decision::Undecided, Routed::Stack(Err(error)))
        }
    }
}

/// Whether what is bound to `interface` (0: to none) is reached through our port.
fn is_reached(interface: u32, policy: &PolicyPage) -> bool {
    interface == 0 || interface == policy.interface.load(Ordering::Relaxed)
}

/// The number of the loopback interface (LOOPBACK_IFINDEX).
const LOOPBACK: u32 = 1;

/// A call on a socket that no host serves: the kernel's, unless it was bound to an address that only a host has.
fn without_host(record: Record, local: SocketAddrV4, kernel: impl Fn() -> i32) -> Routed {
    if local.ip().is_unspecified() || twin::is_kernels_own(*local.ip()) {
        return to_kernel(record, kernel);
    }
    end(record, Decision::Undecided, Routed::Kernel(refused()))
}

/// connect(2) of an undecided socket to an IPv4 address; `kernel` is the call itself. A connection that the stack makes is
/// under way when this returns `Stack(Ok)`; the caller waits for it or says EINPROGRESS.
pub fn connect(record: Record, fd: i32, remote: SocketAddrV4, kernel: impl Fn() -> i32) -> Routed {
    if !registry::begin_routing(record) {
        return Routed::Again;
    }
    if remote.ip().is_loopback() || remote.ip().is_unspecified() {
        return to_kernel(record, kernel);
    }
    let touched = registry::touched(record);
    let local = if touched.has(Touched::NAME) {
        let Ok(local) = twin::local(fd) else {
            return to_kernel(record, kernel);
        };
        local
    } else {
        SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0)
    };
    if local.ip().is_loopback() {
        return to_kernel(record, kernel);
    }
    let saved = errno::save();
    let link = match ensure() {
        Standing::Refused => return end(record, Decision::Undecided, Routed::Kernel(refused())),
        Standing::Kernel => return without_host(record, local, kernel),
        Standing::Attached(link) => link,
    };
    let policy = &link.control.header().policy;
    let bound_to_ours = policy.is_ours(*local.ip());
    let to_stack = bound_to_ours
        || (local.ip().is_unspecified()
            && policy.accelerates_port(remote.port())
            && (policy.is_ours(*remote.ip()) || !twin::is_kernels_own(*remote.ip())));
    let interface = if touched.has(Touched::OTHERS) {
        sockopt::interface(fd)
    } else {
        0
    };
    // What goes to ourselves goes by the loopback interface.
    let is_looped = interface == LOOPBACK && policy.is_ours(*remote.ip());
    if !to_stack || !(is_looped || is_reached(interface, policy)) {
        return to_kernel(record, kernel);
    }
    match attach::open_device(link) {
        Standing::Attached(_) => {}
        Standing::Kernel if !bound_to_ours => return to_kernel(record, kernel),
        _ => return end(record, Decision::Undecided, Routed::Kernel(refused())),
    }
    let options = options::read(fd, touched);
    let from = (bound_to_ours || local.port() != 0).then_some(local);
    match connect::start(link, from, remote, &options) {
        Ok(object) => {
            install(record, fd, Socket::made(link, object, false));
            errno::restore(saved);
            Routed::Stack(Ok(()))
        }
        Err(Errno::NETDOWN) if !bound_to_ours => to_kernel(record, kernel),
        Err(error) => end(record, Decision::Undecided, Routed::Stack(Err(error))),
    }
}

/// Puts a routed socket in the place of the undecided one: in the table, in the record, in the epolls.
fn install(record: Record, fd: i32, socket: Socket) {
    let handle = Handle {
        link: socket.link.place(),
        object: socket.object,
        merged: socket.merged,
        accepted: false,
    };
    if socket.merged {
        // accept asks it without waiting; the program's own flag is in the cell.
        options::set_nonblocking(fd);
    }
    if let Some(cell) = socket.object.cell(socket.link) {
        state::tell_number(cell, fd);
    }
    registry::take_registrations(record, |registration| {
        move_registration(&socket, registration)
    });
    let (is_single, touched) = (registry::is_single(record), registry::touched(record));
    let family = socket.link.family();
    registry::end_routing(record, Decision::Routed { handle, family });
    // The object was made held once: for `fd`. Duplicates hold it on their own; one that is made at this moment is seen to
    // at its first use.
    let old = Entry::Undecided(record);
    let mut taken = false;
    let mut put = |number, entry| {
        if entry != old {
            return;
        }
        let first = number == fd;
        if !first && hold::add(socket.link, socket.object).is_err() {
            return;
        }
        if super::replace(number, old, socket.entry()) {
            taken |= first;
        } else if !first {
            crate::socket::close::release(socket.link, socket.object);
        }
    };
    if is_single {
        put(fd, table::entry(fd));
    } else {
        table::for_each(0, table::end(), put);
    }
    if touched.has(Touched::FLAGS) {
        signals::begin(fd, socket);
    }
    if !taken {
        // Closed under our hands by another thread.
        crate::socket::close::release(socket.link, socket.object);
    }
}

/// Takes a registration of the twin out of the kernel epoll and puts it into ours.
fn move_registration(socket: &Socket, found: Registration) {
    let Some((epfd, record)) = epoll::descriptor_of(found.epoll) else {
        // Another process's epoll that this one does not have: nobody here can change it.
        crate::debug!("a registration stays with the kernel epoll={}", found.epoll);
        return;
    };
    epoll::join(socket.link, record);
    if !socket.merged && wait::epoll_ctl(epfd, EPOLL_DELETE, found.fd, None).is_ok() {
        epoll::count_kernel_item(record, false);
    }
    let event = EpollEvent {
        events: found.events,
        data: found.data,
    };
    let added = add(socket, record, found.fd, event);
    if let Err(error) = added {
        crate::warn!(
            "epoll: a registration was lost fd={} errno={}",
            found.fd,
            error.raw_os_error()
        );
    }
}

fn add(socket: &Socket, record: Record, fd: i32, event: EpollEvent) -> Result<()> {
    epoll_set::add(
        socket.link,
        record.index,
        socket.object,
        fd,
        event,
        socket.merged,
    )
}

/// A second connect(2) after the first one failed, as Linux allows.
///
/// # Errors
/// The host's refusal.
pub fn connect_again(fd: i32, socket: Socket, remote: SocketAddrV4) -> Result<()> {
    let link = socket.link;
    let local = twin::local(fd)?;
    let bound = local.port() != 0 || link.control.header().policy.is_ours(*local.ip());
    connect::start_again(link, socket.object, bound.then_some(local), remote)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_bound_to_another_interface_is_not_reached() {
        let policy = PolicyPage::default();
        assert!(is_reached(0, &policy), "bound to none");
        assert!(!is_reached(LOOPBACK, &policy) && !is_reached(7, &policy));
        policy.interface.store(7, Ordering::Relaxed);
        assert!(is_reached(0, &policy) && is_reached(7, &policy));
        assert!(!is_reached(LOOPBACK, &policy));
    }
}
