//! What an option of an accelerated socket is.

use core::ffi::c_int;

use super::{RCVTIMEO_NEW, SNDTIMEO_NEW, has_connection, tcp_info};
use crate::channel::cell::{ObjectCell, kind, option};
use crate::channel::sync::Ordering;
use crate::errno::Result;
use crate::fd::options::name;
use crate::fd::{Socket, twin};
use crate::ffi::sockopt;
use crate::readiness;
use crate::socket::options::{self, LINGER_ON, Options};
use crate::socket::state;

/// The value of an option that the stack or the cell knows; None = the twin's.
pub(super) fn told(
    fd: c_int,
    socket: Socket,
    level: c_int,
    name: c_int,
    buffer: &mut [u8; INFO_BYTES],
) -> Result<Option<&[u8]>> {
    let (link, object) = (socket.link, socket.object);
    let cell = state::cell(link, object)?;
    let kept = Options::of(cell);
    let has = |bit| Some(i32::from(kept.bits & bit != 0));
    let positive = |value: u32| i32::try_from(value).ok().filter(|value| *value > 0);
    let value = match (level, name) {
        (sockopt::SOCKET, name::ERROR) => Some(options::take_error(link, object)?),
        // Of a listener that came in a message the twin knows nothing.
        (sockopt::SOCKET, libc::SO_ACCEPTCONN) => Some(i32::from(state::listens(cell))),
        // What the payload stage says is above what the program has set.
        (sockopt::SOCKET, libc::SO_MARK) => match cell.fact.payload_mark.load(Ordering::Relaxed) {
            0 => None,
            mark => Some(mark.cast_signed()),
        },
        (sockopt::SOCKET, libc::SO_INCOMING_CPU) => incoming_cpu(fd, socket, cell),
        (sockopt::SOCKET, name::KEEPALIVE) => has(option::KEEPALIVE),
        (sockopt::SOCKET, name::REUSEADDR) => has(option::REUSEADDR),
        (sockopt::SOCKET, name::REUSEPORT) => has(option::REUSEPORT),
        (sockopt::TCP, name::NODELAY) => has(option::NODELAY),
        (sockopt::TCP, name::CORK) => has(option::CORK),
        (sockopt::SOCKET, name::ZEROCOPY) => has(option::ZEROCOPY),
        (sockopt::TCP, name::INQ) => has(option::INQ),
        (sockopt::TCP, name::SAVE_SYN) => {
            let link = i32::from(kept.bits & option::SAVE_SYN_LINK != 0);
            has(option::SAVE_SYN).map(|saves| saves + link)
        }
        (sockopt::SOCKET, name::OOBINLINE) => has(option::OOB_INLINE),
        (sockopt::SOCKET, name::PEEK_OFF) => {
            Some(i32::try_from(kept.peek_offset).map_or(i32::MAX, |offset| offset - 1))
        }
        (sockopt::SOCKET, name::RCVBUF) => positive(kept.rcvbuf),
        (sockopt::SOCKET, name::SNDBUF) => positive(kept.sndbuf),
        // A large one is kept by the twin.
        (sockopt::SOCKET, name::RCVLOWAT) if kept.rcvlowat < options::low_water(link, u32::MAX) => {
            positive(kept.rcvlowat.max(1))
        }
        (sockopt::TCP, name::KEEPIDLE) => positive(kept.keepidle_s),
        (sockopt::TCP, name::KEEPINTVL) => positive(kept.keepintvl_s),
        (sockopt::TCP, name::KEEPCNT) => positive(kept.keepcnt),
        (sockopt::TCP, name::USER_TIMEOUT) => i32::try_from(kept.user_timeout_ms).ok(),
        (sockopt::TCP, name::MAXSEG) => {
            let mss = cell.fact.mss.load(Ordering::Relaxed);
            positive(if mss == 0 { kept.max_segment } else { mss })
        }
        (sockopt::IP, name::TOS) => i32::try_from(kept.tos).ok(),
        (sockopt::IP, name::TTL) => positive(kept.ttl),
        // Nobody can set it on a stream (do_ip_setsockopt); what a SYN came with is taken over (tcp_v4_syn_recv_sock).
        (sockopt::IP, libc::IP_MULTICAST_TTL) if socket.accepted => {
            positive(cell.fact.peer_ttl.load(Ordering::Relaxed))
        }
        // A copy of the spare socket would give all of them one cookie.
        (sockopt::SOCKET, libc::SO_COOKIE) if socket.accepted => {
            return Ok(Some(put(buffer, &[&cookie(socket).to_ne_bytes()])));
        }
        (sockopt::SOCKET, libc::SO_MEMINFO) => return Ok(Some(memory_info(cell, &kept, buffer))),
        (sockopt::SOCKET, name::LINGER) => {
            let seconds = i32::try_from(kept.linger & !LINGER_ON).unwrap_or(i32::MAX);
            let on = i32::from(kept.linger & LINGER_ON != 0);
            return Ok(Some(put(
                buffer,
                &[&on.to_ne_bytes(), &seconds.to_ne_bytes()],
            )));
        }
        (sockopt::SOCKET, name::RCVTIMEO | RCVTIMEO_NEW) => {
            return Ok(Some(put_micros(buffer, kept.rcvtimeo_us)));
        }
        (sockopt::SOCKET, name::SNDTIMEO | SNDTIMEO_NEW) => {
            return Ok(Some(put_micros(buffer, kept.sndtimeo_us)));
        }
        (sockopt::TCP, name::INFO) => return tcp_info::tell(socket, buffer).map(Some),
        // What IP adds to a segment of this size.
        (sockopt::IP, libc::IP_MTU) if has_connection(socket)? => positive(
            cell.fact
                .mss
                .load(Ordering::Relaxed)
                .saturating_add(HEADERS),
        ),
        _ => None,
    };
    Ok(value.map(|value| put(buffer, &[&value.to_ne_bytes()])))
}

