//! Socket options: the program's words in the cell, and what the host must be told.

use super::state;
use crate::attach::{Link, Object};
use crate::channel::cell::{ObjectCell, kind};
use crate::channel::sync::{AtomicU32, Ordering};
use crate::errno::Result;
use crate::readiness::{self, News};
use crate::waiter;

/// Linger is on (bit 31 of [`crate::channel::cell::WishLine::linger`]).
pub const LINGER_ON: u32 = 1 << 31;

/// The options of a socket as they are read off its kernel twin when it is routed. Zero = default.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Options {
    /// See [`crate::channel::cell::option`].
    pub bits: u32,
    /// TCP_KEEPIDLE in seconds.
    pub keepidle_s: u32,
    /// TCP_KEEPINTVL in seconds.
    pub keepintvl_s: u32,
    /// TCP_KEEPCNT.
    pub keepcnt: u32,
    /// TCP_USER_TIMEOUT in milliseconds.
    pub user_timeout_ms: u32,
    /// SO_RCVBUF as the kernel reports it.
    pub rcvbuf: u32,
    /// SO_SNDBUF as the kernel reports it.
    pub sndbuf: u32,
    /// TCP_MAXSEG.
    pub max_segment: u32,
    /// IP_TOS.
    pub tos: u32,
    /// IP_TTL.
    pub ttl: u32,
    /// IP_MINTTL.
    pub min_ttl: u32,
    /// TCP_SYNCNT.
    pub syn_count: u32,
    /// TCP_LINGER2 in seconds; negative as its bits.
    pub linger2_s: u32,
    /// TCP_DEFER_ACCEPT in seconds.
    pub defer_accept_s: u32,
    /// TCP_NOTSENT_LOWAT in bytes.
    pub notsent_lowat: u32,
    /// SO_PEEK_OFF plus one.
    pub peek_offset: u32,
    /// SO_RCVTIMEO in microseconds.
    pub rcvtimeo_us: u64,
    /// SO_SNDTIMEO in microseconds.
    pub sndtimeo_us: u64,
    /// SO_RCVLOWAT in bytes.
    pub rcvlowat: u32,
    /// SO_LINGER: [`LINGER_ON`] and the seconds.
    pub linger: u32,
    /// The F_SETFL bits.
    pub status_flags: u32,
}

impl Options {
    /// Reads an object's options.
    #[must_use]
    pub fn of(cell: &ObjectCell) -> Self {
        let word = |word: &AtomicU32| word.load(Ordering::Relaxed);
        let option = &cell.option;
        Self {
            bits: word(&option.bits),
            keepidle_s: word(&option.keepidle_s),
            keepintvl_s: word(&option.keepintvl_s),
            keepcnt: word(&option.keepcnt),
            user_timeout_ms: word(&option.user_timeout_ms),
            rcvbuf: word(&option.rcvbuf),
            sndbuf: word(&option.sndbuf),
            max_segment: word(&option.max_segment),
            tos: word(&option.tos),
            ttl: word(&option.ttl),
            min_ttl: word(&option.min_ttl),
            syn_count: word(&option.syn_count),
            linger2_s: word(&option.linger2_s),
            defer_accept_s: word(&option.defer_accept_s),
            notsent_lowat: word(&option.notsent_lowat),
            peek_offset: word(&cell.read.peek_offset),
            rcvtimeo_us: cell.read.rcvtimeo_us.load(Ordering::Relaxed),
            sndtimeo_us: cell.read.sndtimeo_us.load(Ordering::Relaxed),
            rcvlowat: word(&cell.read.rcvlowat),
            linger: word(&cell.wish.linger),
            status_flags: word(&cell.read.status_flags),
        }
    }

