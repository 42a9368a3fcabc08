//! The environment and the auxiliary vector, read without locks.
//!
//! What is ours in it is kept as it was when this object was loaded: a server that clears its environment, writes its title
//! over it or goes to another folder still finds its config, and its next host, where the first ones were.
//!
//! # Safety
//! `environ` is walked as getenv(3) walks it: valid as long as no other thread changes the environment at the same
//! time, which POSIX forbids to programs with threads.

#![allow(unsafe_code)]

use core::ffi::{CStr, c_char};
use core::ptr;
use std::sync::OnceLock;

unsafe extern "C" {
    static mut environ: *const *const c_char;
}

/// Visits the entries `NAME=value` in order until `visit` says false.
pub fn for_each(mut visit: impl FnMut(&'static CStr) -> bool) {
    let place = &raw const environ;
    // SAFETY: reads the pointer variable of libc; see the module.
    let mut at = unsafe { ptr::read(place) };
    while !at.is_null() {
        // SAFETY: `at` points into a list of pointers that ends with a null.
        let entry = unsafe { *at };
        if entry.is_null() {
            return;
        }
        // SAFETY: each entry is a terminated string that lives as long as the environment.
        if !visit(unsafe { CStr::from_ptr(entry) }) {
            return;
        }
        // SAFETY: not the last one, so the next place is still in the list.
        at = unsafe { at.add(1) };
    }
}

/// Names that are ours; all of them name files or folders.
const KEPT: [&[u8]; 5] = [
    b"KNET_CONF",
    b"KNET_HOST",
    b"KNET_RUN_DIR",
    b"KNET_LOG",
    b"XDG_RUNTIME_DIR",
];
/// The longest entry that is kept.
const ENTRY_BYTES: usize = 512;

/// The entries of [`KEPT`] as they were at load, with absolute paths.
static COPIES: [OnceLock<[u8; ENTRY_BYTES]>; KEPT.len()] = [const { OnceLock::new() }; KEPT.len()];

/// Keeps what is ours, once, when this object is loaded.
pub fn remember() {
    for (name, copy) in KEPT.iter().zip(&COPIES) {
        let entry = live(name).map(CStr::to_bytes);
        if let Some(entry) = entry.filter(|entry| entry.len() > name.len() + 1) {
            let mut bytes = [0; ENTRY_BYTES];
            if absolute(&mut bytes, name.len() + 1, entry).is_some() {
                // The first load counts.
                let _ = copy.set(bytes);
            }
        }
    }
}

/// Writes an entry whose value begins at `value_at`, and ends before the last byte, which stays zero.
fn absolute(into: &mut [u8; ENTRY_BYTES], value_at: usize, entry: &[u8]) -> Option<()> {
    let (name, value) = entry.split_at_checked(value_at)?;
    let mut end = 0;
    let mut put = |bytes: &[u8]| -> Option<()> {
        let room = into.get_mut(end..ENTRY_BYTES - 1)?;
        room.get_mut(..bytes.len())?.copy_from_slice(bytes);
        end += bytes.len();
        Some(())
    };
    put(name)?;
    if !value.starts_with(b"/") {
        let mut folder = [0_u8; ENTRY_BYTES];
        // SAFETY: the kernel writes at most so many bytes, the last one a zero.
        let size = unsafe { libc::syscall(libc::SYS_getcwd, folder.as_mut_ptr(), ENTRY_BYTES) };
        let used = usize::try_from(size).ok()?.checked_sub(1)?;
        put(folder.get(..used)?)?;
        put(b"/")?;
    }
    put(value)
}

/// Whether `entry` is that of `name`.
fn is_of(entry: &CStr, name: &[u8]) -> bool {
    let rest = entry.to_bytes().strip_prefix(name);
    rest.is_some_and(|rest| rest.starts_with(b"="))
}

/// The entry of `name` as the environment has it now.
fn live(name: &[u8]) -> Option<&'static CStr> {
    let mut found = None;
    for_each(|entry| {
        if is_of(entry, name) {
            found = Some(entry);
        }
        found.is_none()
    });
    found
}

/// Whether `entry` is one of ours, which [`for_each_kept`] visits.
#[must_use]
pub fn is_kept(entry: &CStr) -> bool {
    KEPT.iter().any(|name| is_of(entry, name))
}

