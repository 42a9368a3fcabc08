//! `knetctl latency`: how long things take in a host.

use std::collections::HashMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::host::{Hosts, UNAVAILABLE};
use crate::print;
use crate::spans::{Spans, span};

/// Measures for a while how long things take in each host.
///
/// turn: a turn of the loop that did something. rx_to_app: from the turn that fetched a frame to the program's read of its
/// bytes, for a sample of the connections; while one is watched, the lcore does not sleep. app_to_tx: from the program's
/// write to the port, at most. Buckets are at most a quarter wide. Nothing is measured when nobody asks.
///
/// Exit status: 0 told, 69 no host answers, 64 wrong usage.
#[derive(clap::Args, Debug)]
pub(crate) struct Latency {
    #[command(flatten)]
    hosts: Hosts,
    /// For so many seconds.
    #[arg(short, long, value_name = "SECONDS", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    duration: u64,
    /// Every bucket as well.
    #[arg(short, long)]
    buckets: bool,
    /// One JSON object on stdout, keyed by the hosts' sockets; buckets are [nanoseconds beyond, count].
    #[arg(long)]
    json: bool,
}

/// What is measured.
pub(crate) const KINDS: [&str; 3] = ["turn", "rx_to_app", "app_to_tx"];
/// Shares of a thousand that are told.
const SHARES: [(&str, u64); 5] = [
    ("p50", 500),
    ("p90", 900),
    ("p99", 990),
    ("p99.9", 999),
    ("max", 1_000),
];

impl Latency {
    /// Runs the command.
    pub(crate) fn execute(self) -> ExitCode {
        let query = json!({"query": "latency"});
        let mut sums: HashMap<PathBuf, Vec<Spans>> = HashMap::new();
        let mut before: HashMap<PathBuf, Value> = HashMap::new();
        for second in 0..=self.duration {
            if second > 0 {
                #[allow(
                    clippy::disallowed_methods,
                    reason = "a tool that waits for its next time"
                )]
                std::thread::sleep(Duration::from_secs(1));
            }
            let Some(answers) = self.hosts.ask(&query) else {
                if sums.is_empty() {
                    return ExitCode::from(UNAVAILABLE);
                }
                break;
            };
            for (socket, mut lines) in answers {
                let Some(now) = lines.pop() else { continue };
                let fresh = KINDS.map(|kind| {
                    let old = before.get(&socket);
                    // The first answer is what others had measured.
                    let old = old.map_or_else(|| Spans::of(&now, kind), |old| Spans::of(old, kind));
                    Spans::of(&now, kind).since(&old)
                });
                let sum = sums
                    .entry(socket.clone())
                    .or_insert_with(|| vec![Spans::default(); KINDS.len()]);
                for (sum, fresh) in sum.iter_mut().zip(&fresh) {
                    *sum = sum.plus(fresh);
                }
                before.insert(socket, now);
            }
        }
        let mut sums: Vec<(PathBuf, Vec<Spans>)> = sums.into_iter().collect();
        sums.sort_by(|(one, _), (other, _)| one.cmp(other));
        if self.json {
            let all: Map<String, Value> = sums
                .iter()
                .map(|(socket, spans)| (socket.display().to_string(), as_json(spans)))
                .collect();
            print::json(&Value::Object(all));
        } else {
            for (socket, spans) in &sums {
                if sums.len() > 1 {
                    print::line(&format!("# {}", socket.display()));
                }
                if !print::line(self.as_lines(spans).trim_end()) {
                    break;
                }
            }
        }
        ExitCode::SUCCESS
    }

    fn as_lines(&self, spans: &[Spans]) -> String {
        let mut header = vec!["".to_owned(), "count".to_owned()];
        header.extend(SHARES.map(|(name, _)| name.to_owned()));
        let mut rows = vec![header];
        for (kind, spans) in KINDS.iter().zip(spans) {
            let mut row = vec![(*kind).to_owned(), spans.count().to_string()];
            row.extend(SHARES.map(|(_, share)| span(spans.at_most(share))));
            rows.push(row);
        }
        let mut out = print::table(&rows);
        if self.buckets {
            for (kind, spans) in KINDS.iter().zip(spans) {
                let most = spans
                    .buckets()
                    .iter()
                    .map(|(_, count)| *count)
                    .max()
                    .unwrap_or(1);
                out.push_str(&format!("\n{kind}\n"));
                for (beyond, count) in spans.buckets() {
                    let bar = usize::try_from(count * BAR / most).unwrap_or(0);
                    out.push_str(&format!(
                        "  <{:>10} {count:>10} {}\n",
                        span(Some(*beyond)),
                        "#".repeat(bar)
                    ));
                }
            }
        }
        out
    }
}

/// Columns of the longest bar.
const BAR: u64 = 40;

fn as_json(spans: &[Spans]) -> Value {
    let all = KINDS.iter().zip(spans).map(|(kind, spans)| {
        let mut one = json!({ "count": spans.count(), "buckets": spans.buckets() });
        if let Some(one) = one.as_object_mut() {
            for (name, share) in SHARES {
                one.insert(format!("{name}_ns"), json!(spans.at_most(share)));
            }
        }
        ((*kind).to_owned(), one)
    });
    Value::Object(all.collect())
}
