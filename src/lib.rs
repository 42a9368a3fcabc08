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

#[cfg(not(loom))]
pub mod attach;
pub mod channel;
#[cfg(not(loom))]
pub mod device;
pub mod errno;
#[cfg(not(loom))]
pub mod ffi;
pub mod id;
#[cfg(not(loom))]
pub mod iomux;
pub mod readiness;
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
