//! The loop: frames from us to our own addresses never reach the port (design D4).

use std::collections::VecDeque;

use crate::device::{TxMeta, TxQueue};
use crate::time::Instant;

/// Frames on their way back to us, in order, at most [`LOOP_FRAMES_MAX`]. It is a wire like any other: a full one takes
/// no more.
#[derive(Debug, Default)]
pub(crate) struct Loopback {
    queue: VecDeque<Vec<u8>>,
    free: Vec<Vec<u8>>,
    lent: Vec<u8>,
}

impl Loopback {
    /// Takes the oldest frame; hand it back with [`Loopback::recycle`].
    pub(crate) fn pop(&mut self) -> Option<Vec<u8>> {
        self.queue.pop_front()
    }

    /// Takes the memory of a frame back.
    pub(crate) fn recycle(&mut self, frame: Vec<u8>) {
        if self.free.len() < LOOP_FRAMES_FREE_MAX {
            self.free.push(frame);
        }
    }

    /// Frames waiting.
    pub(crate) fn len(&self) -> usize {
        self.queue.len()
    }
}

impl TxQueue for Loopback {
    fn alloc(&mut self, len: usize) -> Option<&mut [u8]> {
        if self.room() == 0 {
            return None;
        }
        self.lent.resize(len, 0);
        Some(&mut self.lent)
    }

    fn commit(&mut self, len: usize, _meta: TxMeta) {
        let next = self.free.pop().unwrap_or_default();
        let mut frame = core::mem::replace(&mut self.lent, next);
        frame.truncate(len);
        self.queue.push_back(frame);
    }

    fn flush(&mut self, _now: Instant) -> usize {
        0
    }

    fn room(&self) -> usize {
        LOOP_FRAMES_MAX.saturating_sub(self.queue.len())
    }
}

/// As many as a good port's descriptors.
const LOOP_FRAMES_MAX: usize = 1024;
const LOOP_FRAMES_FREE_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_loop_takes_no_more_and_keeps_order() {
        let mut looped = Loopback::default();
        for number in 0..LOOP_FRAMES_MAX {
            looped.alloc(1).unwrap()[0] = u8::try_from(number % 251).unwrap();
            looped.commit(1, TxMeta::default());
        }
        assert!(looped.alloc(1).is_none());
        for number in 0..LOOP_FRAMES_MAX {
            let frame = looped.pop().unwrap();
            assert_eq!(usize::from(frame[0]), number % 251);
            looped.recycle(frame);
        }
        assert!(looped.pop().is_none());
    }
}
