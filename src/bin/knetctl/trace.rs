//! `knetctl trace`: what happens to one connection, as it happens.

use std::collections::BTreeMap;
use std::net::SocketAddrV4;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use knet::ffi::end_signals::EndSignals;
use knet::time::monotonic;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::{Value, json};

use crate::host::{self, Hosts, UNAVAILABLE};
use crate::print::{number, text};

#[path = "trace/stream.rs"]
mod stream;
#[path = "trace/teller.rs"]
mod teller;

use stream::{Blocks, Segment};
use teller::Teller;

/// There is no such connection (sysexits.h, EX_NOINPUT).
const NO_CONNECTION: u8 = 66;
/// The host begins a capture within this many seconds.
const PATIENCE_S: i64 = 5;
/// How often it looks whether something is old enough to be told.
const LOOK: Duration = Duration::from_millis(50);
/// Segments and what else happens come by two ways: so long what comes by one waits for the other.
const SETTLE: Duration = Duration::from_millis(300);

/// Shows what happens to one connection: its segments both ways, what its program reads and writes, its states.
///
/// Sequence numbers are relative to the first ones seen. What a program reads and writes, states, segments sent again and the
/// congestion window are seen in each turn of the host's loop: several calls between two turns show as one, with the time of
/// the turn. Needs the rights of a capture. Ends with the connection, at ^C, or after --duration. Costs nothing while nobody
/// traces.
///
/// Exit status: 0 shown, 64 wrong usage, 66 no such connection, 69 no host, or it refused.
#[derive(clap::Args, Debug)]
pub(crate) struct Trace {
    #[command(flatten)]
    hosts: Hosts,
    /// The peer's end: ADDRESS:PORT, as knetctl ss shows it.
    peer: SocketAddrV4,
    /// Our end, when the peer's is in use twice.
    #[arg(short, long, value_name = "ADDRESS:PORT")]
    local: Option<SocketAddrV4>,
    /// Ends after so many seconds.
    #[arg(short, long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    duration: Option<u64>,
    /// One JSON object a line.
    #[arg(long)]
    json: bool,
}

impl Trace {
    /// Runs the command.
    pub(crate) fn execute(self) -> ExitCode {
        let Some(answers) = self.hosts.ask(&json!({"query": "sockets"})) else {
            return ExitCode::from(UNAVAILABLE);
        };
        let found = answers.iter().find_map(|(socket, lines)| {
            let mut lines = lines.iter().skip(1);
            let line = lines.find(|line| {
                let is_peer = end(line, "peer", "peer_port") == Some(self.peer);
                let local = end(line, "local", "local_port");
                is_peer
                    && self.local.is_none_or(|wanted| local == Some(wanted))
                    && text(line, "state") != "TIME-WAIT"
            })?;
            Some((socket, line))
        });
        let Some((socket, line)) = found else {
            complain!(
                "knetctl: no connection with {} (knetctl ss shows all)",
                self.peer
            );
            return ExitCode::from(NO_CONNECTION);
        };
        let Some(local) = end(line, "local", "local_port") else {
            return ExitCode::from(NO_CONNECTION);
        };
        match self.run(socket, local) {
            Ok(()) => ExitCode::SUCCESS,
            Err(fault) => {
                complain!("knetctl: {}: {fault}", socket.display());
                ExitCode::from(UNAVAILABLE)
            }
        }
    }

    fn run(&self, socket: &Path, local: SocketAddrV4) -> Result<(), String> {
        let say = |error: std::io::Error| error.to_string();
        let signals = EndSignals::catch().map_err(|errno| format!("signals: {errno}"))?;
        let (ours, theirs) = UnixStream::pair().map_err(say)?;
        ours.set_nonblocking(true).map_err(say)?;
        let filter = format!(
            "tcp and host {} and host {} and port {} and port {}",
            local.ip(),
            self.peer.ip(),
            local.port(),
            self.peer.port()
        );
        // Headers tell all that is shown.
        let query = json!({"query": "capture", "filter": filter, "snap": 128});
        let capture = host::begin_with(socket, &query, Some(theirs.as_fd()))?;
        drop(theirs);
        let query =
            json!({"query": "trace", "local": local.to_string(), "peer": self.peer.to_string()});
        // The frames are captured before the connection is looked at for the first time: what is behind that is complete.
        let mut stream = Blocks::default();
        let patience = Timespec {
            tv_sec: PATIENCE_S,
            tv_nsec: 0,
        };
        poll(&mut [PollFd::new(&ours, PollFlags::IN)], Some(&patience))
            .map_err(|errno| format!("poll: {errno}"))?;
        if !stream.fill(&ours).map_err(say)? {
            // Refused: the answer says why.
            return host::part(&capture).map(|_| ());
        }
        let trace = host::begin(socket, &query)?;
        let mut events = Events::default();
        let mut traced = events.take(&host::part(&trace)?)?;
        let mut teller = Teller::new(self.json, local);
        let end = self
            .duration
            .map(|seconds| monotonic() + Duration::from_secs(seconds));
        let mut ending = false;
        loop {
            let limit = Timespec {
                tv_sec: 0,
                tv_nsec: LOOK.subsec_nanos().into(),
            };
            let mut wait = vec![
                PollFd::new(&ours, PollFlags::IN),
                PollFd::new(&signals, PollFlags::IN),
            ];
            if !traced {
                wait.push(PollFd::new(&trace, PollFlags::IN));
            }
            // EINTR shows as nothing ready.
            let _ = poll(&mut wait, Some(&limit));
            let ready: Vec<bool> = wait.iter().map(|it| !it.revents().is_empty()).collect();
            let open = stream.fill(&ours).map_err(say)?;
            while let Some(packet) = stream.next_packet() {
                if let Some(segment) = packet.segment() {
                    let rank = if segment.source == local { SENT } else { CAME };
                    events.add(packet.at, rank, Event::Segment(segment));
                }
            }
            if ready.get(2) == Some(&true) {
                traced = events.take(&host::part(&trace)?)?;
            }
            let signal = ready.get(1) == Some(&true);
            if !ending && (traced || signal || end.is_some_and(|end| end <= monotonic())) {
                // The host sends what it has, and ends both.
                for socket in [&capture, &trace] {
                    // One that has ended by itself is no socket to shut any more.
                    let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Write);
                }
                ending = true;
            }
            let over = traced && !open;
            let until = if over { u64::MAX } else { settled() };
            if !events.tell(until, &mut teller) || over {
                return Ok(());
            }
        }
    }
}