/// SO_INCOMING_CPU of a connection: the CPU of the lcore that serves it. None: the twin's, of a listener, of a connection that was
/// told one by the program, and where whoever waits drives.
fn incoming_cpu(fd: c_int, socket: Socket, cell: &ObjectCell) -> Option<i32> {
    let is_told = sockopt::number(fd, sockopt::SOCKET, libc::SO_INCOMING_CPU) != Ok(-1);
    if is_told || cell.host.kind.load(Ordering::Acquire) != kind::STREAM {
        return None;
    }
    let control = &socket.link.control;
    let lcore = control.layout().lcore_of(socket.object.index);
    let line = control.header().lcores_asleep.get(lcore as usize)?;
    let cpu = i32::try_from(line.cpu.load(Ordering::Relaxed)).ok()? - 1;
    (cpu >= 0).then_some(cpu)
}

/// The cookie of an accepted connection: none that the kernel gives, which counts from 1.
fn cookie(socket: Socket) -> u64 {
    const OURS: u64 = 0x4b4e << 48;
    let object = u64::from(socket.object.generation) << 24 | u64::from(socket.object.index);
    OURS | object & !(0xffff << 48)
}

/// SO_MEMINFO (sk_get_meminfo) in the terms of the rings: bytes received and unread, SO_RCVBUF, bytes sent and not acknowledged,
/// SO_SNDBUF, nothing allotted ahead, bytes queued for sending, no option memory, no backlog, no drops.
fn memory_info<'a>(
    cell: &ObjectCell,
    kept: &Options,
    buffer: &'a mut [u8; INFO_BYTES],
) -> &'a [u8] {
    let bytes = |count: u64| u32::try_from(count).unwrap_or(u32::MAX);
    let usual = |name| {
        let spare = twin::spare().and_then(|spare| sockopt::number(spare, sockopt::SOCKET, name));
        spare.ok().and_then(|size| u32::try_from(size).ok())
    };
    let size = |kept: u32, name| {
        if kept == 0 {
            usual(name).unwrap_or(0)
        } else {
            kept
        }
    };
    let queued = bytes(crate::socket::stream::queued_bytes(cell));
    let words = [
        bytes(readiness::readable_bytes(cell)),
        size(kept.rcvbuf, name::RCVBUF),
        queued,
        size(kept.sndbuf, name::SNDBUF),
        0,
        queued,
        0,
        0,
        0,
    ];
    let words = words.map(u32::to_ne_bytes);
    put(buffer, &words.each_ref().map(<[u8; 4]>::as_slice))
}

/// Bytes of the IP and TCP headers without options.
const HEADERS: u32 = 40;

/// Lays parts one behind the other.
fn put<'a>(buffer: &'a mut [u8; INFO_BYTES], parts: &[&[u8]]) -> &'a [u8] {
    let mut used = 0;
    for part in parts {
        if let Some(place) = buffer.get_mut(used..used + part.len()) {
            place.copy_from_slice(part);
            used += part.len();
        }
    }
    buffer.get(..used).unwrap_or(&[])
}

fn put_micros(buffer: &mut [u8; INFO_BYTES], micros: u64) -> &[u8] {
    let (seconds, rest) = (micros / 1_000_000, micros % 1_000_000);
    put(buffer, &[&seconds.to_ne_bytes(), &rest.to_ne_bytes()])
}

/// Bytes of the largest struct tcp_info that we know of, and some.
pub(super) const INFO_BYTES: usize = 512;
