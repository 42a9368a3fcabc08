//! What a program leaves to the one that it executes: a memfd that is inherited with the sockets, and lists them.
//!
//! The parcel names three more inherited descriptors: the control socket of a process cell that holds everything listed
//! (`fork::reserve`), the memory of what the processes agree on before they are attached, and the socket that accepted numbers
//! have in common. `KNET_EXEC` in the new program's environment says where the parcel is. Nothing here is believed beyond what a
//! program could do to itself.
//!
//! Where the descriptors stand is the same in every build: one that cannot read the rest closes them, or whoever waits for
//! their end would wait in vain.

mod maker;
pub mod places;

use rustix::fd::OwnedFd;
use rustix::fs::{MemfdFlags, SeekFrom};
use rustix::io::FdFlags;

pub use self::maker::Maker;
use self::places::Places;
use super::pending;
use crate::BUILD_VERSION;
use crate::channel::{ABI, MAGIC};
use crate::errno::{Errno, Result};
use crate::ffi::{descriptor, process};
use crate::file_limit;
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
    /// The socket that accepted numbers have in common, or -1.
    pub spare: i32,
    /// A row's socket may have another number than the row says (posix_spawn).
    pub moved: bool,
    /// As whom the records list the new program.
    pub heir: u32,
    /// Else nothing but the descriptors and the maker is known.
    pub is_of_this_build: bool,
    /// What has packed it.
    pub maker: Maker,
}

const ROW_BYTES: usize = 24;
/// What is the same in every build.
const WORDS_BYTES: usize = 56;
const HEAD_BYTES: usize = WORDS_BYTES + maker::BYTES;
/// Rows that are written or read at a time.
const CHUNK: usize = 32;

/// A parcel that is being filled, or is on its way.
#[derive(Debug)]
pub struct Parcel {
    fd: i32,
    control: i32,
    region: i32,
    spare: i32,
    places: Option<Places>,
    chunk: [u8; CHUNK * ROW_BYTES],
    used: usize,
    rows: u32,
}

impl Parcel {
    /// An empty one; `for_child`: for a program that posix_spawn executes, which may close what it does not know.
    ///
    /// # Errors
    /// EMFILE; EPERM or ENOSYS where memfd_create is not allowed.
    pub fn new(for_child: bool) -> Result<Self> {
        let made = rustix::fs::memfd_create(c"knet-exec", MemfdFlags::CLOEXEC)?;
        rustix::fs::seek(&made, SeekFrom::Start(HEAD_BYTES as u64))?;
        let mut parcel = Self {
            fd: -1,
            control: -1,
            region: -1,
            spare: -1,
            places: if for_child && !is_foreign() {
                Places::take()
            } else {
                None
            },
            chunk: [0; CHUNK * ROW_BYTES],
            used: 0,
            rows: 0,
        };
        parcel.fd = parcel.seat(made, 0)?;
        Ok(parcel)
    }

    /// Puts what is part of it out of the program's way.
    fn seat(&self, made: OwnedFd, at: usize) -> Result<i32> {
        let fd = match &self.places {
            Some(places) => places.seat(descriptor::raw(made), at),
            None => descriptor::lift(made),
        }?;
        note(fd);
        Ok(fd)
    }

    fn seat_copy(&self, fd: i32, at: usize) -> Result<i32> {
        let copy = rustix::io::fcntl_dupfd_cloexec(descriptor::lend(fd)?, 0)?;
        self.seat(copy, at)
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
        file_limit::check((HEAD_BYTES + self.rows as usize * ROW_BYTES) as u64)?;
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
    ///
    /// # Errors
    /// None that a number which is open can bring.
    pub fn set_control(&mut self, control: i32) -> Result<()> {
        if !is_foreign() {
            descriptor::forget(control);
        }
        let Some(places) = &self.places else {
            note(control);
            self.control = control;
            return Ok(());
        };
        self.control = places.seat(control, 1)?;
        note(self.control);
        Ok(())
    }

    /// A copy of the registry's memory goes with it.
    ///
    /// # Errors
    /// EMFILE.
    pub fn set_region(&mut self, region: i32) -> Result<()> {
        self.region = self.seat_copy(region, 2)?;
        Ok(())
    }

    /// A copy of the socket that accepted numbers have in common goes with it: to the new program it is that as well.
    ///
    /// # Errors
    /// EMFILE.
    pub fn set_spare(&mut self, spare: i32) -> Result<()> {
        self.spare = self.seat_copy(spare, 3)?;
        Ok(())
    }

    /// Writes the head, and lets what is executed next inherit all of it.
    ///
    /// # Errors
    /// As [`Parcel::push`].
    pub fn send(&mut self, moved: bool, heir: u32) -> Result<i32> {
        self.flush()?;
        let mut head = [0_u8; HEAD_BYTES];
        let signed = |number: i32| u64::from(number.cast_unsigned());
        let words = [
            u64::from(MAGIC) << 32 | u64::from(ABI),
            version(),
            signed(self.control),
            signed(self.region),
            signed(self.spare),
            u64::from(self.rows) << 32 | u64::from(moved),
            u64::from(heir),
        ];
        for (to, word) in head.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_ne_bytes());
        }
        if let Some(place) = head.last_chunk_mut() {
            *place = Maker::present().bytes();
        }
        if rustix::io::pwrite(descriptor::lend(self.fd)?, &head, 0)? != HEAD_BYTES {
            return Err(Errno::NOSPC);
        }
        for fd in self.descriptors() {
            if fd >= 0 {
                rustix::io::fcntl_setfd(descriptor::lend(fd)?, FdFlags::empty())?;
            }
        }
        Ok(self.fd)
    }
}

