//! C arguments to Rust and back: the only place where pointers of the program are looked through.
//!
//! # Safety
//! A pointer of the program is checked for null and other places where nothing can lie ([`is_nowhere`]), and used for the length
//! that came with it, during the call only; as with any libc function, what else it points to is the caller's promise.
//! Structures are read unaligned.

#![allow(unsafe_code)]

use core::ffi::{c_int, c_void};
use core::net::{Ipv4Addr, SocketAddrV4};
use core::time::Duration;
use std::io::{IoSlice, IoSliceMut};

use libc::{iovec, sigset_t, sockaddr, sockaddr_in, socklen_t, ssize_t, timespec, timeval};

use crate::errno::{Errno, Result};
use crate::ffi::errno;
use crate::ffi::wait::SignalMask;

/// AF_INET as it stands in an address.
#[allow(clippy::cast_possible_truncation)] // 2
const INET: libc::sa_family_t = libc::AF_INET as libc::sa_family_t;
/// Most parts of one call (UIO_MAXIOV).
pub(super) const PARTS_MAX: usize = 1_024;
/// Most bytes of one call (MAX_RW_COUNT).
pub(super) const BYTES_MAX: usize = 0x7fff_f000;

/// Whether nothing of the program can lie at `place`: the first page (null, and a member of a structure that is null), and what
/// is the kernel's or no address. Anything else only the kernel knows, for a system call each time (docs/compatibility.md).
pub(super) fn is_nowhere<T>(place: *const T) -> bool {
    place.addr().wrapping_sub(FIRST_PAGE) >= PROGRAM_END - FIRST_PAGE
}

/// Whether `place` is the kernel's or no address, which the kernel sees before it waits for anything (access_ok).
pub(super) fn is_beyond<T>(place: *const T) -> bool {
    place.addr() >= PROGRAM_END
}

/// Never mapped, because vm.mmap_min_addr is at least as much.
const FIRST_PAGE: usize = 4_096;
/// The largest address space of a program (five levels of tables); where the top byte is free for tags, the kernel's half.
const PROGRAM_END: usize = if cfg!(target_arch = "x86_64") {
    1 << 56
} else {
    1 << 63
};

/// A result as a C function returns it: -1 and errno.
pub(super) fn answer(result: Result<c_int>) -> c_int {
    result.unwrap_or_else(|error| {
        errno::set(error);
        -1
    })
}

/// A result without a value.
pub(super) fn done(result: Result<()>) -> c_int {
    answer(result.map(|()| 0))
}

/// A count of bytes or of events.
pub(super) fn count(result: Result<usize>) -> ssize_t {
    match result {
        Ok(count) => ssize_t::try_from(count).unwrap_or(ssize_t::MAX),
        Err(error) => {
            errno::set(error);
            -1
        }
    }
}

/// A count as an int.
pub(super) fn number(result: Result<usize>) -> c_int {
    answer(result.map(|count| c_int::try_from(count).unwrap_or(c_int::MAX)))
}

/// The IPv4 address at `place`, or None when it is something else (the kernel then answers).
///
/// # Safety
/// As bind(2): `len` readable bytes.
pub(super) unsafe fn ipv4(place: *const sockaddr, len: socklen_t) -> Option<SocketAddrV4> {
    let lengths = size_of::<sockaddr_in>()..=size_of::<libc::sockaddr_storage>();
    if is_nowhere(place) || !lengths.contains(&(len as usize)) {
        return None;
    }
    // SAFETY: somewhere, and at least a sockaddr_in long as the caller says.
    let address = unsafe { place.cast::<sockaddr_in>().read_unaligned() };
    if c_int::from(address.sin_family) != libc::AF_INET {
        return None;
    }
    Some(SocketAddrV4::new(
        Ipv4Addr::from(u32::from_be(address.sin_addr.s_addr)),
        u16::from_be(address.sin_port),
    ))
}

/// Checks an address that is copied and then ignored (move_addr_to_kernel).
///
/// # Errors
/// EINVAL for a bad length, EFAULT.
pub(super) fn check_ignored(place: *const sockaddr, len: socklen_t) -> Result<()> {
    if place.is_null() {
        return Ok(());
    }
    if len as usize > size_of::<libc::sockaddr_storage>() {
        return Err(Errno::INVAL);
    }
    if len > 0 && is_nowhere(place) {
        return Err(Errno::FAULT);
    }
    Ok(())
}

