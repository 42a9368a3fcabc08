//! The DPDK plug-in as a device: opened at run time, checked, and driven through its table.
//!
//! Owns the opened library and, by its table, EAL and one port. Runs as the device trait says: the device
//! on the thread that opens it, each queue half on its lcore. A missing or wrong plug-in is one line for
//! the operator; this crate itself is linked to no part of DPDK.
//!
//! # Safety
//! The table lies in an object that is never unloaded, and [`plugin_abi::ABI`] and the table's size were
//! compared before anything else of it was read. A queue pointer goes to exactly one receive half and
//! one transmit half (`queue_pair` gives each once), and both keep [`Port`] alive, whose end is the only
//! place that calls `stop`. A slot's memory is its owner's alone between the call that gave it and the
//! call that takes it back.

#![allow(unsafe_code)]

mod eal;
#[cfg(test)]
mod tests;

use core::cell::Cell;
use core::ffi::{CStr, c_char};
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::plugin_abi::{
    ABI, ErrorText, OFFLOAD_LRO, OFFLOAD_RX_CHECKSUM, OFFLOAD_TSO, OFFLOAD_TX_CHECKSUM, PortFacts,
    Queue, RX_CHECKSUM_BAD, RX_CHECKSUM_GOOD, RX_CHECKSUM_PARTIAL, SLOTS_MAX, SYMBOL, Slot,
    StartArgs, Stats, TRUST_CHECKSUM, TX_CHECKSUM, Table,
};
use super::{
    BURST_MAX, Capabilities, Device, DeviceError, PortStats, RxFrame, RxMeta, RxQueue, TxMeta,
    TxQueue,
};
use crate::errno::Errno;
use crate::time::Instant;

pub use eal::{PluginConfig, PortSelector, eal_args, hugepages_suffice, vdev_for_netdev};

const _: () = assert!(SLOTS_MAX as usize == BURST_MAX);

/// The plug-in's file name.
const FILE: &str = "libknet_dpdk.so";

/// An opened plug-in whose table fits this build.
#[derive(Clone, Copy, Debug)]
pub struct Plugin {
    table: &'static Table,
}

impl Plugin {
    /// Opens the plug-in at `library`, or looks beside the running program and on the library path.
    ///
    /// # Errors
    /// The loader's own text when the file or a library it needs is missing; what is wrong when it
    /// comes from another build.
    pub fn open(library: Option<&Path>) -> Result<Self, DeviceError> {
        let path = library.map_or_else(beside_program, Path::to_path_buf);
        let name = CString::new(path.as_os_str().as_bytes())
            .map_err(|_| error("the path of the DPDK plug-in holds a NUL byte"))?;
        // SAFETY: the string ends with NUL; RTLD_GLOBAL because an under-linked driver needs our DPDK.
        let object = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
        if object.is_null() {
            return Err(error(format!(
                "cannot open the DPDK plug-in {}: {}; install DPDK (Debian: apt-get install dpdk; \
                 Fedora: dnf install dpdk) or put {FILE} of this build beside knetd",
                path.display(),
                loader_error()
            )));
        }
        // SAFETY: the object is open and stays so.
        let symbol = unsafe { libc::dlsym(object, SYMBOL.as_ptr()) };
        Self::check(symbol.cast(), &path)
    }

    /// Checks a table before its entries are looked at.
    fn check(table: *const Table, path: &Path) -> Result<Self, DeviceError> {
        if table.is_null() {
            return Err(error(format!(
                "{} is no DPDK plug-in of knet: {}",
                path.display(),
                loader_error()
            )));
        }
        // SAFETY: every version of the table begins with its version and its size.
        let [abi, size] = unsafe { table.cast::<[u32; 2]>().read() };
        if abi != ABI || size as usize != size_of::<Table>() {
            return Err(error(format!(
                "the DPDK plug-in {} has table version {abi} of {size} bytes, this program needs version \
                 {ABI} of {} bytes; install both from the same build",
                path.display(),
                size_of::<Table>()
            )));
        }
        // SAFETY: version and size are ours, and the object is never unloaded.
        let table = unsafe { &*table };
        Ok(Self { table })
    }
}

/// The plug-in beside the running program, or its bare name for the loader to look for.
fn beside_program() -> PathBuf {
    std::env::current_exe()
        .ok()
        .and_then(|program| Some(program.parent()?.join(FILE)))
        .filter(|path| path.exists())
        .unwrap_or_else(|| PathBuf::from(FILE))
}

fn loader_error() -> String {
    // SAFETY: gives a string of this thread that lives until the next loader call on it, or null.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "the loader gives no reason".to_owned();
    }
    // SAFETY: not null, ends with NUL.
    unsafe { CStr::from_ptr(text) }
        .to_string_lossy()
        .into_owned()
}

