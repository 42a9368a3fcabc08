//! The replay device: receives what a capture file holds, with the file's spacing in time.

use std::path::Path;
use std::sync::Arc;

use super::format::{Record, parse};
use crate::device::frame::{Frame, LINK_HEADER_BYTES, lend};
use crate::device::port_counters::{PortCounters, count};
use crate::device::tx_batch::TxBatch;
use crate::device::{
    BURST_MAX, Capabilities, Device, DeviceError, PortStats, QueuePair, RxFrame, RxQueue, TxMeta,
    TxQueue,
};
use crate::errno::Errno;
use crate::time::Instant;

/// A port that receives a capture and sends into nothing. The first frame is due at the first burst.
/// To see the replies, put a [`super::Tap`] in front.
#[derive(Debug)]
pub struct PcapReplay {
    capabilities: Capabilities,
    /// Until the queue pair is taken.
    capture: Option<Capture>,
    counters: Arc<PortCounters>,
}

#[derive(Debug)]
struct Capture {
    file: Vec<u8>,
    records: Vec<Record>,
}

impl PcapReplay {
    /// Reads the whole file at `path`.
    ///
    /// # Errors
    /// A line that names the file, and the byte where it is wrong.
    pub fn open(path: &Path, mac: [u8; 6], mtu: usize) -> Result<Self, DeviceError> {
        let file = std::fs::read(path).map_err(|error| DeviceError {
            message: format!("pcap: {}: {error}", path.display()),
        })?;
        Self::from_bytes(file, mac, mtu).map_err(|fault| DeviceError {
            message: format!("{}: {fault}", path.display()),
        })
    }

    /// Takes the contents of a capture file.
    ///
    /// # Errors
    /// A line that names the byte where it is wrong.
    pub fn from_bytes(file: Vec<u8>, mac: [u8; 6], mtu: usize) -> Result<Self, DeviceError> {
        let records = parse(&file)?;
        Ok(Self {
            capabilities: Capabilities {
                mac,
                mtu,
                description: format!("pcap replay of {} frames", records.len()),
                ..Capabilities::default()
            },
            capture: Some(Capture { file, records }),
            counters: Arc::new(PortCounters::new()),
        })
    }
}

impl Device for PcapReplay {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn queue_pair(&mut self, queue: usize) -> Result<QueuePair, Errno> {
        if queue != 0 {
            return Err(Errno::INVAL);
        }
        let capture = self.capture.take().ok_or(Errno::INVAL)?;
        let frame_bytes = self.capabilities.mtu + LINK_HEADER_BYTES;
        let rx = ReplayRx {
            capture,
            next: 0,
            began: None,
            burst: (0..BURST_MAX).map(|_| Frame::new(frame_bytes)).collect(),
            counters: Arc::clone(&self.counters),
        };
        let tx = ReplayTx {
            batch: TxBatch::new(frame_bytes),
            counters: Arc::clone(&self.counters),
        };
        Ok((Box::new(rx), Box::new(tx)))
    }

    fn stats(&self) -> PortStats {
        self.counters.stats()
    }

    fn link_up(&self) -> bool {
        true
    }
}

struct ReplayRx {
    capture: Capture,
    next: usize,
    /// The first burst's time on our clock.
    began: Option<Instant>,
    burst: Vec<Frame>,
    counters: Arc<PortCounters>,
}

impl ReplayRx {
    /// When `record` is due, if replay began at `began`. A record older than the first is due at once.
    fn due(&self, began: Instant, record: &Record) -> Instant {
        let first = self
            .capture
            .records
            .first()
            .map_or(record.at, |first| first.at);
        began + record.at.since(first)
    }
}

impl RxQueue for ReplayRx {
    fn rx_burst(&mut self, now: Instant, deliver: &mut dyn FnMut(&mut [RxFrame<'_>])) -> usize {
        let began = *self.began.get_or_insert(now);
        let mut ready = 0;
        while ready < BURST_MAX
            && let Some(record) = self.capture.records.get(self.next)
            && self.due(began, record) <= now
        {
            let bytes = self.capture.file.get(record.bytes.clone()).unwrap_or(&[]);
            let fits = self
                .burst
                .get_mut(ready)
                .is_some_and(|frame| frame.copy_from(bytes));
            if fits {
                ready += 1;
            } else {
                self.counters.frames_missed.raise();
            }
            self.next += 1;
        }
        let received = lend(self.burst.get_mut(..ready).unwrap_or(&mut []), deliver);
        self.counters.frames_received.add(count(received));
        received
    }

    fn next_due(&self) -> Option<Instant> {
        let record = self.capture.records.get(self.next)?;
        Some(
            self.began
                .map_or(Instant::ZERO, |began| self.due(began, record)),
        )
    }
}

struct ReplayTx {
    batch: TxBatch,
    counters: Arc<PortCounters>,
}

impl TxQueue for ReplayTx {
    fn alloc(&mut self, len: usize) -> Option<&mut [u8]> {
        self.batch.alloc(len)
    }

    fn commit(&mut self, len: usize, _meta: TxMeta) {
        self.batch.commit(len);
    }

    fn flush(&mut self, _now: Instant) -> usize {
        let sent = self.batch.discard();
        self.counters.frames_sent.add(count(sent));
        sent
    }

    fn room(&self) -> usize {
        self.batch.room()
    }
}
