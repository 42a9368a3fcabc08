//! The other lcores of the host, as one of them sees them: frames that are theirs go to them, and theirs that are ours come.
//!
//! Each two lcores have a ring for each direction. A frame is copied into a buffer of the sender's, which comes back when it is
//! done with: the port's own buffer is free at once, so that an lcore which lags takes none from the port.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};

use super::counters::LcoreCounters;
use super::mailbox::{Mail, Mailbox};
use crate::channel::ring::{self, Receiver, Sender};
use crate::device::frame::{Frame, FramePool};
use crate::device::{BURST_MAX, RxFrame, RxMeta};
use crate::readiness::FIRST_LCORE;
use crate::stack::steering::{self, Steering};

/// Frames on their way between two lcores at most; more are dropped and counted.
const RING_FRAMES: u32 = 512;

/// A frame that another lcore received.
#[derive(Debug)]
struct Passed {
    frame: Frame,
    meta: RxMeta,
    /// Somebody else answers it.
    overheard: bool,
}

/// The way to another lcore.
#[derive(Debug)]
struct Way {
    frames: Sender<Passed>,
    /// Buffers that come back.
    empty: Receiver<Frame>,
    pool: FramePool,
}

/// The way from another lcore.
#[derive(Debug)]
struct Arrival {
    frames: Receiver<Passed>,
    empty: Sender<Frame>,
}

