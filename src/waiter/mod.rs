//! The sleeping thread: its slot in the channel, its eventfd, and the one place where the program side blocks.
//!
//! Owns the slots that this process has taken and their eventfds. May use `base`, `telemetry`, `channel`,
//! `readiness`, `attach`, `thread`, `ffi`. Any program thread, also in a signal handler. Invariant: a wait
//! holds nothing that another thread needs, is a cancellation point, and is never lost or early.

pub mod counters;
pub mod herald;
pub mod owner;
pub mod sleep;
pub mod slot;

pub use sleep::{OWN, Wake, Watch, sleep};
pub use slot::{forget_link_eventfds, forget_parents_eventfds, forget_predecessors_slots, wake};
