//! Frames in memory that a device owns, and the pool they return to.

use super::{BURST_MAX, RxFrame, RxMeta};

/// Bytes in front of the IP packet: Ethernet header and one VLAN tag.
pub const LINK_HEADER_BYTES: usize = 18;

/// One frame in a buffer of fixed size.
#[derive(Debug)]
pub struct Frame {
    buffer: Box<[u8]>,
    /// At most `buffer.len()`.
    used: usize,
}

impl Frame {
    /// An empty frame whose buffer holds `capacity` bytes.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        #[cfg(test)]
        MADE.set(MADE.get() + 1);
        Self {
            buffer: vec![0; capacity].into_boxed_slice(),
            used: 0,
        }
    }

    /// The frame.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.buffer.get(..self.used).unwrap_or(&[])
    }

    /// The frame, to be changed in place.
    #[must_use]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.buffer.get_mut(..self.used).unwrap_or(&mut [])
    }

    /// The whole buffer, to be filled; then call [`Frame::set_len`].
    #[must_use]
    pub fn buffer_mut(&mut self) -> &mut [u8] {
        &mut self.buffer
    }

    /// Says that the first `len` bytes of the buffer are the frame; more than the buffer is cut.
    pub fn set_len(&mut self, len: usize) {
        self.used = len.min(self.buffer.len());
    }

    /// Bytes that the buffer holds.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.buffer.len()
    }

    /// Makes the frame equal to `bytes`. Returns false, and leaves the frame empty, when they do not fit.
    #[must_use]
    pub fn copy_from(&mut self, bytes: &[u8]) -> bool {
        match self.buffer.get_mut(..bytes.len()) {
            Some(to) => {
                to.copy_from_slice(bytes);
                self.used = bytes.len();
                true
            }
            None => {
                self.used = 0;
                false
            }
        }
    }
}

/// Empty frames of one size. It grows only when it is empty, so it never holds more than were in
/// flight at once, and in a steady state nothing is allocated.
#[derive(Debug)]
pub struct FramePool {
    free: Vec<Frame>,
    frame_bytes: usize,
}

impl FramePool {
    /// An empty pool of frames whose buffers hold `frame_bytes`.
    #[must_use]
    pub fn new(frame_bytes: usize) -> Self {
        Self {
            free: Vec::new(),
            frame_bytes,
        }
    }

    /// An empty frame: a returned one, else a new one.
    #[must_use]
    pub fn take(&mut self) -> Frame {
        self.take_returned()
            .unwrap_or_else(|| Frame::new(self.frame_bytes))
    }

    /// An empty frame if one was returned.
    #[must_use]
    pub fn take_returned(&mut self) -> Option<Frame> {
        self.free.pop()
    }

    /// Takes a frame back.
    pub fn recycle(&mut self, mut frame: Frame) {
        frame.set_len(0);
        self.free.push(frame);
    }

    /// Bytes that each buffer holds.
    #[must_use]
    pub fn frame_bytes(&self) -> usize {
        self.frame_bytes
    }
}

/// Lends at most [`BURST_MAX`] of `frames` to `deliver` in one call, none when there are none, and returns how many.
pub(super) fn lend(frames: &mut [Frame], deliver: &mut dyn FnMut(&mut [RxFrame<'_>])) -> usize {
    let count = frames.len().min(BURST_MAX);
    if count == 0 {
        return 0;
    }
    let mut rest = frames.iter_mut();
    let mut burst: [RxFrame<'_>; BURST_MAX] = core::array::from_fn(|_| RxFrame {
        bytes: rest.next().map_or(&mut [], Frame::bytes_mut),
        meta: RxMeta::default(),
    });
    if let Some(burst) = burst.get_mut(..count) {
        deliver(burst);
    }
    count
}

#[cfg(test)]
std::thread_local! {
    /// Frames that this thread made, to see that a steady state makes none.
    pub(super) static MADE: core::cell::Cell<usize> = const { core::cell::Cell::new(0) };
}

/// A frame that tells its number, with a length and contents that follow from it.
#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub(super) fn numbered(number: u32) -> Vec<u8> {
    let mut random = super::fault::Random::new(u64::from(number));
    let len = 60 + usize::try_from(random.next() % 1455).unwrap();
    let mut bytes = number.to_be_bytes().to_vec();
    while bytes.len() < len {
        bytes.extend_from_slice(&random.next().to_be_bytes());
    }
    bytes.truncate(len);
    bytes
}
