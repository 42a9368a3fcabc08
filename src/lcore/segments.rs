//! The memory of one program family: both kinds of channel memory with their descriptors.

use std::os::fd::{AsFd, OwnedFd};

use crate::channel::layout::{Layout, PAGE_BYTES};
use crate::channel::map::{self, Control, Receive};
use crate::errno::Result;
use crate::ffi::descriptor;

/// Control and receive memory of a family, made by the host.
#[derive(Debug)]
pub struct Segments {
    /// Control memory, read-write on both sides.
    pub control: Control,
    /// Receive memory, written by the host only.
    pub receive: Receive,
    control_fd: OwnedFd,
    receive_fd: OwnedFd,
    /// Pages that can still be had, for tests of a full control group.
    #[cfg(test)]
    pub(super) pages_left: core::sync::atomic::AtomicU64,
    /// The kernel takes no page of a transmit ring back, for tests of that.
    #[cfg(test)]
    pub(super) transmit_stays: core::sync::atomic::AtomicBool,
    /// As `transmit_stays`, of receive rings.
    #[cfg(test)]
    pub(super) receive_stays: core::sync::atomic::AtomicBool,
}

impl Segments {
    /// Makes the memory of a family. Nothing of the rings is resident yet.
    ///
    /// # Errors
    /// What memfd_create, ftruncate or mmap say: EMFILE, ENOMEM, EFBIG.
    pub fn create(layout: Layout) -> Result<Self> {
        let (control, control_fd) = Control::create(layout)?;
        let (receive, receive_fd) = Receive::create(layout)?;
        Ok(Self {
            control,
            receive,
            control_fd: descriptor::settle(control_fd),
            receive_fd: descriptor::settle(receive_fd),
            #[cfg(test)]
            pages_left: core::sync::atomic::AtomicU64::new(u64::MAX),
            #[cfg(test)]
            transmit_stays: core::sync::atomic::AtomicBool::new(false),
            #[cfg(test)]
            receive_stays: core::sync::atomic::AtomicBool::new(false),
        })
    }

    /// The layout.
    #[must_use]
    pub const fn layout(&self) -> Layout {
        self.control.layout()
    }

    /// The descriptor of control memory, to be sent to the program.
    #[must_use]
    pub const fn control_fd(&self) -> &OwnedFd {
        &self.control_fd
    }

    /// The descriptor of receive memory; the program gets a read-only reopening of it.
    #[must_use]
    pub const fn receive_fd(&self) -> &OwnedFd {
        &self.receive_fd
    }

    /// Bytes of both kinds that have pages, whoever touched them.
    #[must_use]
    pub fn resident_bytes(&self) -> u64 {
        let pages = |fd: &OwnedFd| {
            // Our own descriptors: nothing to be told but how large they are.
            let blocks = rustix::fs::fstat(fd).map_or(0, |stat| stat.st_blocks);
            u64::try_from(blocks).unwrap_or(0) * BLOCK_BYTES
        };
        pages(&self.control_fd) + pages(&self.receive_fd)
    }

    /// Puts memory behind bytes `from` to `to - 1` of an object's receive ring.
    ///
    /// # Errors
    /// ENOSPC, ENOMEM.
    pub fn back_receive(&self, object: u32, from: u32, to: u32) -> Result<()> {
        let at = self.layout().rx_ring_at(object) + u64::from(from);
        self.back(&self.receive_fd, at, from, to)
    }

    /// Puts memory behind bytes `from` to `to - 1` of an object's transmit ring.
    ///
    /// # Errors
    /// ENOSPC, ENOMEM.
    pub fn back_transmit(&self, object: u32, from: u32, to: u32) -> Result<()> {
        let at = self.layout().tx_ring_at(object) + u64::from(from);
        self.back(&self.control_fd, at, from, to)
    }

    #[cfg_attr(
        not(test),
        allow(clippy::unused_self, reason = "tests count the pages")
    )]
    fn back(&self, fd: &OwnedFd, at: u64, from: u32, to: u32) -> Result<()> {
        if to <= from {
            return Ok(());
        }
        #[cfg(test)]
        self.take_pages(u64::from(to - from).div_ceil(PAGE_BYTES))?;
        map::back(fd.as_fd(), at, u64::from(to - from))
    }

    #[cfg(test)]
    fn take_pages(&self, count: u64) -> Result<()> {
        use core::sync::atomic::Ordering;
        let less = |left: u64| match left {
            u64::MAX => Some(left),
            left => left.checked_sub(count),
        };
        let taken = self
            .pages_left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        taken.map(|_| ()).map_err(|_| crate::errno::Errno::NOSPC)
    }

    /// Takes the memory behind bytes `from` to `to - 1` of an object's receive ring away.
    ///
    /// # Errors
    /// What fallocate says; then the memory stays.
    pub fn unback_receive(&self, object: u32, from: u32, to: u32) -> Result<()> {
        let at = self.layout().rx_ring_at(object) + u64::from(from);
        #[cfg(test)]
        if self
            .receive_stays
            .load(core::sync::atomic::Ordering::Relaxed)
        {
            return Err(crate::errno::Errno::NOMEM);
        }
        self.unback(&self.receive_fd, at, to.saturating_sub(from))
    }

    /// Takes the memory behind bytes `from` to `to - 1` of an object's transmit ring away.
    ///
    /// # Errors
    /// As [`Segments::unback_receive`].
    pub fn unback_transmit(&self, object: u32, from: u32, to: u32) -> Result<()> {
        let at = self.layout().tx_ring_at(object) + u64::from(from);
        #[cfg(test)]
        if self
            .transmit_stays
            .load(core::sync::atomic::Ordering::Relaxed)
        {
            return Err(crate::errno::Errno::NOMEM);
        }
        self.unback(&self.control_fd, at, to.saturating_sub(from))
    }

    #[cfg_attr(
        not(test),
        allow(clippy::unused_self, reason = "tests count the pages")
    )]
    fn unback(&self, fd: &OwnedFd, at: u64, bytes: u32) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        #[cfg(test)]
        let before = self.resident_bytes();
        map::unback(fd.as_fd(), at, u64::from(bytes))?;
        #[cfg(test)]
        self.return_pages(before.saturating_sub(self.resident_bytes()) / PAGE_BYTES);
        Ok(())
    }

    #[cfg(test)]
    fn return_pages(&self, count: u64) {
        use core::sync::atomic::Ordering;
        let more = |left: u64| (left != u64::MAX).then(|| left + count);
        // Without a bound nothing is counted.
        let _ = self
            .pages_left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
    }
}

/// The unit in which stat(2) counts, whatever the file system's is.
const BLOCK_BYTES: u64 = 512;
/// A page as a ring length.
pub(super) const PAGE: u32 = 4_096;
const _: () = assert!(PAGE as u64 == PAGE_BYTES);
