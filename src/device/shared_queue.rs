//! One queue pair for several lcores, where the port has no more: the first lcore receives, and all of them send.
//!
//! What the others receive the first one passes on. Frames to be sent are filled in a buffer of the lcore's own and copied to
//! the port under a lock, a burst at a time.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::event::EventfdFlags;

use super::kept::KEPT_FRAMES_MAX;
use super::tx_batch::TxBatch;
use super::{QueuePair, RxFrame, RxQueue, TxMeta, TxQueue};
use crate::errno::Result;
use crate::ffi::descriptor;
use crate::time::Instant;

/// Makes queue pairs for `lcores` lcores of one. Frames to be sent have `frame_bytes` bytes at most.
///
/// # Errors
/// EMFILE.
pub fn share((rx, tx): QueuePair, lcores: usize, frame_bytes: usize) -> Result<Vec<QueuePair>> {
    let shared = Arc::new(Shared {
        full: tx.room(),
        stuck: AtomicBool::new(false),
        tx: Mutex::new(tx),
    });
    let mut first = Some(rx);
    (0..lcores)
        .map(|_| {
            let rx = match first.take() {
                Some(rx) => rx,
                None => Box::new(Nothing::new()?),
            };
            let tx = SharedTx {
                shared: Arc::clone(&shared),
                batch: TxBatch::new(frame_bytes),
                metas: VecDeque::new(),
            };
            Ok((rx, Box::new(tx) as Box<dyn TxQueue>))
        })
        .collect()
}

struct Shared {
    tx: Mutex<Box<dyn TxQueue>>,
    /// Room of the port's queue when nothing waits in it.
    full: usize,
    /// Frames wait in it: whoever comes by flushes them.
    stuck: AtomicBool,
}

/// The transmit half of one lcore.
struct SharedTx {
    shared: Arc<Shared>,
    batch: TxBatch,
    /// Of the frames in `batch`.
    metas: VecDeque<TxMeta>,
}

impl TxQueue for SharedTx {
    fn alloc(&mut self, len: usize) -> Option<&mut [u8]> {
        self.batch.alloc(len)
    }

    fn commit(&mut self, len: usize, meta: TxMeta) {
        let before = self.batch.len();
        self.batch.commit(len);
        if self.batch.len() > before {
            self.metas.push_back(meta);
        }
    }

    fn flush(&mut self, now: Instant) -> usize {
        let shared = &self.shared;
        if self.batch.len() == 0 && !shared.stuck.load(Ordering::Relaxed) {
            return 0;
        }
        // Held for one burst. A panic of the other holder ends the host.
        let mut tx = shared.tx.lock().unwrap_or_else(PoisonError::into_inner);
        let mut moved = 0;
        while let (Some(frame), Some(meta)) = (self.batch.first(), self.metas.front()) {
            let bytes = frame.bytes();
            if tx.room() == 0 {
                tx.flush(now);
            }
            let Some(buffer) = tx.alloc(bytes.len()) else {
                break;
            };
            buffer.copy_from_slice(bytes);
            tx.commit(bytes.len(), *meta);
            self.metas.pop_front();
            if let Some(frame) = self.batch.pop() {
                self.batch.recycle(frame);
            }
            moved += 1;
        }
        tx.flush(now);
        let stuck = tx.room() < shared.full;
        shared.stuck.store(stuck, Ordering::Relaxed);
        moved
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
        let meta = self.batch.commit_kept(ticket);
        self.metas.extend(meta);
        meta.is_some()
    }

    fn free_kept(&mut self, ticket: u32) {
        self.batch.free_kept(ticket);
    }
}

/// The receive half of an lcore that has no queue of its own.
struct Nothing {
    /// Never readable: there is nothing to wait for here.
    never: OwnedFd,
}

impl Nothing {
    fn new() -> Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Self {
            never: descriptor::settle(rustix::event::eventfd(0, flags)?),
        })
    }
}

impl RxQueue for Nothing {
    fn rx_burst(&mut self, _: Instant, _: &mut dyn FnMut(&mut [RxFrame<'_>])) -> usize {
        0
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.never.as_fd())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Device;
    use crate::device::fault::FaultConfig;
    use crate::device::pair::pair;

    fn send(tx: &mut dyn TxQueue, byte: u8) {
        tx.alloc(60).unwrap().fill(byte);
        tx.commit(60, TxMeta::default());
    }

    #[test]
    fn all_send_and_the_first_receives() {
        let (mut port, mut peer) = pair(FaultConfig::none(), FaultConfig::none(), 1_500);
        let (mut peer_rx, mut peer_tx) = peer.queue_pair(0).unwrap();
        let mut pairs = share(port.queue_pair(0).unwrap(), 3, 1_518).unwrap();
        for (byte, (_, tx)) in (1_u8..).zip(&mut pairs) {
            for _ in 0..byte {
                send(tx.as_mut(), byte);
            }
            assert_eq!(tx.flush(Instant::ZERO), usize::from(byte));
            assert_eq!(tx.flush(Instant::ZERO), 0);
        }
        let mut seen = Vec::new();
        peer_rx.rx_burst(Instant::ZERO, &mut |frames| {
            seen.extend(frames.iter().map(|frame| frame.bytes[0]));
        });
        assert_eq!(seen, [1, 2, 2, 3, 3, 3]);
        send(peer_tx.as_mut(), 9);
        peer_tx.flush(Instant::ZERO);
        let got = pairs
            .iter_mut()
            .map(|(rx, _)| rx.rx_burst(Instant::ZERO, &mut |_| {}))
            .collect::<Vec<_>>();
        assert_eq!(got, [1, 0, 0]);
        assert!(pairs[1].0.wait_fd().is_some(), "it may sleep");
    }

    /// A port that takes one frame a flush.
    struct Slow {
        waiting: usize,
        buffer: [u8; 60],
        sent: Arc<Mutex<Vec<u8>>>,
        kept: VecDeque<u8>,
    }

    impl TxQueue for Slow {
        fn alloc(&mut self, len: usize) -> Option<&mut [u8]> {
            (self.waiting < 2).then_some(())?;
            self.buffer.get_mut(..len)
        }

        fn commit(&mut self, _: usize, _: TxMeta) {
            self.waiting += 1;
            self.kept.push_back(self.buffer[0]);
        }

        fn flush(&mut self, _: Instant) -> usize {
            let Some(byte) = self.kept.pop_front() else {
                return 0;
            };
            self.waiting -= 1;
            self.sent.lock().unwrap().push(byte);
            1
        }

        fn room(&self) -> usize {
            2 - self.waiting
        }
    }

    #[test]
    fn what_a_slow_port_keeps_leaves_with_whoever_comes_by() {
        let (mut port, _peer) = pair(FaultConfig::none(), FaultConfig::none(), 1_500);
        let (rx, _) = port.queue_pair(0).unwrap();
        let sent = Arc::new(Mutex::new(Vec::new()));
        let slow = Slow {
            waiting: 0,
            buffer: [0; 60],
            sent: Arc::clone(&sent),
            kept: VecDeque::new(),
        };
        let mut pairs = share((rx, Box::new(slow)), 2, 60).unwrap();
        for byte in 1..=4 {
            send(pairs[0].1.as_mut(), byte);
        }
        pairs[0].1.flush(Instant::ZERO);
        for _ in 0..4 {
            pairs[1].1.flush(Instant::ZERO);
        }
        pairs[0].1.flush(Instant::ZERO);
        for _ in 0..4 {
            pairs[1].1.flush(Instant::ZERO);
        }
        assert_eq!(*sent.lock().unwrap(), [1, 2, 3, 4]);
    }
}
