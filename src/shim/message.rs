//! What the calls with a msghdr have in common, and the descriptors that messages carry.
//!
//! # Safety
//! A message is read and written as the caller of the exported call promises.

#![allow(unsafe_code)]

use core::ffi::{c_int, c_uint};

use libc::{mmsghdr, msghdr};

use super::cvt;
use crate::errno::{Errno, Result};
use crate::fd;

/// A message of the program, copied out.
///
/// # Safety
/// Null or readable.
pub(super) unsafe fn header(message: *const msghdr) -> Result<msghdr> {
    if message.is_null() {
        return Err(Errno::FAULT);
    }
    // SAFETY: not null; as the caller promises.
    Ok(unsafe { message.read_unaligned() })
}

/// Runs `one` for each message and stores its count, until one fails; an error only when it is the first.
///
/// # Safety
/// `count` messages.
pub(super) unsafe fn each_message(
    messages: *mut mmsghdr,
    count: c_uint,
    mut one: impl FnMut(*mut msghdr) -> Result<usize>,
) -> Result<usize> {
    let count = (count as usize).min(cvt::PARTS_MAX);
    if messages.is_null() && count > 0 {
        return Err(Errno::FAULT);
    }
    for index in 0..count {
        // SAFETY: index < count.
        let message = unsafe { messages.add(index) };
        // SAFETY: inside the list.
        let head = unsafe { &raw mut (*message).msg_hdr };
        match one(head) {
            Ok(bytes) => {
                // SAFETY: inside the list.
                let place = unsafe { &raw mut (*message).msg_len };
                // SAFETY: the list is writable.
                unsafe { place.write_unaligned(c_uint::try_from(bytes).unwrap_or(c_uint::MAX)) };
            }
            Err(error) if index == 0 => return Err(error),
            Err(_) => return Ok(index),
        }
    }
    Ok(count)
}

/// Descriptors that came with a message are new numbers.
///
/// # Safety
/// A message that the kernel has just filled in.
pub(super) unsafe fn drop_stale_of(message: *const msghdr) {
    // SAFETY: as the caller promises.
    unsafe { for_each_descriptor(message, fd::drop_stale) };
}

/// Whether a message would hand an accelerated socket to somebody.
///
/// # Safety
/// As sendmsg(2).
pub(super) unsafe fn carries_accelerated(message: *const msghdr) -> bool {
    let mut found = false;
    // SAFETY: as the caller promises.
    unsafe { for_each_descriptor(message, |fd| found |= fd::accelerated(fd).is_some()) };
    found
}

/// Visits the descriptors in a message's control data.
///
/// # Safety
/// Null, or a message whose control data is readable.
unsafe fn for_each_descriptor(message: *const msghdr, mut visit: impl FnMut(c_int)) {
    // SAFETY: as the caller promises.
    let Ok(head) = (unsafe { header(message) }) else {
        return;
    };
    if head.msg_control.is_null() || head.msg_controllen == 0 {
        return;
    }
    // SAFETY: a local copy of a message with control data.
    let mut item = unsafe { libc::CMSG_FIRSTHDR(&raw const head) };
    while !item.is_null() {
        // SAFETY: inside the control data.
        let item_head = unsafe { item.read_unaligned() };
        if item_head.cmsg_level == libc::SOL_SOCKET && item_head.cmsg_type == libc::SCM_RIGHTS {
            // SAFETY: a complete header.
            let data = unsafe { libc::CMSG_DATA(item) }.cast::<c_int>();
            // SAFETY: a constant.
            let space = unsafe { libc::CMSG_LEN(0) } as usize;
            let count = item_head.cmsg_len.saturating_sub(space) / size_of::<c_int>();
            for index in 0..count {
                // SAFETY: index < count.
                let place = unsafe { data.add(index) };
                // SAFETY: inside the item's data.
                visit(unsafe { place.read_unaligned() });
            }
        }
        // SAFETY: `item` came from this message.
        item = unsafe { libc::CMSG_NXTHDR(&raw const head, item) };
    }
}
