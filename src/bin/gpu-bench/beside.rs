//! Other CUDA work on the GPU while the stage runs: in another process, as a program beside its host has it, and in a context of
//! its own in this one, as with `gpu.in_process`.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use core::time::Duration;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use knet::config::payload::Mode;
use knet::gpu::KernelState;
use knet::gpu::rig::{Memory, Outcome, Rig, Way};
use knet::time::monotonic;

use crate::arguments::{Arguments, Kernel};
use crate::place::{KERNELS, Place};
use crate::report::Report;
use crate::sweep;
use crate::workload::{Subject, record};
use crate::{Stop, Watch};

/// A launch of other work that takes longer has failed.
const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) fn run(
    place: &mut Place,
    arguments: &Arguments,
    watch: &Watch,
    report: &mut Report,
) -> Result<(), Stop> {
    for way in &arguments.modes {
        let mode = way.mode();
        sweep::one(place, "alone", mode, (arguments, watch), report)?;
        for whose in [Whose::Process, Whose::Thread] {
            watch.look()?;
            let mut other = match Neighbour::start(whose, arguments).and_then(Neighbour::begun) {
                Ok(other) => other,
                Err(words) => {
                    report.failed("beside", &format!("{}: {words}", whose.name()));
                    continue;
                }
            };
            let alone = other.rate(arguments.time(), || Ok(()))?;
            let part = whose.part();
            let beside = other.rate(Duration::ZERO, || {
                sweep::one(place, part, mode, (arguments, watch), report)
            })?;
            report.beside(whose.name(), mode.name(), [alone, beside]);
            match other.end() {
                Ok(()) => report.passed(
                    "beside",
                    &format!(
                        "mode {} and {} have not disturbed each other's results",
                        mode.name(),
                        whose.name()
                    ),
                ),
                Err(words) => report.failed("beside", &format!("{}: {words}", whose.name())),
            }
        }
    }
    Ok(())
}

/// Who does the other work.
#[derive(Clone, Copy)]
enum Whose {
    Process,
    Thread,
}

impl Whose {
    const fn name(self) -> &'static str {
        match self {
            Self::Process => "another process",
            Self::Thread => "another context",
        }
    }

    const fn part(self) -> &'static str {
        match self {
            Self::Process => "process",
            Self::Thread => "context",
        }
    }
}

/// Other work, going on.
enum Neighbour {
    Process(Child, ChildStdin, BufReader<ChildStdout>),
    Thread(Arc<Work>, JoinHandle<Result<(), String>>),
}

impl Neighbour {
    fn start(whose: Whose, arguments: &Arguments) -> Result<Self, String> {
        match whose {
            Whose::Process => {
                let program = std::env::current_exe().map_err(|error| error.to_string())?;
                let list = |numbers: &[u32]| {
                    let texts: Vec<String> = numbers.iter().map(u32::to_string).collect();
                    texts.join(",")
                };
                let mut child = Command::new(program)
                    .args(["--neighbour", "--device", &arguments.device])
                    .args(["--driver-library", &arguments.driver_library])
                    .args(["--batches", &list(&arguments.batches)])
                    .args(["--payloads", &list(&arguments.payloads)])
                    .stdin(Stdio::piped())
                    .stdout(Stdio::piped())
                    .spawn()
                    .map_err(|error| error.to_string())?;
                match (child.stdin.take(), child.stdout.take()) {
                    (Some(to), Some(from)) => Ok(Self::Process(child, to, BufReader::new(from))),
                    _ => Err("no pipe to the process".to_owned()),
                }
            }
            Whose::Thread => {
                let work = Arc::new(Work::default());
                let (theirs, load) = (Arc::clone(&work), Load::new(arguments)?);
                let thread = thread::spawn(move || theirs.go(load));
                Ok(Self::Thread(work, thread))
            }
        }
    }

    /// Waits until it is at work: nothing is taken of the GPU by it afterwards.
    fn begun(mut self) -> Result<Self, String> {
        let begin = monotonic();
        while self.done()? == 0 {
            if monotonic().since(begin) > PATIENCE {
                return Err("the first launch has not come back".to_owned());
            }
            thread::park_timeout(Duration::from_millis(1));
        }
        Ok(self)
    }

    /// Launches so far.
    fn done(&mut self) -> Result<u64, String> {
        match self {
            Self::Process(_, to, from) => {
                let mut line = String::new();
                to.write_all(b"\n").map_err(|error| error.to_string())?;
                from.read_line(&mut line)
                    .map_err(|error| error.to_string())?;
                line.trim()
                    .parse()
                    .map_err(|_| "the process has ended".to_owned())
            }
            Self::Thread(_, thread) if thread.is_finished() => Err("it has ended".to_owned()),
            Self::Thread(work, _) => Ok(work.done.load(Ordering::Relaxed)),
        }
    }

