//! Launches made beforehand, each behind a wait for its slot: handing over is a store, and the launch for the slot's next turn is
//! paid when its results have been read.

use super::{Place, grid};
use crate::ffi::cuda::{Fault, Function, Gate, Grid};
use crate::gpu::caller::Calls;
use crate::gpu::slots::Slots;

#[derive(Debug)]
pub(super) struct Memops {
    at: Place,
    function: Function,
    grid: Grid,
    gates: Vec<Gate>,
}

impl Memops {
    pub(super) fn new(at: Place, function: Function, slots: &Slots) -> Self {
        Self {
            at,
            function,
            grid: grid(slots.packets_max()),
            gates: slots.gates(),
        }
    }

    fn post(&self, gate: &Gate) -> Result<(), Fault> {
        let Place { gpu, stream } = &self.at;
        let driver = gpu.driver;
        driver.wait_value(*stream, gate.word, gate.value)?;
        driver.launch(self.function, self.grid, gate.argument, *stream)
    }
}

impl Calls for Memops {
    fn begin(&mut self) -> Result<(), Fault> {
        self.gates.iter().try_for_each(|gate| self.post(gate))
    }

    fn enter(&mut self) -> Result<(), Fault> {
        self.at.gpu.enter()
    }

    fn reaped(&mut self, slot: usize) -> Result<(), Fault> {
        self.gates.get(slot).map_or(Ok(()), |gate| self.post(gate))
    }

    fn is_idle(&mut self) -> Result<bool, Fault> {
        self.at.is_idle()
    }
}
