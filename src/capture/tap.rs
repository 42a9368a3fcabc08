//! The tap: put in front of both halves of a queue pair, and taken away again.

use core::any::Any;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::recorder::{Direction, Recorder};
use crate::device::{Keeps, QueuePair, RxFrame, RxQueue, TxMeta, TxQueue};
use crate::time::{Instant, monotonic};

/// Both halves are the lcore's, so nobody ever waits for the lock.
type Shared = Arc<Mutex<Tapped>>;

/// What both halves write to.
struct Tapped {
    recorder: Recorder,
    /// The time of what is sent since the last burst was received or flushed: one look at the clock for all of it.
    sending: Option<Instant>,
}

struct TapRx {
    inner: Box<dyn RxQueue>,
    recorder: Shared,
}

struct TapTx {
    inner: Box<dyn TxQueue>,
    recorder: Shared,
}

/// Puts a tap in front of both halves.
#[must_use]
pub fn tap((rx, tx): QueuePair, recorder: Recorder) -> QueuePair {
    let recorder = Arc::new(Mutex::new(Tapped {
        recorder,
        sending: None,
    }));
    let tapped = TapRx {
        inner: rx,
        recorder: Arc::clone(&recorder),
    };
    (
        Box::new(tapped),
        Box::new(TapTx {
            inner: tx,
            recorder,
        }),
    )
}

/// Takes a tap away; a pair without one comes back as it is.
#[must_use]
pub fn untap((rx, tx): QueuePair) -> QueuePair {
    let is_tapped =
        (rx.as_ref() as &dyn Any).is::<TapRx>() && (tx.as_ref() as &dyn Any).is::<TapTx>();
    if !is_tapped {
        return (rx, tx);
    }
    let (rx, tx): (Box<dyn Any>, Box<dyn Any>) = (rx, tx);
    match (rx.downcast::<TapRx>(), tx.downcast::<TapTx>()) {
        (Ok(rx), Ok(tx)) => (rx.inner, tx.inner),
        // Just asked, so this cannot be.
        _ => (Box::new(Closed), Box::new(Closed)),
    }
}

/// A queue through which nothing goes: what stands in a queue's place while that is moved.
#[derive(Clone, Copy, Debug)]
pub struct Closed;

