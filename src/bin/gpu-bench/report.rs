//! What was seen: progress on stderr, a table, JSON.

use core::fmt::Write as _;
use std::fs;
use std::io;

use knet::gpu::rig::Registration;
use serde_json::{Value, json};

use crate::arguments::Arguments;
use crate::measure::Sample;
use crate::place::Place;

/// Frames of 1 KiB a second that 100 Gbit/s Ethernet carries, in millions (8 bytes of preamble and 12 between frames).
const LINE_RATE_MPPS: f64 = 12.0;

/// Figures of one place.
pub(crate) struct Report {
    place: String,
    is_device: bool,
    facts: Value,
    figures: Vec<Figure>,
    copy: Option<Value>,
    registration: Vec<Value>,
    /// What other work on the GPU lost, and what it cost.
    beside: Vec<Value>,
    /// Part, verdict, words.
    checks: Vec<(String, &'static str, String)>,
    is_whole: bool,
    settings: Value,
}

/// A figure with its repetitions.
pub(crate) struct Figure {
    pub(crate) part: &'static str,
    pub(crate) kernel: &'static str,
    pub(crate) mode: &'static str,
    /// Of the CPU version; 0 for a GPU.
    pub(crate) threads: usize,
    /// Where payload lay.
    pub(crate) memory: &'static str,
    pub(crate) batch: usize,
    pub(crate) out: usize,
    pub(crate) payload: usize,
    pub(crate) samples: Vec<Sample>,
}

impl Figure {
    /// Of the repetitions: least, median, greatest.
    fn mpps(&self) -> [f64; 3] {
        let mut all: Vec<f64> = self.samples.iter().map(|sample| sample.mpps).collect();
        all.sort_by(f64::total_cmp);
        let at = |place: usize| all.get(place).copied().unwrap_or(0.0);
        [at(0), at(all.len() / 2), at(all.len().saturating_sub(1))]
    }

    /// Medians of median, 99 of 100 and longest latency.
    fn latency(&self) -> [f64; 3] {
        [0, 1, 2].map(|which| {
            let of = |sample: &Sample| sample.latency.get(which).copied();
            let mut all: Vec<f64> = self.samples.iter().filter_map(of).collect();
            all.sort_by(f64::total_cmp);
            all.get(all.len() / 2).copied().unwrap_or(0.0)
        })
    }

    fn cpu(&self) -> f64 {
        let all: f64 = self.samples.iter().map(|sample| sample.cpu).sum();
        all / self.samples.len().max(1) as f64
    }

    /// Only what a device did is told in bits.
    fn gbit(&self, is_device: bool) -> Option<f64> {
        let [_, mpps, _] = self.mpps();
        (is_device && self.mode != "cpu").then(|| mpps * self.payload as f64 * 8.0 / 1e3)
    }

    fn line(&self, is_device: bool) -> String {
        let [least, mpps, most] = self.mpps();
        let [p50, p99, longest] = self.latency();
        let gbit = self.gbit(is_device);
        let gbit = gbit.map_or_else(|| "-".to_owned(), |gbit| format!("{gbit:.1}"));
        let number = |value: usize| {
            if value == 0 {
                "-".to_owned()
            } else {
                value.to_string()
            }
        };
        let time = |value: f64| {
            if self.batch == 0 {
                "-".to_owned()
            } else {
                format!("{value:.1}")
            }
        };
        format!(
            "{:<9} {:<9} {:<11} {:<4} {:>5} {:>4} {:>8} {mpps:>9.4} {:>17} {gbit:>8} {:>9} {:>9} {:>9} {:>5.2}",
            self.part,
            self.kernel,
            match self.threads {
                0 | 1 => self.mode.to_owned(),
                threads => format!("{} x{threads}", self.mode),
            },
            self.memory,
            number(self.batch),
            number(self.out),
            self.payload,
            format!("{least:.4}..{most:.4}"),
            time(p50),
            time(p99),
            time(longest),
            self.cpu()
        )
    }

