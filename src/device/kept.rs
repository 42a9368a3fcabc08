//! Frames that somebody keeps beyond the call that lent them, by tickets of his own.

use super::frame::Frame;
use super::{BURST_MAX, RxFrame, RxMeta, TxMeta};

/// Which frames of a received burst are to be kept, said by whoever looks at the burst.
#[derive(Debug, Default)]
pub struct Keeps {
    /// Address of the first byte, and the ticket.
    wanted: Vec<(usize, u32)>,
}

impl Keeps {
    /// `frame` is to be kept under `ticket`, which is below [`super::RxQueue::keeps`] and names no other kept frame.
    pub fn keep(&mut self, frame: &RxFrame<'_>, ticket: u32) {
        self.wanted.push((frame.bytes.as_ptr().addr(), ticket));
    }

    /// The ticket of the frame that begins at `address`, if it is to be kept.
    pub(super) fn of(&self, address: usize) -> Option<u32> {
        let found = self.wanted.iter().find(|(at, _)| *at == address);
        found.map(|(_, ticket)| *ticket)
    }

    pub(super) fn clear(&mut self) {
        self.wanted.clear();
    }
}

/// Frames of a device in memory that are kept at most by each half.
pub(super) const KEPT_FRAMES_MAX: usize = 1_024;

/// The kept frames of a device that owns its frames.
#[derive(Debug, Default)]
pub(super) struct KeptFrames {
    frames: Vec<Option<(Frame, TxMeta)>>,
    keeps: Keeps,
}

impl KeptFrames {
    /// Keeps a frame; one that has no place is given back.
    pub(super) fn put(&mut self, ticket: u32, frame: Frame, meta: TxMeta) -> Result<(), Frame> {
        let at = ticket as usize;
        if at >= KEPT_FRAMES_MAX {
            return Err(frame);
        }
        if self.frames.len() <= at {
            self.frames.resize_with(at + 1, || None);
        }
        match self.frames.get_mut(at) {
            Some(place @ None) => {
                *place = Some((frame, meta));
                Ok(())
            }
            _ => Err(frame),
        }
    }

    pub(super) fn get(&mut self, ticket: u32) -> Option<&mut [u8]> {
        let kept = self.frames.get_mut(ticket as usize)?.as_mut()?;
        Some(kept.0.bytes_mut())
    }

    pub(super) fn take(&mut self, ticket: u32) -> Option<(Frame, TxMeta)> {
        self.frames.get_mut(ticket as usize)?.take()
    }

    /// Lends the kept frames with these tickets, at most a burst, in this order.
    pub(super) fn lend(&mut self, tickets: &[u32], deliver: &mut dyn FnMut(&mut [RxFrame<'_>])) {
        let tickets = tickets.get(..BURST_MAX).unwrap_or(tickets);
        let mut found: Vec<(usize, &mut Frame)> = Vec::with_capacity(tickets.len());
        for (ticket, place) in (0_u32..).zip(&mut self.frames) {
            let order = tickets.iter().position(|wanted| *wanted == ticket);
            if let (Some(order), Some((frame, _))) = (order, place) {
                found.push((order, frame));
            }
        }
        found.sort_unstable_by_key(|(order, _)| *order);
        let lent = found.into_iter().map(|(_, frame)| RxFrame {
            bytes: frame.bytes_mut(),
            meta: RxMeta::default(),
        });
        let mut lent: Vec<RxFrame<'_>> = lent.collect();
        if !lent.is_empty() {
            deliver(&mut lent);
        }
    }

    /// As [`super::frame::lend`]; afterwards the frames that are to be kept are here and no longer among `frames`.
    pub(super) fn lend_burst(
        &mut self,
        frames: &mut Vec<Frame>,
        deliver: &mut dyn FnMut(&mut [RxFrame<'_>], &mut Keeps),
    ) -> usize {
        let mut keeps = core::mem::take(&mut self.keeps);
        keeps.clear();
        let count = super::frame::lend(frames, &mut |burst| deliver(burst, &mut keeps));
        let mut at = 0;
        while let Some(frame) = frames.get(at) {
            match keeps.of(frame.bytes().as_ptr().addr()) {
                None => at += 1,
                Some(ticket) => {
                    let frame = frames.remove(at);
                    if let Err(frame) = self.put(ticket, frame, TxMeta::default()) {
                        frames.insert(at, frame);
                        at += 1;
                    }
                }
            }
        }
        self.keeps = keeps;
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(byte: u8) -> Frame {
        let mut frame = Frame::new(8);
        assert!(frame.copy_from(&[byte; 8]));
        frame
    }

    #[test]
    fn kept_frames_leave_the_burst_and_are_lent_in_the_order_of_their_tickets() {
        let mut kept = KeptFrames::default();
        let mut burst: Vec<Frame> = (0..4).map(frame).collect();
        let count = kept.lend_burst(&mut burst, &mut |frames, keeps| {
            // Whoever sorts a burst moves what stands in it.
            frames.swap(0, 3);
            keeps.keep(&frames[0], 9);
            keeps.keep(&frames[1], 0);
        });
        assert_eq!(count, 4);
        let left: Vec<u8> = burst.iter().map(|frame| frame.bytes()[0]).collect();
        assert_eq!(left, [0, 2]);
        assert_eq!((kept.get(9).unwrap()[0], kept.get(0).unwrap()[0]), (3, 1));
        let mut seen = Vec::new();
        kept.lend(&[9, 5, 0], &mut |frames| {
            seen.extend(frames.iter().map(|frame| frame.bytes[0]));
        });
        assert_eq!(seen, [3, 1]);
        // A place that is taken keeps its frame, and there are no more than so many.
        assert!(kept.put(9, frame(7), TxMeta::default()).is_err());
        let beyond = u32::try_from(KEPT_FRAMES_MAX).unwrap();
        assert!(kept.put(beyond, frame(7), TxMeta::default()).is_err());
        assert_eq!(kept.take(9).unwrap().0.bytes()[0], 3);
        assert!(kept.take(9).is_none() && kept.get(9).is_none());
    }
}
