//! The payload stage, as checked.

use core::net::Ipv4Addr;

/// `gpu`
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Gpu {
    /// `gpu.required`
    pub required: bool,
    /// `gpu.mode`
    pub mode: String,
    /// `gpu.pipeline`, in order; 1 to 16 of them.
    pub pipeline: Vec<PayloadRule>,
}

/// One entry of `gpu.pipeline`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PayloadRule {
    /// Its JSON path, for messages.
    pub path: String,
    /// `kernel`
    pub kernel: Kernel,
    /// It is for received bytes.
    pub rx: bool,
    /// It is for sent bytes.
    pub tx: bool,
    /// `attach`
    pub attach: Attach,
    /// Ports at either end; empty: all.
    pub ports: Vec<u16>,
    /// The peer's networks with their prefix lengths; empty: all.
    pub networks: Vec<(Ipv4Addr, u8)>,
    /// Segments with less payload are passed over.
    pub min_payload: u16,
}

/// `kernel`, with what it needs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Kernel {
    /// `pattern`
    Pattern {
        /// The file with the literals.
        file: String,
        /// What a match does.
        on_match: OnMatch,
    },
    /// `stats`
    Stats,
    /// `chacha20`
    Chacha20 {
        /// The file with the key.
        key_file: String,
    },
    /// `crc32c`
    Crc32c,
}

/// `attach`
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Attach {
    /// Bytes in stream order, each once.
    Stream,
    /// The payload of each segment on the wire.
    Packet,
}

/// `on_match`
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum OnMatch {
    /// Nothing but a counter.
    Pass,
    /// The segment is dropped; a flow that has lost too many is reset.
    Drop,
    /// Both ends are reset.
    Reset,
    /// A log line with this number.
    Mark(u32),
    /// A copy into this pcap file.
    Mirror(String),
}
