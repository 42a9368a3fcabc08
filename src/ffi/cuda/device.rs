//! GPUs, what is known of them, and a context on one.
//!
//! # Safety
//! As in [`super`]: every pointer is a local's and lives for the call.

#![allow(unsafe_code)]

use core::ffi::{CStr, c_uint};

use super::{Context, Device, Driver, Fault};

/// CU_CTX_MAP_HOST.
const CONTEXT_FLAGS: c_uint = 8;

/// Attributes of a device (CUdevice_attribute).
pub mod attribute {
    /// Host memory can be mapped.
    pub const CAN_MAP_HOST_MEMORY: i32 = 19;
    /// Multiprocessors.
    pub const MULTIPROCESSORS: i32 = 16;
    /// First number of the compute capability.
    pub const CAPABILITY_MAJOR: i32 = 75;
    /// Second number.
    pub const CAPABILITY_MINOR: i32 = 76;
    /// Blocks can be launched together.
    pub const COOPERATIVE_LAUNCH: i32 = 95;
}

impl Driver {
    /// Starts the driver; may take long, and may start a helper process of the driver's.
    ///
    /// # Errors
    /// 100: no device, 34: a stub library, ...
    pub fn init(&self) -> Result<(), Fault> {
        // SAFETY: no pointers.
        self.said("cuInit", unsafe { (self.init)(0) })
    }

    /// The newest CUDA that the driver knows, as 1000 * major + 10 * minor.
    ///
    /// # Errors
    /// What the driver says, as for every call below.
    pub fn version(&self) -> Result<i32, Fault> {
        let mut version = 0;
        // SAFETY: the pointer is a local's.
        let code = unsafe { (self.driver_version)(&raw mut version) };
        self.said("cuDriverGetVersion", code).map(|()| version)
    }

    /// How many GPUs there are.
    pub fn count(&self) -> Result<i32, Fault> {
        let mut count = 0;
        // SAFETY: the pointer is a local's.
        let code = unsafe { (self.device_count)(&raw mut count) };
        self.said("cuDeviceGetCount", code).map(|()| count)
    }

    /// The GPU with this index.
    pub fn device(&self, index: i32) -> Result<Device, Fault> {
        let mut device = 0;
        // SAFETY: the pointer is a local's.
        let code = unsafe { (self.device_get)(&raw mut device, index) };
        self.said("cuDeviceGet", code).map(|()| Device(device))
    }

    /// The GPU at a PCI address.
    pub fn device_at(&self, address: &CStr) -> Result<Device, Fault> {
        let mut device = 0;
        // SAFETY: the first pointer is a local's, the string ends with NUL.
        let code = unsafe { (self.device_by_pci)(&raw mut device, address.as_ptr()) };
        self.said("cuDeviceGetByPCIBusId", code)
            .map(|()| Device(device))
    }

    /// A GPU's UUID.
    pub fn uuid(&self, device: Device) -> Result<[u8; 16], Fault> {
        let mut uuid = [0; 16];
        // SAFETY: the pointer is a local's, of the 16 bytes of a CUuuid.
        let code = unsafe { (self.device_uuid)(&raw mut uuid, device.0) };
        self.said("cuDeviceGetUuid", code).map(|()| uuid)
    }

    /// A GPU's name.
    pub fn name(&self, device: Device) -> Result<String, Fault> {
        let mut text = [0_u8; 128];
        // SAFETY: the buffer is a local's and 128 bytes long.
        let code = unsafe { (self.device_name)(text.as_mut_ptr().cast(), 127, device.0) };
        self.said("cuDeviceGetName", code)?;
        let text = CStr::from_bytes_until_nul(&text).unwrap_or_default();
        Ok(text.to_string_lossy().into_owned())
    }

    /// One of [`attribute`].
    pub fn attribute(&self, device: Device, attribute: i32) -> Result<i32, Fault> {
        let mut value = 0;
        // SAFETY: the pointer is a local's.
        let code = unsafe { (self.device_attribute)(&raw mut value, attribute, device.0) };
        self.said("cuDeviceGetAttribute", code).map(|()| value)
    }

    /// A context of our own, current on the calling thread.
    pub fn context(&self, device: Device) -> Result<Context, Fault> {
        let mut context = 0;
        // SAFETY: the pointer is a local's.
        let code = unsafe { (self.context_create)(&raw mut context, CONTEXT_FLAGS, device.0) };
        self.said("cuCtxCreate", code).map(|()| Context(context))
    }

    /// Makes a context the calling thread's.
    pub fn enter(&self, context: Context) -> Result<(), Fault> {
        // SAFETY: no pointers.
        self.said("cuCtxSetCurrent", unsafe { (self.context_set)(context.0) })
    }
}
