//! `knetctl stats`: every counter of a host.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::host::{Hosts, UNAVAILABLE};
use crate::print;

/// Prints the counters of every host found, one `layer.name value` line each.
///
/// `now.` is what is there at the moment; the rest only grows. With --interval the difference to the last time is printed
/// each time (that of all lcores together), until the host is gone or nobody reads.
///
/// Exit status: 0 told, 69 no host answers, 64 wrong usage.
#[derive(clap::Args, Debug)]
pub(crate) struct Stats {
    #[command(flatten)]
    hosts: Hosts,
    /// One JSON object on stdout, keyed by the hosts' sockets.
    #[arg(long)]
    json: bool,
    /// Counters that are zero too.
    #[arg(short, long)]
    all: bool,
    /// Again every so many seconds, then as differences.
    #[arg(short, long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    interval: Option<u64>,
    /// With --interval: end after so many times.
    #[arg(short, long, value_name = "TIMES", requires = "interval")]
    count: Option<u64>,
}

/// Groups of an answer, in the order of printing.
const GROUPS: [&str; 5] = ["now", "port", "lcore", "stack", "gpu"];

impl Stats {
    /// Runs the command.
    pub(crate) fn execute(self) -> ExitCode {
        let query = json!({"query": "stats"});
        let mut before: Option<Vec<(PathBuf, Value)>> = None;
        let mut times = 0;
        loop {
            let Some(answers) = self.hosts.ask(&query) else {
                // Hosts that were there and ended are the end, not a fault.
                let code = if times == 0 { UNAVAILABLE } else { 0 };
                return ExitCode::from(code);
            };
            let told: Vec<(PathBuf, Value)> = answers
                .into_iter()
                .filter_map(|(socket, mut lines)| Some((socket, lines.pop()?)))
                .collect();
            let shown: Vec<(PathBuf, Value)> = told
                .iter()
                .map(|(socket, now)| {
                    let old = before.iter().flatten().find(|(other, _)| other == socket);
                    (socket.clone(), self.shape(now, old.map(|(_, old)| old)))
                })
                .collect();
            times += 1;
            if !self.print(&shown) || self.interval.is_none() || self.count == Some(times) {
                return ExitCode::SUCCESS;
            }
            before = Some(told);
            #[allow(
                clippy::disallowed_methods,
                reason = "a tool that waits for its next time"
            )]
            std::thread::sleep(Duration::from_secs(self.interval.unwrap_or(1)));
        }
    }

    /// What is shown of an answer: differences to `old`, zeros only when asked for.
    fn shape(&self, now: &Value, old: Option<&Value>) -> Value {
        let mut all = now.as_object().cloned().unwrap_or_default();
        if old.is_some() {
            // Each lcore's are totals; the differences are those of all together.
            all.remove("lcores");
        }
        for group in GROUPS {
            let Some(Value::Object(values)) = all.get_mut(group) else {
                continue;
            };
            if group != "now"
                && let Some(old) = old.and_then(|old| old.get(group))
            {
                for (name, value) in &mut *values {
                    let difference = value
                        .as_u64()
                        .unwrap_or(0)
                        .saturating_sub(print::number(old, name));
                    *value = Value::from(difference);
                }
            }
            if !self.all {
                values.retain(|_, value| value.as_u64() != Some(0));
            }
        }
        Value::Object(all)
    }

    fn print(&self, shown: &[(PathBuf, Value)]) -> bool {
        if self.json {
            let all: Map<String, Value> = shown
                .iter()
                .map(|(socket, value)| (socket.display().to_string(), value.clone()))
                .collect();
            return print::json(&Value::Object(all));
        }
        shown.iter().all(|(socket, value)| {
            (shown.len() == 1 || print::line(&format!("# {}", socket.display())))
                && print::line(as_lines(value).trim_end())
        })
    }
}

/// One line a counter.
fn as_lines(report: &Value) -> String {
    let mut out = String::new();
    for (name, value) in report.as_object().into_iter().flatten() {
        if !value.is_object() && !value.is_array() {
            out.push_str(&format!("{name} {}\n", print::plain(Some(value))));
        }
    }
    for group in GROUPS {
        for (name, value) in report
            .get(group)
            .and_then(Value::as_object)
            .into_iter()
            .flatten()
        {
            out.push_str(&format!("{group}.{name} {value}\n"));
        }
    }
    // What each of several carries; one alone carries what stands above.
    let lcores = report.get("lcores").and_then(Value::as_array);
    for (number, lcore) in lcores
        .filter(|lcores| lcores.len() > 1)
        .into_iter()
        .flatten()
        .enumerate()
    {
        for (name, value) in lcore.as_object().into_iter().flatten() {
            out.push_str(&format!("lcores.{number}.{name} {value}\n"));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_a_name_and_a_number() {
        let one = json!({"process": 7, "version": "1", "stack": {"rx_frames": 5}, "lcores": [{"flows": 3}]});
        assert_eq!(as_lines(&one), "process 7\nversion 1\nstack.rx_frames 5\n");
        let two = json!({"stack": {"rx_frames": 5}, "lcores": [{"flows": 3}, {"flows": 4}]});
        let wanted = "stack.rx_frames 5\nlcores.0.flows 3\nlcores.1.flows 4\n";
        assert_eq!(as_lines(&two), wanted);
    }
}
