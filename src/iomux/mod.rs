//! epoll, poll and select over accelerated sockets and kernel descriptors together.
//!
//! Owns the collection of events and the identity of epolls in the channel. May use `base`, `telemetry`, `channel`,
//! `readiness`, `attach`, `thread`, `ffi`, `waiter`, `socket`. Any program thread, also in a signal handler.
//! Invariant: what is reported was true when it was looked at, an edge is reported once, no time-out is early,
//! and the program's data comes back untouched.

mod collect;
pub mod epoll_set;
pub mod nested;
mod pace;
pub mod poll;
pub mod scratch;
pub mod select;

pub use poll::{PollEntry, Target, poll};
pub use select::{Sets, select};
