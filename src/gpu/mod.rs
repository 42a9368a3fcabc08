//! The payload stage: what the config says is done to the bytes of a flow between the wire and the program.
//!
//! Owns the kernels (CPU versions: the oracle and the fallback of every other way to run them), which flows they
//! apply to, and the state that each keeps for a flow. May use `base`, `telemetry`, `config` and `ffi`. Runs on the lcore
//! thread; only [`Mirror`] has a thread of its own, which never holds the lcore up. Invariant: a chunk is looked at
//! exactly once and in stream order, before anybody acts on it; no length changes, and memory is bounded.
//!
//! ```text
//! stage      which kernels a flow meets, in order, and the verdict that results
//! pipeline   the rules of the config with their kernels, loaded once at the start of the host
//! pattern    many literals at once, also across segments      stats     histogram and entropy
//! chacha20   a stream cipher by stream offset                 crc32c    a digest
//! user       a function of the operator's, which a GPU alone can run
//! mirror     copies of chosen chunks into a pcap file
//! builtin    the kernels by what they need                    bench     those of the benchmark only
//! ring       what the host and a GPU kernel share, byte for byte
//! accelerator  the GPU of the process, opened once, given up for good     drive  how it is told of a batch
//! caller     the thread that calls the driver, for the lcore never waits
//! offload    one kernel there: batches out, results in, deadlines         air    what a stage needs for that
//! slots      the host's side of the ring                                  pool   buffers that the GPU reaches
//! room       how many rings may stay there at once
//! ptx        the kernels as a GPU's driver takes them; their source is cuda/
//! rig        a GPU and batches without flows, for the benchmark
//! ```
//!
//! *Attach points.* `stream`: received bytes when they are in order and before the program is told of them, sent bytes
//! before TCP takes them; each byte passes once, whatever is lost or sent again. `packet`: the payload of each segment
//! on the wire, behind the checksum check, ahead of TCP; a segment that is sent again passes again. Where a GPU judges, bytes of a
//! stream are copied into a buffer of ours, and segments are looked at in the port's own (`stage/packet/`).

mod accelerator;
mod air;
mod bench;
mod builtin;
mod caller;
mod chacha20;
mod chunk;
mod counters;
mod crc32c;
mod drive;
mod kernel;
mod mirror;
mod offload;
mod pattern;
mod pipeline;
mod pool;
pub mod ptx;
pub mod rig;
pub mod ring;
mod room;
mod slots;
mod stage;
mod stats;
mod user;

pub use builtin::Builtin;
pub use chunk::{Chunk, Direction, Ends};
pub use counters::StageCounters;
pub use kernel::{Asked, Finding, KernelState, PayloadKernel};
pub use mirror::Mirror;
pub use pipeline::{FrameMemory, Pipeline, Placement, Rule};
pub use stage::{
    Aloft, Departure, HeldFrames, Meeting, PacketStage, Segment, StreamStage, Verdict,
};
pub use user::UserCode;

#[cfg(test)]
pub(crate) mod tests;
