//! The tap: both directions of a queue pair, written to a file as they pass.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use super::format::{RECORD_BYTES_MAX, file_header, record_header};
use crate::device::frame::Frame;
use crate::device::{DeviceError, QueuePair, RxFrame, RxQueue, TxMeta, TxQueue};
use crate::time::Instant;

/// Writes what passes the queue pairs that it wraps. For tests and for looking at trouble: each frame
/// is copied, and the lcore waits for the disk.
#[derive(Clone, Debug)]
pub struct Tap {
    writer: Arc<Mutex<Writer>>,
}

impl Tap {
    /// Creates or empties the file at `path`.
    ///
    /// # Errors
    /// A line that names the file and says why it cannot be written.
    pub fn create(path: &Path) -> Result<Self, DeviceError> {
        let fault = |error: io::Error| DeviceError {
            message: format!("pcap: {}: {error}", path.display()),
        };
        let mut file = BufWriter::new(File::create(path).map_err(fault)?);
        file.write_all(&file_header()).map_err(fault)?;
        Ok(Self {
            writer: Arc::new(Mutex::new(Writer { file: Some(file) })),
        })
    }

    /// Puts the tap in front of both halves.
    #[must_use]
    pub fn wrap(&self, rx: Box<dyn RxQueue>, tx: Box<dyn TxQueue>) -> QueuePair {
        let tapped_rx = TapRx {
            inner: rx,
            tap: self.clone(),
        };
        let tapped_tx = TapTx {
            inner: tx,
            tap: self.clone(),
            open: Frame::new(0),
            committed: Vec::new(),
            ends: Vec::new(),
        };
        (Box::new(tapped_rx), Box::new(tapped_tx))
    }

    /// Writes out what is buffered; it also happens when the last half is dropped.
    ///
    /// # Errors
    /// The error of the write, or BrokenPipe when writing had already stopped after one.
    pub fn sync(&self) -> io::Result<()> {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut writer.file {
            Some(file) => file.flush(),
            None => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    fn record(&self, at: Instant, frame: &[u8]) {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        writer.record(at, frame);
    }
}

#[derive(Debug)]
struct Writer {
    /// None after a write failed: frames go on without us.
    file: Option<BufWriter<File>>,
}

impl Writer {
    fn record(&mut self, at: Instant, frame: &[u8]) {
        let Some(file) = &mut self.file else {
            return;
        };
        let captured = frame.get(..RECORD_BYTES_MAX).unwrap_or(frame);
        let header = record_header(at, captured.len(), frame.len());
        let written = file
            .write_all(&header)
            .and_then(|()| file.write_all(captured));
        if let Err(error) = written {
            crate::warn!("capture=pcap event=stopped error=\"{error}\"");
            self.file = None;
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if let Some(file) = &mut self.file
            && let Err(error) = file.flush()
        {
            crate::warn!("capture=pcap event=cut error=\"{error}\"");
        }
    }
}

struct TapRx {
    inner: Box<dyn RxQueue>,
    tap: Tap,
}

impl RxQueue for TapRx {
    fn rx_burst(&mut self, now: Instant, deliver: &mut dyn FnMut(&mut [RxFrame<'_>])) -> usize {
        let tap = &self.tap;
        self.inner.rx_burst(now, &mut |burst| {
            for frame in burst.iter() {
                tap.record(now, frame.bytes);
            }
            deliver(burst);
        })
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        self.inner.wait_fd()
    }

    fn arm(&mut self, on: bool) {
        self.inner.arm(on);
    }

    fn next_due(&self) -> Option<Instant> {
        self.inner.next_due()
    }
}

struct TapTx {
    inner: Box<dyn TxQueue>,
    tap: Tap,
    /// What the caller fills, because a device need not show its buffer again.
    open: Frame,
    /// Committed frames, one after the other; their time is known at the flush.
    committed: Vec<u8>,
    ends: Vec<usize>,
}

impl TxQueue for TapTx {
    fn alloc(&mut self, len: usize) -> Option<&mut [u8]> {
        self.inner.alloc(len)?;
        if self.open.capacity() < len {
            self.open = Frame::new(len);
        }
        self.open.set_len(len);
        Some(self.open.bytes_mut())
    }

    fn commit(&mut self, len: usize, meta: TxMeta) {
        let frame = self.open.bytes();
        let frame = frame.get(..len).unwrap_or(frame);
        if frame.is_empty() {
            return;
        }
        let Some(buffer) = self.inner.alloc(frame.len()) else {
            return;
        };
        buffer.copy_from_slice(frame);
        self.inner.commit(frame.len(), meta);
        self.committed.extend_from_slice(frame);
        self.ends.push(self.committed.len());
        self.open.set_len(0);
    }

    /// Records the burst before it goes, so that a reply never stands before its cause.
    fn flush(&mut self, now: Instant) -> usize {
        let mut start = 0;
        for end in self.ends.drain(..) {
            if let Some(frame) = self.committed.get(start..end) {
                self.tap.record(now, frame);
            }
            start = end;
        }
        self.committed.clear();
        self.inner.flush(now)
    }

    fn room(&self) -> usize {
        self.inner.room()
    }
}
