//! The file size limit of this process (RLIMIT_FSIZE), asked about before a file or memfd grows: the kernel does not only refuse
//! what lies behind it, it ends the program by SIGXFSZ.

use rustix::fd::BorrowedFd;
use rustix::fs::FileType;
use rustix::process::{Resource, getrlimit};

use crate::errno::{Errno, Result};

/// Whether a file may have `bytes` bytes.
///
/// # Errors
/// EFBIG.
pub fn check(bytes: u64) -> Result<()> {
    match getrlimit(Resource::Fsize).current {
        Some(limit) if bytes > limit => Err(Errno::FBIG),
        _ => Ok(()),
    }
}

/// Whether `bytes` more can be written to `fd`, at its place or its end. Costs one call where there is no limit.
#[must_use]
pub fn has_room(fd: BorrowedFd<'_>, bytes: usize) -> bool {
    if getrlimit(Resource::Fsize).current.is_none() {
        return true;
    }
    let Ok(found) = rustix::fs::fstat(fd) else {
        return true;
    };
    if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
        // Pipes, sockets and terminals have no size.
        return true;
    }
    let end = u64::try_from(found.st_size).unwrap_or(0);
    let place = rustix::fs::tell(fd).unwrap_or(0).max(end);
    check(place.saturating_add(bytes as u64)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::AsFd;
    use rustix::fs::MemfdFlags;

    #[test]
    fn without_a_limit_everything_has_room() {
        // The limit is the process's: the tests beside this one must not meet it (tests/conformance has those with one).
        if getrlimit(Resource::Fsize).current.is_some() {
            return;
        }
        assert_eq!(check(u64::MAX), Ok(()));
        let file = rustix::fs::memfd_create(c"room", MemfdFlags::CLOEXEC).unwrap();
        assert!(has_room(file.as_fd(), usize::MAX));
    }
}
