//! How a program finds, starts and leaves its host.
//!
//! Owns the hand-shake and this process's end of the channel. May use `base`, `telemetry`, `channel`, `readiness`,
//! `rendezvous`, `thread`, `ffi`. Runs in the program's own calls, also in a signal handler. Invariant: it never
//! allocates, never parses the config, and whatever goes wrong ends in one line on descriptor 2 and kernel sockets.

pub mod link;
pub mod object;

pub use link::{Link, link};
pub use object::Object;
