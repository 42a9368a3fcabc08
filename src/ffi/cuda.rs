//! The CUDA driver's library, opened at run time: the few calls that the payload stage makes, declared by us.
//!
//! Nothing of CUDA is needed to build or to start. Codes are plain numbers, so that one of a newer driver is a number too. A call
//! of an optional group that the library lacks is a [`Fault`] like any other. May be called by any thread that rustix-level code may
//! run on; nothing here keeps a lock.
//!
//! # Safety
//! Names and signatures stand side by side in one table and are those of the driver's ABI (the `_v2` symbols of CUDA 12). The library
//! is never closed, so its functions stay. Handles are made by this file alone (their fields are private) and are never destroyed:
//! the process's end does that, because a kernel that did not end in time may still be running. The driver writes only where
//! a pointer of a live local or of the caller's exclusive slice says; what a GPU does to registered memory is the business of
//! who registers it ([`Driver::register`]).

#![allow(unsafe_code)]

mod registered;

pub use registered::Registered;

use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use core::ptr::{NonNull, null, null_mut};
use std::ffi::CString;

/// What a call of the driver says; 0 is success.
pub type Code = i32;

/// A call that did not succeed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fault {
    /// The call.
    pub call: &'static str,
    /// What it said; [`ABSENT`] when the library has no such call.
    pub code: Code,
    /// The driver's name for the code, if it has one.
    pub name: String,
}

impl core::fmt::Display for Fault {
    fn fmt(&self, out: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match (self.code, self.name.as_str()) {
            (ABSENT, _) => write!(out, "the driver has no {}", self.call),
            (code, "") => write!(out, "{} says {code}", self.call),
            (code, name) => write!(out, "{} says {code} ({name})", self.call),
        }
    }
}

/// No code of the driver's.
pub const ABSENT: Code = -1;
/// A call that has not ended yet (cuStreamQuery).
pub const NOT_READY: Code = 600;
/// The wait of [`Driver::wait_value`]: until the word is equal.
const WAIT_EQUAL: c_uint = 1;
/// CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP.
const REGISTER_FLAGS: c_uint = 1 | 2;
/// CU_CTX_MAP_HOST.
const CONTEXT_FLAGS: c_uint = 8;
/// CU_STREAM_NON_BLOCKING.
const STREAM_FLAGS: c_uint = 1;
/// CU_JIT_ERROR_LOG_BUFFER and its size.
const JIT_ERROR_LOG: c_int = 5;
const JIT_ERROR_LOG_BYTES: c_int = 6;
/// CU_STREAM_MEM_OP_WAIT_VALUE_32.
const MEM_OP_WAIT_32: c_uint = 1;

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

