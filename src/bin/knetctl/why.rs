//! `knetctl why PID`: which of a program's sockets are on the kernel, and for what reason.

use std::collections::HashSet;
use std::ffi::OsString;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use knet::config::{self, Policy};
use knet::preflight::install::{FRAME, Places};
use knet::preflight::{self, Machine, Severity};
use serde_json::{Value, json};

use crate::host;
use crate::print::{self, number, text};
use crate::process::{Internet, Kind, Process, Socket};
use crate::program::{self, Obstacle};

/// There is no such process (sysexits.h, EX_NOINPUT).
const NO_PROCESS: u8 = 66;
/// It is somebody else's (sysexits.h, EX_NOPERM).
const NO_PERMISSION: u8 = 77;

/// Says for each socket of a program whether it is on the stack, and if not, why.
///
/// What keeps the whole program on the kernel comes first: not preloaded, static, Go, set-user-id, excluded by the config,
/// a config or machine that cannot serve.
///
/// Exit status: 0 told, 64 wrong usage, 66 no such process, 77 it belongs to another user.
#[derive(clap::Args, Debug)]
pub(crate) struct Why {
    /// The process.
    pid: u32,
    /// One JSON object on stdout.
    #[arg(long)]
    json: bool,
}

impl Why {
    /// Runs the command.
    pub(crate) fn execute(self) -> ExitCode {
        let Some(process) = Process::find(self.pid) else {
            complain!("knetctl: there is no process {}", self.pid);
            return ExitCode::from(NO_PROCESS);
        };
        let told = match Told::about(&process) {
            Ok(told) => told,
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                complain!(
                    "knetctl: process {} belongs to another user: ask as root or as that user",
                    self.pid
                );
                return ExitCode::from(NO_PERMISSION);
            }
            Err(error) => {
                complain!("knetctl: process {}: {error}", self.pid);
                return ExitCode::from(NO_PROCESS);
            }
        };
        if self.json {
            print::json(&told.as_json(&process));
        } else {
            print::line(told.as_lines(&process).trim_end());
        }
        ExitCode::SUCCESS
    }
}

/// What was found out about a program.
struct Told {
    /// Why none of its sockets can be on the stack, or that they can.
    whole: Result<String, String>,
    sockets: Vec<Line>,
}

struct Line {
    fd: u32,
    what: String,
    on_stack: bool,
    reason: String,
}

impl Told {
    fn about(process: &Process) -> io::Result<Self> {
        let sockets = process.sockets()?;
        let ground = Ground::of(process)?;
        let whole = ground.whole();
        let listening: Vec<u16> = sockets
            .iter()
            .filter_map(|socket| match &socket.kind {
                Kind::Tcp(ends) if ends.listens => Some(ends.local.1),
                _ => None,
            })
            .collect();
        let lines = sockets
            .iter()
            .filter(|socket| !ground.is_internal(socket))
            .map(|socket| {
                let stack = ground.on_stack(socket);
                let reason = match (&stack, &whole) {
                    (Some(_), _) if is_wildcard(socket) => {
                        "on the stack; the kernel's half of it answers loopback".to_owned()
                    }
                    (Some(_), _) => "on the stack".to_owned(),
                    (None, whole) => reason(socket, ground.policy.as_ref(), &listening, whole),
                };
                Line {
                    fd: socket.fd,
                    what: stack.clone().unwrap_or_else(|| describe(&socket.kind)),
                    on_stack: stack.is_some(),
                    reason,
                }
            })
            .collect();
        Ok(Self {
            whole,
            sockets: lines,
        })
    }

    fn as_lines(&self, process: &Process) -> String {
        let name = process.name().unwrap_or_default();
        let whole = match &self.whole {
            Ok(text) => text,
            Err(text) => text,
        };
        let mut rows = Vec::new();
        for line in &self.sockets {
            let path = if line.on_stack { "stack" } else { "kernel" };
            rows.push(vec![
                format!("fd {}", line.fd),
                path.to_owned(),
                line.what.clone(),
                line.reason.clone(),
            ]);
        }
        if rows.is_empty() {
            rows.push(vec!["it has no socket".to_owned()]);
        }
        format!(
            "{name} (pid {}): {whole}\n{}",
            process.pid,
            print::table(&rows)
        )
    }

    fn as_json(&self, process: &Process) -> Value {
        let sockets = self.sockets.iter().map(|line| {
            json!({
                "fd": line.fd,
                "socket": line.what,
                "path": if line.on_stack { "stack" } else { "kernel" },
                "reason": line.reason,
            })
        });
        json!({
            "process": process.pid,
            "name": process.name(),
            "accelerated": self.whole.is_ok(),
            "reason": match &self.whole { Ok(text) | Err(text) => text },
            "sockets": sockets.collect::<Vec<_>>(),
        })
    }
}

