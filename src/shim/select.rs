//! select and pselect.
//!
//! # Safety
//! Arguments go to the original as they came, or through `cvt`; lists of the program are used for the length
//! that came with them, during the call only.

#![allow(unsafe_code)]

use core::ffi::c_int;
use core::time::Duration;

use libc::{fd_set, sigset_t, timespec, timeval};

use super::cvt;
use super::poll::{any_is_ours, asked};
use crate::attach;
use crate::errno::{Errno, Result};
use crate::fd::{revive, table};
use crate::ffi::real;
use crate::ffi::wait::SignalMask;
use crate::iomux::scratch::Scratch;
use crate::iomux::{self, Sets};
use crate::time::monotonic;

/// A set of select(2) as words; None for null.
///
/// # Safety
/// Null, or as many words as `count` numbers need.
unsafe fn words<'a>(set: *mut fd_set, count: u32) -> Option<&'a mut [u64]> {
    if set.is_null() {
        return None;
    }
    let words = count.div_ceil(64) as usize;
    // SAFETY: not null, aligned (checked by the caller), as long as the program promises.
    Some(unsafe { core::slice::from_raw_parts_mut(set.cast::<u64>(), words) })
}

/// The sets when they name an accelerated socket.
///
/// # Safety
/// As select(2).
unsafe fn selected<'a>(count: c_int, sets: [*mut fd_set; 3]) -> Option<(u32, Sets<'a>)> {
    attach::link()?;
    let count = u32::try_from(count).ok()?;
    let bad = |set: &*mut fd_set| {
        !set.is_null() && (cvt::is_nowhere(*set) || !set.cast::<u64>().is_aligned())
    };
    if count as usize > table::NUMBERS || sets.iter().any(bad) {
        return None;
    }
    let [read, write, except] = sets.map(|set| {
        // SAFETY: aligned; as the caller promises.
        unsafe { words(set, count) }
    });
    let sets = Sets {
        read,
        write,
        except,
    };
    let end = c_int::try_from(count).ok()?.min(table::end());
    let names = |set: &Option<&mut [u64]>, fd: c_int| {
        let (word, bit) = (usize::try_from(fd / 64).unwrap_or(usize::MAX), fd % 64);
        set.as_ref()
            .and_then(|set| set.get(word))
            .is_some_and(|word| word & (1 << bit) != 0)
    };
    let asked =
        |fd: &c_int| names(&sets.read, *fd) || names(&sets.write, *fd) || names(&sets.except, *fd);
    any_is_ours((0..end).filter(asked)).then_some((count, sets))
}

/// Waits as select(2) does.
fn select_sets(
    count: u32,
    sets: &mut Sets<'_>,
    timeout: Option<Duration>,
    mask: Option<SignalMask>,
) -> Result<usize> {
    // What was asked, for another look after one that found nothing.
    let length = count.div_ceil(64).max(1) as usize;
    let mut kept = Scratch::filled(3 * length, 0)?;
    let kept = kept.as_mut_slice();
    let words = [&mut sets.read, &mut sets.write, &mut sets.except];
    for (copy, set) in kept.chunks_exact_mut(length).zip(words) {
        copy.iter_mut()
            .zip(set.iter().flat_map(|set| set.iter()))
            .for_each(|(copy, word)| *copy = *word);
    }
    let mut is_first = true;
    revive::in_slices(timeout, |slice| {
        let link = attach::link().ok_or(Errno::INTR)?;
        if !core::mem::replace(&mut is_first, false) {
            let words = [&mut sets.read, &mut sets.write, &mut sets.except];
            for (copy, set) in kept.chunks_exact(length).zip(words) {
                set.iter_mut()
                    .flat_map(|set| set.iter_mut())
                    .zip(copy)
                    .for_each(|(word, copy)| *word = *copy);
            }
        }
        let target = |fd| asked(link, fd);
        iomux::select(link, count, sets, &target, slice, mask)
    })
}

/// select(2). The time that is left is written back, as Linux does.
///
/// # Safety
/// As for the C function.
pub unsafe fn select(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    // SAFETY: as the caller promises.
    let Some((number, mut sets)) = (unsafe { selected(count, [read, write, except]) }) else {
        // SAFETY: the caller's arguments, unchanged.
        return unsafe { real::select(count, read, write, except, timeout) };
    };
    // SAFETY: as the caller promises.
    let span = match unsafe { cvt::span_micros(timeout) } {
        Ok(span) => span,
        Err(error) => return cvt::done(Err(error)),
    };
    let begun = monotonic();
    let result = select_sets(number, &mut sets, span, None);
    if let Some(span) = span {
        let left = span.saturating_sub(monotonic().since(begun));
        let left = timeval {
            tv_sec: libc::time_t::try_from(left.as_secs()).unwrap_or(libc::time_t::MAX),
            tv_usec: libc::suseconds_t::from(left.subsec_micros()),
        };
        // SAFETY: not null, since there was a span; writable as the caller promises.
        unsafe { timeout.write_unaligned(left) };
    }
    cvt::number(result)
}

/// pselect(2).
///
/// # Safety
/// As for the C function.
pub unsafe fn pselect(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: as the caller promises.
    let Some((number, mut sets)) = (unsafe { selected(count, [read, write, except]) }) else {
        // SAFETY: the caller's arguments, unchanged.
        return unsafe { real::pselect(count, read, write, except, timeout, mask) };
    };
    // SAFETY: as the caller promises.
    let span = unsafe { cvt::span(timeout) };
    let result = span.and_then(|span| {
        // SAFETY: as the caller promises.
        let mask = unsafe { cvt::mask(mask) }?;
        select_sets(number, &mut sets, span, mask)
    });
    cvt::number(result)
}