macro_rules! handles {
    ($($(#[$about:meta])* $name:ident($inner:ty);)+) => {
        $($(#[$about])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub struct $name($inner);)+
    };
}

handles! {
    /// A GPU.
    Device(c_int);
    /// A context.
    Context(usize);
    /// Loaded code.
    Module(usize);
    /// A kernel of a module.
    Function(usize);
    /// A queue of work.
    Stream(usize);
    /// A graph that can be launched.
    Graph(usize);
}

/// A pointer that the GPU understands.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DevicePointer(pub u64);

impl DevicePointer {
    /// `bytes` further on.
    #[must_use]
    pub const fn plus(self, bytes: usize) -> Self {
        Self(self.0 + bytes as u64)
    }
}

/// CUDA_KERNEL_NODE_PARAMS, first version.
#[repr(C)]
struct KernelNode {
    function: usize,
    grid: [c_uint; 3],
    block: [c_uint; 3],
    shared_bytes: c_uint,
    params: *mut *mut c_void,
    extra: *mut *mut c_void,
}

/// CUstreamBatchMemOpParams as a wait for a word.
#[repr(C)]
#[derive(Clone, Copy)]
struct WaitOp {
    operation: c_uint,
    address: u64,
    value: u64,
    flags: c_uint,
    alias: u64,
    rest: u64,
}

const _: () = assert!(size_of::<WaitOp>() == 48);

/// CUDA_BATCH_MEM_OP_NODE_PARAMS.
#[repr(C)]
struct MemOpNode {
    context: usize,
    count: c_uint,
    ops: *mut WaitOp,
    flags: c_uint,
}

macro_rules! table {
    (
        required { $($name:ident = $symbol:literal ($($arg:ty),*);)+ }
        optional { $($maybe:ident = $other:literal ($($part:ty),*);)+ }
    ) => {
        /// The driver's calls.
        pub struct Driver {
            $($name: unsafe extern "C" fn($($arg),*) -> Code,)+
            $($maybe: Option<unsafe extern "C" fn($($part),*) -> Code>,)+
        }

        impl Driver {
            fn resolve(object: NonNull<c_void>) -> Result<Self, &'static str> {
                Ok(Self {
                    $($name: {
                        let symbol = symbol(object, $symbol).ok_or($symbol)?;
                        // SAFETY: the driver's function of that name has this signature; it stays loaded.
                        unsafe {
                            core::mem::transmute::<*mut c_void, unsafe extern "C" fn($($arg),*) -> Code>(
                                symbol.as_ptr(),
                            )
                        }
                    },)+
                    $($maybe: symbol(object, $other).map(|symbol| {
                        // SAFETY: as above.
                        unsafe {
                            core::mem::transmute::<*mut c_void, unsafe extern "C" fn($($part),*) -> Code>(
                                symbol.as_ptr(),
                            )
                        }
                    }),)+
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
        launch_cooperative = "cuLaunchCooperativeKernel" (
            usize, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, usize, *mut *mut c_void
        );
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

fn symbol(object: NonNull<c_void>, name: &str) -> Option<NonNull<c_void>> {
    let name = CString::new(name).ok()?;
    // SAFETY: the object is open and stays so; the name ends with NUL.
    NonNull::new(unsafe { libc::dlsym(object.as_ptr(), name.as_ptr()) })
}

/// Blocks and threads of a launch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Grid {
    /// Blocks.
    pub blocks: u32,
    /// Threads of a block.
    pub threads: u32,
}

/// A wait and the kernel behind it, in a graph.
#[derive(Clone, Copy, Debug)]
pub struct Gate {
    /// The word.
    pub word: DevicePointer,
    /// What it must be.
    pub value: u32,
    /// The kernel's argument.
    pub argument: DevicePointer,
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

    fn said(&self, call: &'static str, code: Code) -> Result<(), Fault> {
        if code == 0 {
            return Ok(());
        }
        Err(Fault {
            call,
            code,
            name: self.name_of(code),
        })
    }

    const fn absent(call: &'static str) -> Fault {
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

    /// Loads PTX.
    ///
    /// # Errors
    /// 222: its version is too new for the driver; with the driver's log where there is one.
    pub fn load(&self, text: &CStr) -> Result<Module, (Fault, String)> {
        let mut module = 0;
        let mut log = [0_u8; 512];
        let mut options = [JIT_ERROR_LOG, JIT_ERROR_LOG_BYTES];
        // A size is passed in the place of a pointer.
        let bytes: *mut c_void = core::ptr::without_provenance_mut(log.len() - 1);
        let mut values = [log.as_mut_ptr().cast::<c_void>(), bytes];
        // SAFETY: the text ends with NUL; options and values are two each; the log is as long as it says.
        let code = unsafe {
            (self.module_load)(
                &raw mut module,
                text.as_ptr(),
                2,
                options.as_mut_ptr(),
                values.as_mut_ptr(),
            )
        };
        self.said("cuModuleLoadDataEx", code)
            .map(|()| Module(module))
            .map_err(|fault| {
                let log = CStr::from_bytes_until_nul(&log).unwrap_or_default();
                let first = log.to_string_lossy();
                (fault, first.lines().next().unwrap_or_default().to_owned())
            })
    }

    /// A kernel of a module.
    pub fn function(&self, module: Module, name: &CStr) -> Result<Function, Fault> {
        let mut function = 0;
        // SAFETY: the pointer is a local's, the name ends with NUL.
        let code = unsafe { (self.module_function)(&raw mut function, module.0, name.as_ptr()) };
        self.said("cuModuleGetFunction", code)
            .map(|()| Function(function))
    }

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

    /// Lets a stream wait until a word of registered memory has a value.
    pub fn wait_value(&self, stream: Stream, word: DevicePointer, value: u32) -> Result<(), Fault> {
        let call = self
            .stream_wait
            .ok_or_else(|| Self::absent("cuStreamWaitValue32_v2"))?;
        // SAFETY: no pointers of ours; the driver checks the device's.
        let code = unsafe { call(stream.0, word.0, value, WAIT_EQUAL) };
        self.said("cuStreamWaitValue32", code)
    }

    /// A graph of gates one behind the other, each with its kernel.
    pub fn graph(
        &self,
        context: Context,
        function: Function,
        grid: Grid,
        gates: &[Gate],
    ) -> Result<Graph, Fault> {
        let create = self
            .graph_create
            .ok_or_else(|| Self::absent("cuGraphCreate"))?;
        let instantiate = self
            .graph_instantiate
            .ok_or_else(|| Self::absent("cuGraphInstantiateWithFlags"))?;
        let mut graph = 0;
        // SAFETY: the pointer is a local's.
        self.said("cuGraphCreate", unsafe { create(&raw mut graph, 0) })?;
        let mut last = None;
        for gate in gates {
            let wait = self.add_wait(context, graph, last, gate)?;
            last = Some(self.add_kernel(graph, wait, function, grid, gate.argument)?);
        }
        let mut ready = 0;
        // SAFETY: the pointer is a local's.
        let code = unsafe { instantiate(&raw mut ready, graph, 0) };
        self.said("cuGraphInstantiate", code).map(|()| Graph(ready))
    }

    fn add_wait(
        &self,
        context: Context,
        graph: usize,
        behind: Option<usize>,
        gate: &Gate,
    ) -> Result<usize, Fault> {
        let call = self
            .graph_add_mem_op
            .ok_or_else(|| Self::absent("cuGraphAddBatchMemOpNode"))?;
        let mut op = WaitOp {
            operation: MEM_OP_WAIT_32,
            address: gate.word.0,
            value: u64::from(gate.value),
            flags: WAIT_EQUAL,
            alias: 0,
            rest: 0,
        };
        let params = MemOpNode {
            context: context.0,
            count: 1,
            ops: &raw mut op,
            flags: 0,
        };
        let (mut node, before) = (0, behind.unwrap_or(0));
        // SAFETY: all pointers are locals'; the driver copies what they say.
        let code = unsafe {
            call(
                &raw mut node,
                graph,
                &raw const before,
                usize::from(behind.is_some()),
                &raw const params,
            )
        };
        self.said("cuGraphAddBatchMemOpNode", code).map(|()| node)
    }

    fn add_kernel(
        &self,
        graph: usize,
        before: usize,
        function: Function,
        grid: Grid,
        argument: DevicePointer,
    ) -> Result<usize, Fault> {
        let call = self
            .graph_add_kernel
            .ok_or_else(|| Self::absent("cuGraphAddKernelNode"))?;
        let mut value = argument.0;
        let mut arguments = [(&raw mut value).cast::<c_void>()];
        let params = KernelNode {
            function: function.0,
            grid: [grid.blocks, 1, 1],
            block: [grid.threads, 1, 1],
            shared_bytes: 0,
            params: arguments.as_mut_ptr(),
            extra: null_mut(),
        };
        let mut node = 0;
        // SAFETY: as for a wait; the kernel takes one 64-bit argument.
        let code = unsafe {
            call(
                &raw mut node,
                graph,
                &raw const before,
                1,
                &raw const params,
            )
        };
        self.said("cuGraphAddKernelNode", code).map(|()| node)
    }

    /// Puts a graph into a stream.
    pub fn launch_graph(&self, graph: Graph, stream: Stream) -> Result<(), Fault> {
        let call = self
            .graph_launch
            .ok_or_else(|| Self::absent("cuGraphLaunch"))?;
        // SAFETY: no pointers.
        self.said("cuGraphLaunch", unsafe { call(graph.0, stream.0) })
    }
}
