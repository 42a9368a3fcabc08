//! Packets of a kernel with what the CPU version makes of them.

use std::net::SocketAddrV4;

use knet::gpu::rig::{Rig, Run, Way};
use knet::gpu::ring::{PacketRecord, PacketResult};
use knet::gpu::{Builtin, Chunk, Direction, Ends, KernelState, PayloadKernel, UserCode};

use crate::arguments::{Arguments, Kernel};

/// A generator that a seed decides (splitmix64).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) const fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.word() % (end.max(1) as u64)).unwrap_or(0)
    }

    pub(crate) fn fill(&mut self, bytes: &mut [u8]) {
        for piece in bytes.chunks_mut(8) {
            for (byte, random) in piece.iter_mut().zip(self.word().to_le_bytes()) {
                *byte = random;
            }
        }
    }
}

/// A kernel with its CPU version.
pub(crate) struct Subject {
    pub(crate) name: &'static str,
    /// It changes payload; twice gives it back.
    pub(crate) writes: bool,
    pub(crate) cpu: Box<dyn PayloadKernel>,
    pub(crate) params: Vec<u8>,
    /// What the driver links.
    code: Option<UserCode>,
}

/// Its PTX.
const EXAMPLE: &str = include_str!("../../../docs/examples/count_zeros.ptx");

impl Subject {
    pub(crate) fn new(kernel: Kernel, arguments: &Arguments) -> Result<Self, String> {
        let builtin = match kernel {
            Kernel::Pattern => Builtin::Pattern(rules(arguments)),
            Kernel::Stats => Builtin::Stats,
            Kernel::Chacha20 => Builtin::Chacha20([0x5a; 32]),
            Kernel::Crc32c => Builtin::Crc32c,
            Kernel::Macswap => Builtin::Macswap,
            Kernel::Peek => Builtin::Peek,
            Kernel::Poke => Builtin::Poke,
            Kernel::User => Builtin::CountZeros,
        };
        let code = match kernel {
            Kernel::User => Some(example()?),
            _ => None,
        };
        let mut cpu = builtin.build()?;
        let params = cpu.device_params()?;
        Ok(Self {
            name: cpu.name(),
            writes: matches!(kernel, Kernel::Chacha20 | Kernel::Macswap | Kernel::Poke),
            cpu,
            params,
            code,
        })
    }

    /// Puts it to work on a GPU.
    pub(crate) fn run(&self, rig: &Rig, way: &Way) -> Result<Run, String> {
        match &self.code {
            Some(code) => rig.run_user(code, &self.params, way),
            None => rig.run(self.name, &self.params, way),
        }
    }

    /// What the CPU version makes of `bytes`.
    pub(crate) fn on_cpu(
        &mut self,
        offset: u64,
        bytes: &mut [u8],
        state: &mut KernelState,
    ) -> PacketResult {
        let mut chunk = Chunk {
            direction: Direction::Rx,
            ends: ends(),
            offset,
            bytes,
        };
        let finding = self.cpu.run(&mut chunk, state);
        finding.as_result(state)
    }
}

/// The function of the kernel `user`.
pub(crate) fn example() -> Result<UserCode, String> {
    UserCode::new(
        "docs/examples/count_zeros.ptx",
        "count_zeros",
        EXAMPLE.into(),
    )
}

/// Literals of 8 to 24 random bytes of text, a quarter of them in any case.
fn rules(arguments: &Arguments) -> Vec<u8> {
    let mut random = Random(arguments.seed);
    let mut file = Vec::new();
    for number in 0..arguments.rules {
        file.extend_from_slice(if number % 4 == 0 { b"i\"" } else { b"\"" });
        for _ in 0..8 + random.below(17) {
            let place = random.below(ALPHABET.len());
            file.extend(ALPHABET.get(place));
        }
        file.extend_from_slice(b"\"\n");
    }
    file
}

/// Of literals, and of half of the payload.
const ALPHABET: &[u8] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/.-_ ";

fn ends() -> Ends {
    Ends {
        local: SocketAddrV4::new([10, 0, 0, 2].into(), 80),
        remote: SocketAddrV4::new([10, 0, 0, 1].into(), 40_000),
    }
}

/// The record of a packet of [`ends`].
pub(crate) fn record(addr: u64, bytes: usize, offset: u64, state: &KernelState) -> PacketRecord {
    let ends = ends();
    let [a, b] = ends.remote.port().to_be_bytes();
    let [c, d] = ends.local.port().to_be_bytes();
    let addresses = [ends.remote.ip().octets(), ends.local.ip().octets()];
    let [from, to] = addresses.map(u32::from_le_bytes);
    PacketRecord {
        addr,
        len: u32::try_from(bytes).unwrap_or(0),
        offset,
        ends: [from, to, u32::from_le_bytes([a, b, c, d])],
        state: state.0,
        ..PacketRecord::default()
    }
}

/// Random payload: noise in every other packet, text in the rest.
pub(crate) fn payload(random: &mut Random, bytes: &mut [u8], text: bool) {
    random.fill(bytes);
    if text {
        for byte in bytes {
            *byte = *ALPHABET
                .get(usize::from(*byte) % ALPHABET.len())
                .unwrap_or(&b' ');
        }
    }
}

/// Packets of one size, side by side.
pub(crate) struct Packets {
    pub(crate) bytes: usize,
    /// From packet to packet.
    pub(crate) stride: usize,
    pub(crate) count: usize,
    /// All of them as they are, and as the kernel leaves them.
    pub(crate) before: Vec<u8>,
    pub(crate) after: Vec<u8>,
    pub(crate) results: Vec<PacketResult>,
}

impl Packets {
    /// As many packets as `room` bytes hold.
    pub(crate) fn new(subject: &mut Subject, bytes: usize, room: usize, seed: u64) -> Self {
        let stride = bytes.next_multiple_of(128);
        let count = (room / stride).min(COUNT_MAX);
        let mut random = Random(seed);
        let mut before = vec![0; count * stride];
        let mut results = Vec::with_capacity(count);
        for (at, packet) in before.chunks_mut(stride).enumerate() {
            let packet = packet.get_mut(..bytes).unwrap_or_default();
            payload(&mut random, packet, at % 2 == 0);
        }
        let mut after = before.clone();
        for packet in after.chunks_mut(stride) {
            let packet = packet.get_mut(..bytes).unwrap_or_default();
            results.push(subject.on_cpu(0, packet, &mut KernelState::default()));
        }
        Self {
            bytes,
            stride,
            count,
            before,
            after,
            results,
        }
    }

    /// A packet as it is after an even or odd number of passes.
    pub(crate) fn packet(&self, at: usize, is_odd: bool) -> &[u8] {
        let all = if is_odd { &self.after } else { &self.before };
        let begin = at * self.stride;
        all.get(begin..begin + self.bytes).unwrap_or_default()
    }
}

/// Enough to leave every cache.
const COUNT_MAX: usize = 262_144;
