//! Messages on the control socket (AF_UNIX, SOCK_SEQPACKET): hand-shake and what needs a descriptor.
//!
//! A message is a fixed head of numbers and a text; descriptors ride along (SCM_RIGHTS). Requests with a reply (`Hello`, `Resume`,
//! `Open`, `Herald`, `Signals` with a text) are made by one thread at a time under the attach lock; all others have none. A reply
//! has the serial number of its request: whoever gave up waiting for one leaves it to the next request, which passes over it.

use super::layout::LCORES_MAX;
use super::{ABI, MAGIC};

/// Bytes of the text at most.
pub const TEXT_BYTES: usize = 3_072;
/// Bytes of the head.
pub const HEAD_BYTES: usize = 28;
/// Descriptors with one message at most.
pub const DESCRIPTORS_MAX: usize = 3 + LCORES_MAX as usize;

/// What a message means. Numbers in `a` and `b`, descriptors in brackets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Kind {
    /// Program: attach. `a` = size of the header struct, `b` = process id; text = build version, newline, config path,
    /// newline, program path, newline, absolute path of the frame, newline, `inline` when its threads can drive a loop;
    /// [the open config file].
    Hello = 1,
    /// Host: `a` = process cell of the program, `b` = process id of the host; [control memory, receive memory (read-only),
    /// for each lcore the eventfd that wakes it].
    Welcome,
    /// Host: cannot serve; text = the line for the operator. `a` = errno class, `b` = 1: the config says to refuse
    /// (`on_error: "fail"`).
    Fault,
    /// Program: open the device now.
    Open,
    /// Host: the device is open and the lcore runs.
    Opened,
    /// Program: slot `a` is woken through \[eventfd\]; behind the slots come the epolls' heralds.
    Waiter,
    /// Program: a fork comes, or what is like one; process cell `a` will speak on \[socket\]. Text: see [`heir`].
    Fork,
    /// Child: process cell `a` is process `b`.
    Child,
    /// Tool, instead of Hello: asks what the host does. Host: text = JSON, see `host::status`.
    Status,
    /// Program: asks for the herald of epoll `a`, which another process has made. Host: the same; \[eventfd\] if it has it.
    Herald,
    /// Tool, instead of Hello: text = JSON, see `host::admin`; \[where a stream goes\].
    Query,
    /// Host: a part of the answer to a query; `a` = 1: the last one.
    Answer,
    /// Host, instead of Welcome: the config says that the program's own threads drive; this host ends.
    Inline,
    /// Program to program: object `a` of generation `b`, text = the family. See `attach::transit`.
    Passed,
    /// Program, on a socket that was handed to it: process `b` takes the process cell over that the socket stands for. `a` =
    /// size of the header struct, text = build version. Host: Welcome, or Fault.
    Resume,
    /// Program: \[the memory in which its processes agree before they are attached\]. A program that joins them by a socket that
    /// it got in a message finds it in its Welcome.
    Registry,
    /// Program: signals of object `a`, whose generation is the rest of `b`; bit 0 of `b`: of urgent data; bit 1: what has happened
    /// to it before counts. \[a pipe, open for both ways, that is written for each\]; none = no more. With a text the host answers
    /// the same, without descriptor, once the lcores have been told.
    Signals,
}

/// Texts of [`Kind::Fork`]: who will speak for the process cell.
pub mod heir {
    /// A forked child, at once.
    pub const CHILD: &str = "";
    /// The program that this process is about to execute.
    pub const EXECUTED: &str = "exec";
    /// The program that a child of this process is about to execute.
    pub const SPAWNED: &str = "spawn";
    /// Whoever gets the message that carries the socket.
    pub const PASSED: &str = "pass";
}

impl Kind {
    fn from_number(number: u32) -> Option<Self> {
        [
            Self::Hello,
            Self::Welcome,
            Self::Fault,
            Self::Open,
            Self::Opened,
            Self::Waiter,
            Self::Fork,
            Self::Child,
            Self::Status,
            Self::Herald,
            Self::Query,
            Self::Answer,
            Self::Inline,
            Self::Passed,
            Self::Resume,
            Self::Registry,
            Self::Signals,
        ]
        .into_iter()
        .find(|kind| *kind as u32 == number)
    }
}