/// Whether the family at `place` is AF_UNSPEC (connect(2): dissolve).
///
/// # Safety
/// As connect(2): `len` readable bytes.
pub(super) unsafe fn is_unspec(place: *const sockaddr, len: socklen_t) -> bool {
    if is_nowhere(place) || (len as usize) < size_of::<libc::sa_family_t>() {
        return false;
    }
    // SAFETY: not null and long enough for the family, which is the first member.
    let family = unsafe { place.cast::<libc::sa_family_t>().read_unaligned() };
    c_int::from(family) == libc::AF_UNSPEC
}

/// Writes `address` as accept(2) and getsockname(2) do: cut to `*len`, which becomes the whole length. A null `place`
/// asks for nothing.
///
/// # Errors
/// EFAULT for a null `len`, EINVAL for a negative one.
///
/// # Safety
/// As accept(2): `*len` writable bytes at `place`.
pub(super) unsafe fn put_address(
    address: SocketAddrV4,
    place: *mut sockaddr,
    len: *mut socklen_t,
) -> Result<()> {
    if place.is_null() {
        return Ok(());
    }
    let wire = sockaddr_in {
        sin_family: INET,
        sin_port: address.port().to_be(),
        sin_addr: libc::in_addr {
            s_addr: address.ip().to_bits().to_be(),
        },
        sin_zero: [0; 8],
    };
    // SAFETY: `len` is checked in there; 16 bytes of a local are read.
    unsafe {
        put(
            (&raw const wire).cast(),
            size_of::<sockaddr_in>(),
            place.cast(),
            len,
        )
    }
}

/// Says that there is no address, as a stream does to recvfrom(2).
///
/// # Errors
/// EFAULT, EINVAL for a negative `*len`.
///
/// # Safety
/// `len` null or writable.
pub(super) unsafe fn put_no_address(len: *mut socklen_t) -> Result<()> {
    if is_nowhere(len) {
        return Err(Errno::FAULT);
    }
    // SAFETY: somewhere.
    if c_int::try_from(unsafe { len.read_unaligned() }).is_err() {
        return Err(Errno::INVAL);
    }
    // SAFETY: as above.
    unsafe { len.write_unaligned(0) };
    Ok(())
}

/// Copies `have` bytes to `place`, cut to `*len`; `*len` becomes `have` (addresses).
///
/// # Safety
/// `have` readable bytes at `from`; `*len` writable ones at `place`.
unsafe fn put(
    from: *const c_void,
    have: usize,
    place: *mut c_void,
    len: *mut socklen_t,
) -> Result<()> {
    if is_nowhere(len) || is_nowhere(place) {
        return Err(Errno::FAULT);
    }
    // SAFETY: somewhere.
    let room = unsafe { len.read_unaligned() };
    if c_int::try_from(room).is_err() {
        return Err(Errno::INVAL);
    }
    // SAFETY: both sides have at least that many bytes; a local never overlaps the program's memory.
    unsafe {
        core::ptr::copy_nonoverlapping(from.cast::<u8>(), place.cast(), have.min(room as usize))
    };
    // SAFETY: not null.
    unsafe { len.write_unaligned(socklen_t::try_from(have).unwrap_or(0)) };
    Ok(())
}

/// Checks the pair (place, len) of accept(2).
///
/// # Errors
/// EFAULT, EINVAL as the kernel.
///
/// # Safety
/// `len` null or readable.
pub(super) unsafe fn check_address_room(place: *mut sockaddr, len: *mut socklen_t) -> Result<()> {
    if place.is_null() {
        return Ok(());
    }
    if is_nowhere(len) {
        return Err(Errno::FAULT);
    }
    // SAFETY: somewhere.
    let room = unsafe { len.read_unaligned() };
    if c_int::try_from(room).is_err() {
        return Err(Errno::INVAL);
    }
    if room > 0 && is_nowhere(place) {
        return Err(Errno::FAULT);
    }
    Ok(())
}

/// Writes an option's value as getsockopt(2) does: cut to `*len`, which becomes what was written.
///
/// # Errors
/// EFAULT for pointers to nowhere, EINVAL for a negative length.
///
/// # Safety
/// As getsockopt(2).
pub(super) unsafe fn put_option(
    value: &[u8],
    place: *mut c_void,
    len: *mut socklen_t,
) -> Result<()> {
    if is_nowhere(len) {
        return Err(Errno::FAULT);
    }
    // SAFETY: somewhere.
    let room = unsafe { len.read_unaligned() } as usize;
    let cut = value.get(..value.len().min(room)).unwrap_or(value);
    // SAFETY: as the caller promises; `cut` is a slice.
    unsafe { put(cut.as_ptr().cast(), cut.len(), place, len) }
}

