//! knetd: the host process of the data plane.

#![allow(
    clippy::print_stderr,
    reason = "a service's stderr is its own until its log is open"
)]

#[path = "knetd/arguments.rs"]
mod arguments;
#[path = "knetd/log.rs"]
mod log;

use std::os::fd::OwnedFd;
use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;
use knet::host::End;
use knet::runtime::host::{self, Start};

use self::arguments::Arguments;

/// sysexits.h: the command was used wrongly.
const USAGE: u8 = 64;
/// sysexits.h: the service cannot be given.
const UNAVAILABLE: u8 = 69;
/// sysexits.h: an internal fault.
const SOFTWARE: u8 = 70;

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            // Nothing is left to tell when even this cannot be printed.
            let _ = error.print();
            return match error.kind() {
                ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => ExitCode::SUCCESS,
                _ => ExitCode::from(USAGE),
            };
        }
    };
    log::open(arguments.private);
    let code = match start(arguments).and_then(host::run) {
        Ok(End::Done) => ExitCode::SUCCESS,
        Ok(End::LcoreLost | End::PortLost) => ExitCode::from(SOFTWARE),
        Err(lines) => {
            // Each fault of a config is a line of the log.
            for line in lines.lines() {
                knet::error!("{line}");
            }
            ExitCode::from(UNAVAILABLE)
        }
    };
    // What was held back until now is told, whether its time is over or not.
    knet::telemetry::log::summarise(None);
    code
}

fn start(arguments: Arguments) -> Result<Start, String> {
    let Some(control_fd) = arguments.control_fd else {
        return Ok(Start::System {
            conf: arguments.conf,
            socket: arguments.socket,
        });
    };
    let lent = knet::ffi::descriptor::lend(control_fd)
        .map_err(|errno| format!("--control-fd {control_fd}: {errno}"))?;
    // The inherited number stays open until exec ends it; what we use and pass on is closed by exec.
    let control: OwnedFd = rustix::io::fcntl_dupfd_cloexec(lent, 3)
        .map_err(|errno| format!("--control-fd {control_fd}: {errno}"))?;
    knet::ffi::descriptor::close(control_fd);
    Ok(Start::Private {
        control,
        program: arguments.program,
    })
}