/// What a judgement stands on.
struct Ground {
    /// The program as it can be read.
    file: PathBuf,
    /// Who started it.
    ids: (u32, u32),
    /// The library as it is mapped.
    library: Option<PathBuf>,
    preload: Option<OsString>,
    /// Host processes that serve it.
    hosts: Vec<u32>,
    /// Sockets of the program that are on the stack: descriptor, inode, in words.
    stack: Vec<(u32, Option<u64>, String)>,
    config: PathBuf,
    policy: Option<Policy>,
    /// Faults of the config, or what the machine says against it.
    faults: Vec<String>,
    excluded: bool,
}

impl Ground {
    fn of(process: &Process) -> io::Result<Self> {
        let library = process.mapped("libknet_frame.so")?;
        let mut hosts = Vec::new();
        let mut stack = Vec::new();
        for socket in host::find() {
            let Ok(lines) = host::ask(&socket, &json!({"query": "sockets"})) else {
                continue;
            };
            let Some((host, lines)) = lines.split_first() else {
                continue;
            };
            if serves(host, process.pid) {
                hosts.push(number(host, "process").try_into().unwrap_or(0));
            }
            stack.extend(lines.iter().filter_map(|line| on_stack(process, line)));
        }
        let named = process
            .variable("KNET_CONF")
            .filter(|path| !path.is_empty());
        let config = named.map_or_else(|| PathBuf::from(config::DEFAULT_PATH), PathBuf::from);
        let mut ground = Self {
            file: process.program_file(),
            ids: process.real_ids(),
            library,
            preload: process.variable("LD_PRELOAD"),
            hosts,
            stack,
            policy: None,
            faults: Vec::new(),
            excluded: false,
            config,
        };
        match config::load_file(&ground.config) {
            Ok(config) => {
                let policy = Policy::from(&config);
                let program = process.program()?;
                ground.excluded = !policy.covers_program(&program.to_string_lossy());
                ground.policy = Some(policy);
                if ground.library.is_some() && ground.hosts.is_empty() {
                    let places = Places::of_this_process()?;
                    let findings = preflight::check(&config, &Machine::gather(&config, &places));
                    let errors = findings.iter().filter(|it| it.severity == Severity::Error);
                    ground.faults = errors.map(ToString::to_string).collect();
                }
            }
            Err(faults) => ground.faults = vec![faults.one_line()],
        }
        Ok(ground)
    }

    /// Why the whole program is on the kernel; Ok when it is not.
    fn whole(&self) -> Result<String, String> {
        if self.library.is_none() {
            return Err(self.not_preloaded());
        }
        if program::is_go(&self.file) {
            return Err(
                "a Go program makes its system calls itself, past the preloaded library".to_owned(),
            );
        }
        if self.excluded {
            return Err(format!(
                "common.accelerate.programs in {} does not list it",
                self.config.display()
            ));
        }
        if let Some(host) = self.hosts.first() {
            return Ok(format!("accelerated by the host with pid {host}"));
        }
        if let Some(Obstacle::OwnWait(call)) = program::obstacle_for(&self.file, self.ids) {
            return Err(format!(
                "it waits for sockets by system calls of its own ({call}), past the preloaded library"
            ));
        }
        match self.faults.first() {
            Some(fault) => Err(fault.clone()),
            None => Err(
                "preloaded, but no host serves it: it has not bound, listened or connected beyond loopback, or the host \
                 could not be reached (its stderr says why)"
                    .to_owned(),
            ),
        }
    }

    fn not_preloaded(&self) -> String {
        let wanted = self.preload.as_ref().is_some_and(|list| {
            list.as_encoded_bytes()
                .windows(FRAME.len())
                .any(|part| part == FRAME.as_bytes())
        });
        // Whatever it was started with, these would not help.
        match program::obstacle_for(&self.file, self.ids) {
            Some(Obstacle::Static) if program::is_go(&self.file) => {
                return "a Go program, linked statically: nothing can be preloaded".to_owned();
            }
            Some(Obstacle::Static) => {
                return "linked statically: there is no loader that could preload anything"
                    .to_owned();
            }
            Some(Obstacle::Foreign) => {
                return "built for another machine type than the library".to_owned();
            }
            Some(Obstacle::Privileged(why)) => {
                return format!(
                    "it has {why}: the loader ignores paths in LD_PRELOAD for it (ld.so(8))"
                );
            }
            Some(Obstacle::OwnWait(call)) => {
                return format!("it waits for sockets by system calls of its own ({call})");
            }
            None => {}
        }
        if !wanted {
            return format!(
                "started without the library: LD_PRELOAD does not name {FRAME} (use knetctl run, or the unit's Environment=)"
            );
        }
        match missing(self.preload.as_ref()) {
            Some(path) => format!("LD_PRELOAD names {path}, which is not there"),
            None => {
                "LD_PRELOAD names the library, but the loader did not take it (its stderr says why)"
                    .to_owned()
            }
        }
    }

