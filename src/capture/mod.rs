//! Capture: what passes a queue pair, copied for whoever asked, without the data path ever waiting for it.
//!
//! Owns the filter language, the bounded set of buffers between the lcore and the reader, the tap on a queue pair, and
//! the pcapng format. May use `device`, `time`, `telemetry`. The recorder's half runs on the lcore thread, the reader's on
//! a tool's. Invariant: a frame for which no buffer is free is counted and forgotten; nothing here blocks the lcore. A
//! queue pair that nobody captures has no tap: it costs nothing.

pub mod filter;
pub mod pcapng;
mod recorder;
mod tap;

pub use filter::Filter;
pub use recorder::{
    CaptureCounters, Chunk, Direction, Entry, Nothing, Reader, Readers, Recorder, Wanted, channel,
    channels,
};
pub use tap::{Closed, tap, untap};
