//! Two ports joined in memory: for tests in virtual time on one thread, or between two threads.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::fault::{FaultConfig, FaultCounts, FaultLine};
use super::frame::{Frame, LINK_HEADER_BYTES, lend};
use super::kept::{KEPT_FRAMES_MAX, Keeps, KeptFrames};
use super::port_counters::{PortCounters, count};
use super::tx_batch::TxBatch;
use super::{BURST_MAX, Capabilities, Device, PortStats, QueuePair, RxQueue, TxMeta, TxQueue};
use crate::errno::Errno;
use crate::time::Instant;

/// Frames that wait at a receiver at most, as in a NIC's descriptor ring; further ones are missed.
pub const RING_FRAMES: usize = 1024;

/// Joins two ports. What the first sends suffers `faults_a`, what the second sends `faults_b`.
///
/// Frames are handed over when the sender flushes, at the time it gives. Both ends must use one clock.
///
/// # Examples
/// ```
/// use knet::device::{Device, RxQueue, TxMeta, TxQueue, fault::FaultConfig, pair::pair};
/// use knet::time::Instant;
///
/// let (mut a, mut b) = pair(FaultConfig::none(), FaultConfig::none(), 1500);
/// let (_, mut tx) = a.queue_pair(0)?;
/// let (mut rx, _) = b.queue_pair(0)?;
/// if let Some(buffer) = tx.alloc(60) {
///     buffer.fill(7);
///     tx.commit(60, TxMeta::default());
/// }
/// assert_eq!(tx.flush(Instant::ZERO), 1);
/// let received = rx.rx_burst(Instant::ZERO, &mut |burst| assert_eq!(burst[0].bytes, [7; 60]));
/// assert_eq!(received, 1);
/// # Ok::<(), knet::errno::Errno>(())
/// ```
#[must_use]
pub fn pair(faults_a: FaultConfig, faults_b: FaultConfig, mtu: usize) -> (PairDevice, PairDevice) {
    let counters_a = Arc::new(PortCounters::new());
    let counters_b = Arc::new(PortCounters::new());
    let frame_bytes = mtu + LINK_HEADER_BYTES;
    let to_b = Arc::new(Wire::new(faults_a, frame_bytes, Arc::clone(&counters_b)));
    let to_a = Arc::new(Wire::new(faults_b, frame_bytes, Arc::clone(&counters_a)));
    let (alive_a, alive_b) = (Arc::new(()), Arc::new(()));
    let end = |name: &str, last: u8| Capabilities {
        mac: [0x02, 0, 0, 0, 0, last],
        mtu,
        queues: 1,
        description: format!("knet_pair end {name}"),
        ..Capabilities::default()
    };
    let a = PairDevice {
        capabilities: end("a", 0x0a),
        incoming: Arc::clone(&to_a),
        outgoing: Arc::clone(&to_b),
        counters: counters_a,
        peer: Arc::downgrade(&alive_b),
        alive: Arc::clone(&alive_a),
        taken: false,
    };
    let b = PairDevice {
        capabilities: end("b", 0x0b),
        incoming: to_b,
        outgoing: to_a,
        counters: counters_b,
        peer: Arc::downgrade(&alive_a),
        alive: alive_b,
        taken: false,
    };
    (a, b)
}

/// One end of a pair. It has one queue pair, and must be polled: it has no descriptor to wait on.
#[derive(Debug)]
pub struct PairDevice {
    capabilities: Capabilities,
    incoming: Arc<Wire>,
    outgoing: Arc<Wire>,
    counters: Arc<PortCounters>,
    /// Held by the device and its halves; gone when the other end is.
    peer: Weak<()>,
    alive: Arc<()>,
    taken: bool,
}

impl PairDevice {
    /// What happened to the frames that this end sent; all zero on a line without faults.
    #[must_use]
    pub fn sent_counts(&self) -> FaultCounts {
        self.outgoing.lock().line.counts()
    }
}

impl Device for PairDevice {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn queue_pair(&mut self, queue: usize) -> Result<QueuePair, Errno> {
        if queue != 0 || self.taken {
            return Err(Errno::INVAL);
        }
        self.taken = true;
        let rx = PairRx {
            wire: Arc::clone(&self.incoming),
            lent: Vec::with_capacity(BURST_MAX),
            kept: KeptFrames::default(),
            counters: Arc::clone(&self.counters),
            _alive: Arc::clone(&self.alive),
        };
        let tx = PairTx {
            wire: Arc::clone(&self.outgoing),
            batch: TxBatch::new(self.capabilities.mtu + LINK_HEADER_BYTES),
            counters: Arc::clone(&self.counters),
            peer: Weak::clone(&self.peer),
            _alive: Arc::clone(&self.alive),
        };
        Ok((Box::new(rx), Box::new(tx)))
    }

    fn stats(&self) -> PortStats {
        self.counters.stats()
    }

