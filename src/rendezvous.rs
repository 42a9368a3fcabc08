//! Where a program and its host find each other: the run folder and the names in it (design D14).
//!
//! Owns the naming rule and nothing else. May use `base`, `ffi`. Both sides run it; it neither allocates nor locks.
//! Invariant: two programs of the same user, network namespace and config always come to the same names.

use core::ffi::CStr;
use core::fmt::{self, Write};

use rustix::fs::{Access, AtFlags, CWD, FileType, Mode};

use crate::errno::{Errno, Result};
use crate::ffi::{descriptor, environment, sockopt};

/// The socket of the host that the system runs.
pub const SYSTEM_SOCKET: &CStr = c"/run/knet/knetd.sock";
/// The run folder of the system.
const SYSTEM_FOLDER: &[u8] = b"/run/knet";
/// The longest path made here, with its terminator.
pub const PATH_BYTES: usize = 256;
/// The longest path of an AF_UNIX socket, without its terminator (unix(7)).
const SOCKET_PATH_BYTES: usize = 107;

/// A path on the stack, always terminated.
#[derive(Clone, Copy)]
pub struct Path {
    bytes: [u8; PATH_BYTES],
    len: usize,
}

impl Path {
    /// The empty path.
    #[must_use]
    pub const fn empty() -> Self {
        Self {
            bytes: [0; PATH_BYTES],
            len: 0,
        }
    }

    /// Makes a path of these bytes.
    ///
    /// # Errors
    /// ENAMETOOLONG; EINVAL for a NUL inside.
    pub fn new(bytes: &[u8]) -> Result<Self> {
        let mut path = Self::empty();
        path.push(bytes)?;
        Ok(path)
    }

    /// Appends bytes.
    ///
    /// # Errors
    /// As [`Path::new`].
    pub fn push(&mut self, bytes: &[u8]) -> Result<()> {
        if bytes.contains(&0) {
            return Err(Errno::INVAL);
        }
        let end = self.len + bytes.len();
        if end >= PATH_BYTES {
            return Err(Errno::NAMETOOLONG);
        }
        let place = self
            .bytes
            .get_mut(self.len..end)
            .ok_or(Errno::NAMETOOLONG)?;
        place.copy_from_slice(bytes);
        self.len = end;
        Ok(())
    }

    /// The bytes without terminator.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or(&[])
    }

    /// The path as C sees it.
    #[must_use]
    pub fn as_c_str(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.bytes).unwrap_or(c"")
    }

    fn named(folder: &Self, name: fmt::Arguments<'_>) -> Result<Self> {
        let mut path = *folder;
        path.write_fmt(name).map_err(|_| Errno::NAMETOOLONG)?;
        Ok(path)
    }
}

impl Write for Path {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.push(text.as_bytes()).map_err(|_| fmt::Error)
    }
}

impl fmt::Debug for Path {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_c_str().fmt(out)
    }
}

impl fmt::Display for Path {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_bytes().utf8_chunks().try_for_each(|chunk| {
            out.write_str(chunk.valid())?;
            out.write_str(if chunk.invalid().is_empty() { "" } else { "?" })
        })
    }
}

/// FNV-1a, 64 bits, over the bytes of a config file.
#[derive(Clone, Copy, Debug)]
pub struct ConfigHash(u64);

