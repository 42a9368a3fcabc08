//! The device `knet_unix,path=P`: frames between two hosts over an AF_UNIX SOCK_SEQPACKET socket.
//!
//! One datagram is one frame. Nobody is server or client by configuration: see `link`. What a port
//! receives suffers its own simulated faults.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::fault::{FaultConfig, FaultCounts, FaultLine};
use super::frame::{Frame, LINK_HEADER_BYTES, lend};
use super::kept::{KEPT_FRAMES_MAX, Keeps, KeptFrames};
use super::port_counters::{PortCounters, count};
use super::tx_batch::TxBatch;
use super::{
    BURST_MAX, Capabilities, Device, DeviceError, PortStats, QueuePair, RxFrame, RxQueue, TxMeta,
    TxQueue,
};
use crate::errno::Errno;
use crate::time::Instant;

mod link;

use link::{Link, Received, Sent};

/// The port at one end of a socket path. It needs no privilege.
#[derive(Debug)]
pub struct UnixDevice {
    capabilities: Capabilities,
    faults: FaultConfig,
    shared: Arc<Shared>,
    taken: bool,
}

impl UnixDevice {
    /// Opens the port at the absolute `path`; the other end may come later, go, and come again.
    ///
    /// # Errors
    /// A line that says why neither a listening nor a connected socket can be had at `path`.
    pub fn open(
        path: &str,
        faults: FaultConfig,
        mac: [u8; 6],
        mtu: usize,
    ) -> Result<Self, DeviceError> {
        Ok(Self {
            capabilities: Capabilities {
                mac,
                mtu,
                queues: 1,
                description: format!("knet_unix {path}"),
                ..Capabilities::default()
            },
            faults,
            shared: Arc::new(Shared {
                link: Mutex::new(Link::open(path)?),
                counters: PortCounters::new(),
                faults: Mutex::new(FaultCounts::default()),
            }),
            taken: false,
        })
    }

    /// What happened to the frames that this end received, as of its last burst; all zero without faults.
    #[must_use]
    pub fn received_counts(&self) -> FaultCounts {
        *self.shared.fault_counts()
    }
}

impl Device for UnixDevice {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn queue_pair(&mut self, queue: usize) -> Result<QueuePair, Errno> {
        if queue != 0 || self.taken {
            return Err(Errno::INVAL);
        }
        self.taken = true;
        let frame_bytes = self.capabilities.mtu + LINK_HEADER_BYTES;
        let rx = UnixRx {
            wait_fd: rustix::io::fcntl_dupfd_cloexec(self.shared.link().wait_fd(), 0)?,
            shared: Arc::clone(&self.shared),
            line: FaultLine::new(self.faults, frame_bytes),
            lent: Vec::with_capacity(BURST_MAX),
            kept: KeptFrames::default(),
        };
        let tx = UnixTx {
            shared: Arc::clone(&self.shared),
            batch: TxBatch::new(frame_bytes),
        };
        Ok((Box::new(rx), Box::new(tx)))
    }

    fn stats(&self) -> PortStats {
        self.shared.counters.stats()
    }

    fn link_up(&self) -> bool {
        self.shared.link().is_up()
    }
}

/// What the port and its halves share. The socket file goes when the last of them goes.
#[derive(Debug)]
struct Shared {
    link: Mutex<Link>,
    counters: PortCounters,
    faults: Mutex<FaultCounts>,
}

impl Shared {
    /// Taken once a burst, never while a frame is lent. Every change under it is complete, so a
    /// panic of the other holder leaves it usable.
    fn link(&self) -> MutexGuard<'_, Link> {
        self.link.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fault_counts(&self) -> MutexGuard<'_, FaultCounts> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
struct UnixRx {
    shared: Arc<Shared>,
    /// A copy of the link's epoll descriptor.
    wait_fd: OwnedFd,
    line: FaultLine,
    /// The last burst, given back at the next one.
    lent: Vec<Frame>,
    kept: KeptFrames,
}

impl UnixRx {
    /// Gives the last burst back and takes the next one.
    fn renew(&mut self, now: Instant) {
        for frame in self.lent.drain(..) {
            self.line.recycle(frame);
        }
        let overflowed = self.line.counts().overflowed;
        self.fetch(now);
        if self.line.config().is_clear() {
            return;
        }
        while self.lent.len() < BURST_MAX {
            let Some(frame) = self.line.pop_due(now) else {
                break;
            };
            self.lent.push(frame);
        }
        let counts = self.line.counts();
        self.shared
            .counters
            .frames_missed
            .add(counts.overflowed - overflowed);
        *self.shared.fault_counts() = counts;
    }

