//! Log lines, `key=value`, through a sink that the binaries wire to `tracing`.
//!
//! A place that says the same thing too often is held back and counted (see [`super::flood`]).
//!
//! Without a sink (the program side) a line goes to descriptor 2 by one raw `write`, formatted in a
//! buffer on the stack: no allocation, no lock, safe in a signal handler.

use core::fmt::{self, Write};
use core::sync::atomic::{AtomicU8, Ordering};
use std::sync::OnceLock;

use super::flood::{FLOOD, Passage, Site};
use crate::file_limit;
use crate::time::{self, Instant};

/// How much a line matters.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum Level {
    /// Service is lost.
    Error = 1,
    /// Degraded or refused.
    Warn = 2,
    /// Once per process or socket lifetime.
    Info = 3,
    /// Off on the data path.
    Debug = 4,
}

/// Takes a finished line, without a newline.
pub type Sink = fn(Level, &str);

static SINK: OnceLock<Sink> = OnceLock::new();
static THRESHOLD: AtomicU8 = AtomicU8::new(Level::Warn as u8);

/// Sends all later lines to `sink`. A binary does this once, at start; later calls change nothing.
pub fn set_sink(sink: Sink) {
    let _ = SINK.set(sink);
}

static REOPEN: OnceLock<fn()> = OnceLock::new();

/// Sets what opens the log's file again. A binary does this once, at start.
pub fn set_reopen(reopen: fn()) {
    let _ = REOPEN.set(reopen);
}

/// Opens the log's file again, where it goes to one: the old one was moved away.
pub fn reopen() {
    if let Some(reopen) = REOPEN.get() {
        reopen();
    }
}

/// Drops lines less important than `level`.
pub fn set_threshold(level: Level) {
    THRESHOLD.store(level as u8, Ordering::Relaxed);
}

static NOTICE: OnceLock<fn()> = OnceLock::new();

/// Sets what is called whenever a line is held back: somebody is to call [`summarise`] some time later. It must not wait. A
/// binary does this once, at start.
pub fn set_notice(notice: fn()) {
    let _ = NOTICE.set(notice);
}

/// Writes how many lines were held back, by the places whose time of that is over at `now`, or by all of them. True: some
/// still hold lines back.
pub fn summarise(now: Option<Instant>) -> bool {
    FLOOD.drain(now, &mut |line, count| {
        let text = format_args!("event=lines_held_back count={count} line='{line}'");
        put(Level::Warn, text, 0);
    })
}

/// Writes one line of a place in the code, unless it says too much. Use the macros [`crate::error!`], [`crate::warn!`],
/// [`crate::info!`] and [`crate::debug!`].
pub fn write(site: &'static Site, level: Level, text: fmt::Arguments<'_>) {
    if level as u8 > THRESHOLD.load(Ordering::Relaxed) {
        return;
    }
    match site.pass(time::monotonic()) {
        Passage::Written { held } => put(level, text, held),
        Passage::Held => {
            FLOOD.add(site);
            if let Some(notice) = NOTICE.get() {
                notice();
            }
        }
    }
}

/// Writes one line, before which `held` like it were not written.
fn put(level: Level, text: fmt::Arguments<'_>, held: u64) {
    let mut line = Line::default();
    let held = Held(held);
    // Only a load: the program side never sets a sink, so a signal handler never waits here.
    if let Some(sink) = SINK.get() {
        let _ = write!(line, "{text}{held}");
        sink(
            level,
            core::str::from_utf8(line.bytes()).unwrap_or("line is not text"),
        );
        return;
    }
    // A full buffer cuts the line; the cut is the only possible error.
    let _ = writeln!(line, "knet: {text}{held}");
    line.end();
    let error = rustix::stdio::stderr();
    if file_limit::has_room(error, line.bytes().len()) {
        let _ = rustix::io::write(error, line.bytes());
    }
}

/// The end of a line before which some were held back.
struct Held(u64);

impl fmt::Display for Held {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => Ok(()),
            count => write!(out, " held_back={count}"),
        }
    }
}

/// The longest line, in bytes.
const LINE_BYTES: usize = 1024;

struct Line {
    buffer: [u8; LINE_BYTES],
    used: usize,
}

impl Default for Line {
    fn default() -> Self {
        Self {
            buffer: [0; LINE_BYTES],
            used: 0,
        }
    }
}

impl Line {
    fn bytes(&self) -> &[u8] {
        self.buffer.get(..self.used).unwrap_or(&[])
    }

    fn end(&mut self) {
        if self.used == LINE_BYTES
            && let Some(last) = self.buffer.last_mut()
        {
            *last = b'\n';
        }
    }
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = LINE_BYTES - self.used;
        let mut count = text.len().min(room);
        while !text.is_char_boundary(count) {
            count -= 1;
        }
        if let (Some(to), Some(from)) = (
            self.buffer.get_mut(self.used..self.used + count),
            text.as_bytes().get(..count),
        ) {
            to.copy_from_slice(from);
        }
        self.used += count;
        if count < text.len() {
            Err(fmt::Error)
        } else {
            Ok(())
        }
    }
}

/// A line of the level, with a [`Site`](crate::telemetry::flood::Site) of its own for the place where this stands.
#[doc(hidden)]
#[macro_export]
macro_rules! log_line {
    ($level:ident, $line:literal $($rest:tt)*) => {{
        static SITE: $crate::telemetry::flood::Site = $crate::telemetry::flood::Site::new($line);
        $crate::telemetry::log::write(&SITE, $crate::telemetry::Level::$level, format_args!($line $($rest)*))
    }};
}

/// Logs that service is lost.
#[macro_export]
macro_rules! error {
    ($($part:tt)*) => { $crate::log_line!(Error, $($part)*) };
}

/// Logs that something is degraded or refused.
#[macro_export]
macro_rules! warn {
    ($($part:tt)*) => { $crate::log_line!(Warn, $($part)*) };
}

/// Logs a fact that is told once per process or socket lifetime.
#[macro_export]
macro_rules! info {
    ($($part:tt)*) => { $crate::log_line!(Info, $($part)*) };
}

/// Logs a detail.
#[macro_export]
macro_rules! debug {
    ($($part:tt)*) => { $crate::log_line!(Debug, $($part)*) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_line_is_cut_at_a_character_and_ends() {
        let mut line = Line::default();
        assert!(write!(line, "{}", "\u{e9}".repeat(LINE_BYTES)).is_err());
        core::str::from_utf8(line.bytes()).unwrap();
        line.end();
        assert_eq!(line.bytes().last(), Some(&b'\n'));
    }
}
