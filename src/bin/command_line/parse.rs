//! How the commands read their command line, and what they exit with when it is wrong.

use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;

/// sysexits.h: the command was used wrongly.
pub(crate) const USAGE: u8 = 64;

/// What the command was asked for; Err: what to exit with, when all is said.
pub(crate) fn parse<T: Parser>() -> Result<T, ExitCode> {
    T::try_parse().map_err(|error| {
        // Nothing is left to tell when even this cannot be printed.
        let _ = error.print();
        match error.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => ExitCode::SUCCESS,
            _ => ExitCode::from(USAGE),
        }
    })
}
