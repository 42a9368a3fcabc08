//! getsockopt and setsockopt: the twin is asked first for its errno, then the stack is told.
//!
//! # Safety
//! Arguments go to the original as they came, or through `cvt`.

#![allow(unsafe_code)]

use core::ffi::{c_int, c_void};

use libc::socklen_t;

use super::cvt;
use crate::channel::cell::{ObjectCell, flag, kind, option};
use crate::channel::sync::Ordering;
use crate::errno::{Errno, Result};
use crate::fd::options::{self as options_of_twin, decode_linger, name};
use crate::fd::touched::Touched;
use crate::fd::{self, Socket, Target, own, twin};
use crate::ffi::{real, sockopt};
use crate::readiness;
use crate::socket::options::{self, LINGER_ON, Options};
use crate::socket::{info, listener, state};

/// Options that the channel keeps as they are given; a kernel socket only says whether the value is valid.
const fn kept_as_given(level: c_int, name: c_int) -> bool {
    match level {
        sockopt::SOCKET => matches!(
            name,
            name::KEEPALIVE
                | name::REUSEADDR
                | name::REUSEPORT
                | name::LINGER
                | name::ZEROCOPY
                | name::OOBINLINE
                | name::PEEK_OFF
        ),
        sockopt::TCP => matches!(
            name,
            name::NODELAY
                | name::CORK
                | name::KEEPIDLE
                | name::KEEPINTVL
                | name::KEEPCNT
                | name::USER_TIMEOUT
                | name::MAXSEG
                | name::INQ
        ),
        sockopt::IP => matches!(name, name::TOS | name::TTL),
        _ => false,
    }
}

/// The kernel socket that knows whether an option is valid, and keeps what the channel does not. Of an accepted connection
/// the spare one judges: what is set there is never asked for.
fn judge(fd: c_int, socket: Socket, level: c_int, name: c_int) -> Result<c_int> {
    if !socket.accepted {
        return Ok(fd);
    }
    if kept_as_given(level, name) {
        return twin::spare();
    }
    own::give(fd)?;
    Ok(fd)
}

/// Options that Linux sets on a socket without a connection only (do_tcp_setsockopt); the twin never has one.
fn needs_no_connection(level: c_int, name: c_int) -> bool {
    level == sockopt::TCP && matches!(name, FASTOPEN | FASTOPEN_CONNECT | FASTOPEN_NO_COOKIE)
}

const FASTOPEN: c_int = libc::TCP_FASTOPEN;
const FASTOPEN_CONNECT: c_int = libc::TCP_FASTOPEN_CONNECT;
const FASTOPEN_NO_COOKIE: c_int = libc::TCP_FASTOPEN_NO_COOKIE;

/// setsockopt(2).
///
/// # Safety
/// As for the C function.
pub unsafe fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    let Target::Socket(socket) = fd::target(fd) else {
        fd::touch(fd, Touched::by_option(level, name));
        // SAFETY: the caller's arguments, unchanged.
        return unsafe { real::setsockopt(fd, level, name, value, len) };
    };
    let judge = match judge(fd, socket, level, name) {
        Ok(judge) => judge,
        Err(error) => return cvt::done(Err(error)),
    };
    if needs_no_connection(level, name) && has_connection(socket) == Ok(true) {
        // SAFETY: the caller's arguments; a number that is no socket asks about nothing but them.
        return cvt::done(unsafe { cvt::bytes(value, len as usize) }.and(Err(Errno::INVAL)));
    }
    // SAFETY: the caller's arguments, on another socket.
    let result = unsafe { real::setsockopt(judge, level, name, value, len) };
    if result != 0 {
        return result;
    }
    // SAFETY: as the caller promises.
    let bytes = unsafe { cvt::bytes(value, len as usize) };
    let told = bytes.and_then(|bytes| told(socket, judge, level, name, bytes));
    cvt::done(told.and_then(|()| handed_down(socket, judge, level, name)))
}

/// Whether the socket is neither a listener nor without a connection.
fn has_connection(socket: Socket) -> Result<bool> {
    let cell = state::cell(socket.link, socket.object)?;
    let what = cell.host.kind.load(Ordering::Acquire);
    Ok(what != kind::LISTENER && !readiness::is_disconnected(cell, what))
}

