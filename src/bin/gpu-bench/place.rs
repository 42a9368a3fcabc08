//! Where the figures come from: every one of them says so.

use std::fs;

use knet::gpu::rig::Rig;

use crate::arguments::{Arguments, On};

/// The kernels with those of the benchmark, made by `scripts/ptx.py`.
pub(crate) const KERNELS: &str = include_str!("../../gpu/cuda/knet_bench.ptx");
/// What the stand-in of the tests calls itself.
const STAND_IN: &str = "stand-in";

/// Where everything runs.
#[derive(Debug)]
pub(crate) enum Place {
    /// A GPU, or what stands in for one in the tests.
    Gpu(Box<Rig>),
    /// The CPU, by its name.
    Cpu(String),
}

impl Place {
    /// The GPU that is asked for.
    ///
    /// # Errors
    /// One line: what is missing.
    pub(crate) fn open(arguments: &Arguments) -> Result<Self, String> {
        if arguments.on == On::Cpu {
            return Ok(Self::cpu());
        }
        let bytes = (arguments.memory_mib as usize) << 20;
        let rig = Rig::open(&arguments.driver_library, &arguments.device, KERNELS, bytes)?;
        Ok(Self::Gpu(Box::new(rig)))
    }

    /// This machine's CPU.
    pub(crate) fn cpu() -> Self {
        let facts = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let name = facts
            .lines()
            .find_map(|line| line.strip_prefix("model name")?.split_once(": "))
            .map_or("unknown", |(_, name)| name);
        Self::Cpu(name.to_owned())
    }

    /// For each figure.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Gpu(rig) if rig.name() == STAND_IN => "stand-in for a GPU".to_owned(),
            Self::Gpu(rig) => rig.name().to_owned(),
            Self::Cpu(name) => format!("CPU {name}"),
        }
    }

    /// Whether a figure may be given as a rate of bits: only what a device did.
    pub(crate) fn is_device(&self) -> bool {
        matches!(self, Self::Gpu(rig) if rig.name() != STAND_IN)
    }

    /// Facts, for the operator.
    pub(crate) fn facts(&self) -> Vec<(&'static str, String)> {
        match self {
            Self::Gpu(rig) => rig.facts(),
            Self::Cpu(_) => Vec::new(),
        }
    }

    /// One line about it.
    pub(crate) fn line(&self) -> String {
        let facts = self.facts();
        let facts = facts.iter().map(|(name, value)| format!(" {name}={value}"));
        format!("on {}{}", self.name(), facts.collect::<String>())
    }
}