    /// The socket in words, when it is on the stack.
    fn on_stack(&self, socket: &Socket) -> Option<String> {
        let is_behind = |inode: &Option<u64>| inode.is_none_or(|inode| inode == socket.inode);
        let exact = self
            .stack
            .iter()
            .find(|(fd, inode, _)| *fd == socket.fd && is_behind(inode));
        // A duplicate: its number was never told, what lies behind it was.
        let other = || {
            self.stack
                .iter()
                .find(|(_, inode, _)| *inode == Some(socket.inode))
        };
        exact.or_else(other).map(|(.., text)| text.clone())
    }

    /// Descriptors of the library itself.
    fn is_internal(&self, socket: &Socket) -> bool {
        self.library.is_some()
            && socket.fd >= INTERNAL_FROM
            && matches!(socket.kind, Kind::Unix | Kind::Unbound)
    }
}

/// Where the library keeps its own descriptors (design D9).
const INTERNAL_FROM: u32 = 700;

fn is_wildcard(socket: &Socket) -> bool {
    matches!(&socket.kind, Kind::Tcp(ends) if ends.listens && ends.local.0.is_unspecified())
}

/// The first file of an LD_PRELOAD list that is named by path and does not exist.
fn missing(list: Option<&OsString>) -> Option<String> {
    let list = list?.to_string_lossy().into_owned();
    list.split([':', ' '])
        .filter(|entry| entry.contains('/') && entry.ends_with(FRAME))
        .find(|entry| !Path::new(entry).exists())
        .map(str::to_owned)
}

fn serves(host: &Value, pid: u32) -> bool {
    let programs = host.get("programs").and_then(Value::as_array);
    programs.into_iter().flatten().any(|program| {
        let processes = program.get("processes").and_then(Value::as_array);
        processes
            .into_iter()
            .flatten()
            .any(|it| it.as_u64() == Some(u64::from(pid)))
    })
}

/// Descriptor, inode and words of a socket that a host has for the process.
fn on_stack(process: &Process, line: &Value) -> Option<(u32, Option<u64>, String)> {
    let processes = line.get("processes")?.as_array()?;
    if !processes
        .iter()
        .any(|pid| pid.as_u64() == Some(u64::from(process.pid)))
    {
        return None;
    }
    let fd = u32::try_from(line.get("fd")?.as_u64()?).ok()?;
    let endpoint =
        |address: &str, port: &str| format!("{}:{}", text(line, address), number(line, port));
    let words = match text(line, "state") {
        "LISTEN" => format!("TCP {} LISTEN", endpoint("local", "local_port")),
        state => format!(
            "TCP {} to {} {state}",
            endpoint("local", "local_port"),
            endpoint("peer", "peer_port")
        ),
    };
    Some((fd, process.socket_inode(fd), words))
}

fn describe(kind: &Kind) -> String {
    let ends = |name: &str, ends: &Internet| {
        let (local, remote) = (ends.local, ends.remote);
        if ends.listens {
            format!("{name} {}:{} LISTEN", local.0, local.1)
        } else if remote.1 != 0 {
            format!(
                "{name} {}:{} to {}:{}",
                local.0, local.1, remote.0, remote.1
            )
        } else {
            format!("{name} {}:{}", local.0, local.1)
        }
    };
    match kind {
        Kind::Tcp(tcp) => ends("TCP", tcp),
        Kind::Udp(udp) => ends("UDP", udp),
        Kind::Unix => "AF_UNIX".to_owned(),
        Kind::Netlink => "AF_NETLINK".to_owned(),
        Kind::Raw => "raw".to_owned(),
        Kind::Unbound => "not bound".to_owned(),
    }
}

