//! Capture files: a tap on a queue pair writes one, and a replay device reads one.
//!
//! The format is the classic pcap file (draft-ietf-opsawg-pcap, section 4), link type Ethernet. We write
//! it with nanoseconds and little-endian; we read both byte orders and both time resolutions.

mod format;
mod replay;
mod tap;

pub use replay::PcapReplay;
pub use tap::Tap;

#[cfg(test)]
mod tests;
