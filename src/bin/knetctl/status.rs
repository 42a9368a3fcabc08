//! `knetctl status`: who is accelerated, by which host, on which device.

use std::path::Path;
use std::process::ExitCode;

use serde_json::{Value, json};

use crate::host::{Hosts, UNAVAILABLE};
use crate::print::{self, number, plain, text};
use crate::process;

/// Shows the hosts: device, address, core, idle policy, connections, and the programs that each serves.
///
/// Exit status: 0 told, 69 no host answers, 64 wrong usage.
#[derive(clap::Args, Debug)]
pub(crate) struct Status {
    #[command(flatten)]
    hosts: Hosts,
    /// One JSON array on stdout, an object a host.
    #[arg(long)]
    json: bool,
}

impl Status {
    /// Runs the command.
    pub(crate) fn execute(self) -> ExitCode {
        let Some(answers) = self.hosts.ask(&json!({"query": "status"})) else {
            return ExitCode::from(UNAVAILABLE);
        };
        let hosts = answers
            .into_iter()
            .filter_map(|(socket, mut lines)| Some((socket, lines.pop()?)));
        if self.json {
            let all = hosts.map(|(socket, mut host)| {
                if let Some(host) = host.as_object_mut() {
                    host.insert("socket".to_owned(), json!(socket.display().to_string()));
                }
                host
            });
            print::json(&Value::Array(all.collect()));
            return ExitCode::SUCCESS;
        }
        for (socket, host) in hosts {
            if !print::line(as_lines(&socket, &host).trim_end()) {
                break;
            }
        }
        ExitCode::SUCCESS
    }
}

fn as_lines(socket: &Path, host: &Value) -> String {
    let kind = match host.get("private").and_then(Value::as_bool) {
        Some(false) => "system host",
        _ => "private host",
    };
    let mut out = format!(
        "{kind}  pid {}  build {}  {}\n",
        number(host, "process"),
        text(host, "version"),
        socket.display()
    );
    let mut add = |name: &str, value: &str| out.push_str(&format!("  {name:<9} {value}\n"));
    add("config", &plain(host.get("config")));
    add("port", &plain(host.get("port")));
    match host.get("open").filter(|open| open.is_object()) {
        None => add(
            "device",
            "not open: no program has listened or connected yet",
        ),
        Some(open) => {
            add(
                "device",
                &format!(
                    "{}, link {}, MTU {}, MAC {}",
                    text(open, "device"),
                    text(open, "link"),
                    number(open, "mtu"),
                    text(open, "mac")
                ),
            );
            let shares = |lcore: &Value| match lcore.get("shares_cpu").and_then(Value::as_bool) {
                Some(true) => ", shared with others, so that it yields",
                _ => "",
            };
            match list(open, "lcores") {
                several @ [_, _, ..] => {
                    for lcore in several {
                        let text = format!(
                            "CPU {}{}: {} connections, {} accepted, {} frames in, {} of them passed on, {} out",
                            number(lcore, "cpu"),
                            shares(lcore),
                            number(lcore, "flows"),
                            number(lcore, "flows_accepted"),
                            number(lcore, "rx_frames") + number(lcore, "frames_passed"),
                            number(lcore, "frames_passed"),
                            number(lcore, "tx_frames")
                        );
                        add("core", &text);
                    }
                }
                _ => add(
                    "core",
                    &format!("CPU {}{}", number(open, "cpu"), shares(open)),
                ),
            }
            if let Some(stats) = open.get("stats") {
                add(
                    "frames",
                    &format!(
                        "{} in, {} out, {} missed, {} not sent",
                        number(stats, "rx_frames"),
                        number(stats, "tx_frames"),
                        number(stats, "rx_missed"),
                        number(stats, "tx_dropped")
                    ),
                );
            }
        }
    }
    let addresses: Vec<&str> = list(host, "addresses")
        .iter()
        .filter_map(Value::as_str)
        .collect();
    add("address", &addresses.join(", "));
    let idle = match text(host, "idle") {
        "adaptive" => format!(
            "adaptive, polls {} us before it sleeps",
            number(host, "spin_us")
        ),
        other => other.to_owned(),
    };
    add("idle", &idle);
    add("progress", text(host, "progress"));
    if let Some(now) = host.get("now") {
        add(
            "sockets",
            &format!(
                "{} listening, {} connections of {} at most, {} in TIME-WAIT",
                number(now, "listeners"),
                number(now, "flows"),
                number(now, "flows_max"),
                number(now, "flows_resting")
            ),
        );
    }
    for program in list(host, "programs") {
        let pids = list(program, "processes").iter();
        let pids: Vec<String> = pids
            .map(|pid| format!("{} {pid}", process::name(pid, text(program, "program"))))
            .collect();
        let state = if program.get("left").and_then(Value::as_bool) == Some(true) {
            "ended; its connections are being finished".to_owned()
        } else {
            format!("accelerated: {}", pids.join(", "))
        };
        add(
            "program",
            &format!("{} ({state})", text(program, "program")),
        );
    }
    out
}

fn list<'a>(line: &'a Value, name: &str) -> &'a [Value] {
    line.get(name)
        .and_then(Value::as_array)
        .map_or(&[], Vec::as_slice)
}
