//! The kernel socket behind an accelerated number (design D3, reference preload 6).
//!
//! A listener's or connecting socket's twin is the socket that the program made. An accepted connection's is a copy of
//! one spare, never-connected socket, fourteen times cheaper than a socket of its own; nothing may be set on it.
//!
//! DEVIATION: whoever goes round the exported calls (stdout when it was put onto that number, io_uring, a program without the
//! preloaded object) meets the twin, which is not connected: ENOTCONN or EPIPE.

use core::net::{Ipv4Addr, SocketAddrV4};
use core::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use rustix::fs::OFlags;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::errno::{Errno, Result};
use crate::ffi::number_limit::with_room;
use crate::ffi::{descriptor, sockopt};
use crate::time::{Instant, monotonic};

/// The spare socket; -1 = not made. Inherited by fork.
static SPARE: AtomicI32 = AtomicI32::new(-1);

/// The spare socket: internal, never connected, also good for asking the kernel whether an option is valid.
///
/// # Errors
/// EMFILE, ENFILE and what else socket(2) says.
pub fn spare() -> Result<i32> {
    let known = SPARE.load(Ordering::Acquire);
    if known >= 0 {
        return Ok(known);
    }
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let made = with_room(|| {
        let made = rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
        descriptor::internalize(made)
    })?;
    match SPARE.compare_exchange(-1, made, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => Ok(made),
        Err(other) => {
            descriptor::close(made);
            Ok(other)
        }
    }
}

/// A TCP socket that nobody has set anything on; the caller closes it.
///
/// # Errors
/// EMFILE, ENFILE and what else socket(2) says.
pub fn unused() -> Result<i32> {
    let flags = SocketFlags::CLOEXEC;
    with_room(|| rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None))
        .map(descriptor::raw)
}

/// The spare socket, if it was made.
#[must_use]
pub fn known_spare() -> Option<i32> {
    let known = SPARE.load(Ordering::Acquire);
    (known >= 0).then_some(known)
}

/// The spare socket of the program before this one is this one's, as the numbers that it left are copies of it: an internal
/// descriptor.
pub fn take_over(spare: i32) {
    if SPARE
        .compare_exchange(-1, spare, Ordering::AcqRel, Ordering::Acquire)
        .is_err()
    {
        descriptor::close(spare);
    }
}

/// A number for an accepted connection: the lowest free one, as accept(2) gives.
///
/// # Errors
/// EMFILE as accept(2).
pub fn number(close_on_exec: bool) -> Result<i32> {
    let spare = descriptor::lend(spare()?)?;
    let made = if close_on_exec {
        rustix::io::fcntl_dupfd_cloexec(spare, 0)?
    } else {
        rustix::io::dup(spare)?
    };
    Ok(descriptor::raw(made))
}

/// The IPv4 address that the twin is bound to (0.0.0.0:0 when it is not).
///
/// # Errors
/// As getsockname(2); EAFNOSUPPORT when it is not IPv4.
pub fn local(fd: i32) -> Result<SocketAddrV4> {
    let address = rustix::net::getsockname(descriptor::lend(fd)?)?;
    SocketAddrV4::try_from(address).map_err(|_| Errno::AFNOSUPPORT)
}

/// Runs `bind` while the twin may be bound to an address that no interface has; the option is set back afterwards.
pub fn with_free_bind<T>(fd: i32, bind: impl FnOnce() -> T) -> T {
    let before = sockopt::number(fd, sockopt::IP, sockopt::FREEBIND);
    // A refusal leaves the answer to bind itself: EADDRNOTAVAIL.
    let _ = sockopt::set_number(fd, sockopt::IP, sockopt::FREEBIND, 1);
    let result = bind();
    if before == Ok(0) {
        let errno = crate::ffi::errno::save();
        let _ = sockopt::set_number(fd, sockopt::IP, sockopt::FREEBIND, 0);
        crate::ffi::errno::restore(errno);
    }
    result
}

/// The file status flags of the twin (O_NONBLOCK ...), as F_GETFL gives them.
///
/// # Errors
/// EBADF.
pub fn status_flags(fd: i32) -> Result<u32> {
    Ok(rustix::fs::fcntl_getfl(descriptor::lend(fd)?)?.bits())
}

/// Whether these status flags say not to block.
#[must_use]
pub fn is_nonblocking(flags: u32) -> bool {
    flags & OFlags::NONBLOCK.bits() != 0
}

/// Stops the twin from listening, so that the port is free for others.
pub fn stop_listening(fd: i32) {
    if let Ok(fd) = descriptor::lend(fd) {
        // ENOTCONN: it does not listen.
        let _ = rustix::net::shutdown(fd, rustix::net::Shutdown::Both);
    }
}

