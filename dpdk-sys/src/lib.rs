//! Raw DPDK bindings: the calls of `calls.txt` by bindgen, and a C file for what DPDK has only inline.
//!
//! Owns nothing but declarations. Without DPDK on the build machine only [`abi`] is here.
//!
//! # Safety
//! Declarations only; each call's conditions are DPDK's, or stand in `c/shim.h`.

#![allow(unsafe_code)]

#[path = "../../src/device/plugin_abi.rs"]
pub mod abi;

#[cfg(has_dpdk)]
#[allow(
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    unreachable_pub,
    unnameable_types,
    unused_qualifications,
    missing_debug_implementations,
    unsafe_op_in_unsafe_fn,
    clippy::all,
    clippy::pedantic,
    clippy::nursery,
    clippy::restriction
)]
mod bindings {
    include!(concat!(env!("OUT_DIR"), "/bindings.rs"));
}

#[cfg(has_dpdk)]
pub use bindings::*;
