//! Queues of work: kernels, and waits for a word.
//!
//! # Safety
//! As in [`super`]: a kernel takes one 64-bit argument, which the driver copies before it returns.

#![allow(unsafe_code)]

use core::ffi::{c_uint, c_void};
use core::ptr::null_mut;

use super::{DevicePointer, Driver, Fault, Function, Grid, Stream};

/// A call that has not ended yet (cuStreamQuery).
pub const NOT_READY: i32 = 600;
/// The wait of [`Driver::wait_value`]: until the word is equal.
pub(super) const WAIT_EQUAL: c_uint = 1;
/// CU_STREAM_NON_BLOCKING.
const STREAM_FLAGS: c_uint = 1;

impl Driver {
    /// A stream of its own.
    pub fn stream(&self) -> Result<Stream, Fault> {
        let mut stream = 0;
        // SAFETY: the pointer is a local's.
        let code = unsafe { (self.stream_create)(&raw mut stream, STREAM_FLAGS) };
        self.said("cuStreamCreate", code).map(|()| Stream(stream))
    }

    /// Whether everything in a stream has ended.
    pub fn is_idle(&self, stream: Stream) -> Result<bool, Fault> {
        // SAFETY: no pointers.
        match unsafe { (self.stream_query)(stream.0) } {
            NOT_READY => Ok(false),
            code => self.said("cuStreamQuery", code).map(|()| true),
        }
    }

    /// Puts a kernel with one argument into a stream.
    pub fn launch(
        &self,
        function: Function,
        grid: Grid,
        argument: DevicePointer,
        stream: Stream,
    ) -> Result<(), Fault> {
        let mut value = argument.0;
        let mut arguments = [(&raw mut value).cast::<c_void>()];
        // SAFETY: the kernel takes one 64-bit argument, which the driver copies before it returns.
        let code = unsafe {
            (self.launch_kernel)(
                function.0,
                grid.blocks,
                1,
                1,
                grid.threads,
                1,
                1,
                0,
                stream.0,
                arguments.as_mut_ptr(),
                null_mut(),
            )
        };
        self.said("cuLaunchKernel", code)
    }

    /// As [`Driver::launch`] with all blocks on the GPU at once, or not at all.
    pub fn launch_together(
        &self,
        function: Function,
        grid: Grid,
        argument: DevicePointer,
        stream: Stream,
    ) -> Result<(), Fault> {
        let call = self
            .launch_cooperative
            .ok_or_else(|| Self::absent("cuLaunchCooperativeKernel"))?;
        let mut value = argument.0;
        let mut arguments = [(&raw mut value).cast::<c_void>()];
        // SAFETY: as there.
        let code = unsafe {
            call(
                function.0,
                grid.blocks,
                1,
                1,
                grid.threads,
                1,
                1,
                0,
                stream.0,
                arguments.as_mut_ptr(),
            )
        };
        self.said("cuLaunchCooperativeKernel", code)
    }

    /// Blocks of so many threads of a kernel that a multiprocessor runs at once.
    pub fn blocks_together(&self, function: Function, threads: u32) -> Result<i32, Fault> {
        let call = self
            .occupancy
            .ok_or_else(|| Self::absent("cuOccupancyMaxActiveBlocksPerMultiprocessor"))?;
        let mut blocks = 0;
        // SAFETY: the pointer is a local's.
        let code = unsafe { call(&raw mut blocks, function.0, threads.cast_signed(), 0) };
        self.said("cuOccupancyMaxActiveBlocksPerMultiprocessor", code)
            .map(|()| blocks)
    }

    /// Lets a stream wait until a word of registered memory has a value.
    pub fn wait_value(&self, stream: Stream, word: DevicePointer, value: u32) -> Result<(), Fault> {
        let call = self
            .stream_wait
            .ok_or_else(|| Self::absent("cuStreamWaitValue32_v2"))?;
        // SAFETY: no pointers of ours; the driver checks the device's.
        let code = unsafe { call(stream.0, word.0, value, WAIT_EQUAL) };
        self.said("cuStreamWaitValue32", code)
    }
}
