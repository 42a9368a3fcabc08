//! Why the program is not served: lines for the operator, written once to descriptor 2.

use core::ffi::CStr;
use core::fmt;

use crate::channel::message::TEXT_BYTES;
use crate::errno::Errno;
use crate::rendezvous::Path;

/// A reason, kept on the stack.
#[derive(Clone, Copy)]
pub(super) struct Fault {
    text: [u8; TEXT_BYTES],
    len: usize,
    /// The config says to refuse instead of using the kernel.
    pub(super) refuse: bool,
}

impl Fault {
    /// A fault with this text, cut to what fits.
    pub(super) fn new(text: fmt::Arguments<'_>) -> Self {
        let mut fault = Self {
            text: [0; TEXT_BYTES],
            len: 0,
            refuse: false,
        };
        // The only error is that the text was cut.
        let _ = fmt::Write::write_fmt(&mut fault, text);
        fault
    }

    /// The config cannot be read.
    pub(super) fn config(path: &CStr, error: Errno) -> Self {
        let path = shown(path);
        let what = reason(error);
        Self::new(format_args!(
            "config {path}: {what}; kernel sockets are used (KNET_CONF names another file, knetctl check explains one)"
        ))
    }

    /// The config cannot be read, and the system's host does not let us in or is not there.
    pub(super) fn closed_to_us(path: &CStr) -> Self {
        let path = shown(path);
        let socket = shown(crate::rendezvous::SYSTEM_SOCKET);
        Self::new(format_args!(
            "config {path}: not readable for this user, and no service lets it in at {socket}; kernel sockets are used (systemctl start knetd, and SupplementaryGroups=knet)"
        ))
    }

    /// A step towards the host failed.
    pub(super) fn step(step: &str, path: &CStr, error: Errno) -> Self {
        let path = shown(path);
        let what = reason(error);
        Self::new(format_args!(
            "{step} {path}: {what}; kernel sockets are used"
        ))
    }

    /// Writes the fault to descriptor 2, one call a line.
    pub(super) fn tell(&self) {
        let text = core::str::from_utf8(self.text.get(..self.len).unwrap_or(&[]));
        for line in text.unwrap_or("the host's answer is not text").lines() {
            crate::error!("{line}");
        }
    }
}

impl fmt::Write for Fault {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut count = text.len().min(TEXT_BYTES - self.len);
        while !text.is_char_boundary(count) {
            count -= 1;
        }
        let (from, to) = (
            text.as_bytes().get(..count),
            self.text.get_mut(self.len..self.len + count),
        );
        if let (Some(from), Some(to)) = (from, to) {
            to.copy_from_slice(from);
            self.len += count;
        }
        if count < text.len() {
            Err(fmt::Error)
        } else {
            Ok(())
        }
    }
}

impl fmt::Debug for Fault {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Fault")
            .field(
                "text",
                &core::str::from_utf8(self.text.get(..self.len).unwrap_or(&[])),
            )
            .field("refuse", &self.refuse)
            .finish()
    }
}

/// A path for a line: cut, and with marks for what is not text.
pub(super) fn shown(path: &CStr) -> Path {
    let bytes = path.to_bytes();
    let cut = bytes
        .get(..bytes.len().min(crate::rendezvous::PATH_BYTES - 1))
        .unwrap_or(bytes);
    Path::new(cut).unwrap_or_else(|_| Path::empty())
}

/// An errno in words, without libc's strerror (which allocates).
pub(super) fn reason(error: Errno) -> Reason {
    Reason(error)
}

/// See [`reason`].
#[derive(Clone, Copy)]
pub(super) struct Reason(Errno);

impl fmt::Display for Reason {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self.0 {
            Errno::NOENT => "not found",
            Errno::ACCESS => "permission denied",
            Errno::PERM => "not permitted",
            Errno::ISDIR => "is a directory",
            Errno::NODEV => "is not a regular file",
            Errno::NOTDIR => "is not a directory",
            Errno::LOOP => "too many symbolic links",
            Errno::NAMETOOLONG => "name too long",
            Errno::MFILE => "no descriptor left in this process (ulimit -n)",
            Errno::NFILE => "no descriptor left in the system",
            Errno::NOMEM => "out of memory",
            Errno::NOSPC => "no space left",
            Errno::ROFS => "read-only file system",
            Errno::TIMEDOUT => "no answer in time",
            Errno::CONNRESET | Errno::PIPE => "the other end has gone",
            Errno::CONNREFUSED => "nobody listens there",
            Errno::PROTO => "does not speak our protocol",
            Errno::NOEXEC => "is not a program",
            Errno::BUSY => "the loader is busy (a library that is being loaded opened a socket)",
            Errno::NOSYS => "this object cannot",
            other => return write!(out, "errno {}", other.raw_os_error()),
        };
        out.write_str(text)
    }
}
