//! Waits and kernels as a graph that is launched as one.
//!
//! # Safety
//! As in [`super`]: every pointer is a local's and lives for the call; the driver copies what the structures say.

#![allow(unsafe_code)]

use core::ffi::{c_uint, c_void};
use core::ptr::null_mut;

use super::stream::WAIT_EQUAL;
use super::{Context, DevicePointer, Driver, Fault, Function, Graph, Grid, Stream};

/// CU_STREAM_MEM_OP_WAIT_VALUE_32.
const MEM_OP_WAIT_32: c_uint = 1;

/// CUDA_KERNEL_NODE_PARAMS, first version.
#[repr(C)]
pub(super) struct KernelNode {
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
pub(super) struct MemOpNode {
    context: usize,
    count: c_uint,
    ops: *mut WaitOp,
    flags: c_uint,
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