    fn value(&self, place: &str, is_device: bool) -> Value {
        let [least, mpps, most] = self.mpps();
        let [p50, p99, longest] = self.latency();
        json!({
            "where": if self.mode == "cpu" { "cpu" } else { place },
            "part": self.part, "kernel": self.kernel, "mode": self.mode, "batch": self.batch, "out": self.out,
            "payload": self.payload, "memory": self.memory, "threads": self.threads, "mpps": mpps, "mpps_least": least, "mpps_greatest": most,
            "gbit_s": self.gbit(is_device), "latency_us_p50": p50, "latency_us_p99": p99, "latency_us_max": longest,
            "cpu_s_a_second": self.cpu(),
        })
    }
}

const HEAD: &str = "part      kernel    mode        mem  batch  out  payload      Mpps     least..most    Gbit/s    p50 us    p99 us    max us   CPU";

impl Report {
    pub(crate) fn new(place: &Place, arguments: &Arguments) -> Self {
        let facts = place.facts().into_iter();
        Self {
            place: place.name(),
            is_device: place.is_device(),
            facts: facts
                .map(|(name, value)| (name.to_owned(), Value::from(value)))
                .collect(),
            figures: Vec::new(),
            copy: None,
            registration: Vec::new(),
            beside: Vec::new(),
            checks: Vec::new(),
            is_whole: true,
            settings: json!({
                "seed": arguments.seed, "milliseconds": arguments.milliseconds, "repeats": arguments.repeats,
                "rules": arguments.rules, "memory_mib": arguments.memory_mib, "blocks": arguments.blocks,
            }),
        }
    }

    pub(crate) fn figure(&mut self, figure: Figure) {
        if self.figures.is_empty() {
            eprintln!("{HEAD}");
        }
        eprintln!("{}", figure.line(self.is_device));
        self.figures.push(figure);
    }

    pub(crate) fn copy(&mut self, bytes: usize, seconds: f64) {
        let rate = bytes as f64 / seconds / 1e9;
        eprintln!(
            "ceilings  copy of {} MiB of pageable memory to the GPU: {seconds:.4} s",
            bytes >> 20
        );
        self.copy = Some(json!({
            "where": self.place, "bytes": bytes, "seconds": seconds, "gbyte_s": self.is_device.then_some(rate),
        }));
    }

    /// Host memory of such pages was registered, or why not.
    pub(crate) fn registration(&mut self, pages: &str, seen: Result<Registration, String>) {
        self.registration.push(match seen {
            Err(why) => json!({"where": self.place, "pages": pages, "words": format!("registration  {pages} pages: {why}")}),
            Ok(Registration { bytes, took, same_pointer }) => {
                let seconds = took.as_secs_f64();
                let per_gib = seconds * (1_u64 << 30) as f64 / bytes as f64;
                let name = if same_pointer { "the same addresses" } else { "other addresses" };
                json!({
                    "where": self.place, "pages": pages, "bytes": bytes, "seconds": seconds, "seconds_per_gib": per_gib,
                    "same_pointer": same_pointer,
                    "words": format!("registration  {pages} pages: {} MiB in {seconds:.4} s, {per_gib:.3} s a GiB, {name} on both sides", bytes >> 20),
                })
            }
        });
        if let Some(words) = self.registration.last().and_then(words) {
            eprintln!("{words}");
        }
    }

    /// Launches a second of other work, alone and beside a mode.
    pub(crate) fn beside(&mut self, whose: &str, mode: &str, [alone, beside]: [f64; 2]) {
        eprintln!(
            "beside    mode {mode}: {whose} makes {alone:.0} launches a second alone, {beside:.0} beside it"
        );
        self.beside.push(json!({
            "where": self.place, "whose": whose, "mode": mode, "launches_s_alone": alone, "launches_s_beside": beside,
        }));
    }

    fn check(&mut self, part: &str, verdict: &'static str, words: &str) {
        eprintln!("{verdict} {part}: {words}");
        self.checks
            .push((part.to_owned(), verdict, words.to_owned()));
    }

    pub(crate) fn passed(&mut self, part: &str, words: &str) {
        self.check(part, "PASS", words);
    }

    pub(crate) fn failed(&mut self, part: &str, words: &str) {
        self.check(part, "FAIL", words);
    }

    pub(crate) fn skip(&mut self, part: &str, words: &str) {
        self.check(part, "SKIP", words);
    }

