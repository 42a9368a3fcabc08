//! Streams of the C library on sockets: fdopen, freopen, fclose, dprintf.
//!
//! A stream that libc makes for a descriptor reads and writes it without calling us, and would meet the kernel twin. One for a
//! socket that is or may be accelerated is therefore a cookie stream over our calls (fopencookie(3)), which finds out at each
//! call what the number stands for.
//!
//! # Safety
//! Arguments go to the original as they came. A cookie stream is made by libc and closed by it; its cookie is the address of
//! a static. Two words of a stream are written where glibc keeps them, and only when what stands there is what it puts there.

#![allow(unsafe_code)]

use core::ffi::{CStr, c_char, c_int, c_void};
use core::ptr;
use core::sync::atomic::{AtomicI32, AtomicPtr, Ordering};

use libc::{FILE, off64_t, size_t, ssize_t};

use super::{descriptor, receive, send};
use crate::errno::{Errno, Result};
use crate::fd;
use crate::fd::table::{self, Entry};
use crate::ffi::{errno, real};

/// The calls behind a cookie stream, as libc lays them out.
#[repr(C)]
struct Calls {
    read: unsafe extern "C-unwind" fn(*mut c_void, *mut c_char, size_t) -> ssize_t,
    write: unsafe extern "C-unwind" fn(*mut c_void, *const c_char, size_t) -> ssize_t,
    seek: unsafe extern "C-unwind" fn(*mut c_void, *mut off64_t, c_int) -> c_int,
    close: unsafe extern "C-unwind" fn(*mut c_void) -> c_int,
}

unsafe extern "C" {
    fn __fpurge(stream: *mut FILE);
    fn fopencookie(cookie: *mut c_void, mode: *const c_char, calls: Calls) -> *mut FILE;
    fn vasprintf(text: *mut *mut c_char, format: *const c_char, arguments: *mut c_void) -> c_int;
    fn __vasprintf_chk(
        text: *mut *mut c_char,
        flag: c_int,
        format: *const c_char,
        arguments: *mut c_void,
    ) -> c_int;
}

/// Cookie streams at a time; a further one is refused.
const STREAMS: usize = 1_024;

/// A cookie stream; its address is the cookie.
struct Stream {
    /// Null = free.
    file: AtomicPtr<FILE>,
    fd: AtomicI32,
}

static OPEN: [Stream; STREAMS] = [const {
    Stream {
        file: AtomicPtr::new(ptr::null_mut()),
        fd: AtomicI32::new(-1),
    }
}; STREAMS];

/// Stands for the stream while libc makes it.
const BEING_MADE: *mut FILE = ptr::without_provenance_mut(1);

impl Stream {
    fn claim(fd: c_int) -> Option<&'static Self> {
        let found = OPEN
            .iter()
            .find(|this| this.change(ptr::null_mut(), BEING_MADE))?;
        found.fd.store(fd, Ordering::Relaxed);
        Some(found)
    }

    fn change(&self, from: *mut FILE, to: *mut FILE) -> bool {
        self.file.load(Ordering::Relaxed) == from
            && self
                .file
                .compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
    }

    fn of(file: *mut FILE) -> Option<&'static Self> {
        OPEN.iter()
            .find(|this| !file.is_null() && this.file.load(Ordering::Acquire) == file)
    }

    fn cookie(&'static self) -> *mut c_void {
        ptr::from_ref(self).cast_mut().cast()
    }

    fn free(&self) {
        self.fd.store(-1, Ordering::Relaxed);
        self.file.store(ptr::null_mut(), Ordering::Release);
    }
}

/// Where glibc keeps the number of a stream, in ints from its start (LP64, since 2.1).
const NUMBER_AT: usize = 28;
/// What stands there in a cookie stream.
const NO_NUMBER: c_int = -2;

fn number_of(cookie: *mut c_void) -> c_int {
    // SAFETY: the cookies that we give away are the addresses of statics.
    let stream = unsafe { cookie.cast::<Stream>().as_ref() };
    stream.map_or(-1, |stream| stream.fd.load(Ordering::Relaxed))
}

