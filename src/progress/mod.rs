//! Inline progress: the program's own threads drive the loop while they wait (design D7).
//!
//! Owns the loop token, the loop behind it, and the helper thread that takes over when nobody drives. May use `base`,
//! `telemetry`, `channel`, `ffi`, `thread`. A waiting thread of the program drives with its signals blocked; the helper is
//! a thread of ours. Invariant: one thread at a time is at the loop, it never blocks there, and when it leaves either
//! somebody sleeps on the port and the bell, or the helper looks after the loop within a grace.
//!
//! ```text
//! words    the token, who sleeps, what the helper does: checked with loom
//! drive    a waiting thread: takes the token, turns, sleeps, gives it back
//! helper   the thread that takes over
//! ```

#[cfg(not(loom))]
mod drive;
#[cfg(not(loom))]
mod helper;
#[cfg(not(loom))]
mod place;
pub mod words;

#[cfg(not(loom))]
pub use drive::{Drive, Resting};
#[cfg(not(loom))]
pub use place::{
    Loop, Next, RINGERS, Rest, Settings, Turned, Waiting, end, hidden_until, install, is_ending,
    is_here, retire, stop, was_here,
};