fn error(message: impl Into<String>) -> DeviceError {
    DeviceError {
        message: message.into(),
    }
}

/// The started port; stopped when the device and all its queues are gone.
#[derive(Debug)]
struct Port {
    table: &'static Table,
}

impl Drop for Port {
    fn drop(&mut self) {
        // SAFETY: nobody else holds the port, so no other call runs or follows.
        unsafe { (self.table.stop)() };
    }
}

/// An open DPDK port. One a process: EAL cannot be started twice.
#[derive(Debug)]
pub struct PluginDevice {
    port: Arc<Port>,
    capabilities: Capabilities,
    taken: Vec<bool>,
    receives_merged: bool,
    mbuf_room: usize,
}

impl PluginDevice {
    /// Opens the plug-in, starts EAL (about 150 ms) and the port. The calling thread is known to DPDK
    /// afterwards and keeps its CPUs.
    ///
    /// # Errors
    /// One line: the loader's, EAL's or the driver's reason with the last lines of DPDK's log.
    pub fn open(config: &PluginConfig) -> Result<Self, DeviceError> {
        let plugin = Plugin::open(config.library.as_deref())?;
        let hugepages = hugepages_suffice(config);
        eal::raise_limits(config, hugepages)?;
        if !config.eal_args.is_empty() {
            crate::info!(
                "device=dpdk eal_args={:?} event=passed_through",
                config.eal_args
            );
        }
        Self::start(plugin, config, &eal_args(config, hugepages))
    }

    fn start(plugin: Plugin, config: &PluginConfig, args: &[String]) -> Result<Self, DeviceError> {
        let name = config.port_name();
        let nul = |_| error(format!("device {name}: an argument holds a NUL byte"));
        let port_name = CString::new(name).map_err(nul)?;
        let strings: Vec<CString> = args
            .iter()
            .map(|arg| CString::new(arg.as_str()))
            .collect::<Result<_, _>>()
            .map_err(nul)?;
        let argv: Vec<*const c_char> = strings.iter().map(|arg| arg.as_ptr()).collect();
        let number = |value: usize| u32::try_from(value).unwrap_or(u32::MAX);
        let wish = |wanted: bool, bits: u32| if wanted { bits } else { 0 };
        let start = StartArgs {
            eal_argv: argv.as_ptr(),
            eal_argc: number(argv.len()),
            mtu: number(config.mtu),
            port_name: port_name.as_ptr(),
            queues: number(config.queues),
            rx_ring_entries: config.rx_ring_entries,
            tx_ring_entries: config.tx_ring_entries,
            pool_mbufs: config.mbufs(),
            mbuf_room: number(config.mbuf_room()),
            large_mbufs: number(config.large_mbufs()),
            large_room: number(eal::LARGE_ROOM),
            offloads: wish(
                config.want_checksum,
                OFFLOAD_RX_CHECKSUM | OFFLOAD_TX_CHECKSUM,
            ) | wish(config.want_tso, OFFLOAD_TSO)
                | wish(config.want_lro, OFFLOAD_LRO),
            mac: config.mac.unwrap_or_default(),
            mac_set: u8::from(config.mac.is_some()),
            reserved: 0,
        };
        let mut facts = PortFacts::EMPTY;
        let mut text = ErrorText::EMPTY;
        // SAFETY: all three are ours and live for the call, strings and vector included.
        let rc = unsafe { (plugin.table.start)(&raw const start, &raw mut facts, &raw mut text) };
        if rc != 0 {
            let reason = until_nul(&text.bytes);
            return Err(error(format!("device {}: {reason}", config.port)));
        }
        Ok(Self {
            port: Arc::new(Port {
                table: plugin.table,
            }),
            capabilities: capabilities(&facts),
            taken: vec![false; facts.queues as usize],
            receives_merged: facts.offloads & OFFLOAD_LRO != 0,
            mbuf_room: config.mbuf_room(),
        })
    }

    /// The port merges received TCP segments, so that a frame may be larger than the MTU.
    #[must_use]
    pub fn receives_merged(&self) -> bool {
        self.receives_merged
    }
}

fn until_nul(bytes: &[u8]) -> String {
    let text = bytes.split(|byte| *byte == 0).next().unwrap_or(bytes);
    String::from_utf8_lossy(text).into_owned()
}

fn capabilities(facts: &PortFacts) -> Capabilities {
    let has = |bit: u32| facts.offloads & bit != 0;
    Capabilities {
        mac: facts.mac,
        mtu: facts.mtu as usize,
        rx_checksum: has(OFFLOAD_RX_CHECKSUM),
        tx_checksum: has(OFFLOAD_TX_CHECKSUM),
        tso_bytes: if has(OFFLOAD_TSO) {
            facts.tso_bytes as usize
        } else {
            0
        },
        trust_checksum: has(TRUST_CHECKSUM),
        description: until_nul(&facts.description),
    }
}

