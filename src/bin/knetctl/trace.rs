//! `knetctl trace`: what happens to one connection, as it happens.

use std::io::Read;
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
use crate::print::{self, number, text};

/// There is no such connection (sysexits.h, EX_NOINPUT).
const NO_CONNECTION: u8 = 66;
/// How often the connection itself is looked at.
const LOOK: Duration = Duration::from_millis(50);

/// Shows what happens to one connection: its segments both ways, what its program reads and writes, its states.
///
/// Sequence numbers are relative to the first ones seen. The connection is looked at twenty times a second, so that several
/// reads or writes may show as one. Needs the rights of a capture. Ends with the connection, at ^C, or after --duration.
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
            eprintln!(
                "knetctl: no connection with {} (knetctl ss shows all)",
                self.peer
            );
            return ExitCode::from(NO_CONNECTION);
        };
        let Some(local) = end(line, "local", "local_port") else {
            return ExitCode::from(NO_CONNECTION);
        };
        match self.run(socket, local, line.clone()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(fault) => {
                eprintln!("knetctl: {}: {fault}", socket.display());
                ExitCode::from(UNAVAILABLE)
            }
        }
    }

    fn run(&self, socket: &Path, local: SocketAddrV4, first: Value) -> Result<(), String> {
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
        let control = host::begin_with(socket, &query, Some(theirs.as_fd()))?;
        drop(theirs);
        let one =
            json!({"query": "socket", "local": local.to_string(), "peer": self.peer.to_string()});
        let mut teller = Teller::new(self.json, &first, local);
        let end = self
            .duration
            .map(|seconds| monotonic() + Duration::from_secs(seconds));
        let mut stream = Blocks::default();
        // What the connection was when its end was seen.
        let mut last = None;
        loop {
            let limit = Timespec {
                tv_sec: 0,
                tv_nsec: LOOK.subsec_nanos().into(),
            };
            let mut wait = [
                PollFd::new(&ours, PollFlags::IN),
                PollFd::new(&signals, PollFlags::IN),
            ];
            // EINTR shows as nothing ready.
            let _ = poll(&mut wait, Some(&limit));
            let [_, signal] = wait.map(|source| !source.revents().is_empty());
            let open = stream.fill(&ours).map_err(say)?;
            while let Some(packet) = stream.next_packet() {
                if !teller.segment(&packet) {
                    return Ok(());
                }
            }
            match last {
                // The capture is over, and the end is told behind its last segment.
                Some(now) if !open => {
                    teller.look(now);
                    return Ok(());
                }
                // Refused: the answer says why.
                None if !open => return host::part(&control).map(|_| ()),
                Some(_) => continue,
                None => {}
            }
            let now = host::ask(socket, &one)?.pop();
            let over = now.is_none() || signal || end.is_some_and(|end| end <= monotonic());
            if over {
                // The host sends what it has captured, and ends the stream.
                let _ = rustix::net::shutdown(&control, rustix::net::Shutdown::Write);
                last = Some(now);
            } else if !teller.look(now) {
                return Ok(());
            }
        }
    }
}

/// An endpoint of a socket's line.
fn end(line: &Value, address: &str, port: &str) -> Option<SocketAddrV4> {
    let port = u16::try_from(number(line, port)).ok()?;
    Some(SocketAddrV4::new(text(line, address).parse().ok()?, port))
}

/// Writes events.
struct Teller {
    json: bool,
    local: SocketAddrV4,
    last: Value,
    /// The first sequence numbers seen: ours, the peer's.
    base: [Option<u32>; 2],
    /// The furthest end of a segment, each way, relative.
    reached: [u32; 2],
    began: Option<u64>,
}

impl Teller {
    fn new(json: bool, first: &Value, local: SocketAddrV4) -> Self {
        let mut teller = Self {
            json,
            local,
            last: first.clone(),
            base: [None; 2],
            reached: [0; 2],
            began: None,
        };
        teller.event(
            None,
            "begin",
            &format!(
                "{} recv-q {} send-q {}",
                text(first, "state"),
                number(first, "recv_q"),
                number(first, "send_q")
            ),
            first,
        );
        teller
    }

