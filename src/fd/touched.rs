//! What a program may have changed about a socket that is not routed yet: only that is read off its twin.
//!
//! Noted at the exported calls, in the record that all processes of the family share. What is not known here counts as all of it.
//!
//! DEVIATION: whoever goes round the exported calls (a raw setsockopt, io_uring, a program without the preloaded object that
//! got the socket by exec) and sets an option before connect is not heard; listen asks the twin for everything.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::options::{SETTABLE, name};
use super::twin;
use crate::ffi::sockopt;
use crate::socket::options::Options;
use crate::time::monotonic;

/// Groups of what can be changed, one bit each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Touched(pub u32);

impl Touched {
    /// TCP_NODELAY, which many a client sets before it connects.
    pub const NODELAY: Self = Self(1);
    /// SO_KEEPALIVE and its times.
    pub const KEEPALIVE: Self = Self(1 << 1);
    /// SO_REUSEADDR and SO_REUSEPORT.
    pub const REUSE: Self = Self(1 << 2);
    /// SO_RCVTIMEO, SO_SNDTIMEO and TCP_USER_TIMEOUT.
    pub const TIMEOUTS: Self = Self(1 << 3);
    /// Sizes and marks of buffers.
    pub const BUFFERS: Self = Self(1 << 4);
    /// SO_LINGER.
    pub const LINGER: Self = Self(1 << 5);
    /// File status flags, and who gets signals.
    pub const FLAGS: Self = Self(1 << 6);
    /// The address: bind.
    pub const NAME: Self = Self(1 << 7);
    /// Every other option.
    pub const OTHERS: Self = Self(1 << 8);
    /// All options: some change what others say.
    pub const OPTIONS: Self = Self(0b101_0011_1111);
    /// Nothing but that socket(2) was told SOCK_NONBLOCK.
    pub const NONBLOCKING: Self = Self(1 << 9);
    /// TCP_CORK.
    pub const CORK: Self = Self(1 << 10);
    /// TCP_NODELAY was set to something else than 0 and never by anybody who was not heard ([`Self::NODELAY`]).
    pub const NODELAY_ON: Self = Self(1 << 11);
    /// Nobody knows.
    pub const ALL: Self = Self(u32::MAX);
    /// A socket(2) of this moment.
    pub const NOTHING: Self = Self(0);

    /// Whether any of `other` is among it.
    #[must_use]
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// The group of an option.
    #[must_use]
    pub const fn by_option(level: i32, name: i32) -> Self {
        match (level, name) {
            (sockopt::TCP, name::NODELAY) => Self::NODELAY,
            (sockopt::TCP, name::CORK) => Self::CORK,
            (sockopt::SOCKET, name::KEEPALIVE)
            | (sockopt::TCP, name::KEEPIDLE | name::KEEPINTVL | name::KEEPCNT) => Self::KEEPALIVE,
            (sockopt::SOCKET, name::REUSEADDR | name::REUSEPORT) => Self::REUSE,
            (sockopt::SOCKET, name::RCVTIMEO | name::SNDTIMEO)
            | (sockopt::TCP, name::USER_TIMEOUT) => Self::TIMEOUTS,
            (sockopt::SOCKET, name::RCVBUF | name::SNDBUF | name::RCVLOWAT)
            | (sockopt::TCP, name::NOTSENT_LOWAT) => Self::BUFFERS,
            (sockopt::SOCKET, name::LINGER) => Self::LINGER,
            _ => Self::OPTIONS,
        }
    }
}

/// What the options of a socket are that nobody has touched; `nonblocking` as socket(2) was told.
#[must_use]
pub(super) fn untouched(fd: i32, nonblocking: bool) -> Options {
    let [keepidle_s, keepintvl_s, keepcnt, ttl] = defaults(fd);
    Options {
        keepidle_s,
        keepintvl_s,
        keepcnt,
        ttl,
        rcvlowat: 1,
        status_flags: if nonblocking { NONBLOCK } else { 0 },
        ..Options::default()
    }
}

const NONBLOCK: u32 = rustix::fs::OFlags::NONBLOCK.bits() & SETTABLE;

/// Defaults that the system's settings say (`net.ipv4.tcp_keepalive_time` and its like, `ip_default_ttl`).
static DEFAULTS: [AtomicU32; 4] = [const { AtomicU32::new(0) }; 4];
/// When they were asked for, in milliseconds; 0 = never.
static ASKED: AtomicU64 = AtomicU64::new(0);
/// They are asked for again after this.
const ASK_AGAIN_MS: u64 = 1_000;

