//! The table of a build without DPDK: it loads, and `start` says what is missing.

use dpdk_sys::abi::{
    ABI, Chunk, ErrorText, PortFacts, Queue, Slot, StartArgs, Stats, TABLE_BYTES, Table,
};

pub(crate) const TABLE: Table = Table {
    abi: ABI,
    size: TABLE_BYTES,
    start,
    queue,
    thread_enter,
    thread_leave,
    thread_borrow: thread_leave,
    thread_return: thread_leave,
    rx_burst,
    free,
    tx_alloc,
    tx_burst,
    tx_cuts,
    wait_fd,
    arm,
    stats,
    link_up,
    stop,
    memory,
};

/// ENOSYS, the same on every Linux.
const ENOSYS: i32 = 38;

unsafe extern "C" fn start(_: *const StartArgs, _: *mut PortFacts, error: *mut ErrorText) -> i32 {
    // SAFETY: the host gives a buffer of its own, or null.
    if let Some(error) = unsafe { error.as_mut() } {
        crate::report(
            error,
            "libknet_dpdk.so was built without DPDK; install DPDK's development files and libclang \
             (Debian: libdpdk-dev libclang-dev; Fedora: dpdk-devel clang-devel) and build again",
        );
    }
    -ENOSYS
}

unsafe extern "C" fn queue(_: u32) -> *mut Queue {
    core::ptr::null_mut()
}

unsafe extern "C" fn thread_enter() -> i32 {
    -ENOSYS
}

unsafe extern "C" fn thread_leave() {}

unsafe extern "C" fn rx_burst(_: *mut Queue, _: *mut Slot, _: u32) -> u32 {
    0
}

unsafe extern "C" fn free(_: *mut Queue, _: *const Slot, _: u32) {}

unsafe extern "C" fn tx_alloc(_: *mut Queue, _: *mut Slot, _: u32, _: u32) -> u32 {
    0
}

unsafe extern "C" fn tx_burst(_: *mut Queue, _: *const Slot, _: u32) -> u32 {
    0
}

unsafe extern "C" fn tx_cuts(_: *mut Queue) -> u32 {
    0
}

unsafe extern "C" fn wait_fd(_: *mut Queue) -> i32 {
    -1
}

unsafe extern "C" fn arm(_: *mut Queue, _: u32) -> i32 {
    -ENOSYS
}

unsafe extern "C" fn stats(_: *mut Stats) {}

unsafe extern "C" fn link_up() -> i32 {
    0
}

unsafe extern "C" fn stop() {}

unsafe extern "C" fn memory(_: *mut Chunk, _: u32) -> u32 {
    0
}
