//! Log lines, `key=value`, through a sink that the binaries wire to `tracing`.
//!
//! Without a sink (the program side) a line goes to descriptor 2 by one raw `write`, formatted in a
//! buffer on the stack: no allocation, no lock, safe in a signal handler.

use core::fmt::{self, Write};
use core::sync::atomic::{AtomicU8, Ordering};
use std::sync::OnceLock;

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

/// Writes one line. Use the macros [`crate::error!`], [`crate::warn!`], [`crate::info!`] and [`crate::debug!`].
pub fn write(level: Level, text: fmt::Arguments<'_>) {
    if level as u8 > THRESHOLD.load(Ordering::Relaxed) {
        return;
    }
    let mut line = Line::default();
    // Only a load: the program side never sets a sink, so a signal handler never waits here.
    if let Some(sink) = SINK.get() {
        let _ = write!(line, "{text}");
        sink(
            level,
            core::str::from_utf8(line.bytes()).unwrap_or("line is not text"),
        );
        return;
    }
    // A full buffer cuts the line; the cut is the only possible error.
    let _ = writeln!(line, "knet: {text}");
    line.end();
    let _ = rustix::io::write(rustix::stdio::stderr(), line.bytes());
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

/// Logs that service is lost.
#[macro_export]
macro_rules! error {
    ($($part:tt)*) => { $crate::telemetry::log::write($crate::telemetry::Level::Error, format_args!($($part)*)) };
}

/// Logs that something is degraded or refused.
#[macro_export]
macro_rules! warn {
    ($($part:tt)*) => { $crate::telemetry::log::write($crate::telemetry::Level::Warn, format_args!($($part)*)) };
}

/// Logs a fact that is told once per process or socket lifetime.
#[macro_export]
macro_rules! info {
    ($($part:tt)*) => { $crate::telemetry::log::write($crate::telemetry::Level::Info, format_args!($($part)*)) };
}

/// Logs a detail.
#[macro_export]
macro_rules! debug {
    ($($part:tt)*) => { $crate::telemetry::log::write($crate::telemetry::Level::Debug, format_args!($($part)*)) };
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
