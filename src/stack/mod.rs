//! The protocol: frames in, segments out, bytes into rings.
//!
//! Owns demultiplexing, ARP, ICMP, the guard, flows, listeners, timers and smoltcp. May use `base`,
//! `telemetry`, `config` types, the `device` traits. Runs on the lcore thread; one [`Stack`] per lcore.
//! Invariant: every call is bounded, nothing blocks, time and randomness are arguments.

mod active_open;
mod api;
pub mod arp;
mod buffers;
mod ceiling;
mod changes;
pub mod checksum;
mod control;
pub mod counters;
pub mod demux;
pub mod drop_reason;
mod ending;
mod flow;
mod flow_parts;
mod flow_table;
mod forged;
pub mod frame;
mod guard;
mod handshake;
pub mod header_option;
pub mod icmp;
mod input;
mod interface;
pub mod isn;
mod join;
mod last_word;
mod later;
mod listener;
mod loopback;
mod mend;
pub mod neighbor;
pub mod network;
mod output;
mod passive_open;
pub mod patch;
pub mod port_alloc;
pub mod rate_limit;
mod recovery;
mod reply;
pub mod route;
pub mod segment;
mod sequence;
mod settle;
pub mod siphash;
#[allow(clippy::module_inception)] // it holds the type of that name
mod stack;
mod stall;
pub mod steering;
mod stretch_ack;
mod sweep;
#[cfg(test)]
mod tests;
pub mod time_wait;
pub mod timer_wheel;
mod tracker;
mod urgent;
mod view;
mod watchdog;

pub use api::*;
pub use counters::StackCounters;
pub use handshake::SEGMENT_MIN;
pub use listener::Waiting;
pub use stack::{Close, Stack};
pub use urgent::UrgentMark;
pub use view::{FlowView, ListenerView, RestView, Slice, Stage};
