//! The hosts of this machine: where they listen, and how one is asked.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use knet::channel::message::{HEAD_BYTES, Kind, Message, MessageError, TEXT_BYTES};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use serde_json::Value;

/// No host answers (sysexits.h, EX_UNAVAILABLE).
pub(crate) const UNAVAILABLE: u8 = 69;
/// A host says something within this many seconds.
const ANSWER_S: i64 = 5;

/// Which hosts are asked.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Hosts {
    /// The host's socket [default: every host in $KNET_RUN_DIR, or in /run/knet, $XDG_RUNTIME_DIR/knet, /tmp/knet-UID;
    /// for root also those of all users]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
}

impl Hosts {
    /// Their sockets; why there is none.
    pub(crate) fn find(&self) -> Result<Vec<PathBuf>, String> {
        let found = self
            .socket
            .as_ref()
            .map_or_else(find, |socket| vec![socket.clone()]);
        if found.is_empty() {
            return Err(
                "no host runs for this user; one starts with the first socket of a preloaded program"
                    .to_owned(),
            );
        }
        Ok(found)
    }

    /// Their sockets. None, with a line on stderr, when there is none.
    pub(crate) fn sockets(&self) -> Option<Vec<PathBuf>> {
        self.find()
            .inspect_err(|fault| complain!("knetctl: {fault}"))
            .ok()
    }

    /// Asks every host the same; what each answered. Hosts that do not answer are named on stderr.
    pub(crate) fn ask(&self, query: &Value) -> Option<Vec<(PathBuf, Vec<Value>)>> {
        let mut answers = Vec::new();
        for socket in self.sockets()? {
            match ask(&socket, query) {
                Ok(lines) => answers.push((socket, lines)),
                Err(fault) => complain!("knetctl: {}: {fault}", socket.display()),
            }
        }
        (!answers.is_empty()).then_some(answers)
    }
}

/// Every host socket in the folders that design D14 names.
pub(crate) fn find() -> Vec<PathBuf> {
    let own = std::env::var_os("KNET_RUN_DIR").filter(|folder| !folder.is_empty());
    let folders = match own {
        Some(own) => vec![PathBuf::from(own)],
        None => folders(),
    };
    find_in(&folders)
}

/// Every host socket in some folders.
pub(crate) fn find_in(folders: &[PathBuf]) -> Vec<PathBuf> {
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
    found.dedup();
    found
}

fn folders() -> Vec<PathBuf> {
    let user = std::env::var_os("XDG_RUNTIME_DIR").map(|folder| Path::new(&folder).join("knet"));
    let own = rustix::process::getuid();
    let shared = PathBuf::from(format!("/tmp/knet-{}", own.as_raw()));
    let mut folders: Vec<PathBuf> = [Some(PathBuf::from("/run/knet")), user, Some(shared)]
        .into_iter()
        .flatten()
        .collect();
    if own.is_root() {
        let children = |folder: &str| {
            let entries = Path::new(folder).read_dir().ok();
            entries.into_iter().flatten().filter_map(Result::ok)
        };
        folders.extend(children("/run/user").map(|entry| entry.path().join("knet")));
        folders.extend(children("/tmp").map(|entry| entry.path()).filter(|path| {
            let name = path.file_name().and_then(|name| name.to_str());
            name.is_some_and(|name| name.starts_with("knet-"))
        }));
    }
    folders.sort();
    folders.dedup();
    folders
}

/// Connects to the host at `path` and asks.
pub(crate) fn begin(path: &Path, query: &Value) -> Result<OwnedFd, String> {
    begin_with(path, query, None)
}

/// As [`begin`], with a descriptor for a stream.
pub(crate) fn begin_with(
    path: &Path,
    query: &Value,
    riding: Option<BorrowedFd<'_>>,
) -> Result<OwnedFd, String> {
    let say = |what: &str, error: Errno| format!("{what}: {error}");
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
    .map_err(|error| say("no socket", error))?;
    let address = SocketAddrUnix::new(path).map_err(|error| say("path", error))?;
    rustix::net::connect(&socket, &address).map_err(|error| say("no host listens", error))?;
    let text = query.to_string();
    let request = Message {
        text: &text,
        ..Message::new(Kind::Query, 0, 0)
    };
    let mut out = [0; HEAD_BYTES + TEXT_BYTES];
    let request = request.emit(&mut out).to_vec();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut rights = SendAncillaryBuffer::new(&mut space);
    let riding: Vec<BorrowedFd<'_>> = riding.into_iter().collect();
    if !riding.is_empty() && !rights.push(SendAncillaryMessage::ScmRights(&riding)) {
        return Err("no room for the descriptor".to_owned());
    }
    rustix::net::sendmsg(
        &socket,
        &[io::IoSlice::new(&request)],
        &mut rights,
        SendFlags::NOSIGNAL,
    )
    .map_err(|error| say("cannot ask", error))?;
    Ok(socket)
}

/// The next part of an answer, and whether it is the last.
pub(crate) fn part(socket: &OwnedFd) -> Result<(String, bool), String> {
    let say = |what: &str, error: Errno| format!("{what}: {error}");
    let mut wait = [PollFd::new(socket, PollFlags::IN)];
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
        socket,
        &mut [io::IoSliceMut::new(&mut buffer)],
        &mut rights,
        RecvFlags::CMSG_CLOEXEC,
    )
    .map_err(|error| say("no answer", error))?;
    if received.bytes == 0 {
        return Err(
            "the host hung up: it is of another build, or does not serve this user".to_owned(),
        );
    }
    match Message::parse(buffer.get(..received.bytes).unwrap_or_default()) {
        Ok(Message {
            kind: Kind::Answer,
            a,
            text,
            ..
        }) => Ok((text.to_owned(), a == 1)),
        Ok(Message {
            kind: Kind::Fault,
            text,
            ..
        }) => Err(text.to_owned()),
        Ok(_) | Err(MessageError::Foreign) => Err("the answer is none".to_owned()),
        Err(MessageError::Abi(abi)) => Err(format!(
            "the host speaks channel version {abi}, this is {}",
            knet::channel::ABI
        )),
    }
}

/// Asks the host at `path`; the lines of its answer.
pub(crate) fn ask(path: &Path, query: &Value) -> Result<Vec<Value>, String> {
    let socket = begin(path, query)?;
    let mut text = String::new();
    loop {
        let (part, last) = part(&socket)?;
        text.push_str(&part);
        if last {
            break;
        }
    }
    text.lines()
        .map(|line| {
            serde_json::from_str(line).map_err(|error| format!("the answer is no JSON: {error}"))
        })
        .collect()
}