unsafe extern "C-unwind" fn read_cookie(
    cookie: *mut c_void,
    bytes: *mut c_char,
    len: size_t,
) -> ssize_t {
    // SAFETY: libc's own buffer.
    unsafe { receive::read(number_of(cookie), bytes.cast(), len) }
}

unsafe extern "C-unwind" fn write_cookie(
    cookie: *mut c_void,
    bytes: *const c_char,
    len: size_t,
) -> ssize_t {
    // SAFETY: libc's own buffer.
    unsafe { write_all(number_of(cookie), bytes, len) }
}

/// Writes all, as libc's own streams do (_IO_new_file_write).
///
/// # Safety
/// As write(2).
unsafe fn write_all(fd: c_int, bytes: *const c_char, len: size_t) -> ssize_t {
    let mut done = 0;
    while done < len {
        // SAFETY: inside the caller's buffer.
        let rest = unsafe { bytes.add(done) };
        // SAFETY: as many as are left of it.
        let written = unsafe { send::write(fd, rest.cast(), len - done) };
        match usize::try_from(written) {
            Ok(written) if written > 0 => done += written,
            _ => break,
        }
    }
    ssize_t::try_from(done).unwrap_or(ssize_t::MAX)
}

/// ESPIPE for a socket; freopen may have put a file there.
unsafe extern "C-unwind" fn seek_cookie(
    cookie: *mut c_void,
    offset: *mut off64_t,
    whence: c_int,
) -> c_int {
    // SAFETY: libc's own number.
    let wanted = unsafe { offset.read() };
    // SAFETY: numbers only.
    let now = unsafe { libc::lseek64(number_of(cookie), wanted, whence) };
    if now < 0 {
        return -1;
    }
    // SAFETY: as above.
    unsafe { offset.write(now) };
    0
}

unsafe extern "C-unwind" fn close_cookie(cookie: *mut c_void) -> c_int {
    // SAFETY: numbers only.
    unsafe { descriptor::close(number_of(cookie)) }
}

/// fdopen(3).
///
/// # Safety
/// As for the C function.
pub unsafe fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
    let is_ours = matches!(table::entry(fd), Entry::Socket(_) | Entry::Undecided(_));
    if !is_ours || fd::is_foreign() || mode.is_null() {
        // SAFETY: the caller's arguments, unchanged.
        return unsafe { real::fdopen(fd, mode) };
    }
    let Some(place) = Stream::claim(fd) else {
        errno::set(Errno::MFILE);
        return ptr::null_mut();
    };
    let calls = Calls {
        read: read_cookie,
        write: write_cookie,
        seek: seek_cookie,
        close: close_cookie,
    };
    // SAFETY: a terminated mode as the caller promises; cookie and calls live as long as the process.
    let stream = unsafe { fopencookie(place.cookie(), mode, calls) };
    if stream.is_null() {
        place.free();
        return stream;
    }
    // SAFETY: an open stream, which nobody else has yet.
    unsafe { put_number(stream, fd) };
    place.file.store(stream, Ordering::Release);
    stream
}

/// Lets fileno(3) know the number of a cookie stream.
///
/// # Safety
/// An open stream that no other thread has.
unsafe fn put_number(stream: *mut FILE, fd: c_int) {
    if cfg!(not(all(target_env = "gnu", target_pointer_width = "64"))) {
        return;
    }
    // SAFETY: a stream of glibc is longer than this.
    let place = unsafe { stream.cast::<c_int>().add(NUMBER_AT) };
    // SAFETY: aligned as an int, inside the stream.
    if unsafe { place.read() } == NO_NUMBER {
        // SAFETY: as above.
        unsafe { place.write(fd) };
    }
}

/// The number of a stream; -1 for none.
///
/// # Safety
/// Null or an open stream.
unsafe fn number_of_stream(stream: *mut FILE) -> c_int {
    if stream.is_null() {
        return -1;
    }
    let saved = errno::save();
    // SAFETY: an open stream.
    let fd = unsafe { libc::fileno(stream) };
    errno::restore(saved);
    fd
}

