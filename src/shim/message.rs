//! What the calls with a msghdr have in common, and the descriptors that messages carry.
//!
//! # Safety
//! A message is read and written as the caller of the exported call promises.

#![allow(unsafe_code)]

use core::ffi::{c_int, c_uint};

use libc::{mmsghdr, msghdr, ssize_t};

use super::cvt;
use crate::errno::{Errno, Result};
use crate::fd::{self, passing};
use crate::ffi::{descriptor, errno};

/// A message of the program, copied out.
///
/// # Safety
/// Null or readable.
pub(super) unsafe fn header(message: *const msghdr) -> Result<msghdr> {
    if cvt::is_nowhere(message) {
        return Err(Errno::FAULT);
    }
    // SAFETY: somewhere; as the caller promises.
    Ok(unsafe { message.read_unaligned() })
}

/// Runs `one` for each message and stores its count, until one fails: how many did not, and why one did.
///
/// # Safety
/// `count` messages.
pub(super) unsafe fn each_message(
    messages: *mut mmsghdr,
    count: c_uint,
    mut one: impl FnMut(*mut msghdr) -> Result<usize>,
) -> (usize, Option<Errno>) {
    let count = (count as usize).min(cvt::PARTS_MAX);
    if cvt::is_nowhere(messages) && count > 0 {
        return (0, Some(Errno::FAULT));
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
            Err(error) => return (index, Some(error)),
        }
    }
    (count, None)
}

/// What a call about several messages returns: an error only of the first.
pub(super) fn told((done, error): (usize, Option<Errno>)) -> Result<usize> {
    match error {
        Some(error) if done == 0 => Err(error),
        _ => Ok(done),
    }
}

/// Descriptors that came with a message are new numbers.
///
/// # Safety
/// A message that the kernel has just filled in.
pub(super) unsafe fn receive_descriptors(message: *const msghdr) {
    let arrive = |place: *mut c_int| {
        // SAFETY: a descriptor inside the control data.
        passing::arrived(unsafe { place.read_unaligned() });
    };
    // SAFETY: as the caller promises.
    unsafe { for_each_descriptor(message, arrive) };
}

/// Whether a message would hand an accelerated socket to somebody.
///
/// # Safety
/// As sendmsg(2).
pub(super) unsafe fn carries_accelerated(message: *const msghdr) -> bool {
    let mut found = false;
    let look = |place: *mut c_int| {
        // SAFETY: a descriptor inside the control data.
        found |= fd::accelerated(unsafe { place.read_unaligned() }).is_some();
    };
    // SAFETY: as the caller promises.
    unsafe { for_each_descriptor(message, look) };
    found
}

/// As [`carries_accelerated`], of several messages.
///
/// # Safety
/// Null, or `count` messages as sendmmsg(2).
pub(super) unsafe fn any_carries_accelerated(messages: *const mmsghdr, count: c_uint) -> bool {
    let count = (count as usize).min(cvt::PARTS_MAX);
    !cvt::is_nowhere(messages)
        && (0..count).any(|index| {
            // SAFETY: index < count.
            let message = unsafe { messages.add(index) };
            // SAFETY: inside the list.
            let head = unsafe { &raw const (*message).msg_hdr };
            // SAFETY: as the caller promises.
            unsafe { carries_accelerated(head) }
        })
}

/// Bytes of control data that are copied: 253 descriptors (SCM_MAX_FD) and the sender's credentials fit.
const CONTROL_WORDS: usize = 160;

/// Sends a message that carries accelerated sockets: their tokens take their places.
///
/// # Safety
/// As sendmsg(2).
pub(super) unsafe fn send_with_tokens(
    message: *const msghdr,
    send: impl FnOnce(*const msghdr) -> ssize_t,
) -> Result<ssize_t> {
    // SAFETY: as the caller promises.
    let mut head = unsafe { header(message) }?;
    let mut control = [0_u64; CONTROL_WORDS];
    if head.msg_controllen > size_of_val(&control) {
        return Err(Errno::INVAL);
    }
    // SAFETY: as many bytes as the caller promises, and room for them.
    unsafe {
        core::ptr::copy_nonoverlapping(
            head.msg_control.cast::<u8>(),
            control.as_mut_ptr().cast::<u8>(),
            head.msg_controllen,
        );
    }
    head.msg_control = control.as_mut_ptr().cast();
    let mut tokens = Tokens([-1; TOKENS_MAX]);
    let mut free = tokens.0.iter_mut();
    let mut result = Ok(());
    let replace = |place: *mut c_int| {
        // SAFETY: a descriptor inside our copy of the control data.
        let Some(socket) = fd::accelerated(unsafe { place.read_unaligned() }) else {
            return;
        };
        let token = match free.next() {
            Some(free) => passing::token(socket).inspect(|token| *free = *token),
            None => Err(Errno::TOOMANYREFS),
        };
        match token {
            // SAFETY: as above.
            Ok(token) => unsafe { place.write_unaligned(token) },
            Err(error) => result = Err(error),
        }
    };
    // SAFETY: a message of our own.
    unsafe { for_each_descriptor(&raw const head, replace) };
    result?;
    Ok(send(&raw const head))
}

/// Accelerated sockets in one message.
const TOKENS_MAX: usize = 32;

/// Our copies of what was sent.
struct Tokens([c_int; TOKENS_MAX]);

impl Drop for Tokens {
    fn drop(&mut self) {
        let saved = errno::save();
        self.0
            .into_iter()
            .filter(|fd| *fd >= 0)
            .for_each(descriptor::close);
        errno::restore(saved);
    }
}

/// Visits the places of the descriptors in a message's control data.
///
/// # Safety
/// Null, or a message whose control data is readable.
unsafe fn for_each_descriptor(message: *const msghdr, mut visit: impl FnMut(*mut c_int)) {
    // SAFETY: as the caller promises.
    let Ok(head) = (unsafe { header(message) }) else {
        return;
    };
    if cvt::is_nowhere(head.msg_control) || head.msg_controllen == 0 {
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
                visit(place);
            }
        }
        // SAFETY: `item` came from this message.
        item = unsafe { libc::CMSG_NXTHDR(&raw const head, item) };
    }
}
