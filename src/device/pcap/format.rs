//! The bytes of a pcap file.

use crate::device::DeviceError;
use crate::time::Instant;

/// Magic of a file with nanoseconds, and of one with microseconds.
const MAGIC_NANOS: u32 = 0xa1b2_3c4d;
const MAGIC_MICROS: u32 = 0xa1b2_c3d4;

/// LINKTYPE_ETHERNET.
const LINK_ETHERNET: u32 = 1;

/// The longest record that we write or read, as in other programs.
pub(super) const RECORD_BYTES_MAX: usize = 262_144;

const FILE_HEADER_BYTES: usize = 24;
const RECORD_HEADER_BYTES: usize = 16;
const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// The header of a file that we write.
pub(super) fn file_header() -> [u8; FILE_HEADER_BYTES] {
    let snap_len = u32::try_from(RECORD_BYTES_MAX).unwrap_or(u32::MAX);
    // Version 2.4 as two 16-bit fields; two reserved words.
    let words = [MAGIC_NANOS, 0x0004_0002, 0, 0, snap_len, LINK_ETHERNET];
    let mut header = [0; FILE_HEADER_BYTES];
    for (to, word) in header.chunks_exact_mut(4).zip(words) {
        to.copy_from_slice(&word.to_le_bytes());
    }
    header
}

/// The header of a record of `captured` bytes out of a frame of `length`.
pub(super) fn record_header(
    at: Instant,
    captured: usize,
    length: usize,
) -> [u8; RECORD_HEADER_BYTES] {
    let word = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
    let size = |value: usize| u32::try_from(value).unwrap_or(u32::MAX);
    let words = [
        word(at.nanos() / NANOS_PER_SECOND),
        word(at.nanos() % NANOS_PER_SECOND),
        size(captured),
        size(length),
    ];
    let mut header = [0; RECORD_HEADER_BYTES];
    for (to, word) in header.chunks_exact_mut(4).zip(words) {
        to.copy_from_slice(&word.to_le_bytes());
    }
    header
}

/// One record of a file that was read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Record {
    /// When it was captured, on the file's clock.
    pub(super) at: Instant,
    /// Where its bytes lie in the file.
    pub(super) bytes: core::ops::Range<usize>,
}

/// Finds all records of `file`.
///
/// # Errors
/// A line that says at which byte it is not a capture of Ethernet frames.
pub(super) fn parse(file: &[u8]) -> Result<Vec<Record>, DeviceError> {
    let fault = |at: usize, what: &str| DeviceError {
        message: format!("pcap: byte {at}: {what}"),
    };
    let magic = word(file, 0, false).ok_or_else(|| fault(0, "the file is too short"))?;
    let (swapped, nanos_per_unit) = match magic {
        MAGIC_NANOS => (false, 1),
        MAGIC_MICROS => (false, 1_000),
        other if other.swap_bytes() == MAGIC_NANOS => (true, 1),
        other if other.swap_bytes() == MAGIC_MICROS => (true, 1_000),
        _ => return Err(fault(0, "not a pcap file (pcapng is not read)")),
    };
    let link = word(file, 20, swapped).ok_or_else(|| fault(20, "the file header is cut"))?;
    // The upper bits tell of a frame check sequence, which no capture of ours has.
    if link & 0x0fff_ffff != LINK_ETHERNET {
        return Err(fault(20, &format!("link type {link} is not Ethernet (1)")));
    }
    let mut records = Vec::new();
    let mut place = FILE_HEADER_BYTES;
    while place < file.len() {
        let field = |index: usize| {
            word(file, place + 4 * index, swapped)
                .ok_or_else(|| fault(place, "a record header is cut"))
        };
        let (seconds, fraction, captured) = (field(0)?, field(1)?, field(2)?);
        field(3)?;
        let captured = usize::try_from(captured)
            .ok()
            .filter(|captured| *captured <= RECORD_BYTES_MAX)
            .ok_or_else(|| {
                fault(
                    place,
                    &format!("a record is longer than {RECORD_BYTES_MAX}"),
                )
            })?;
        let start = place + RECORD_HEADER_BYTES;
        let end = start + captured;
        if end > file.len() {
            return Err(fault(place, "a record is cut"));
        }
        let nanos = u64::from(seconds) * NANOS_PER_SECOND + u64::from(fraction) * nanos_per_unit;
        records.push(Record {
            at: Instant::from_nanos(nanos),
            bytes: start..end,
        });
        place = end;
    }
    Ok(records)
}

/// The 32-bit word at byte `place`.
fn word(file: &[u8], place: usize, swapped: bool) -> Option<u32> {
    let bytes = file.get(place..place.checked_add(4)?)?;
    let word = u32::from_le_bytes(bytes.try_into().ok()?);
    Some(if swapped { word.swap_bytes() } else { word })
}
