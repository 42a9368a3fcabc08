//! knet gives unmodified programs a user-space TCP/IP stack.
//!
//! ```text
//! the program (any process that is preloaded)           the host: knetd (private or shared)
//! shim      C symbols, errno, re-entrancy               lcore     the loop, pinned, idle policy
//! fd        number -> object                            stack     demux, guard, flows, listeners, timers, smoltcp
//! iomux     epoll / poll / select                       device    bursts, mbufs, ports (DPDK, in-memory pair, pcap)
//! socket    stream, listener, datagram                  gpu       payload stage
//!      \________________  channel + readiness  ________________/
//!           (shared memory: cells, rings, doorbells, wake-ups: the contract)
//! ```
//!
//! Program-side code never names smoltcp or DPDK; host-side code never names a descriptor of the
//! program. Modules depend downwards only; `tests/layering.rs` holds the table.

#![deny(unsafe_code)]
#![warn(missing_docs)]

// Test support is shared with the integration tests, which name the crate.
#[cfg(test)]
extern crate self as knet;

pub mod attach;
pub mod channel;
pub mod config;
pub mod device;
pub mod errno;
pub mod fd;
pub mod ffi;
pub mod host;
pub mod id;
pub mod iomux;
pub mod lcore;
pub mod preflight;
pub mod readiness;
pub mod rendezvous;
pub mod runtime;
pub mod shim;
pub mod socket;
pub mod stack;
pub mod telemetry;
pub mod thread;
pub mod time;
pub mod waiter;

/// The version of this build: the package's, and the commit when it was built from a checkout.
pub const BUILD_VERSION: &str = env!("KNET_BUILD_VERSION");
