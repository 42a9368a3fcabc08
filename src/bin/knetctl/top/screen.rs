//! The terminal of `knetctl top`: lines that fit, and keys.

use std::io::{self, Write};
use std::time::Duration;

use knet::ffi::end_signals::EndSignals;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::{self, OptionalActions, Termios};

/// The terminal: raw, on its other screen; as it was when this is dropped.
pub(super) struct Screen {
    before: Termios,
}

/// What the user wants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Key {
    /// The time is over.
    None,
    /// q, ^C, a signal that asks for the end, or the terminal is gone.
    End,
    Ask,
    Longer,
    Shorter,
    Up,
    Down,
    Other,
}

impl Key {
    fn of(bytes: &[u8]) -> Self {
        match bytes {
            [] | [b'q' | b'Q' | 3, ..] => Self::End,
            b" " => Self::Ask,
            b"+" => Self::Longer,
            b"-" => Self::Shorter,
            // An arrow, as xterm sends it in both of its modes.
            b"k" | b"\x1b[A" | b"\x1bOA" => Self::Up,
            b"j" | b"\x1b[B" | b"\x1bOB" => Self::Down,
            _ => Self::Other,
        }
    }
}

impl Screen {
    pub(super) fn open() -> io::Result<Self> {
        let before = termios::tcgetattr(rustix::stdio::stdin())?;
        let mut raw = before.clone();
        raw.make_raw();
        termios::tcsetattr(rustix::stdio::stdin(), OptionalActions::Now, &raw)?;
        let screen = Self { before };
        // The other screen, without a cursor (xterm's control sequences).
        put("\x1b[?1049h\x1b[?25l")?;
        Ok(screen)
    }

    /// Draws what fits of the lines from the given one on; returns the one that it began with.
    pub(super) fn draw(&self, lines: &[String], from: usize) -> io::Result<usize> {
        let size = termios::tcgetwinsize(rustix::stdio::stdout())?;
        let (rows, columns) = (
            usize::from(size.ws_row.max(1)),
            usize::from(size.ws_col.max(1)),
        );
        let (shown, from) = fit(lines, from, rows, columns);
        // To the end of each line, and in the end of the screen.
        put(&format!("\x1b[H{}\x1b[K\x1b[J", shown.join("\x1b[K\r\n")))?;
        Ok(from)
    }

    /// What the user wants next.
    pub(super) fn wait(&self, signals: &EndSignals, time: Duration) -> io::Result<Key> {
        let stdin = rustix::stdio::stdin();
        let limit = Timespec {
            tv_sec: time.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: 0,
        };
        let mut wait = [
            PollFd::from_borrowed_fd(stdin, PollFlags::IN),
            PollFd::new(signals, PollFlags::IN),
        ];
        match poll(&mut wait, Some(&limit)) {
            Ok(_) => {}
            // The window changed its size.
            Err(rustix::io::Errno::INTR) => return Ok(Key::Other),
            Err(errno) => return Err(errno.into()),
        }
        let [key, signal] = wait.map(|source| !source.revents().is_empty());
        if signal {
            return Ok(Key::End);
        }
        if !key {
            return Ok(Key::None);
        }
        // A key may be several bytes; several keys at once are as good as none.
        let mut bytes = [0; 8];
        let count = rustix::io::read(stdin, &mut bytes)?;
        Ok(Key::of(bytes.get(..count).unwrap_or_default()))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = put("\x1b[?25h\x1b[?1049l");
        let _ = termios::tcsetattr(rustix::stdio::stdin(), OptionalActions::Now, &self.before);
    }
}

