//! All slots of the ring as one graph of waits and kernels: one launch pays for a whole round.

use super::{Place, grid};
use crate::ffi::cuda::{Fault, Function, Graph};
use crate::gpu::caller::Calls;
use crate::gpu::slots::Slots;

#[derive(Debug)]
pub(super) struct Graphs {
    at: Place,
    round: Graph,
    last: usize,
}

/// Rounds that are always under way: while the last slot of one is read the next one waits already.
const ROUNDS: usize = 2;

impl Graphs {
    pub(super) fn new(at: Place, function: Function, slots: &Slots) -> Result<Self, Fault> {
        let gates = slots.gates();
        let grid = grid(slots.packets_max());
        let (driver, context) = (at.gpu.driver, at.gpu.context);
        let round = driver.graph(context, function, grid, &gates)?;
        let last = gates.len().saturating_sub(1);
        Ok(Self { at, round, last })
    }

    fn launch(&self) -> Result<(), Fault> {
        let Place { gpu, stream } = &self.at;
        gpu.driver.launch_graph(self.round, *stream)
    }
}

impl Calls for Graphs {
    fn begin(&mut self) -> Result<(), Fault> {
        (0..ROUNDS).try_for_each(|_| self.launch())
    }

    fn enter(&mut self) -> Result<(), Fault> {
        self.at.gpu.enter()
    }

    fn reaped(&mut self, slot: usize) -> Result<(), Fault> {
        if slot < self.last {
            return Ok(());
        }
        self.launch()
    }

    fn is_idle(&mut self) -> Result<bool, Fault> {
        self.at.is_idle()
    }
}
