//! A process for each case, and what it asks of the system.

use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Once;

/// Names the case that this process is there for.
const CASE: &str = "KNET_TEST_CASE";

/// Runs `case` in a fresh process of this test binary, or says why not.
pub(crate) fn in_own_process(name: &str, root: bool, case: impl FnOnce()) {
    if std::env::var(CASE).is_ok_and(|wanted| wanted == name) {
        // Nothing may run after a case: EAL's threads are still there.
        let result = catch_unwind(AssertUnwindSafe(case));
        if let Err(panic) = result {
            resume_unwind(panic);
        }
        return;
    }
    if let Some(reason) = missing(root) {
        return skip(&format!("{name}: {reason}"));
    }
    build_plugin();
    let output = Command::new(std::env::current_exe().unwrap())
        .args([name, "--exact", "--nocapture", "--test-threads=1"])
        .env(CASE, name)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    for line in errors.lines().filter(|line| line.starts_with("skipped:")) {
        say(line);
    }
    assert!(
        output.status.success(),
        "{name}: {}\n{}{}",
        output.status,
        quoted(&text),
        quoted(&errors)
    );
    let talks = ["EAL", "Usage", "libxdp", "unrecognized option"];
    let silent = talks
        .iter()
        .all(|word| !errors.contains(word) && !text.contains(word));
    assert!(silent, "DPDK talks:\n{text}\n{errors}");
    assert!(text.contains("1 passed"), "{name} did not run:\n{text}");
}

/// What another test process wrote, so that nobody who counts results takes its lines for ours.
fn quoted(text: &str) -> String {
    text.lines().map(|line| format!("| {line}\n")).collect()
}

/// Says on the real standard error, past the harness, that a case did not run.
pub(crate) fn skip(reason: &str) {
    say(&format!("skipped: {reason}"));
}

/// The harness swallows what the print macros write in a test that passes.
fn say(line: &str) {
    std::io::stderr()
        .write_all(format!("{line}\n").as_bytes())
        .unwrap();
}

fn missing(root: bool) -> Option<&'static str> {
    let found = Command::new("pkg-config")
        .args(["--exists", "libdpdk"])
        .status();
    if !found.is_ok_and(|status| status.success()) {
        return Some("no DPDK on this machine (libdpdk-dev)");
    }
    if root && !rustix::process::geteuid().is_root() {
        return Some("needs root (network namespaces, packet sockets)");
    }
    None
}

/// The folder with the build's products.
fn products() -> PathBuf {
    std::env::current_exe()
        .unwrap()
        .parent()
        .and_then(Path::parent)
        .unwrap()
        .to_path_buf()
}

/// The plug-in of this build.
pub(crate) fn plugin() -> PathBuf {
    products().join("libknet_dpdk.so")
}

/// `cargo test` of the root package does not build the plug-in.
fn build_plugin() {
    static BUILT: Once = Once::new();
    BUILT.call_once(build_once);
}

fn build_once() {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo
        .args(["build", "--quiet", "-p", "dpdk"])
        .current_dir(env!("CARGO_MANIFEST_DIR"));
    if !cfg!(debug_assertions) {
        cargo.arg("--release");
    }
    assert!(
        cargo.status().unwrap().success(),
        "the plug-in does not build"
    );
}

/// The CPUs that this thread may use.
pub(crate) fn allowed_cpus() -> Vec<usize> {
    let set = rustix::thread::sched_getaffinity(None).unwrap();
    (0..rustix::thread::CpuSet::MAX_CPU)
        .filter(|cpu| set.is_set(*cpu))
        .collect()
}

pub(crate) fn first_cpu() -> u32 {
    u32::try_from(allowed_cpus()[0]).unwrap()
}

/// Waits at most `ms` for `fd` to become readable.
pub(crate) fn readable(fd: i32, ms: i64) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    // SAFETY: the device under test keeps the descriptor open.
    let fd = unsafe { rustix::fd::BorrowedFd::borrow_raw(fd) };
    let limit = Timespec {
        tv_sec: ms / 1000,
        tv_nsec: ms % 1000 * 1_000_000,
    };
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    poll(&mut fds, Some(&limit)).unwrap() > 0
}
