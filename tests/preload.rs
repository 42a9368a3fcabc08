//! What the preload must not change: programs without sockets, programs without a config, calls about kernel sockets.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stdout,
    reason = "what a test needs must be there"
)]

#[path = "support/frame.rs"]
mod frame;

use std::path::{Path, PathBuf};
use std::process::Command;

const CASES: [&str; 10] = [
    "names",
    "arguments",
    "epolls",
    "polls",
    "options",
    "transfers",
    "signals",
    "many",
    "forks",
    "numbers",
];

/// Whether there is a python3; says so when there is none.
fn python() -> bool {
    let there = Command::new("python3").arg("-V").output().is_ok();
    if !there {
        println!("skipped: python3 is not installed");
    }
    there
}

/// An empty folder of this test.
fn folder(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join(format!("preload-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&path).unwrap();
    path
}

/// Runs a command with and without the preload and compares all that can be seen of it.
fn assert_unchanged(program: &str, arguments: &[&str], folder: &Path) {
    let plain = frame::output(Command::new(program).args(arguments));
    let mut command = Command::new(program);
    frame::preloaded(command.args(arguments), folder, &folder.join("none"));
    let preloaded = frame::output(&mut command);
    let what = format!("{program} {arguments:?}");
    assert_eq!(
        frame::text(&preloaded.stdout),
        frame::text(&plain.stdout),
        "{what}"
    );
    assert_eq!(
        frame::text(&preloaded.stderr),
        frame::text(&plain.stderr),
        "{what}"
    );
    assert_eq!(preloaded.status, plain.status, "{what}");
    let left: Vec<_> = std::fs::read_dir(folder).unwrap().flatten().collect();
    assert!(left.is_empty(), "{what} left {left:?}");
}

#[test]
fn programs_without_sockets_do_not_notice() {
    let folder = folder("plain");
    for (program, arguments) in [
        ("true", &[][..]),
        ("false", &[]),
        ("sh", &["-c", "echo a; exit 3"]),
        (
            "bash",
            &[
                "-c",
                "exec 5</dev/null; ls -l /proc/self/fd | wc -l; kill -9 $$",
            ],
        ),
        ("sh", &["-c", "cat /dev/null | wc -c; env env true"]),
        ("ls", &["-d", "/"]),
        ("cat", &["/nonexistent"]),
    ] {
        assert_unchanged(program, arguments, &folder);
    }
    if python() {
        // The module `select` tries an epoll: from then on there is one internal number, where no program looks for its own.
        let script = "import os, socket, subprocess; \
            print(subprocess.run(['sh', '-c', 'exit 4']).returncode); \
            a, b = socket.socketpair(); a.send(b'x'); print(b.recv(1), a.fileno()); \
            print(sorted(fd for fd in os.listdir('/proc/self/fd') if int(fd) < 700))";
        assert_unchanged("python3", &["-c", script], &folder);
    }
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn kernel_sockets_answer_as_without_the_preload() {
    let folder = folder("kernel");
    let parity = frame::program("parity");
    for case in CASES {
        assert_unchanged(parity.to_str().unwrap(), &["127.0.0.1", case], &folder);
    }
    std::fs::remove_file(parity).unwrap();
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_config_that_is_not_there_is_one_line_and_kernel_sockets() {
    let folder = folder("missing");
    let script = "import socket
s = socket.socket()
s.bind(('0.0.0.0', 0))
s.listen(1)
c = socket.create_connection(('127.0.0.1', s.getsockname()[1]))
t = socket.socket()
try: t.bind(('198.51.100.7', 0))
except OSError as e: print(e.errno)
print('served')";
    if !python() {
        return;
    }
    let directory = folder.join("directory");
    std::fs::create_dir(&directory).unwrap();
    for (conf, why) in [
        (folder.join("none"), "not found"),
        (directory, "is a directory"),
        (PathBuf::from("/dev/null"), "is not a regular file"),
    ] {
        let mut command = Command::new("python3");
        frame::preloaded(command.args(["-c", script]), &folder, &conf);
        let output = frame::output(&mut command);
        let error = frame::text(&output.stderr);
        assert_eq!(frame::text(&output.stdout), "99\nserved\n", "{error}");
        assert!(output.status.success(), "{error}");
        assert_eq!(error.lines().count(), 1, "{error}");
        assert!(
            error.starts_with("knet: config ") && error.contains(why),
            "{error}"
        );
        assert!(error.contains("kernel sockets are used"), "{error}");
    }
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_host_that_is_not_there_is_one_line_and_kernel_sockets() {
    let folder = folder("no-host");
    let conf = folder.join("conf");
    std::fs::write(&conf, "{}").unwrap();
    if !python() {
        return;
    }
    let not_a_program = folder.join("knetd");
    std::fs::write(&not_a_program, "neither ELF nor script").unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&not_a_program, mode).unwrap();
    let script = "import socket
s = socket.socket()
s.bind(('0.0.0.0', 0))
s.listen(1)
print('served')";
    for (host, why) in [
        (folder.join("absent"), "not found"),
        (not_a_program, "is not a program"),
        (PathBuf::from("/bin/false"), "the host did not answer"),
    ] {
        let mut command = Command::new("python3");
        frame::preloaded(command.args(["-c", script]), &folder, &conf);
        let output = frame::output(command.env("KNET_HOST", host));
        let error = frame::text(&output.stderr);
        assert_eq!(frame::text(&output.stdout), "served\n", "{error}");
        assert_eq!(error.lines().count(), 1, "{error}");
        assert!(error.contains(why), "{error}");
        assert!(error.contains("kernel sockets are used"), "{error}");
    }
    std::fs::remove_dir_all(folder).unwrap();
}
