//! knetctl: the operator's tool. One file a subcommand under `knetctl/`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Parser, Subcommand};
use knet::config;

// First, for its macro.
#[macro_use]
#[path = "knetctl/print.rs"]
mod print;

#[path = "knetctl/bench.rs"]
mod bench;
#[path = "knetctl/capture.rs"]
mod capture;
#[path = "knetctl/check.rs"]
mod check;
#[path = "knetctl/collect.rs"]
mod collect;
#[path = "knetctl/generate.rs"]
mod generate;
#[path = "knetctl/host.rs"]
mod host;
#[path = "knetctl/latency.rs"]
mod latency;
#[path = "knetctl/nic.rs"]
mod nic;
#[path = "knetctl/process.rs"]
mod process;
#[path = "knetctl/program.rs"]
mod program;
#[path = "knetctl/run.rs"]
mod run;
#[path = "knetctl/spans.rs"]
mod spans;
#[path = "knetctl/ss.rs"]
mod ss;
#[path = "knetctl/stats.rs"]
mod stats;
#[path = "knetctl/status.rs"]
mod status;
#[path = "knetctl/top.rs"]
mod top;
#[path = "knetctl/trace.rs"]
mod trace;
#[path = "knetctl/why.rs"]
mod why;

/// sysexits.h: the command was used wrongly.
const USAGE: u8 = 64;

/// Checks the configuration of knet, runs programs on it, and looks inside.
///
/// The exit codes of each command stand in its help. 74 is common to them: what they tell could not be written to stdout.
#[derive(Parser, Debug)]
#[command(name = "knetctl", version = knet::BUILD_VERSION, arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    Check(check::Check),
    Nic(nic::Nic),
    Run(run::Run),
    Status(status::Status),
    Ss(ss::Ss),
    Stats(stats::Stats),
    Why(why::Why),
    Top(top::Top),
    Latency(latency::Latency),
    Capture(capture::Capture),
    Trace(trace::Trace),
    Bench(bench::Bench),
    Collect(collect::Collect),
    Generate(generate::Generate),
}

fn main() -> ExitCode {
    match Arguments::try_parse() {
        Ok(Arguments { command }) => {
            let status = execute(command);
            if print::has_failed() {
                ExitCode::from(print::IO_ERROR)
            } else {
                status
            }
        }
        Err(error) => {
            // Nothing is left to tell when even this cannot be printed.
            let _ = error.print();
            match error.kind() {
                ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => ExitCode::SUCCESS,
                _ => ExitCode::from(USAGE),
            }
        }
    }
}

fn execute(command: Command) -> ExitCode {
    match command {
        Command::Check(check) => check.execute(),
        Command::Nic(nic) => nic.execute(),
        Command::Run(run) => run.execute(),
        Command::Status(status) => status.execute(),
        Command::Ss(ss) => ss.execute(),
        Command::Stats(stats) => stats.execute(),
        Command::Why(why) => why.execute(),
        Command::Top(top) => top.execute(),
        Command::Latency(latency) => latency.execute(),
        Command::Capture(capture) => capture.execute(),
        Command::Trace(trace) => trace.execute(),
        Command::Bench(bench) => bench.execute(),
        Command::Collect(collect) => collect.execute(),
        Command::Generate(generate) => generate.execute(),
    }
}

/// The config that is meant where none is named.
fn config_file() -> PathBuf {
    std::env::var_os("KNET_CONF")
        .filter(|path| !path.is_empty())
        .map_or_else(|| PathBuf::from(config::DEFAULT_PATH), PathBuf::from)
}
