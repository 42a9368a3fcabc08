//! The ways in which the GPU is told of a batch that lies ready in its slot.
//!
//! ```text
//! launch      a kernel launch a batch: methods 1 and 2 of NVIDIA's article, by who waits for it (here: nobody)
//! persistent  one kernel that stays and polls the slots: method 3
//! memops      launches made beforehand, each behind a wait for its slot: method 4 with stream memory operations
//! graph       the same for all slots of the ring as one graph: method 4 with graphs
//! ```
//!
//! Whatever the way, a batch is over when the kernel says so in the slot: nobody asks the driver.

mod graph;
mod launch;
mod memops;
mod persistent;

use core::time::Duration;
use std::sync::Arc;

use super::accelerator::Accelerator;
use super::slots::Slots;
use crate::config::payload::Mode;
use crate::ffi::cuda::{Fault, Grid, Stream};

/// One of the ways, for one ring. Its calls are made by whoever drives the lcore and never wait for the GPU.
pub(super) trait Drive: Send + core::fmt::Debug {
    /// A slot was handed over with so many packets.
    fn submit(&mut self, slots: &Slots, slot: usize, count: usize) -> Result<(), Fault>;

    /// A slot was read and is free again.
    fn reaped(&mut self, _slots: &Slots, _slot: usize) -> Result<(), Fault> {
        Ok(())
    }

    /// Lets everything that waits on the GPU end. It may take until `leave` says so.
    fn release(&mut self, slots: &mut Slots);

    /// Whether nothing is left on the GPU.
    ///
    /// # Errors
    /// What has happened to the context: nothing of it can be used again.
    fn is_over(&self, slots: &Slots) -> Result<bool, Fault>;
}

/// Starts a way of driving `slots` with the kernel of this name.
///
/// # Errors
/// One line: what the driver or the GPU lacks for it.
pub(super) fn start(
    mode: Mode,
    gpu: &Arc<Accelerator>,
    kernel: &str,
    slots: &Slots,
    blocks: u32,
) -> Result<Box<dyn Drive>, String> {
    let text = |fault: Fault| fault.to_string();
    gpu.enter().map_err(text)?;
    let stream = gpu.driver.stream().map_err(text)?;
    let at = Place {
        gpu: Arc::clone(gpu),
        stream,
    };
    let name = if mode == Mode::Persistent {
        "persistent"
    } else {
        "launch"
    };
    let function = gpu.function(kernel, name)?;
    Ok(match mode {
        Mode::Persistent => {
            Box::new(persistent::Persistent::start(at, function, slots, blocks).map_err(text)?)
        }
        Mode::Memops => Box::new(memops::Memops::start(at, function, slots).map_err(text)?),
        Mode::Graph => Box::new(graph::Graphs::start(at, function, slots).map_err(text)?),
        // The CPU has no ring.
        Mode::Launch | Mode::Cpu => Box::new(launch::Launch::new(at, function)),
    })
}

/// Where work is put.
#[derive(Debug)]
struct Place {
    gpu: Arc<Accelerator>,
    stream: Stream,
}

impl Place {
    fn is_idle(&self) -> Result<bool, Fault> {
        self.gpu.enter()?;
        self.gpu.driver.is_idle(self.stream)
    }
}

/// Threads of a block: eight warps.
const THREADS: u32 = 256;
const WARPS: u32 = THREADS / 32;

/// Blocks for so many packets, one warp each.
fn grid(packets: usize) -> Grid {
    let packets = u32::try_from(packets).unwrap_or(u32::MAX);
    Grid {
        blocks: packets.div_ceil(WARPS).max(1),
        threads: THREADS,
    }
}

/// Waits a little for the GPU to be done with `slots`; what then still runs is left to the driver. For the end of a host only.
pub(super) fn leave(drive: &mut dyn Drive, slots: &mut Slots) {
    for _ in 0..LEAVE_ROUNDS {
        drive.release(slots);
        if drive.is_over(slots) != Ok(false) {
            return;
        }
        std::thread::park_timeout(LEAVE_PAUSE);
    }
}

const LEAVE_ROUNDS: u32 = 100;
const LEAVE_PAUSE: Duration = Duration::from_millis(1);