    fn link_up(&self) -> bool {
        self.peer.strong_count() > 0
    }
}

/// One direction.
#[derive(Debug)]
struct Wire {
    state: Mutex<WireState>,
}

#[derive(Debug)]
struct WireState {
    line: FaultLine,
    ring: VecDeque<Frame>,
    receiver: Arc<PortCounters>,
}

impl Wire {
    fn new(faults: FaultConfig, frame_bytes: usize, receiver: Arc<PortCounters>) -> Self {
        Self {
            state: Mutex::new(WireState {
                line: FaultLine::new(faults, frame_bytes),
                ring: VecDeque::with_capacity(RING_FRAMES),
                receiver,
            }),
        }
    }

    /// Taken once a burst, never while a frame is lent. Every change under it is complete, so a
    /// panic of the other holder leaves it usable.
    fn lock(&self) -> MutexGuard<'_, WireState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl WireState {
    fn send(&mut self, now: Instant, frame: Frame) {
        if self.line.config().is_clear() {
            self.arrive(frame);
        } else {
            self.line.push(now, frame);
        }
    }

    /// Moves what is due into the ring.
    fn settle(&mut self, now: Instant) {
        while let Some(frame) = self.line.pop_due(now) {
            self.arrive(frame);
        }
    }

    fn arrive(&mut self, frame: Frame) {
        if self.ring.len() < RING_FRAMES {
            self.ring.push_back(frame);
        } else {
            self.receiver.frames_missed.raise();
            self.line.recycle(frame);
        }
    }
}

#[derive(Debug)]
struct PairRx {
    wire: Arc<Wire>,
    /// The last burst, given back at the next one.
    lent: Vec<Frame>,
    kept: KeptFrames,
    counters: Arc<PortCounters>,
    _alive: Arc<()>,
}

impl PairRx {
    /// Gives the last burst back and takes the next one.
    fn fetch(&mut self, now: Instant) {
        let mut wire = self.wire.lock();
        for frame in self.lent.drain(..) {
            wire.line.recycle(frame);
        }
        wire.settle(now);
        let ready = wire.ring.len().min(BURST_MAX);
        self.lent.extend(wire.ring.drain(..ready));
    }
}

impl RxQueue for PairRx {
    fn rx_burst(
        &mut self,
        now: Instant,
        deliver: &mut dyn FnMut(&mut [super::RxFrame<'_>]),
    ) -> usize {
        self.fetch(now);
        let received = lend(&mut self.lent, deliver);
        self.counters.frames_received.add(count(received));
        received
    }

    fn keeps(&self) -> usize {
        KEPT_FRAMES_MAX
    }

    fn rx_burst_keeping(
        &mut self,
        now: Instant,
        deliver: &mut dyn FnMut(&mut [super::RxFrame<'_>], &mut Keeps),
    ) -> usize {
        self.fetch(now);
        let received = self.kept.lend_burst(&mut self.lent, deliver);
        self.counters.frames_received.add(count(received));
        received
    }

    fn kept(&mut self, ticket: u32) -> Option<&mut [u8]> {
        self.kept.get(ticket)
    }

    fn lend_kept(&mut self, tickets: &[u32], deliver: &mut dyn FnMut(&mut [super::RxFrame<'_>])) {
        self.kept.lend(tickets, deliver);
    }

    fn free_kept(&mut self, ticket: u32) {
        if let Some((frame, _)) = self.kept.take(ticket) {
            self.wire.lock().line.recycle(frame);
        }
    }

    fn next_due(&self) -> Option<Instant> {
        let wire = self.wire.lock();
        if wire.ring.is_empty() {
            wire.line.next_due()
        } else {
            Some(Instant::ZERO)
        }
    }
}

#[derive(Debug)]
struct PairTx {
    wire: Arc<Wire>,
    batch: TxBatch,
    counters: Arc<PortCounters>,
    peer: Weak<()>,
    _alive: Arc<()>,
}

impl TxQueue for PairTx {
    fn alloc(&mut self, len: usize) -> Option<&mut [u8]> {
        self.batch.alloc(len)
    }

    fn commit(&mut self, len: usize, _meta: TxMeta) {
        self.batch.commit(len);
    }

    fn flush(&mut self, now: Instant) -> usize {
        if self.batch.len() == 0 {
            return 0;
        }
        if self.peer.strong_count() == 0 {
            self.counters
                .frames_dropped
                .add(count(self.batch.discard()));
            return 0;
        }
        let mut sent = 0;
        let mut wire = self.wire.lock();
        while let Some(frame) = self.batch.pop() {
            wire.send(now, frame);
            sent += 1;
            // A buffer for a buffer: neither side's pool runs dry.
            if let Some(empty) = wire.line.take_returned() {
                self.batch.recycle(empty);
            }
        }
        wire.settle(now);
        drop(wire);
        self.counters.frames_sent.add(count(sent));
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
