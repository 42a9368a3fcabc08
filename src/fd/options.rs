//! The options of a twin, read off it when the socket is routed.

use rustix::fs::OFlags;

use super::touched::{self, Touched};
use super::twin;
use crate::channel::cell::option;
use crate::ffi::{descriptor, errno, sockopt};
use crate::socket::options::{LINGER_ON, Options};

/// Numbers of options (Linux, all architectures that we build for).
pub mod name {
    /// SO_REUSEADDR.
    pub const REUSEADDR: i32 = 2;
    /// SO_SNDBUF.
    pub const SNDBUF: i32 = 7;
    /// SO_RCVBUF.
    pub const RCVBUF: i32 = 8;
    /// SO_KEEPALIVE.
    pub const KEEPALIVE: i32 = 9;
    /// SO_OOBINLINE.
    pub const OOBINLINE: i32 = 10;
    /// SO_LINGER.
    pub const LINGER: i32 = 13;
    /// SO_REUSEPORT.
    pub const REUSEPORT: i32 = 15;
    /// SO_RCVLOWAT.
    pub const RCVLOWAT: i32 = 18;
    /// SO_RCVTIMEO.
    pub const RCVTIMEO: i32 = 20;
    /// SO_SNDTIMEO.
    pub const SNDTIMEO: i32 = 21;
    /// TCP_NODELAY.
    pub const NODELAY: i32 = 1;
    /// TCP_MAXSEG.
    pub const MAXSEG: i32 = 2;
    /// TCP_CORK.
    pub const CORK: i32 = 3;
    /// TCP_KEEPIDLE.
    pub const KEEPIDLE: i32 = 4;
    /// TCP_KEEPINTVL.
    pub const KEEPINTVL: i32 = 5;
    /// TCP_KEEPCNT.
    pub const KEEPCNT: i32 = 6;
    /// TCP_INFO.
    pub const INFO: i32 = 11;
    /// TCP_SYNCNT.
    pub const SYNCNT: i32 = 7;
    /// TCP_LINGER2.
    pub const LINGER2: i32 = 8;
    /// TCP_DEFER_ACCEPT.
    pub const DEFER_ACCEPT: i32 = 9;
    /// TCP_NOTSENT_LOWAT.
    pub const NOTSENT_LOWAT: i32 = 25;
    /// IP_MINTTL.
    pub const MINTTL: i32 = 21;
    /// IP_RECVERR.
    pub const RECVERR: i32 = 11;
    /// SO_TIMESTAMP.
    pub const TIMESTAMP: i32 = 29;
    /// SO_TIMESTAMPNS.
    pub const TIMESTAMPNS: i32 = 35;
    /// SO_PEEK_OFF.
    pub const PEEK_OFF: i32 = 42;
    /// TCP_USER_TIMEOUT.
    pub const USER_TIMEOUT: i32 = 18;
    /// IP_TOS.
    pub const TOS: i32 = 1;
    /// IP_TTL.
    pub const TTL: i32 = 2;
    /// SO_ERROR.
    pub const ERROR: i32 = 4;
    /// SO_ZEROCOPY.
    pub const ZEROCOPY: i32 = 60;
    /// TCP_INQ.
    pub const INQ: i32 = 36;
    /// TCP_SAVE_SYN.
    pub const SAVE_SYN: i32 = 27;
    /// TCP_SAVED_SYN.
    pub const SAVED_SYN: i32 = 28;
}

/// A number, or 0 where the twin does not say.
fn number(fd: i32, level: i32, name: i32) -> u32 {
    sockopt::number(fd, level, name)
        .ok()
        .and_then(|value| u32::try_from(value).ok())
        .unwrap_or(0)
}

/// A timeval option in microseconds; 0 where the twin does not say.
#[must_use]
pub fn micros(fd: i32, name: i32) -> u64 {
    let mut bytes = [0; 16];
    if sockopt::read(fd, sockopt::SOCKET, name, &mut bytes) != Ok(16) {
        return 0;
    }
    decode_micros(&bytes).unwrap_or(0)
}

/// A timeval (two 64-bit numbers) in microseconds; None when it is no span.
#[must_use]
pub fn decode_micros(bytes: &[u8]) -> Option<u64> {
    let word = |at: usize| {
        let place = bytes.get(at..at + 8)?;
        u64::try_from(i64::from_ne_bytes(place.try_into().ok()?)).ok()
    };
    Some(word(0)?.saturating_mul(1_000_000).saturating_add(word(8)?))
}