/// Of a socket that nobody has touched; `fd` is asked itself where there is no number for such a one.
fn defaults(fd: i32) -> [u32; 4] {
    let now = monotonic().millis().max(1);
    let asked = ASKED.load(Ordering::Acquire);
    if asked == 0 || now.saturating_sub(asked) >= ASK_AGAIN_MS {
        let Ok(fresh) = twin::unused() else {
            return all_of(fd);
        };
        for (place, value) in DEFAULTS.iter().zip(all_of(fresh)) {
            place.store(value, Ordering::Relaxed);
        }
        crate::ffi::descriptor::close(fresh);
        ASKED.store(now, Ordering::Release);
    }
    DEFAULTS
        .each_ref()
        .map(|place| place.load(Ordering::Relaxed))
}

fn all_of(fd: i32) -> [u32; 4] {
    let options = [
        (sockopt::TCP, name::KEEPIDLE),
        (sockopt::TCP, name::KEEPINTVL),
        (sockopt::TCP, name::KEEPCNT),
        (sockopt::IP, name::TTL),
    ];
    options.map(|(level, name)| {
        let value = sockopt::number(fd, level, name).unwrap_or(0);
        u32::try_from(value).unwrap_or(0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channel::cell::option;
    use crate::fd::options;
    use crate::ffi::descriptor;

    #[test]
    fn a_socket_that_nobody_touched_is_what_its_twin_says() {
        let fd = twin::unused().unwrap();
        let whole = options::read(fd, Touched::ALL);
        assert_eq!(options::read(fd, Touched::NOTHING), whole);
        options::set_nonblocking(fd);
        let whole = options::read(fd, Touched::ALL);
        assert_eq!(options::read(fd, Touched::NONBLOCKING), whole);
        descriptor::close(fd);
    }

    #[test]
    fn what_was_set_is_read_when_its_group_is_noted() {
        let fd = twin::unused().unwrap();
        let number = [
            (sockopt::TCP, name::NODELAY, 1),
            (sockopt::TCP, name::CORK, 1),
            (sockopt::SOCKET, name::KEEPALIVE, 1),
            (sockopt::TCP, name::KEEPIDLE, 77),
            (sockopt::SOCKET, name::REUSEADDR, 1),
            (sockopt::TCP, name::USER_TIMEOUT, 9_000),
            (sockopt::SOCKET, name::RCVBUF, 65_536),
            (sockopt::SOCKET, name::RCVLOWAT, 9),
            (sockopt::IP, name::TOS, 16),
            (sockopt::IP, name::TTL, 9),
            (sockopt::TCP, name::MAXSEG, 900),
            (sockopt::TCP, name::SYNCNT, 2),
            (sockopt::TCP, name::SAVE_SYN, 2),
        ];
        let mut touched = Touched::NOTHING;
        for (level, name, value) in number {
            sockopt::set_number(fd, level, name, value).unwrap();
            touched.0 |= Touched::by_option(level, name).0;
            let known = options::read(fd, touched);
            assert_eq!(known, options::read(fd, Touched::ALL), "{level} {name}");
        }
        descriptor::close(fd);
    }

    #[test]
    fn a_client_without_delay_is_asked_for_that_alone() {
        let fd = twin::unused().unwrap();
        for name in [name::NODELAY, name::CORK] {
            sockopt::set_number(fd, sockopt::TCP, name, 1).unwrap();
        }
        let bits = |touched| options::read(fd, touched).bits;
        let touched = Touched::by_option(sockopt::TCP, name::NODELAY);
        assert_eq!(bits(touched), option::NODELAY);
        assert_eq!(
            bits(Touched::NODELAY_ON),
            option::NODELAY,
            "it is remembered"
        );
        assert_eq!(bits(Touched::NOTHING), 0);
        let touched = Touched::by_option(sockopt::TCP, name::CORK);
        assert_eq!(bits(touched), option::CORK);
        descriptor::close(fd);
    }

    #[test]
    fn an_option_without_a_group_may_change_every_other_one() {
        let options = Touched::by_option(9, 9);
        for group in [
            Touched::NODELAY,
            Touched::CORK,
            Touched::KEEPALIVE,
            Touched::REUSE,
            Touched::TIMEOUTS,
            Touched::BUFFERS,
            Touched::LINGER,
            Touched::OTHERS,
        ] {
            assert!(options.has(group), "{group:?}");
        }
        assert!(!options.has(Touched::NAME) && !options.has(Touched::FLAGS));
    }
}
