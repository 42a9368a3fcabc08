//! `knetctl capture`: what passes a host's port, as pcapng.

use std::fs::File;
use std::io::{self, IsTerminal, Read, Write};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use knet::capture::Filter;
use knet::ffi::end_signals::EndSignals;
use knet::time::monotonic;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::{Value, json};

use crate::USAGE;
use crate::host::{self, Hosts, UNAVAILABLE};
use crate::print::{self, number};

#[path = "capture/files.rs"]
mod files;
#[path = "capture/written.rs"]
mod written;
use files::Files;
use written::Written;

/// Captures what passes a host's port, both ways, as pcapng with nanoseconds.
///
/// The data path never waits: frames that the file takes too slowly are lost to the capture and counted. Ends at ^C, after
/// --count frames or --duration seconds. What programs of one host say to each other does not pass the port.
///
/// FILTER is a part of pcap-filter(7): ip, ip6, arp, icmp, tcp, udp; [src|dst] host A, net A/LEN, port N, portrange N-M;
/// less N, greater N; and, or, not, parentheses. `knetctl capture | wireshark -k -i -` shows it live; with -C and -W it may run for
/// as long as it takes.
///
/// Exit status: 0 captured, 64 wrong usage, 69 no host, or it refused, 74 the file could not be written.
#[derive(clap::Args, Debug)]
pub(crate) struct Capture {
    #[command(flatten)]
    hosts: Hosts,
    /// The file; without it stdout, which must be no terminal.
    #[arg(short, long, value_name = "FILE")]
    write: Option<PathBuf>,
    /// Goes on in the next file before one is larger than so many MiB: NAME_00001.EXT, NAME_00002.EXT and so on for NAME.EXT.
    #[arg(short = 'C', long, value_name = "MIB", requires = "write", value_parser = clap::value_parser!(u64).range(1..1 << 30))]
    file_size: Option<u64>,
    /// Deletes the oldest of these files when there are more than so many.
    #[arg(short = 'W', long, value_name = "FILES", requires = "file_size", value_parser = clap::value_parser!(u64).range(1..))]
    files: Option<u64>,
    /// Bytes of each frame at most; 0 = all.
    #[arg(short, long, value_name = "BYTES", default_value_t = 0)]
    snap: u64,
    /// Ends after so many frames.
    #[arg(short, long, value_name = "FRAMES", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Ends after so many seconds.
    #[arg(short, long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    duration: Option<u64>,
    /// With --write: the counts as one JSON object on stdout, instead of a line on stderr.
    #[arg(long, requires = "write")]
    json: bool,
    /// Which frames.
    #[arg(value_name = "FILTER", trailing_var_arg = true)]
    filter: Vec<String>,
}

impl Capture {
    /// Runs the command.
    pub(crate) fn execute(self) -> ExitCode {
        let filter = self.filter.join(" ");
        if let Err(fault) = Filter::parse(&filter) {
            complain!("knetctl: capture: {fault}");
            return ExitCode::from(USAGE);
        }
        let Some(sockets) = self.hosts.sockets() else {
            return ExitCode::from(UNAVAILABLE);
        };
        let [socket] = sockets.as_slice() else {
            let names: Vec<String> = sockets
                .iter()
                .map(|path| path.display().to_string())
                .collect();
            complain!(
                "knetctl: several hosts run, say which by --socket: {}",
                names.join(" ")
            );
            return ExitCode::from(USAGE);
        };
        let mut to: Box<dyn Write> = match &self.write {
            Some(path) => match self.create(path) {
                Ok(file) => file,
                Err(error) => {
                    complain!("knetctl: {}: {error}", path.display());
                    return ExitCode::from(print::IO_ERROR);
                }
            },
            None if io::stdout().is_terminal() => {
                complain!("knetctl: a capture is no text: name a file by -w, or send it on");
                return ExitCode::from(USAGE);
            }
            None => Box::new(io::stdout().lock()),
        };
        let query =
            json!({"query": "capture", "filter": filter, "snap": self.snap, "count": self.count});
        match self.run(socket, &query, to.as_mut()) {
            Ok((counts, None)) => {
                self.tell(&counts);
                ExitCode::SUCCESS
            }
            // Whoever read the stream has gone.
            Ok((counts, Some(error))) if error.kind() == io::ErrorKind::BrokenPipe => {
                self.tell(&counts);
                ExitCode::SUCCESS
            }
            Ok((counts, Some(error))) => {
                self.tell(&counts);
                complain!("knetctl: the capture is cut: {error}");
                ExitCode::from(print::IO_ERROR)
            }
            Err(fault) => {
                complain!("knetctl: {}: {fault}", socket.display());
                ExitCode::from(UNAVAILABLE)
            }
        }
    }