    /// Launches a second while something else is done, and for `least` time.
    fn rate(
        &mut self,
        least: Duration,
        act: impl FnOnce() -> Result<(), Stop>,
    ) -> Result<f64, Stop> {
        let (begin, before) = (monotonic(), self.done()?);
        act()?;
        let mut done = 0;
        // A figure needs one launch at least.
        while monotonic().since(begin) < least || (done == 0 && monotonic().since(begin) < PATIENCE)
        {
            thread::park_timeout(Duration::from_millis(1));
            done = self.done()? - before;
        }
        Ok(done as f64 / monotonic().since(begin).as_secs_f64())
    }

    /// Lets it end, and says whether all of it was right.
    fn end(self) -> Result<(), String> {
        match self {
            Self::Process(mut child, to, _) => {
                drop(to);
                let status = child.wait().map_err(|error| error.to_string())?;
                if status.success() {
                    return Ok(());
                }
                Err(format!("{status}"))
            }
            Self::Thread(work, thread) => {
                work.is_over.store(true, Ordering::Relaxed);
                thread
                    .join()
                    .unwrap_or_else(|_| Err("it panicked".to_owned()))
            }
        }
    }
}

/// The process's part.
pub(crate) fn child(arguments: &Arguments) -> Result<(), String> {
    let work = Arc::new(Work::default());
    let (theirs, load) = (Arc::clone(&work), Load::new(arguments)?);
    let thread = thread::spawn(move || theirs.go(load));
    for line in std::io::stdin().lines() {
        if line.is_err() || thread.is_finished() {
            break;
        }
        println!("{}", work.done.load(Ordering::Relaxed));
    }
    work.is_over.store(true, Ordering::Relaxed);
    thread
        .join()
        .unwrap_or_else(|_| Err("it panicked".to_owned()))
}

/// Launches one after the other, over memory of the GPU's own.
struct Load {
    rig: Rig,
    subject: Subject,
    packets: usize,
    bytes: usize,
}

impl Load {
    /// In a context of its own.
    fn new(arguments: &Arguments) -> Result<Self, String> {
        let packets = arguments.batches.iter().copied().max().unwrap_or(1) as usize;
        let bytes = arguments.payloads.first().copied().unwrap_or(1) as usize;
        let (library, device) = (&arguments.driver_library, &arguments.device);
        let mut rig = Rig::apart(library, device, KERNELS, packets * bytes)?;
        rig.fill(Memory::Gpu, &vec![0x5a; packets * bytes])?;
        Ok(Self {
            rig,
            subject: Subject::new(Kernel::Poke, arguments)?,
            packets,
            bytes,
        })
    }
}

/// What other work has done, and whether it is to end.
#[derive(Default)]
struct Work {
    done: AtomicU64,
    is_over: AtomicBool,
}

impl Work {
    fn go(&self, load: Load) -> Result<(), String> {
        let way = Way {
            mode: Mode::Launch,
            packets: load.packets,
            slots: 1,
            blocks: 1,
            timeout: PATIENCE,
        };
        let mut run = load.subject.run(&load.rig, &way)?;
        let mut outcomes = Vec::new();
        let mut launches = 0_u64;
        while !self.is_over.load(Ordering::Relaxed) {
            for packet in 0..load.packets {
                let place = load.rig.address_in(Memory::Gpu, packet * load.bytes);
                let record = record(place.unwrap_or(0), load.bytes, 0, &KernelState::default());
                run.add(monotonic(), packet as u64, &record);
            }
            while outcomes.len() < load.packets {
                run.step(monotonic(), &mut outcomes);
                thread::yield_now();
            }
            if !outcomes
                .drain(..)
                .all(|outcome| matches!(outcome, Outcome::Done(..)))
            {
                return Err("a launch of the other work has failed".to_owned());
            }
            launches += 1;
            self.done.store(launches, Ordering::Relaxed);
        }
        drop(run);
        let mut bytes = vec![0; load.packets * load.bytes];
        load.rig.read(Memory::Gpu, &mut bytes)?;
        let wanted = if launches.is_multiple_of(2) {
            0x5a
        } else {
            !0x5a
        };
        if bytes.iter().any(|byte| *byte != wanted) {
            return Err("the other work's memory is not what it has made of it".to_owned());
        }
        Ok(())
    }
}
