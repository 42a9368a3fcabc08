//! Launches made beforehand, each behind a wait for its slot: handing over is a store, and the launch for the slot's next turn is
//! paid when its results have been read.

use super::{Drive, Place, grid};
use crate::ffi::cuda::{Fault, Function};
use crate::gpu::ring::status;
use crate::gpu::slots::Slots;

#[derive(Debug)]
pub(super) struct Memops {
    at: Place,
    function: Function,
}

impl Memops {
    pub(super) fn start(at: Place, function: Function, slots: &Slots) -> Result<Self, Fault> {
        let made = Self { at, function };
        for slot in 0..slots.count() {
            made.post(slots, slot)?;
        }
        Ok(made)
    }

    fn post(&self, slots: &Slots, slot: usize) -> Result<(), Fault> {
        let Place { gpu, stream } = &self.at;
        let driver = gpu.driver;
        driver.wait_value(*stream, slots.word(slot), status::READY)?;
        let grid = grid(slots.packets_max());
        driver.launch(self.function, grid, slots.batch(slot), *stream)
    }
}

impl Drive for Memops {
    fn submit(&mut self, _: &Slots, _: usize, _: usize) -> Result<(), Fault> {
        Ok(())
    }

    fn reaped(&mut self, slots: &Slots, slot: usize) -> Result<(), Fault> {
        self.at.gpu.enter()?;
        self.post(slots, slot)
    }

    fn release(&mut self, slots: &mut Slots) {
        slots.release_all();
    }

    fn is_over(&self, _: &Slots) -> Result<bool, Fault> {
        self.at.is_idle()
    }
}