    /// Writes them into an object's cell. The caller rings its bell.
    pub fn apply(&self, cell: &ObjectCell) {
        let option = &cell.option;
        for (word, value) in [
            (&option.bits, self.bits),
            (&option.keepidle_s, self.keepidle_s),
            (&option.keepintvl_s, self.keepintvl_s),
            (&option.keepcnt, self.keepcnt),
            (&option.user_timeout_ms, self.user_timeout_ms),
            (&option.rcvbuf, self.rcvbuf),
            (&option.sndbuf, self.sndbuf),
            (&option.max_segment, self.max_segment),
            (&option.tos, self.tos),
            (&option.ttl, self.ttl),
            (&option.min_ttl, self.min_ttl),
            (&option.syn_count, self.syn_count),
            (&option.linger2_s, self.linger2_s),
            (&option.defer_accept_s, self.defer_accept_s),
            (&option.notsent_lowat, self.notsent_lowat),
            (&cell.read.peek_offset, self.peek_offset),
            (&cell.read.rcvlowat, self.rcvlowat),
            (&cell.read.status_flags, self.status_flags),
            (&cell.wish.linger, self.linger),
        ] {
            word.store(value, Ordering::Relaxed);
        }
        cell.read
            .rcvtimeo_us
            .store(self.rcvtimeo_us, Ordering::Relaxed);
        cell.read
            .sndtimeo_us
            .store(self.sndtimeo_us, Ordering::Relaxed);
        // Release: the host reads `changed` with Acquire and then the words.
        option.changed.fetch_add(1, Ordering::Release);
    }
}

/// SO_RCVLOWAT as the cell keeps it: at most half of the receive ring (tcp_set_rcvlowat), or a full window would never
/// reach it.
#[must_use]
pub fn low_water(link: &Link, wanted: u32) -> u32 {
    wanted.min(link.control.layout().rx_ring_bytes / 2)
}

/// Whether the program asked for a mark that no buffer holds.
#[must_use]
pub fn is_cut(link: &Link, cell: &ObjectCell) -> bool {
    let mark = cell.read.rcvlowat.load(Ordering::Relaxed);
    mark >= low_water(link, u32::MAX) || readiness::low_water(cell) < u64::from(mark)
}

/// Sets SO_RCVLOWAT to `wanted` and tells who waits when what is there is enough now (tcp_set_rcvlowat, tcp_data_ready).
pub fn set_low_water(link: &Link, object: Object, cell: &ObjectCell, wanted: u32) {
    cell.read
        .rcvlowat
        .store(low_water(link, wanted), Ordering::SeqCst);
    let is_stream = cell.host.kind.load(Ordering::Acquire) == kind::STREAM;
    if is_stream && readiness::readable_bytes(cell) >= readiness::low_water(cell) {
        readiness::alert(&link.control, object.index, News::Arrived, |slot| {
            waiter::wake(link, slot)
        });
    }
}

/// Changes options that the host must know: `write` stores them, then the host is told.
///
/// # Errors
/// EBADF for a handle that is no more.
pub fn change(
    link: &Link,
    object: Object,
    write: impl FnOnce(&crate::channel::cell::OptionLine),
) -> Result<()> {
    let cell = state::cell(link, object)?;
    write(&cell.option);
    cell.option.changed.fetch_add(1, Ordering::Release);
    link.ring(object.index);
    Ok(())
}

/// Sets or clears a bit of [`crate::channel::cell::option`].
///
/// # Errors
/// EBADF for a handle that is no more.
pub fn set_bit(link: &Link, object: Object, bit: u32, on: bool) -> Result<()> {
    change(link, object, |option| {
        if on {
            option.bits.fetch_or(bit, Ordering::Relaxed);
        } else {
            option.bits.fetch_and(!bit, Ordering::Relaxed);
        }
    })
}

/// The pending error, which it takes (SO_ERROR); 0 = none.
///
/// # Errors
/// EBADF for a handle that is no more.
pub fn take_error(link: &Link, object: Object) -> Result<i32> {
    let cell = state::cell(link, object)?;
    Ok(state::take_error(cell).map_or(0, crate::errno::Errno::raw_os_error))
}
