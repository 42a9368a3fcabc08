//! A kernel that stays and polls the slots: handing over is a store.

use super::{Place, THREADS};
use crate::ffi::cuda::{ABSENT, DevicePointer, Fault, Function, Grid};
use crate::gpu::caller::Calls;
use crate::gpu::slots::Slots;

#[derive(Debug)]
pub(super) struct Persistent {
    at: Place,
    function: Function,
    grid: Grid,
    ring: DevicePointer,
}

impl Persistent {
    pub(super) const fn new(at: Place, function: Function, slots: &Slots, blocks: u32) -> Self {
        let grid = Grid {
            blocks,
            threads: THREADS,
        };
        Self {
            at,
            function,
            grid,
            ring: slots.ring(),
        }
    }
}

impl Calls for Persistent {
    fn begin(&mut self) -> Result<(), Fault> {
        let Place { gpu, stream } = &self.at;
        let driver = gpu.driver;
        // Its blocks wait for each other, so all of them must run.
        match driver.launch_together(self.function, self.grid, self.ring, *stream) {
            // A driver without that call: so few blocks run together anyway.
            Err(fault) if fault.code == ABSENT => {
                driver.launch(self.function, self.grid, self.ring, *stream)
            }
            other => other,
        }
    }

    fn enter(&mut self) -> Result<(), Fault> {
        self.at.gpu.enter()
    }

    fn is_idle(&mut self) -> Result<bool, Fault> {
        self.at.is_idle()
    }
}
