//! The ways in which the GPU is told of a batch that lies ready in its slot.
//!
//! ```text
//! launch      a kernel launch a batch, by a thread of its own: method 2 of NVIDIA's article
//! persistent  one kernel that stays and polls the slots: method 3
//! memops      launches made beforehand, each behind a wait for its slot: method 4 with stream memory operations
//! graph       the same for all slots of the ring as one graph: method 4 with graphs
//! ```
//!
//! Whatever the way, a batch is over when the kernel says so in the slot, and every call of the driver's is made by the thread of
//! [`Caller`]: a call that never returns holds nobody up.

mod graph;
mod launch;
mod memops;
mod persistent;

use core::time::Duration;
use std::sync::Arc;

use super::accelerator::Accelerator;
use super::caller::{Caller, Calls, Order};
use super::slots::Slots;
use crate::config::payload::Mode;
use crate::ffi::cuda::{Fault, Grid, Module, Stream};

/// One of the ways, for one ring. Nothing here waits but [`Drive::leave`].
#[derive(Debug)]
pub(super) struct Drive {
    mode: Mode,
    caller: Caller,
}

/// A way for which everything was taken of the GPU that it needs, and that has not begun.
#[derive(Debug)]
pub(super) struct Ready {
    mode: Mode,
    calls: Box<dyn Calls>,
    places: usize,
}

impl Ready {
    /// A way of driving `slots` with the kernel of this name in a module.
    ///
    /// # Errors
    /// One line: what the driver or the GPU lacks for it.
    pub(super) fn new(
        mode: Mode,
        gpu: &Arc<Accelerator>,
        (kernel, module): (&str, Module),
        slots: &Slots,
        blocks: u32,
    ) -> Result<Self, String> {
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
        let function = gpu.function(module, kernel, name)?;
        let calls: Box<dyn Calls> = match mode {
            Mode::Persistent => Box::new(persistent::Persistent::new(at, function, slots, blocks)),
            Mode::Memops => Box::new(memops::Memops::new(at, function, slots)),
            Mode::Graph => Box::new(graph::Graphs::new(at, function, slots).map_err(text)?),
            // The CPU has no ring.
            Mode::Launch | Mode::Cpu => Box::new(launch::Launch::new(at, function, slots)),
        };
        Ok(Self {
            mode,
            calls,
            // A slot has one order at a time; and a look.
            places: slots.count() + 2,
        })
    }

    /// Begins. Nothing may be taken of the GPU from now on, for this ring or another one: who asks for memory or code waits for
    /// what stays there.
    ///
    /// # Errors
    /// As for [`Ready::new`].
    pub(super) fn start(mut self) -> Result<Drive, String> {
        self.calls.begin().map_err(|fault| fault.to_string())?;
        Ok(Drive {
            mode: self.mode,
            caller: Caller::start(self.calls, self.places)?,
        })
    }
}

impl Drive {
    /// A slot was handed over with so many packets; false: too many orders wait.
    #[must_use]
    pub(super) fn submit(&self, slot: usize, count: usize) -> bool {
        self.mode != Mode::Launch || self.caller.post(Order::Submit { slot, count })
    }

    /// A slot was read and is free again; as [`Drive::submit`].
    #[must_use]
    pub(super) fn reaped(&self, slot: usize) -> bool {
        let again = matches!(self.mode, Mode::Memops | Mode::Graph);
        !again || self.caller.post(Order::Reaped { slot })
    }

    /// Asks how the GPU is; [`Drive::fault`] has the answer when it is a bad one.
    pub(super) fn look(&self) {
        // Who does not answer the orders before it does not answer this one.
        let _ = self.caller.post(Order::Look);
    }

    /// Whether a call has not returned.
    pub(super) fn is_stuck(&self) -> bool {
        self.caller.is_busy()
    }

    /// What a call said that was no success; it stays with the context.
    pub(super) fn fault(&self) -> Option<Fault> {
        self.caller.fault()
    }

    /// Lets everything that waits on the GPU end.
    fn release(&self, slots: &mut Slots) {
        match self.mode {
            Mode::Persistent => slots.quit(),
            Mode::Memops | Mode::Graph => slots.release_all(),
            Mode::Launch | Mode::Cpu => {}
        }
    }

    /// Waits for the GPU to be done with `slots`, about as long as `limit` says; what then still runs is left to the driver. For an end
    /// only.
    pub(super) fn leave(&self, slots: &mut Slots, limit: Duration) {
        for _ in 0..limit.as_millis() / LEAVE_PAUSE.as_millis() {
            self.release(slots);
            let ended = self.mode == Mode::Persistent && slots.has_ended();
            if ended || self.caller.is_idle() || self.caller.has_failed() {
                return;
            }
            if !self.caller.is_busy() {
                self.look();
            }
            std::thread::park_timeout(LEAVE_PAUSE);
        }
    }
}

/// Where work is put.
#[derive(Debug)]
struct Place {
    gpu: Arc<Accelerator>,
    stream: Stream,
}

impl Place {
    fn is_idle(&self) -> Result<bool, Fault> {
        self.gpu.driver.is_idle(self.stream)
    }
}

/// Threads of a block: eight warps.
pub(super) const THREADS: u32 = 256;
const WARPS: u32 = THREADS / 32;

/// Blocks for so many packets, one warp each.
fn grid(packets: usize) -> Grid {
    let packets = u32::try_from(packets).unwrap_or(u32::MAX);
    Grid {
        blocks: packets.div_ceil(WARPS).max(1),
        threads: THREADS,
    }
}

const LEAVE_PAUSE: Duration = Duration::from_millis(1);
