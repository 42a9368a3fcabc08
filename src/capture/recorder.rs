//! The buffers between the lcore and whoever reads.
//!
//! A fixed number of chunks goes round: the recorder fills one and hands it over, the reader gives it back empty. None is
//! free: the frame is lost and counted.

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender, TryRecvError};

use super::filter::Filter;
use crate::time::Instant;

/// Bytes of a chunk: many frames, so that handing it over costs little a frame.
const CHUNK_BYTES: usize = 64 << 10;
/// Chunks of a capture.
const CHUNKS: usize = 128;
/// A chunk that is not full is handed over after this.
const HOLD: core::time::Duration = core::time::Duration::from_millis(20);
/// Bytes in front of a frame in a chunk.
const HEAD_BYTES: usize = 20;

/// Which way a frame went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Direction {
    /// Received.
    In = 1,
    /// Sent.
    Out = 2,
}

/// What is captured.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Wanted {
    /// Which frames.
    pub filter: Filter,
    /// Bytes of each at most.
    pub snap: usize,
    /// What the wall clock said at [`Instant::ZERO`], in nanoseconds since 1970.
    pub epoch: u64,
}

crate::counters! {
    /// What became of the frames while a capture ran.
    pub struct CaptureCounters of OwnCounter {
        /// Frames that passed the port.
        seen,
        /// Frames that the filter admitted.
        admitted,
        /// Of those, lost because no buffer was free.
        dropped_no_buffer,
    }
}

/// The lcore's half.
#[derive(Debug)]
pub struct Recorder {
    wanted: Wanted,
    counters: Arc<CaptureCounters>,
    full: SyncSender<Vec<u8>>,
    empty: Receiver<Vec<u8>>,
    /// The chunk being filled; without capacity when none was free.
    chunk: Vec<u8>,
    /// When its first frame came.
    since: Option<Instant>,
}

/// The tool's half.
#[derive(Debug)]
pub struct Reader {
    counters: Arc<CaptureCounters>,
    full: Receiver<Vec<u8>>,
    empty: SyncSender<Vec<u8>>,
}

/// Both halves of a capture.
#[must_use]
pub fn channel(wanted: Wanted) -> (Recorder, Reader) {
    let counters = Arc::new(CaptureCounters::new());
    let (full_to, full) = mpsc::sync_channel(CHUNKS);
    let (empty_to, empty) = mpsc::sync_channel(CHUNKS);
    for _ in 0..CHUNKS {
        // As many places as chunks: none is ever refused.
        let _ = empty_to.try_send(Vec::with_capacity(CHUNK_BYTES));
    }
    let recorder = Recorder {
        wanted,
        counters: Arc::clone(&counters),
        full: full_to,
        empty,
        chunk: Vec::new(),
        since: None,
    };
    let reader = Reader {
        counters,
        full,
        empty: empty_to,
    };
    (recorder, reader)
}

/// The tool's half of a capture at several lcores, each of which has a recorder.
#[derive(Debug)]
pub struct Readers(Vec<Reader>);

/// A capture at `count` lcores.
#[must_use]
pub fn channels(wanted: &Wanted, count: usize) -> (Vec<Recorder>, Readers) {
    let (recorders, readers) = (0..count).map(|_| channel(wanted.clone())).unzip();
    (recorders, Readers(readers))
}

