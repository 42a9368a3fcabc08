//! `knetctl collect`: everything that helps to find a fault, in one archive.

use std::fs::{self, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use serde_json::{Value, json};

use crate::host;
use crate::print;

/// The archive could not be written (sysexits.h, EX_CANTCREAT).
const CANNOT_CREATE: u8 = 73;
/// Bytes of a log that are taken: its end.
const LOG_BYTES: u64 = 1 << 20;

/// Gathers config, versions, hardware, counters and logs into one tar archive.
///
/// Nothing secret goes in: values of keys whose names speak of keys, secrets, tokens or passwords are left out of the config,
/// no environment and no payload is taken. Addresses and ports of connections are in it.
///
/// Exit status: 0 written, 64 wrong usage, 73 the archive could not be written.
#[derive(clap::Args, Debug)]
pub(crate) struct Collect {
    /// The archive; mode 0600 [default: knet-collect-SECONDS.tar in this folder]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// The config [default: $KNET_CONF, else /etc/knet/knet_comm.conf]
    #[arg(long, value_name = "FILE")]
    conf: Option<PathBuf>,
    /// What is in it as one JSON object on stdout, instead of a line.
    #[arg(long)]
    json: bool,
}

impl Collect {
    /// Runs the command.
    pub(crate) fn execute(self) -> ExitCode {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime).tv_sec;
        let output = self
            .output
            .unwrap_or_else(|| PathBuf::from(format!("knet-collect-{now}.tar")));
        let conf = self.conf.unwrap_or_else(crate::config_file);
        let files = gather(&conf);
        let written = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&output)
            .and_then(|mut file| archive(&mut file, &files, u64::try_from(now).unwrap_or(0)));
        if let Err(error) = written {
            complain!("knetctl: {}: {error}", output.display());
            return ExitCode::from(CANNOT_CREATE);
        }
        if self.json {
            let sizes: serde_json::Map<String, Value> = files
                .iter()
                .map(|(name, bytes)| (name.clone(), json!(bytes.len())))
                .collect();
            print::json(&json!({"archive": output.display().to_string(), "files": sizes}));
        } else {
            print::line(&format!("{}: {} files", output.display(), files.len()));
        }
        ExitCode::SUCCESS
    }
}

/// Names and contents.
fn gather(conf: &Path) -> Vec<(String, Vec<u8>)> {
    let mut files = Vec::new();
    let mut add = |name: &str, bytes: Vec<u8>| files.push((name.to_owned(), bytes));
    add("versions.txt", versions().into_bytes());
    match fs::read_to_string(conf) {
        Ok(text) => add("config/knet_comm.conf", without_secrets(&text).into_bytes()),
        Err(error) => add(
            "config/missing.txt",
            format!("{}: {error}\n", conf.display()).into_bytes(),
        ),
    }
    add(
        "config/check.json",
        command(&own(), &["check", "--json", &conf.to_string_lossy()]),
    );
    for path in [
        "/proc/cpuinfo",
        "/proc/meminfo",
        "/proc/cmdline",
        "/proc/interrupts",
        "/proc/net/dev",
        "/proc/net/route",
        "/proc/net/snmp",
        "/proc/net/netstat",
        "/proc/self/limits",
        "/proc/mounts",
        "/proc/sys/net/core/somaxconn",
        "/proc/sys/vm/nr_hugepages",
        "/proc/sys/net/ipv4/ip_local_port_range",
    ] {
        if let Ok(bytes) = fs::read(path) {
            add(&format!("hardware{path}"), bytes);
        }
    }
    add("hardware/pci.txt", pci().into_bytes());
    add("hardware/hugepages.txt", hugepages().into_bytes());
    for (number, socket) in host::find().iter().enumerate() {
        for query in ["status", "stats", "sockets", "latency"] {
            let text = match host::ask(socket, &json!({ "query": query })) {
                Ok(lines) => lines.iter().map(|line| format!("{line}\n")).collect(),
                Err(fault) => format!("{}: {fault}\n", socket.display()),
            };
            add(&format!("hosts/{number}/{query}.json"), text.into_bytes());
        }
    }
    for path in ["/var/log/knet/knet_comm.log"] {
        if let Ok(bytes) = tail(Path::new(path)) {
            add("log/knet_comm.log", bytes);
        }
    }
    if let Some(path) = std::env::var_os("KNET_LOG")
        && let Ok(bytes) = tail(Path::new(&path))
    {
        add("log/KNET_LOG", bytes);
    }
    let journal = command(
        Path::new("journalctl"),
        &["--no-pager", "-n", "2000", "-t", "knetd", "-t", "libknet"],
    );
    if !journal.is_empty() {
        add("log/journal.txt", journal);
    }
    for path in ["/etc/knet/run/stats/knet-persist.json"] {
        if let Ok(bytes) = fs::read(path) {
            add("statistics/knet-persist.json", bytes);
        }
    }
    files
}

