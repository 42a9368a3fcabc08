//! The contract between a program family and its host: memory that both map, and nothing else.
//!
//! Owns every byte that crosses. May use `base` and `telemetry`. Any program thread, any signal handler
//! and one lcore use it at the same time. Invariant: no lock is shared with the host; whoever dies,
//! stops or is pre-empted stops nobody else; a state is always a level that can be read again, never a
//! message that can be lost.
//!
//! ```text
//! control memory (read-write in the program)           receive memory (read-only in the program)
//!   Header     layout, policy, host state, kicks         one ring per object index:
//!   SlotCell   a sleeping thread and its flag               a flow's bytes (it is smoltcp's buffer)
//!   EpollCell  who sleeps on it, which objects are ready    a listener's accept queues (object indices)
//!   ProcCell   a process: which objects it holds
//!   ObjectCell a listener or a flow
//!   transmit rings, one per object index
//! ```
//!
//! *Program to host*: write the wish into the cell, then ring the object's doorbell (a bit in a two-level
//! bitmap, [`bitmap`], one an lcore) at the lcore that the object belongs to by its index ([`layout::Layout::lcore_of`]); the host looks at the whole cell whenever the bell rang. *Host to program*:
//! write positions and flags into the cell, raise [`cell::HostLine::edge`], set the object's bit in the ready map of every
//! epoll that watches it, and wake the slots that sleep ([`crate::readiness`]).
//!
//! | word | written by | read by | ordering |
//! |---|---|---|---|
//! | `rx_tail` | lcore | program | Release / Acquire: publishes the ring bytes before it |
//! | `rx_head` | program (compare-and-swap) | lcore | AcqRel / Acquire: the bytes before it are copied out |
//! | `tx_tail` | program (owner of `tx_owner`) | lcore | Release / Acquire: publishes the ring bytes and `tx_origin` |
//! | `tx_head` | lcore | program | Release / Acquire: the bytes before it are copied out |
//! | doorbell bit, sleeping flags, masks | both | both | SeqCst on the sleep side, see [`crate::readiness`] |
//!
//! The host checks every value that it reads here; a program can harm only itself.

pub mod accept_ring;
pub mod bitmap;
pub mod byte_ring;
pub mod cell;
pub mod layout;
#[cfg(not(loom))]
pub mod map;
pub mod mask;
pub mod message;
#[cfg(loom)]
pub mod model;
pub mod owner;
pub mod policy;
pub mod ring;
pub mod sync;

#[cfg(loom)]
pub use model as map;

#[cfg(test)]
#[cfg(loom)]
mod loom_rings;

/// Raised with every change of a cell, an offset or a message. Hand-shakes with another number fail.
pub const ABI: u32 = 9;

/// First word of the header and of each message: "KNET".
pub const MAGIC: u32 = 0x4b4e_4554;