/// Visits our entries as they count now: an absolute path that the program has set itself, else what was there at load.
pub fn for_each_kept(mut visit: impl FnMut(&'static CStr)) {
    for name in KEPT {
        if let Some(entry) = kept(name) {
            visit(entry);
        }
    }
}

fn kept(name: &[u8]) -> Option<&'static CStr> {
    let now = live(name);
    let is_absolute = |entry: &&CStr| entry.to_bytes().get(name.len() + 1) == Some(&b'/');
    let at_load = KEPT
        .iter()
        .position(|kept| *kept == name)
        .and_then(|place| COPIES.get(place)?.get())
        .and_then(|copy| CStr::from_bytes_until_nul(copy).ok());
    now.filter(is_absolute).or(at_load).or(now)
}

/// The environment as exec takes it.
#[must_use]
pub fn list() -> *const *const c_char {
    let place = &raw const environ;
    // SAFETY: reads the pointer variable of libc; see the module.
    unsafe { ptr::read(place) }
}

/// The folders that execvp(3) searches.
#[must_use]
pub fn search_path() -> Option<&'static [u8]> {
    live(b"PATH")?.to_bytes().strip_prefix(b"PATH=")
}

/// Takes `name` out of the environment; its value when that is a number. Only while nobody else reads the environment: when this
/// object is loaded. Under secure-exec it stays, and is not believed.
pub fn take_number(name: &[u8]) -> Option<i32> {
    let value = live(name)?.to_bytes().get(name.len() + 1..)?;
    let number = core::str::from_utf8(value).ok()?.parse().ok();
    if is_secure() {
        return None;
    }
    remove(name);
    number
}

fn remove(name: &[u8]) {
    let place = &raw const environ;
    // SAFETY: reads the pointer variable of libc; see the module.
    let mut from = unsafe { ptr::read(place) }.cast_mut();
    let mut to = from;
    while !from.is_null() {
        // SAFETY: `from` points into a list of pointers that ends with a null.
        let entry = unsafe { *from };
        // SAFETY: a terminated string when it is not null.
        let is_one = !entry.is_null() && is_of(unsafe { CStr::from_ptr(entry) }, name);
        if !is_one {
            // SAFETY: at `from` or before it in the same list, which libc lets the program change.
            unsafe { *to = entry };
            // SAFETY: at most one behind the last.
            to = unsafe { to.add(1) };
        }
        if entry.is_null() {
            return;
        }
        // SAFETY: not the last one, so the next place is still in the list.
        from = unsafe { from.add(1) };
    }
}

/// The value of `name`, or None. Under secure-exec nothing is found, as with secure_getenv(3).
#[must_use]
pub fn secure_value(name: &[u8]) -> Option<&'static CStr> {
    if is_secure() {
        return None;
    }
    let entry = kept(name)?.to_bytes_with_nul();
    let value = CStr::from_bytes_with_nul(entry.get(name.len() + 1..)?).ok()?;
    (!value.is_empty()).then_some(value)
}

/// Whether the kernel started this program with more rights than its user has (AT_SECURE).
#[must_use]
pub fn is_secure() -> bool {
    // SAFETY: getauxval only reads a table of the process.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_found_by_its_whole_name() {
        assert!(secure_value(b"PATH").is_some());
        assert!(secure_value(b"PAT").is_none());
        assert!(!is_secure());
    }

    #[test]
    fn what_is_kept_is_absolute_and_ends() {
        let copy = |entry: &[u8]| {
            let mut bytes = [0; ENTRY_BYTES];
            absolute(&mut bytes, 10, entry)?;
            let text = CStr::from_bytes_until_nul(&bytes).unwrap();
            Some(text.to_str().unwrap().to_owned())
        };
        assert_eq!(copy(b"KNET_CONF=/a/b").unwrap(), "KNET_CONF=/a/b");
        let here = std::env::current_dir().unwrap();
        let here = here.to_str().unwrap();
        assert_eq!(
            copy(b"KNET_CONF=a/b").unwrap(),
            format!("KNET_CONF={here}/a/b")
        );
        let mut long = b"KNET_CONF=/".to_vec();
        long.resize(ENTRY_BYTES - 1, b'x');
        assert_eq!(copy(&long).unwrap().len(), ENTRY_BYTES - 1);
        long.push(b'x');
        assert_eq!(copy(&long), None, "it would be cut");
        assert!(is_kept(c"KNET_LOG=") && !is_kept(c"KNET_LOGS=1"));
    }
}
