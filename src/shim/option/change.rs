//! What a program sets, as the stack is told of it.

use core::ffi::c_int;

use super::{RCVTIMEO_NEW, SNDTIMEO_NEW, kept_as_given};
use crate::channel::cell::{ObjectCell, flag, kind, option};
use crate::channel::sync::Ordering;
use crate::errno::Result;
use crate::fd::options::{self as options_of_twin, decode_linger, name};
use crate::fd::{Socket, own};
use crate::ffi::sockopt;
use crate::socket::options;
use crate::socket::{info, state};

pub(super) fn tell(
    socket: Socket,
    judge: c_int,
    level: c_int,
    name: c_int,
    bytes: &[u8],
) -> Result<()> {
    let (link, object) = (socket.link, socket.object);
    let cell = state::cell(link, object)?;
    // The IP level takes one byte for a small number (do_ip_setsockopt).
    let int = || {
        let number = bytes.get(..4).and_then(|bytes| bytes.try_into().ok());
        let byte = || bytes.first().map_or(0, |byte| i32::from(*byte));
        number.map_or_else(byte, i32::from_ne_bytes)
    };
    let number = || u32::try_from(int()).unwrap_or(0);
    let bit = |bit| options::set_bit(link, object, bit, int() != 0);
    // What the kernel made of it: clamped, doubled.
    let as_kept = |name| {
        sockopt::number(judge, level, name)
            .ok()
            .and_then(|kept| u32::try_from(kept).ok())
            .unwrap_or(0)
    };
    let word =
        |store: &dyn Fn(&crate::channel::cell::OptionLine)| options::change(link, object, store);
    match (level, name) {
        (sockopt::SOCKET, name::KEEPALIVE) => bit(option::KEEPALIVE),
        (sockopt::SOCKET, name::REUSEADDR) => bit(option::REUSEADDR),
        (sockopt::SOCKET, name::REUSEPORT) => bit(option::REUSEPORT),
        (sockopt::TCP, name::NODELAY) => {
            if int() != 0 {
                // What waits behind a cork goes out all the same (__tcp_sock_set_nodelay).
                push(cell);
            }
            bit(option::NODELAY)
        }
        (sockopt::TCP, name::CORK) => {
            if int() == 0 {
                push(cell);
            }
            bit(option::CORK)
        }
        (sockopt::SOCKET, name::ZEROCOPY) => bit(option::ZEROCOPY),
        (sockopt::TCP, name::INQ) => bit(option::INQ),
        (sockopt::TCP, name::SAVE_SYN) => {
            options::set_bit(link, object, option::SAVE_SYN_LINK, int() == 2)?;
            bit(option::SAVE_SYN)?;
            // The next SYN is kept: who has answered has heard of it.
            info::info(link, object).map(drop)
        }
        (sockopt::SOCKET, name::OOBINLINE) => bit(option::OOB_INLINE),
        (sockopt::SOCKET, name::RCVBUF | libc::SO_RCVBUFFORCE) => {
            let kept = as_kept(name::RCVBUF);
            word(&|line| line.rcvbuf.store(kept, Ordering::Relaxed))
        }
        (sockopt::SOCKET, name::SNDBUF | libc::SO_SNDBUFFORCE) => {
            let kept = as_kept(name::SNDBUF);
            word(&|line| line.sndbuf.store(kept, Ordering::Relaxed))?;
            limited(cell);
            Ok(())
        }
        (sockopt::TCP, name::KEEPIDLE) => {
            word(&|line| line.keepidle_s.store(number(), Ordering::Relaxed))
        }
        (sockopt::TCP, name::KEEPINTVL) => {
            word(&|line| line.keepintvl_s.store(number(), Ordering::Relaxed))
        }
        (sockopt::TCP, name::KEEPCNT) => {
            word(&|line| line.keepcnt.store(number(), Ordering::Relaxed))
        }
        (sockopt::TCP, name::USER_TIMEOUT) => {
            word(&|line| line.user_timeout_ms.store(number(), Ordering::Relaxed))
        }
        (sockopt::TCP, name::MAXSEG) => {
            word(&|line| line.max_segment.store(number(), Ordering::Relaxed))
        }
        // The two bits of congestion notification are not the program's on a stream (ip_setsockopt).
        (sockopt::IP, name::TOS) => word(&|line| {
            let kept = line.tos.load(Ordering::Relaxed) & ECN_BITS;
            let wanted = u32::from_ne_bytes(int().to_ne_bytes()) & 0xff & !ECN_BITS;
            line.tos.store(wanted | kept, Ordering::Relaxed);
        }),
        (sockopt::IP, name::TTL) => {
            word(&|line| line.ttl.store(number(), Ordering::Relaxed))?;
            info::info(link, object).map(drop)
        }
        (sockopt::SOCKET, name::RCVLOWAT) => {
            // What the kernel has made of it, so far as the ring lets it be reached.
            let mut wanted = as_kept(name::RCVLOWAT);
            // Of a buffer that the listener has handed down its socket does not know.
            match cell.option.rcvbuf.load(Ordering::Relaxed) {
                0 => {}
                buffer => wanted = wanted.min(buffer / 2),
            }
            options::set_low_water(link, object, cell, wanted);
            Ok(())
        }
        // In ticks of the kernel, as it tells them.
        (sockopt::SOCKET, name::RCVTIMEO | RCVTIMEO_NEW) => {
            let kept = options_of_twin::micros(judge, name::RCVTIMEO);
            cell.read.rcvtimeo_us.store(kept, Ordering::Relaxed);
            Ok(())
        }
        (sockopt::SOCKET, name::SNDTIMEO | SNDTIMEO_NEW) => {
            let kept = options_of_twin::micros(judge, name::SNDTIMEO);
            cell.read.sndtimeo_us.store(kept, Ordering::Relaxed);
            Ok(())
        }
        (sockopt::SOCKET, name::LINGER) => {
            cell.wish
                .linger
                .store(decode_linger(bytes).unwrap_or(0), Ordering::Relaxed);
            Ok(())
        }
        (sockopt::TCP, name::SYNCNT) => {
            word(&|line| line.syn_count.store(number(), Ordering::Relaxed))
        }
        (sockopt::TCP, name::LINGER2) => word(&|line| {
            let seconds = int().clamp(-1, LINGER2_MAX);
            let bits = u32::from_ne_bytes(seconds.to_ne_bytes());
            line.linger2_s.store(bits, Ordering::Relaxed);
        }),
        (sockopt::TCP, name::DEFER_ACCEPT) => {
            let kept = as_kept(name);
            word(&|line| line.defer_accept_s.store(kept, Ordering::Relaxed))
        }
        (sockopt::TCP, name::NOTSENT_LOWAT) => {
            let kept = u32::from_ne_bytes(int().to_ne_bytes());
            word(&|line| line.notsent_lowat.store(kept, Ordering::Relaxed))?;
            limited(cell);
            Ok(())
        }
        (sockopt::IP, name::MINTTL) => {
            word(&|line| line.min_ttl.store(number(), Ordering::Relaxed))?;
            // It holds from now on: what comes next must meet it. Who has answered has heard of it.
            info::info(link, object).map(drop)
        }
        (sockopt::IP, name::RECVERR) => bit(option::RECEIVE_ERRORS),
        // One of the two at most (sock_set_timestamp).
        (sockopt::SOCKET, name::TIMESTAMP | name::TIMESTAMPNS) => {
            for (name, bit) in [
                (name::TIMESTAMP, option::STAMP),
                (name::TIMESTAMPNS, option::STAMP_NANOS),
            ] {
                options::set_bit(link, object, bit, as_kept(name) != 0)?;
            }
            Ok(())
        }
        (sockopt::SOCKET, name::PEEK_OFF) => {
            let kept = options_of_twin::peek_offset(int());
            cell.read.peek_offset.store(kept, Ordering::Relaxed);
            Ok(())
        }
        // Valid, and without a meaning for the stack.
        _ => Ok(()),
    }
}

/// Lets nothing of what was written so far be held back.
fn push(cell: &ObjectCell) {
    let tail = cell.write.tx_tail.load(Ordering::Relaxed) & u64::from(u32::MAX);
    let low = u32::try_from(tail).unwrap_or(0);
    cell.write.pushed.store(low, Ordering::Relaxed);
}

/// A limit of what may be queued holds for the very next send; the host sets the flag as well.
fn limited(cell: &ObjectCell) {
    cell.host.flags.fetch_or(flag::LIMITED, Ordering::AcqRel);
}

/// TCP_FIN_TIMEOUT_MAX of Linux in seconds.
const LINGER2_MAX: c_int = 120;

/// Notes that connections of a listener get options from it that the channel does not keep.
pub(super) fn hand_down(socket: Socket, judge: c_int, level: c_int, name: c_int) -> Result<()> {
    let cell = state::cell(socket.link, socket.object)?;
    let listens = cell.host.kind.load(Ordering::Acquire) == kind::LISTENER;
    if listens && !kept_as_given(level, name) && own::hands_down(judge) {
        options::set_bit(socket.link, socket.object, option::HANDS_DOWN, true)?;
    }
    Ok(())
}

const ECN_BITS: u32 = 3;
