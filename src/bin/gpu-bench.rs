//! gpu-bench: the payload kernels on a GPU against their CPU versions: are they right, what does it cost, what breaks.
//!
//! For a machine with a GPU; nothing of DPDK is needed. One file a part under `gpu-bench/`.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a tool's stdout and stderr are its own"
)]

use std::process::ExitCode;

#[path = "gpu-bench/arguments.rs"]
mod arguments;
#[path = "gpu-bench/beside.rs"]
mod beside;
#[path = "gpu-bench/cores.rs"]
mod cores;
#[path = "gpu-bench/correctness.rs"]
mod correctness;
#[path = "gpu-bench/faults.rs"]
mod faults;
#[path = "gpu-bench/measure.rs"]
mod measure;
#[path = "command_line/parse.rs"]
mod parse;
#[path = "gpu-bench/place.rs"]
mod place;
#[path = "gpu-bench/report.rs"]
mod report;
#[path = "gpu-bench/sweep.rs"]
mod sweep;
#[path = "gpu-bench/workload.rs"]
mod workload;

use arguments::{Arguments, On, Part};
use knet::ffi::end_signals::EndSignals;
use parse::parse;
use place::Place;
use report::Report;

/// sysexits.h: what is needed is not there.
const UNAVAILABLE: u8 = 69;
/// A comparison or a fault run went wrong.
const WRONG: u8 = 1;
/// As a shell says of SIGINT.
const INTERRUPTED: u8 = 130;

/// Why a part ended early.
#[derive(Debug)]
enum Stop {
    /// Somebody asked for the end.
    Asked,
    /// One line.
    Fault(String),
}

impl From<String> for Stop {
    fn from(words: String) -> Self {
        Self::Fault(words)
    }
}

/// Signals that ask for the end, looked at between packets.
#[derive(Debug)]
struct Watch(EndSignals);

impl Watch {
    fn look(&self) -> Result<(), Stop> {
        match self.0.next() {
            Ok(None) => Ok(()),
            _ => Err(Stop::Asked),
        }
    }
}

fn main() -> ExitCode {
    let arguments: Arguments = match parse() {
        Ok(arguments) => arguments,
        Err(code) => return code,
    };
    let signals = match EndSignals::catch() {
        Ok(signals) => Watch(signals),
        Err(errno) => {
            eprintln!("gpu-bench: signals: {errno}");
            return ExitCode::from(UNAVAILABLE);
        }
    };
    if let Some(name) = &arguments.fault {
        return match faults::child(name, &arguments) {
            Ok(words) => {
                println!("{words}");
                ExitCode::SUCCESS
            }
            Err(words) => {
                eprintln!("{words}");
                ExitCode::from(WRONG)
            }
        };
    }
    if arguments.neighbour {
        return match beside::child(&arguments) {
            Ok(()) => ExitCode::SUCCESS,
            Err(words) => {
                eprintln!("{words}");
                ExitCode::from(WRONG)
            }
        };
    }
    let place = match Place::open(&arguments) {
        Ok(place) => place,
        Err(why) if arguments.on == On::Gpu => {
            eprintln!("gpu-bench: no GPU: {why}");
            return ExitCode::from(UNAVAILABLE);
        }
        Err(why) => {
            eprintln!(
                "gpu-bench: no GPU: {why}; the CPU versions are measured on this machine's CPU instead, in packets a second only"
            );
            Place::cpu()
        }
    };
    let mut report = Report::new(&place, &arguments);
    eprintln!("gpu-bench: {}", place.line());
    let code = match run(place, &arguments, &signals, &mut report) {
        Ok(()) if report.is_good() => ExitCode::SUCCESS,
        Ok(()) => ExitCode::from(WRONG),
        Err(Stop::Asked) => {
            report.interrupted();
            ExitCode::from(INTERRUPTED)
        }
        Err(Stop::Fault(words)) => {
            eprintln!("gpu-bench: {words}");
            report.failed("gpu-bench", &words);
            ExitCode::from(WRONG)
        }
    };
    print!("{}", report.table());
    if let Some(path) = &arguments.json
        && let Err(error) = report.write(path)
    {
        eprintln!("gpu-bench: --json {path}: {error}");
        return ExitCode::from(WRONG);
    }
    code
}

fn run(
    mut place: Place,
    arguments: &Arguments,
    signals: &Watch,
    report: &mut Report,
) -> Result<(), Stop> {
    for part in arguments.parts() {
        if let (
            Place::Cpu(_),
            Part::Correctness
            | Part::Costs
            | Part::Ceilings
            | Part::Registration
            | Part::Beside
            | Part::Faults,
        ) = (&place, part)
        {
            report.skip(part.name(), "it needs a GPU");
            continue;
        }
        match part {
            Part::Correctness => correctness::run(&mut place, arguments, signals, report)?,
            Part::Costs => sweep::costs(&mut place, arguments, signals, report)?,
            Part::Ceilings => sweep::ceilings(&mut place, arguments, signals, report)?,
            Part::Registration => sweep::registration(&place, arguments, report),
            Part::Sweep => sweep::sweep(&mut place, arguments, signals, report)?,
            Part::Beside => beside::run(&mut place, arguments, signals, report)?,
            Part::Faults => faults::run(&mut place, arguments, signals, report)?,
        }
    }
    Ok(())
}