/// fclose(3). Of another stream than ours libc closes the descriptor without calling close().
///
/// # Safety
/// As for the C function.
pub unsafe fn fclose(stream: *mut FILE) -> c_int {
    if let Some(ours) = Stream::of(stream) {
        // Another stream can be made at this address as soon as it is closed.
        ours.change(stream, BEING_MADE);
        // SAFETY: the caller's arguments, unchanged; what is left is written, then the cookie is closed.
        let result = unsafe { real::fclose(stream) };
        ours.free();
        return result;
    }
    // SAFETY: as the caller promises.
    let fd = unsafe { number_of_stream(stream) };
    let old = fd::take(fd);
    // SAFETY: the caller's arguments, unchanged.
    let result = unsafe { real::fclose(stream) };
    let saved = errno::save();
    fd::release(old);
    errno::restore(saved);
    result
}

macro_rules! reopeners {
    ($($name:ident)+) => {
        $(
            /// The call of this name in libc, which puts another file at the stream's number without calling us.
            ///
            /// # Safety
            /// As for the C function.
            pub unsafe fn $name(
                path: *const c_char,
                mode: *const c_char,
                stream: *mut FILE,
            ) -> *mut FILE {
                if let Some(ours) = Stream::of(stream) {
                    // SAFETY: as the caller promises.
                    return unsafe { reopen(ours, path, mode, stream) };
                }
                // SAFETY: as the caller promises.
                let fd = unsafe { number_of_stream(stream) };
                // SAFETY: the caller's arguments, unchanged.
                let result = unsafe { real::$name(path, mode, stream) };
                let saved = errno::save();
                fd::drop_stale(fd);
                if !result.is_null() {
                    // SAFETY: an open stream.
                    fd::drop_stale(unsafe { number_of_stream(result) });
                }
                errno::restore(saved);
                result
            }
        )+
    };
}

reopeners! { freopen freopen64 }

/// freopen(3) of a cookie stream, which libc cannot make another of: the file is put at its number, and the stream goes on
/// with it.
///
/// # Safety
/// As freopen(3).
unsafe fn reopen(
    ours: &'static Stream,
    path: *const c_char,
    mode: *const c_char,
    stream: *mut FILE,
) -> *mut FILE {
    let fd = ours.fd.load(Ordering::Relaxed);
    // SAFETY: an open stream; what cannot be written is lost, as with libc.
    let _ = unsafe { libc::fflush(stream) };
    // SAFETY: as above.
    unsafe { __fpurge(stream) };
    // SAFETY: as the caller promises.
    let opened = unsafe { open_for(path, mode) };
    let (file, wanted) = match opened {
        Ok(opened) => opened,
        Err(error) => {
            // SAFETY: numbers only.
            unsafe { descriptor::close(fd) };
            ours.free();
            errno::set(error);
            return ptr::null_mut();
        }
    };
    let close_on_exec = wanted & libc::O_CLOEXEC;
    // SAFETY: numbers only. The socket's last number may be gone with it.
    unsafe { descriptor::dup3(file, fd, close_on_exec) };
    // SAFETY: numbers only.
    unsafe { descriptor::close(file) };
    // SAFETY: an open stream.
    unsafe { libc::clearerr(stream) };
    // SAFETY: as above.
    unsafe { put_mode(stream, wanted) };
    stream
}

