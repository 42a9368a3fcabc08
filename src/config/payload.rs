//! The payload stage, as checked.

use core::net::Ipv4Addr;
use core::time::Duration;

/// `gpu`
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Gpu {
    /// `gpu.required`
    pub required: bool,
    /// `gpu.mode`
    pub mode: Mode,
    /// `gpu.in_process`
    pub in_process: bool,
    /// `gpu.device`
    pub device: String,
    /// `gpu.driver_library`
    pub driver_library: String,
    /// `gpu.batch_packets` and its neighbours.
    pub batches: Batches,
    /// `gpu.on_timeout`
    pub on_timeout: Instead,
    /// `gpu.on_full`
    pub on_full: Instead,
    /// `gpu.pipeline`, in order; 1 to 16 of them.
    pub pipeline: Vec<PayloadRule>,
}

/// Where the kernels run, and how a GPU is told of a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// On the CPU.
    Cpu,
    /// A launch a batch.
    Launch,
    /// A kernel that polls the ring.
    Persistent,
    /// Launches made beforehand, behind stream memory operations.
    Memops,
    /// The same in a graph.
    Graph,
}

impl Mode {
    /// As the file writes it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Launch => "launch",
            Self::Persistent => "persistent",
            Self::Memops => "memops",
            Self::Graph => "graph",
        }
    }
}

impl Gpu {
    /// The same for a host inside the program: on the CPU, unless the file lets a program use the GPU.
    #[must_use]
    pub fn inside_a_program(&self) -> Self {
        let mut inside = self.clone();
        if !self.in_process {
            inside.mode = Mode::Cpu;
        }
        inside
    }
}

#[cfg(test)]
impl Gpu {
    /// A stage of these rules in mode `cpu`.
    pub(crate) fn on_cpu(pipeline: Vec<PayloadRule>) -> Self {
        Self {
            required: false,
            mode: Mode::Cpu,
            in_process: false,
            device: "0".to_owned(),
            driver_library: "libcuda.so.1".to_owned(),
            batches: Batches {
                max_packets: 32,
                max_wait: Duration::from_micros(20),
                slots: 4,
                timeout: Duration::from_secs(10),
                blocks: 2,
            },
            on_timeout: Instead::Cpu,
            on_full: Instead::Cpu,
            pipeline,
        }
    }
}

/// How chunks go to a GPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Batches {
    /// `gpu.batch_packets`: 1 to 1 024 chunks.
    pub max_packets: usize,
    /// `gpu.batch_wait_us`
    pub max_wait: Duration,
    /// `gpu.batch_slots`: 1 to 1 024 batches.
    pub slots: usize,
    /// `gpu.timeout_us`
    pub timeout: Duration,
    /// `gpu.persistent_blocks`
    pub blocks: u32,
}

/// What is done with payload that the GPU does not take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Instead {
    /// The CPU version judges it.
    Cpu,
    /// It passes unjudged, and is counted.
    Bypass,
    /// Its flow is reset, because a stream cannot lose bytes; a segment is dropped.
    Drop,
    /// It waits; the peer's window closes, the program's send buffer fills, the port's ring does.
    Wait,
}

/// One entry of `gpu.pipeline`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PayloadRule {
    /// Its JSON path, for messages.
    pub path: String,
    /// `kernel`
    pub kernel: Kernel,
    /// It is for received bytes.
    pub rx: bool,
    /// It is for sent bytes.
    pub tx: bool,
    /// `attach`
    pub attach: Attach,
    /// Ports at either end; empty: all.
    pub ports: Vec<u16>,
    /// The peer's networks with their prefix lengths; empty: all.
    pub networks: Vec<(Ipv4Addr, u8)>,
    /// Segments with less payload are passed over.
    pub min_payload: u16,
}

/// `kernel`, with what it needs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Kernel {
    /// `pattern`
    Pattern {
        /// The file with the literals.
        file: String,
        /// What a match does.
        on_match: OnMatch,
    },
    /// `stats`
    Stats,
    /// `chacha20`
    Chacha20 {
        /// The file with the key.
        key_file: String,
    },
    /// `crc32c`
    Crc32c,
    /// `user`
    User(User),
}

impl Kernel {
    /// Whether it changes payload, which then must not go on without it.
    #[must_use]
    pub const fn writes(&self) -> bool {
        match self {
            Self::Chacha20 { .. } => true,
            Self::User(user) => user.writes,
            Self::Pattern { .. } | Self::Stats | Self::Crc32c => false,
        }
    }
}

/// `kernel` `user`
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct User {
    /// `ptx_file`
    pub file: String,
    /// `function`
    pub function: String,
    /// `writes`
    pub writes: bool,
    /// What KNET_MATCH does.
    pub on_match: OnMatch,
    /// Where KNET_MIRROR copies to; empty: nowhere.
    pub mirror_file: String,
    /// `without_gpu`
    pub without: WithoutGpu,
}

/// `without_gpu`
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WithoutGpu {
    /// The port does not open; later, flows are reset.
    Refuse,
    /// Payload passes unjudged, and is counted.
    Pass,
}

/// `attach`
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Attach {
    /// Bytes in stream order, each once.
    Stream,
    /// The payload of each segment on the wire.
    Packet,
}

/// `on_match`
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum OnMatch {
    /// Nothing but a counter.
    Pass,
    /// The segment is dropped; a flow that has lost too many is reset.
    Drop,
    /// Both ends are reset.
    Reset,
    /// A log line with this number.
    Mark(u32),
    /// A copy into this pcap file.
    Mirror(String),
}