impl Device for PluginDevice {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn queue_pair(&mut self, queue: usize) -> Result<(Box<dyn RxQueue>, Box<dyn TxQueue>), Errno> {
        let taken = self
            .taken
            .get_mut(queue)
            .filter(|taken| !**taken)
            .ok_or(Errno::INVAL)?;
        let index = u32::try_from(queue).map_err(|_| Errno::INVAL)?;
        // SAFETY: the port is started.
        let pointer = unsafe { (self.port.table.queue)(index) };
        if pointer.is_null() {
            return Err(Errno::INVAL);
        }
        *taken = true;
        let receive = Receive {
            port: Arc::clone(&self.port),
            queue: pointer,
        };
        let transmit = Transmit {
            port: Arc::clone(&self.port),
            queue: pointer,
            slots: [Slot::EMPTY; BURST_MAX],
            committed: 0,
            allocated: 0,
            room: 0,
            mbuf_room: self.mbuf_room,
        };
        Ok((Box::new(receive), Box::new(transmit)))
    }

    fn stats(&self) -> PortStats {
        let mut stats = Stats::default();
        // SAFETY: the port is started, the record is ours.
        unsafe { (self.port.table.stats)(&raw mut stats) };
        PortStats {
            rx_frames: stats.rx_frames,
            tx_frames: stats.tx_frames,
            rx_missed: stats
                .rx_missed
                .saturating_add(stats.rx_errors)
                .saturating_add(stats.dropped.rx_dropped_chained),
            tx_dropped: stats
                .tx_errors
                .saturating_add(stats.dropped.tx_dropped_refused)
                .saturating_add(stats.dropped.tx_dropped_malformed),
        }
    }

    fn link_up(&self) -> bool {
        // SAFETY: the port is started.
        unsafe { (self.port.table.link_up)() == 1 }
    }
}

thread_local! {
    /// This thread was made known to DPDK, or DPDK refused it for good.
    static KNOWN: Cell<bool> = const { Cell::new(false) };
}

/// Makes the calling thread known to DPDK, once: its per-thread buffer caches need it.
fn enter(table: &Table) {
    if KNOWN.replace(true) {
        return;
    }
    // SAFETY: the port is started.
    let rc = unsafe { (table.thread_enter)() };
    if rc != 0 {
        // It works all the same, without the cache.
        crate::warn!(
            "device=dpdk event=thread_not_registered errno={}",
            rc.saturating_neg()
        );
    }
}

/// The receive half.
struct Receive {
    port: Arc<Port>,
    queue: *mut Queue,
}

// SAFETY: the queue's receive calls are made through `&mut self` only; DPDK asks for one thread at a
// time, not for the same one.
unsafe impl Send for Receive {}

/// Received slots, given back at the end of the call, also by a panic of the receiver of the frames.
struct Received<'a> {
    from: &'a Receive,
    slots: [Slot; BURST_MAX],
    count: usize,
}

impl Drop for Received<'_> {
    fn drop(&mut self) {
        let count = u32::try_from(self.count).unwrap_or(0);
        // SAFETY: the first `count` slots came from `rx_burst` and no frame is borrowed any more.
        unsafe { (self.from.port.table.free)(self.from.queue, self.slots.as_ptr(), count) };
    }
}

fn rx_meta(flags: u16) -> RxMeta {
    RxMeta {
        checksum_good: flags & RX_CHECKSUM_GOOD != 0,
        checksum_bad: flags & RX_CHECKSUM_BAD != 0,
        checksum_partial: flags & RX_CHECKSUM_PARTIAL != 0,
    }
}

