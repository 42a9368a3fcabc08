//! A GPU and batches without flows: what a benchmark and a test on a machine with a GPU need of the payload stage.
//!
//! Everything goes the stage's own way: the same loader, ring, modes and deadlines.

use core::time::Duration;
use std::sync::Arc;

use super::accelerator::Accelerator;
use super::offload::{Event, Offload, Prepared, Ticket};
use super::ring::{PacketRecord, PacketResult};
use super::user::UserCode;
use crate::config::payload::{Batches, Gpu, Instead, Mode};
use crate::ffi::cuda::{Module, Registered, attribute};
use crate::id::FlowId;
use crate::time::Instant;

/// A GPU, and host memory that it reaches.
#[derive(Debug)]
pub struct Rig {
    gpu: Arc<Accelerator>,
    memory: Registered,
    bytes: usize,
    library: String,
}

/// How batches are made and driven.
#[derive(Clone, Copy, Debug)]
pub struct Way {
    /// How the GPU is told of a batch; not [`Mode::Cpu`].
    pub mode: Mode,
    /// Packets of a batch.
    pub packets: usize,
    /// Batches of the ring.
    pub slots: usize,
    /// Blocks of a persistent kernel.
    pub blocks: u32,
    /// After which a batch is late.
    pub timeout: Duration,
}

/// What became of a packet, by its tag.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The kernel's result.
    Done(u64, PacketResult),
    /// The GPU is done with it and has no result.
    Failed(u64),
    /// It is late, and the GPU may still use its memory.
    Late(u64),
    /// The GPU is done with a late packet.
    Released,
}

impl Rig {
    /// Opens a GPU with the kernels of `ptx` and lets it reach `bytes` of host memory. May take seconds.
    ///
    /// # Errors
    /// One line: what is missing.
    pub fn open(library: &str, device: &str, ptx: &str, bytes: usize) -> Result<Self, String> {
        let wanted = Gpu {
            required: true,
            mode: Mode::Launch,
            in_process: true,
            device: device.to_owned(),
            driver_library: library.to_owned(),
            batches: batches(&Way {
                mode: Mode::Launch,
                packets: 1,
                slots: 1,
                blocks: 1,
                timeout: Duration::ZERO,
            }),
            on_timeout: Instead::Cpu,
            on_full: Instead::Cpu,
            pipeline: Vec::new(),
        };
        let gpu = Accelerator::shared(&wanted, ptx)?;
        let memory = Registered::new(gpu.driver, bytes).map_err(|fault| fault.to_string())?;
        Ok(Self {
            gpu,
            memory,
            bytes,
            library: library.to_owned(),
        })
    }

    /// What the driver calls the GPU.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.gpu.name
    }

    /// Facts about the GPU and its driver.
    #[must_use]
    pub fn facts(&self) -> Vec<(&'static str, String)> {
        let driver = self.gpu.driver;
        let number = |value: Result<i32, _>| match value {
            Ok(value) => value.to_string(),
            Err(_) => "unknown".to_owned(),
        };
        let fact = |wanted| number(driver.attribute(self.gpu.device, wanted));
        vec![
            ("driver_library", self.library.clone()),
            ("driver_cuda_version", number(driver.version())),
            ("capability_major", fact(attribute::CAPABILITY_MAJOR)),
            ("capability_minor", fact(attribute::CAPABILITY_MINOR)),
            ("multiprocessors", fact(attribute::MULTIPROCESSORS)),
            ("cooperative_launch", fact(attribute::COOPERATIVE_LAUNCH)),
        ]
    }

    /// Bytes of host memory that the GPU reaches.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether the GPU may still be used: three late or failed batches, or an error of the driver's, end that for good.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.gpu.is_on()
    }

    /// Copies `from` to host memory; false when it does not fit.
    #[must_use]
    pub fn put(&mut self, offset: usize, from: &[u8]) -> bool {
        self.memory.put(offset, from)
    }

    /// Copies host memory to `to`; false when there is less.
    #[must_use]
    pub fn take(&self, offset: usize, to: &mut [u8]) -> bool {
        self.memory.take(offset, to)
    }

    /// What a kernel calls the byte of host memory at `offset`.
    #[must_use]
    pub const fn address(&self, offset: usize) -> u64 {
        self.memory.device(offset).0
    }

    /// Takes device memory, for good, and copies `bytes` there.
    ///
    /// # Errors
    /// The driver's, in one line.
    pub fn upload(&self, bytes: &[u8]) -> Result<(), String> {
        let enter = self.gpu.enter().and_then(|()| self.gpu.upload(bytes));
        enter.map(|_| ()).map_err(|fault| fault.to_string())
    }

    /// Takes device memory, for good.
    ///
    /// # Errors
    /// The driver's, in one line.
    pub fn occupy(&self, bytes: usize) -> Result<(), String> {
        let taken = self.gpu.driver.alloc(bytes);
        taken.map(|_| ()).map_err(|fault| fault.to_string())
    }

    /// Puts a kernel to work; dropping the run lets it end.
    ///
    /// # Errors
    /// One line: what the driver or the GPU lacks for it.
    pub fn run(&self, kernel: &'static str, params: &[u8], way: &Way) -> Result<Run, String> {
        self.start((kernel, self.gpu.module), params, way)
    }

    /// As [`Rig::run`], with a user's function.
    pub fn run_user(&self, code: &UserCode, params: &[u8], way: &Way) -> Result<Run, String> {
        self.gpu.enter().map_err(|fault| fault.to_string())?;
        let module = self.gpu.link(code)?;
        self.start(("user", module), params, way)
    }

    fn start(&self, code: (&'static str, Module), params: &[u8], way: &Way) -> Result<Run, String> {
        self.gpu.enter().map_err(|fault| fault.to_string())?;
        let batches = batches(way);
        let offload = Prepared::new(&self.gpu, code, params, way.mode, &batches)?.start()?;
        Ok(Run {
            offload,
            events: Vec::new(),
        })
    }
}

fn batches(way: &Way) -> Batches {
    Batches {
        max_packets: way.packets,
        // Whoever fills a batch steps when it is as full as it is to be.
        max_wait: Duration::ZERO,
        slots: way.slots,
        timeout: way.timeout,
        blocks: way.blocks,
    }
}

/// A kernel at work.
#[derive(Debug)]
pub struct Run {
    offload: Offload,
    events: Vec<Event>,
}

impl Run {
    /// Whether there is a place for one more packet.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.offload.is_well() && self.offload.has_room()
    }

    /// Adds a packet to the batch that is being gathered. There must be room.
    pub fn add(&mut self, now: Instant, tag: u64, record: &PacketRecord) {
        let ticket = Ticket {
            flow: FlowId {
                index: 0,
                generation: 0,
            },
            side: 0,
            serial: tag,
            buffer: 0,
        };
        self.offload.add(now, ticket, record);
    }

    /// Hands over what was gathered, and takes what has come back. Never waits.
    pub fn step(&mut self, now: Instant, into: &mut Vec<Outcome>) {
        self.offload.step(now, &mut self.events);
        into.extend(self.events.drain(..).map(|event| match event {
            Event::Result(ticket, result) => Outcome::Done(ticket.serial, result),
            Event::Failed(ticket) => Outcome::Failed(ticket.serial),
            Event::Late(ticket) => Outcome::Late(ticket.serial),
            Event::Released(_) => Outcome::Released,
        }));
    }
}