/// Order of what bears the same time, which is that of a turn.
const CAME: u8 = 0;
const DONE: u8 = 1;
const SENT: u8 = 2;
const LEFT: u8 = 3;

enum Event {
    Segment(Segment),
    /// The connection as it was; None: it is over.
    Sight(Option<Value>),
}

/// What has happened and is not told yet, in order: segments and sights come by two ways.
#[derive(Default)]
struct Events {
    waiting: BTreeMap<(u64, u8, u64), Event>,
    number: u64,
    /// The beginning of a line whose end has not come: the answer is cut into parts anywhere.
    begun: String,
}

impl Events {
    fn add(&mut self, at: u64, rank: u8, event: Event) {
        self.number += 1;
        self.waiting.insert((at, rank, self.number), event);
    }

    /// A part of the answer; whether it was the last one.
    fn take(&mut self, (part, last): &(String, bool)) -> Result<bool, String> {
        self.begun.push_str(part);
        let whole = self.begun.rfind('\n').map_or(0, |end| end + 1);
        let begun = self.begun.split_off(whole);
        for line in core::mem::replace(&mut self.begun, begun).lines() {
            let line = serde_json::from_str(line)
                .map_err(|error| format!("the answer is no JSON: {error}"))?;
            self.sight(line);
        }
        Ok(*last)
    }

    fn sight(&mut self, mut line: Value) {
        if let Some(lost) = line.get("lost").and_then(Value::as_u64) {
            if lost > 0 {
                complain!(
                    "knetctl: {lost} changes came faster than they were taken, and are not shown"
                );
            }
            return;
        }
        let rank = if line.get("sent") == Some(&Value::Bool(true)) {
            LEFT
        } else {
            DONE
        };
        let at = number(&line, "at_ns");
        let socket = line.get_mut("socket").map(Value::take);
        self.add(
            at,
            rank,
            Event::Sight(socket.filter(|socket| !socket.is_null())),
        );
    }

    /// Tells what happened before `until`; false when nobody reads any more.
    fn tell(&mut self, until: u64, teller: &mut Teller) -> bool {
        while let Some(entry) = self.waiting.first_entry() {
            let (at, ..) = *entry.key();
            if at > until {
                return true;
            }
            let goes_on = match entry.remove() {
                Event::Segment(segment) => teller.segment(at, &segment),
                Event::Sight(socket) => teller.look(at, socket.as_ref()),
            };
            if !goes_on {
                return false;
            }
        }
        true
    }
}

/// Both ways have brought what is older than this.
fn settled() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    let nanos = u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000_000
        + u64::try_from(now.tv_nsec).unwrap_or(0);
    nanos.saturating_sub(u64::from(SETTLE.subsec_nanos()))
}

/// An endpoint of a socket's line.
fn end(line: &Value, address: &str, port: &str) -> Option<SocketAddrV4> {
    let port = u16::try_from(number(line, port)).ok()?;
    Some(SocketAddrV4::new(text(line, address).parse().ok()?, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_may_be_cut_in_the_middle_of_a_line() {
        let mut text = String::new();
        for at in 0..50 {
            let line = json!({"at_ns": at, "socket": {"state": "ESTAB"}});
            text.push_str(&format!("{line}\n"));
        }
        for size in [1, 7, 100, text.len()] {
            let mut events = Events::default();
            let mut rest = text.as_str();
            while !rest.is_empty() {
                let (part, more) = rest.split_at(size.min(rest.len()));
                rest = more;
                let over = events.take(&(part.to_owned(), rest.is_empty())).unwrap();
                assert_eq!(over, rest.is_empty());
            }
            assert_eq!(events.waiting.len(), 50, "parts of {size} bytes");
        }
        let broken = ("{\n".to_owned(), true);
        Events::default().take(&broken).unwrap_err();
    }
}
