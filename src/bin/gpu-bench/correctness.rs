//! Random packets of every length through every kernel and mode, with state kept from packet to packet.

use core::time::Duration;

use knet::gpu::KernelState;
use knet::gpu::rig::{Outcome, Rig, Way};
use knet::time::monotonic;

use crate::arguments::{Arguments, Kernel};
use crate::place::Place;
use crate::report::Report;
use crate::workload::{Random, Subject, payload, record};
use crate::{Stop, Watch};

/// Packets of a batch at most, each of a stream of its own.
const FLOWS: usize = 64;
/// Room of a packet.
const STRIDE: usize = 16_384 + 64;
/// No kernel takes as long.
const TIMEOUT: Duration = Duration::from_secs(10);

pub(crate) fn run(
    place: &mut Place,
    arguments: &Arguments,
    watch: &Watch,
    report: &mut Report,
) -> Result<(), Stop> {
    let Place::Gpu(rig) = place else {
        return Ok(());
    };
    let mut kernels = arguments.kernels.clone();
    if !kernels.contains(&Kernel::User) {
        // The driver's linker is tried wherever kernels are.
        kernels.push(Kernel::User);
    }
    for kernel in &kernels {
        for way in &arguments.modes {
            let mut subject = Subject::new(*kernel, arguments)?;
            let way = Way {
                mode: way.mode(),
                packets: FLOWS,
                slots: 4,
                blocks: arguments.blocks,
                timeout: TIMEOUT,
            };
            let name = format!("{} in mode {}", subject.name, way.mode.name());
            match compare(
                rig,
                &mut subject,
                &way,
                (arguments.seed, arguments.rounds),
                watch,
            ) {
                Ok(packets) => report.passed(
                    "correctness",
                    &format!("{name}: {packets} packets equal the CPU's"),
                ),
                Err(Stop::Asked) => return Err(Stop::Asked),
                Err(Stop::Fault(words)) => {
                    report.failed("correctness", &format!("{name}: {words}"))
                }
            }
            if !rig.is_on() {
                return Err(Stop::Fault(format!("{name}: the GPU was given up")));
            }
        }
    }
    Ok(())
}

/// Compares random batches; returns how many packets there were.
pub(crate) fn compare(
    rig: &mut Rig,
    subject: &mut Subject,
    way: &Way,
    (seed, rounds): (u64, u32),
    watch: &Watch,
) -> Result<usize, Stop> {
    let mut random = Random(seed);
    let mut run = subject.run(rig, way)?;
    let mut kept = vec![(0_u64, KernelState::default()); FLOWS];
    let mut packets = 0;
    for _ in 0..rounds {
        watch.look()?;
        let count = 1 + random.below(way.packets.min(FLOWS));
        let mut expected = Vec::with_capacity(count);
        for (at, (offset, state)) in kept.iter_mut().take(count).enumerate() {
            let longest = [64, 1_500, 1_500, 16_384].get(random.below(4)).copied();
            let mut bytes = vec![0; 1 + random.below(longest.unwrap_or(64))];
            let is_text = random.below(2) == 0;
            payload(&mut random, &mut bytes, is_text);
            let begin = at * STRIDE + random.below(64);
            if !rig.put(begin, &bytes) {
                return Err(Stop::Fault("too little memory".to_owned()));
            }
            let record = record(rig.address(begin), bytes.len(), *offset, state);
            run.add(monotonic(), at as u64, &record);
            let result = subject.on_cpu(*offset, &mut bytes, state);
            *offset += bytes.len() as u64;
            expected.push((begin, bytes, result));
        }
        let mut outcomes = Vec::new();
        while outcomes.len() < count && rig.is_on() {
            run.step(monotonic(), &mut outcomes);
            watch.look()?;
        }
        for (at, (begin, bytes, result)) in expected.iter().enumerate() {
            if outcomes.get(at) != Some(&Outcome::Done(at as u64, *result)) {
                let seen = outcomes.get(at);
                return Err(Stop::Fault(format!(
                    "{} bytes: {seen:?}, the CPU says {result:?}",
                    bytes.len()
                )));
            }
            let mut seen = vec![0; bytes.len()];
            if !rig.take(*begin, &mut seen) || seen != *bytes {
                return Err(Stop::Fault(format!(
                    "{} bytes: other ones than the CPU's",
                    bytes.len()
                )));
            }
        }
        packets += count;
    }
    Ok(packets)
}