impl RxQueue for Closed {
    fn rx_burst(&mut self, _: Instant, _: &mut dyn FnMut(&mut [RxFrame<'_>])) -> usize {
        0
    }
}

impl TxQueue for Closed {
    fn alloc(&mut self, _: usize) -> Option<&mut [u8]> {
        None
    }

    fn commit(&mut self, _: usize, _: TxMeta) {}

    fn flush(&mut self, _: Instant) -> usize {
        0
    }

    fn room(&self) -> usize {
        0
    }
}

/// Writes down a received burst before the stack changes it. The turn's own time would be that of its answers too.
fn record(recorder: &Shared, frames: &[RxFrame<'_>]) {
    let at = monotonic();
    let mut tapped = lock(recorder);
    tapped.sending = None;
    for frame in frames {
        tapped.recorder.record(at, Direction::In, frame.bytes);
    }
}

fn look(recorder: &Shared) {
    let mut tapped = lock(recorder);
    if tapped.recorder.due().is_some() {
        tapped.recorder.look(monotonic());
    }
}

fn lock(recorder: &Shared) -> MutexGuard<'_, Tapped> {
    recorder.lock().unwrap_or_else(PoisonError::into_inner)
}

impl RxQueue for TapRx {
    fn rx_burst(&mut self, now: Instant, deliver: &mut dyn FnMut(&mut [RxFrame<'_>])) -> usize {
        let recorder = &self.recorder;
        let count = self.inner.rx_burst(now, &mut |frames| {
            record(recorder, frames);
            deliver(frames);
        });
        look(recorder);
        count
    }

    fn keeps(&self) -> usize {
        self.inner.keeps()
    }

    fn rx_burst_keeping(
        &mut self,
        now: Instant,
        deliver: &mut dyn FnMut(&mut [RxFrame<'_>], &mut Keeps),
    ) -> usize {
        let recorder = &self.recorder;
        let count = self.inner.rx_burst_keeping(now, &mut |frames, keeps| {
            record(recorder, frames);
            deliver(frames, keeps);
        });
        look(recorder);
        count
    }

    fn kept(&mut self, ticket: u32) -> Option<&mut [u8]> {
        self.inner.kept(ticket)
    }

    fn lend_kept(&mut self, tickets: &[u32], deliver: &mut dyn FnMut(&mut [RxFrame<'_>])) {
        self.inner.lend_kept(tickets, deliver);
    }

    fn free_kept(&mut self, ticket: u32) {
        self.inner.free_kept(ticket);
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        self.inner.wait_fd()
    }

    fn arm(&mut self, on: bool) {
        self.inner.arm(on);
    }

    fn next_due(&self) -> Option<Instant> {
        [self.inner.next_due(), lock(&self.recorder).recorder.due()]
            .into_iter()
            .flatten()
            .min()
    }
}

impl TxQueue for TapTx {
    fn alloc(&mut self, len: usize) -> Option<&mut [u8]> {
        self.inner.alloc(len)
    }

    fn commit(&mut self, len: usize, meta: TxMeta) {
        // The buffer lent last is lent again.
        if let Some(frame) = self.inner.alloc(len) {
            let mut tapped = lock(&self.recorder);
            let at = *tapped.sending.get_or_insert_with(monotonic);
            tapped.recorder.record(at, Direction::Out, frame);
        }
        self.inner.commit(len, meta);
    }

    fn flush(&mut self, now: Instant) -> usize {
        lock(&self.recorder).sending = None;
        self.inner.flush(now)
    }

    fn room(&self) -> usize {
        self.inner.room()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capture::{Filter, Wanted, channel};
    use crate::device::Device;
    use crate::device::fault::FaultConfig;
    use crate::device::pair::pair;
    use core::time::Duration;

    #[test]
    fn both_ways_are_seen_and_the_tap_goes_without_a_trace() {
        let (mut ours, mut theirs) = pair(FaultConfig::none(), FaultConfig::none(), 1_500);
        let (wanted, epoch) = (Filter::all(), 0);
        let (recorder, reader) = channel(Wanted {
            filter: wanted,
            snap: 1_000,
            epoch,
        });
        let (mut rx, mut tx) = tap(ours.queue_pair(0).unwrap(), recorder);
        let (mut peer_rx, mut peer_tx) = theirs.queue_pair(0).unwrap();
        let send = |tx: &mut dyn TxQueue, value: u8| {
            tx.alloc(60).unwrap().fill(value);
            tx.commit(60, TxMeta::default());
            assert_eq!(tx.flush(Instant::ZERO), 1);
        };
        send(tx.as_mut(), 1);
        send(peer_tx.as_mut(), 2);
        let mut got = 0;
        peer_rx.rx_burst(Instant::ZERO, &mut |frames| got = frames[0].bytes[0]);
        assert_eq!(got, 1, "what is sent is what was written");
        assert_eq!(
            rx.rx_burst(Instant::ZERO, &mut |frames| frames[0].bytes.fill(9)),
            1
        );
        assert!(
            rx.next_due().is_some(),
            "the loop wakes to hand over what waits"
        );
        let (mut rx, mut tx) = untap((rx, tx));
        let mut seen = Vec::new();
        let _ = reader.read(Duration::ZERO, &mut |entry| {
            seen.push((entry.direction, entry.bytes.to_vec()))
        });
        assert_eq!(
            seen,
            [(Direction::Out, vec![1; 60]), (Direction::In, vec![2; 60])]
        );
        send(tx.as_mut(), 3);
        send(peer_tx.as_mut(), 4);
        assert_eq!(rx.rx_burst(Instant::ZERO, &mut |_| ()), 1);
        assert_eq!(reader.counters().seen.value(), 2);
        let (rx, _) = untap((rx, tx));
        assert!(rx.next_due().is_none());
    }
}
