//! Log lines, `key=value`, through a sink that the binaries wire to `tracing`.
//!
//! Without a sink (the program side) a line goes to descriptor 2 by one raw `write`, formatted in a
//! buffer on the stack: no allocation, no lock, safe in a signal handler.

use core::fmt::{self, Write};
use core::sync::atomic::{AtomicPtr, AtomicU8, Ordering};

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

static SINK: AtomicPtr<Sink> = AtomicPtr::new(core::ptr::null_mut());
static THRESHOLD: AtomicU8 = AtomicU8::new(Level::Warn as u8);

/// Sends all later lines to `sink` (a binary does this once, at start).
pub fn set_sink(sink: &'static Sink) {
    SINK.store(core::ptr::from_ref(sink).cast_mut(), Ordering::Release);
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
    let sink = SINK.load(Ordering::Acquire);
    if sink.is_null() {
        // A full buffer cuts the line; the cut is the only possible error.
        let _ = writeln!(line, "knet: {text}");
        line.end();
        let _ = rustix::io::write(stderr(), line.bytes());
        return;
    }
    let _ = write!(line, "{text}");
    call(sink, level, &line);
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

#[allow(unsafe_code)]
fn stderr() -> rustix::fd::BorrowedFd<'static> {
    // SAFETY: descriptor 2 is only written to; if it is closed the kernel answers EBADF.
    unsafe { rustix::fd::BorrowedFd::borrow_raw(2) }
}

#[allow(unsafe_code)]
fn call(sink: *mut Sink, level: Level, line: &Line) {
    // SAFETY: the only store into SINK is from a `&'static Sink` in `set_sink`.
    let sink = unsafe { &*sink };
    sink(
        level,
        core::str::from_utf8(line.bytes()).unwrap_or("line is not text"),
    );
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
        assert!(core::str::from_utf8(line.bytes()).is_ok());
        line.end();
        assert_eq!(line.bytes().last(), Some(&b'\n'));
    }
}
