//! `knetctl top`: a live screen of the hosts.

use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use knet::ffi::end_signals::EndSignals;
use knet::time::{Instant, monotonic};
use serde_json::{Value, json};

use crate::USAGE;
use crate::host::{self, Hosts, UNAVAILABLE};
use crate::latency::KINDS;
use crate::print::{self, number, text};
use crate::process;
use crate::spans::{Spans, span};

#[path = "top/screen.rs"]
mod screen;

use screen::{Key, Screen};

/// A live screen: rates, drops with their reasons, times of the loop, load of each lcore, programs.
///
/// Keys: q or ^C ends, space asks at once, + and - change the interval, the arrows or j and k move over what does not fit.
/// While it runs, hosts measure their latencies.
///
/// Exit status: 0 ended by the user or with its hosts, 64 wrong usage, or no terminal, 69 no host answers.
#[derive(clap::Args, Debug)]
pub(crate) struct Top {
    #[command(flatten)]
    hosts: Hosts,
    /// Between two looks.
    #[arg(short, long, value_name = "SECONDS", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=60))]
    interval: u64,
    /// Two looks, one interval apart, as one JSON array; no terminal is needed.
    #[arg(long)]
    json: bool,
}

/// What one look saw of a host.
#[derive(Clone, Debug)]
struct Look {
    socket: PathBuf,
    at: Instant,
    status: Value,
    stats: Value,
    latency: Value,
}

impl Top {
    /// Runs the command.
    pub(crate) fn execute(self) -> ExitCode {
        let first = match self.look() {
            Ok(first) => first,
            Err(fault) => {
                complain!("knetctl: {fault}");
                return ExitCode::from(UNAVAILABLE);
            }
        };
        if self.json {
            #[allow(
                clippy::disallowed_methods,
                reason = "a tool that waits for its next time"
            )]
            std::thread::sleep(Duration::from_secs(self.interval));
            let second = self.look().unwrap_or_default();
            let hosts = second
                .iter()
                .map(|now| Shown::of(now, before(&first, now)).as_json(now));
            print::json(&Value::Array(hosts.collect()));
            return ExitCode::SUCCESS;
        }
        if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
            complain!("knetctl: top needs a terminal (--json does not)");
            return ExitCode::from(USAGE);
        }
        let screen = match Screen::open() {
            Ok(screen) => screen,
            Err(error) => {
                complain!("knetctl: terminal: {error}");
                return ExitCode::from(USAGE);
            }
        };
        let ended = self.run(first, &screen);
        drop(screen);
        match ended {
            Ok(None) => {}
            // Told where it stays to be read.
            Ok(Some(why)) => complain!("knetctl: {why}"),
            Err(error) => complain!("knetctl: terminal: {error}"),
        }
        ExitCode::SUCCESS
    }

    /// Asks every host everything; why not, when none answers.
    fn look(&self) -> Result<Vec<Look>, String> {
        let mut looks = Vec::new();
        for socket in self.hosts.find()? {
            let ask = |name: &str| host::ask(&socket, &json!({ "query": name })).ok()?.pop();
            if let (Some(status), Some(stats), Some(latency)) =
                (ask("status"), ask("stats"), ask("latency"))
            {
                looks.push(Look {
                    socket,
                    at: monotonic(),
                    status,
                    stats,
                    latency,
                });
            }
        }
        if looks.is_empty() {
            return Err("no host answers".to_owned());
        }
        Ok(looks)
    }

    /// Draws until it is ended; says why, if it was not by a key.
    fn run(&self, first: Vec<Look>, screen: &Screen) -> io::Result<Option<String>> {
        let signals = EndSignals::catch()?;
        let mut interval = self.interval;
        let mut from = 0;
        let mut old = first.clone();
        let mut now = first;
        loop {
            from = screen.draw(&lines(&now, &old, interval), from)?;
            match screen.wait(&signals, Duration::from_secs(interval))? {
                Key::End => return Ok(None),
                Key::Longer => interval = (interval + 1).min(60),
                Key::Shorter => interval = (interval - 1).max(1),
                Key::Down => from += 1,
                Key::Up => from = from.saturating_sub(1),
                Key::Other => {}
                Key::Ask | Key::None => match self.look() {
                    Ok(fresh) => old = core::mem::replace(&mut now, fresh),
                    Err(why) => return Ok(Some(why)),
                },
            }
        }
    }
}

fn before<'a>(old: &'a [Look], now: &Look) -> Option<&'a Look> {
    old.iter().find(|old| {
        old.socket == now.socket && number(&old.status, "process") == number(&now.status, "process")
    })
}

