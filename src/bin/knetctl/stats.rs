//! `knetctl stats`: the counters of a host, asked for on its socket.

use std::io::{self, Write};
use std::mem::MaybeUninit;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use knet::channel::message::{HEAD_BYTES, Kind, Message, MessageError, TEXT_BYTES};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags,
    SocketType,
};
use serde_json::{Map, Value};

/// No host answers (sysexits.h, EX_UNAVAILABLE).
const UNAVAILABLE: u8 = 69;
/// A host answers within this many seconds.
const ANSWER_S: i64 = 5;

/// Prints the counters of every host found (or of the one at --socket), one `name value` line each.
///
/// Exit status: 0 told, 69 no host answers, 64 wrong usage.
#[derive(clap::Args, Debug)]
pub(crate) struct Stats {
    /// The host's socket [default: every host-*.sock in $KNET_RUN_DIR, /run/knet, $XDG_RUNTIME_DIR/knet, /tmp/knet-UID]
    #[arg(long)]
    socket: Option<PathBuf>,
    /// One JSON object on stdout instead of lines.
    #[arg(long)]
    json: bool,
}

impl Stats {
    /// Runs the command.
    pub(crate) fn execute(self) -> ExitCode {
        let sockets = self.socket.map_or_else(hosts, |socket| vec![socket]);
        if sockets.is_empty() {
            eprintln!(
                "knetctl: no host runs for this user; one starts with the first socket of a preloaded program"
            );
            return ExitCode::from(UNAVAILABLE);
        }
        let mut told = false;
        let mut all = Map::new();
        for socket in &sockets {
            match ask(socket) {
                Ok(report) => {
                    told = true;
                    let lines = as_lines(&report);
                    all.insert(socket.display().to_string(), report);
                    if !self.json
                        && (sockets.len() > 1 && !line(&format!("# {}", socket.display()))
                            || !line(lines.trim_end()))
                    {
                        return ExitCode::SUCCESS;
                    }
                }
                Err(fault) => eprintln!("knetctl: {}: {fault}", socket.display()),
            }
        }
        if self.json {
            line(&format!("{:#}", Value::Object(all)));
        }
        if told {
            ExitCode::SUCCESS
        } else {
            ExitCode::from(UNAVAILABLE)
        }
    }
}

/// Prints a line; false when nobody reads any more.
fn line(text: &str) -> bool {
    writeln!(io::stdout().lock(), "{text}").is_ok()
}

/// The report as lines: facts first, then one line a counter.
fn as_lines(report: &Value) -> String {
    let mut out = String::new();
    let mut add = |name: &str, value: &Value| {
        let value = value
            .as_str()
            .map_or_else(|| value.to_string(), str::to_owned);
        out.push_str(&format!("{name} {value}\n"));
    };
    for (name, value) in report.as_object().into_iter().flatten() {
        match value.as_object() {
            None => add(name, value),
            Some(group) if name == "counters" => {
                group.iter().for_each(|(name, value)| add(name, value))
            }
            Some(group) => group
                .iter()
                .for_each(|(part, value)| add(&format!("{name}.{part}"), value)),
        }
    }
    out
}

/// Every host socket in the folders that design D14 names.
fn hosts() -> Vec<PathBuf> {
    let own = std::env::var_os("KNET_RUN_DIR").map(PathBuf::from);
    let user = std::env::var_os("XDG_RUNTIME_DIR").map(|folder| Path::new(&folder).join("knet"));
    let shared = PathBuf::from(format!("/tmp/knet-{}", rustix::process::getuid().as_raw()));
    let folders = match own {
        Some(own) => vec![own],
        None => [Some(PathBuf::from("/run/knet")), user, Some(shared)]
            .into_iter()
            .flatten()
            .collect(),
    };
    let mut found: Vec<PathBuf> = folders
        .iter()
        .filter_map(|folder| folder.read_dir().ok())
        .flatten()
        .filter_map(Result::ok)
        .map(|entry| entry.path())
        .filter(|path| {
            let name = path
                .file_name()
                .and_then(|name| name.to_str())
                .unwrap_or_default();
            (name.starts_with("host-") || name == "knetd.sock") && name.ends_with(".sock")
        })
        .collect();
    found.sort();
    found
}

fn ask(path: &Path) -> Result<Value, String> {
    let say = |what: &str, error: rustix::io::Errno| format!("{what}: {error}");
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
    .map_err(|error| say("no socket", error))?;
    let address = SocketAddrUnix::new(path).map_err(|error| say("path", error))?;
    rustix::net::connect(&socket, &address).map_err(|error| say("no host listens", error))?;
    let mut out = [0; HEAD_BYTES + TEXT_BYTES];
    let request = Message::new(Kind::Status, 0, 0).emit(&mut out).to_vec();
    rustix::net::send(&socket, &request, SendFlags::NOSIGNAL)
        .map_err(|error| say("cannot ask", error))?;
    let mut wait = [PollFd::new(&socket, PollFlags::IN)];
    let limit = Timespec {
        tv_sec: ANSWER_S,
        tv_nsec: 0,
    };
    if poll(&mut wait, Some(&limit)).map_err(|error| say("poll", error))? == 0 {
        return Err(format!("no answer within {ANSWER_S} s"));
    }
    let mut space: [MaybeUninit<u8>; 64] = [const { MaybeUninit::uninit() }; 64];
    let mut rights = RecvAncillaryBuffer::new(&mut space);
    let mut buffer = [0; HEAD_BYTES + TEXT_BYTES];
    let received = rustix::net::recvmsg(
        &socket,
        &mut [io::IoSliceMut::new(&mut buffer)],
        &mut rights,
        RecvFlags::CMSG_CLOEXEC,
    )
    .map_err(|error| say("no answer", error))?;
    match Message::parse(buffer.get(..received.bytes).unwrap_or_default()) {
        Ok(Message {
            kind: Kind::Status,
            text,
            ..
        }) => {
            serde_json::from_str(text).map_err(|error| format!("the answer is no report: {error}"))
        }
        Ok(Message {
            kind: Kind::Fault,
            text,
            ..
        }) => Err(text.to_owned()),
        Ok(_) | Err(MessageError::Foreign) => Err("the answer is no report".to_owned()),
        Err(MessageError::Abi(abi)) => Err(format!(
            "the host speaks channel version {abi}, this is {}",
            knet::channel::ABI
        )),
    }
}
