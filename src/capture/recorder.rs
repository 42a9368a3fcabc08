//! The buffers between the lcore and whoever reads.
//!
//! A fixed number of chunks goes round: the recorder fills one and hands it over, the reader gives it back empty. None is
//! free: the frame is lost and counted. A chunk holds whole blocks of the file that comes of it, so that a byte is copied here and
//! then written. The chunk that was emptied last is filled next: it is still in the cache.

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};

use super::filter::Filter;
use super::pcapng::{self, PACKET_EXTRA};
use crate::time::Instant;

/// Bytes of a chunk: many frames, so that handing it over costs little a frame.
const CHUNK_BYTES: usize = 64 << 10;
/// Chunks of a capture.
const CHUNKS: usize = 128;
/// A chunk that is not full is handed over after this.
const HOLD: core::time::Duration = core::time::Duration::from_millis(20);

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
    full: SyncSender<Chunk>,
    empty: Receiver<Vec<u8>>,
    /// Empty chunks that have come back, the last one on top.
    spare: Vec<Vec<u8>>,
    /// The chunk being filled; without capacity when none was free.
    chunk: Chunk,
    /// When its first frame came.
    since: Option<Instant>,
}

/// Blocks of the file.
#[derive(Debug, Default)]
pub struct Chunk {
    bytes: Vec<u8>,
    frames: u64,
}

impl Chunk {
    /// The blocks, and how many they are.
    #[must_use]
    pub fn blocks(&self) -> (&[u8], u64) {
        (&self.bytes, self.frames)
    }

    /// The first `count` blocks.
    #[must_use]
    pub fn first(&self, count: u64) -> &[u8] {
        let mut rest = self.bytes.as_slice();
        for _ in 0..count {
            let Some((_, behind)) = pcapng::split(rest) else {
                break;
            };
            rest = behind;
        }
        let end = self.bytes.len() - rest.len();
        self.bytes.get(..end).unwrap_or_default()
    }
}

/// The tool's half.
#[derive(Debug)]
pub struct Reader {
    counters: Arc<CaptureCounters>,
    full: Receiver<Chunk>,
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
        spare: Vec::with_capacity(CHUNKS),
        chunk: Chunk::default(),
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
    /// Waits for chunks and shows each of those that are there to `visit`; returns how many there were. Blocks of one lcore come in
    /// order; those of two are told apart by their times.
    ///
    /// # Errors
    /// [`Nothing`]: `More` when there is more of none.
    pub fn read(
        &mut self,
        patience: core::time::Duration,
        visit: &mut dyn FnMut(&Chunk),
    ) -> Result<usize, Nothing> {
        let each = patience / u32::try_from(self.0.len()).unwrap_or(1).max(1);
        let (mut count, mut open) = (0, false);
        for reader in &mut self.0 {
            let mut wait = each;
            for _ in 0..CHUNKS {
                match reader.next(wait, visit) {
                    Ok(()) => (count, open) = (count + 1, true),
                    Err(Nothing::Yet) => {
                        open = true;
                        break;
                    }
                    Err(Nothing::More) => break,
                }
                wait = core::time::Duration::ZERO;
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
        let room = self.chunk.bytes.capacity() - self.chunk.bytes.len();
        if room < PACKET_EXTRA + captured.len() {
            self.hand_over();
            self.spare.extend(self.empty.try_iter());
            let Some(bytes) = self.spare.pop() else {
                return self.counters.dropped_no_buffer.raise();
            };
            self.chunk.bytes = bytes;
        }
        self.since.get_or_insert(now);
        let entry = Entry {
            at: self.wanted.epoch.saturating_add(now.nanos()),
            direction,
            length: u32::try_from(frame.len()).unwrap_or(u32::MAX),
            bytes: captured,
        };
        pcapng::packet(&mut self.chunk.bytes, &entry);
        self.chunk.frames += 1;
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
        if !self.chunk.bytes.is_empty() {
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

    /// Waits for the next chunk and shows it to `visit`.
    ///
    /// # Errors
    /// [`Nothing`].
    pub fn next(
        &self,
        patience: core::time::Duration,
        visit: &mut dyn FnMut(&Chunk),
    ) -> Result<(), Nothing> {
        let chunk = match self.full.recv_timeout(patience) {
            Ok(chunk) => chunk,
            Err(RecvTimeoutError::Timeout) => return Err(Nothing::Yet),
            Err(RecvTimeoutError::Disconnected) => return Err(Nothing::More),
        };
        visit(&chunk);
        let mut bytes = chunk.bytes;
        bytes.clear();
        // As many places as chunks; a recorder that is gone needs none.
        let _ = self.empty.try_send(bytes);
        Ok(())
    }
}

/// The longest frame that is kept whole.
pub(super) const MAX_BYTES: usize = CHUNK_BYTES - PACKET_EXTRA;

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use core::time::Duration;

    impl Reader {
        /// Shows each frame of the next chunk; how many there were.
        pub(in crate::capture) fn read(
            &self,
            patience: Duration,
            visit: &mut dyn FnMut(Entry<'_>),
        ) -> Result<u64, Nothing> {
            let mut count = 0;
            self.next(patience, &mut |chunk| {
                let (mut rest, frames) = chunk.blocks();
                while let Some((block, behind)) = pcapng::split(rest) {
                    let word =
                        |at: usize| u32::from_le_bytes(block[at..at + 4].try_into().unwrap());
                    let kept = word(20) as usize;
                    visit(Entry {
                        at: u64::from(word(12)) << 32 | u64::from(word(16)),
                        direction: match word(block.len() - 12) {
                            1 => Direction::In,
                            _ => Direction::Out,
                        },
                        length: word(24),
                        bytes: &block[28..28 + kept],
                    });
                    rest = behind;
                    count += 1;
                }
                assert_eq!((rest.len(), count), (0, frames));
            })?;
            Ok(count)
        }
    }

    #[test]
    fn a_chunk_can_be_cut_behind_any_of_its_frames() {
        let (mut recorder, reader) = channel(wanted(100));
        for length in 11..20 {
            recorder.record(Instant::ZERO, Direction::In, &vec![0; length]);
        }
        drop(recorder);
        reader
            .next(Duration::ZERO, &mut |chunk| {
                let (whole, frames) = chunk.blocks();
                assert_eq!(frames, 9);
                assert_eq!(chunk.first(0), b"");
                assert_eq!(
                    pcapng::split(chunk.first(1)),
                    Some((chunk.first(1), [].as_slice()))
                );
                assert!(chunk.first(8).len() < whole.len());
                assert_eq!([9, 10].map(|count| chunk.first(count)), [whole; 2]);
            })
            .unwrap();
    }

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
        let fit = CHUNKS * (CHUNK_BYTES / (28 + frame.len().next_multiple_of(4) + 16));
        for _ in 0..fit + 500 {
            recorder.record(Instant::ZERO, Direction::In, &frame);
        }
        assert_eq!(reader.counters().dropped_no_buffer.value(), 500);
        let mut count = 0;
        while let Ok(more) = reader.read(Duration::ZERO, &mut |_| ()) {
            count += more;
        }
        assert_eq!(count, fit as u64);
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
