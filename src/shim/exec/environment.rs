//! The environment of a program that gets a parcel: where the parcel is, and the preloaded object where it is not named.
//!
//! # Safety
//! An environment is read as libc reads it; the new one points into it, and into its own value, for one call.

#![allow(unsafe_code)]

use core::ffi::{CStr, c_char};
use core::fmt::Write;
use core::ptr;

use super::List;
use crate::attach;
use crate::errno::{Errno, Result};
use crate::fd::handover;
use crate::ffi::environment;
use crate::iomux::scratch::Scratch;

/// Visits the strings of a list.
///
/// # Safety
/// Null, or such a list.
unsafe fn each(list: List, mut visit: impl FnMut(*const c_char)) {
    let mut at = list;
    while !at.is_null() {
        // SAFETY: inside the list.
        let entry = unsafe { at.read_unaligned() };
        if entry.is_null() {
            return;
        }
        visit(entry);
        // SAFETY: not the last one.
        at = unsafe { at.add(1) };
    }
}

/// Bytes of a preload list that we write.
const PRELOAD_BYTES: usize = 2_048;

/// The environment of a program that gets a parcel.
pub(super) struct Environment {
    list: Scratch<*const c_char>,
    parcel: [u8; 24],
    preload: [u8; PRELOAD_BYTES],
}

/// Text into bytes that stay terminated.
struct Text<'a> {
    bytes: &'a mut [u8],
    used: usize,
}

impl Text<'_> {
    fn push(&mut self, bytes: &[u8]) -> Result<()> {
        let end = self.used + bytes.len();
        if end >= self.bytes.len() {
            return Err(Errno::NAMETOOLONG);
        }
        let place = self.bytes.get_mut(self.used..end);
        place.ok_or(Errno::NAMETOOLONG)?.copy_from_slice(bytes);
        self.used = end;
        Ok(())
    }
}

impl Write for Text<'_> {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        self.push(text.as_bytes()).map_err(|_| core::fmt::Error)
    }
}

/// Whether a preload list names our object by an absolute path.
fn names_frame(value: &[u8]) -> bool {
    const NAME: &[u8] = b"libknet_frame";
    value
        .split(|byte| matches!(byte, b':' | b' '))
        .any(|path| path.starts_with(b"/") && path.windows(NAME.len()).any(|part| part == NAME))
}

impl Environment {
    /// Room for `list` and what is added.
    ///
    /// # Safety
    /// `list` as an environment.
    pub(super) unsafe fn new(list: List) -> Result<Self> {
        let mut count = 0;
        // SAFETY: as the caller promises.
        unsafe { each(list, |_| count += 1) };
        Ok(Self {
            list: Scratch::filled(count + ADDED, ptr::null())?,
            parcel: [0; 24],
            preload: [0; PRELOAD_BYTES],
        })
    }

    /// Fills it in.
    ///
    /// # Safety
    /// `list` as in [`Environment::new`].
    pub(super) unsafe fn fill(&mut self, list: List, parcel: i32) -> Result<List> {
        let mut text = Text {
            bytes: &mut self.parcel,
            used: 0,
        };
        text.push(handover::NAME)?;
        write!(text, "={parcel}").map_err(|_| Errno::NAMETOOLONG)?;
        let mut preload: &[u8] = b"";
        let places = self.list.as_mut_slice();
        let mut used = 0;
        let mut put = |entry: *const c_char| {
            if let Some(place) = places.get_mut(used) {
                *place = entry;
                used += 1;
            }
        };
        let mut known = [false; KEPT_MAX];
        let visit = |entry: *const c_char| {
            // SAFETY: a terminated string of the list, which outlives this call.
            let text = unsafe { CStr::from_ptr(entry) };
            if let Some(value) = value_of(text, b"LD_PRELOAD") {
                preload = value;
                if names_frame(value) {
                    put(entry);
                }
            } else if value_of(text, handover::NAME).is_none() {
                note_kept(text, &mut known);
                put(entry);
            }
        };
        // SAFETY: as the caller promises.
        unsafe { each(list, visit) };
        let mut index = 0;
        environment::for_each_kept(|entry| {
            if known.get(index) == Some(&false) && entry.to_bytes().starts_with(b"KNET_") {
                put(entry.as_ptr());
            }
            index += 1;
        });
        if !names_frame(preload) {
            let frame = attach::frame().ok_or(Errno::NOENT)?;
            let mut text = Text {
                bytes: &mut self.preload,
                used: 0,
            };
            text.push(b"LD_PRELOAD=")?;
            text.push(frame.as_bytes())?;
            if !preload.is_empty() {
                text.push(b":")?;
                text.push(preload)?;
            }
            put(self.preload.as_ptr().cast());
        }
        put(self.parcel.as_ptr().cast());
        put(ptr::null());
        Ok(places.as_ptr())
    }
}

/// Entries that are added at most, with the null pointer.
const ADDED: usize = KEPT_MAX + 3;
/// Variables of ours.
const KEPT_MAX: usize = 8;

/// The value when `entry` is that of `name`.
fn value_of<'a>(entry: &'a CStr, name: &[u8]) -> Option<&'a [u8]> {
    entry.to_bytes().strip_prefix(name)?.strip_prefix(b"=")
}

/// Notes which of our variables the list has.
fn note_kept(entry: &CStr, known: &mut [bool; KEPT_MAX]) {
    let mut index = 0;
    environment::for_each_kept(|kept| {
        let name = kept.to_bytes().split(|byte| *byte == b'=').next();
        if let (Some(name), Some(known)) = (name, known.get_mut(index))
            && value_of(entry, name).is_some()
        {
            *known = true;
        }
        index += 1;
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_environment_without_us_gets_us() {
        let old = [
            c"A=1".as_ptr(),
            c"KNET_EXEC=9".as_ptr(),
            c"LD_PRELOAD=x.so".as_ptr(),
            ptr::null(),
        ];
        // SAFETY: such a list.
        let mut made = unsafe { Environment::new(old.as_ptr()) }.unwrap();
        // SAFETY: the same.
        let new = unsafe { made.fill(old.as_ptr(), 700) }.unwrap();
        let mut seen = Vec::new();
        let note = |entry: *const c_char| {
            // SAFETY: terminated.
            seen.push(
                unsafe { CStr::from_ptr(entry) }
                    .to_str()
                    .unwrap()
                    .to_owned(),
            );
        };
        // SAFETY: such a list.
        unsafe { each(new, note) };
        let frame = attach::frame_path().unwrap();
        assert!(seen.contains(&"A=1".to_owned()));
        assert!(seen.contains(&format!("LD_PRELOAD={frame}:x.so")));
        assert_eq!(
            seen.iter()
                .filter(|entry| entry.starts_with("KNET_EXEC="))
                .count(),
            1
        );
        assert!(seen.contains(&"KNET_EXEC=700".to_owned()));
    }

    #[test]
    fn a_relative_name_is_not_enough() {
        assert!(names_frame(b"a.so:/usr/lib/libknet_frame.so"));
        assert!(!names_frame(b"libknet_frame.so"));
        assert!(!names_frame(b""));
    }
}
