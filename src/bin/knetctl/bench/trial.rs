//! A trial of this machine: two hosts with a unix socket for a wire, then the kernel's loopback.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::fs::FlockOperation;
use serde_json::Value;

use super::load::Load;
use crate::host;
use crate::print::number;

/// Which end of the wire, and its address.
const SERVER: (&str, &str) = ("server", "10.77.0.1");
const CLIENT: (&str, &str) = ("client", "10.77.0.2");

/// Measures both; one object each.
pub(super) fn run(load: &Load) -> Result<Vec<Value>, String> {
    let folder = Folder::make()?;
    Ok(vec![
        folder.measure("knet over a unix socket", load, true)?,
        folder.measure("kernel, loopback", load, false)?,
    ])
}

/// A folder of its own, with the configs and run folders of both ends; it goes with this.
struct Folder {
    path: PathBuf,
    /// Locked while this lives, so that the next trial knows the folders of those that were killed.
    _lock: fs::File,
}

const PREFIX: &str = "knet-bench-";

/// A process that is ended with this.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What stays lies among the temporary files.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Removes the folders of this user's trials that were killed.
fn sweep(base: &Path) {
    let entries = base.read_dir().into_iter().flatten().flatten();
    for entry in entries.filter(|entry| {
        entry
            .file_name()
            .as_encoded_bytes()
            .starts_with(PREFIX.as_bytes())
    }) {
        let path = entry.path();
        let is_own = entry
            .metadata()
            .is_ok_and(|it| it.is_dir() && it.uid() == rustix::process::getuid().as_raw());
        if is_own && lock(&path).is_ok() {
            let _ = fs::remove_dir_all(&path);
        }
    }
}

/// The folder locked, unless somebody has it.
fn lock(path: &Path) -> std::io::Result<fs::File> {
    let folder = fs::File::open(path)?;
    rustix::fs::flock(&folder, FlockOperation::NonBlockingLockExclusive)?;
    Ok(folder)
}

impl Folder {
    fn make() -> Result<Self, String> {
        sweep(&std::env::temp_dir());
        let path = std::env::temp_dir().join(format!("{PREFIX}{}", std::process::id()));
        let say = |error: std::io::Error| format!("{}: {error}", path.display());
        let private = |path: &Path| fs::DirBuilder::new().mode(0o700).create(path);
        private(&path).map_err(say)?;
        let folder = Self {
            _lock: lock(&path).map_err(say)?,
            path: path.clone(),
        };
        // The hosts lock the folder of the socket when they meet.
        let wire = path.join("wire");
        private(&wire).map_err(say)?;
        for (end, address) in [SERVER, CLIENT] {
            private(&folder.run(end)).map_err(say)?;
            let config = serde_json::json!({
                "interface": {"vdevs": [format!("knet_unix,path={}", wire.join("socket").display())], "ip": address,
                    "netmask": "255.255.255.0"},
                "common": {"linger_s": 0, "on_error": "fail"},
                "proto_stack": {"msl_time": 1},
                "dpdk": {"telemetry": 0},
            });
            fs::write(folder.conf(end), config.to_string()).map_err(say)?;
        }
        Ok(folder)
    }

    fn run(&self, end: &str) -> PathBuf {
        self.path.join(format!("run-{end}"))
    }

    fn conf(&self, end: &str) -> PathBuf {
        self.path.join(format!("{end}.conf"))
    }

    /// This tool as an end of the measurement, on the stack or not.
    fn end(&self, end: &str, on_stack: bool, words: &[String]) -> Result<Command, String> {
        let own =
            std::env::current_exe().map_err(|error| format!("where this tool lies: {error}"))?;
        let mut command = Command::new(&own);
        command.env_remove("LD_PRELOAD");
        if on_stack {
            command
                .env("KNET_CONF", self.conf(end))
                .env("KNET_RUN_DIR", self.run(end))
                .args(["run", "--"])
                .arg(&own);
        }
        let own = std::process::id().to_string();
        command.args(["bench", "--parent", &own]).args(words);
        Ok(command)
    }

    fn measure(&self, path: &str, load: &Load, on_stack: bool) -> Result<Value, String> {
        let address = if on_stack { SERVER.1 } else { "127.0.0.1" };
        let words = ["--serve".to_owned(), format!("{address}:0")];
        let mut server = self.end(SERVER.0, on_stack, &words)?;
        let server = server.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut server = Running(server.spawn().map_err(|error| error.to_string())?);
        let mut line = String::new();
        let said = server.0.stdout.take().map(BufReader::new);
        if let Some(mut said) = said {
            said.read_line(&mut line)
                .map_err(|error| error.to_string())?;
        }
        // It has said why.
        let target = line
            .trim_end()
            .strip_prefix("answers at ")
            .ok_or("the answering end did not start")?;
        let words = [
            target.to_owned(),
            "--json".to_owned(),
            format!("--connections={}", load.connections),
            format!("--bytes={}", load.bytes),
            format!("--duration={}", load.duration.as_secs()),
        ];
        let mut client = self.end(CLIENT.0, on_stack, &words)?;
        let done = client
            .stdin(Stdio::null())
            .stderr(Stdio::inherit())
            .output()
            .map_err(|error| error.to_string())?;
        if !done.status.success() {
            return Err("the asking end did not measure".to_owned());
        }
        let mut measured: Value =
            serde_json::from_slice(&done.stdout).map_err(|error| format!("no result: {error}"))?;
        if on_stack {
            // One for the bytes in bulk.
            let wanted = u64::from(load.connections) + 1;
            let accepted = self.accepted()?;
            if accepted < wanted {
                return Err(format!(
                    "the stack served {accepted} of {wanted} connections, the kernel the others"
                ));
            }
        }
        if let Some(measured) = measured.as_object_mut() {
            measured.insert("path".to_owned(), Value::from(path));
        }
        Ok(measured)
    }

    /// Connections that the answering end's host has accepted.
    fn accepted(&self) -> Result<u64, String> {
        let run = self.run(SERVER.0);
        let sockets = fs::read_dir(&run).map_err(|error| format!("{}: {error}", run.display()))?;
        let socket = sockets
            .flatten()
            .map(|entry| entry.path())
            .find(|path| path.extension().is_some_and(|end| end == "sock"))
            .ok_or("no host serves the answering end: it ran on the kernel")?;
        let lines = host::ask(&socket, &serde_json::json!({"query": "stats"}))?;
        let stack = lines.first().and_then(|line| line.get("stack"));
        Ok(stack.map_or(0, |stack| number(stack, "flows_accepted")))
    }
}