fn own() -> PathBuf {
    std::env::current_exe().unwrap_or_else(|_| PathBuf::from("knetctl"))
}

/// What a command prints; nothing when it cannot be run.
fn command(program: &Path, arguments: &[&str]) -> Vec<u8> {
    let output = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .env_remove("LD_PRELOAD")
        .output();
    output.map(|output| output.stdout).unwrap_or_default()
}

fn versions() -> String {
    let uname = rustix::system::uname();
    let mut out = format!(
        "knetctl {}\nkernel {} {} {}\n",
        knet::BUILD_VERSION,
        uname.release().to_string_lossy(),
        uname.version().to_string_lossy(),
        uname.machine().to_string_lossy()
    );
    out.push_str(&fs::read_to_string("/etc/os-release").unwrap_or_default());
    for (program, arguments) in [
        ("pkg-config", ["--modversion", "libdpdk"]),
        ("getconf", ["GNU_LIBC_VERSION", ""]),
    ] {
        let arguments: Vec<&str> = arguments
            .into_iter()
            .filter(|word| !word.is_empty())
            .collect();
        let said = command(Path::new(program), &arguments);
        out.push_str(&format!(
            "{program}: {}\n",
            String::from_utf8_lossy(&said).trim()
        ));
    }
    out
}

/// Network controllers (class 02) with driver and node.
fn pci() -> String {
    let mut out = String::new();
    let devices = fs::read_dir("/sys/bus/pci/devices")
        .into_iter()
        .flatten()
        .filter_map(Result::ok);
    let mut paths: Vec<PathBuf> = devices.map(|device| device.path()).collect();
    paths.sort();
    for path in paths {
        let read = |name: &str| {
            fs::read_to_string(path.join(name))
                .unwrap_or_default()
                .trim()
                .to_owned()
        };
        if !read("class").starts_with("0x02") {
            continue;
        }
        let driver = fs::read_link(path.join("driver")).ok();
        let driver = driver.and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned()));
        out.push_str(&format!(
            "{} vendor {} device {} driver {} numa_node {}\n",
            path.file_name().unwrap_or_default().to_string_lossy(),
            read("vendor"),
            read("device"),
            driver.as_deref().unwrap_or("none"),
            read("numa_node")
        ));
    }
    out
}

fn hugepages() -> String {
    let mut out = String::new();
    let sizes = fs::read_dir("/sys/kernel/mm/hugepages")
        .into_iter()
        .flatten()
        .filter_map(Result::ok);
    for size in sizes {
        let read = |name: &str| {
            fs::read_to_string(size.path().join(name))
                .unwrap_or_default()
                .trim()
                .to_owned()
        };
        out.push_str(&format!(
            "{} nr {} free {}\n",
            size.file_name().to_string_lossy(),
            read("nr_hugepages"),
            read("free_hugepages")
        ));
    }
    out
}

fn tail(path: &Path) -> io::Result<Vec<u8>> {
    let mut file = fs::File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(LOG_BYTES)))?;
    let mut bytes = Vec::new();
    file.take(LOG_BYTES).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The text with the values left out of keys whose names speak of secrets. It need not be right JSON.
