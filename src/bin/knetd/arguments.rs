//! knetd's command line; knetctl makes its manual page from it.

use std::path::PathBuf;

use clap::Parser;

/// Runs the TCP/IP stack for the programs that are preloaded with libknet_frame.so.
///
/// Started by the system it reads one config, listens, and serves any number of programs. Programs start a
/// private host themselves (--private); nobody else does.
#[derive(Parser, Debug)]
#[command(name = "knetd", version = knet::BUILD_VERSION)]
pub(crate) struct Arguments {
    /// The config of a system host.
    #[arg(long, value_name = "FILE", default_value = knet::config::DEFAULT_PATH, conflicts_with = "private")]
    pub(crate) conf: PathBuf,
    /// Where a system host listens.
    #[arg(
        long,
        value_name = "PATH",
        default_value = "/run/knet/knetd.sock",
        conflicts_with = "private"
    )]
    pub(crate) socket: PathBuf,
    /// Serve the program at the other end of --control-fd, and its kin.
    #[arg(long, requires = "control_fd")]
    pub(crate) private: bool,
    /// The control socket that a private host inherits.
    #[arg(long, value_name = "N", requires = "private")]
    pub(crate) control_fd: Option<i32>,
    /// The program's name, for people.
    #[arg(
        long,
        value_name = "NAME",
        default_value = "program",
        requires = "private"
    )]
    pub(crate) program: String,
}