/// A message without its descriptors.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Message<'a> {
    /// What it means.
    pub kind: Kind,
    /// First number.
    pub a: u32,
    /// Second number.
    pub b: u32,
    /// Number of the request, the same in its reply; 0 = no reply is waited for, or this is one to whatever was asked.
    pub serial: u32,
    /// Text, not terminated.
    pub text: &'a str,
}

/// Why bytes are no message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MessageError {
    /// Not ours at all.
    Foreign,
    /// Another ABI: that number.
    Abi(u32),
}

impl<'a> Message<'a> {
    /// A message without text.
    #[must_use]
    pub const fn new(kind: Kind, a: u32, b: u32) -> Self {
        Self {
            kind,
            a,
            b,
            serial: 0,
            text: "",
        }
    }

    /// Writes the message into `out` and returns its bytes, the text cut to [`TEXT_BYTES`].
    #[must_use]
    pub fn emit<'b>(&self, out: &'b mut [u8; HEAD_BYTES + TEXT_BYTES]) -> &'b [u8] {
        let mut text_len = self.text.len().min(TEXT_BYTES);
        while !self.text.is_char_boundary(text_len) {
            text_len -= 1;
        }
        let len = u32::try_from(text_len).unwrap_or(0);
        let words = [
            MAGIC,
            ABI,
            self.kind as u32,
            self.a,
            self.b,
            self.serial,
            len,
        ];
        for (place, word) in out.chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        if let (Some(to), Some(from)) = (
            out.get_mut(HEAD_BYTES..HEAD_BYTES + text_len),
            self.text.as_bytes().get(..text_len),
        ) {
            to.copy_from_slice(from);
        }
        out.get(..HEAD_BYTES + text_len).unwrap_or(&[])
    }

    /// Reads a message.
    ///
    /// # Errors
    /// [`MessageError::Abi`] when the peer was built from another version of the contract.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, MessageError> {
        let word = |n: usize| {
            let place = bytes.get(n * 4..n * 4 + 4)?;
            Some(u32::from_le_bytes(place.try_into().ok()?))
        };
        if word(0) != Some(MAGIC) {
            return Err(MessageError::Foreign);
        }
        // What comes behind is another one's in another version.
        match word(1) {
            Some(ABI) => {}
            other => return Err(other.map_or(MessageError::Foreign, MessageError::Abi)),
        }
        let rest = || Some((word(2)?, word(3)?, word(4)?, word(5)?, word(6)?));
        let (kind, a, b, serial, len) = rest().ok_or(MessageError::Foreign)?;
        let kind = Kind::from_number(kind).ok_or(MessageError::Foreign)?;
        let text = bytes
            .get(HEAD_BYTES..HEAD_BYTES + len as usize)
            .ok_or(MessageError::Foreign)?;
        let text = core::str::from_utf8(text).map_err(|_| MessageError::Foreign)?;
        Ok(Self {
            kind,
            a,
            b,
            serial,
            text,
        })
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn a_message_survives_the_wire_and_a_foreign_one_does_not() {
        let message = Message {
            kind: Kind::Fault,
            a: 7,
            b: 1,
            serial: 9,
            text: "no device",
        };
        let mut buffer = [0; HEAD_BYTES + TEXT_BYTES];
        let mut bytes = message.emit(&mut buffer).to_vec();
        assert_eq!(Message::parse(&bytes), Ok(message));
        for len in 0..bytes.len() {
            Message::parse(&bytes[..len]).unwrap_err();
        }
        bytes[4] = 200;
        assert!(matches!(Message::parse(&bytes), Err(MessageError::Abi(_))));
        bytes[0] = 0;
        assert_eq!(Message::parse(&bytes), Err(MessageError::Foreign));
    }
}
