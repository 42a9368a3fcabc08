//! pcapng (draft-ietf-opsawg-pcapng): one section, one Ethernet interface, stamps in nanoseconds.

use super::recorder::{Entry, MAX_BYTES};

const SECTION: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
const STATISTICS: u32 = 5;
const PACKET: u32 = 6;
/// LINKTYPE_ETHERNET.
const ETHERNET: u32 = 1;

/// What the file says of itself and of the port.
#[derive(Clone, Copy, Debug)]
pub struct About<'a> {
    /// The port.
    pub name: &'a str,
    /// Driver, for people.
    pub description: &'a str,
    /// The filter as it was given.
    pub filter: &'a str,
    /// Bytes of a frame at most.
    pub snap: usize,
}

/// The blocks before the first frame.
pub fn begin(out: &mut Vec<u8>, about: &About<'_>) {
    block(out, SECTION, |out| {
        put(out, 0x1a2b_3c4d);
        // Version 1.0, of unknown length.
        put(out, 1);
        out.extend_from_slice(&u64::MAX.to_le_bytes());
        option(out, 4, format!("knet {}", crate::BUILD_VERSION).as_bytes());
        end_options(out);
    });
    block(out, INTERFACE, |out| {
        put(out, ETHERNET);
        put(out, size(about.snap.min(MAX_BYTES)));
        option(out, 2, about.name.as_bytes());
        option(out, 3, about.description.as_bytes());
        // Stamps are 10^-9 seconds.
        option(out, 9, &[9]);
        if !about.filter.is_empty() {
            // A filter in the language of libpcap.
            let text = [&[0], about.filter.as_bytes()].concat();
            option(out, 11, &text);
        }
        end_options(out);
    });
}

/// Bytes of a block beside those of its frame, at most.
pub(super) const PACKET_EXTRA: usize = 28 + 3 + 16;

/// One frame. It is written on the data path: three pieces, not a field at a time.
pub fn packet(out: &mut Vec<u8>, entry: &Entry<'_>) {
    let captured = size(entry.bytes.len());
    let padding = entry.bytes.len().next_multiple_of(4) - entry.bytes.len();
    let length = size(28 + entry.bytes.len() + padding + 16);
    let mut head = [0; 28];
    let (high, low) = ((entry.at >> 32), entry.at & u64::from(u32::MAX));
    let number = |half: u64| u32::try_from(half).unwrap_or(0);
    // Type, length, interface, stamp with its upper half first, bytes kept, bytes that there were.
    let words = [
        PACKET,
        length,
        0,
        number(high),
        number(low),
        captured,
        entry.length,
    ];
    for (place, word) in head.chunks_exact_mut(4).zip(words) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    let mut tail = [0; 16];
    // epb_flags, of which bits 0 and 1 are: inbound 1, outbound 2. Then the end of the options, and the length again.
    let words = [2 | 4 << 16, entry.direction as u32, 0, length];
    for (place, word) in tail.chunks_exact_mut(4).zip(words) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    out.extend_from_slice(&head);
    out.extend_from_slice(entry.bytes);
    out.extend_from_slice([0; 3].get(..padding).unwrap_or_default());
    out.extend_from_slice(&tail);
}

/// The first of whole blocks, and what is behind it.
pub(super) fn split(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let length = bytes.get(4..8)?.try_into().ok()?;
    bytes.split_at_checked(usize::try_from(u32::from_le_bytes(length)).ok()?)
}

/// The block behind the last frame: what was counted until `at`, nanoseconds since 1970.
pub fn end(out: &mut Vec<u8>, at: u64, [seen, admitted, lost]: [u64; 3]) {
    block(out, STATISTICS, |out| {
        put(out, 0);
        stamp(out, at);
        // Received, dropped for want of buffers, accepted by the filter.
        option(out, 4, &seen.to_le_bytes());
        option(out, 5, &lost.to_le_bytes());
        option(out, 6, &admitted.to_le_bytes());
        end_options(out);
    });
}

/// A block: type, length, body, length again.
fn block(out: &mut Vec<u8>, kind: u32, body: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    put(out, kind);
    put(out, 0);
    body(out);
    let length = size(out.len() + 4 - start);
    if let Some(place) = out.get_mut(start + 4..start + 8) {
        place.copy_from_slice(&length.to_le_bytes());
    }
    put(out, length);
}

fn option(out: &mut Vec<u8>, code: u16, value: &[u8]) {
    let value = value.get(..usize::from(u16::MAX)).unwrap_or(value);
    out.extend_from_slice(&code.to_le_bytes());
    out.extend_from_slice(&u16::try_from(value.len()).unwrap_or(u16::MAX).to_le_bytes());
    padded(out, value);
}

fn end_options(out: &mut Vec<u8>) {
    put(out, 0);
}

fn padded(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(bytes);
    let short = bytes.len().next_multiple_of(4) - bytes.len();
    out.extend_from_slice([0; 4].get(..short).unwrap_or_default());
}

/// The upper half first.
fn stamp(out: &mut Vec<u8>, at: u64) {
    let [a, b, c, d, e, f, g, h] = at.to_le_bytes();
    out.extend_from_slice(&[e, f, g, h, a, b, c, d]);
}

fn put(out: &mut Vec<u8>, word: u32) {
    out.extend_from_slice(&word.to_le_bytes());
}

fn size(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capture::Direction;

    #[test]
    fn blocks_are_whole_and_aligned() {
        let mut out = Vec::new();
        let about = About {
            name: "v",
            description: "net_x y",
            filter: "tcp",
            snap: 96,
        };
        begin(&mut out, &about);
        let mut longest = 0;
        for length in 0..9_u32 {
            let before = out.len();
            let bytes = vec![1; length as usize];
            let entry = Entry {
                at: u64::MAX - 5,
                direction: Direction::Out,
                length: 1_500,
                bytes: &bytes,
            };
            packet(&mut out, &entry);
            longest = longest.max(out.len() - before - length as usize);
            let (block, behind) = split(&out[before..]).unwrap();
            assert_eq!((block.len(), behind.len()), (out.len() - before, 0));
        }
        assert_eq!(longest, PACKET_EXTRA);
        end(&mut out, 7, [0; 3]);
        let word = |at: usize| u32::from_le_bytes(out[at..at + 4].try_into().unwrap());
        let mut kinds = Vec::new();
        let mut at = 0;
        while at < out.len() {
            let length = word(at + 4) as usize;
            assert_eq!(length % 4, 0);
            assert_eq!(word(at + length - 4) as usize, length);
            kinds.push(word(at));
            at += length;
        }
        let mut wanted = vec![SECTION, INTERFACE];
        wanted.extend([PACKET; 9]);
        wanted.push(STATISTICS);
        assert_eq!(kinds, wanted);
    }
}
