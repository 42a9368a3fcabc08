//! The bytes of a config file, with a clear fault for everything that is not one.

use std::path::Path;

use rustix::fd::{AsFd, BorrowedFd};
use rustix::fs::{FileType, Mode, OFlags};

use super::error::Faults;
use crate::errno::Errno;

/// A config file is smaller than this (K-NET: 8 000 bytes).
pub const FILE_BYTES_MAX: usize = 64 * 1024;

/// Where the config is when `KNET_CONF` does not say.
pub const DEFAULT_PATH: &str = "/etc/knet/knet_comm.conf";

/// Opens and reads the file at `path`. Never blocks on a FIFO.
///
/// # Errors
/// One fault: missing, unreadable, not a regular file, too large.
pub fn read(path: &Path) -> Result<Vec<u8>, Faults> {
    let shown = path.display().to_string();
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = rustix::fs::open(path, flags, Mode::empty()).map_err(|errno| match errno {
        Errno::NOENT => Faults::of_file(
            &shown,
            "there is no such file",
            "write it, or name another by KNET_CONF",
        ),
        Errno::ACCESS => {
            Faults::of_file(&shown, "may not be read by this user", "chown or chmod it")
        }
        errno => Faults::of_file(&shown, &format!("cannot be opened: {errno}"), ""),
    })?;
    read_descriptor(&shown, file.as_fd())
}

/// Reads the file behind `file` from its beginning. The host is handed the program's descriptor, whose position
/// the program has moved by reading, so that position is neither used nor changed.
///
/// # Errors
/// As [`read`].
pub fn read_descriptor(path: &str, file: BorrowedFd<'_>) -> Result<Vec<u8>, Faults> {
    let fault = |errno: Errno| Faults::of_file(path, &format!("cannot be read: {errno}"), "");
    let stat = rustix::fs::fstat(file).map_err(fault)?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => {}
        FileType::Directory => {
            return Err(Faults::of_file(
                path,
                "is a directory",
                "name the file in it",
            ));
        }
        _ => return Err(Faults::of_file(path, "is not a regular file", "")),
    }
    let mut bytes = Vec::new();
    let mut chunk = [0; 4096];
    loop {
        let offset = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        let count = match rustix::io::pread(file, &mut chunk, offset) {
            Ok(0) => return Ok(bytes),
            Ok(count) => count,
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(fault(errno)),
        };
        bytes.extend_from_slice(chunk.get(..count).unwrap_or(&[]));
        if bytes.len() > FILE_BYTES_MAX {
            return Err(too_large(path));
        }
    }
}

/// The fault of a file above [`FILE_BYTES_MAX`].
pub(super) fn too_large(path: &str) -> Faults {
    Faults::of_file(
        path,
        "is larger than 64 KiB, which no config is",
        "is it the right file?",
    )
}
