//! Will the dynamic loader preload a library into this program?

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use knet::preflight::waits;

/// What stands in the way of the preload.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Obstacle {
    /// Linked statically: there is no dynamic loader.
    Static,
    /// An ELF file of another class or machine than ours.
    Foreign,
    /// Set-user-id, set-group-id or with file capabilities: the loader ignores paths in LD_PRELOAD (ld.so(8)).
    Privileged(&'static str),
    /// It waits for sockets by this system call of its own: the host would refuse it.
    OwnWait(&'static str),
}

/// Why a program cannot be started.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Missing {
    /// There is no such file.
    NotFound,
    /// It is there but may not be executed.
    NotExecutable(PathBuf),
}

/// Finds a program as execvp(3) does.
pub(crate) fn find(name: &OsStr, path: Option<&OsStr>) -> Result<PathBuf, Missing> {
    let named = Path::new(name);
    let candidates: Vec<PathBuf> = if named.as_os_str().as_encoded_bytes().contains(&b'/') {
        vec![named.to_path_buf()]
    } else {
        // confstr(_CS_PATH): what execvp takes without a PATH.
        let path = path.unwrap_or_else(|| OsStr::new("/bin:/usr/bin"));
        std::env::split_paths(path)
            .map(|folder| folder.join(named))
            .collect()
    };
    let mut seen = None;
    for candidate in candidates.into_iter().filter(|_| !name.is_empty()) {
        let Ok(metadata) = fs::metadata(&candidate) else {
            continue;
        };
        if metadata.is_file() && metadata.permissions().mode() & 0o111 != 0 {
            return Ok(candidate);
        }
        seen.get_or_insert(candidate);
    }
    Err(seen.map_or(Missing::NotFound, Missing::NotExecutable))
}

/// Looks at a program, or at the interpreter of a script; None when nothing stands in the way, or nothing can be
/// told (then exec and the loader have the word).
pub(crate) fn obstacle(program: &Path) -> Option<Obstacle> {
    let ids = (
        rustix::process::geteuid().as_raw(),
        rustix::process::getegid().as_raw(),
    );
    obstacle_for(program, ids)
}

/// As [`obstacle`], when a user and group start the program.
pub(crate) fn obstacle_for(program: &Path, ids: (u32, u32)) -> Option<Obstacle> {
    let privileged = privileged(program, ids);
    if privileged.is_some() {
        return privileged;
    }
    let bytes = head(program)?;
    match bytes.strip_prefix(b"#!") {
        Some(line) => {
            let line = line.split(|byte| *byte == b'\n').next()?;
            let interpreter = String::from_utf8_lossy(line)
                .split_ascii_whitespace()
                .next()?
                .to_owned();
            let interpreter = Path::new(&interpreter);
            image_obstacle(interpreter, &head(interpreter)?)
        }
        None => image_obstacle(program, &bytes),
    }
}

/// What an executable file itself says; `bytes` is its beginning.
fn image_obstacle(program: &Path, bytes: &[u8]) -> Option<Obstacle> {
    elf_obstacle(bytes).or_else(|| waits::own_wait(program).map(Obstacle::OwnWait))
}

fn privileged(program: &Path, (user, group): (u32, u32)) -> Option<Obstacle> {
    let metadata = fs::metadata(program).ok()?;
    let mut value = [0_u8; 64];
    if metadata.mode() & 0o4000 != 0 && metadata.uid() != user {
        Some(Obstacle::Privileged("set-user-id"))
    } else if metadata.mode() & 0o2010 == 0o2010 && metadata.gid() != group {
        Some(Obstacle::Privileged("set-group-id"))
    } else if user != 0
        && rustix::fs::getxattr(program, "security.capability", value.as_mut_slice()).is_ok()
    {
        Some(Obstacle::Privileged("file capabilities"))
    } else {
        None
    }
}

/// The first bytes of a file: the ELF header and, in every usual program, its program headers.
fn head(path: &Path) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)
        .ok()?
        .take(16 * 1024)
        .read_to_end(&mut bytes)
        .ok()?;
    Some(bytes)
}

/// Judges an ELF file by its header and program headers (elf(5)).
fn elf_obstacle(bytes: &[u8]) -> Option<Obstacle> {
    if !bytes.starts_with(b"\x7fELF") {
        return None;
    }
    let ours = head(Path::new("/proc/self/exe"));
    let identity = |bytes: &[u8]| Some((*bytes.get(4)?, *bytes.get(5)?, u16_at(bytes, 18)?));
    if ours.is_some_and(|ours| identity(&ours) != identity(bytes)) {
        return Some(Obstacle::Foreign);
    }
    let offset = usize::try_from(u64_at(bytes, 32)?).ok()?;
    let (size, count) = (
        usize::from(u16_at(bytes, 54)?),
        usize::from(u16_at(bytes, 56)?),
    );
    let mut interpreter = false;
    for index in 0..count {
        let header = bytes.get(offset.checked_add(index.checked_mul(size)?)?..)?;
        interpreter |= u32_at(header, 0)? == PT_INTERP;
    }
    (!interpreter).then_some(Obstacle::Static)
}