/// Tells the stack what the twin has accepted.
fn told(socket: Socket, judge: c_int, level: c_int, name: c_int, bytes: &[u8]) -> Result<()> {
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
            let kept = options::low_water(link, wanted);
            cell.read.rcvlowat.store(kept, Ordering::Relaxed);
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
fn handed_down(socket: Socket, judge: c_int, level: c_int, name: c_int) -> Result<()> {
    let cell = state::cell(socket.link, socket.object)?;
    let listens = cell.host.kind.load(Ordering::Acquire) == kind::LISTENER;
    if listens && !kept_as_given(level, name) && own::hands_down(judge) {
        options::set_bit(socket.link, socket.object, option::HANDS_DOWN, true)?;
    }
    Ok(())
}

const ECN_BITS: u32 = 3;

/// SO_RCVTIMEO_NEW and SO_SNDTIMEO_NEW: the same layout on 64-bit machines.
const RCVTIMEO_NEW: c_int = 66;
const SNDTIMEO_NEW: c_int = 67;

/// getsockopt(2).
///
/// # Safety
/// As for the C function.
pub unsafe fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    let Target::Socket(socket) = fd::target(fd) else {
        // SAFETY: the caller's arguments, unchanged.
        return unsafe { real::getsockopt(fd, level, name, value, len) };
    };
    if level == sockopt::SOCKET && name == libc::SO_PEERNAME {
        // SAFETY: as the caller promises.
        return cvt::done(unsafe { peer_name(socket, value, len) });
    }
    if level == sockopt::SOCKET && name == libc::SO_COOKIE && !cvt::is_nowhere(len) {
        // SAFETY: somewhere; as the caller promises.
        if (unsafe { len.read_unaligned() } as usize) < size_of::<u64>() {
            return cvt::done(Err(Errno::INVAL));
        }
    }
    let mut buffer = [0; INFO_BYTES];
    match told_by(fd, socket, level, name, &mut buffer) {
        Ok(Some(bytes)) => {
            // SAFETY: as the caller promises.
            let short = level == sockopt::IP && unsafe { is_short(len) };
            let bytes = if short { as_byte(bytes) } else { bytes };
            // SAFETY: as the caller promises.
            cvt::done(unsafe { cvt::put_option(bytes, value, len) })
        }
        Ok(None) => {
            // SAFETY: the caller's arguments, unchanged; the twin has the right type, family and protocol.
            unsafe { real::getsockopt(fd, level, name, value, len) }
        }
        Err(error) => cvt::done(Err(error)),
    }
}

/// Whether a value has room for less than a number, but for something.
///
/// # Safety
/// As getsockopt(2).
unsafe fn is_short(len: *const socklen_t) -> bool {
    // SAFETY: somewhere; as the caller promises.
    !cvt::is_nowhere(len) && matches!(unsafe { len.read_unaligned() }, 1..=3)
}

/// A small number at the IP level goes into one byte then (do_ip_getsockopt).
fn as_byte(number: &[u8]) -> &[u8] {
    let place = usize::from(cfg!(target_endian = "big")) * 3;
    match number
        .try_into()
        .map(|bytes: &[u8; 4]| u32::from_ne_bytes(*bytes))
    {
        Ok(0..=255) => number.get(place..=place).unwrap_or(number),
        _ => number,
    }
}

/// SO_PEERNAME: unlike getpeername, more than there is is EINVAL (sk_getsockopt).
///
/// # Safety
/// As getsockopt(2).
unsafe fn peer_name(socket: Socket, value: *mut c_void, len: *mut socklen_t) -> Result<()> {
    let peer = listener::peer_address(socket.link, socket.object)?;
    if cvt::is_nowhere(len) {
        return Err(Errno::FAULT);
    }
    // SAFETY: somewhere.
    let room = unsafe { len.read_unaligned() };
    if room as usize > size_of::<libc::sockaddr_in>() {
        return Err(Errno::INVAL);
    }
    // SAFETY: as the caller promises.
    unsafe { cvt::put_address(peer, value.cast(), len) }?;
    // SAFETY: not null.
    unsafe { len.write_unaligned(room) };
    Ok(())
}

