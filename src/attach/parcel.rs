//! What a program leaves to the one that it executes: a memfd that is inherited with the sockets, and lists them.
//!
//! The parcel names two more inherited descriptors: the control socket of a process cell that holds everything listed
//! (`fork::reserve`), and the memory of what the processes agree on before they are attached. `KNET_EXEC` in the new
//! program's environment says where the parcel is. Nothing here is believed beyond what a program could do to itself.

use rustix::fs::{MemfdFlags, SeekFrom};
use rustix::io::FdFlags;

use super::pending;
use crate::BUILD_VERSION;
use crate::channel::{ABI, MAGIC};
use crate::errno::{Errno, Result};
use crate::ffi::{descriptor, process};
use crate::thread;

/// One number that is handed over.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Row {
    /// The number.
    pub fd: i32,
    /// What it stands for, packed.
    pub entry: u64,
    /// The inode of the kernel socket behind it, by which it is known again.
    pub inode: u64,
}

/// What stands at the head.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Head {
    /// Rows that follow.
    pub rows: u32,
    /// The control socket, or -1.
    pub control: i32,
    /// The memory of the registry, or -1.
    pub region: i32,
    /// A row's socket may have another number than the row says (posix_spawn).
    pub moved: bool,
    /// The inode of the socket that accepted numbers have in common; 0 = none.
    pub spare: u64,
    /// The process that packed it, which holds the records.
    pub packer: u32,
}

const ROW_BYTES: usize = 24;
const HEAD_BYTES: usize = 56;
/// Rows that are written or read at a time.
const CHUNK: usize = 32;

/// A parcel that is being filled, or is on its way.
#[derive(Debug)]
pub struct Parcel {
    fd: i32,
    control: i32,
    region: i32,
    chunk: [u8; CHUNK * ROW_BYTES],
    used: usize,
    rows: u32,
}

impl Parcel {
    /// An empty one.
    ///
    /// # Errors
    /// EMFILE; EPERM or ENOSYS where memfd_create is not allowed.
    pub fn new() -> Result<Self> {
        let made = rustix::fs::memfd_create(c"knet-exec", MemfdFlags::CLOEXEC)?;
        let fd = descriptor::lift(made)?;
        note(fd);
        let parcel = Self {
            fd,
            control: -1,
            region: -1,
            chunk: [0; CHUNK * ROW_BYTES],
            used: 0,
            rows: 0,
        };
        rustix::fs::seek(descriptor::lend(fd)?, SeekFrom::Start(HEAD_BYTES as u64))?;
        Ok(parcel)
    }

    /// Appends a row.
    ///
    /// # Errors
    /// ENOSPC, EFBIG as write(2).
    pub fn push(&mut self, row: Row) -> Result<()> {
        if self.used == self.chunk.len() {
            self.flush()?;
        }
        let place = self.chunk.get_mut(self.used..self.used + ROW_BYTES);
        let place = place.ok_or(Errno::NOBUFS)?;
        let words = [u64::from(row.fd.unsigned_abs()), row.entry, row.inode];
        for (to, word) in place.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_ne_bytes());
        }
        self.used += ROW_BYTES;
        self.rows += 1;
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        let file = descriptor::lend(self.fd)?;
        let mut rest = self.chunk.get(..self.used).unwrap_or(&[]);
        while !rest.is_empty() {
            match rustix::io::write(file, rest) {
                Err(Errno::INTR) => {}
                written => rest = rest.get(written?..).unwrap_or(&[]),
            }
        }
        self.used = 0;
        Ok(())
    }

    /// Where it is.
    #[must_use]
    pub const fn number(&self) -> i32 {
        self.fd
    }

    /// The control socket that goes with it; it is the parcel's from now on.
    pub fn set_control(&mut self, control: i32) {
        if !is_foreign() {
            descriptor::forget(control);
        }
        note(control);
        self.control = control;
    }

    /// A copy of the registry's memory goes with it.
    ///
    /// # Errors
    /// EMFILE.
    pub fn set_region(&mut self, region: i32) -> Result<()> {
        let copy = rustix::io::fcntl_dupfd_cloexec(descriptor::lend(region)?, 0)?;
        self.region = descriptor::lift(copy)?;
        note(self.region);
        Ok(())
    }

    /// Writes the head, and lets what is executed next inherit all of it.
    ///
    /// # Errors
    /// As [`Parcel::push`].
    pub fn send(&mut self, moved: bool, spare: u64) -> Result<i32> {
        self.flush()?;
        let mut head = [0_u8; HEAD_BYTES];
        let signed = |number: i32| u64::from(number.cast_unsigned());
        let words = [
            u64::from(MAGIC) << 32 | u64::from(ABI),
            version(),
            u64::from(self.rows) << 32 | u64::from(moved),
            signed(self.control),
            signed(self.region),
            spare,
            u64::from(thread::process()),
        ];
        for (to, word) in head.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_ne_bytes());
        }
        if rustix::io::pwrite(descriptor::lend(self.fd)?, &head, 0)? != HEAD_BYTES {
            return Err(Errno::NOSPC);
        }
        for fd in [self.fd, self.control, self.region] {
            if fd >= 0 {
                rustix::io::fcntl_setfd(descriptor::lend(fd)?, FdFlags::empty())?;
            }
        }
        Ok(self.fd)
    }
}

