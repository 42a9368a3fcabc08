//! A client of DPDK's telemetry socket: protocol version 2, one command a message, JSON back.

use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{PollFd, PollFlags};
use rustix::net::{RecvFlags, SendFlags};
use serde_json::json;

use super::commands;
use super::rows::OUTPUT_MAX;
use crate::errno::{Errno, Result};
use crate::host::admin::Asker;

/// A command is shorter than this.
const COMMAND_MAX: usize = 1_024;

/// Serves a client until it goes, or the host.
pub(super) fn dpdk(socket: &OwnedFd, stop: &OwnedFd, asker: &Asker) {
    if let Err(errno) = talk(socket, stop, asker) {
        crate::debug!("event=telemetry_client_gone errno={errno}");
    }
}

fn talk(socket: &OwnedFd, stop: &OwnedFd, asker: &Asker) -> Result<()> {
    send(socket, &commands::info().to_string())?;
    let mut buffer = [0; COMMAND_MAX];
    while readable(socket, stop)? {
        let (count, _) = rustix::net::recv(socket, &mut buffer[..], RecvFlags::empty())?;
        let bytes = buffer.get(..count).unwrap_or_default();
        if bytes.is_empty() {
            return Ok(());
        }
        let text = String::from_utf8_lossy(bytes);
        let text = text.trim_end_matches(['\0', '\n']);
        let (command, parameters) = text.split_once(',').unwrap_or((text, ""));
        let answer = commands::answer(command, parameters, stop, asker);
        let whole = json!({ command: answer }).to_string();
        if whole.len() > OUTPUT_MAX {
            send(socket, &json!({ command: null }).to_string())?;
        } else {
            send(socket, &whole)?;
        }
    }
    Ok(())
}

/// Waits for the client's next word; false when the host ends.
fn readable(socket: &OwnedFd, stop: &OwnedFd) -> Result<bool> {
    loop {
        let source = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
        let mut sources = [source(socket.as_fd()), source(stop.as_fd())];
        match rustix::event::poll(&mut sources, None) {
            Err(Errno::INTR) => {}
            other => {
                other?;
                let [_, stop] = &sources;
                return Ok(stop.revents().is_empty());
            }
        }
    }
}

fn send(socket: &OwnedFd, text: &str) -> Result<()> {
    // A client that reads nothing blocks its own thread until it goes.
    rustix::net::send(socket, text.as_bytes(), SendFlags::NOSIGNAL).map(|_| ())
}