/// Where frames come out.
pub(super) trait Taker {
    /// Frames of ours.
    fn take(&mut self, frames: &mut [RxFrame<'_>]);
    /// A frame that another lcore answers.
    fn overhear(&mut self, frame: &mut [u8]);
}

/// What an lcore knows of the others.
#[derive(Debug)]
pub struct Peers {
    me: u32,
    steering: Arc<Steering>,
    /// By lcore, our own among them.
    mailboxes: Arc<[Arc<Mailbox>]>,
    /// Who sleeps, by lcore.
    asleep: Arc<[AtomicBool]>,
    /// By lcore; none to ourselves.
    ways: Vec<Option<Way>>,
    arrivals: Vec<Arrival>,
    burst: Vec<Passed>,
}

impl Peers {
    /// Joins the lcores that have these mailboxes; usual frames have `frame_bytes` bytes at most.
    #[must_use]
    pub fn join(
        mailboxes: &[Arc<Mailbox>],
        steering: &Arc<Steering>,
        frame_bytes: usize,
    ) -> Vec<Self> {
        let shared: Arc<[_]> = mailboxes.into();
        let asleep: Arc<[_]> = mailboxes.iter().map(|_| AtomicBool::new(false)).collect();
        let mut peers: Vec<Self> = (0_u32..)
            .zip(mailboxes)
            .map(|(me, _)| Self {
                me,
                steering: Arc::clone(steering),
                mailboxes: Arc::clone(&shared),
                asleep: Arc::clone(&asleep),
                ways: Vec::new(),
                arrivals: Vec::new(),
                burst: Vec::with_capacity(BURST_MAX),
            })
            .collect();
        for from in 0..peers.len() {
            for to in 0..peers.len() {
                let mut way = None;
                if from != to {
                    let (frames, arrived) = ring::ring(RING_FRAMES);
                    // Whatever is on its way can come back.
                    let (returned, empty) = ring::ring(RING_FRAMES + u32::from(RETURN_SLACK));
                    way = Some(Way {
                        frames,
                        empty,
                        pool: FramePool::new(frame_bytes),
                    });
                    if let Some(peer) = peers.get_mut(to) {
                        peer.arrivals.push(Arrival {
                            frames: arrived,
                            empty: returned,
                        });
                    }
                }
                if let Some(peer) = peers.get_mut(from) {
                    peer.ways.push(way);
                }
            }
        }
        peers
    }

    /// Which lcore we are.
    pub(super) const fn me(&self) -> u32 {
        self.me
    }

    /// The rule by which frames are sorted.
    pub(super) const fn steering(&self) -> &Arc<Steering> {
        &self.steering
    }

    /// How many others there are.
    pub(super) fn others(&self) -> u32 {
        u32::try_from(self.mailboxes.len().saturating_sub(1)).unwrap_or(0)
    }

    /// Says something to an lcore.
    pub(super) fn tell(&self, lcore: u32, mail: Mail) {
        if let Some(mailbox) = self.mailboxes.get(lcore as usize) {
            mailbox.post(mail);
        }
    }

    /// Says something to the first lcore.
    pub(super) fn tell_first(&self, mail: Mail) {
        self.tell(FIRST_LCORE, mail);
    }

    /// Says something to each of the others.
    pub(super) fn tell_others(&self, mut mail: impl FnMut() -> Mail) {
        for (lcore, mailbox) in (0..).zip(&*self.mailboxes) {
            if lcore != self.me {
                mailbox.post(mail());
            }
        }
    }

    /// Passes on what is not ours; returns how many of the frames, from the front, are left, in order.
    pub(super) fn sort(&mut self, frames: &mut [RxFrame<'_>], counters: &LcoreCounters) -> usize {
        let mut kept = 0;
        for at in 0..frames.len() {
            let Some(frame) = frames.get(at) else {
                break;
            };
            match self.steering.receiver(frame.bytes) {
                steering::Receiver::One(lcore) if lcore != self.me => {
                    if let Some(Some(way)) = self.ways.get_mut(lcore as usize) {
                        way.pass(frame, false, counters);
                    }
                    continue;
                }
                steering::Receiver::All => {
                    for way in self.ways.iter_mut().flatten() {
                        way.pass(frame, true, counters);
                    }
                }
                steering::Receiver::One(_) | steering::Receiver::Any => {}
            }
            frames.swap(kept, at);
            kept += 1;
        }
        kept
    }

    /// Shows the others what was passed on, and wakes those who sleep.
    pub(super) fn publish(&mut self) {
        let mailboxes = self.mailboxes.iter().zip(&*self.asleep);
        for (way, (mailbox, asleep)) in self.ways.iter_mut().zip(mailboxes) {
            let Some(way) = way else {
                continue;
            };
            if !way.frames.publish() {
                continue;
            }
            // Pairs with the fence of who falls asleep: it sees the frames, or we see its mark.
            fence(Ordering::SeqCst);
            if asleep.load(Ordering::SeqCst) && asleep.swap(false, Ordering::SeqCst) {
                mailbox.wake();
            }
        }
    }

    /// Hands out what the others have passed on to us, at most a burst of each; returns how much.
    pub(super) fn take(&mut self, taker: &mut dyn Taker) -> usize {
        let mut count = 0;
        for arrival in &mut self.arrivals {
            while self.burst.len() < BURST_MAX
                && let Some(passed) = arrival.frames.pop()
            {
                self.burst.push(passed);
            }
            if self.burst.is_empty() {
                continue;
            }
            count += self.burst.len();
            for passed in self.burst.iter_mut().filter(|passed| passed.overheard) {
                taker.overhear(passed.frame.bytes_mut());
            }
            let mut own = self.burst.iter_mut().filter(|passed| !passed.overheard);
            let mut frames: [RxFrame<'_>; BURST_MAX] = core::array::from_fn(|_| {
                own.next().map_or_else(
                    || RxFrame {
                        bytes: &mut [],
                        meta: RxMeta::default(),
                    },
                    |passed| RxFrame {
                        bytes: passed.frame.bytes_mut(),
                        meta: passed.meta,
                    },
                )
            });
            let end = frames
                .iter()
                .position(|frame| frame.bytes.is_empty())
                .unwrap_or(BURST_MAX);
            if let Some(frames) = frames.get_mut(..end)
                && end > 0
            {
                taker.take(frames);
            }
            for passed in self.burst.drain(..) {
                // A full ring of empty buffers: this one is not needed.
                let _ = arrival.empty.push(passed.frame);
            }
            arrival.empty.publish();
        }
        count
    }

    /// Says whether we sleep or are about to; who falls asleep looks once more at what has come.
    pub(super) fn set_asleep(&self, sleeping: bool) {
        if let Some(mark) = self.asleep.get(self.me as usize) {
            mark.store(sleeping, Ordering::SeqCst);
        }
        // Pairs with the fence of `publish`.
        fence(Ordering::SeqCst);
    }

    /// Whether something was passed on to us.
    pub(super) fn has_any(&mut self) -> bool {
        self.arrivals
            .iter_mut()
            .any(|arrival| arrival.frames.has_any())
    }
}

impl Way {
    /// Copies a frame and puts it on its way.
    fn pass(&mut self, from: &RxFrame<'_>, overheard: bool, counters: &LcoreCounters) {
        while let Some(frame) = self.empty.pop() {
            if frame.capacity() == self.pool.frame_bytes() {
                self.pool.recycle(frame);
            }
        }
        let mut frame = if from.bytes.len() <= self.pool.frame_bytes() {
            self.pool.take()
        } else {
            // Merged by the port.
            Frame::new(from.bytes.len())
        };
        let copied = frame.copy_from(from.bytes);
        debug_assert!(copied, "the buffer was chosen by the length");
        let passed = Passed {
            frame,
            meta: from.meta,
            overheard,
        };
        match self.frames.push(passed) {
            Ok(()) if overheard => {}
            Ok(()) => counters.frames_passed.raise(),
            Err(passed) => {
                counters.frames_dropped_ring_full.raise();
                self.pool.recycle(passed.frame);
            }
        }
    }
}

/// Room of the ring of empty buffers beyond what is on its way: what a burst holds.
const RETURN_SLACK: u8 = 64;
