//! Random batches through a kernel and through its CPU version.

use std::collections::HashMap;
use std::net::SocketAddrV4;

use knet::gpu::ring::PacketResult;
use knet::gpu::{Builtin, Chunk, Direction, Ends, KernelState, PayloadKernel};

use super::emulator::Emulator;
use super::random::Random;

/// The CPU version of a kernel, and the parameters of the other one.
pub(crate) struct Oracle {
    kernel: Box<dyn PayloadKernel>,
    params: Vec<u8>,
}

impl Oracle {
    pub(crate) fn new(kernel: &Builtin) -> Self {
        let mut kernel = kernel.build().unwrap();
        let params = kernel.device_params().unwrap();
        Self { kernel, params }
    }
}

/// How the batches are run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) seed: u64,
    pub(crate) packets: usize,
    batch: usize,
    flows: usize,
    blocks: u32,
    threads: u32,
    /// 0: a launch a batch.
    slots: u32,
}

impl Shape {
    pub(crate) fn random(seed: u64, ring: bool) -> Self {
        let mut random = Random::new(seed);
        let batch = random.between(1, 20);
        Self {
            seed,
            packets: 60,
            batch,
            flows: batch + random.below(20),
            blocks: random.between(1, 5) as u32,
            threads: 32 * random.between(1, 9) as u32,
            slots: if ring {
                random.between(1, 20) as u32
            } else {
                0
            },
        }
    }
}

/// A packet on its way.
struct Packet {
    flow: usize,
    offset: u64,
    ends: Ends,
    bytes: Vec<u8>,
    shift: u32,
}

impl Packet {
    fn chunk(&mut self) -> Chunk<'_> {
        Chunk {
            direction: Direction::Rx,
            ends: self.ends,
            offset: self.offset,
            bytes: &mut self.bytes,
        }
    }

    /// Sender's and receiver's address and their ports, as on the wire.
    fn words(&self) -> [u32; 3] {
        let (from, to) = (self.ends.remote, self.ends.local);
        let [a, b] = from.port().to_be_bytes();
        let [c, d] = to.port().to_be_bytes();
        [from.ip().octets(), to.ip().octets(), [a, b, c, d]].map(u32::from_le_bytes)
    }
}

/// Packets of which no batch has two of a flow, with offsets that go on from packet to packet.
fn packets(shape: &Shape, text: fn(&mut Random, usize) -> Vec<u8>) -> Vec<Packet> {
    let mut random = Random::new(shape.seed + 7);
    // Some streams begin near the end of what ChaCha20 can do.
    let mut offsets: Vec<u64> = (0..shape.flows)
        .map(|_| {
            if random.below(8) == 0 {
                (1 << 38) - 5_000
            } else {
                random.below(5_000) as u64
            }
        })
        .collect();
    let first = random.below(shape.flows);
    (0..shape.packets)
        .map(|at| {
            let flow = (first + at) % shape.flows;
            let length = match random.below(8) {
                0 => random.between(1, 20),
                1 => random.between(1, 600),
                2 => 1_460,
                3 => random.between(2_000, 2_100),
                4 => random.between(1, 9_000),
                _ => random.between(1, 1_500),
            };
            let offset = offsets[flow];
            offsets[flow] += length as u64;
            let end = |port: usize| SocketAddrV4::new([10, 0, flow as u8, 1].into(), port as u16);
            Packet {
                flow,
                offset,
                ends: Ends {
                    local: end(80),
                    remote: end(40_000 + flow),
                },
                bytes: text(&mut random, length),
                shift: if random.below(2) == 0 {
                    u32::MAX
                } else {
                    random.below(64) as u32
                },
            }
        })
        .collect()
}

/// What `tests/simt/batches.cc` reads.
fn input(shape: &Shape, kernel: &str, params: &[u8], packets: &[Packet]) -> Vec<u8> {
    let mode = if shape.slots == 0 {
        "launch"
    } else {
        "persistent"
    };
    let name = format!("knet_{kernel}_{mode}");
    let mut all = shape.seed.to_le_bytes().to_vec();
    for word in [
        name.len() as u32,
        params.len() as u32,
        packets.len() as u32,
        shape.batch as u32,
        shape.blocks,
        shape.threads,
        shape.slots,
        0,
    ] {
        all.extend(word.to_le_bytes());
    }
    all.extend_from_slice(name.as_bytes());
    all.extend_from_slice(params);
    for packet in packets {
        let [a, b, c] = packet.words();
        all.extend(packet.offset.to_le_bytes());
        for word in [
            packet.bytes.len() as u32,
            packet.flow as u32,
            a,
            b,
            c,
            packet.shift,
        ] {
            all.extend(word.to_le_bytes());
        }
        all.extend_from_slice(&packet.bytes);
    }
    all
}

fn result(bytes: &[u8]) -> PacketResult {
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    let long = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    PacketResult {
        verdict: word(0),
        value: word(4),
        aux: long(8),
        state: [long(16), long(24)],
    }
}

/// Runs random batches of `shape` through both versions of a kernel, of which `oracle` is the CPU's.
///
/// # Errors
/// The first difference, or the emulator's words about a fault.
pub(crate) fn compare(
    emulator: &Emulator,
    oracle: &mut Oracle,
    shape: Shape,
    text: fn(&mut Random, usize) -> Vec<u8>,
) -> Result<(), String> {
    let mut packets = packets(&shape, text);
    let output = emulator
        .run(&input(
            &shape,
            oracle.kernel.name(),
            &oracle.params,
            &packets,
        ))
        .map_err(|fault| format!("{shape:?}: {fault}"))?;
    let mut kept: HashMap<usize, KernelState> = HashMap::new();
    let mut rest = output.as_slice();
    for (at, packet) in packets.iter_mut().enumerate() {
        let (seen, behind) = rest.split_at(size_of::<PacketResult>());
        let (bytes, behind) = behind.split_at(packet.bytes.len());
        rest = behind;
        let state = kept.entry(packet.flow).or_default();
        let finding = oracle.kernel.run(&mut packet.chunk(), state);
        let (wanted, seen) = (finding.as_result(state), result(seen));
        // What a kernel that failed leaves behind is nobody's business.
        if seen != wanted && !finding.failed || seen.verdict != wanted.verdict {
            return Err(format!(
                "{shape:?}: packet {at}: {seen:?}, the CPU says {wanted:?}"
            ));
        }
        if !finding.failed && bytes != packet.bytes {
            return Err(format!(
                "{shape:?}: packet {at}: other bytes than the CPU's"
            ));
        }
    }
    if oracle.kernel.name() == "stats" {
        // It adds to its parameters.
        oracle.params = oracle.kernel.device_params()?;
    }
    if rest != oracle.params {
        return Err(format!("{shape:?}: other parameters than the CPU's"));
    }
    Ok(())
}
