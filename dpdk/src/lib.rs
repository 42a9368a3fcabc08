//! libknet_dpdk.so: the DPDK plug-in, cut at the device trait.
//!
//! Owns EAL, the port and the mbuf pools. May use `dpdk-sys` only. Exports one symbol, the table of
//! `dpdk_sys::abi`; the host opens this object with `dlopen`, so nothing else of the product is linked
//! to DPDK. `start` and `stop` run on the thread that opens the device, a queue's calls on the lcore
//! that owns it, `stats` and `link_up` anywhere. Invariant: no panic leaves this object, and the burst
//! calls in the table are the C functions themselves.
//!
//! Built without DPDK, the table is there all the same and `start` says so.
//!
//! # Safety
//! The table's pointers are the host's promise, written at each field of `dpdk_sys::abi::Table`.

#![allow(unsafe_code)]

#[cfg(has_dpdk)]
mod closing;
#[cfg(has_dpdk)]
mod eal;
#[cfg(has_dpdk)]
mod port;
#[cfg(has_dpdk)]
mod table;
#[cfg(not(has_dpdk))]
#[path = "no_dpdk.rs"]
mod table;

use dpdk_sys::abi::{ErrorText, Table};

/// The plug-in's table.
// SAFETY: the name is the product's own; no other object defines it.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals)]
pub static knet_dpdk_table: Table = table::TABLE;

/// Puts `message` into the host's buffer, cut at its end.
fn report(error: &mut ErrorText, message: &str) {
    let room = error.bytes.len() - 1;
    for (to, from) in error.bytes.iter_mut().zip(message.bytes().take(room)) {
        *to = from;
    }
    if let Some(end) = error.bytes.get_mut(message.len().min(room)) {
        *end = 0;
    }
}
