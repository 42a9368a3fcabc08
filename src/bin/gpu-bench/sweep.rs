//! Speed: what a hand-over costs, what the bus carries, and every mode, batch, kernel and payload.

use core::time::Duration;

use knet::config::payload::Mode;
use knet::gpu::rig::Way;
use knet::time::monotonic;

use crate::arguments::{Arguments, Kernel};
use crate::measure::{self, Load, Sample};
use crate::place::Place;
use crate::report::{Figure, Report};
use crate::workload::{Packets, Subject};
use crate::{Stop, Watch};

/// Batches of a ring at most.
const SLOTS_MAX: usize = 32;
/// A figure with a later batch is none.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Batches that every payload is measured with.
const CORNERS: [u32; 2] = [32, 1_024];

/// One figure is to be made.
struct Point {
    part: &'static str,
    mode: Mode,
    batch: usize,
    /// Batches out at once; 0: as many as there are places.
    out: usize,
}

fn point(
    place: &mut Place,
    subject: &mut Subject,
    packets: &Packets,
    point: &Point,
    (arguments, watch): (&Arguments, &Watch),
    report: &mut Report,
) -> Result<(), Stop> {
    let slots = (packets.count / (2 * point.batch.max(1))).clamp(1, SLOTS_MAX);
    let out = if point.out == 0 {
        slots
    } else {
        point.out.min(slots)
    };
    let load = Load {
        way: Way {
            mode: point.mode,
            packets: point.batch,
            slots,
            blocks: arguments.blocks,
            timeout: TIMEOUT,
        },
        out,
        time: arguments.time(),
    };
    let mut samples: Vec<Sample> = Vec::new();
    for _ in 0..arguments.repeats {
        let sample = match place {
            Place::Gpu(rig) if point.mode != Mode::Cpu => {
                measure::gpu(rig, subject, packets, &load, watch)
            }
            _ => measure::cpu(subject, packets, load.time, watch),
        };
        match sample {
            Ok(sample) => samples.push(sample),
            Err(Stop::Asked) => return Err(Stop::Asked),
            Err(Stop::Fault(words)) => {
                report.failed(point.part, &words);
                return match place {
                    Place::Gpu(rig) if !rig.is_on() => {
                        Err(Stop::Fault("the GPU was given up".to_owned()))
                    }
                    _ => Ok(()),
                };
            }
        }
    }
    report.figure(Figure {
        part: point.part,
        kernel: subject.name,
        mode: point.mode.name(),
        batch: if point.mode == Mode::Cpu {
            0
        } else {
            point.batch
        },
        out: if point.mode == Mode::Cpu { 0 } else { out },
        payload: packets.bytes,
        samples,
    });
    Ok(())
}

fn room(place: &Place, arguments: &Arguments) -> usize {
    match place {
        Place::Gpu(rig) => rig.bytes(),
        Place::Cpu(_) => (arguments.memory_mib as usize) << 20,
    }
}

/// One packet at a time there and back, and one packet a batch as often as it can be done.
pub(crate) fn costs(
    place: &mut Place,
    arguments: &Arguments,
    watch: &Watch,
    report: &mut Report,
) -> Result<(), Stop> {
    let mut subject = Subject::new(Kernel::Macswap, arguments)?;
    let packets = Packets::new(&mut subject, 64, 1 << 20, arguments.seed);
    for way in &arguments.modes {
        for out in [1, 0] {
            let wanted = Point {
                part: "costs",
                mode: way.mode(),
                batch: 1,
                out,
            };
            point(
                place,
                &mut subject,
                &packets,
                &wanted,
                (arguments, watch),
                report,
            )?;
        }
    }
    Ok(())
}

/// How fast the GPU reads host memory, and reads and writes it; and a copy to its own memory.
pub(crate) fn ceilings(
    place: &mut Place,
    arguments: &Arguments,
    watch: &Watch,
    report: &mut Report,
) -> Result<(), Stop> {
    for kernel in [Kernel::Peek, Kernel::Poke] {
        let mut subject = Subject::new(kernel, arguments)?;
        let room = room(place, arguments);
        let packets = Packets::new(&mut subject, 8_192, room, arguments.seed);
        let wanted = Point {
            part: "ceilings",
            mode: Mode::Launch,
            batch: 1_024,
            out: 0,
        };
        point(
            place,
            &mut subject,
            &packets,
            &wanted,
            (arguments, watch),
            report,
        )?;
    }
    if let Place::Gpu(rig) = place {
        let bytes = vec![1_u8; 64 << 20];
        rig.upload(&bytes)?;
        let begin = monotonic();
        rig.upload(&bytes)?;
        let seconds = monotonic().since(begin).as_secs_f64();
        report.copy(bytes.len(), seconds);
    }
    Ok(())
}

/// Mode x batch x kernel x payload, and the CPU version beside them.
pub(crate) fn sweep(
    place: &mut Place,
    arguments: &Arguments,
    watch: &Watch,
    report: &mut Report,
) -> Result<(), Stop> {
    let is_gpu = matches!(place, Place::Gpu(_));
    for kernel in &arguments.kernels {
        let mut subject = Subject::new(*kernel, arguments)?;
        for (at, payload) in arguments.payloads.iter().enumerate() {
            let room = room(place, arguments);
            let packets = Packets::new(&mut subject, *payload as usize, room, arguments.seed);
            let cpu = Point {
                part: "sweep",
                mode: Mode::Cpu,
                batch: 1,
                out: 0,
            };
            point(
                place,
                &mut subject,
                &packets,
                &cpu,
                (arguments, watch),
                report,
            )?;
            if !is_gpu {
                continue;
            }
            for way in &arguments.modes {
                for batch in &arguments.batches {
                    if at > 0 && !CORNERS.contains(batch) {
                        continue;
                    }
                    let wanted = Point {
                        part: "sweep",
                        mode: way.mode(),
                        batch: *batch as usize,
                        out: 0,
                    };
                    point(
                        place,
                        &mut subject,
                        &packets,
                        &wanted,
                        (arguments, watch),
                        report,
                    )?;
                }
            }
        }
    }
    Ok(())
}