impl Default for ConfigHash {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl ConfigHash {
    /// Adds bytes.
    pub fn add(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    /// The hash of all bytes added.
    #[must_use]
    pub const fn value(self) -> u64 {
        self.0
    }
}

/// The number of the network namespace of this thread.
///
/// # Errors
/// What socket(2) or stat(2) say.
pub fn network_namespace() -> Result<u64> {
    let probe = rustix::net::socket_with(
        rustix::net::AddressFamily::UNIX,
        rustix::net::SocketType::DGRAM,
        rustix::net::SocketFlags::CLOEXEC,
        None,
    )?;
    let probe = descriptor::raw(probe);
    let cookie = sockopt::namespace_cookie(probe);
    descriptor::close(probe);
    match cookie {
        Ok(cookie) => Ok(cookie),
        // Before Linux 5.14.
        Err(_) => Ok(rustix::fs::stat(c"/proc/thread-self/ns/net")?.st_ino),
    }
}

/// The run folder that the environment names.
#[must_use]
pub fn named_folder() -> Option<Path> {
    let named = environment::secure_value(b"KNET_RUN_DIR")?;
    Path::new(named.to_bytes()).ok()
}

/// The run folder: `KNET_RUN_DIR`, else /run/knet if we may write there, else $XDG_RUNTIME_DIR/knet, else
/// /tmp/knet-UID. It is made when it is missing; the last three must belong to this user alone.
///
/// # Errors
/// What mkdir says; EPERM when the folder is somebody else's or open to others; ENOTDIR.
pub fn run_folder() -> Result<Path> {
    if let Some(named) = environment::secure_value(b"KNET_RUN_DIR") {
        let path = Path::new(named.to_bytes())?;
        make(&path)?;
        return Ok(path);
    }
    let system = Path::new(SYSTEM_FOLDER)?;
    // Only root can make it; whether that worked is what the next line asks.
    let _ = rustix::fs::mkdir(system.as_c_str(), Mode::from_raw_mode(0o755));
    let writable = rustix::fs::accessat(
        CWD,
        system.as_c_str(),
        Access::WRITE_OK | Access::EXEC_OK,
        AtFlags::EACCESS,
    );
    if writable.is_ok() {
        return Ok(system);
    }
    let user = rustix::process::geteuid().as_raw();
    let path = match environment::secure_value(b"XDG_RUNTIME_DIR") {
        Some(parent) if parent.to_bytes().starts_with(b"/") => {
            Path::named(&Path::new(parent.to_bytes())?, format_args!("/knet"))?
        }
        _ => Path::named(&Path::new(b"/tmp/knet-")?, format_args!("{user}"))?,
    };
    make(&path)?;
    let found = rustix::fs::lstat(path.as_c_str())?;
    if found.st_uid != user || found.st_mode & 0o077 != 0 {
        return Err(Errno::PERM);
    }
    Ok(path)
}

/// Makes a folder for this user alone, unless it is there.
fn make(path: &Path) -> Result<()> {
    match rustix::fs::mkdir(path.as_c_str(), Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(error),
    }
    let found = rustix::fs::stat(path.as_c_str())?;
    if FileType::from_raw_mode(found.st_mode) == FileType::Directory {
        Ok(())
    } else {
        Err(Errno::NOTDIR)
    }
}

/// The names of a private host: its socket, and the lock that decides who starts it.
#[derive(Clone, Copy, Debug)]
pub struct HostNames {
    /// Listening socket.
    pub socket: Path,
    /// File for flock(2).
    pub lock: Path,
}

/// The names of the private host of this user and namespace for a config with this hash.
///
/// # Errors
/// ENAMETOOLONG when the folder's name is too long for a socket's path.
pub fn host_names(folder: &Path, namespace: u64, config: ConfigHash) -> Result<HostNames> {
    let user = rustix::process::geteuid().as_raw();
    let hash = config.value();
    let socket = Path::named(
        folder,
        format_args!("/host-{user}-{namespace}-{hash:016x}.sock"),
    )?;
    if socket.len > SOCKET_PATH_BYTES {
        return Err(Errno::NAMETOOLONG);
    }
    Ok(HostNames {
        socket,
        lock: Path::named(
            folder,
            format_args!("/host-{user}-{namespace}-{hash:016x}.lock"),
        )?,
    })
}

/// The lock of a port, held by the host that drives it. `device` names the port (a slash becomes `_`).
///
/// # Errors
/// ENAMETOOLONG.
pub fn port_lock(folder: &Path, device: &str) -> Result<Path> {
    let mut path = Path::named(folder, format_args!("/port-"))?;
    for character in device.chars() {
        let plain = character.is_ascii_graphic() && character != '/';
        path.write_char(if plain { character } else { '_' })
            .map_err(|_| Errno::NAMETOOLONG)?;
    }
    path.push(b".lock")?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_design() {
        let mut hash = ConfigHash::default();
        hash.add(b"foo");
        hash.add(b"bar");
        assert_eq!(hash.value(), 0x8594_4171_f739_67e8, "FNV-1a of foobar");
        let user = rustix::process::geteuid().as_raw();
        let folder = Path::new(b"/run/x").unwrap();
        let names = host_names(&folder, 7, hash).unwrap();
        assert_eq!(
            names.socket.to_string(),
            format!("/run/x/host-{user}-7-85944171f73967e8.sock")
        );
        assert!(names.lock.to_string().ends_with("e8.lock"));
        assert_eq!(
            port_lock(&folder, "7-unix,/tmp/a b").unwrap().to_string(),
            "/run/x/port-7-unix,_tmp_a_b.lock"
        );
        let long = Path::new(&[b'a'; 100]).unwrap();
        assert_eq!(host_names(&long, 7, hash).err(), Some(Errno::NAMETOOLONG));
        assert_eq!(Path::new(&[b'a'; 300]).err(), Some(Errno::NAMETOOLONG));
        assert_eq!(Path::new(b"a\0b").err(), Some(Errno::INVAL));
    }

    #[test]
    fn a_namespace_has_one_number() {
        assert_eq!(network_namespace().unwrap(), network_namespace().unwrap());
    }
}
