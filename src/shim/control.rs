//! Control data that comes with a received message: notices of MSG_ZEROCOPY, and TCP_INQ.
//!
//! # Safety
//! Control data is written as the caller of recvmsg promises.

#![allow(unsafe_code)]

use core::ffi::c_int;

use libc::{msghdr, sock_extended_err};

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
    // SAFETY: as the caller promises.
    unsafe { put(head, libc::IPPROTO_IP, libc::IP_RECVERR, &bytes) };
}

/// SO_EE_ORIGIN_ZEROCOPY.
const ORIGIN_ZEROCOPY: u8 = 5;
/// SO_EE_CODE_ZEROCOPY_COPIED.
const ZEROCOPY_COPIED: u8 = 1;

/// With TCP_INQ a message says how much is left (tcp_inq_hint): 1 at least once the peer has ended.
///
/// # Safety
/// The control data of `head` is writable.
pub(super) unsafe fn put_queue(head: &mut msghdr, cell: &ObjectCell) {
    let ended = cell.host.flags.load(Ordering::Acquire) & flag::RX_FINISHED != 0;
    let left = c_int::try_from(readiness::readable_bytes(cell)).unwrap_or(c_int::MAX);
    let left = if left == 0 && ended { 1 } else { left };
    // SAFETY: as the caller promises.
    unsafe { put(head, libc::IPPROTO_TCP, libc::TCP_INQ, &left.to_ne_bytes()) };
}

/// The only item of control data; cut to the room there is, with MSG_CTRUNC (put_cmsg).
///
/// # Safety
/// As above.
unsafe fn put(head: &mut msghdr, level: c_int, kind: c_int, bytes: &[u8]) {
    let room = head.msg_controllen;
    let size = u32::try_from(bytes.len()).unwrap_or(0);
    // SAFETY: a computation.
    let wanted = unsafe { libc::CMSG_LEN(size) };
    // SAFETY: a computation.
    let space = unsafe { libc::CMSG_SPACE(size) };
    // SAFETY: a local copy of the message; null when there is no room for a header.
    let item = unsafe { libc::CMSG_FIRSTHDR(&raw const *head) };
    head.msg_controllen = 0;
    if item.is_null() {
        head.msg_flags |= libc::MSG_CTRUNC;
        return;
    }
    let mut len = wanted as usize;
    if len > room {
        head.msg_flags |= libc::MSG_CTRUNC;
        len = room;
    }
    let header = libc::cmsghdr {
        cmsg_len: len,
        cmsg_level: level,
        cmsg_type: kind,
    };
    // SAFETY: there is room for a header.
    unsafe { item.write_unaligned(header) };
    // SAFETY: inside the item.
    let data = unsafe { libc::CMSG_DATA(item) };
    let fits = bytes
        .len()
        .min(len.saturating_sub(wanted as usize - bytes.len()));
    // SAFETY: `fits` bytes of data are inside the room; the program's memory and ours do not overlap.
    unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), data, fits) };
    head.msg_controllen = room.min(space as usize);
}