/// The value of an option that the stack or the cell knows; None = the twin's.
fn told_by(
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
        (sockopt::TCP, name::INFO) => return info(socket, buffer).map(Some),
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
const INFO_BYTES: usize = 512;

/// TCP_INFO from what the stack says; fields that it does not know are 0 (docs/compatibility.md names those it does).
fn info(socket: Socket, buffer: &mut [u8; INFO_BYTES]) -> Result<&[u8]> {
    let facts = info::info(socket.link, socket.object)?;
    let cell = state::cell(socket.link, socket.object)?;
    // As many bytes as this kernel has.
    let size = sockopt::read(twin::spare()?, sockopt::TCP, name::INFO, buffer)?;
    buffer.fill(0);
    let mss = facts.mss.max(1);
    let segments = |bytes: u64| u32::try_from(bytes.div_ceil(u64::from(mss))).unwrap_or(u32::MAX);
    let small = |count: u64| u32::try_from(count).unwrap_or(u32::MAX);
    let listens = cell.host.kind.load(Ordering::Acquire) == kind::LISTENER;
    // State is the first byte, the scale of our window the upper half of the seventh.
    let scale = facts.window_shift << 4;
    let offsets = [
        (0, linux_state(facts.state, listens)),
        (8, facts.rto_us),
        (16, facts.mss),
        // What the peer sends at most, which is what we have announced.
        (20, facts.mss),
        (24, segments(u64::from(facts.in_flight))),
        (52, facts.silent_ms),
        (56, facts.silent_ms),
        (60, facts.mtu),
        (64, facts.window),
        (68, facts.srtt_us),
        (72, facts.rttvar_us),
        (
            76,
            facts
                .slow_start_threshold
                .map_or(NO_THRESHOLD, |bytes| segments(bytes.into())),
        ),
        (80, segments(u64::from(facts.congestion_window))),
        (84, facts.mss),
        // TCP_FASTRETRANS_THRESH: three acknowledgements again.
        (88, 3),
        (96, facts.backed),
        (100, facts.retransmits),
        (136, facts.segments),
        (144, small(facts.unsent)),
        (232, facts.window),
    ];
    for (offset, value) in offsets {
        if let Some(place) = buffer.get_mut(offset..offset + 4) {
            place.copy_from_slice(&value.to_ne_bytes());
        }
    }
    let sent = facts.acked + u64::from(facts.in_flight);
    for (offset, value) in [(120, facts.acked), (128, facts.received), (200, sent)] {
        if let Some(place) = buffer.get_mut(offset..offset + 8) {
            place.copy_from_slice(&value.to_ne_bytes());
        }
    }
    if let (Some(place), Ok(scale)) = (buffer.get_mut(6), u8::try_from(scale)) {
        *place = scale;
    }
    buffer.get(..size).ok_or(Errno::INVAL)
}

/// TCP_INFINITE_SSTHRESH of Linux.
const NO_THRESHOLD: u32 = 0x7fff_ffff;

/// The numbers of Linux' tcp_states.h for [`crate::stack::FlowState`].
fn linux_state(flow: u32, listens: bool) -> u32 {
    const LISTEN: u32 = 10;
    const CLOSE: u32 = 7;
    if listens {
        return LISTEN;
    }
    match flow {
        1 => 2,
        2 => 3,
        3 => 1,
        4 => 4,
        5 => 5,
        6 => 8,
        7 => 11,
        8 => 9,
        // A socket in TIME-WAIT is one without a connection to its program (inet_timewait_sock).
        _ => CLOSE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_have_the_numbers_of_linux() {
        use crate::stack::FlowState;
        assert_eq!(linux_state(FlowState::Established as u32, false), 1);
        assert_eq!(linux_state(FlowState::CloseWait as u32, false), 8);
        assert_eq!(linux_state(FlowState::TimeWait as u32, false), 7);
        assert_eq!(linux_state(0, false), 7);
        assert_eq!(linux_state(0, true), 10);
    }
}
