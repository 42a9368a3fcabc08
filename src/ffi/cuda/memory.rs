//! Memory of the GPU, and memory of ours that it reaches.
//!
//! # Safety
//! As in [`super`]: device memory is taken here and never given back; what is registered is the promise of who calls [`Driver::register`].

#![allow(unsafe_code)]

use core::ffi::{c_uint, c_void};
use core::ptr::NonNull;

use super::{DevicePointer, Driver, Fault};

/// CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP.
const REGISTER_FLAGS: c_uint = 1 | 2;

impl Driver {
    /// Memory of the GPU, zeroed, for as long as the context lives.
    pub fn alloc(&self, bytes: usize) -> Result<DevicePointer, Fault> {
        let mut pointer = 0;
        // SAFETY: the pointer is a local's.
        let code = unsafe { (self.memory_alloc)(&raw mut pointer, bytes) };
        self.said("cuMemAlloc", code)?;
        // SAFETY: device memory that was just taken, as long.
        let code = unsafe { (self.memory_fill)(pointer, 0, bytes) };
        self.said("cuMemsetD8", code)
            .map(|()| DevicePointer(pointer))
    }

    /// Copies to memory of the GPU, which the caller took by [`Driver::alloc`] and is at least as long.
    pub fn upload(&self, to: DevicePointer, from: &[u8]) -> Result<(), Fault> {
        // SAFETY: the driver reads the slice and checks the device's side.
        let code = unsafe { (self.memory_upload)(to.0, from.as_ptr().cast(), from.len()) };
        self.said("cuMemcpyHtoD", code)
    }

    /// Copies from memory of the GPU, which the caller took by [`Driver::alloc`] and is at least as long.
    pub fn download(&self, from: DevicePointer, to: &mut [u8]) -> Result<(), Fault> {
        let call = self
            .memory_download
            .ok_or_else(|| Self::absent("cuMemcpyDtoH_v2"))?;
        // SAFETY: the driver writes the slice, which is ours alone, and checks the device's side.
        let code = unsafe { call(to.as_mut_ptr().cast(), from.0, to.len()) };
        self.said("cuMemcpyDtoH", code)
    }

    /// Lets the GPU read and write `bytes` of our memory from `base` on, whole pages, and says how it calls them.
    ///
    /// # Errors
    /// 2: out of memory, or above the limit of locked memory.
    ///
    /// # Safety
    /// The memory is mapped for as long as the context lives, and nobody has a reference to what a kernel may write meanwhile.
    pub unsafe fn register(&self, base: NonNull<u8>, bytes: usize) -> Result<DevicePointer, Fault> {
        let base = base.as_ptr().cast::<c_void>();
        // SAFETY: the caller's promise.
        let code = unsafe { (self.host_register)(base, bytes, REGISTER_FLAGS) };
        self.said("cuMemHostRegister", code)?;
        let mut pointer = 0;
        // SAFETY: the first pointer is a local's; the memory was registered.
        let code = unsafe { (self.host_pointer)(&raw mut pointer, base, 0) };
        self.said("cuMemHostGetDevicePointer", code)
            .map(|()| DevicePointer(pointer))
    }
}
