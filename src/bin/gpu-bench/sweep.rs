//! Speed: what a hand-over costs, what the bus carries, and every mode, batch, kernel and payload.

use core::time::Duration;

use knet::config::payload::Mode;
use knet::gpu::rig::{Memory, Way};
use knet::time::monotonic;

use crate::arguments::{Arguments, Kernel};
use crate::cores::Cores;
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
    /// Of the CPU version, in mode cpu.
    threads: usize,
    memory: Memory,
    batch: usize,
    /// Batches out at once; 0: as many as there are places.
    out: usize,
}

impl Point {
    const fn new(part: &'static str, mode: Mode, memory: Memory, batch: usize) -> Self {
        Self {
            part,
            mode,
            threads: 0,
            memory,
            batch,
            out: 0,
        }
    }
}

/// Makes the figures of one kernel and payload.
struct Bench<'a> {
    place: &'a mut Place,
    arguments: &'a Arguments,
    watch: &'a Watch,
    report: &'a mut Report,
    kernel: Kernel,
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
            kernel,
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
            memory: point.memory,
            time: self.arguments.time(),
        };
        let is_cpu = point.mode == Mode::Cpu;
        let mut cores = Cores::new(
            self.kernel,
            self.arguments,
            &self.packets,
            if is_cpu { point.threads } else { 0 },
        )?;
        let mut samples: Vec<Sample> = Vec::new();
        for _ in 0..self.arguments.repeats {
            let sample = match self.place {
                Place::Gpu(rig) if !is_cpu => {
                    measure::gpu(rig, &self.subject, &self.packets, &load, self.watch)
                }
                _ => cores.measure(&self.packets, self.arguments, self.watch),
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
            threads: point.threads,
            memory: match (is_cpu, point.memory) {
                (true, _) => "-",
                (false, Memory::Host) => "host",
                (false, Memory::Gpu) => "gpu",
            },
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
                out,
                ..Point::new("costs", way.mode(), Memory::Host, 1)
            })?;
        }
    }
    Ok(())
}

/// How fast the GPU reads host memory and its own, and reads and writes them; and a copy to its own memory.
pub(crate) fn ceilings(
    place: &mut Place,
    arguments: &Arguments,
    watch: &Watch,
    report: &mut Report,
) -> Result<(), Stop> {
    for kernel in [Kernel::Peek, Kernel::Poke] {
        let of = (kernel, 8_192, None);
        let mut bench = Bench::new(place, of, (arguments, watch), report)?;
        for memory in &arguments.memory {
            bench.figure(&Point::new(
                "ceilings",
                Mode::Launch,
                memory.memory(),
                1_024,
            ))?;
        }
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

/// How the driver takes host memory: small pages, then hugepages, where the machine has reserved some.
pub(crate) fn registration(place: &Place, arguments: &Arguments, report: &mut Report) {
    let Place::Gpu(rig) = place else { return };
    let bytes = (arguments.memory_mib as usize) << 20;
    for (pages, is_huge) in [("4 KiB", false), ("2 MiB", true)] {
        report.registration(pages, rig.register(bytes, is_huge));
    }
}

/// One figure of a mode: the first kernel and payload, the first batch.
pub(crate) fn one(
    place: &mut Place,
    part: &'static str,
    mode: Mode,
    (arguments, watch): (&Arguments, &Watch),
    report: &mut Report,
) -> Result<(), Stop> {
    let first = |numbers: &[u32]| numbers.first().copied().unwrap_or(1) as usize;
    let kernel = arguments.kernels.first().copied();
    let of = (
        kernel.unwrap_or(Kernel::Crc32c),
        first(&arguments.payloads),
        None,
    );
    let mut bench = Bench::new(place, of, (arguments, watch), report)?;
    bench.figure(&Point::new(
        part,
        mode,
        Memory::Host,
        first(&arguments.batches),
    ))
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
    let cpu = |threads| Point {
        threads,
        ..Point::new("sweep", Mode::Cpu, Memory::Host, 1)
    };
    let mut all: Vec<Point> = arguments.threads().into_iter().map(cpu).collect();
    if !is_gpu {
        return all;
    }
    for way in &arguments.modes {
        for memory in &arguments.memory {
            let every_batch = every_batch && memory.memory() == Memory::Host;
            let wanted = |batch: &&u32| every_batch || CORNERS.contains(batch);
            all.extend(
                arguments
                    .batches
                    .iter()
                    .filter(wanted)
                    .map(|batch| Point::new("sweep", way.mode(), memory.memory(), *batch as usize)),
            );
        }
    }
    all
}