impl RxQueue for Receive {
    fn rx_burst(&mut self, _now: Instant, deliver: &mut dyn FnMut(&mut [RxFrame<'_>])) -> usize {
        enter(self.port.table);
        let mut slots = [Slot::EMPTY; BURST_MAX];
        // SAFETY: the queue is this half's, there is room for SLOTS_MAX slots.
        let count =
            unsafe { (self.port.table.rx_burst)(self.queue, slots.as_mut_ptr(), SLOTS_MAX) };
        if count == 0 {
            return 0;
        }
        let count = (count as usize).min(BURST_MAX);
        let received = Received {
            from: self,
            slots,
            count,
        };
        let mut frames: [RxFrame<'_>; BURST_MAX] = core::array::from_fn(|_| RxFrame {
            bytes: &mut [],
            meta: RxMeta::default(),
        });
        for (frame, slot) in frames.iter_mut().zip(received.slots.iter().take(count)) {
            // SAFETY: `len` bytes at `data` are this slot's alone until it is given back.
            frame.bytes = unsafe { core::slice::from_raw_parts_mut(slot.data, slot.len as usize) };
            frame.meta = rx_meta(slot.flags);
        }
        if let Some(frames) = frames.get_mut(..count) {
            deliver(frames);
        }
        drop(received);
        count
    }

    fn wait_fd(&self) -> Option<i32> {
        // SAFETY: the queue is this half's.
        let fd = unsafe { (self.port.table.wait_fd)(self.queue) };
        (fd >= 0).then_some(fd)
    }

    fn arm(&mut self, on: bool) {
        // SAFETY: the queue is this half's.
        let rc = unsafe { (self.port.table.arm)(self.queue, u32::from(on)) };
        if rc != 0 {
            crate::debug!(
                "device=dpdk event=not_armed on={on} errno={}",
                rc.saturating_neg()
            );
        }
    }
}

/// The transmit half. `slots` holds, from the front, committed frames, then empty buffers.
struct Transmit {
    port: Arc<Port>,
    queue: *mut Queue,
    slots: [Slot; BURST_MAX],
    /// Frames that wait for `flush`.
    committed: usize,
    /// Committed frames and empty buffers behind them.
    allocated: usize,
    /// Bytes lent by the last `alloc`.
    room: usize,
    /// Bytes of a usual buffer. Frames up to this length come from buffers taken in one go, larger
    /// ones from the few large buffers, one by one.
    mbuf_room: usize,
}

// SAFETY: as for the receive half; the slots are this half's alone.
unsafe impl Send for Transmit {}

impl Transmit {
    /// Takes buffers for the rest of the burst (for a large frame only the one that is needed).
    fn refill(&mut self, len: usize) -> bool {
        let end = if len > self.mbuf_room {
            self.committed + 1
        } else {
            BURST_MAX
        };
        let Some(free) = self.slots.get_mut(self.allocated..end) else {
            return false;
        };
        let (Ok(wanted), Ok(bytes)) = (u32::try_from(free.len()), u32::try_from(len)) else {
            return false;
        };
        // SAFETY: the queue is this half's, there is room for `wanted` slots.
        let got =
            unsafe { (self.port.table.tx_alloc)(self.queue, free.as_mut_ptr(), wanted, bytes) };
        self.allocated += (got as usize).min(free.len());
        self.allocated > self.committed
    }

    /// Gives the empty buffers back.
    fn release(&mut self) {
        if let Some(empty) = self.slots.get(self.committed..self.allocated) {
            let count = u32::try_from(empty.len()).unwrap_or(0);
            // SAFETY: these slots came from `tx_alloc` and were not sent.
            unsafe { (self.port.table.free)(self.queue, empty.as_ptr(), count) };
        }
        self.allocated = self.committed;
    }
}

impl TxQueue for Transmit {
    fn alloc(&mut self, len: usize) -> Option<&mut [u8]> {
        if self.committed == BURST_MAX {
            return None;
        }
        let fits = |slot: Option<&Slot>| slot.is_some_and(|slot| slot.len as usize >= len);
        if self.committed < self.allocated && !fits(self.slots.get(self.committed)) {
            self.release();
        }
        if self.committed == self.allocated && !self.refill(len) {
            return None;
        }
        let slot = self
            .slots
            .get(self.committed)
            .filter(|slot| slot.len as usize >= len)?;
        self.room = len;
        // SAFETY: the slot has `slot.len >= len` bytes at `data`, this half's alone until sent or freed.
        Some(unsafe { core::slice::from_raw_parts_mut(slot.data, len) })
    }

    fn commit(&mut self, len: usize, meta: TxMeta) {
        if self.committed == self.allocated {
            return;
        }
        let len = len.min(self.room);
        if let Some(slot) = self.slots.get_mut(self.committed) {
            slot.len = u32::try_from(len).unwrap_or(0);
            slot.flags = if meta.checksum_offload {
                TX_CHECKSUM
            } else {
                0
            };
            slot.segment_bytes = meta.segment_bytes;
            self.committed += 1;
            self.room = 0;
        }
    }

    fn flush(&mut self, _now: Instant) -> usize {
        let mut total = 0;
        while total < self.committed {
            let Some(rest) = self.slots.get(total..self.committed) else {
                break;
            };
            let count = u32::try_from(rest.len()).unwrap_or(0);
            // SAFETY: the queue is this half's, the slots are committed ones.
            let done = unsafe { (self.port.table.tx_burst)(self.queue, rest.as_ptr(), count) };
            if done == 0 {
                break;
            }
            total += (done as usize).min(rest.len());
        }
        self.slots.copy_within(total..self.allocated, 0);
        self.committed -= total;
        self.allocated -= total;
        total
    }

    fn room(&self) -> usize {
        BURST_MAX - self.committed
    }
}

impl Drop for Transmit {
    fn drop(&mut self) {
        self.committed = 0;
        self.release();
    }
}
