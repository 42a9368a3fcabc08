//! What the operator asks for.

use core::time::Duration;

use clap::{Parser, ValueEnum};
use knet::config::payload::Mode;
use knet::gpu::rig::Memory;

/// Compares the payload kernels on a GPU with their CPU versions, and measures both.
///
/// Without a GPU the CPU versions are measured. Exit status: 0 all is well, 1 something is wrong, 64 wrong use, 69 no GPU
/// (with --on gpu), 130 interrupted; what was measured until then is printed.
#[derive(Parser, Clone, Debug)]
#[command(name = "gpu-bench", version = knet::BUILD_VERSION)]
pub(crate) struct Arguments {
    /// Where to run; auto takes a GPU if there is one
    #[arg(long, value_enum, default_value_t = On::Auto)]
    pub(crate) on: On,
    /// The GPU: an index, a PCI address or a UUID
    #[arg(long, default_value = "0")]
    pub(crate) device: String,
    /// The driver's library
    #[arg(long, default_value = "libcuda.so.1", value_name = "PATH")]
    pub(crate) driver_library: String,
    /// Parts to run, in this order; all if none is named
    #[arg(long, value_enum, value_delimiter = ',')]
    parts: Vec<Part>,
    /// Kernels
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "macswap,crc32c,pattern,chacha20,stats"
    )]
    pub(crate) kernels: Vec<Kernel>,
    /// Ways to drive the GPU
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "launch,persistent,memops,graph"
    )]
    pub(crate) modes: Vec<Way>,
    /// Packets of a batch, 1 to 1024
    #[arg(long, value_delimiter = ',', default_value = "16,32,64,128,256,1024", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) batches: Vec<u32>,
    /// Bytes of payload, 1 to 16384; the first of them with every batch, the others with 32 and 1024
    #[arg(long, value_delimiter = ',', default_value = "1024,64,256,1460,8900", value_parser = clap::value_parser!(u32).range(1..=16_384))]
    pub(crate) payloads: Vec<u32>,
    /// Random literals of the kernel pattern
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) rules: u32,
    /// Milliseconds that a figure is measured
    #[arg(long, default_value_t = 500, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=60_000))]
    pub(crate) milliseconds: u64,
    /// Times that a figure is measured; the median is told, and the least and greatest
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) repeats: u32,
    /// Random batches through each kernel and mode, for the comparison
    #[arg(long, default_value_t = 40, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) rounds: u32,
    /// MiB of payload in host memory, which are used in turn
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u32).range(16..=4_096))]
    pub(crate) memory_mib: u32,
    /// Where payload lies: gpu is the GPU's own memory, which shows what the bus costs; with batches of 32 and 1024 alone
    #[arg(long, value_enum, value_delimiter = ',', default_value = "host,gpu")]
    pub(crate) memory: Vec<Place>,
    /// Threads of the CPU version, 0 to 1024; 0 is one for each CPU that this process may use
    #[arg(long, value_delimiter = ',', default_value = "1,0", value_parser = clap::value_parser!(u32).range(0..=1_024))]
    cpu_threads: Vec<u32>,
    /// Blocks of a persistent kernel, 8 packets each
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=128))]
    pub(crate) blocks: u32,
    /// Decides all that is random
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Writes everything as JSON to this file; - is stdout
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<String>,
    /// Runs one fault and says what came of it
    #[arg(long, hide = true)]
    pub(crate) fault: Option<String>,
    /// Keeps the GPU busy as a program of the operator's would, until stdin ends
    #[arg(long, hide = true)]
    pub(crate) neighbour: bool,
}

impl Arguments {
    pub(crate) fn parts(&self) -> Vec<Part> {
        if self.parts.is_empty() {
            return Part::value_variants().to_vec();
        }
        self.parts.clone()
    }

    /// Threads of each CPU figure, each number once.
    pub(crate) fn threads(&self) -> Vec<usize> {
        let all = std::thread::available_parallelism().map_or(1, usize::from);
        let mut threads: Vec<usize> = Vec::new();
        for wanted in &self.cpu_threads {
            let wanted = match wanted {
                0 => all,
                wanted => *wanted as usize,
            };
            if !threads.contains(&wanted) {
                threads.push(wanted);
            }
        }
        threads
    }

    pub(crate) const fn time(&self) -> Duration {
        Duration::from_millis(self.milliseconds)
    }
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum On {
    Auto,
    Gpu,
    Cpu,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Part {
    /// Random packets through every kernel and mode, compared with the CPU version
    Correctness,
    /// What it costs to hand one packet over, and how often a second it can be done
    Costs,
    /// How fast the GPU reads and writes host memory
    Ceilings,
    /// How long it takes to register host memory, in small pages and in hugepages, and by which addresses the GPU knows it
    Registration,
    /// Mode x batch x kernel x payload
    Sweep,
    /// Other CUDA work on the GPU at the same time, of another process and of this one
    Beside,
    /// Kernels that hang or crash, a killed process, code that is too new, too little memory
    Faults,
}

impl Part {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Correctness => "correctness",
            Self::Costs => "costs",
            Self::Ceilings => "ceilings",
            Self::Registration => "registration",
            Self::Sweep => "sweep",
            Self::Beside => "beside",
            Self::Faults => "faults",
        }
    }
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kernel {
    Pattern,
    Stats,
    Chacha20,
    Crc32c,
    Macswap,
    Peek,
    Poke,
    /// A function of docs/examples linked by the driver; in the part correctness always
    User,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    Host,
    Gpu,
}

impl Place {
    pub(crate) const fn memory(self) -> Memory {
        match self {
            Self::Host => Memory::Host,
            Self::Gpu => Memory::Gpu,
        }
    }
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    Launch,
    Persistent,
    Memops,
    Graph,
}

impl Way {
    pub(crate) const fn mode(self) -> Mode {
        match self {
            Self::Launch => Mode::Launch,
            Self::Persistent => Mode::Persistent,
            Self::Memops => Mode::Memops,
            Self::Graph => Mode::Graph,
        }
    }
}