/// A host in numbers.
struct Shown {
    /// A second: name, value.
    rates: Vec<(&'static str, u64)>,
    /// Reason of a drop, and how many a second.
    drops: Vec<(String, u64)>,
    /// Share of turns that did something, in percent, and turns a second.
    busy: u64,
    spans: [Spans; 3],
}

/// What is shown as rates: layer, counter, words.
const RATES: [(&str, &str, &str); 10] = [
    ("stack", "rx_frames", "frames in"),
    ("stack", "tx_frames", "frames out"),
    ("stack", "rx_bytes", "bytes in"),
    ("stack", "tx_bytes", "bytes out"),
    ("stack", "flows_accepted", "accepted"),
    ("stack", "flows_connected", "connected"),
    ("stack", "flows_freed", "ended"),
    ("lcore", "wakeups", "wake-ups"),
    ("lcore", "turns", "turns"),
    ("lcore", "sleeps", "sleeps"),
];

/// What in a counter's name says that something was lost.
const LOSSES: [&str; 6] = [
    "dropped",
    "refused",
    "timed_out",
    "reset_by_peer",
    "missed",
    "no_memory",
];

impl Shown {
    fn of(now: &Look, old: Option<&Look>) -> Self {
        let millis = old.map_or(1_000, |old| {
            u64::try_from(now.at.since(old.at).as_millis())
                .unwrap_or(1_000)
                .max(1)
        });
        let value = |look: &Look, layer: &str, name: &str| {
            look.stats.get(layer).map_or(0, |group| number(group, name))
        };
        let rate = |layer: &str, name: &str| {
            let came = old.map_or(0, |old| {
                value(now, layer, name).saturating_sub(value(old, layer, name))
            });
            came.saturating_mul(1_000).div_ceil(millis)
        };
        let mut drops = Vec::new();
        for layer in ["port", "lcore", "stack"] {
            for (name, _) in now
                .stats
                .get(layer)
                .and_then(Value::as_object)
                .into_iter()
                .flatten()
            {
                let lost = LOSSES.iter().any(|loss| name.contains(loss));
                let came = if lost { rate(layer, name) } else { 0 };
                if came > 0 {
                    drops.push((name.replace('_', " "), came));
                }
            }
        }
        drops.sort_by_key(|(_, came)| core::cmp::Reverse(*came));
        let (turns, idle) = (rate("lcore", "turns"), rate("lcore", "turns_idle"));
        let busy = (turns.saturating_sub(idle) * 100)
            .checked_div(turns)
            .unwrap_or(0);
        let spans = KINDS.map(|kind| {
            let fresh = Spans::of(&now.latency, kind);
            old.map_or_else(Spans::default, |old| {
                fresh.since(&Spans::of(&old.latency, kind))
            })
        });
        Self {
            rates: RATES
                .iter()
                .map(|(layer, name, words)| (*words, rate(layer, name)))
                .collect(),
            drops,
            busy,
            spans,
        }
    }

