//! The payload stage: what the config says is done to the bytes of a flow between the wire and the program.
//!
//! Owns the kernels (CPU versions: the oracle and the fallback of every other way to run them), which flows they
//! apply to, and the state that each keeps for a flow. May use `base`, `telemetry` and `config`. Runs on the lcore
//! thread; only [`Mirror`] has a thread of its own, which never holds the lcore up. Invariant: a chunk is looked at
//! exactly once and in stream order, before anybody acts on it; no length changes, and memory is bounded.
//!
//! ```text
//! stage      which kernels a flow meets, in order, and the verdict that results
//! pipeline   the rules of the config with their kernels, loaded once at the start of the host
//! pattern    many literals at once, also across segments      stats     histogram and entropy
//! chacha20   a stream cipher by stream offset                 crc32c    a digest
//! mirror     copies of chosen chunks into a pcap file
//! builtin    the kernels by what they need                    bench     those of the benchmark only
//! ring       what the host and a GPU kernel share, byte for byte
//! ptx        the kernels as a GPU's driver takes them; their source is cuda/
//! ```
//!
//! *Attach points.* `stream`: received bytes when they are in order and before the program is told of them, sent bytes
//! before TCP takes them; each byte passes once, whatever is lost or sent again. `packet`: the payload of each segment
//! on the wire, behind the checksum check, ahead of TCP; a segment that is sent again passes again.

mod bench;
mod builtin;
mod chacha20;
mod chunk;
mod counters;
mod crc32c;
mod kernel;
mod mirror;
mod pattern;
mod pipeline;
pub mod ptx;
pub mod ring;
mod stage;
mod stats;

pub use builtin::Builtin;
pub use chunk::{Chunk, Direction, Ends};
pub use counters::StageCounters;
pub use kernel::{Finding, KernelState, PayloadKernel};
pub use mirror::Mirror;
pub use pipeline::{Pipeline, Rule};
pub use stage::{PacketStage, StreamStage, Verdict};
