//! knet gives unmodified programs a user-space TCP/IP stack.
//!
//! ```text
//! the program (any process that is preloaded)           the host: knetd (private or shared)
//! frame     the exported C symbols                      host      control thread: clients, policy, reports, life
//! shim      arguments, errno, re-entrancy               lcore     the loop, pinned, idle policy
//! fd        number -> object, stack or kernel           stack     demux, guard, flows, listeners, timers, smoltcp
//! iomux     epoll / poll / select                       device    bursts, ports (DPDK, unix socket, pair), pcap
//! socket    stream, listener                            gpu       payload stage
//! waiter    the thread that sleeps                      capture   frames copied for whoever asked
//!      \________________  channel + readiness  ________________/
//!           (shared memory: cells, rings, doorbells, wake-ups: the contract)
//! ```
//!
//! A program finds or starts its host in `attach`; with inline progress (`progress`, `runtime`) the host's half runs in the
//! program's own threads. Below both stand `channel`, `config`, `telemetry`, `ffi` and the files of this folder.
//!
//! Program-side code never names smoltcp or DPDK; host-side code never names a descriptor of the
//! program. Modules depend downwards only; `tests/layering.rs` holds the table.

#![deny(unsafe_code)]
#![warn(missing_docs)]

// Test support is shared with the integration tests, which name the crate.
#[cfg(test)]
extern crate self as knet;

#[cfg(not(loom))]
pub mod attach;
#[cfg(not(loom))]
pub mod capture;
pub mod channel;
#[cfg(not(loom))]
pub mod config;
#[cfg(not(loom))]
pub mod device;
pub mod errno;
#[cfg(not(loom))]
pub mod expression;
#[cfg(not(loom))]
pub mod fd;
#[cfg(not(loom))]
pub mod ffi;
#[cfg(not(loom))]
pub mod gpu;
#[cfg(not(loom))]
pub mod host;
pub mod id;
#[cfg(not(loom))]
pub mod iomux;
#[cfg(not(loom))]
pub mod lcore;
#[cfg(not(loom))]
pub mod prefetch;
#[cfg(not(loom))]
pub mod preflight;
pub mod progress;
pub mod readiness;
#[cfg(not(loom))]
pub mod rendezvous;
#[cfg(not(loom))]
pub mod runtime;
#[cfg(test)]
#[cfg(not(loom))]
mod seeded;
#[cfg(not(loom))]
pub mod shim;
#[cfg(not(loom))]
pub mod socket;
#[cfg(not(loom))]
pub mod stack;
pub mod telemetry;
#[cfg(not(loom))]
pub mod thread;
pub mod time;
#[cfg(not(loom))]
pub mod waiter;

/// The version of this build: the package's, and the commit when it was built from a checkout.
pub const BUILD_VERSION: &str = env!("KNET_BUILD_VERSION");