/// A struct linger as the channel keeps it.
#[must_use]
pub fn decode_linger(bytes: &[u8]) -> Option<u32> {
    let word = |at: usize| {
        let place = bytes.get(at..at + 4)?;
        Some(i32::from_ne_bytes(place.try_into().ok()?))
    };
    let (on, seconds) = (word(0)?, word(4)?);
    let seconds = u32::try_from(seconds).unwrap_or(LINGER_ON - 1);
    Some(if on == 0 { 0 } else { LINGER_ON | seconds })
}

fn linger(fd: i32) -> u32 {
    let mut bytes = [0; 8];
    match sockopt::read(fd, sockopt::SOCKET, name::LINGER, &mut bytes) {
        Ok(8) => decode_linger(&bytes).unwrap_or(0),
        _ => 0,
    }
}

/// Everything that the stack must know, of which only what is `touched` is read. Buffer sizes only where the program locked
/// them: a default of the kernel is no wish (design D1).
#[must_use]
pub fn read(fd: i32, touched: Touched) -> Options {
    let saved = errno::save();
    let mut options = touched::untouched(fd, touched.has(Touched::NONBLOCKING));
    let socket = |name| number(fd, sockopt::SOCKET, name);
    let tcp = |name| number(fd, sockopt::TCP, name);
    let mut bit = |on: u32, bit| options.bits |= if on != 0 { bit } else { 0 };
    if touched.has(Touched::NODELAY) {
        bit(tcp(name::NODELAY), option::NODELAY);
    } else {
        bit(u32::from(touched.has(Touched::NODELAY_ON)), option::NODELAY);
    }
    if touched.has(Touched::CORK) {
        bit(tcp(name::CORK), option::CORK);
    }
    if touched.has(Touched::REUSE) {
        bit(socket(name::REUSEADDR), option::REUSEADDR);
        bit(socket(name::REUSEPORT), option::REUSEPORT);
    }
    if touched.has(Touched::KEEPALIVE) {
        bit(socket(name::KEEPALIVE), option::KEEPALIVE);
    }
    if touched.has(Touched::OTHERS) {
        bit(socket(name::ZEROCOPY), option::ZEROCOPY);
        bit(tcp(name::INQ), option::INQ);
        let saved = tcp(name::SAVE_SYN);
        bit(saved, option::SAVE_SYN);
        bit(saved & 2, option::SAVE_SYN_LINK);
        bit(socket(name::OOBINLINE), option::OOB_INLINE);
        bit(socket(name::TIMESTAMP), option::STAMP);
        bit(socket(name::TIMESTAMPNS), option::STAMP_NANOS);
        let errors = number(fd, sockopt::IP, name::RECVERR);
        bit(errors, option::RECEIVE_ERRORS);
    }
    if touched.has(Touched::KEEPALIVE) {
        options.keepidle_s = tcp(name::KEEPIDLE);
        options.keepintvl_s = tcp(name::KEEPINTVL);
        options.keepcnt = tcp(name::KEEPCNT);
    }
    if touched.has(Touched::TIMEOUTS) {
        options.user_timeout_ms = tcp(name::USER_TIMEOUT);
        options.rcvtimeo_us = micros(fd, name::RCVTIMEO);
        options.sndtimeo_us = micros(fd, name::SNDTIMEO);
    }
    if touched.has(Touched::BUFFERS) {
        let locked = socket(BUF_LOCK);
        if locked & RCVBUF_LOCKED != 0 {
            options.rcvbuf = socket(name::RCVBUF);
        }
        if locked & SNDBUF_LOCKED != 0 {
            options.sndbuf = socket(name::SNDBUF);
        }
        options.rcvlowat = socket(name::RCVLOWAT);
        options.notsent_lowat = tcp(name::NOTSENT_LOWAT);
    }
    if touched.has(Touched::LINGER) {
        options.linger = linger(fd);
    }
    if touched.has(Touched::OTHERS) {
        options.max_segment = wished_segment(tcp(name::MAXSEG));
        options.tos = number(fd, sockopt::IP, name::TOS);
        options.ttl = number(fd, sockopt::IP, name::TTL);
        options.min_ttl = number(fd, sockopt::IP, name::MINTTL);
        options.syn_count = set_number(fd, name::SYNCNT);
        options.linger2_s = set_number(fd, name::LINGER2);
        options.defer_accept_s = tcp(name::DEFER_ACCEPT);
        let offset = sockopt::number(fd, sockopt::SOCKET, name::PEEK_OFF);
        options.peek_offset = peek_offset(offset.unwrap_or(-1));
    }
    if touched.has(Touched::FLAGS) {
        let flags = descriptor::lend(fd).and_then(rustix::fs::fcntl_getfl);
        options.status_flags = flags.map_or(0, |flags| flags.bits() & SETTABLE);
    }
    errno::restore(saved);
    options
}

