//! The library and its calls by their names.
//!
//! # Safety
//! As in [`super`]: names and signatures stand side by side, and the library is never closed.

#![allow(unsafe_code)]

use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use core::mem::transmute_copy;
use core::ptr::{NonNull, null};
use std::ffi::CString;

use super::graph::{KernelNode, MemOpNode};
use super::{ABSENT, Code, Fault};

macro_rules! table {
    (
        required { $($name:ident = $symbol:literal ($($arg:ty),*);)+ }
        optional { $($maybe:ident = $other:literal ($($part:ty),*);)+ }
    ) => {
        /// The driver's calls.
        pub struct Driver {
            $(pub(super) $name: unsafe extern "C" fn($($arg),*) -> Code,)+
            $(pub(super) $maybe: Option<unsafe extern "C" fn($($part),*) -> Code>,)+
        }

        impl Driver {
            fn resolve(object: NonNull<c_void>) -> Result<Self, &'static str> {
                Ok(Self {
                    // SAFETY: the driver's function of that name has this signature; it stays loaded.
                    $($name: unsafe { symbol(object, $symbol) }.ok_or($symbol)?,)+
                    // SAFETY: as above.
                    $($maybe: unsafe { symbol(object, $other) },)+
                })
            }
        }
    };
}

table! {
    required {
        init = "cuInit" (c_uint);
        driver_version = "cuDriverGetVersion" (*mut c_int);
        device_count = "cuDeviceGetCount" (*mut c_int);
        device_get = "cuDeviceGet" (*mut c_int, c_int);
        device_name = "cuDeviceGetName" (*mut c_char, c_int, c_int);
        device_by_pci = "cuDeviceGetByPCIBusId" (*mut c_int, *const c_char);
        device_uuid = "cuDeviceGetUuid" (*mut [u8; 16], c_int);
        device_attribute = "cuDeviceGetAttribute" (*mut c_int, c_int, c_int);
        context_create = "cuCtxCreate_v2" (*mut usize, c_uint, c_int);
        context_set = "cuCtxSetCurrent" (usize);
        module_load = "cuModuleLoadDataEx" (*mut usize, *const c_char, c_uint, *mut c_int, *mut *mut c_void);
        module_function = "cuModuleGetFunction" (*mut usize, usize, *const c_char);
        memory_alloc = "cuMemAlloc_v2" (*mut u64, usize);
        memory_upload = "cuMemcpyHtoD_v2" (u64, *const c_void, usize);
        memory_fill = "cuMemsetD8_v2" (u64, u8, usize);
        host_register = "cuMemHostRegister_v2" (*mut c_void, usize, c_uint);
        host_pointer = "cuMemHostGetDevicePointer_v2" (*mut u64, *mut c_void, c_uint);
        stream_create = "cuStreamCreate" (*mut usize, c_uint);
        stream_query = "cuStreamQuery" (usize);
        launch_kernel = "cuLaunchKernel" (
            usize, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, usize, *mut *mut c_void, *mut *mut c_void
        );
    }
    optional {
        error_name = "cuGetErrorName" (c_int, *mut *const c_char);
        memory_download = "cuMemcpyDtoH_v2" (*mut c_void, u64, usize);
        launch_cooperative = "cuLaunchCooperativeKernel" (
            usize, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, usize, *mut *mut c_void
        );
        occupancy = "cuOccupancyMaxActiveBlocksPerMultiprocessor" (*mut c_int, usize, c_int, usize);
        link_create = "cuLinkCreate_v2" (c_uint, *mut c_int, *mut *mut c_void, *mut usize);
        link_add = "cuLinkAddData_v2" (
            usize, c_uint, *mut c_void, usize, *const c_char, c_uint, *mut c_int, *mut *mut c_void
        );
        link_complete = "cuLinkComplete" (usize, *mut *mut c_void, *mut usize);
        link_destroy = "cuLinkDestroy" (usize);
        stream_wait = "cuStreamWaitValue32_v2" (usize, u64, u32, c_uint);
        graph_create = "cuGraphCreate" (*mut usize, c_uint);
        graph_add_kernel = "cuGraphAddKernelNode" (*mut usize, usize, *const usize, usize, *const KernelNode);
        graph_add_mem_op = "cuGraphAddBatchMemOpNode" (*mut usize, usize, *const usize, usize, *const MemOpNode);
        graph_instantiate = "cuGraphInstantiateWithFlags" (*mut usize, usize, u64);
        graph_launch = "cuGraphLaunch" (usize, usize);
    }
}

impl core::fmt::Debug for Driver {
    fn fmt(&self, out: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        out.debug_struct("Driver").finish_non_exhaustive()
    }
}

/// The function of this name; None when the library has none.
///
/// # Safety
/// `F` is the type of a pointer to that function.
unsafe fn symbol<F: Copy>(object: NonNull<c_void>, name: &str) -> Option<F> {
    const { assert!(size_of::<F>() == size_of::<NonNull<c_void>>()) };
    let name = CString::new(name).ok()?;
    // SAFETY: the object is open and stays so; the name ends with NUL.
    let found = NonNull::new(unsafe { libc::dlsym(object.as_ptr(), name.as_ptr()) })?;
    // SAFETY: as large, and the caller's promise.
    Some(unsafe { transmute_copy::<NonNull<c_void>, F>(&found) })
}

impl Driver {
    /// Opens the library and finds its calls; it stays open for good.
    ///
    /// # Errors
    /// One line: the loader's text, or the first call that is missing.
    pub fn open(path: &str) -> Result<&'static Self, String> {
        let name = CString::new(path).map_err(|_| "a path with a NUL byte".to_owned())?;
        // SAFETY: the string ends with NUL.
        let object = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        let Some(object) = NonNull::new(object) else {
            // SAFETY: no arguments; the text is copied before another call.
            let text = unsafe { libc::dlerror() };
            if text.is_null() {
                return Err(format!("{path} cannot be opened"));
            }
            // SAFETY: not null: a string of the loader's that ends with NUL.
            let text = unsafe { CStr::from_ptr(text) };
            return Err(text.to_string_lossy().into_owned());
        };
        match Self::resolve(object) {
            Ok(driver) => Ok(Box::leak(Box::new(driver))),
            Err(missing) => Err(format!("{path} has no {missing}")),
        }
    }

    pub(super) fn said(&self, call: &'static str, code: Code) -> Result<(), Fault> {
        if code == 0 {
            return Ok(());
        }
        Err(Fault {
            call,
            code,
            name: self.name_of(code),
        })
    }

    pub(super) const fn absent(call: &'static str) -> Fault {
        Fault {
            call,
            code: ABSENT,
            name: String::new(),
        }
    }

    fn name_of(&self, code: Code) -> String {
        let Some(call) = self.error_name else {
            return String::new();
        };
        let mut text: *const c_char = null();
        // SAFETY: the pointer is a local's.
        let known = unsafe { call(code, &raw mut text) } == 0 && !text.is_null();
        if !known {
            return String::new();
        }
        // SAFETY: a constant string of the driver's.
        let text = unsafe { CStr::from_ptr(text) };
        text.to_string_lossy().into_owned()
    }
}
