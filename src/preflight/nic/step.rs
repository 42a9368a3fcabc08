//! One change of the machine.

use core::fmt;
use std::path::{Path, PathBuf};

/// A change, shown as the shell would make it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// A command and its arguments.
    Run(Vec<String>),
    /// A text into a file of /sys, by its path from the root.
    Write {
        /// The path, without the root.
        path: PathBuf,
        /// What is written, without a line's end.
        text: String,
    },
}

impl Step {
    /// A command, of words without blanks.
    #[must_use]
    pub fn run(words: &[&str]) -> Self {
        Self::Run(words.iter().map(|word| (*word).to_owned()).collect())
    }

    /// A write below the root.
    #[must_use]
    pub fn write(path: impl AsRef<Path>, text: impl Into<String>) -> Self {
        Self::Write {
            path: path.as_ref().to_path_buf(),
            text: text.into(),
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Run(words) => out.write_str(&words.join(" ")),
            Self::Write { path, text } if text.is_empty() => {
                write!(out, "echo > /{}", path.display())
            }
            Self::Write { path, text } => write!(out, "echo {text} > /{}", path.display()),
        }
    }
}