    /// A line; false when nobody reads any more.
    fn event(&mut self, at: Option<u64>, kind: &str, words: &str, facts: &Value) -> bool {
        let at = at.unwrap_or_else(|| {
            let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
            u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000_000
                + u64::try_from(now.tv_nsec).unwrap_or(0)
        });
        let began = *self.began.get_or_insert(at);
        if self.json {
            return print::line(
                &json!({"at_ns": at, "event": kind, "text": words, "facts": facts}).to_string(),
            );
        }
        let since = at.saturating_sub(began);
        print::line(&format!(
            "{:>5}.{:06} {kind:<6} {words}",
            since / 1_000_000_000,
            since / 1_000 % 1_000_000
        ))
    }

    /// A captured segment.
    fn segment(&mut self, packet: &Packet) -> bool {
        let Some(segment) = Segment::parse(&packet.bytes) else {
            return true;
        };
        let outbound = segment.source == self.local;
        let way = usize::from(!outbound);
        let base = |place: &mut Option<u32>, first: u32| *place.get_or_insert(first);
        let [our_base, their_base] = &mut self.base;
        let (own, other) = if outbound {
            (our_base, their_base)
        } else {
            (their_base, our_base)
        };
        let sequence = segment.sequence.wrapping_sub(base(own, segment.sequence));
        let acknowledged = segment.flags.contains('.').then(|| {
            segment
                .acknowledged
                .wrapping_sub(base(other, segment.acknowledged))
        });
        let occupies = segment.payload
            + u32::from(segment.flags.contains('S'))
            + u32::from(segment.flags.contains('F'));
        let end = sequence.wrapping_add(occupies);
        let mut notes = Vec::new();
        if let Some(reached) = self.reached.get_mut(way) {
            // Before what was reached, and not a whole half of the space away.
            if occupies > 0 && end.wrapping_sub(*reached).wrapping_sub(1) > 1 << 31 {
                notes.push("again");
            } else if occupies > 0 {
                *reached = end;
            }
        }
        if segment.window == 0 && !segment.flags.contains('R') {
            notes.push("window closed");
        }
        let ack = acknowledged.map_or_else(String::new, |ack| format!(" ack {ack}"));
        let notes = if notes.is_empty() {
            String::new()
        } else {
            format!("  [{}]", notes.join(", "))
        };
        let words = format!(
            "[{}] seq {sequence}{ack} win {} len {}{notes}",
            segment.flags, segment.window, segment.payload
        );
        let facts = json!({"flags": segment.flags, "seq": sequence, "ack": acknowledged, "window": segment.window,
            "payload": segment.payload});
        self.event(
            Some(packet.at),
            if outbound { "out" } else { "in" },
            &words,
            &facts,
        )
    }

    /// The connection as it is now.
    fn look(&mut self, now: Option<Value>) -> bool {
        let Some(now) = &now else {
            return self.event(None, "end", "the connection is gone", &Value::Null);
        };
        let old = core::mem::replace(&mut self.last, now.clone());
        let grew = |name: &str| number(now, name).saturating_sub(number(&old, name));
        // What was there to read and is not any more; what was there to send and what left.
        let read =
            (number(&old, "recv_q") + grew("bytes_received")).saturating_sub(number(now, "recv_q"));
        let written =
            (number(now, "send_q") + grew("bytes_acked")).saturating_sub(number(&old, "send_q"));
        let mut goes_on = true;
        let mut tell =
            |kind: &str, words: String| goes_on = goes_on && self.event(None, kind, &words, now);
        if written > 0 {
            tell(
                "write",
                format!(
                    "the program wrote {written} bytes, {} not acknowledged",
                    number(now, "send_q")
                ),
            );
        }
        if read > 0 {
            tell(
                "read",
                format!(
                    "the program read {read} bytes, {} left",
                    number(now, "recv_q")
                ),
            );
        }
        if grew("retransmits") > 0 {
            tell(
                "resend",
                format!("{} segments sent again so far", number(now, "retransmits")),
            );
        }
        for name in ["state", "stage", "error"] {
            if old.get(name) != now.get(name) {
                tell(
                    name,
                    format!(
                        "{} -> {}",
                        print::plain(old.get(name)),
                        print::plain(now.get(name))
                    ),
                );
            }
        }
        goes_on
    }
}

/// A frame out of the stream.
struct Packet {
    at: u64,
    bytes: Vec<u8>,
}

/// The stream, cut into the blocks that pcapng is made of.
#[derive(Default)]
struct Blocks(Vec<u8>);

