//! What is wrong with a file, and what is merely worth saying.

use core::fmt;

use super::settings::OnError;

/// A place in the file, both counted from 1; the column counts characters.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Position {
    /// Line.
    pub line: u32,
    /// Column.
    pub column: u32,
}

impl fmt::Display for Position {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}:{}", self.line, self.column)
    }
}

/// One thing that is wrong with the file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fault {
    /// JSON path, for example `interface.bdf_nums[0]`; empty for the file as a whole.
    pub path: String,
    /// Where it stands; None for something that is missing.
    pub at: Option<Position>,
    /// What is wrong: lower case, no final period, names the value.
    pub what: String,
    /// The allowed range, the nearest key, or what to do.
    pub advice: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(at) = self.at {
            write!(out, "{at}: ")?;
        }
        if !self.path.is_empty() {
            write!(out, "{}: ", self.path)?;
        }
        out.write_str(&self.what)?;
        if !self.advice.is_empty() {
            write!(out, " ({})", self.advice)?;
        }
        Ok(())
    }
}

/// Something that an operator should know about an accepted file: a key that does nothing here.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Remark {
    /// JSON path of the key.
    pub path: String,
    /// Where it stands.
    pub at: Option<Position>,
    /// The remark: lower case, no final period.
    pub what: String,
}

impl fmt::Display for Remark {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(at) = self.at {
            write!(out, "{at}: ")?;
        }
        write!(out, "{}: {}", self.path, self.what)
    }
}

/// Every fault of a file at once; at least one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Faults {
    /// The file's path as it was given.
    pub file: String,
    /// The faults, in the order of the file, those without a place last.
    pub faults: Vec<Fault>,
    /// What else was noticed on the way.
    pub remarks: Vec<Remark>,
    /// `common.on_error`, when that key itself could be read, else the default.
    pub on_error: OnError,
}

impl Faults {
    /// A fault of the file as a whole.
    #[must_use]
    pub fn of_file(file: &str, what: &str, advice: &str) -> Self {
        Self {
            file: file.to_owned(),
            faults: vec![Fault {
                path: String::new(),
                at: None,
                what: what.to_owned(),
                advice: advice.to_owned(),
            }],
            remarks: Vec::new(),
            on_error: OnError::Kernel,
        }
    }

    /// The faults on one line, as the program's one line on descriptor 2 shows them; after [`LINE_FAULTS_MAX`] of
    /// them only how many more there are.
    #[must_use]
    pub fn one_line(&self) -> String {
        let shown = self
            .faults
            .iter()
            .take(LINE_FAULTS_MAX)
            .map(ToString::to_string);
        let mut parts: Vec<String> = shown.collect();
        if let Some(more) = self
            .faults
            .len()
            .checked_sub(LINE_FAULTS_MAX)
            .filter(|more| *more > 0)
        {
            parts.push(format!(
                "and {more} more, which knetctl check {} shows",
                self.file
            ));
        }
        format!("{}: {}", self.file, parts.join("; "))
    }
}

impl fmt::Display for Faults {
    /// One line a fault, in the form `file:line:column: path: what (advice)`.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, fault) in self.faults.iter().enumerate() {
            if index > 0 {
                out.write_str("\n")?;
            }
            let gap = if fault.at.is_some() { "" } else { " " };
            write!(out, "{}:{gap}{fault}", self.file)?;
        }
        Ok(())
    }
}

impl core::error::Error for Faults {}

/// Faults that [`Faults::one_line`] spells out.
pub const LINE_FAULTS_MAX: usize = 16;

/// A piece of the file as it may be shown: no control character, and cut when long.
pub(super) fn shown(text: &str) -> String {
    let mut shown = String::new();
    for c in text.chars().take(60) {
        if c.is_control() {
            shown.extend(c.escape_unicode());
        } else {
            shown.push(c);
        }
    }
    if text.chars().nth(60).is_some() {
        shown.push_str("...");
    }
    shown
}