/// Bytes to send.
///
/// # Errors
/// EFAULT for a pointer to nowhere with a length.
///
/// # Safety
/// `len` readable bytes for the call.
pub(super) unsafe fn bytes<'a>(place: *const c_void, len: usize) -> Result<&'a [u8]> {
    if len == 0 {
        return Ok(&[]);
    }
    if is_nowhere(place) {
        return Err(Errno::FAULT);
    }
    // SAFETY: somewhere; as the caller promises; never more than isize::MAX.
    Ok(unsafe { core::slice::from_raw_parts(place.cast(), len.min(BYTES_MAX)) })
}

/// Room to receive into.
///
/// # Errors
/// EFAULT for a pointer to nowhere with a length.
///
/// # Safety
/// `len` writable bytes for the call.
pub(super) unsafe fn room<'a>(place: *mut c_void, len: usize) -> Result<&'a mut [u8]> {
    if len == 0 {
        return Ok(&mut []);
    }
    if is_nowhere(place) {
        return Err(Errno::FAULT);
    }
    // SAFETY: somewhere; as the caller promises; never more than isize::MAX.
    Ok(unsafe { core::slice::from_raw_parts_mut(place.cast(), len.min(BYTES_MAX)) })
}

/// The parts of a scatter or gather call up to the first one that lies nowhere: the bytes of a call go in and out as far as that.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reach {
    /// Parts before it.
    count: usize,
    /// Bytes of those parts.
    pub(super) bytes: usize,
    /// Bytes of all parts.
    pub(super) total: usize,
    /// There is no such part.
    pub(super) is_whole: bool,
}

/// The parts of a scatter or gather call, checked as the kernel does (import_iovec).
///
/// # Errors
/// EINVAL for a bad count or length, EFAULT for what the kernel sees at once.
///
/// # Safety
/// As readv(2).
unsafe fn reach(place: *const iovec, count: usize) -> Result<Reach> {
    if count > PARTS_MAX {
        return Err(Errno::INVAL);
    }
    if is_nowhere(place) && count > 0 {
        return Err(Errno::FAULT);
    }
    let mut reach = Reach {
        count: 0,
        bytes: 0,
        total: 0,
        is_whole: true,
    };
    for index in 0..count {
        // SAFETY: index < count.
        let at = unsafe { place.add(index) };
        // SAFETY: inside the list that the caller promises.
        let part = unsafe { at.read_unaligned() };
        if isize::try_from(part.iov_len).is_err() {
            return Err(Errno::INVAL);
        }
        if is_beyond(part.iov_base) {
            return Err(Errno::FAULT);
        }
        reach.is_whole &= part.iov_len == 0 || !is_nowhere(part.iov_base);
        reach.total = reach.total.saturating_add(part.iov_len);
        if reach.is_whole {
            reach.count = index + 1;
            reach.bytes = reach.total;
        }
    }
    Ok(reach)
}

/// Parts collected on the stack, for lists that cannot be seen as slices directly.
pub(super) const GATHERED: usize = 64;

