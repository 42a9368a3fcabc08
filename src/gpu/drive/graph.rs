//! All slots of the ring as one graph of waits and kernels: one launch pays for a whole round.

use super::{Drive, Place, grid};
use crate::ffi::cuda::{Fault, Function, Gate, Graph};
use crate::gpu::ring::status;
use crate::gpu::slots::Slots;

#[derive(Debug)]
pub(super) struct Graphs {
    at: Place,
    round: Graph,
}

/// Rounds that are always under way: while the last slot of one is read the next one waits already.
const ROUNDS: usize = 2;

impl Graphs {
    pub(super) fn start(at: Place, function: Function, slots: &Slots) -> Result<Self, Fault> {
        let gates: Vec<Gate> = (0..slots.count())
            .map(|slot| Gate {
                word: slots.word(slot),
                value: status::READY,
                argument: slots.batch(slot),
            })
            .collect();
        let grid = grid(slots.packets_max());
        let (driver, context) = (at.gpu.driver, at.gpu.context);
        let round = driver.graph(context, function, grid, &gates)?;
        for _ in 0..ROUNDS {
            driver.launch_graph(round, at.stream)?;
        }
        Ok(Self { at, round })
    }
}

impl Drive for Graphs {
    fn submit(&mut self, _: &Slots, _: usize, _: usize) -> Result<(), Fault> {
        Ok(())
    }

    fn reaped(&mut self, slots: &Slots, slot: usize) -> Result<(), Fault> {
        if slot + 1 < slots.count() {
            return Ok(());
        }
        let Place { gpu, stream } = &self.at;
        gpu.enter()?;
        gpu.driver.launch_graph(self.round, *stream)
    }

    fn release(&mut self, slots: &mut Slots) {
        slots.release_all();
    }

    fn is_over(&self, _: &Slots) -> Result<bool, Fault> {
        self.at.is_idle()
    }
}
