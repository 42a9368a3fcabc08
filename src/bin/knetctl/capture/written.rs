//! What of a pcapng stream has reached its file: the host's counts are of what it sent.

use std::io::{self, Write};

/// Bytes of a block before its body: its type, and its length from there to the next block.
const HEAD: usize = 8;
/// Type of an Enhanced Packet Block: one frame.
const ENHANCED_PACKET: u32 = 6;

/// A file, and how many frames are whole in it.
pub(super) struct Written<'a> {
    to: &'a mut dyn Write,
    head: [u8; HEAD],
    /// Bytes of the head that have come.
    have: usize,
    /// Bytes of the block's body that have not.
    left: usize,
    is_frame: bool,
    frames: u64,
}

impl<'a> Written<'a> {
    /// Nothing was written to `to` yet.
    pub(super) fn new(to: &'a mut dyn Write) -> Self {
        Self {
            to,
            head: [0; HEAD],
            have: 0,
            left: 0,
            is_frame: false,
            frames: 0,
        }
    }

    /// Frames that are whole in the file.
    pub(super) fn frames(&self) -> u64 {
        self.frames
    }

    /// Writes a part of the stream, and counts what of it was written.
    ///
    /// # Errors
    /// Those of the file; what was written before counts.
    pub(super) fn put(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.to.write(bytes) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => {
                    let (passed, rest) = bytes.split_at(count.min(bytes.len()));
                    self.pass(passed);
                    bytes = rest;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.to.flush()
    }

    fn pass(&mut self, mut bytes: &[u8]) {
        while let Some((&first, rest)) = bytes.split_first() {
            if self.left > 0 {
                let passed = self.left.min(bytes.len());
                self.left -= passed;
                self.frames += u64::from(self.is_frame && self.left == 0);
                bytes = bytes.get(passed..).unwrap_or_default();
                continue;
            }
            if let Some(place) = self.head.get_mut(self.have) {
                *place = first;
            }
            self.have += 1;
            bytes = rest;
            if self.have == HEAD {
                let [a, b, c, d, e, f, g, h] = self.head;
                self.is_frame = u32::from_le_bytes([a, b, c, d]) == ENHANCED_PACKET;
                let length = usize::try_from(u32::from_le_bytes([e, f, g, h]));
                self.left = length.unwrap_or(usize::MAX).saturating_sub(HEAD);
                self.have = 0;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(kind: u32, body: usize) -> Vec<u8> {
        let length = u32::try_from(HEAD + body).unwrap();
        let mut block = [kind.to_le_bytes(), length.to_le_bytes()].concat();
        block.resize(HEAD + body, 7);
        block
    }

    /// A file that is full after so many bytes.
    struct Full(usize);

    impl Write for Full {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let count = bytes.len().min(self.0).min(11);
            if count == 0 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            self.0 -= count;
            Ok(count)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_frame_counts_once_it_is_whole_in_the_file() {
        let stream = [
            block(0x0a0d_0d0a, 20),
            block(1, 12),
            block(ENHANCED_PACKET, 84),
            block(ENHANCED_PACKET, 100),
        ]
        .concat();
        let ends = [28 + 20 + 92, 28 + 20 + 92 + 108];
        assert_eq!(stream.len(), ends[1]);
        for room in 0..=stream.len() {
            let mut file = Full(room);
            let mut written = Written::new(&mut file);
            let parts = stream.chunks(33).try_for_each(|part| written.put(part));
            assert_eq!(parts.is_ok(), room == stream.len(), "{room}");
            let whole = ends.iter().filter(|end| **end <= room).count();
            assert_eq!(written.frames(), whole as u64, "{room}");
        }
    }
}
