//! Control data that comes with a received message: notices of MSG_ZEROCOPY, time stamps, and TCP_INQ.
//!
//! # Safety
//! Control data is written as the caller of recvmsg promises.

#![allow(unsafe_code)]

use core::ffi::c_int;

use libc::{msghdr, sock_extended_err};

use super::cvt;
use crate::channel::cell::{ObjectCell, flag, option};
use crate::channel::sync::Ordering;
use crate::errno::Result;
use crate::fd::Socket;
use crate::readiness;
use crate::socket::state;

/// A send with MSG_ZEROCOPY took some bytes. They were copied, so its notice is due at once (SO_EE_CODE_ZEROCOPY_COPIED);
/// without SO_ZEROCOPY the flag means nothing.
pub(super) fn zerocopy_sent(socket: Socket) -> Result<()> {
    let cell = state::cell(socket.link, socket.object)?;
    if cell.option.bits.load(Ordering::Relaxed) & option::ZEROCOPY != 0 {
        cell.write.zerocopy_sent.fetch_add(1, Ordering::AcqRel);
        state::announce(socket.link, socket.object);
    }
    Ok(())
}

/// The numbers of the sends whose notice is due, first and last; it is then told.
pub(super) fn take_zerocopy(cell: &ObjectCell) -> Option<(u32, u32)> {
    let first = cell.write.zerocopy_told.load(Ordering::Acquire);
    let end = cell.write.zerocopy_sent.load(Ordering::Acquire);
    let taken =
        cell.write
            .zerocopy_told
            .compare_exchange(first, end, Ordering::AcqRel, Ordering::Relaxed);
    (first != end && taken.is_ok()).then(|| (first, end.wrapping_sub(1)))
}

/// Puts a notice into a message of the error queue (ip_recv_error).
///
/// # Safety
/// The control data of `head` is writable.
pub(super) unsafe fn put_zerocopy(head: &mut msghdr, (first, last): (u32, u32)) {
    // struct sock_extended_err, and the address of an offender that is none.
    let mut bytes = [0; size_of::<sock_extended_err>() + size_of::<libc::sockaddr_in>()];
    let origin = [0, 0, 0, 0, ORIGIN_ZEROCOPY, 0, ZEROCOPY_COPIED, 0];
    for (place, value) in bytes.iter_mut().zip(
        origin
            .into_iter()
            .chain(first.to_ne_bytes())
            .chain(last.to_ne_bytes()),
    ) {
        *place = value;
    }
    let mut items = Items::new(head);
    // SAFETY: as the caller promises.
    unsafe { items.put(libc::IPPROTO_IP, libc::IP_RECVERR, &bytes) };
}

/// SO_EE_ORIGIN_ZEROCOPY.
const ORIGIN_ZEROCOPY: u8 = 5;
/// SO_EE_CODE_ZEROCOPY_COPIED.
const ZEROCOPY_COPIED: u8 = 1;

/// What comes with `count` received bytes: when they came, and how many are left (tcp_recvmsg).
///
/// # Safety
/// The control data of `head` is writable.
pub(super) unsafe fn put_all(head: &mut msghdr, cell: &ObjectCell, count: usize) {
    let bits = cell.option.bits.load(Ordering::Relaxed);
    let mut items = Items::new(head);
    // Without room for one byte it is told of the next one.
    let met = count > 0 || readiness::readable_bytes(cell) > 0;
    if bits & (option::STAMP | option::STAMP_NANOS) != 0 && met {
        // SAFETY: as the caller promises.
        unsafe { put_stamp(&mut items, cell, bits & option::STAMP_NANOS != 0) };
    }
    if bits & option::INQ != 0 {
        // SAFETY: as the caller promises.
        unsafe { put_queue(&mut items, cell) };
    }
}

/// Options that make control data.
pub(super) const MAKES_CONTROL: u32 = option::STAMP | option::STAMP_NANOS | option::INQ;

/// When the last bytes came (tcp_recv_timestamp). Nothing when nobody asked before they did.
///
/// # Safety
/// As above.
unsafe fn put_stamp(items: &mut Items<'_>, cell: &ObjectCell, nanos: bool) {
    let stamp = cell.fact.arrived_ns.load(Ordering::Acquire);
    if stamp == 0 {
        return;
    }
    let (seconds, rest) = (stamp / 1_000_000_000, stamp % 1_000_000_000);
    let (kind, rest) = if nanos {
        (libc::SCM_TIMESTAMPNS, rest)
    } else {
        (libc::SCM_TIMESTAMP, rest / 1_000)
    };
    // struct timespec or timeval, two words each.
    let mut bytes = [0; 16];
    let words = seconds.to_ne_bytes().into_iter().chain(rest.to_ne_bytes());
    for (place, byte) in bytes.iter_mut().zip(words) {
        *place = byte;
    }
    // SAFETY: as the caller promises.
    unsafe { items.put(libc::SOL_SOCKET, kind, &bytes) };
}

/// With TCP_INQ a message says how much is left (tcp_inq_hint): 1 at least once the peer has ended.
///
/// # Safety
/// As above.
unsafe fn put_queue(items: &mut Items<'_>, cell: &ObjectCell) {
    let ended = cell.host.flags.load(Ordering::Acquire) & flag::RX_FINISHED != 0;
    let left = c_int::try_from(readiness::readable_bytes(cell)).unwrap_or(c_int::MAX);
    let left = if left == 0 && ended { 1 } else { left };
    // SAFETY: as the caller promises.
    unsafe { items.put(libc::IPPROTO_TCP, libc::TCP_INQ, &left.to_ne_bytes()) };
}

/// The items of control data of a message, one behind the other. `msg_controllen` is what is used of the room.
struct Items<'a> {
    head: &'a mut msghdr,
    room: usize,
}

impl<'a> Items<'a> {
    fn new(head: &'a mut msghdr) -> Self {
        let room = if cvt::is_nowhere(head.msg_control) {
            0
        } else {
            head.msg_controllen
        };
        head.msg_controllen = 0;
        Self { head, room }
    }

    /// Adds an item, cut to the room there is, with MSG_CTRUNC (put_cmsg).
    ///
    /// # Safety
    /// The room is writable.
    unsafe fn put(&mut self, level: c_int, kind: c_int, bytes: &[u8]) {
        let used = self.head.msg_controllen;
        let room = self.room.saturating_sub(used);
        let size = u32::try_from(bytes.len()).unwrap_or(0);
        // SAFETY: a computation.
        let wanted = unsafe { libc::CMSG_LEN(size) } as usize;
        // SAFETY: a computation.
        let space = unsafe { libc::CMSG_SPACE(size) } as usize;
        if room < size_of::<libc::cmsghdr>() {
            self.head.msg_flags |= libc::MSG_CTRUNC;
            return;
        }
        let mut len = wanted;
        if len > room {
            self.head.msg_flags |= libc::MSG_CTRUNC;
            len = room;
        }
        // SAFETY: inside the room.
        let item = unsafe { self.head.msg_control.cast::<u8>().add(used) };
        let header = libc::cmsghdr {
            cmsg_len: len,
            cmsg_level: level,
            cmsg_type: kind,
        };
        // SAFETY: there is room for a header.
        unsafe { item.cast::<libc::cmsghdr>().write_unaligned(header) };
        let begin = wanted - bytes.len();
        let fits = bytes.len().min(len.saturating_sub(begin));
        // SAFETY: inside the item.
        let data = unsafe { item.add(begin.min(len)) };
        // SAFETY: `fits` bytes of data are inside the room; the program's memory and ours do not overlap.
        unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), data, fits) };
        self.head.msg_controllen = used + room.min(space);
    }
}