fn put(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// The rows of a screen, and the number of the first line below the head, which is lower than wanted when nothing is left
/// below. The head, which is the first line, stays; the last row says how much does not fit.
fn fit(lines: &[String], from: usize, rows: usize, columns: usize) -> (Vec<String>, usize) {
    let folded = |line: &String| fold(line, columns);
    let (head, rest) = lines
        .split_first()
        .map_or((Vec::new(), lines), |(head, rest)| (folded(head), rest));
    let rest: Vec<String> = rest.iter().flat_map(folded).collect();
    let mut shown: Vec<String> = head.into_iter().take(rows).collect();
    let room = rows - shown.len();
    if rest.len() <= room {
        shown.extend(rest);
        return (shown, 0);
    }
    let body = room.saturating_sub(1);
    let from = from.min(rest.len() - body);
    shown.extend(rest.iter().skip(from).take(body).cloned());
    if room > 0 {
        let (above, below) = (from, rest.len() - body - from);
        let line = format!("-- {above} lines above, {below} below: k, j --");
        shown.push(line.chars().take(columns).collect());
    }
    (shown, from)
}

/// What a row begins with that goes on with the line above.
const INDENT: &str = "    ";

/// A line in rows of so many columns: parted between its words, two blanks and more being blank enough as two then.
fn fold(line: &str, columns: usize) -> Vec<String> {
    let line: String = line.chars().filter(|c| !c.is_control()).collect();
    if line.chars().count() <= columns {
        return vec![line];
    }
    let start: String = line.chars().take_while(|c| *c == ' ').collect();
    let mut rows = vec![start];
    let mut gap = "";
    for word in line.split(' ') {
        if word.is_empty() {
            gap = "  ";
            continue;
        }
        let used = rows.last().map_or(0, |row| row.chars().count());
        let blank = rows.last().is_none_or(|row| row.trim().is_empty());
        let wanted = gap.len() + word.chars().count();
        if !blank && used + wanted > columns {
            rows.push(INDENT.to_owned());
        } else if let Some(row) = rows.last_mut()
            && !blank
        {
            row.push_str(gap);
        }
        if let Some(row) = rows.last_mut() {
            row.push_str(word);
        }
        gap = " ";
    }
    let cut = |row: String| row.chars().take(columns).collect();
    rows.into_iter().map(cut).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_does_not_fit_goes_on_in_the_next_row() {
        let line = "  in          12 frames/s      34 kbit/s";
        assert_eq!(fold(line, 80), [line]);
        assert_eq!(fold(line, 20), ["  in  12 frames/s", "    34 kbit/s"]);
        assert_eq!(fold("abcdefgh", 4), ["abcd"]);
        assert_eq!(fold("a\x1bb", 4), ["ab"]);
        for columns in 1..60 {
            assert!(fold(line, columns).iter().all(|row| row.len() <= columns));
        }
    }

    #[test]
    fn what_does_not_fit_is_counted_and_moved_over() {
        let lines: Vec<String> = (0..10).map(|number| format!("line {number}")).collect();
        let (all, from) = fit(&lines, 3, 10, 80);
        assert_eq!((all.as_slice(), from), (lines.as_slice(), 0));
        let (some, from) = fit(&lines, 2, 5, 80);
        let wanted = [
            "line 0",
            "line 3",
            "line 4",
            "line 5",
            "-- 2 lines above, 4 below: k, j --",
        ];
        assert_eq!((some, from), (wanted.map(str::to_owned).to_vec(), 2));
        let (end, from) = fit(&lines, 100, 5, 80);
        assert_eq!((end.get(3).map(String::as_str), from), (Some("line 9"), 6));
        for (rows, columns) in [(1, 1), (1, 80), (2, 3), (10, 40)] {
            let (shown, _) = fit(&lines, 5, rows, columns);
            assert!(shown.len() <= rows && shown.iter().all(|row| row.len() <= columns));
        }
        assert_eq!(fit(&[], 0, 5, 5), (Vec::new(), 0));
    }

    #[test]
    fn keys_are_told_apart() {
        for (bytes, key) in [
            (&b"q"[..], Key::End),
            (b"\x03", Key::End),
            (b"", Key::End),
            (b" ", Key::Ask),
            (b"+", Key::Longer),
            (b"-", Key::Shorter),
            (b"\x1b[A", Key::Up),
            (b"\x1bOB", Key::Down),
            (b"\x1b", Key::Other),
            (b"x", Key::Other),
        ] {
            assert_eq!(Key::of(bytes), key, "{bytes:?}");
        }
    }
}