/// Why a socket is on the kernel. `listening` are the ports on which the program listens there.
fn reason(
    socket: &Socket,
    policy: Option<&Policy>,
    listening: &[u16],
    whole: &Result<String, String>,
) -> String {
    let ends = match &socket.kind {
        Kind::Unix => return "AF_UNIX sockets are the kernel's".to_owned(),
        Kind::Netlink => return "netlink sockets are the kernel's".to_owned(),
        Kind::Raw => return "raw sockets are the kernel's".to_owned(),
        Kind::Udp(_) => return "UDP is not on the stack in this version".to_owned(),
        Kind::Unbound => {
            return match whole {
                Ok(_) => {
                    "undecided: neither listening nor connected, or closed by its peer".to_owned()
                }
                Err(_) => "the whole program is on the kernel, see above".to_owned(),
            };
        }
        Kind::Tcp(ends) => ends,
    };
    let loopback = "loopback is the kernel's".to_owned();
    let (IpAddr::V4(local), IpAddr::V4(remote)) = (ends.local.0, ends.remote.0) else {
        if ends.local.0.is_loopback() || ends.remote.0.is_loopback() {
            return loopback;
        }
        return "IPv6 is not on the stack in this version".to_owned();
    };
    if local.is_loopback() || remote.is_loopback() {
        return loopback;
    }
    if whole.is_err() {
        return "the whole program is on the kernel, see above".to_owned();
    }
    let Some(policy) = policy else {
        return "the config cannot be read now, so that nothing can be said".to_owned();
    };
    let listed: HashSet<Ipv4Addr> = policy
        .addresses
        .iter()
        .map(|(address, _)| *address)
        .collect();
    // A connection that came in has the port of a listener; one that went out is judged by the peer's.
    let came_in = !ends.listens && listening.contains(&ends.local.1);
    let (name, port) = if ends.listens || came_in {
        ("listens on", ends.local.1)
    } else {
        ("connects to", ends.remote.1)
    };
    if !policy.covers_port(port) {
        return format!("common.accelerate.ports does not list {port}, which it {name}");
    }
    if !local.is_unspecified() && !listed.contains(&local) {
        return format!("{local} is an address of the kernel, not one of the config's");
    }
    if listed.contains(&local) && !policy.covers_address(local) {
        return format!("common.accelerate.addresses does not list {local}");
    }
    "routed to the kernel when no host could serve it: the device did not open, or the stack refused it".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(accelerate: &str) -> Policy {
        let text = format!(
            r#"{{"interface": {{"vdevs": ["knet_unix,path=/tmp/x"], "ip": "10.77.0.1",
            "addresses": ["10.77.0.9/24"]}}, "common": {{"accelerate": {{{accelerate}}}}}}}"#
        );
        Policy::from(&config::load_bytes("test", text.as_bytes()).expect("config"))
    }

    fn tcp(local: &str, remote: &str, listens: bool) -> Socket {
        let end = |text: &str| {
            let end: std::net::SocketAddr = text.parse().expect("endpoint");
            (end.ip(), end.port())
        };
        let ends = Internet {
            local: end(local),
            remote: end(remote),
            listens,
        };
        Socket {
            fd: 5,
            inode: 7,
            kind: Kind::Tcp(ends),
        }
    }

    #[test]
    fn each_socket_has_its_own_reason() {
        let all = policy("");
        let some = policy(r#""ports": [6379], "addresses": ["10.77.0.1"]"#);
        let fine = Ok(String::new());
        let say = |socket: &Socket, policy: &Policy, listening: &[u16]| {
            reason(socket, Some(policy), listening, &fine)
        };
        let none = "0.0.0.0:0";
        for (socket, policy, listening, part) in [
            (tcp("127.0.0.1:80", none, true), &all, &[80][..], "loopback"),
            (tcp("[::1]:80", "[::]:0", true), &all, &[80][..], "loopback"),
            (tcp("[::]:80", "[::]:0", true), &all, &[80][..], "IPv6"),
            (
                tcp("192.168.0.1:80", none, true),
                &all,
                &[80][..],
                "192.168.0.1 is an address of the kernel",
            ),
            (
                tcp("10.77.0.1:80", none, true),
                &some,
                &[80][..],
                "ports does not list 80, which it listens on",
            ),
            (
                tcp("10.77.0.9:6379", none, true),
                &some,
                &[6379][..],
                "addresses does not list 10.77.0.9",
            ),
            (
                tcp("10.77.0.1:5000", "10.0.0.9:443", false),
                &some,
                &[][..],
                "443, which it connects to",
            ),
            (
                tcp("10.77.0.1:80", "10.0.0.9:6379", false),
                &some,
                &[80][..],
                "80, which it listens on",
            ),
            (
                tcp("10.77.0.1:6379", none, true),
                &some,
                &[6379][..],
                "no host could serve",
            ),
        ] {
            let said = say(&socket, policy, listening);
            assert!(said.contains(part), "{socket:?}: {said}");
        }
        let other = |kind| {
            reason(
                &Socket {
                    fd: 1,
                    inode: 1,
                    kind,
                },
                Some(&all),
                &[],
                &fine,
            )
        };
        assert!(other(Kind::Unix).contains("AF_UNIX"));
        assert!(other(Kind::Unbound).contains("undecided"));
        let whole = Err("static".to_owned());
        let said = reason(&tcp("10.77.0.1:80", none, true), Some(&all), &[], &whole);
        assert!(said.contains("whole program"), "{said}");
    }
}