/// A number at the TCP level whose default is the system's; 0 where it is that. A negative one as its bits.
fn set_number(fd: i32, name: i32) -> u32 {
    let usual = twin::spare().and_then(|spare| sockopt::number(spare, sockopt::TCP, name));
    let value = sockopt::number(fd, sockopt::TCP, name);
    match value {
        Ok(value) if Ok(value) != usual => u32::from_ne_bytes(value.to_ne_bytes()),
        _ => 0,
    }
}

/// SO_PEEK_OFF as the channel keeps it.
#[must_use]
pub fn peek_offset(value: i32) -> u32 {
    u32::try_from(value).map_or(0, |value| value + 1)
}

/// An unconnected socket reports 536 (RFC 9293 3.7.1) when nobody asked for a segment size.
const fn wished_segment(reported: u32) -> u32 {
    if reported == 536 { 0 } else { reported }
}

/// SO_BUF_LOCK (Linux 5.15): which buffer sizes the program has set.
const BUF_LOCK: i32 = 72;
const SNDBUF_LOCKED: u32 = 1;
const RCVBUF_LOCKED: u32 = 2;

/// The status flags that F_SETFL changes (fcntl(2)).
pub const SETTABLE: u32 = OFlags::NONBLOCK.bits()
    | OFlags::APPEND.bits()
    | OFlags::DIRECT.bits()
    | OFlags::NOATIME.bits()
    | super::signals::ASYNC;

/// Makes the twin itself non-blocking.
pub(super) fn set_nonblocking(fd: i32) {
    let Ok(fd) = descriptor::lend(fd) else { return };
    // A descriptor that was closed meanwhile has no flags.
    let _ = rustix::fs::fcntl_getfl(fd)
        .and_then(|flags| rustix::fs::fcntl_setfl(fd, flags | OFlags::NONBLOCK));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_set_on_the_twin_is_read_and_defaults_are_no_wish() {
        let socket = rustix::net::socket(
            rustix::net::AddressFamily::INET,
            rustix::net::SocketType::STREAM,
            None,
        );
        let fd = descriptor::raw(socket.unwrap());
        let plain = read(fd, Touched::ALL);
        assert_eq!(
            (plain.bits, plain.rcvbuf, plain.sndbuf, plain.linger),
            (0, 0, 0, 0)
        );
        assert_eq!((plain.rcvtimeo_us, plain.status_flags), (0, 0));
        sockopt::set_number(fd, sockopt::TCP, name::NODELAY, 1).unwrap();
        sockopt::set_number(fd, sockopt::SOCKET, name::REUSEADDR, 1).unwrap();
        sockopt::set_number(fd, sockopt::SOCKET, name::RCVBUF, 65_536).unwrap();
        let span = [2_i64.to_ne_bytes(), 500_000_i64.to_ne_bytes()].concat();
        sockopt::write(fd, sockopt::SOCKET, name::RCVTIMEO, &span).unwrap();
        let on = [1_i32.to_ne_bytes(), 7_i32.to_ne_bytes()].concat();
        sockopt::write(fd, sockopt::SOCKET, name::LINGER, &on).unwrap();
        set_nonblocking(fd);
        let set = read(fd, Touched::ALL);
        assert_eq!(set.bits, option::NODELAY | option::REUSEADDR);
        assert_eq!(set.rcvbuf, 131_072, "as the kernel reports it: doubled");
        assert_eq!(set.sndbuf, 0);
        assert_eq!(set.rcvtimeo_us, 2_500_000);
        assert_eq!(set.linger, LINGER_ON | 7);
        assert_eq!(set.status_flags, OFlags::NONBLOCK.bits());
        descriptor::close(fd);
    }
}
