//! The socket by which a host is found: a file that may be taken away while it runs.

use core::time::Duration;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Gid, Mode};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::attach::LISTEN_BACKLOG;
use crate::errno::{Errno, Result};
use crate::ffi::descriptor;
use crate::time::Instant;

/// Who may connect besides the host's own user.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Access {
    /// Nobody.
    Own,
    /// Members of this group, where there is one.
    Group(Option<u32>),
}

/// A socket that listens at a path.
#[derive(Debug)]
pub(super) struct Listener {
    socket: OwnedFd,
    path: PathBuf,
    access: Access,
    /// Device and inode of the file.
    file: (u64, u64),
    /// When to look after the file next.
    next: Instant,
    /// It was gone and could not be made again, which has been told.
    lost: bool,
}

/// How often the file is looked after.
const PERIOD: Duration = Duration::from_secs(2);

impl Listener {
    /// Binds and listens at `path`, in place of a host that died; its folder is made where it is missing.
    ///
    /// # Errors
    /// One line for the operator.
    pub(super) fn open(
        path: PathBuf,
        access: Access,
        now: Instant,
    ) -> core::result::Result<Self, String> {
        make_folder(&path)?;
        let fault = |errno: Errno| format!("socket {}: {errno}", path.display());
        let address = SocketAddrUnix::new(&path).map_err(fault)?;
        let socket = fresh().map(descriptor::settle).map_err(fault)?;
        match rustix::net::bind(&socket, &address) {
            Ok(()) => {}
            Err(Errno::ADDRINUSE) => {
                let probe = fresh().map_err(fault)?;
                if rustix::net::connect(&probe, &address) != Err(Errno::CONNREFUSED) {
                    return Err(format!(
                        "socket {}: another host listens there",
                        path.display()
                    ));
                }
                rustix::fs::unlink(&path).map_err(fault)?;
                rustix::net::bind(&socket, &address).map_err(fault)?;
            }
            Err(errno) => return Err(fault(errno)),
        }
        if let Access::Group(group) = access {
            rustix::fs::chown(&path, None, group.map(Gid::from_raw)).map_err(fault)?;
            rustix::fs::chmod(&path, Mode::from_raw_mode(0o660)).map_err(fault)?;
        }
        rustix::net::listen(&socket, LISTEN_BACKLOG).map_err(fault)?;
        Ok(Self {
            file: file(&path).map_err(fault)?,
            socket,
            path,
            access,
            next: now + PERIOD,
            lost: false,
        })
    }

    /// When to look after the file next.
    pub(super) const fn next(&self) -> Instant {
        self.next
    }

    /// Looks after the file, when it is time to: where it was taken away, another one is made, else nobody would find a host
    /// that serves on. Another host's is left alone.
    pub(super) fn look(&mut self, now: Instant) {
        if now < self.next {
            return;
        }
        self.next = now + PERIOD;
        if !matches!(file(&self.path), Err(Errno::NOENT | Errno::NOTDIR)) {
            return;
        }
        let path = self.path.display();
        match Self::open(self.path.clone(), self.access, now) {
            Ok(again) => {
                crate::warn!("socket={path} event=made_again reason=\"the socket file was gone\"");
                *self = again;
            }
            Err(line) if !self.lost => {
                crate::error!("socket={path} event=gone reason=\"{line}\"");
                self.lost = true;
            }
            Err(_) => {}
        }
    }

    /// Listens no more, and takes the file away, if it is this one's.
    pub(super) fn close(self) {
        if file(&self.path) == Ok(self.file)
            && let Err(errno) = rustix::fs::unlink(&self.path)
        {
            crate::warn!(
                "socket={} event=not_removed errno={errno}",
                self.path.display()
            );
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn fresh() -> Result<OwnedFd> {
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )?;
    // bind(2) gives the file this mode: nobody gets in before it has its group.
    rustix::fs::fchmod(&socket, Mode::from_raw_mode(0o600))?;
    Ok(socket)
}

/// Which file lies there.
fn file(path: &Path) -> Result<(u64, u64)> {
    let stat = rustix::fs::lstat(path)?;
    Ok((stat.st_dev, stat.st_ino))
}

/// Makes the folder of a socket, where it is missing.
fn make_folder(socket: &Path) -> core::result::Result<(), String> {
    let Some(folder) = socket.parent() else {
        return Ok(());
    };
    // Members of the group must get through root's.
    let root = rustix::process::geteuid().is_root();
    let mode = Mode::from_raw_mode(if root { 0o755 } else { 0o700 });
    // Past the umask, which a unit sets.
    match rustix::fs::mkdir(folder, mode).and_then(|()| rustix::fs::chmod(folder, mode)) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        // What is wrong with the folder the socket meets as well.
        Err(_) if folder.is_dir() => Ok(()),
        Err(errno) => Err(format!("folder {}: {errno}", folder.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::from_millis(seconds * 1_000)
    }

    fn connects(path: &Path) -> bool {
        let address = SocketAddrUnix::new(path).unwrap();
        rustix::net::connect(fresh().unwrap(), &address).is_ok()
    }

    #[test]
    fn a_file_that_was_taken_away_is_made_again() {
        let folder = std::env::temp_dir().join(format!("knet-listener-{}", std::process::id()));
        let path = folder.join("socket");
        let mut listener = Listener::open(path.clone(), Access::Own, at(0)).unwrap();
        assert!(connects(&path));
        std::fs::remove_dir_all(&folder).unwrap();
        listener.look(at(1));
        assert!(!path.exists(), "not yet");
        listener.look(at(2));
        assert!(connects(&path));
        // The folder's place is taken: it is told once, and made when that is over.
        std::fs::remove_dir_all(&folder).unwrap();
        std::fs::write(&folder, "").unwrap();
        listener.look(at(4));
        assert!(listener.lost);
        std::fs::remove_file(&folder).unwrap();
        listener.look(at(6));
        assert!(connects(&path) && !listener.lost);
        let again = Listener::open(path.clone(), Access::Own, at(0)).unwrap_err();
        assert!(again.contains("another host listens there"), "{again}");
        // Another host's file is left alone, also at the end.
        std::fs::remove_file(&path).unwrap();
        let other = Listener::open(path.clone(), Access::Own, at(6)).unwrap();
        listener.look(at(8));
        listener.close();
        assert!(connects(&path));
        other.close();
        assert!(!path.exists());
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