impl Readers {
    /// As [`Reader::read`]. Frames of one lcore come in order; those of two are told apart by their times.
    ///
    /// # Errors
    /// [`Nothing`]: `More` when there is more of none.
    pub fn read(
        &mut self,
        patience: core::time::Duration,
        visit: &mut dyn FnMut(Entry<'_>),
    ) -> Result<usize, Nothing> {
        let each = patience / u32::try_from(self.0.len()).unwrap_or(1).max(1);
        let (mut count, mut open) = (0, false);
        for reader in &mut self.0 {
            match reader.read(each, visit) {
                Ok(more) => (count, open) = (count + more, true),
                Err(Nothing::Yet) => open = true,
                Err(Nothing::More) => {}
            }
        }
        match (count, open) {
            (0, true) => Err(Nothing::Yet),
            (0, false) => Err(Nothing::More),
            (count, _) => Ok(count),
        }
    }

    /// What is counted: frames that passed, were admitted, and were lost for want of a buffer.
    #[must_use]
    pub fn counts(&self) -> [u64; 3] {
        self.0
            .iter()
            .fold([0; 3], |[seen, admitted, lost], reader| {
                let counters = reader.counters();
                [
                    seen + counters.seen.value(),
                    admitted + counters.admitted.value(),
                    lost + counters.dropped_no_buffer.value(),
                ]
            })
    }
}

impl Recorder {
    /// Copies a frame that passed at `now`.
    pub(super) fn record(&mut self, now: Instant, direction: Direction, frame: &[u8]) {
        self.counters.seen.raise();
        if !self.wanted.filter.admits(frame) {
            return;
        }
        self.counters.admitted.raise();
        let captured = frame
            .get(..self.wanted.snap.min(MAX_BYTES))
            .unwrap_or(frame);
        if self.chunk.capacity() - self.chunk.len() < HEAD_BYTES + captured.len() {
            self.hand_over();
            match self.empty.try_recv() {
                Ok(chunk) => self.chunk = chunk,
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => {
                    return self.counters.dropped_no_buffer.raise();
                }
            }
        }
        self.since.get_or_insert(now);
        let at = self.wanted.epoch.saturating_add(now.nanos());
        let size = |bytes: usize| u32::try_from(bytes).unwrap_or(u32::MAX).to_ne_bytes();
        self.chunk.extend_from_slice(&at.to_ne_bytes());
        self.chunk.extend_from_slice(&size(captured.len()));
        self.chunk.extend_from_slice(&size(frame.len()));
        self.chunk
            .extend_from_slice(&(direction as u32).to_ne_bytes());
        self.chunk.extend_from_slice(captured);
    }

    /// When the present chunk is handed over although it is not full.
    pub(super) fn due(&self) -> Option<Instant> {
        self.since.map(|since| since + HOLD)
    }

    /// Hands over a chunk whose time has come.
    pub(super) fn look(&mut self, now: Instant) {
        if self.due().is_some_and(|due| due <= now) {
            self.hand_over();
        }
    }

    fn hand_over(&mut self) {
        self.since = None;
        if !self.chunk.is_empty() {
            // There is a place for each chunk; a reader that is gone needs none.
            let _ = self.full.try_send(core::mem::take(&mut self.chunk));
        }
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.hand_over();
    }
}

/// A frame as it was captured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry<'a> {
    /// Nanoseconds since 1970.
    pub at: u64,
    /// Which way it went.
    pub direction: Direction,
    /// Bytes that it had.
    pub length: u32,
    /// Its first bytes.
    pub bytes: &'a [u8],
}

/// There is nothing now, or nothing will come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Nothing {
    /// Nothing came in time.
    Yet,
    /// The recorder is gone, and everything was read.
    More,
}

impl Reader {
    /// What is counted.
    #[must_use]
    pub fn counters(&self) -> &CaptureCounters {
        &self.counters
    }