impl Blocks {
    fn push(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// Takes what has come; false when the stream has ended.
    fn fill(&mut self, mut from: &UnixStream) -> std::io::Result<bool> {
        let mut buffer = [0; 8_192];
        loop {
            match from.read(&mut buffer) {
                Ok(0) => return Ok(false),
                Ok(count) => self.push(buffer.get(..count).unwrap_or_default()),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return Ok(true),
                Err(error) => return Err(error),
            }
        }
    }

    fn word(&self, at: usize) -> Option<u32> {
        let bytes = self.0.get(at..at.checked_add(4)?)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?))
    }

    /// The next frame that is whole; other blocks are passed over.
    fn next_packet(&mut self) -> Option<Packet> {
        loop {
            let (kind, length) = (self.word(0)?, usize::try_from(self.word(4)?).ok()?);
            if length < 12 || self.0.len() < length {
                return None;
            }
            let packet = (kind == PACKET).then(|| self.packet(length)).flatten();
            self.0.drain(..length);
            if packet.is_some() {
                return packet;
            }
        }
    }

    fn packet(&self, length: usize) -> Option<Packet> {
        let at = u64::from(self.word(12)?) << 32 | u64::from(self.word(16)?);
        let captured = usize::try_from(self.word(20)?).ok()?;
        let bytes = self.0.get(28..length)?.get(..captured)?.to_vec();
        Some(Packet { at, bytes })
    }
}

/// Enhanced packet block.
const PACKET: u32 = 6;

/// A TCP segment in an IPv4 packet.
struct Segment {
    source: SocketAddrV4,
    sequence: u32,
    acknowledged: u32,
    flags: String,
    window: u16,
    payload: u32,
}

impl Segment {
    fn parse(frame: &[u8]) -> Option<Self> {
        let half = |at: usize| Some(u16::from_be_bytes(frame.get(at..at + 2)?.try_into().ok()?));
        let word = |at: usize| Some(u32::from_be_bytes(frame.get(at..at + 4)?.try_into().ok()?));
        let ip = if half(12)? == 0x8100 { 18 } else { 14 };
        let header = usize::from(frame.get(ip)? & 0xf) * 4;
        let total = half(ip + 2)?;
        let tcp = ip + header;
        let offset = usize::from(frame.get(tcp + 12)? >> 4) * 4;
        let bits = *frame.get(tcp + 13)?;
        // As tcpdump writes them.
        let flags = [(2, 'S'), (1, 'F'), (4, 'R'), (8, 'P'), (16, '.')];
        Some(Self {
            source: SocketAddrV4::new(word(ip + 12)?.into(), half(tcp)?),
            sequence: word(tcp + 4)?,
            acknowledged: word(tcp + 8)?,
            flags: flags
                .iter()
                .filter(|(bit, _)| bits & bit != 0)
                .map(|(_, name)| *name)
                .collect(),
            window: half(tcp + 14)?,
            payload: u32::from(total).checked_sub(u32::try_from(header + offset).ok()?)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use knet::capture::pcapng::{self, About};
    use knet::capture::{Direction, Entry};

    #[test]
    fn packets_come_out_of_a_stream_in_any_pieces() {
        let mut whole = Vec::new();
        pcapng::begin(
            &mut whole,
            &About {
                name: "x",
                description: "y",
                filter: "",
                snap: 128,
            },
        );
        let mut frame = vec![0; 14 + 20 + 20];
        frame[12] = 8;
        frame[14] = 0x45;
        frame[17] = 45;
        frame[26..30].copy_from_slice(&[10, 0, 0, 1]);
        frame[34..36].copy_from_slice(&80_u16.to_be_bytes());
        frame[46] = 0x50;
        frame[47] = 0x12;
        for at in [7, 1 << 40] {
            pcapng::packet(
                &mut whole,
                &Entry {
                    at,
                    direction: Direction::In,
                    length: 60,
                    bytes: &frame,
                },
            );
        }
        for size in [1, 3, 1_000] {
            let mut stream = Blocks::default();
            let mut seen = Vec::new();
            for part in whole.chunks(size) {
                stream.push(part);
                while let Some(packet) = stream.next_packet() {
                    let segment = Segment::parse(&packet.bytes).unwrap();
                    seen.push((
                        packet.at,
                        segment.source.to_string(),
                        segment.flags,
                        segment.payload,
                    ));
                }
            }
            let one = |at| (at, "10.0.0.1:80".to_owned(), "S.".to_owned(), 5);
            assert_eq!(seen, [one(7), one(1 << 40)]);
        }
        for len in 0..frame.len() {
            let _ = Segment::parse(&frame[..len]);
        }
    }
}
