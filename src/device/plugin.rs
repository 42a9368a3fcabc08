//! The DPDK plug-in as a device: opened at run time, checked, and driven through its table.
//!
//! Owns the opened library and, by its table, EAL and one port. Runs as the device trait says: the device
//! on the thread that opens it, each queue half on its lcore. A missing or wrong plug-in is one line for
//! the operator; this crate itself is linked to no part of DPDK.
//!
//! # Safety
//! The table lies in an object that is never unloaded, and [`super::plugin_abi::ABI`] and the table's size were
//! compared before anything else of it was read. A queue pointer goes to exactly one receive half and
//! one transmit half (`queue_pair` gives each once), and both keep `Port` alive, whose end is the only
//! place that calls `stop`. A slot's memory is its owner's alone between the call that gave it and the
//! call that takes it back.

#![allow(unsafe_code)]

mod eal;
mod queue;
#[cfg(test)]
mod tests;

use core::ffi::{CStr, c_char};
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::plugin_abi::{
    ABI, CHUNKS_MAX, Chunk, ErrorText, OFFLOAD_LRO, OFFLOAD_RX_CHECKSUM, OFFLOAD_TSO,
    OFFLOAD_TX_CHECKSUM, PortFacts, SLOTS_MAX, SYMBOL, StartArgs, Stats, TRUST_CHECKSUM, Table,
};
use super::{BURST_MAX, Capabilities, Device, DeviceError, PortStats, QueuePair};
use crate::errno::Errno;
use crate::ffi::cuda::Lasting;
use eal::Shares;
use queue::{Receive, Transmit};

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

/// The plug-in beside the running program, or in the folder of libraries beside the program's own, where packages put it
/// and not every system's loader looks; else its bare name for the loader to look for.
fn beside_program() -> PathBuf {
    let program = std::env::current_exe().unwrap_or_default();
    ["", "../lib64"]
        .iter()
        .filter_map(|folder| Some(program.parent()?.join(folder).join(FILE)))
        .find(|path| path.exists())
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
    shares: Shares,
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
            rx_ring_entries: config.rx_entries(),
            tx_ring_entries: config.tx_ring_entries,
            pool_mbufs: config.mbufs(),
            mbuf_room: number(config.mbuf_room()),
            large_mbufs: number(config.large_mbufs()),
            rx_large_mbufs: number(config.rx_large_mbufs()),
            large_room: number(eal::LARGE_ROOM),
            offloads: wish(
                config.want_checksum,
                OFFLOAD_RX_CHECKSUM | OFFLOAD_TX_CHECKSUM,
            ) | wish(config.want_tso, OFFLOAD_TSO)
                | wish(config.want_lro, OFFLOAD_LRO),
            mac: config.mac.unwrap_or_default(),
            mac_set: u8::from(config.mac.is_some()),
            own_process: u8::from(config.own_process),
            rss_key: config.rss_key,
        };
        let mut facts = PortFacts::EMPTY;
        let mut text = ErrorText::EMPTY;
        // SAFETY: all three are ours and live for the call, strings and vector included.
        let rc = unsafe { (plugin.table.start)(&raw const start, &raw mut facts, &raw mut text) };
        if rc != 0 {
            let reason = until_nul(&text.bytes);
            return Err(error(format!("device {}: {reason}", config.port)));
        }
        if config.wants_to_ask_peer() && facts.offloads & OFFLOAD_TSO == 0 {
            crate::warn!(
                "device=dpdk event=peer_cannot_be_asked reason=\"this DPDK does not tell what a vhost port's peer agreed to\" \
                 now=\"no super-frames are sent\""
            );
        }
        Ok(Self {
            port: Arc::new(Port {
                table: plugin.table,
            }),
            capabilities: capabilities(&facts, config.super_bytes()),
            taken: vec![false; facts.queues as usize],
            receives_merged: facts.offloads & OFFLOAD_LRO != 0,
            mbuf_room: config.mbuf_room(),
            shares: config.shares(facts.offloads & OFFLOAD_LRO != 0),
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

/// What a started port can do; no super-frame is longer than `super_bytes`.
fn capabilities(facts: &PortFacts, super_bytes: usize) -> Capabilities {
    let has = |bit: u32| facts.offloads & bit != 0;
    Capabilities {
        mac: facts.mac,
        mtu: facts.mtu as usize,
        rx_checksum: has(OFFLOAD_RX_CHECKSUM),
        tx_checksum: has(OFFLOAD_TX_CHECKSUM),
        tso_bytes: if has(OFFLOAD_TSO) {
            super_bytes.min(facts.tso_bytes as usize)
        } else {
            0
        },
        trust_checksum: has(TRUST_CHECKSUM),
        queues: facts.queues as usize,
        rss_entries: u32::from(facts.rss_entries),
        description: until_nul(&facts.description),
    }
}

impl Device for PluginDevice {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn queue_pair(&mut self, queue: usize) -> Result<QueuePair, Errno> {
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
        let receive = Receive::new(Arc::clone(&self.port), pointer, self.shares.received);
        let transmit = Transmit::new(Arc::clone(&self.port), pointer, self.mbuf_room, self.shares);
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
            buffers: stats.buffers,
            buffers_free: stats.buffers_free,
            buffer_bytes: stats.buffer_bytes,
            buffer_bytes_free: stats.buffer_bytes_free,
        }
    }

    fn memory(&self) -> Option<Lasting> {
        let mut chunks = vec![Chunk::EMPTY; CHUNKS_MAX];
        let room = u32::try_from(CHUNKS_MAX).unwrap_or(0);
        // SAFETY: the port is started, there is room for so many chunks.
        let count = unsafe { (self.port.table.memory)(chunks.as_mut_ptr(), room) } as usize;
        if count == 0 || count > CHUNKS_MAX {
            return None;
        }
        chunks.truncate(count);
        let chunks = chunks.iter().map(|chunk| {
            (
                chunk.start.expose_provenance(),
                usize::try_from(chunk.bytes).unwrap_or(0),
            )
        });
        // SAFETY: since the call the plug-in leaves that memory mapped until the process ends.
        Some(unsafe { Lasting::new(chunks.collect()) })
    }

    fn link_up(&self) -> bool {
        // SAFETY: the port is started.
        unsafe { (self.port.table.link_up)() == 1 }
    }
}