/// Opens the file of a freopen; its number and the flags that the mode means.
///
/// # Safety
/// As freopen(3).
unsafe fn open_for(path: *const c_char, mode: *const c_char) -> Result<(c_int, c_int)> {
    if path.is_null() {
        // A socket cannot be opened again by its number (open(2)).
        return Err(Errno::NXIO);
    }
    if mode.is_null() {
        return Err(Errno::INVAL);
    }
    // SAFETY: not null; terminated as the caller promises.
    let mode = unsafe { CStr::from_ptr(mode) }.to_bytes();
    let letters = mode.split(|letter| *letter == b',').next().unwrap_or(&[]);
    let has = |wanted| letters.contains(&wanted);
    let (alone, more) = match letters.first() {
        Some(b'r') => (libc::O_RDONLY, 0),
        Some(b'w') => (libc::O_WRONLY, libc::O_CREAT | libc::O_TRUNC),
        Some(b'a') => (libc::O_WRONLY, libc::O_CREAT | libc::O_APPEND),
        _ => return Err(Errno::INVAL),
    };
    let mut flags = more | if has(b'+') { libc::O_RDWR } else { alone };
    if has(b'x') {
        flags |= libc::O_EXCL;
    }
    if has(b'e') {
        flags |= libc::O_CLOEXEC;
    }
    // SAFETY: terminated as the caller promises.
    let fd = unsafe { real::open(path, flags, 0o666) };
    if fd < 0 {
        return Err(errno::last());
    }
    Ok((fd, flags))
}

/// Flags of a stream of glibc, in its first int, behind the magic number.
const MAGIC: c_int = c_int::from_ne_bytes(0xfbad_0000_u32.to_ne_bytes());
const MAGIC_MASK: c_int = c_int::from_ne_bytes(0xffff_0000_u32.to_ne_bytes());
const NO_READS: c_int = 4;
const NO_WRITES: c_int = 8;

/// Lets a cookie stream read and write as the flags of its file say.
///
/// # Safety
/// An open stream.
unsafe fn put_mode(stream: *mut FILE, flags: c_int) {
    let place = stream.cast::<c_int>();
    // SAFETY: a stream is longer than an int.
    let before = unsafe { place.read() };
    if before & MAGIC_MASK != MAGIC {
        return;
    }
    let access = match flags & libc::O_ACCMODE {
        libc::O_RDONLY => NO_WRITES,
        libc::O_WRONLY => NO_READS,
        _ => 0,
    };
    // SAFETY: as above.
    unsafe { place.write(before & !(NO_READS | NO_WRITES) | access) };
}

/// Writes a formatted text to a socket, all of it, and frees it. `length` is what the formatting returned.
///
/// # Safety
/// `text` is libc's, of `length` bytes, or `length` is negative.
unsafe fn write_text(fd: c_int, text: *mut c_char, length: c_int) -> c_int {
    let Ok(len) = usize::try_from(length) else {
        return -1;
    };
    // SAFETY: as the caller promises.
    let done = unsafe { write_all(fd, text, len) };
    let saved = errno::save();
    // SAFETY: made by libc for us.
    unsafe { libc::free(text.cast()) };
    errno::restore(saved);
    if usize::try_from(done) == Ok(len) {
        length
    } else {
        -1
    }
}

/// vdprintf(3). `arguments` is a va_list, which our machines pass as a pointer.
///
/// # Safety
/// As for the C function.
pub unsafe fn vdprintf(fd: c_int, format: *const c_char, arguments: *mut c_void) -> c_int {
    if fd::accelerated(fd).is_none() {
        // SAFETY: the caller's arguments, unchanged.
        return unsafe { real::vdprintf(fd, format, arguments) };
    }
    let mut text = ptr::null_mut();
    // SAFETY: as the caller promises.
    let length = unsafe { vasprintf(&raw mut text, format, arguments) };
    // SAFETY: just made.
    unsafe { write_text(fd, text, length) }
}

/// The checked vdprintf of _FORTIFY_SOURCE.
///
/// # Safety
/// As for the C function.
pub unsafe fn __vdprintf_chk(
    fd: c_int,
    flag: c_int,
    format: *const c_char,
    arguments: *mut c_void,
) -> c_int {
    if fd::accelerated(fd).is_none() {
        // SAFETY: the caller's arguments, unchanged.
        return unsafe { real::__vdprintf_chk(fd, flag, format, arguments) };
    }
    let mut text = ptr::null_mut();
    // SAFETY: as the caller promises.
    let length = unsafe { __vasprintf_chk(&raw mut text, flag, format, arguments) };
    // SAFETY: just made.
    unsafe { write_text(fd, text, length) }
}
