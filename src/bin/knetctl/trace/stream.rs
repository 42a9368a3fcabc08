//! The stream of a capture: frames out of pcapng, and the segments in them.

use std::io::Read;
use std::net::SocketAddrV4;
use std::os::unix::net::UnixStream;

/// A frame out of the stream.
pub(super) struct Packet {
    pub(super) at: u64,
    bytes: Vec<u8>,
}

impl Packet {
    /// Its segment, if it carries one.
    pub(super) fn segment(&self) -> Option<Segment> {
        Segment::parse(&self.bytes)
    }
}

/// The stream, cut into the blocks that pcapng is made of.
#[derive(Default)]
pub(super) struct Blocks(Vec<u8>);

impl Blocks {
    fn push(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// Takes what has come; false when the stream has ended.
    pub(super) fn fill(&mut self, mut from: &UnixStream) -> std::io::Result<bool> {
        let mut buffer = [0; 8_192];
        loop {
            match from.read(&mut buffer) {
                Ok(0) => return Ok(false),
                Ok(count) => self.push(buffer.get(..count).unwrap_or_default()),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return Ok(true),
                Err(error) => return Err(error),
            }
        }
    }

    fn word(&self, at: usize) -> Option<u32> {
        let bytes = self.0.get(at..at.checked_add(4)?)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?))
    }

    /// The next frame that is whole; other blocks are passed over.
    pub(super) fn next_packet(&mut self) -> Option<Packet> {
        loop {
            let (kind, length) = (self.word(0)?, usize::try_from(self.word(4)?).ok()?);
            if length < 12 || self.0.len() < length {
                return None;
            }
            let packet = (kind == PACKET).then(|| self.packet(length)).flatten();
            self.0.drain(..length);
            if packet.is_some() {
                return packet;
            }
        }
    }

    fn packet(&self, length: usize) -> Option<Packet> {
        let at = u64::from(self.word(12)?) << 32 | u64::from(self.word(16)?);
        let captured = usize::try_from(self.word(20)?).ok()?;
        let bytes = self.0.get(28..length)?.get(..captured)?.to_vec();
        Some(Packet { at, bytes })
    }
}

/// Enhanced packet block.
const PACKET: u32 = 6;

/// A TCP segment in an IPv4 packet.
pub(super) struct Segment {
    pub(super) source: SocketAddrV4,
    pub(super) sequence: u32,
    pub(super) acknowledged: u32,
    pub(super) flags: String,
    pub(super) window: u16,
    pub(super) payload: u32,
}

impl Segment {
    pub(super) fn parse(frame: &[u8]) -> Option<Self> {
        let half = |at: usize| Some(u16::from_be_bytes(frame.get(at..at + 2)?.try_into().ok()?));
        let word = |at: usize| Some(u32::from_be_bytes(frame.get(at..at + 4)?.try_into().ok()?));
        let ip = if half(12)? == 0x8100 { 18 } else { 14 };
        let header = usize::from(frame.get(ip)? & 0xf) * 4;
        let total = half(ip + 2)?;
        let tcp = ip + header;
        let offset = usize::from(frame.get(tcp + 12)? >> 4) * 4;
        let bits = *frame.get(tcp + 13)?;
        // As tcpdump writes them.
        let flags = [(2, 'S'), (1, 'F'), (4, 'R'), (8, 'P'), (16, '.')];
        Some(Self {
            source: SocketAddrV4::new(word(ip + 12)?.into(), half(tcp)?),
            sequence: word(tcp + 4)?,
            acknowledged: word(tcp + 8)?,
            flags: flags
                .iter()
                .filter(|(bit, _)| bits & bit != 0)
                .map(|(_, name)| *name)
                .collect(),
            window: half(tcp + 14)?,
            payload: u32::from(total).checked_sub(u32::try_from(header + offset).ok()?)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use knet::capture::pcapng::{self, About};
    use knet::capture::{Direction, Entry};

    #[test]
    fn packets_come_out_of_a_stream_in_any_pieces() {
        let mut whole = Vec::new();
        pcapng::begin(
            &mut whole,
            &About {
                name: "x",
                description: "y",
                filter: "",
                snap: 128,
            },
        );
        let mut frame = vec![0; 14 + 20 + 20];
        frame[12] = 8;
        frame[14] = 0x45;
        frame[17] = 45;
        frame[26..30].copy_from_slice(&[10, 0, 0, 1]);
        frame[34..36].copy_from_slice(&80_u16.to_be_bytes());
        frame[46] = 0x50;
        frame[47] = 0x12;
        for at in [7, 1 << 40] {
            pcapng::packet(
                &mut whole,
                &Entry {
                    at,
                    direction: Direction::In,
                    length: 60,
                    bytes: &frame,
                },
            );
        }
        for size in [1, 3, 1_000] {
            let mut stream = Blocks::default();
            let mut seen = Vec::new();
            for part in whole.chunks(size) {
                stream.push(part);
                while let Some(packet) = stream.next_packet() {
                    let segment = Segment::parse(&packet.bytes).unwrap();
                    seen.push((
                        packet.at,
                        segment.source.to_string(),
                        segment.flags,
                        segment.payload,
                    ));
                }
            }
            let one = |at| (at, "10.0.0.1:80".to_owned(), "S.".to_owned(), 5);
            assert_eq!(seen, [one(7), one(1 << 40)]);
        }
        for len in 0..frame.len() {
            let _ = Segment::parse(&frame[..len]);
        }
    }
}
