//! Counters and log lines.
//!
//! Owns what everybody may raise or say; calls only `base`. Any thread may use it. Invariant: no call
//! here allocates on the data path, takes a lock, or writes to stdout.

pub mod counters;
pub mod flood;
pub mod log;

pub use counters::{Counter, OwnCounter};
pub use log::Level;
