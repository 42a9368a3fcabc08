//! The transmit burst of a device that keeps its frames in memory.

use std::collections::VecDeque;

use super::TxMeta;
use super::frame::{Frame, FramePool};
use super::kept::KeptFrames;

/// Frames that are queued at most before a flush.
pub(super) const TX_BATCH_MAX: usize = 64;

/// At most [`TX_BATCH_MAX`] frames in order, and the one being filled.
#[derive(Debug)]
pub(super) struct TxBatch {
    queued: VecDeque<Frame>,
    /// The buffer lent last; its length is what was asked for.
    open: Option<Frame>,
    pool: FramePool,
    kept: KeptFrames,
}

impl TxBatch {
    pub(super) fn new(frame_bytes: usize) -> Self {
        Self {
            queued: VecDeque::with_capacity(TX_BATCH_MAX),
            open: None,
            pool: FramePool::new(frame_bytes),
            kept: KeptFrames::default(),
        }
    }

    /// See [`super::TxQueue::alloc`]; also None for a frame longer than the port can ever send.
    pub(super) fn alloc(&mut self, len: usize) -> Option<&mut [u8]> {
        if self.room() == 0 || len > self.pool.frame_bytes() {
            return None;
        }
        let pool = &mut self.pool;
        let frame = self.open.get_or_insert_with(|| pool.take());
        frame.set_len(len);
        Some(frame.bytes_mut())
    }

    /// See [`super::TxQueue::commit`]. An empty frame is nothing to send, and a frame is never longer than what was lent.
    pub(super) fn commit(&mut self, len: usize) {
        let Some(mut frame) = self.open.take() else {
            return;
        };
        if len == 0 {
            self.open = Some(frame);
            return;
        }
        frame.set_len(len.min(frame.bytes().len()));
        self.queued.push_back(frame);
    }

    /// See [`super::TxQueue::keep`].
    pub(super) fn keep(&mut self, len: usize, meta: TxMeta, ticket: u32) -> bool {
        let Some(mut frame) = self.open.take().filter(|_| len > 0) else {
            return false;
        };
        let lent = frame.bytes().len();
        frame.set_len(len.min(lent));
        match self.kept.put(ticket, frame, meta) {
            Ok(()) => true,
            Err(mut frame) => {
                frame.set_len(lent);
                self.open = Some(frame);
                false
            }
        }
    }

    /// See [`super::TxQueue::kept`].
    pub(super) fn kept(&mut self, ticket: u32) -> Option<&mut [u8]> {
        self.kept.get(ticket)
    }

    /// See [`super::TxQueue::commit_kept`]; gives what was said of the frame when it was kept.
    pub(super) fn commit_kept(&mut self, ticket: u32) -> Option<TxMeta> {
        if self.room() == 0 {
            return None;
        }
        let (frame, meta) = self.kept.take(ticket)?;
        self.queued.push_back(frame);
        Some(meta)
    }

    /// See [`super::TxQueue::free_kept`].
    pub(super) fn free_kept(&mut self, ticket: u32) {
        if let Some((frame, _)) = self.kept.take(ticket) {
            self.pool.recycle(frame);
        }
    }

    pub(super) fn room(&self) -> usize {
        TX_BATCH_MAX - self.queued.len()
    }

    pub(super) fn len(&self) -> usize {
        self.queued.len()
    }

    pub(super) fn first(&self) -> Option<&Frame> {
        self.queued.front()
    }

    pub(super) fn pop(&mut self) -> Option<Frame> {
        self.queued.pop_front()
    }

    pub(super) fn recycle(&mut self, frame: Frame) {
        self.pool.recycle(frame);
    }

    /// Drops all queued frames and returns how many.
    pub(super) fn discard(&mut self) -> usize {
        let count = self.queued.len();
        while let Some(frame) = self.queued.pop_front() {
            self.pool.recycle(frame);
        }
        count
    }
}
