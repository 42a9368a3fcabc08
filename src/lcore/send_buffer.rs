//! Memory of smoltcp's send buffers.
//!
//! # Safety
//! A buffer is a leaked allocation, which the stack has let go of when it gives the number back (`give_back_send` comes
//! after the socket is dropped), and whose number is in the free list only from then until it is lent again. A second call
//! takes the pages of a buffer in that list away.

#![allow(unsafe_code)]

use core::ptr::NonNull;
use core::slice::ChunksExactMut;

use super::segments::PAGE;
use crate::stack::SendBuffer;

/// smoltcp's send buffers, used again because making one means clearing it.
#[derive(Debug, Default)]
pub(super) struct SendBuffers {
    /// Every buffer that was ever made, by number.
    made: Vec<NonNull<[u8]>>,
    /// The rest of the memory that was taken last: buffers that nobody has had.
    fresh: Option<ChunksExactMut<'static, u8>>,
    /// Numbers of those that the stack does not have, the warmest last.
    free: Vec<u32>,
    /// So many of the first of `free` have no memory behind them.
    cold: usize,
}

/// Send buffers that are made in one go.
const SEND_BUFFERS_AT_ONCE: usize = 32;

/// Free send buffers that keep their memory. What a crowd needed beyond this goes back to the kernel.
const WARM_MAX: usize = 64;

// SAFETY: the buffers are plain memory of this process; one thread at a time has the struct.
unsafe impl Send for SendBuffers {}

impl SendBuffers {
    /// Bytes of the buffers that were made, and of those that nobody has.
    pub(super) fn bytes(&self) -> (u64, u64) {
        // All are of one size: that of the config.
        let bytes = self.made.first().map_or(0, |buffer| buffer.len() as u64);
        (
            self.made.len() as u64 * bytes,
            self.free.len() as u64 * bytes,
        )
    }

    /// Lends a buffer of `bytes` bytes; None without memory.
    pub(super) fn lend(&mut self, bytes: usize) -> Option<SendBuffer> {
        let id = match self.free.pop() {
            Some(id) => {
                self.cold = self.cold.min(self.free.len());
                id
            }
            None => {
                let id = u32::try_from(self.made.len()).ok()?;
                let buffer = self.make(bytes)?;
                self.made.push(buffer);
                id
            }
        };
        let mut buffer = *self.made.get(id as usize)?;
        if buffer.len() != bytes {
            // The stack asks for one size only; a buffer of another size stays unused.
            return None;
        }
        // SAFETY: a leaked allocation is never freed; the number was not in use, so nobody else has a reference.
        let bytes = unsafe { buffer.as_mut() };
        Some(SendBuffer { bytes, id })
    }

    /// A buffer of whole pages, so that all of its memory can go back to the kernel while nothing is in it. Many are taken at once:
    /// so large a piece comes from the kernel, is zero without being cleared, and is nobody's memory until it is touched.
    fn make(&mut self, bytes: usize) -> Option<NonNull<[u8]>> {
        let page = PAGE as usize;
        let size = bytes.max(1).next_multiple_of(page);
        let next = self.fresh.as_mut().and_then(Iterator::next);
        let place = match next {
            Some(place) => place,
            None => {
                let piece = vec![0; SEND_BUFFERS_AT_ONCE * size + page].leak();
                let skip = piece.as_ptr().align_offset(page);
                let (_, whole) = piece.split_at_mut_checked(skip)?;
                self.fresh.insert(whole.chunks_exact_mut(size)).next()?
            }
        };
        place.get_mut(..bytes).map(NonNull::from)
    }

    /// Takes a buffer back, and the memory from the one that lies too deep now.
    pub(super) fn give_back(&mut self, id: u32) {
        self.free.push(id);
        let Some(deep) = self.free.len().checked_sub(WARM_MAX + 1) else {
            return;
        };
        if deep < self.cold {
            return;
        }
        self.cold = deep + 1;
        if let Some(buffer) = self
            .free
            .get(deep)
            .and_then(|id| self.made.get(*id as usize))
        {
            cool(*buffer);
        }
    }
}

/// Gives the memory of a buffer that nobody has back to the kernel; it reads as zeros afterwards.
fn cool(buffer: NonNull<[u8]>) {
    let first = buffer.cast::<u8>();
    // Whole pages only: what lies beside the buffer is somebody else's.
    let skip = first.addr().get().next_multiple_of(PAGE as usize) - first.addr().get();
    let bytes = buffer.len().saturating_sub(skip) / PAGE as usize * PAGE as usize;
    if bytes == 0 {
        return;
    }
    // SAFETY: `bytes` is not 0, so that `skip` lies inside the allocation.
    let start = unsafe { first.add(skip) };
    // SAFETY: whole pages inside one private allocation, which stays valid whatever they hold; it is in the free list,
    // so nobody has a reference to its bytes.
    let done = unsafe {
        rustix::mm::madvise(
            start.as_ptr().cast(),
            bytes,
            rustix::mm::Advice::LinuxDontNeed,
        )
    };
    if let Err(errno) = done {
        crate::debug!("send buffer memory not returned errno={errno}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: usize = 64 << 10;

    #[test]
    fn what_a_crowd_needed_goes_back_and_the_warmest_stay() {
        const DEEP: usize = 10;
        let mut buffers = SendBuffers::default();
        let mut lent: Vec<SendBuffer> = (0..WARM_MAX + DEEP)
            .map(|_| buffers.lend(BYTES).unwrap())
            .collect();
        for round in 1..=2 {
            for buffer in &mut lent {
                buffer.bytes.fill(round);
            }
            for id in lent.drain(..).map(|buffer| buffer.id) {
                buffers.give_back(id);
            }
            assert_eq!(buffers.cold, DEEP);
            // One that comes and goes at the top costs nothing.
            let top = buffers.lend(BYTES).unwrap().id;
            buffers.give_back(top);
            assert_eq!(buffers.cold, DEEP);
            lent.extend((0..WARM_MAX + DEEP).map(|_| buffers.lend(BYTES).unwrap()));
            let kept = lent
                .iter()
                .map(|buffer| buffer.bytes[BYTES / 2] == round)
                .collect::<Vec<_>>();
            assert!(kept[..WARM_MAX].iter().all(|kept| *kept));
            assert!(kept[WARM_MAX..].iter().all(|kept| !kept));
            assert_eq!((buffers.cold, buffers.made.len()), (0, WARM_MAX + DEEP));
        }
    }
}
