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

/// Makes the figures of one kernel and payload.
struct Bench<'a> {
    place: &'a mut Place,
    arguments: &'a Arguments,
    watch: &'a Watch,
    report: &'a mut Report,
    subject: Subject,
    packets: Packets,
}

impl<'a> Bench<'a> {
    /// Packets of `payload` bytes for a kernel, as many as `room` holds; None: as many as there is memory for.
    fn new(
        place: &'a mut Place,
        (kernel, payload, room): (Kernel, usize, Option<usize>),
        (arguments, watch): (&'a Arguments, &'a Watch),
        report: &'a mut Report,
    ) -> Result<Self, Stop> {
        let mut subject = Subject::new(kernel, arguments)?;
        let all = match place {
            Place::Gpu(rig) => rig.bytes(),
            Place::Cpu(_) => (arguments.memory_mib as usize) << 20,
        };
        let packets = Packets::new(&mut subject, payload, room.unwrap_or(all), arguments.seed);
        Ok(Self {
            place,
            arguments,
            watch,
            report,
            subject,
            packets,
        })
    }

    fn figure(&mut self, point: &Point) -> Result<(), Stop> {
        let slots = (self.packets.count / (2 * point.batch.max(1))).clamp(1, SLOTS_MAX);
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
                blocks: self.arguments.blocks,
                timeout: TIMEOUT,
            },
            out,
            time: self.arguments.time(),
        };
        let is_cpu = point.mode == Mode::Cpu;
        let mut samples: Vec<Sample> = Vec::new();
        for _ in 0..self.arguments.repeats {
            let sample = match self.place {
                Place::Gpu(rig) if !is_cpu => {
                    measure::gpu(rig, &self.subject, &self.packets, &load, self.watch)
                }
                _ => measure::cpu(&mut self.subject, &self.packets, load.time, self.watch),
            };
            match sample {
                Ok(sample) => samples.push(sample),
                Err(Stop::Asked) => return Err(Stop::Asked),
                Err(Stop::Fault(words)) => {
                    self.report.failed(point.part, &words);
                    return match self.place {
                        Place::Gpu(rig) if !rig.is_on() => {
                            Err(Stop::Fault("the GPU was given up".to_owned()))
                        }
                        _ => Ok(()),
                    };
                }
            }
        }
        self.report.figure(Figure {
            part: point.part,
            kernel: self.subject.name,
            mode: point.mode.name(),
            batch: if is_cpu { 0 } else { point.batch },
            out: if is_cpu { 0 } else { out },
            payload: self.packets.bytes,
            samples,
        });
        Ok(())
    }
}

/// One packet at a time there and back, and one packet a batch as often as it can be done.
pub(crate) fn costs(
    place: &mut Place,
    arguments: &Arguments,
    watch: &Watch,
    report: &mut Report,
) -> Result<(), Stop> {
    let of = (Kernel::Macswap, 64, Some(1 << 20));
    let mut bench = Bench::new(place, of, (arguments, watch), report)?;
    for way in &arguments.modes {
        for out in [1, 0] {
            bench.figure(&Point {
                part: "costs",
                mode: way.mode(),
                batch: 1,
                out,
            })?;
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
        let of = (kernel, 8_192, None);
        let mut bench = Bench::new(place, of, (arguments, watch), report)?;
        bench.figure(&Point {
            part: "ceilings",
            mode: Mode::Launch,
            batch: 1_024,
            out: 0,
        })?;
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
    let mut done = 0;
    for kernel in &arguments.kernels {
        for (at, payload) in arguments.payloads.iter().enumerate() {
            let points = points(arguments, at == 0, matches!(place, Place::Gpu(_)));
            let of = (*kernel, *payload as usize, None);
            let mut bench = Bench::new(place, of, (arguments, watch), report)?;
            for point in points {
                bench.figure(&point)?;
            }
            done += 1;
            let all = arguments.kernels.len() * arguments.payloads.len();
            eprintln!("gpu-bench: sweep: {done} of {all} kernels and payloads");
        }
    }
    Ok(())
}

/// The figures of a kernel and a payload.
fn points(arguments: &Arguments, every_batch: bool, is_gpu: bool) -> Vec<Point> {
    let point = |mode, batch| Point {
        part: "sweep",
        mode,
        batch,
        out: 0,
    };
    let mut all = vec![point(Mode::Cpu, 1)];
    if is_gpu {
        let batches = arguments.batches.iter();
        let batches: Vec<usize> = batches
            .filter(|batch| every_batch || CORNERS.contains(batch))
            .map(|batch| *batch as usize)
            .collect();
        for way in &arguments.modes {
            all.extend(batches.iter().map(|batch| point(way.mode(), *batch)));
        }
    }
    all
}
