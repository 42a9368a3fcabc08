//! knetctl: the operator's tool. One file a subcommand under `knetctl/`.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a tool's stdout and stderr are its own"
)]

use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Parser, Subcommand};

#[path = "knetctl/check.rs"]
mod check;
#[path = "knetctl/nic.rs"]
mod nic;
#[path = "knetctl/program.rs"]
mod program;
#[path = "knetctl/run.rs"]
mod run;
#[path = "knetctl/stats.rs"]
mod stats;

/// sysexits.h: the command was used wrongly.
const USAGE: u8 = 64;

/// Checks the configuration of knet and runs programs on it.
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
    Stats(stats::Stats),
}

fn main() -> ExitCode {
    match Arguments::try_parse() {
        Ok(Arguments {
            command: Command::Check(check),
        }) => check.execute(),
        Ok(Arguments {
            command: Command::Nic(nic),
        }) => nic.execute(),
        Ok(Arguments {
            command: Command::Run(run),
        }) => run.execute(),
        Ok(Arguments {
            command: Command::Stats(stats),
        }) => stats.execute(),
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
