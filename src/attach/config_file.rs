//! The config as the program sees it: a path, an open descriptor and a hash. Only the host reads what it says.

use core::ffi::CStr;

use rustix::fs::{FileType, Mode, OFlags, SeekFrom};

use super::fault::Fault;
use crate::errno::Errno;
use crate::ffi::{descriptor, environment};
use crate::rendezvous::ConfigHash;

/// The packaged config (design 4).
pub(super) const PACKAGED: &CStr = c"/etc/knet/knet_comm.conf";
/// The host refuses larger files; there is no use in hashing more than this of one.
const HASHED_BYTES: usize = 1 << 20;

/// An open config file.
#[derive(Debug)]
pub(super) struct ConfigFile {
    /// Its path as named.
    pub(super) path: &'static CStr,
    /// The open file, to be closed by the owner; None when this user may not read it.
    pub(super) fd: Option<i32>,
    /// Of its bytes.
    pub(super) hash: ConfigHash,
}

impl ConfigFile {
    /// The config, of which nothing is known here.
    pub(super) fn unread() -> Self {
        Self {
            path: path(),
            fd: None,
            hash: ConfigHash::default(),
        }
    }
}

/// The path of the config: `KNET_CONF`, else the packaged one.
pub(super) fn path() -> &'static CStr {
    environment::secure_value(b"KNET_CONF").unwrap_or(PACKAGED)
}

/// Opens and hashes the config.
pub(super) fn open() -> Result<ConfigFile, Fault> {
    let path = path();
    // NONBLOCK: a FIFO must not stop the program.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let fd = match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(fd) => descriptor::raw(fd),
        Err(Errno::ACCESS) => return Ok(ConfigFile::unread()),
        Err(error) => return Err(Fault::config(path, error)),
    };
    match read(fd) {
        Ok(hash) => Ok(ConfigFile {
            path,
            fd: Some(fd),
            hash,
        }),
        Err(error) => {
            descriptor::close(fd);
            Err(Fault::config(path, error))
        }
    }
}

fn read(fd: i32) -> Result<ConfigHash, Errno> {
    let file = descriptor::lend(fd)?;
    match FileType::from_raw_mode(rustix::fs::fstat(file)?.st_mode) {
        FileType::RegularFile => {}
        FileType::Directory => return Err(Errno::ISDIR),
        _ => return Err(Errno::NODEV),
    }
    let mut hash = ConfigHash::default();
    let mut buffer = [0; 4_096];
    let mut total = 0;
    while total < HASHED_BYTES {
        match rustix::io::read(file, &mut buffer) {
            Ok(0) => break,
            Ok(count) => {
                hash.add(buffer.get(..count).unwrap_or(&[]));
                total += count;
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    // The host reads the same open file from its start.
    rustix::fs::seek(file, SeekFrom::Start(0))?;
    Ok(hash)
}