impl Parcel {
    const fn descriptors(&self) -> [i32; 4] {
        [self.fd, self.control, self.region, self.spare]
    }

    /// Nothing was executed in this process: what the parcel held is let go of, unless a child has inherited it.
    pub fn close(&mut self) {
        for fd in self.descriptors() {
            if fd >= 0 {
                if !is_foreign() {
                    pending::forget(fd);
                }
                if self.places.is_none() {
                    descriptor::shut(fd);
                }
            }
        }
        self.places = None;
        (self.fd, self.control, self.region, self.spare) = (-1, -1, -1, -1);
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
    // Read, not computed when this is built: a test makes another build of the one that it has.
    stamp(core::hint::black_box(BUILD_VERSION), HEAD_BYTES, ROW_BYTES)
}

/// Two builds of one commit have one version although the tree has changed between them: where things lie counts too.
fn stamp(version: &str, head_bytes: usize, row_bytes: usize) -> u64 {
    let sizes = (head_bytes as u64) << 32 | row_bytes as u64;
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for byte in version.bytes().chain(sizes.to_ne_bytes()) {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    hash
}

/// The head of the parcel at `fd`.
///
/// # Errors
/// EPROTO when it is none, what pread(2) says.
pub fn head(fd: i32) -> Result<Head> {
    let mut bytes = [0; HEAD_BYTES];
    // An older build's is shorter.
    if rustix::io::pread(descriptor::lend(fd)?, &mut bytes, 0)? < WORDS_BYTES {
        return Err(Errno::PROTO);
    }
    let word = |n: usize| word_at(&bytes, n);
    if word(0) >> 32 != u64::from(MAGIC) {
        return Err(Errno::PROTO);
    }
    let number = |n: usize| u32::try_from(word(n)).map_or(-1, u32::cast_signed);
    Ok(Head {
        control: number(2),
        region: number(3),
        spare: number(4),
        rows: u32::try_from(word(5) >> 32).unwrap_or(0),
        moved: word(5) & 1 != 0,
        heir: u32::try_from(word(6)).unwrap_or(0),
        is_of_this_build: word(0) == u64::from(MAGIC) << 32 | u64::from(ABI)
            && word(1) == version(),
        maker: bytes.last_chunk().map(Maker::of).unwrap_or_default(),
    })
}

fn word_at(bytes: &[u8], n: usize) -> u64 {
    let word = bytes
        .get(n * 8..n * 8 + 8)
        .and_then(|word| word.try_into().ok());
    word.map_or(0, u64::from_ne_bytes)
}

/// Visits the rows of the parcel at `fd`.
///
/// # Errors
/// What pread(2) says.
pub fn for_each(fd: i32, rows: u32, mut visit: impl FnMut(Row)) -> Result<()> {
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
            visit(row);
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
        let mut parcel = Parcel::new(false).unwrap();
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
                spare: -1,
                moved: true,
                heir: 9,
                is_of_this_build: true,
                maker: Maker::present(),
            }
        );
        let mut seen = Vec::new();
        for_each(fd, found.rows, |row| seen.push(row)).unwrap();
        assert_eq!(seen, (0..100).map(row).collect::<Vec<_>>());
        assert_eq!(
            rustix::io::fcntl_getfd(descriptor::lend(fd).unwrap()),
            Ok(FdFlags::empty()),
            "it is inherited"
        );
        assert_eq!(for_each(fd, 101, |_| ()), Err(Errno::PROTO));
        drop(parcel);
        head(fd).unwrap_err();
    }

    #[test]
    fn a_build_of_the_same_version_with_another_layout_is_another_one() {
        let mine = version();
        assert_eq!(mine, stamp(BUILD_VERSION, HEAD_BYTES, ROW_BYTES));
        for other in [
            stamp(BUILD_VERSION, WORDS_BYTES, ROW_BYTES),
            stamp(BUILD_VERSION, HEAD_BYTES, ROW_BYTES + 8),
            stamp("", HEAD_BYTES, ROW_BYTES),
        ] {
            assert_ne!(mine, other);
            let mut parcel = Parcel::new(false).unwrap();
            let fd = parcel.send(false, 1).unwrap();
            let bytes = other.to_ne_bytes();
            rustix::io::pwrite(descriptor::lend(fd).unwrap(), &bytes, 8).unwrap();
            assert!(!head(fd).unwrap().is_of_this_build);
        }
    }

    #[test]
    fn a_parcel_of_another_build_names_its_descriptors() {
        let mut parcel = Parcel::new(false).unwrap();
        let other = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
        let other = std::os::fd::AsRawFd::as_raw_fd(&other);
        parcel.set_region(other).unwrap();
        parcel.set_spare(other).unwrap();
        let fd = parcel.send(false, 1).unwrap();
        let mine = head(fd).unwrap();
        assert!(mine.is_of_this_build && mine.region >= 0 && mine.spare > mine.region);
        rustix::io::pwrite(descriptor::lend(fd).unwrap(), b"another ", 8).unwrap();
        let found = head(fd).unwrap();
        assert!(!found.is_of_this_build);
        assert_eq!((found.region, found.spare), (mine.region, mine.spare));
        rustix::io::pwrite(descriptor::lend(fd).unwrap(), &[0; 8], 0).unwrap();
        assert_eq!(head(fd), Err(Errno::PROTO), "something else");
    }
}
