//! `knetctl bench`: round trips and throughput of TCP, by an ordinary program that the stack may serve.

use std::net::SocketAddrV4;
use std::process::ExitCode;
use std::time::Duration;

use rustix::process;
use serde_json::{Value, json};

use crate::host::UNAVAILABLE;
use crate::print::{self, number, text};

#[path = "bench/load.rs"]
mod load;
#[path = "bench/trial.rs"]
mod trial;

use load::{Load, Measured};

/// Measures TCP: round trips of small messages, and bytes both ways on one connection.
///
/// Without TARGET and --serve it is a trial of this machine that needs neither a port nor a privilege: two hosts with a
/// unix socket for a wire, and the kernel's loopback beside it for comparison (a unix socket is a slow wire: what a NIC
/// brings is seen with the other two). `knetctl run -- knetctl bench --serve 10.0.0.1:7777` answers at an address of the
/// stack, and `knetctl bench 10.0.0.1:7777` measures from another machine, or `knetctl run -- knetctl bench TARGET` with
/// the stack at that end too.
///
/// Exit status: 0 measured, 64 wrong usage, 69 no connection, or the trial was not served by the stack.
#[derive(clap::Args, Debug)]
pub(crate) struct Bench {
    /// Who answers: another `knetctl bench --serve`, or any echo service.
    #[arg(value_name = "ADDRESS:PORT", conflicts_with = "serve")]
    target: Option<SocketAddrV4>,
    /// Answers here until it is ended; port 0 takes a free one.
    #[arg(long, value_name = "ADDRESS:PORT")]
    serve: Option<SocketAddrV4>,
    /// Connections that ask at a time.
    #[arg(short, long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1000))]
    connections: u16,
    /// Bytes of a question, and of its answer.
    #[arg(short, long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1_048_576))]
    bytes: u32,
    /// Seconds of each of the two measurements.
    #[arg(short, long, value_name = "SECONDS", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=60))]
    duration: u64,
    /// One JSON object on stdout (the trial: an array of them).
    #[arg(long)]
    json: bool,
    /// Ends with this process, which started it: an end of a trial.
    #[arg(long, value_name = "PID", hide = true)]
    parent: Option<i32>,
}

impl Bench {
    /// Runs the command.
    pub(crate) fn execute(self) -> ExitCode {
        let load = Load {
            connections: self.connections,
            bytes: self.bytes as usize,
            duration: Duration::from_secs(self.duration),
        };
        if let Some(parent) = self.parent
            && !end_with(parent)
        {
            return ExitCode::from(UNAVAILABLE);
        }
        let done = match (self.serve, self.target) {
            (Some(at), _) => load::serve(at),
            (None, Some(target)) => {
                load::measure(target, &load).map(|measured| self.show(&[told("", &measured)]))
            }
            (None, None) => trial::run(&load).map(|rows| self.show(&rows)),
        };
        match done {
            Ok(()) => ExitCode::SUCCESS,
            Err(fault) => {
                complain!("knetctl: bench: {fault}");
                ExitCode::from(UNAVAILABLE)
            }
        }
    }

    fn show(&self, rows: &[Value]) {
        if self.json {
            match (rows, self.target) {
                ([one], Some(_)) => print::json(one),
                _ => print::json(&json!(rows)),
            };
            return;
        }
        let header = [
            "path",
            "round trips/s",
            "p50 us",
            "p99 us",
            "max us",
            "MiB/s",
        ];
        let mut table = vec![header.map(str::to_owned).to_vec()];
        table.extend(rows.iter().map(|row| {
            let micros = |name: &str| {
                let nanos = number(row, name);
                format!("{}.{}", nanos / 1_000, nanos / 100 % 10)
            };
            let path = match text(row, "path") {
                "" => text(row, "target"),
                path => path,
            };
            vec![
                path.to_owned(),
                number(row, "round_trips_per_second").to_string(),
                micros("p50_ns"),
                micros("p99_ns"),
                micros("max_ns"),
                (number(row, "bulk_bytes_per_second") >> 20).to_string(),
            ]
        }));
        // A closed pipe takes nothing from the result.
        let _ = print::line(print::table(&table).trim_end());
    }
}

/// Lets the kernel end this process with its parent, whatever ends that; false when that is over already.
fn end_with(parent: i32) -> bool {
    let asked = process::set_parent_process_death_signal(Some(process::Signal::KILL));
    asked.is_ok() && process::getppid().is_some_and(|now| now.as_raw_nonzero().get() == parent)
}

/// A measurement as an object.
fn told(path: &str, measured: &Measured) -> Value {
    json!({
        "path": path,
        "target": measured.target.to_string(),
        "round_trips": measured.round_trips,
        "round_trips_per_second": measured.per_second,
        "p50_ns": measured.p50_ns,
        "p99_ns": measured.p99_ns,
        "max_ns": measured.max_ns,
        "bulk_bytes_per_second": measured.bulk_per_second,
    })
}
