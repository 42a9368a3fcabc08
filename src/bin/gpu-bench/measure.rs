//! One figure: a kernel, a mode, a batch size, a payload.

use core::time::Duration;
use std::collections::VecDeque;

use knet::gpu::KernelState;
use knet::gpu::rig::{Memory, Outcome, Rig, Way};
use knet::time::{Instant, monotonic};
use rustix::time::{ClockId, clock_gettime};

use crate::workload::{Packets, Subject, record};
use crate::{Stop, Watch};

/// What was seen in one stretch of time.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Sample {
    /// Millions of packets a second.
    pub(crate) mpps: f64,
    /// From the hand-over of a batch to its last result, in microseconds: median, 99 of 100, longest.
    pub(crate) latency: [f64; 3],
    /// CPU seconds a second.
    pub(crate) cpu: f64,
}

/// Batches that may be out at once, and how many packets each has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) way: Way,
    pub(crate) out: usize,
    pub(crate) memory: Memory,
    pub(crate) time: Duration,
}

/// A batch that is out.
struct Flight {
    since: Instant,
    missing: usize,
}

/// Drives the kernel for a while; every result is compared with the CPU version's, and at the end every byte.
pub(crate) fn gpu(
    rig: &mut Rig,
    subject: &Subject,
    packets: &Packets,
    load: &Load,
    watch: &Watch,
) -> Result<Sample, Stop> {
    let size = load.way.packets;
    let wrong = |words: String| {
        Stop::Fault(format!(
            "{} in mode {} with {size} packets of {} bytes a batch: {words}",
            subject.name,
            load.way.mode.name(),
            packets.bytes
        ))
    };
    if packets.count < 2 * size * load.out {
        return Err(wrong("too little memory for so many packets".to_owned()));
    }
    rig.fill(load.memory, &packets.before).map_err(wrong)?;
    let mut run = subject.run(rig, &load.way).map_err(wrong)?;
    let mut passes = vec![0_u32; packets.count];
    let (mut next, mut done, mut turns) = (0_usize, 0_u64, 0_u32);
    let mut flights: VecDeque<Flight> = VecDeque::new();
    let mut latencies = Vec::new();
    let mut outcomes = Vec::new();
    let (begin, cpu) = (monotonic(), cpu_time());
    let mut now = begin;
    let end = begin + load.time;
    while now < end || !flights.is_empty() {
        if now < end && flights.len() < load.out && run.has_room() {
            for _ in 0..size {
                let addr = rig.address_in(load.memory, next * packets.stride);
                let record = record(addr.unwrap_or(0), packets.bytes, 0, &KernelState::default());
                run.add(now, next as u64, &record);
                if let Some(passes) = passes.get_mut(next) {
                    *passes += 1;
                }
                next = (next + 1) % packets.count;
            }
            flights.push_back(Flight {
                since: now,
                missing: size,
            });
        }
        run.step(now, &mut outcomes);
        now = monotonic();
        for outcome in outcomes.drain(..) {
            let Outcome::Done(tag, result) = outcome else {
                return Err(wrong(format!("{outcome:?}")));
            };
            let expected = usize::try_from(tag)
                .ok()
                .and_then(|tag| packets.results.get(tag));
            if expected != Some(&result) {
                return Err(wrong(format!(
                    "packet {tag}: {result:?}, the CPU says {expected:?}"
                )));
            }
            done += 1;
            if let Some(flight) = flights.front_mut() {
                flight.missing -= 1;
                if flight.missing == 0 {
                    latencies.push(now.since(flight.since));
                    flights.pop_front();
                }
            }
        }
        turns = turns.wrapping_add(1);
        if turns.is_multiple_of(1_024) {
            watch.look()?;
        }
    }
    let seconds = now.since(begin).as_secs_f64();
    let cpu = (cpu_time() - cpu).as_secs_f64() / seconds;
    drop(run);
    if subject.writes {
        let mut all = vec![0; packets.before.len()];
        rig.read(load.memory, &mut all).map_err(wrong)?;
        for (at, passes) in passes.iter().enumerate() {
            let begin = at * packets.stride;
            let seen = all.get(begin..begin + packets.bytes);
            if seen != Some(packets.packet(at, passes % 2 == 1)) {
                return Err(wrong(format!("packet {at}: other bytes than the CPU's")));
            }
        }
    }
    Ok(Sample {
        mpps: done as f64 / seconds / 1e6,
        latency: percentiles(&mut latencies),
        cpu,
    })
}

pub(crate) fn cpu_time() -> Duration {
    let spent = clock_gettime(ClockId::ProcessCPUTime);
    let seconds = u64::try_from(spent.tv_sec).unwrap_or(0);
    let nanos = u32::try_from(spent.tv_nsec).unwrap_or(0);
    Duration::new(seconds, nanos)
}

fn percentiles(latencies: &mut [Duration]) -> [f64; 3] {
    latencies.sort_unstable();
    [50, 99, 100].map(|percent| {
        let place = (latencies.len() * percent / 100).min(latencies.len().saturating_sub(1));
        let latency = latencies.get(place).copied().unwrap_or_default();
        latency.as_secs_f64() * 1e6
    })
}