impl Parcel {
    /// Nothing was executed in this process: what the parcel held is let go of, unless a child has inherited it.
    pub fn close(&mut self) {
        for fd in [self.fd, self.control, self.region] {
            if fd >= 0 {
                if !is_foreign() {
                    pending::forget(fd);
                }
                descriptor::shut(fd);
            }
        }
        (self.fd, self.control, self.region) = (-1, -1, -1);
    }
}

impl Drop for Parcel {
    fn drop(&mut self) {
        self.close();
    }
}

/// Another thread's forked child closes its copy: it would keep the cell alive.
fn note(fd: i32) {
    if !is_foreign() {
        pending::note(fd);
    }
}

fn is_foreign() -> bool {
    process::pid() != thread::process()
}

/// Tells builds apart whose packed entries may differ.
fn version() -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for byte in BUILD_VERSION.bytes() {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    hash
}

/// The head of the parcel at `fd`.
///
/// # Errors
/// EPROTO when it is none of this build's, what pread(2) says.
pub fn head(fd: i32) -> Result<Head> {
    let mut bytes = [0; HEAD_BYTES];
    if rustix::io::pread(descriptor::lend(fd)?, &mut bytes, 0)? != HEAD_BYTES {
        return Err(Errno::PROTO);
    }
    let word = |n: usize| word_at(&bytes, n);
    if word(0) != u64::from(MAGIC) << 32 | u64::from(ABI) || word(1) != version() {
        return Err(Errno::PROTO);
    }
    let number = |n: usize| u32::try_from(word(n)).map_or(-1, u32::cast_signed);
    Ok(Head {
        rows: u32::try_from(word(2) >> 32).unwrap_or(0),
        control: number(3),
        region: number(4),
        moved: word(2) & 1 != 0,
        spare: word(5),
        packer: u32::try_from(word(6)).unwrap_or(0),
    })
}

fn word_at(bytes: &[u8], n: usize) -> u64 {
    let word = bytes
        .get(n * 8..n * 8 + 8)
        .and_then(|word| word.try_into().ok());
    word.map_or(0, u64::from_ne_bytes)
}

/// Visits the rows of the parcel at `fd` until `visit` says false.
///
/// # Errors
/// What pread(2) says.
pub fn for_each(fd: i32, rows: u32, mut visit: impl FnMut(Row) -> bool) -> Result<()> {
    let mut bytes = [0; CHUNK * ROW_BYTES];
    let mut at = HEAD_BYTES as u64;
    let mut left = rows;
    while left > 0 {
        let count = rustix::io::pread(descriptor::lend(fd)?, &mut bytes, at)?;
        let whole = count / ROW_BYTES;
        if whole == 0 {
            return Err(Errno::PROTO);
        }
        for row in bytes.chunks_exact(ROW_BYTES).take(whole) {
            if left == 0 {
                break;
            }
            left -= 1;
            let row = Row {
                fd: i32::try_from(word_at(row, 0)).unwrap_or(-1),
                entry: word_at(row, 1),
                inode: word_at(row, 2),
            };
            if !visit(row) {
                return Ok(());
            }
        }
        at += (whole * ROW_BYTES) as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parcel_says_what_was_put_into_it() {
        let row = |n: i32| Row {
            fd: n,
            entry: u64::MAX - u64::from(n.unsigned_abs()),
            inode: 7,
        };
        let mut parcel = Parcel::new().unwrap();
        for n in 0..100 {
            parcel.push(row(n)).unwrap();
        }
        let fd = parcel.send(true, 9).unwrap();
        let found = head(fd).unwrap();
        assert_eq!(
            found,
            Head {
                rows: 100,
                control: -1,
                region: -1,
                moved: true,
                spare: 9,
                packer: thread::process()
            }
        );
        let mut seen = Vec::new();
        for_each(fd, found.rows, |row| {
            seen.push(row);
            true
        })
        .unwrap();
        assert_eq!(seen, (0..100).map(row).collect::<Vec<_>>());
        assert_eq!(
            rustix::io::fcntl_getfd(descriptor::lend(fd).unwrap()),
            Ok(FdFlags::empty()),
            "it is inherited"
        );
        assert_eq!(for_each(fd, 101, |_| true), Err(Errno::PROTO));
        drop(parcel);
        head(fd).unwrap_err();
    }
}
