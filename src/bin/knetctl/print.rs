//! What is printed: lines, tables, JSON.

use std::fmt::Arguments;
use std::io::{self, ErrorKind, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;

/// Input or output failed (sysexits.h, EX_IOERR).
pub(crate) const IO_ERROR: u8 = 74;

/// Something could not be printed, and not for want of a reader.
static FAILED: AtomicBool = AtomicBool::new(false);

/// Whether something was lost on its way to stdout, which has been told.
pub(crate) fn has_failed() -> bool {
    // Of this thread.
    FAILED.load(Ordering::Relaxed)
}

/// Prints a line; false when nobody reads any more, or it could not be printed.
pub(crate) fn line(text: &str) -> bool {
    match writeln!(io::stdout().lock(), "{text}") {
        Ok(()) => true,
        Err(error) => {
            // A closed pipe (`knetctl check | head -1`) takes nothing from the answer.
            if error.kind() != ErrorKind::BrokenPipe && !FAILED.swap(true, Ordering::Relaxed) {
                self::error(format_args!("knetctl: stdout: {error}"));
            }
            false
        }
    }
}

/// Writes a line to stderr, where nobody may read any more. Use [`complain!`](crate::complain).
pub(crate) fn error(text: Arguments<'_>) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// As `eprintln!`, which panics when nobody reads.
#[macro_export]
macro_rules! complain {
    ($($part:tt)*) => { $crate::print::error(format_args!($($part)*)) };
}

/// Prints a value as JSON; false when nobody reads any more.
pub(crate) fn json(value: &Value) -> bool {
    line(&format!("{value:#}"))
}

/// Rows in columns as wide as their widest cell; the last one is not padded.
pub(crate) fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns)
        .map(|column| {
            let width = |row: &Vec<String>| row.get(column).map_or(0, |cell| cell.chars().count());
            rows.iter().map(width).max().unwrap_or(0)
        })
        .collect();
    let mut out = String::new();
    for row in rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            line.push_str(&format!("{cell:width$}  ", width = *width));
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

/// A value for people: text without quotes, nothing as a dash.
pub(crate) fn plain(value: Option<&Value>) -> String {
    match value {
        None | Some(Value::Null) => "-".to_owned(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    }
}

/// A number of a line; 0 where there is none.
pub(crate) fn number(line: &Value, name: &str) -> u64 {
    line.get(name).and_then(Value::as_u64).unwrap_or(0)
}

/// A text of a line; empty where there is none.
pub(crate) fn text<'a>(line: &'a Value, name: &str) -> &'a str {
    line.get(name).and_then(Value::as_str).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let row = |cells: &[&str]| cells.iter().map(|cell| (*cell).to_owned()).collect();
        let rows = [row(&["a", "bb", "c"]), row(&["aaa", "b"])];
        assert_eq!(table(&rows), "a    bb  c\naaa  b\n");
    }
}
