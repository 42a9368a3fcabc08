//! Accelerated sockets as objects: what the calls of socket(7) do, over a link and a handle.
//!
//! Owns the program's half of an object's cell and how many descriptors of this process refer to it. May use
//! `base`, `telemetry`, `channel`, `readiness`, `attach`, `thread`, `ffi`, `waiter`. Any program thread, also in a signal
//! handler. Invariant: no descriptor number of the program is known here, nothing allocates, and no word is
//! held over a wait.

pub mod close;
pub mod connect;
pub mod hold;
pub mod info;
pub mod interest;
pub mod listener;
pub mod options;
pub mod state;
pub mod stream;
pub mod wish;

#[cfg(test)]
pub(crate) mod fake;
