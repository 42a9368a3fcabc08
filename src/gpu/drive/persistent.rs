//! A kernel that stays and polls the slots: handing over is a store.

use super::{Place, THREADS};
use crate::ffi::cuda::{ABSENT, Fault, Function, Grid};
use crate::gpu::caller::Calls;
use crate::gpu::slots::Slots;

#[derive(Debug)]
pub(super) struct Persistent {
    at: Place,
}

impl Persistent {
    /// Starts it; everything that needs memory or code of the GPU must have been done before.
    pub(super) fn start(
        at: Place,
        function: Function,
        slots: &Slots,
        blocks: u32,
    ) -> Result<Self, Fault> {
        let grid = Grid {
            blocks,
            threads: THREADS,
        };
        let driver = at.gpu.driver;
        // Its blocks wait for each other, so all of them must run.
        match driver.launch_together(function, grid, slots.ring(), at.stream) {
            // A driver without that call: so few blocks run together anyway.
            Err(fault) if fault.code == ABSENT => {
                driver.launch(function, grid, slots.ring(), at.stream)?;
            }
            other => other?,
        }
        Ok(Self { at })
    }
}

impl Calls for Persistent {
    fn enter(&mut self) -> Result<(), Fault> {
        self.at.gpu.enter()
    }

    fn is_idle(&mut self) -> Result<bool, Fault> {
        self.at.is_idle()
    }
}