/// Whether the kernel owns `address`: a packet to it would not leave this machine. An answer holds for a moment
/// (`ANSWER_MS`), so that connections behind each other ask once.
#[must_use]
pub fn is_kernels_own(address: Ipv4Addr) -> bool {
    if address.is_loopback() || address.is_unspecified() {
        return true;
    }
    let now = monotonic();
    let [.., low] = address.octets();
    let place = ANSWERS.get(usize::from(low) % ANSWERS.len());
    let known = place.and_then(|place| answer(place.load(Ordering::Relaxed), now, address));
    if let Some(known) = known {
        return known;
    }
    let own = asked(address);
    if let Some(place) = place {
        place.store(pack(now, address, own), Ordering::Relaxed);
    }
    own
}

/// Answers of a moment ago: address (bits 32 to 63), the answer (bit 31), and when it was given, in milliseconds.
static ANSWERS: [AtomicU64; 16] = [const { AtomicU64::new(0) }; 16];
/// An answer holds so long. An address that the kernel gets meanwhile is asked for on the wire.
const ANSWER_MS: u64 = 10;
const ANSWER: u64 = 1 << 31;
const STAMP: u64 = ANSWER - 1;

fn pack(now: Instant, address: Ipv4Addr, own: bool) -> u64 {
    u64::from(address.to_bits()) << 32 | if own { ANSWER } else { 0 } | now.millis() & STAMP
}

fn answer(word: u64, now: Instant, address: Ipv4Addr) -> Option<bool> {
    let age = (now.millis() & STAMP).wrapping_sub(word & STAMP) & STAMP;
    let holds = word >> 32 == u64::from(address.to_bits()) && age < ANSWER_MS;
    holds.then_some(word & ANSWER != 0)
}

fn asked(address: Ipv4Addr) -> bool {
    let flags = SocketFlags::CLOEXEC;
    let make = || rustix::net::socket_with(AddressFamily::INET, SocketType::DGRAM, flags, None);
    let Ok(probe) = with_room(make) else {
        return false;
    };
    let probe = descriptor::raw(probe);
    // Connecting a datagram socket only asks the routing table; for a local address the source is that address.
    let source = descriptor::lend(probe)
        .and_then(|fd| rustix::net::connect(fd, &SocketAddrV4::new(address, 9)))
        .and_then(|()| local(probe));
    descriptor::close(probe);
    source.is_ok_and(|source| *source.ip() == address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_low_and_its_twin_is_a_tcp_socket() {
        let fd = number(true).unwrap();
        assert!(fd < spare().unwrap());
        assert_eq!(
            sockopt::number(fd, sockopt::SOCKET, 3),
            Ok(1),
            "SO_TYPE is SOCK_STREAM"
        );
        assert_eq!(local(fd).unwrap().port(), 0);
        descriptor::close(fd);
        assert!(is_kernels_own(Ipv4Addr::LOCALHOST));
        assert!(!is_kernels_own(Ipv4Addr::new(198, 51, 100, 7)));
    }

    #[test]
    fn an_answer_about_an_address_holds_for_a_moment() {
        let [one, other] = [[10, 1, 2, 3], [10, 1, 2, 19]].map(Ipv4Addr::from);
        // About where the stamp goes round.
        let now = Instant::from_millis(STAMP + 1 + ANSWER_MS / 2);
        let earlier = |ms| Instant::from_millis(now.millis() - ms);
        for own in [false, true] {
            let word = |ms| pack(earlier(ms), one, own);
            assert_eq!(answer(word(0), now, one), Some(own));
            assert_eq!(answer(word(ANSWER_MS - 1), now, one), Some(own));
            assert_eq!(answer(word(ANSWER_MS), now, one), None);
            assert_eq!(answer(word(1), now, other), None);
        }
        assert_eq!(answer(0, now, one), None);
    }

    #[test]
    fn an_address_of_nobody_can_be_bound_and_the_option_is_set_back() {
        let fd = number(true).unwrap();
        descriptor::close(fd);
        let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        let fd = descriptor::raw(socket);
        let address = SocketAddrV4::new(Ipv4Addr::new(198, 51, 100, 7), 0);
        let bind = || rustix::net::bind(descriptor::lend(fd)?, &address);
        assert_eq!(bind(), Err(Errno::ADDRNOTAVAIL));
        assert_eq!(with_free_bind(fd, bind), Ok(()));
        assert_eq!(sockopt::number(fd, sockopt::IP, sockopt::FREEBIND), Ok(0));
        assert_ne!(
            local(fd).unwrap().port(),
            0,
            "port 0 takes the kernel's number"
        );
        descriptor::close(fd);
    }
}