    /// Waits for the next frames and shows them to `visit`; returns how many there were.
    ///
    /// # Errors
    /// [`Nothing`].
    pub fn read(
        &self,
        patience: core::time::Duration,
        visit: &mut dyn FnMut(Entry<'_>),
    ) -> Result<usize, Nothing> {
        let mut chunk = match self.full.recv_timeout(patience) {
            Ok(chunk) => chunk,
            Err(RecvTimeoutError::Timeout) => return Err(Nothing::Yet),
            Err(RecvTimeoutError::Disconnected) => return Err(Nothing::More),
        };
        let mut count = 0;
        let mut rest = chunk.as_slice();
        while let Some((entry, behind)) = entry(rest) {
            visit(entry);
            count += 1;
            rest = behind;
        }
        chunk.clear();
        // As many places as chunks; a recorder that is gone needs none.
        let _ = self.empty.try_send(chunk);
        Ok(count)
    }
}

fn entry(bytes: &[u8]) -> Option<(Entry<'_>, &[u8])> {
    let (at, rest) = bytes.split_first_chunk()?;
    let (captured, rest) = rest.split_first_chunk()?;
    let (length, rest) = rest.split_first_chunk()?;
    let (direction, rest) = rest.split_first_chunk()?;
    let captured = usize::try_from(u32::from_ne_bytes(*captured)).ok()?;
    let (bytes, rest) = rest.split_at_checked(captured)?;
    let entry = Entry {
        at: u64::from_ne_bytes(*at),
        direction: if u32::from_ne_bytes(*direction) == Direction::In as u32 {
            Direction::In
        } else {
            Direction::Out
        },
        length: u32::from_ne_bytes(*length),
        bytes,
    };
    Some((entry, rest))
}

/// The longest frame that is kept whole.
pub(super) const MAX_BYTES: usize = CHUNK_BYTES - HEAD_BYTES;

#[cfg(test)]
mod tests {
    use super::*;
    use core::time::Duration;

    fn wanted(snap: usize) -> Wanted {
        Wanted {
            filter: Filter::parse("greater 10").unwrap(),
            snap,
            epoch: 1_000,
        }
    }

    #[test]
    fn frames_come_out_as_they_went_in() {
        let (mut recorder, reader) = channel(wanted(12));
        recorder.record(Instant::from_nanos(5), Direction::In, &[7; 20]);
        recorder.record(Instant::from_nanos(6), Direction::Out, &[8; 11]);
        recorder.record(Instant::from_nanos(6), Direction::Out, &[9; 9]);
        assert_eq!(reader.read(Duration::ZERO, &mut |_| ()), Err(Nothing::Yet));
        recorder.look(Instant::from_nanos(5));
        assert_eq!(reader.read(Duration::ZERO, &mut |_| ()), Err(Nothing::Yet));
        recorder.look(recorder.due().unwrap());
        let mut seen = Vec::new();
        let read = reader.read(Duration::ZERO, &mut |entry| {
            seen.push((
                entry.at,
                entry.direction,
                entry.length,
                entry.bytes.to_vec(),
            ));
        });
        assert_eq!(read, Ok(2));
        assert_eq!(
            seen,
            [
                (1_005, Direction::In, 20, vec![7; 12]),
                (1_006, Direction::Out, 11, vec![8; 11]),
            ]
        );
        recorder.record(Instant::from_nanos(9), Direction::In, &[1; 20]);
        drop(recorder);
        assert_eq!(reader.read(Duration::ZERO, &mut |_| ()), Ok(1));
        assert_eq!(reader.read(Duration::ZERO, &mut |_| ()), Err(Nothing::More));
        assert_eq!(reader.counters().seen.value(), 4);
        assert_eq!(reader.counters().admitted.value(), 3);
    }

    #[test]
    fn a_reader_that_does_not_read_costs_frames_and_no_memory() {
        let (mut recorder, reader) = channel(wanted(usize::MAX));
        let frame = [0; 1_514];
        let fit = CHUNKS * (CHUNK_BYTES / (HEAD_BYTES + frame.len()));
        for _ in 0..fit + 500 {
            recorder.record(Instant::ZERO, Direction::In, &frame);
        }
        assert_eq!(reader.counters().dropped_no_buffer.value(), 500);
        let mut count = 0;
        while let Ok(more) = reader.read(Duration::ZERO, &mut |_| ()) {
            count += more;
        }
        assert_eq!(count, fit);
        // What came free serves again.
        recorder.record(Instant::ZERO, Direction::In, &frame);
        assert_eq!(reader.counters().dropped_no_buffer.value(), 500);
        // Longer than any chunk: it is cut.
        recorder.record(Instant::ZERO, Direction::In, &vec![0; 2 * CHUNK_BYTES]);
        drop(recorder);
        let mut longest = 0;
        while reader
            .read(Duration::ZERO, &mut |entry| {
                longest = longest.max(entry.bytes.len())
            })
            .is_ok()
        {}
        assert_eq!(longest, MAX_BYTES);
    }
}