fn without_secrets(text: &str) -> String {
    const WORDS: [&str; 5] = ["key", "secret", "token", "password", "passwd"];
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('"') {
        let (before, from) = rest.split_at(at);
        out.push_str(before);
        let Some(length) = string_length(from) else {
            rest = from;
            break;
        };
        let (name, behind) = from.split_at(length);
        out.push_str(name);
        rest = behind;
        let Some(value) = behind.trim_start().strip_prefix(':') else {
            continue;
        };
        let lower = name.to_lowercase();
        if WORDS.iter().any(|word| lower.contains(word)) {
            out.push_str(": \"(left out)\"");
            rest = value.get(value_length(value)..).unwrap_or_default();
        }
    }
    out.push_str(rest);
    out
}

/// Bytes of the string that `text` begins with, quotes included.
fn string_length(text: &str) -> Option<usize> {
    let mut escaped = false;
    for (at, character) in text.char_indices().skip(1) {
        match character {
            '"' if !escaped => return Some(at + 1),
            '\\' => escaped = !escaped,
            _ => escaped = false,
        }
    }
    None
}

/// Bytes of the value that follows blanks at the start of `text`: a string, a list or object, or a word.
fn value_length(text: &str) -> usize {
    let start = text.len() - text.trim_start().len();
    let value = text.get(start..).unwrap_or_default();
    let mut depth = 0_usize;
    let mut at = 0;
    while let Some(character) = value.get(at..).and_then(|rest| rest.chars().next()) {
        match character {
            '"' => match value.get(at..).and_then(string_length) {
                Some(length) => {
                    at += length;
                    if depth == 0 {
                        break;
                    }
                    continue;
                }
                // Without an end: nothing of it goes in.
                None => return text.len(),
            },
            '[' | '{' => depth += 1,
            ']' | '}' if depth == 0 => break,
            ']' | '}' => {
                depth -= 1;
                if depth == 0 {
                    at += 1;
                    break;
                }
            }
            ',' | '\n' if depth == 0 => break,
            _ => {}
        }
        at += character.len_utf8();
    }
    start + at
}

/// Writes a tar archive (POSIX.1-2017, pax, ustar).
fn archive(to: &mut impl Write, files: &[(String, Vec<u8>)], time: u64) -> io::Result<()> {
    for (name, bytes) in files {
        let mut header = [0_u8; 512];
        let mut put = |at: usize, text: &[u8]| {
            if let Some(place) = header.get_mut(at..at + text.len()) {
                place.copy_from_slice(text);
            }
        };
        let path = format!("knet-collect/{name}");
        put(0, path.as_bytes().get(..100).unwrap_or(path.as_bytes()));
        put(100, b"0000600\0");
        put(108, b"0000000\0");
        put(116, b"0000000\0");
        put(124, format!("{:011o}\0", bytes.len()).as_bytes());
        put(136, format!("{time:011o}\0").as_bytes());
        put(148, b"        ");
        put(156, b"0");
        put(257, b"ustar\x0000");
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        if let Some(place) = header.get_mut(148..156) {
            place.copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        }
        to.write_all(&header)?;
        to.write_all(bytes)?;
        let short = bytes.len().next_multiple_of(512) - bytes.len();
        to.write_all([0; 512].get(..short).unwrap_or_default())?;
    }
    to.write_all(&[0; 1024])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_left_out_whatever_the_file_looks_like() {
        for (text, wanted) in [
            (
                r#"{"a": 1, "key_file": "/x", "b": 2}"#,
                r#"{"a": 1, "key_file": "(left out)", "b": 2}"#,
            ),
            (
                r#"{"PassWord" : ["a,b", {"c": "]"}], "b": 2}"#,
                r#"{"PassWord": "(left out)", "b": 2}"#,
            ),
            (
                "{\"token\": abc # note\n, \"z\": 1}",
                "{\"token\": \"(left out)\"\n, \"z\": 1}",
            ),
            (r#"{"secret": "never closed"#, r#"{"secret": "(left out)""#),
            (
                r#"{"secret": "a\"b", "x": "y"}"#,
                r#"{"secret": "(left out)", "x": "y"}"#,
            ),
            (r#"{"name": "key"}"#, r#"{"name": "key"}"#),
            ("no json", "no json"),
        ] {
            assert_eq!(without_secrets(text), wanted);
        }
    }
}
