//! How programs that have given up their rights find the system's host again after its restart.
//!
//! A worker of nginx, memcached or HAProxy has neither the group by which it was attached nor, in a chroot, the socket's
//! path. It comes by a name that needs neither (unix(7), abstract), and is let in by its user: one under which a program
//! was seen that had been let in by the path. Those users are remembered in a file beside the socket, for the next host.

use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::errno::Result;

/// The second listening socket, and who may come by it.
#[derive(Debug)]
pub(super) struct WayBack {
    socket: OwnedFd,
    users: Users,
}

impl WayBack {
    /// Listens under the name of `socket`, in this network namespace.
    ///
    /// # Errors
    /// What socket(2), bind(2) and listen(2) say.
    pub(super) fn open(socket: &Path, backlog: i32) -> Result<Self> {
        let address = SocketAddrUnix::new_abstract_name(socket.as_os_str().as_bytes())?;
        let listener = rustix::net::socket_with(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            None,
        )?;
        rustix::net::bind(&listener, &address)?;
        rustix::net::listen(&listener, backlog)?;
        Ok(Self {
            socket: listener,
            users: Users::read(socket.with_extension("users")),
        })
    }

    /// Whether this user may come by the name.
    pub(super) fn admits(&self, user: u32) -> bool {
        user == 0 || self.users.known.contains(&user)
    }

    /// A program that was let in runs as the user of `process` now.
    pub(super) fn note(&mut self, process: u32) {
        let status = std::fs::read_to_string(format!("/proc/{process}/status"));
        // A process that is gone has told all that it will.
        if let Some(user) = status.ok().as_deref().and_then(effective_user) {
            self.users.note(user);
        }
    }
}

impl AsFd for WayBack {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The second number of `Uid:` in /proc/PID/status (proc(5)).
fn effective_user(status: &str) -> Option<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    line.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// Numbers of users, kept in a file with one a line.
#[derive(Debug)]
struct Users {
    file: PathBuf,
    known: BTreeSet<u32>,
}

impl Users {
    fn read(file: PathBuf) -> Self {
        // Without the file nobody is known yet.
        let text = std::fs::read_to_string(&file).unwrap_or_default();
        let known = text.lines().filter_map(|line| line.parse().ok()).collect();
        Self { file, known }
    }

    fn note(&mut self, user: u32) {
        if user == 0 || !self.known.insert(user) {
            return;
        }
        let written = OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o600)
            .open(&self.file)
            .and_then(|mut file| writeln!(file, "{user}"));
        if let Err(error) = written {
            crate::warn!(
                "file={} event=user_not_remembered user={user} error=\"{error}\"",
                self.file.display()
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_remembered_for_the_next_host_and_the_name_is_free_again() {
        let socket =
            std::env::temp_dir().join(format!("knet-way-back-{}.sock", std::process::id()));
        let mut way = WayBack::open(&socket, 1).unwrap();
        assert!(way.admits(0) && !way.admits(33));
        way.users.note(33);
        way.users.note(33);
        way.note(std::process::id());
        drop(way);
        let way = WayBack::open(&socket, 1).unwrap();
        assert!(way.admits(33) && !way.admits(34));
        let own = rustix::process::geteuid().as_raw();
        assert!(way.admits(own));
        let file = socket.with_extension("users");
        let lines = std::fs::read_to_string(&file).unwrap();
        assert_eq!(lines.matches("33\n").count(), 1);
        std::fs::remove_file(file).unwrap();
    }

    #[test]
    fn the_effective_user_counts() {
        assert_eq!(effective_user("Name:\tx\nUid:\t0\t33\t0\t33\n"), Some(33));
        assert_eq!(effective_user("Uid:\t0\n"), None);
    }
}
