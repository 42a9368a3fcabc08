//! The pools of a port's buffers.

use core::ffi::{CStr, c_int};

use dpdk_sys as sys;
use dpdk_sys::abi::Stats;

use crate::eal;
use crate::table::Failure;

/// Bytes in front of a frame in each mbuf (RTE_PKTMBUF_HEADROOM of every build of DPDK).
const HEADROOM: u32 = sys::RTE_PKTMBUF_HEADROOM;

/// Adds what a pool has; null has nothing.
pub(super) fn add(out: &mut Stats, pool: *mut sys::rte_mempool) {
    // SAFETY: null, or one of the port's pools, which live as long as it does; these fields are never written again.
    let Some(facts) = (unsafe { pool.as_ref() }) else {
        return;
    };
    // SAFETY: the pool lives; its rings and caches are counted without a lock.
    let free = u64::from(unsafe { sys::rte_mempool_avail_count(pool) });
    let bytes = [facts.header_size, facts.elt_size, facts.trailer_size];
    let bytes: u64 = bytes.into_iter().map(u64::from).sum();
    out.buffers += u64::from(facts.size);
    out.buffers_free += free;
    out.buffer_bytes += u64::from(facts.size) * bytes;
    out.buffer_bytes_free += free * bytes;
}

/// Makes a pool of `count` buffers with room for `room` bytes of a frame; `copies`: for a driver that
/// copies each frame, for which no buffer has to be contiguous.
pub(super) fn make(
    name: &CStr,
    (count, cache): (u32, u32),
    room: u32,
    socket: c_int,
    copies: bool,
) -> Result<*mut sys::rte_mempool, Failure> {
    let bytes = u16::try_from(room.saturating_add(HEADROOM))
        .map_err(|_| Failure::new(-22, format!("buffers of {room} bytes are too large")))?;
    let pool = if copies {
        // SAFETY: EAL is up, the name ends with NUL.
        unsafe { sys::knet_copied_pool(name.as_ptr(), count, cache, bytes, socket) }
    } else {
        // SAFETY: the same.
        unsafe { sys::rte_pktmbuf_pool_create(name.as_ptr(), count, cache, 0, bytes, socket) }
    };
    if pool.is_null() {
        let errno = eal::errno();
        let what = format!("no memory for {count} buffers of {bytes} bytes");
        return Err(Failure::new(-errno, eal::describe(&what, errno)));
    }
    Ok(pool)
}
