//! What a judgement about a program stands on: its process, its library, hosts, config and machine.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use knet::config::{self, Policy};
use knet::preflight::install::{FRAME, Places};
use knet::preflight::{self, Machine, Severity};
use serde_json::{Value, json};

use crate::host;
use crate::print::{number, text};
use crate::process::{Kind, Process, Socket};
use crate::program::{self, Obstacle};

/// Where the library keeps its own descriptors (design D9).
const INTERNAL_FROM: u32 = 700;

/// What a judgement stands on.
pub(super) struct Ground {
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
    /// The environment is not known: the config may be another, and whether it was to be preloaded is not told.
    overwritten: bool,
    pub(super) policy: Option<Policy>,
    /// Faults of the config, or what the machine says against it.
    faults: Vec<String>,
    excluded: bool,
}

impl Ground {
    pub(super) fn of(process: &Process) -> io::Result<Self> {
        let library = process.mapped("libknet_frame.so")?;
        let mut hosts = Vec::new();
        let mut stack = Vec::new();
        for socket in hosts_of(process) {
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
        let overwritten = process.has_overwritten_its_environment();
        let named = process
            .variable("KNET_CONF")
            .filter(|path| !path.is_empty());
        let config = match named {
            Some(named) => PathBuf::from(named),
            // Whoever asks may know it.
            None if overwritten => crate::config_file(),
            None => PathBuf::from(config::DEFAULT_PATH),
        };
        let config = process.path(&config);
        let mut ground = Self {
            file: process.program_file(),
            ids: process.real_ids(),
            library,
            preload: process.variable("LD_PRELOAD"),
            hosts,
            stack,
            overwritten,
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
    pub(super) fn whole(&self) -> Result<String, String> {
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
            Some(fault) if self.overwritten => Err(format!(
                "{fault}; but it has written its title over its environment: if KNET_CONF names another file for it, ask with \
                 the same KNET_CONF"
            )),
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
        if !wanted && self.overwritten {
            return format!(
                "started without the library, or the loader did not take it: what LD_PRELOAD says is not known, as it has \
                 written its title over its environment (use knetctl run, or the unit's Environment=, with {FRAME})"
            );
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
    pub(super) fn on_stack(&self, socket: &Socket) -> Option<String> {
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
    pub(super) fn is_internal(&self, socket: &Socket) -> bool {
        self.library.is_some()
            && socket.fd >= INTERNAL_FROM
            && matches!(socket.kind, Kind::Unix | Kind::Unbound)
    }
}

/// The first file of an LD_PRELOAD list that is named by path and does not exist.
fn missing(list: Option<&OsString>) -> Option<String> {
    let list = list?.to_string_lossy().into_owned();
    list.split([':', ' '])
        .filter(|entry| entry.contains('/') && entry.ends_with(FRAME))
        .find(|entry| !Path::new(entry).exists())
        .map(str::to_owned)
}

/// Host sockets that it may be served by: those that every tool finds, and those in the run folder that it was told.
fn hosts_of(process: &Process) -> Vec<PathBuf> {
    let mut sockets = host::find();
    if let Some(folder) = process.variable("KNET_RUN_DIR") {
        sockets.extend(host::find_in(&[process.path(Path::new(&folder))]));
    }
    sockets.extend(host::find_in(&[process.path(Path::new("/run/knet"))]));
    sockets.sort();
    sockets.dedup();
    sockets
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