    /// What the stream is written to.
    fn create(&self, path: &Path) -> io::Result<Box<dyn Write>> {
        Ok(match self.file_size {
            None => Box::new(File::create(path)?),
            Some(size) => Box::new(Files::create(path, size << 20, self.files.unwrap_or(0))?),
        })
    }

    /// Moves the stream to `to`; the counts, and why writing ended early.
    fn run(
        &self,
        socket: &Path,
        query: &Value,
        to: &mut dyn Write,
    ) -> Result<(Value, Option<io::Error>), String> {
        let say = |error: io::Error| error.to_string();
        let signals = EndSignals::catch().map_err(|errno| format!("signals: {errno}"))?;
        let (mut ours, theirs) = UnixStream::pair().map_err(say)?;
        let control = host::begin_with(socket, query, Some(theirs.as_fd()))?;
        drop(theirs);
        let end = self
            .duration
            .map(|seconds| monotonic() + Duration::from_secs(seconds));
        let mut buffer = vec![0; 1 << 20];
        let mut file = Written::new(to);
        let mut ending = false;
        let mut lost = None;
        loop {
            let left = end.filter(|_| !ending).map(|end| end.since(monotonic()));
            let limit = left.map(|left| Timespec {
                tv_sec: left.as_secs().try_into().unwrap_or(i64::MAX),
                tv_nsec: left.subsec_nanos().into(),
            });
            let mut wait = [
                PollFd::new(&ours, PollFlags::IN),
                PollFd::new(&signals, PollFlags::IN),
            ];
            let count = poll(&mut wait, limit.as_ref());
            let [stream, signal] = wait.map(|source| !source.revents().is_empty());
            if !ending && (count == Ok(0) || signal) {
                // The host sends what is left, and then the counts.
                let _ = rustix::net::shutdown(&control, rustix::net::Shutdown::Write);
                ending = true;
            }
            if signal {
                while signals.next().is_ok_and(|next| next.is_some()) {}
            }
            if !stream {
                continue;
            }
            let count = ours.read(&mut buffer).map_err(say)?;
            if count == 0 {
                break;
            }
            let bytes = buffer.get(..count).unwrap_or_default();
            if lost.is_none()
                && let Err(error) = file.put(bytes)
            {
                lost = Some(error);
                let _ = rustix::net::shutdown(&control, rustix::net::Shutdown::Write);
                ending = true;
            }
        }
        let _ = ours.shutdown(Shutdown::Both);
        let mut text = String::new();
        loop {
            let (part, last) = match host::part(&control) {
                Ok(part) => part,
                // It began, so it has served us: a program that ends takes a host inside with it.
                Err(_) if file.frames() > 0 => {
                    let ended = io::Error::other("the host has ended");
                    return Ok((json!({"written": file.frames()}), Some(ended)));
                }
                Err(fault) => return Err(fault),
            };
            text.push_str(&part);
            if last {
                break;
            }
        }
        let mut counts: Value = serde_json::from_str(text.trim())
            .map_err(|error| format!("the counts are no JSON: {error}"))?;
        if lost.is_some()
            && let Some(written) = counts.get_mut("written")
        {
            // What the host sent is not in the file.
            *written = file.frames().into();
        }
        Ok((counts, lost))
    }

    fn tell(&self, counts: &Value) {
        if self.json {
            print::json(counts);
            return;
        }
        if counts.get("seen").is_none() {
            complain!("{} frames captured", number(counts, "written"));
            return;
        }
        complain!(
            "{} frames captured, {} passed, {} wanted, {} lost for want of a buffer",
            number(counts, "written"),
            number(counts, "seen"),
            number(counts, "admitted"),
            number(counts, "dropped")
        );
    }
}
