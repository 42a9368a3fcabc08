//! Sockets on which clients come.

use std::net::SocketAddrV4;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::Mode;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::errno::Errno;
use crate::ffi::descriptor;
use crate::rendezvous;

/// A listening socket; a path of its own goes with it.
#[derive(Debug)]
pub(super) struct Listener {
    socket: OwnedFd,
    path: Option<PathBuf>,
}

/// Hosts of a user that have a telemetry socket at the same time.
const INSTANCES: u32 = 64;
/// Clients that wait to be accepted.
const BACKLOG: i32 = 16;

impl Listener {
    /// DPDK's telemetry socket where its client looks for file prefix `knet` (`dpdk-telemetry.py -f knet -i N`, first N 1).
    pub(super) fn dpdk() -> Result<Self, String> {
        let folder = dpdk_folder();
        let fault =
            |error: &std::io::Error| format!("telemetry folder {}: {error}", folder.display());
        std::fs::create_dir_all(&folder).map_err(|error| fault(&error))?;
        // As DPDK's own: for this user alone.
        rustix::fs::chmod(&folder, Mode::RWXU).map_err(|errno| fault(&errno.into()))?;
        for instance in 1..=INSTANCES {
            let path = folder.join(format!("dpdk_telemetry.v2:{instance}"));
            if let Some(listener) = Self::bind(&path, SocketType::SEQPACKET)? {
                return Ok(listener);
            }
        }
        Err(format!(
            "{INSTANCES} hosts have a telemetry socket in {}",
            folder.display()
        ))
    }

    /// A stream socket at `path`.
    pub(super) fn unix(path: &Path) -> Result<Self, String> {
        Self::bind(path, SocketType::STREAM)?
            .ok_or_else(|| format!("{}: somebody listens there", path.display()))
    }

    /// A TCP socket of the kernel on a loopback address.
    pub(super) fn loopback(endpoint: SocketAddrV4) -> Result<Self, String> {
        let fault = |errno: Errno| format!("{endpoint}: {errno}");
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)
            .map(descriptor::settle)
            .map_err(fault)?;
        rustix::net::sockopt::set_socket_reuseaddr(&socket, true).map_err(fault)?;
        rustix::net::bind(&socket, &endpoint).map_err(fault)?;
        rustix::net::listen(&socket, BACKLOG).map_err(fault)?;
        Ok(Self { socket, path: None })
    }

    /// Binds in place of a listener that is dead; None when it lives.
    fn bind(path: &Path, kind: SocketType) -> Result<Option<Self>, String> {
        let fault = |errno: Errno| format!("{}: {errno}", path.display());
        let address = SocketAddrUnix::new(path).map_err(fault)?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let fresh = || {
            rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None).map(descriptor::settle)
        };
        let socket = fresh().map_err(fault)?;
        match rustix::net::bind(&socket, &address) {
            Ok(()) => {}
            Err(Errno::ADDRINUSE) => {
                let probe = fresh().map_err(fault)?;
                if rustix::net::connect(&probe, &address) != Err(Errno::CONNREFUSED) {
                    return Ok(None);
                }
                rustix::fs::unlink(path).map_err(fault)?;
                match rustix::net::bind(&socket, &address) {
                    // Another host was quicker.
                    Err(Errno::ADDRINUSE) => return Ok(None),
                    other => other.map_err(fault)?,
                }
            }
            Err(errno) => return Err(fault(errno)),
        }
        let made = Self {
            socket,
            path: Some(path.to_owned()),
        };
        rustix::fs::chmod(path, Mode::RUSR | Mode::WUSR).map_err(fault)?;
        rustix::net::listen(&made.socket, BACKLOG).map_err(fault)?;
        Ok(Some(made))
    }

    /// A client that waits.
    pub(super) fn accept(&self) -> Option<OwnedFd> {
        match rustix::net::accept_with(&self.socket, SocketFlags::CLOEXEC) {
            Ok(socket) => Some(descriptor::settle(socket)),
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => None,
            Err(errno) => {
                crate::warn!("event=client_not_accepted errno={errno}");
                None
            }
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            // It may have been swept away with its folder.
            let _ = rustix::fs::unlink(path);
        }
    }
}

/// As DPDK's client finds it: $RUNTIME_DIRECTORY, /var/run for root, else $XDG_RUNTIME_DIR or /tmp. A run folder that was
/// named comes first, so that a trial meets nobody.
fn dpdk_folder() -> PathBuf {
    let variable = |name: &str| {
        let value = std::env::var_os(name).map(PathBuf::from);
        value.filter(|path| path.is_absolute())
    };
    let named = rendezvous::named_folder().map(|folder| PathBuf::from(folder.to_string()));
    let root = rustix::process::geteuid().is_root();
    let base = named
        .or_else(|| variable("RUNTIME_DIRECTORY"))
        .or_else(|| root.then(|| PathBuf::from("/var/run")))
        .or_else(|| variable("XDG_RUNTIME_DIR"))
        .unwrap_or_else(|| PathBuf::from("/tmp"));
    base.join("dpdk").join("knet")
}
