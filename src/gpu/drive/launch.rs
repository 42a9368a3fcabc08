//! A launch a batch.

use super::{Drive, Place, grid};
use crate::ffi::cuda::{Fault, Function};
use crate::gpu::slots::Slots;

#[derive(Debug)]
pub(super) struct Launch {
    at: Place,
    function: Function,
}

impl Launch {
    pub(super) const fn new(at: Place, function: Function) -> Self {
        Self { at, function }
    }
}

impl Drive for Launch {
    fn submit(&mut self, slots: &Slots, slot: usize, count: usize) -> Result<(), Fault> {
        let Place { gpu, stream } = &self.at;
        gpu.enter()?;
        gpu.driver
            .launch(self.function, grid(count), slots.batch(slot), *stream)
    }

    fn release(&mut self, _: &mut Slots) {}

    fn is_over(&self, _: &Slots) -> Result<bool, Fault> {
        self.at.is_idle()
    }
}
