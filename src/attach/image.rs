//! Whether a program that is about to be executed will load the preloaded object.
//!
//! Not when it is linked statically, of another machine, or gets more rights than its user has (ld.so(8), secure execution).
//! A script is what its interpreter is. A file that cannot be read is believed to: the host finds out.

use core::ffi::CStr;

use rustix::fs::{Access, AtFlags, CWD, Mode, OFlags};

use super::place;
use crate::errno::Errno;
use crate::ffi::{descriptor, environment};
use crate::rendezvous::Path;

/// What becomes of the preloaded object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Loads {
    /// It is loaded.
    Yes,
    /// It is not, for this reason.
    No(&'static str),
    /// There is no such program: exec will fail.
    NoProgram,
}

/// Interpreters of interpreters that Linux follows (fs/exec.c).
const DEPTH: u32 = 4;
/// Bytes of a file that are looked at: the head, and the program headers of every linker's output.
const BYTES: usize = 2_048;

/// Looks at the program at `path` (relative to `folder`, or CWD).
#[must_use]
pub fn of_path(folder: Option<i32>, path: &CStr) -> Loads {
    follow(folder, path, DEPTH)
}

/// Looks at the program that a search of PATH finds (execvp(3)).
#[must_use]
pub fn in_path(name: &CStr) -> Loads {
    if name.to_bytes().contains(&b'/') {
        return of_path(None, name);
    }
    let folders = environment::search_path().unwrap_or(b"/bin:/usr/bin");
    for folder in folders.split(|byte| *byte == b':') {
        let mut path = Path::empty();
        let put = |path: &mut Path| {
            if !folder.is_empty() {
                path.push(folder)?;
                path.push(b"/")?;
            }
            path.push(name.to_bytes())
        };
        if put(&mut path).is_ok() && place::executable(&path).is_ok() {
            return of_path(None, path.as_c_str());
        }
    }
    Loads::NoProgram
}

/// Looks at the program that is open as `fd`.
#[must_use]
pub fn of_descriptor(fd: i32) -> Loads {
    look(fd, DEPTH)
}

fn follow(folder: Option<i32>, path: &CStr, depth: u32) -> Loads {
    let folder = folder
        .and_then(|fd| descriptor::lend(fd).ok())
        .unwrap_or(CWD);
    if rustix::fs::accessat(folder, path, Access::EXEC_OK, AtFlags::EACCESS).is_err() {
        return Loads::NoProgram;
    }
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    match rustix::fs::openat(folder, path, flags, Mode::empty()) {
        Ok(file) => {
            let file = descriptor::raw(file);
            let loads = look(file, depth);
            descriptor::shut(file);
            loads
        }
        Err(Errno::ACCESS | Errno::PERM) => Loads::Yes,
        Err(_) => Loads::NoProgram,
    }
}

fn look(file: i32, depth: u32) -> Loads {
    let Ok(fd) = descriptor::lend(file) else {
        return Loads::NoProgram;
    };
    let mut bytes = [0; BYTES];
    let Ok(count) = rustix::io::pread(fd, &mut bytes, 0) else {
        return Loads::Yes;
    };
    let bytes = bytes.get(..count).unwrap_or(&[]);
    if let Some(interpreter) = interpreter(bytes) {
        return match Path::new(interpreter) {
            Ok(path) if depth > 0 => follow(None, path.as_c_str(), depth - 1),
            _ => Loads::NoProgram,
        };
    }
    if gets_rights(file) {
        return Loads::No("it gets more rights than its user has");
    }
    if !bytes.starts_with(b"\x7fELF") {
        // Exec refuses it, or execvp(3) lets a shell read it.
        return Loads::Yes;
    }
    match dynamic(bytes) {
        Some(true) => Loads::Yes,
        Some(false) => Loads::No("it is linked statically"),
        None => Loads::No("it is a program of another machine"),
    }
}

/// The interpreter of a script.
fn interpreter(bytes: &[u8]) -> Option<&[u8]> {
    let line = bytes.strip_prefix(b"#!")?;
    let line = line.split(|byte| *byte == b'\n').next()?.trim_ascii();
    line.split(|byte| matches!(byte, b' ' | b'\t')).next()
}

/// Whether an ELF file has an interpreter, which is who preloads; None when it is no ELF file of this machine.
fn dynamic(bytes: &[u8]) -> Option<bool> {
    /// e_ident: magic, 64 bits, little endian.
    const IDENT: &[u8] = b"\x7fELF\x02\x01";
    const PT_INTERP: u32 = 3;
    let half = |at: usize| Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?));
    let word = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    let machine = if cfg!(target_arch = "aarch64") {
        183
    } else {
        62
    };
    if !bytes.starts_with(IDENT) || half(18)? != machine {
        return None;
    }
    let table = u64::from_le_bytes(bytes.get(32..40)?.try_into().ok()?);
    let (size, count) = (usize::from(half(54)?), usize::from(half(56)?));
    for index in 0..count {
        let at = usize::try_from(table).ok()?.checked_add(index * size)?;
        match word(at) {
            Some(PT_INTERP) => return Some(true),
            Some(_) => {}
            // Behind what was read: nobody puts it there.
            None => return Some(true),
        }
    }
    Some(false)
}

fn gets_rights(file: i32) -> bool {
    let Ok(fd) = descriptor::lend(file) else {
        return false;
    };
    let Ok(found) = rustix::fs::fstat(fd) else {
        return false;
    };
    let mode = Mode::from_raw_mode(found.st_mode);
    let user = rustix::process::geteuid();
    if mode.contains(Mode::SUID) && found.st_uid != user.as_raw()
        || mode.contains(Mode::SGID) && found.st_gid != rustix::process::getegid().as_raw()
    {
        return true;
    }
    let mut value = [0_u8; 64];
    !user.is_root() && rustix::fs::fgetxattr(fd, c"security.capability", &mut value[..]).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_is_what_its_interpreter_is() {
        assert_eq!(interpreter(b"#! /bin/sh -e\nx"), Some(&b"/bin/sh"[..]));
        assert_eq!(interpreter(b"#!/bin/sh\tx"), Some(&b"/bin/sh"[..]));
        assert_eq!(interpreter(b"\x7fELF"), None);
    }

    #[test]
    fn this_program_loads_it_and_a_file_without_an_interpreter_does_not() {
        let exe = std::ffi::CString::new(std::env::current_exe().unwrap().to_str().unwrap());
        assert_eq!(of_path(None, &exe.unwrap()), Loads::Yes);
        assert_eq!(of_path(None, c"/nowhere/at/all"), Loads::NoProgram);
        let mut head = vec![0; 64 + 56];
        head[..6].copy_from_slice(b"\x7fELF\x02\x01");
        head[18] = if cfg!(target_arch = "aarch64") {
            183
        } else {
            62
        };
        head[32] = 64;
        head[54] = 56;
        head[56] = 1;
        head[64] = 1;
        assert_eq!(dynamic(&head), Some(false));
        head[64] = 3;
        assert_eq!(dynamic(&head), Some(true));
        head[18] = 3;
        assert_eq!(dynamic(&head), None);
    }
}
