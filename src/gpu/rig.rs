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
use crate::ffi::cuda::{DevicePointer, Fault, Module, Registered, attribute};
use crate::id::FlowId;
use crate::time::Instant;

/// A GPU, and host memory that it reaches.
#[derive(Debug)]
pub struct Rig {
    gpu: Arc<Accelerator>,
    memory: Registered,
    bytes: usize,
    /// Memory of the GPU's own, as much.
    resident: Option<DevicePointer>,
    library: String,
}

/// Where payload lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Memory {
    /// In host memory, which a kernel reaches over the bus.
    Host,
    /// In the GPU's own.
    Gpu,
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

/// What a registration of host memory was like.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Registration {
    /// Bytes.
    pub bytes: usize,
    /// How long the driver took; the pages were there before.
    pub took: Duration,
    /// The GPU calls them by the host's addresses.
    pub same_pointer: bool,
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
        Self::over(
            Accelerator::shared(&wanted(library, device), ptx)?,
            library,
            bytes,
        )
    }

    /// As [`Rig::open`] in a context of its own, as other CUDA code of a process has one.
    ///
    /// # Errors
    /// As there.
    pub fn apart(library: &str, device: &str, ptx: &str, bytes: usize) -> Result<Self, String> {
        Self::over(
            Accelerator::apart(&wanted(library, device), ptx)?,
            library,
            bytes,
        )
    }

    fn over(gpu: Arc<Accelerator>, library: &str, bytes: usize) -> Result<Self, String> {
        let memory = gpu
            .enter()
            .and_then(|()| Registered::new(gpu.driver, bytes))
            .map_err(|fault| fault.to_string())?;
        Ok(Self {
            gpu,
            memory,
            bytes,
            resident: None,
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

    /// Copies `from` to the beginning of a memory; the GPU's own is taken at the first time, for good.
    ///
    /// # Errors
    /// One line: it does not fit, or what the driver says.
    pub fn fill(&mut self, memory: Memory, from: &[u8]) -> Result<(), String> {
        if from.len() > self.bytes {
            return Err(format!("{} bytes, of {}", from.len(), self.bytes));
        }
        let text = |fault: Fault| fault.to_string();
        match memory {
            Memory::Host if self.memory.put(0, from) => Ok(()),
            Memory::Host => Err("the packets do not fit".to_owned()),
            Memory::Gpu => {
                self.gpu.enter().map_err(text)?;
                let resident = match self.resident {
                    Some(resident) => resident,
                    None => self.gpu.driver.alloc(self.bytes).map_err(text)?,
                };
                self.resident = Some(resident);
                self.gpu.driver.upload(resident, from).map_err(text)
            }
        }
    }

    /// Copies the beginning of a memory to `to`.
    ///
    /// # Errors
    /// As for [`Rig::fill`].
    pub fn read(&self, memory: Memory, to: &mut [u8]) -> Result<(), String> {
        let text = |fault: Fault| fault.to_string();
        match (memory, self.resident) {
            (Memory::Host, _) if self.memory.take(0, to) => Ok(()),
            (Memory::Gpu, Some(resident)) if to.len() <= self.bytes => {
                self.gpu.enter().map_err(text)?;
                self.gpu.driver.download(resident, to).map_err(text)
            }
            _ => Err("there is less".to_owned()),
        }
    }

    /// What a kernel calls the byte of host memory at `offset`.
    #[must_use]
    pub const fn address(&self, offset: usize) -> u64 {
        self.memory.device(offset).0
    }

    /// What a kernel calls the byte of a memory at `offset`; None: nothing was put there.
    #[must_use]
    pub fn address_in(&self, memory: Memory, offset: usize) -> Option<u64> {
        match memory {
            Memory::Host => Some(self.address(offset)),
            Memory::Gpu => self.resident.map(|resident| resident.plus(offset).0),
        }
    }

    /// Takes device memory, for good, and copies `bytes` there.
    ///
    /// # Errors
    /// The driver's, in one line.
    pub fn upload(&self, bytes: &[u8]) -> Result<(), String> {
        let enter = self.gpu.enter().and_then(|()| self.gpu.upload(bytes));
        enter.map(|_| ()).map_err(|fault| fault.to_string())
    }

    /// Registers memory of ours with the driver, for good, of small pages or of 2 MiB.
    ///
    /// # Errors
    /// The driver's in one line, or that there are no such pages.
    pub fn register(&self, bytes: usize, is_huge: bool) -> Result<Registration, String> {
        let enter = self.gpu.enter();
        let timed = enter.and_then(|()| Registered::timed(self.gpu.driver, bytes, is_huge));
        let (memory, took) = timed.map_err(|fault| fault.to_string())?;
        Ok(Registration {
            bytes: memory.bytes(),
            took,
            same_pointer: memory.has_own_name(),
        })
    }

    /// Links a user's function with the kernel that calls it, for good.
    ///
    /// # Errors
    /// One line: what the driver has against it.
    pub fn link(&self, code: &UserCode) -> Result<(), String> {
        self.gpu.enter().map_err(|fault| fault.to_string())?;
        self.gpu.link(code).map(|_| ())
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

/// What a config would say.
fn wanted(library: &str, device: &str) -> Gpu {
    Gpu {
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

/// What a launch of nothing takes under an emulator, as often as a ring has slots.
const LEAVE: Duration = Duration::from_secs(20);

impl Drop for Run {
    fn drop(&mut self) {
        self.offload.leave(LEAVE);
    }
}
