//! `knetctl why PID`: which of a program's sockets are on the kernel, and for what reason.

use std::io;
use std::process::ExitCode;

use serde_json::{Value, json};

use crate::print;
use crate::process::{Kind, Process, Socket};

use ground::Ground;
use reason::{describe, reason};

#[path = "why/ground.rs"]
mod ground;
#[path = "why/reason.rs"]
mod reason;

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

fn is_wildcard(socket: &Socket) -> bool {
    matches!(&socket.kind, Kind::Tcp(ends) if ends.listens && ends.local.0.is_unspecified())
}
