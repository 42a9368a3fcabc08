//! The loop: one pinned thread that moves frames, bytes and facts between a port, the stack and the
//! channels of the attached program families.
//!
//! Owns the order of a turn, the host's private record of each object, what a doorbell means, the memory
//! of the rings, and the idle policy. May use `stack`, `device`, `gpu`, `channel`, `readiness`, `telemetry` and
//! `base`. Runs on the lcore thread; only `mailbox` is also used by the control thread. Invariant: a turn
//! is bounded, never blocks, and trusts no value that it reads from a channel: a program can harm only itself.
//!
//! ```text
//! worker     a turn on one screen: clock, rx, commands, timers, dirty flows, tx, publish, wake-ups
//! bell       what the program asks for: wishes, options
//! listen     listeners, which all lcores serve, and their accept queues
//! peers      the other lcores: frames that are theirs, and ours that they received
//! pull       bytes out of the transmit rings, and what was read
//! close      the end of objects
//! publish    what the program is told: facts, edges, accepted flows
//! payload    what the payload stage says of the bytes, before anybody acts on them
//! memory     rings out of channel memory, given to the stack
//! share      what one family may have of what all share
//! post       what the control thread says
//! report     what is told when somebody asks
//! watch      one connection under observation
//! idle       spin, yield, sleep
//! rest       the sleep itself
//! ```

mod affinity;
mod bell;
mod clock;
mod close;
mod counters;
mod family;
mod held;
mod idle;
mod info;
mod kept;
mod latency;
mod listen;
mod look;
mod mailbox;
mod memory;
mod object;
mod offers;
mod patience;
mod payload;
mod peers;
mod pool;
mod post;
mod process;
mod publish;
mod pull;
mod report;
mod rest;
mod segments;
mod send_buffer;
mod share;
mod status;
mod summons;
mod table;
#[cfg(test)]
pub(crate) mod tests;
mod watch;
mod worker;

pub use affinity::{Placement, cpus_of, place};
pub use counters::LcoreCounters;
pub use idle::{IdleConfig, IdlePolicy, Next};
pub use latency::{Histogram, Latencies};
pub use look::{Counted, Look, Seen, add_to};
pub use mailbox::{Mail, Mailbox, Report};
pub use object::{FAMILIES_MAX, Token};
pub use peers::Peers;
pub use process::release_process;
pub use segments::Segments;
pub use share::Share;
pub use status::LcoreStatus;
pub use watch::{Sight, Watch, Watcher};
pub use worker::{Lcore, LcoreConfig};
