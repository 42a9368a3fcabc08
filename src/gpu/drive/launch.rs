//! A launch a batch.

use super::{Place, grid};
use crate::ffi::cuda::{DevicePointer, Fault, Function};
use crate::gpu::caller::Calls;
use crate::gpu::slots::Slots;

#[derive(Debug)]
pub(super) struct Launch {
    at: Place,
    function: Function,
    batches: Vec<DevicePointer>,
}

impl Launch {
    pub(super) fn new(at: Place, function: Function, slots: &Slots) -> Self {
        Self {
            at,
            function,
            batches: (0..slots.count()).map(|slot| slots.batch(slot)).collect(),
        }
    }
}

impl Calls for Launch {
    fn enter(&mut self) -> Result<(), Fault> {
        self.at.gpu.enter()
    }

    fn submit(&mut self, slot: usize, count: usize) -> Result<(), Fault> {
        let Some(batch) = self.batches.get(slot) else {
            return Ok(());
        };
        let Place { gpu, stream } = &self.at;
        gpu.driver
            .launch(self.function, grid(count), *batch, *stream)
    }

    fn is_idle(&mut self) -> Result<bool, Fault> {
        self.at.is_idle()
    }
}