    pub(crate) const fn interrupted(&mut self) {
        self.is_whole = false;
    }

    pub(crate) fn is_good(&self) -> bool {
        self.checks.iter().all(|(_, verdict, _)| *verdict != "FAIL")
    }

    /// Everything, for people.
    pub(crate) fn table(&self) -> String {
        let mut text = format!("\nWhere: {}\n", self.place);
        if !self.is_device {
            text.push_str(
                "No GPU did this: the figures say nothing of one, and no rate of bits is given.\n",
            );
        }
        if !self.is_whole {
            text.push_str("Interrupted: this is what was seen until then.\n");
        }
        for (part, verdict, words) in &self.checks {
            let _ = writeln!(text, "{verdict} {part}: {words}");
        }
        if !self.figures.is_empty() {
            let _ = writeln!(text, "\n{HEAD}");
        }
        for figure in &self.figures {
            let _ = writeln!(text, "{}", figure.line(self.is_device));
        }
        for words in self.registration.iter().filter_map(words) {
            let _ = writeln!(text, "{words}");
        }
        for row in &self.beside {
            let number = |name: &str| row.get(name).and_then(Value::as_f64).unwrap_or(0.0);
            let word = |name: &str| row.get(name).and_then(Value::as_str).unwrap_or_default();
            let _ = writeln!(
                text,
                "beside    mode {}: {} makes {:.0} launches a second alone, {:.0} beside it",
                word("mode"),
                word("whose"),
                number("launches_s_alone"),
                number("launches_s_beside")
            );
        }
        text.push_str(&self.shape());
        text
    }

    /// The article's question: which mode holds 100 GbE of 1 KiB frames, and from which batch on.
    fn shape(&self) -> String {
        let mut text = String::new();
        let wanted = |figure: &&Figure| {
            figure.part == "sweep" && figure.payload == 1_024 && figure.memory == "host"
        };
        let mut seen: Vec<(&str, &str)> = Vec::new();
        for figure in self.figures.iter().filter(wanted) {
            if seen.contains(&(figure.kernel, figure.mode)) {
                continue;
            }
            seen.push((figure.kernel, figure.mode));
            let same = |other: &&Figure| (other.kernel, other.mode) == (figure.kernel, figure.mode);
            let mut batches: Vec<&Figure> =
                self.figures.iter().filter(wanted).filter(same).collect();
            batches.sort_by_key(|figure| figure.batch);
            let holds = batches
                .iter()
                .find(|figure| figure.mpps()[1] >= LINE_RATE_MPPS);
            let article = match figure.mode {
                "persistent" => "32",
                "launch" => "64",
                _ => "-",
            };
            let holds = holds.map_or_else(|| "none".to_owned(), |figure| figure.batch.to_string());
            let _ = writeln!(
                text,
                "{:<9} {:<11} {holds:>22} {article:>12}",
                figure.kernel, figure.mode
            );
        }
        if !text.is_empty() {
            text.insert_str(
                0,
                &format!("\nLeast batch that holds {LINE_RATE_MPPS:.1} Mpps (1 KiB frames at 100 GbE) on {}\nkernel    mode                        here  the article\n", self.place),
            );
        }
        text
    }

    /// Writes everything as JSON to `path`, or to stdout.
    pub(crate) fn write(&self, path: &str) -> io::Result<()> {
        let figures = self.figures.iter();
        let all = json!({
            "where": self.place, "is_device": self.is_device, "version": knet::BUILD_VERSION, "whole": self.is_whole,
            "facts": self.facts, "settings": self.settings,
            "checks": self.checks.iter().map(|(part, verdict, words)| json!({"part": part, "verdict": verdict, "words": words})).collect::<Vec<_>>(),
            "figures": figures.map(|figure| figure.value(&self.place, self.is_device)).collect::<Vec<_>>(),
            "copy_to_device": self.copy,
            "registration": self.registration,
            "beside": self.beside,
        });
        let text = format!("{all:#}\n");
        if path == "-" {
            print!("{text}");
            return Ok(());
        }
        fs::write(path, text)
    }
}

/// A row as a line.
fn words(row: &Value) -> Option<&str> {
    row.get("words")?.as_str()
}
