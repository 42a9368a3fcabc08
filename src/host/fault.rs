//! Why a client cannot be served.

use crate::channel::message::{Kind, Message};
use crate::config::{Faults, OnError};
use crate::errno::Errno;

/// A message that a client cannot be served.
pub(super) struct Fault {
    pub(super) text: String,
    pub(super) errno: Errno,
    /// What the config of the fault says, when it is not the one that we run.
    pub(super) on_error: Option<OnError>,
}

impl Fault {
    pub(super) const fn new(text: String, errno: Errno) -> Self {
        Self {
            text,
            errno,
            on_error: None,
        }
    }

    /// It, as it is.
    pub(super) fn message(&self) -> Message<'_> {
        Message {
            text: &self.text,
            ..Message::new(Kind::Fault, self.errno.raw_os_error().unsigned_abs(), 0)
        }
    }

    pub(super) fn of_config(faults: &Faults) -> Self {
        Self {
            on_error: Some(faults.on_error),
            ..Self::new(faults.one_line(), Errno::INVAL)
        }
    }
}

/// What came of a Hello.
pub(super) enum Greeted {
    /// The program is attached, or went away.
    Attached,
    /// Its own threads drive.
    Inline,
}
