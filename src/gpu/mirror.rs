//! Copies of chosen chunks in a pcap file, written by a thread of its own so that a slow disk holds nobody up.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{SystemTime, UNIX_EPOCH};

use super::chunk::Chunk;

/// The way to the writer of one file. When all are dropped, the writer ends behind what was given to it.
#[derive(Clone, Debug)]
pub struct Mirror {
    to: SyncSender<Vec<u8>>,
}

/// Copies that wait for the disk at most.
const WAITING_MAX: usize = 1_024;
/// Payload of one packet of the file.
const PAYLOAD_MAX: usize = 32 << 10;
const IPV4_BYTES: usize = 20;
const TCP_BYTES: usize = 20;
/// pcap with nanoseconds, and packets that begin with an IP header (LINKTYPE_RAW).
const MAGIC_NANOSECONDS: u32 = 0xa1b2_3c4d;
const LINKTYPE_RAW: u32 = 101;
const SNAP_BYTES: u32 = 1 << 16;

impl Mirror {
    /// Makes the file anew and starts its writer.
    ///
    /// # Errors
    /// What open(2) and pthread_create say.
    pub fn create(path: &str) -> io::Result<Self> {
        let mut file = BufWriter::new(File::create(path)?);
        for word in [
            MAGIC_NANOSECONDS.to_ne_bytes(),
            // Version 2.4.
            [2_u16.to_ne_bytes(), 4_u16.to_ne_bytes()]
                .concat()
                .try_into()
                .unwrap_or_default(),
            [0; 4],
            [0; 4],
            SNAP_BYTES.to_ne_bytes(),
            LINKTYPE_RAW.to_ne_bytes(),
        ] {
            file.write_all(&word)?;
        }
        file.flush()?;
        let (to, from) = sync_channel(WAITING_MAX);
        let name = path.to_owned();
        std::thread::Builder::new()
            .name("knet-mirror".to_owned())
            .spawn(move || {
                if let Err(error) = write(file, &from) {
                    crate::error!("mirror_file={name} event=not_written error=\"{error}\"");
                }
            })?;
        Ok(Self { to })
    }

    /// The mirror of `path` among those of `known`, where it is made when it is new: a file has one writer.
    ///
    /// # Errors
    /// As for [`Mirror::create`].
    pub(super) fn shared(path: &str, known: &mut Vec<(String, Self)>) -> io::Result<Self> {
        if let Some((_, mirror)) = known.iter().find(|(other, _)| other == path) {
            return Ok(mirror.clone());
        }
        let mirror = Self::create(path)?;
        known.push((path.to_owned(), mirror.clone()));
        Ok(mirror)
    }

    /// Gives a copy of `chunk` to the writer; false when it has too much to do already. Never blocks.
    #[must_use]
    pub fn copy(&self, chunk: &Chunk<'_>) -> bool {
        let mut offset = chunk.offset;
        chunk.bytes.chunks(PAYLOAD_MAX).all(|part| {
            let sent = self.to.try_send(packet(chunk, offset, part)).is_ok();
            offset += part.len() as u64;
            sent
        })
    }
}

/// Writes what comes until the mirror is dropped; what waits together is flushed together.
fn write(mut file: impl Write, from: &Receiver<Vec<u8>>) -> io::Result<()> {
    while let Ok(first) = from.recv() {
        record(&mut file, &first)?;
        while let Ok(next) = from.try_recv() {
            record(&mut file, &next)?;
        }
        file.flush()?;
    }
    Ok(())
}

fn record(file: &mut impl Write, packet: &[u8]) -> io::Result<()> {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let seconds = u32::try_from(now.as_secs()).unwrap_or(u32::MAX);
    let length = u32::try_from(packet.len()).unwrap_or(u32::MAX);
    for word in [seconds, now.subsec_nanos(), length, length] {
        file.write_all(&word.to_ne_bytes())?;
    }
    file.write_all(packet)
}

/// An IPv4 packet with a TCP header made for it. Its sequence number is the stream offset; its TCP checksum is left out,
/// because no such segment was on the wire.
fn packet(chunk: &Chunk<'_>, offset: u64, payload: &[u8]) -> Vec<u8> {
    let (from, to) = (chunk.sender(), chunk.receiver());
    let total = u16::try_from(IPV4_BYTES + TCP_BYTES + payload.len()).unwrap_or(u16::MAX);
    let mut packet = Vec::with_capacity(usize::from(total));
    packet.extend([0x45, 0]);
    packet.extend(total.to_be_bytes());
    // No identification, not to be fragmented, 64 hops, TCP, checksum to come.
    packet.extend([0, 0, 0x40, 0, 64, 6, 0, 0]);
    packet.extend(from.ip().octets());
    packet.extend(to.ip().octets());
    let sum = header_checksum(&packet).to_be_bytes();
    if let Some(place) = packet.get_mut(10..12) {
        place.copy_from_slice(&sum);
    }
    packet.extend(from.port().to_be_bytes());
    packet.extend(to.port().to_be_bytes());
    // The lower half of the offset is what a sequence number is.
    packet.extend(offset.to_be_bytes().into_iter().skip(4));
    packet.extend([0; 4]);
    // 20 bytes of header, PSH and ACK, a full window.
    packet.extend([0x50, 0x18, 0xff, 0xff, 0, 0, 0, 0]);
    packet.extend_from_slice(payload);
    packet
}

/// RFC 791 section 3.1, of a header whose checksum field is 0.
fn header_checksum(header: &[u8]) -> u16 {
    let mut sum: u32 = header
        .chunks_exact(2)
        .filter_map(|pair| Some(u32::from(u16::from_be_bytes(pair.try_into().ok()?))))
        .sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::super::chunk::tests::chunk;
    use super::*;

    #[test]
    fn the_file_has_a_packet_for_each_part() {
        let mut bytes = vec![b'x'; PAYLOAD_MAX + 10];
        let chunk = chunk(5, &mut bytes);
        let (to, from) = sync_channel(WAITING_MAX);
        let mirror = Mirror { to };
        assert!(mirror.copy(&chunk));
        drop(mirror);
        let mut file = Vec::new();
        write(&mut file, &from).unwrap();
        let second = 16 + 40 + PAYLOAD_MAX;
        assert_eq!(file.len(), second + 16 + 40 + 10);
        let head = &file[second + 16..];
        assert_eq!(head[..4], [0x45, 0, 0, 50]);
        assert_eq!(header_checksum(&head[..20]), 0, "a right sum makes it 0");
        let seq = u32::from_be_bytes(head[24..28].try_into().unwrap());
        assert_eq!(usize::try_from(seq).unwrap(), 5 + PAYLOAD_MAX);
        assert_eq!(head[40..], [b'x'; 10]);
    }

    #[test]
    fn a_slow_disk_costs_copies_and_not_time() {
        let (to, from) = sync_channel(1);
        let mirror = Mirror { to };
        let mut bytes = *b"abc";
        assert!(mirror.copy(&chunk(0, &mut bytes)));
        assert!(!mirror.copy(&chunk(3, &mut bytes)));
        drop(from);
        assert!(!mirror.copy(&chunk(6, &mut bytes)));
    }
}