/// Whether a program was made by the Go linker: it then carries a note of that name (elf(5), PT_NOTE).
pub(crate) fn is_go(program: &Path) -> bool {
    head(program).is_some_and(|bytes| go_note(&bytes).is_some())
}

fn go_note(bytes: &[u8]) -> Option<()> {
    if !bytes.starts_with(b"\x7fELF") {
        return None;
    }
    let offset = usize::try_from(u64_at(bytes, 32)?).ok()?;
    let (size, count) = (
        usize::from(u16_at(bytes, 54)?),
        usize::from(u16_at(bytes, 56)?),
    );
    for index in 0..count {
        let header = bytes.get(offset.checked_add(index.checked_mul(size)?)?..)?;
        if u32_at(header, 0)? != PT_NOTE {
            continue;
        }
        let at = usize::try_from(u64_at(header, 8)?).ok()?;
        let len = usize::try_from(u64_at(header, 32)?).ok()?;
        let notes = bytes.get(at..at.checked_add(len)?);
        if notes.is_some_and(|notes| notes.windows(GO_NAME.len()).any(|part| part == GO_NAME)) {
            return Some(());
        }
    }
    None
}

/// Size and name of Go's notes.
const GO_NAME: &[u8] = b"Go\0\0";

const PT_INTERP: u32 = 3;
const PT_NOTE: u32 = 4;

fn u16_at(bytes: &[u8], index: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(
        bytes.get(index..index.checked_add(2)?)?.try_into().ok()?,
    ))
}

fn u32_at(bytes: &[u8], index: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(
        bytes.get(index..index.checked_add(4)?)?.try_into().ok()?,
    ))
}

fn u64_at(bytes: &[u8], index: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(
        bytes.get(index..index.checked_add(8)?)?.try_into().ok()?,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An ELF file like this test's own, whose program headers have the types given.
    fn elf(types: &[u32]) -> Vec<u8> {
        let mut bytes = head(Path::new("/proc/self/exe")).expect("own binary");
        bytes.truncate(64);
        bytes[32..40].copy_from_slice(&64_u64.to_ne_bytes());
        bytes[54..56].copy_from_slice(&56_u16.to_ne_bytes());
        bytes[56..58].copy_from_slice(&u16::try_from(types.len()).expect("few").to_ne_bytes());
        for kind in types {
            bytes.extend_from_slice(&kind.to_ne_bytes());
            bytes.extend_from_slice(&[0; 52]);
        }
        bytes
    }

    #[test]
    fn a_program_without_an_interpreter_is_static() {
        assert_eq!(elf_obstacle(&elf(&[1, PT_INTERP])), None);
        assert_eq!(elf_obstacle(&elf(&[1, 2])), Some(Obstacle::Static));
        assert_eq!(elf_obstacle(b"#!/bin/sh\n"), None);
        let mut foreign = elf(&[PT_INTERP]);
        foreign[18] ^= 0xff;
        assert_eq!(elf_obstacle(&foreign), Some(Obstacle::Foreign));
    }

    #[test]
    fn a_truncated_file_never_panics() {
        let whole = elf(&[1, PT_INTERP, PT_NOTE]);
        for length in 0..whole.len() {
            let _ = elf_obstacle(&whole[..length]);
            let _ = go_note(&whole[..length]);
        }
    }

    #[test]
    fn a_note_tells_a_go_program() {
        let mut bytes = elf(&[PT_NOTE]);
        let at = bytes.len();
        bytes[72..80].copy_from_slice(&(at as u64).to_ne_bytes());
        bytes[96..104].copy_from_slice(&16_u64.to_ne_bytes());
        bytes.extend_from_slice(b"\x04\0\0\0\0\0\0\0\x04\0\0\0Go\0\0");
        assert_eq!(go_note(&bytes), Some(()));
        bytes[at + 12] = b'X';
        assert_eq!(go_note(&bytes), None);
        assert!(!is_go(Path::new("/proc/self/exe")));
    }

    #[test]
    fn programs_are_found_like_execvp() {
        let path = Some(OsStr::new("/nonexistent:/usr/bin:/bin"));
        assert!(find(OsStr::new("env"), path).is_ok_and(|path| path.ends_with("env")));
        assert_eq!(
            find(OsStr::new("knet-no-such-program"), path),
            Err(Missing::NotFound)
        );
        assert_eq!(find(OsStr::new(""), path), Err(Missing::NotFound));
        let folder = PathBuf::from("/");
        assert_eq!(
            find(folder.as_os_str(), path),
            Err(Missing::NotExecutable(folder))
        );
        assert_eq!(obstacle(&find(OsStr::new("env"), path).expect("env")), None);
    }
}