    /// Fetches at most a burst from the socket, onto the line or straight into `lent`.
    fn fetch(&mut self, now: Instant) {
        let mut link = self.shared.link();
        link.tend(now);
        for _ in 0..BURST_MAX {
            let mut frame = self.line.take();
            match link.receive(now, frame.buffer_mut()) {
                Received::Frame(len) => {
                    frame.set_len(len);
                    if self.line.config().is_clear() {
                        self.lent.push(frame);
                    } else {
                        self.line.push(now, frame);
                    }
                }
                Received::TooLong => {
                    self.shared.counters.frames_missed.raise();
                    self.line.recycle(frame);
                }
                Received::Nothing => {
                    self.line.recycle(frame);
                    return;
                }
            }
        }
    }
}

impl RxQueue for UnixRx {
    fn rx_burst(&mut self, now: Instant, deliver: &mut dyn FnMut(&mut [RxFrame<'_>])) -> usize {
        self.renew(now);
        let received = lend(&mut self.lent, deliver);
        self.shared.counters.frames_received.add(count(received));
        received
    }

    fn keeps(&self) -> usize {
        KEPT_FRAMES_MAX
    }

    fn rx_burst_keeping(
        &mut self,
        now: Instant,
        deliver: &mut dyn FnMut(&mut [RxFrame<'_>], &mut Keeps),
    ) -> usize {
        self.renew(now);
        let received = self.kept.lend_burst(&mut self.lent, deliver);
        self.shared.counters.frames_received.add(count(received));
        received
    }

    fn kept(&mut self, ticket: u32) -> Option<&mut [u8]> {
        self.kept.get(ticket)
    }

    fn lend_kept(&mut self, tickets: &[u32], deliver: &mut dyn FnMut(&mut [RxFrame<'_>])) {
        self.kept.lend(tickets, deliver);
    }

    fn free_kept(&mut self, ticket: u32) {
        if let Some((frame, _)) = self.kept.take(ticket) {
            self.line.recycle(frame);
        }
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.wait_fd.as_fd())
    }

    fn next_due(&self) -> Option<Instant> {
        let tend = self.shared.link().next_tend();
        self.line.next_due().into_iter().chain(tend).min()
    }
}

#[derive(Debug)]
struct UnixTx {
    shared: Arc<Shared>,
    batch: TxBatch,
}

impl TxQueue for UnixTx {
    fn alloc(&mut self, len: usize) -> Option<&mut [u8]> {
        self.batch.alloc(len)
    }

    fn commit(&mut self, len: usize, _meta: TxMeta) {
        self.batch.commit(len);
    }

    fn flush(&mut self, _now: Instant) -> usize {
        if self.batch.len() == 0 {
            return 0;
        }
        let counters = &self.shared.counters;
        let mut link = self.shared.link();
        let mut sent = 0;
        while let Some(frame) = self.batch.first() {
            match link.send(frame.bytes()) {
                Sent::Gone => sent += 1,
                Sent::Full => break,
                Sent::Refused => counters.frames_dropped.raise(),
                Sent::Down => {
                    counters.frames_dropped.add(count(self.batch.discard()));
                    break;
                }
            }
            if let Some(frame) = self.batch.pop() {
                self.batch.recycle(frame);
            }
        }
        link.want_room(self.batch.len() > 0);
        drop(link);
        counters.frames_sent.add(count(sent));
        sent
    }

    fn room(&self) -> usize {
        self.batch.room()
    }

    fn keeps(&self) -> usize {
        KEPT_FRAMES_MAX
    }

    fn keep(&mut self, len: usize, meta: TxMeta, ticket: u32) -> bool {
        self.batch.keep(len, meta, ticket)
    }

    fn kept(&mut self, ticket: u32) -> Option<&mut [u8]> {
        self.batch.kept(ticket)
    }

    fn commit_kept(&mut self, ticket: u32) -> bool {
        self.batch.commit_kept(ticket).is_some()
    }

    fn free_kept(&mut self, ticket: u32) {
        self.batch.free_kept(ticket);
    }
}

#[cfg(test)]
mod tests;