/// Calls `send` with the parts of a gather call that lie somewhere.
///
/// # Errors
/// As [`reach`], and what `send` says.
///
/// # Safety
/// As writev(2).
pub(super) unsafe fn with_slices<T>(
    place: *const iovec,
    count: usize,
    send: impl FnOnce(&[IoSlice<'_>], Reach) -> Result<T>,
) -> Result<T> {
    // SAFETY: as the caller promises.
    let reach = unsafe { reach(place, count) }?;
    let count = reach.count;
    let mut slices = [IoSlice::new(&[]); GATHERED];
    if count <= GATHERED {
        for (index, slot) in slices.iter_mut().enumerate().take(count) {
            // SAFETY: index < count.
            let at = unsafe { place.add(index) };
            // SAFETY: inside the list.
            let part = unsafe { at.read_unaligned() };
            // SAFETY: checked above; as the caller promises.
            *slot = IoSlice::new(unsafe { bytes(part.iov_base, part.iov_len) }?);
        }
        return send(slices.get(..count).unwrap_or(&[]), reach);
    }
    // SAFETY: IoSlice has the layout of iovec (its documentation); none of these parts has a null base and a length, and an
    // empty part is never looked through but by its length.
    let list = unsafe { core::slice::from_raw_parts(place.cast::<IoSlice<'_>>(), count) };
    send(list, reach)
}

/// Calls `receive` with the parts of a scatter call that lie somewhere.
///
/// # Errors
/// As [`reach`], and what `receive` says.
///
/// # Safety
/// As readv(2).
pub(super) unsafe fn with_rooms<T>(
    place: *const iovec,
    count: usize,
    receive: impl FnOnce(&mut [IoSliceMut<'_>], Reach) -> Result<T>,
) -> Result<T> {
    // SAFETY: as the caller promises.
    let reach = unsafe { reach(place, count) }?;
    let count = reach.count;
    if count <= GATHERED {
        let mut list: [IoSliceMut<'_>; GATHERED] =
            core::array::from_fn(|_| IoSliceMut::new(&mut []));
        for (index, slot) in list.iter_mut().enumerate().take(count) {
            // SAFETY: index < count.
            let at = unsafe { place.add(index) };
            // SAFETY: inside the list.
            let part = unsafe { at.read_unaligned() };
            // SAFETY: checked above; as the caller promises.
            *slot = IoSliceMut::new(unsafe { room(part.iov_base, part.iov_len) }?);
        }
        return receive(list.get_mut(..count).unwrap_or(&mut []), reach);
    }
    let list = place.cast_mut().cast::<IoSliceMut<'_>>();
    // SAFETY: IoSliceMut has the layout of iovec (its documentation); checked as above. The list itself is not written.
    let list = unsafe { core::slice::from_raw_parts_mut(list, count) };
    receive(list, reach)
}

/// Bytes of a call with a part that lies nowhere that go in or out: Linux copies a segment, of 32 KiB when there is more, or nothing
/// of it (skb_page_frag_refill, skb_copy_datagram_iter).
pub(super) const fn whole_copies(bytes: usize) -> usize {
    const COPY_BYTES: usize = 32 << 10;
    bytes / COPY_BYTES * COPY_BYTES
}

/// A span of time, or None for null (for ever).
///
/// # Errors
/// EINVAL for a value out of range, EFAULT.
///
/// # Safety
/// Null or readable.
pub(super) unsafe fn span(place: *const timespec) -> Result<Option<Duration>> {
    if !is_given(place)? {
        return Ok(None);
    }
    // SAFETY: not null.
    let time = unsafe { place.read_unaligned() };
    let seconds = u64::try_from(time.tv_sec).map_err(|_| Errno::INVAL)?;
    let nanos = u32::try_from(time.tv_nsec).map_err(|_| Errno::INVAL)?;
    if nanos >= 1_000_000_000 {
        return Err(Errno::INVAL);
    }
    Ok(Some(Duration::new(seconds, nanos)))
}

/// As [`span`] for select(2), whose microseconds may exceed a second.
///
/// # Errors
/// EINVAL for a negative value, EFAULT.
///
/// # Safety
/// Null or readable.
pub(super) unsafe fn span_micros(place: *const timeval) -> Result<Option<Duration>> {
    if !is_given(place)? {
        return Ok(None);
    }
    // SAFETY: not null.
    let time = unsafe { place.read_unaligned() };
    let seconds = u64::try_from(time.tv_sec).map_err(|_| Errno::INVAL)?;
    let micros = u64::try_from(time.tv_usec).map_err(|_| Errno::INVAL)?;
    Ok(Some(
        Duration::from_secs(seconds).saturating_add(Duration::from_micros(micros)),
    ))
}

/// Milliseconds as poll(2) and epoll_wait(2) take them: negative = for ever.
pub(super) fn millis(timeout: c_int) -> Option<Duration> {
    u64::try_from(timeout).ok().map(Duration::from_millis)
}

/// A signal mask, or None for null.
///
/// # Errors
/// EFAULT.
///
/// # Safety
/// Null or readable.
pub(super) unsafe fn mask(place: *const sigset_t) -> Result<Option<SignalMask>> {
    if !is_given(place)? {
        return Ok(None);
    }
    // SAFETY: not null; the kernel's mask is the first eight bytes.
    let bits = unsafe { place.cast::<u64>().read_unaligned() };
    Ok(Some(SignalMask(bits)))
}

/// Whether something that may be left out is there.
fn is_given<T>(place: *const T) -> Result<bool> {
    if !place.is_null() && is_nowhere(place) {
        return Err(Errno::FAULT);
    }
    Ok(!place.is_null())
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::ptr;

    #[test]
    fn an_address_goes_through_and_is_cut() {
        let address = SocketAddrV4::new(Ipv4Addr::new(10, 77, 0, 1), 6_379);
        let mut wire = [0_u8; 16];
        let mut len: socklen_t = 16;
        // SAFETY: 16 writable bytes.
        unsafe { put_address(address, wire.as_mut_ptr().cast(), &raw mut len) }.unwrap();
        // SAFETY: 16 readable bytes.
        assert_eq!(unsafe { ipv4(wire.as_ptr().cast(), len) }, Some(address));
        // SAFETY: as above.
        assert_eq!(unsafe { ipv4(wire.as_ptr().cast(), 15) }, None);
        let mut short = [9_u8; 4];
        len = 2;
        // SAFETY: two writable bytes.
        unsafe { put_address(address, short.as_mut_ptr().cast(), &raw mut len) }.unwrap();
        assert_eq!((short[2], len), (9, 16));
        // SAFETY: null pointers are refused.
        let refused = unsafe { put_address(address, wire.as_mut_ptr().cast(), ptr::null_mut()) };
        assert_eq!(refused, Err(Errno::FAULT));
        len = socklen_t::MAX;
        // SAFETY: a bad length is refused before anything is written.
        let refused = unsafe { check_address_room(wire.as_mut_ptr().cast(), &raw mut len) };
        assert_eq!(refused, Err(Errno::INVAL));
    }

    #[test]
    fn bad_parts_are_refused_as_the_kernel_does() {
        let mut data = *b"abc";
        let good = iovec {
            iov_base: data.as_mut_ptr().cast(),
            iov_len: 3,
        };
        let empty = iovec {
            iov_base: ptr::null_mut(),
            iov_len: 0,
        };
        let null = iovec {
            iov_base: ptr::null_mut(),
            iov_len: 1,
        };
        let huge = iovec {
            iov_base: data.as_mut_ptr().cast(),
            iov_len: usize::MAX,
        };
        let total = |parts: &[IoSlice<'_>], reach: Reach| {
            let bytes = parts.iter().map(|part| part.len()).sum::<usize>();
            assert_eq!(bytes, reach.bytes);
            Ok((bytes, reach.total))
        };
        let list = [good, empty, good];
        // SAFETY: three parts that lie in `data`.
        assert_eq!(unsafe { with_slices(list.as_ptr(), 3, total) }, Ok((6, 6)));
        // SAFETY: one part, refused unseen.
        let refused = unsafe { with_slices(&raw const huge, 1, total) };
        assert_eq!(refused, Err(Errno::INVAL));
        let list = [good, null, good];
        // SAFETY: the part that lies nowhere ends it.
        let some = unsafe { with_slices(list.as_ptr(), 3, total) };
        assert_eq!(some, Ok((3, 7)));
        // SAFETY: refused by its count.
        let many = unsafe { with_slices(list.as_ptr(), 1_025, total) };
        assert_eq!(many, Err(Errno::INVAL));
        // SAFETY: refused by its null list.
        let none = unsafe { with_slices(ptr::null(), 1, total) };
        assert_eq!(none, Err(Errno::FAULT));
        // SAFETY: no parts.
        assert_eq!(unsafe { with_slices(ptr::null(), 0, total) }, Ok((0, 0)));
    }

    #[test]
    fn nothing_lies_in_the_first_page_or_in_the_kernels_half() {
        let local = 0_u32;
        for (place, nowhere) in [
            (0, true),
            (16, true),
            (4_095, true),
            (4_096, false),
            ((&raw const local).addr(), false),
            (0x7fff_ffff_f000, false),
            (0xffff_8000_0000_0000, true),
            (usize::MAX, true),
        ] {
            let place = ptr::without_provenance::<u32>(place);
            assert_eq!(is_nowhere(place), nowhere, "{place:?}");
        }
        let garbage = ptr::without_provenance::<u32>(0x4141_4141_4141_4141);
        assert_eq!(is_nowhere(garbage), cfg!(target_arch = "x86_64"));
        // SAFETY: refused unseen.
        let refused = unsafe { span(ptr::without_provenance(8)) };
        assert_eq!(refused, Err(Errno::FAULT));
    }

    #[test]
    fn spans_are_checked() {
        let bad = timespec {
            tv_sec: 0,
            tv_nsec: 1_000_000_000,
        };
        // SAFETY: a local.
        assert_eq!(unsafe { span(&raw const bad) }, Err(Errno::INVAL));
        // SAFETY: null is for ever.
        assert_eq!(unsafe { span(ptr::null()) }, Ok(None));
        let late = timeval {
            tv_sec: 0,
            tv_usec: 1_500_000,
        };
        // SAFETY: a local.
        let late = unsafe { span_micros(&raw const late) };
        assert_eq!(late, Ok(Some(Duration::from_millis(1_500))));
        assert_eq!(millis(-1), None);
    }
}
