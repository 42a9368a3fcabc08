//! The protocol: frames in, segments out, bytes into rings.
//!
//! Owns demultiplexing, ARP, ICMP, the guard, flows, listeners, timers and smoltcp. May use `base`,
//! `telemetry`, `config` types, the `device` traits. Runs on the lcore thread; one [`Stack`] per lcore.
//! Invariant: every call is bounded, nothing blocks, time and randomness are arguments.

mod api;
pub mod checksum;
pub mod counters;
pub mod demux;
pub mod frame;
pub mod icmp;
pub mod isn;
pub mod neighbor;
pub mod patch;
pub mod port_alloc;
pub mod rate_limit;
pub mod route;
#[cfg(test)]
mod seeded;
pub mod segment;
pub mod siphash;
pub mod time_wait;
pub mod timer_wheel;

pub use api::*;
