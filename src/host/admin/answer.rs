//! An answer on its way to a tool.

use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags};
use rustix::net::{SendAncillaryBuffer, SendFlags};

use crate::channel::message::{HEAD_BYTES, Kind, Message, TEXT_BYTES};
use crate::errno::{Errno, Result};
use crate::host::server::timespec;

/// A tool that takes nothing for so long is given up.
const PATIENCE: core::time::Duration = core::time::Duration::from_secs(10);

/// The tool's socket, and text that has not left.
#[derive(Debug)]
pub(super) struct Answer {
    socket: OwnedFd,
    text: String,
    /// It hung up, or takes nothing.
    lost: bool,
}

impl Answer {
    pub(super) const fn new(socket: OwnedFd) -> Self {
        Self {
            socket,
            text: String::new(),
            lost: false,
        }
    }

    /// The tool's socket, to be watched.
    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Appends a line; false when nobody reads any more.
    pub(super) fn line(&mut self, line: &str) -> bool {
        self.text.push_str(line);
        self.text.push('\n');
        while self.text.len() >= TEXT_BYTES && !self.lost {
            let mut cut = TEXT_BYTES;
            while !self.text.is_char_boundary(cut) {
                cut -= 1;
            }
            let rest = self.text.split_off(cut);
            let part = core::mem::replace(&mut self.text, rest);
            self.part(Kind::Answer, 0, &part);
        }
        !self.lost
    }

    /// Sends what has been appended; false when nobody reads any more.
    pub(super) fn flush(&mut self) -> bool {
        if !self.text.is_empty() {
            let part = core::mem::take(&mut self.text);
            self.part(Kind::Answer, 0, &part);
        }
        !self.lost
    }

    /// Whether the tool has closed its half, or is gone. It says nothing more after its query: whatever is readable is that.
    pub(super) fn hung_up(&self) -> bool {
        let mut wait = [PollFd::from_borrowed_fd(self.socket.as_fd(), PollFlags::IN)];
        let now = timespec(core::time::Duration::ZERO);
        rustix::event::poll(&mut wait, Some(&now)) != Ok(0)
    }

    /// Ends the answer.
    pub(super) fn end(&mut self) {
        let part = core::mem::take(&mut self.text);
        self.part(Kind::Answer, 1, &part);
    }

    /// Ends it with a word why there is none, or no more.
    pub(super) fn refuse(&mut self, reason: &str) {
        self.part(
            Kind::Fault,
            Errno::INVAL.raw_os_error().unsigned_abs(),
            reason,
        );
    }

    fn part(&mut self, kind: Kind, a: u32, text: &str) {
        if self.lost {
            return;
        }
        let message = Message {
            text,
            ..Message::new(kind, a, 0)
        };
        if let Err(errno) = self.send(&message) {
            crate::debug!("event=tool_gone errno={errno}");
            self.lost = true;
        }
    }

    fn send(&self, message: &Message<'_>) -> Result<()> {
        let mut buffer = [0; HEAD_BYTES + TEXT_BYTES];
        let bytes = message.emit(&mut buffer);
        let part = [IoSlice::new(bytes)];
        loop {
            let mut none = SendAncillaryBuffer::default();
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            match rustix::net::sendmsg(&self.socket, &part, &mut none, flags) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    let room = PollFd::from_borrowed_fd(self.socket.as_fd(), PollFlags::OUT);
                    match rustix::event::poll(&mut [room], Some(&timespec(PATIENCE))) {
                        Ok(0) => return Err(Errno::TIMEDOUT),
                        Ok(_) | Err(Errno::INTR) => {}
                        Err(errno) => return Err(errno),
                    }
                }
                Err(errno) => return Err(errno),
            }
        }
    }
}