    fn as_json(&self, now: &Look) -> Value {
        let rates: serde_json::Map<String, Value> = self
            .rates
            .iter()
            .map(|(name, rate)| (name.replace([' ', '-'], "_"), json!(rate)))
            .collect();
        let drops: serde_json::Map<String, Value> = self
            .drops
            .iter()
            .map(|(name, rate)| (name.replace(' ', "_"), json!(rate)))
            .collect();
        let latency: serde_json::Map<String, Value> = KINDS
            .iter()
            .zip(&self.spans)
            .map(|(kind, spans)| {
                let one = json!({"count": spans.count(), "p50_ns": spans.at_most(500), "p99_ns": spans.at_most(990)});
                ((*kind).to_owned(), one)
            })
            .collect();
        json!({
            "socket": now.socket.display().to_string(),
            "process": now.status.get("process"),
            "rates": rates,
            "drops": drops,
            "busy_percent": self.busy,
            "latency": latency,
            "now": now.stats.get("now"),
        })
    }
}

/// The screen's text.
fn lines(now: &[Look], old: &[Look], interval: u64) -> Vec<String> {
    let mut out = vec![format!(
        "knet {}  {} hosts, every {interval} s  (q ends, + - interval)",
        knet::BUILD_VERSION,
        now.len()
    )];
    for look in now {
        let shown = Shown::of(look, before(old, look));
        let rate = |name: &str| {
            shown
                .rates
                .iter()
                .find(|(other, _)| *other == name)
                .map_or(0, |(_, rate)| *rate)
        };
        let status = &look.status;
        let open = status.get("open").cloned().unwrap_or_default();
        let gauge = |name: &str| status.get("now").map_or(0, |now| number(now, name));
        out.push(String::new());
        out.push(format!(
            "host {}  {}  link {}",
            number(status, "process"),
            print::plain(status.get("port")),
            text(&open, "link")
        ));
        out.push(format!(
            "  lcore CPU {:<4} {:>3} % of turns with work   {:>10} turns/s  {:>8} sleeps/s  {:>8} wake-ups/s",
            number(&open, "cpu"),
            shown.busy,
            rate("turns"),
            rate("sleeps"),
            rate("wake-ups")
        ));
        for lcore in several(status) {
            out.push(format!(
                "  lcore CPU {:<4} {:>10} connections {:>12} accepted {:>14} frames in {:>14} passed on",
                number(lcore, "cpu"),
                number(lcore, "flows"),
                number(lcore, "flows_accepted"),
                number(lcore, "rx_frames") + number(lcore, "frames_passed"),
                number(lcore, "frames_passed")
            ));
        }
        for (way, frames, bytes) in [
            ("in", "frames in", "bytes in"),
            ("out", "frames out", "bytes out"),
        ] {
            out.push(format!(
                "  {way:<4} {:>10} frames/s  {:>14}",
                rate(frames),
                bits(rate(bytes))
            ));
        }
        out.push(format!(
            "  connections {} of {}, {} listening, {} in TIME-WAIT;  {} accepted/s, {} connected/s, {} ended/s",
            gauge("flows"),
            gauge("flows_max"),
            gauge("listeners"),
            gauge("flows_resting"),
            rate("accepted"),
            rate("connected"),
            rate("ended")
        ));
        for (kind, spans) in KINDS.iter().zip(&shown.spans) {
            out.push(format!(
                "  {kind:<10} p50 {:>10}  p99 {:>10}  max {:>10}  ({})",
                span(spans.at_most(500)),
                span(spans.at_most(990)),
                span(spans.at_most(1_000)),
                spans.count()
            ));
        }
        if shown.drops.is_empty() {
            out.push("  drops      none".to_owned());
        }
        for (reason, came) in shown.drops.iter().take(8) {
            out.push(format!("  drops      {came:>10} /s  {reason}"));
        }
        for program in status
            .get("programs")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
        {
            let pids = program.get("processes").and_then(Value::as_array);
            let names: Vec<String> = pids
                .into_iter()
                .flatten()
                .map(|pid| format!("{} {pid}", process::name(pid, text(program, "program"))))
                .collect();
            out.push(format!("  program    {}", names.join(", ")));
        }
    }
    out
}

/// The lcores of a host, where there are several.
fn several(status: &Value) -> &[Value] {
    match status
        .get("open")
        .and_then(|open| open.get("lcores"))
        .and_then(Value::as_array)
    {
        Some(lcores) if lcores.len() > 1 => lcores,
        _ => &[],
    }
}

fn bits(bytes: u64) -> String {
    let bits = bytes.saturating_mul(8);
    match bits {
        0..1_000_000 => format!("{} kbit/s", bits / 1_000),
        1_000_000..10_000_000_000 => format!("{} Mbit/s", bits / 1_000_000),
        _ => format!("{} Gbit/s", bits / 1_000_000_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(seconds: u64, frames: u64, dropped: u64) -> Look {
        Look {
            socket: "/x".into(),
            at: Instant::from_millis(seconds * 1_000),
            status: json!({"process": 7, "port": "p", "open": {"cpu": 3, "link": "up"}, "now": {"flows": 5}}),
            stats: json!({"stack": {"rx_frames": frames, "rx_bytes": frames * 1_000, "rx_dropped_land": dropped},
                "lcore": {"turns": seconds * 100, "turns_idle": seconds * 75}}),
            latency: json!({"turn": [[2_000, seconds]]}),
        }
    }

    #[test]
    fn the_screen_shows_rates_drops_and_load() {
        let (old, now) = (look(1, 100, 0), look(3, 5_100, 8));
        let screen = lines(&[now], &[old], 2).join("\n");
        for part in [
            "2500 frames/s",
            "20 Mbit/s",
            "25 % of turns",
            "4 /s  rx dropped land",
            "connections 5 of",
            "p50    2.00 us",
            "CPU 3",
        ] {
            assert!(screen.contains(part), "{part}: {screen}");
        }
        let first = lines(&[look(1, 100, 5)], &[], 1).join("\n");
        assert!(
            first.contains("drops      none") && first.contains("0 frames/s"),
            "{first}"
        );
    }
}
