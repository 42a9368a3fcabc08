//! Unmodified C programs over the stack: the preload, a private host that it starts, and the `unix` device. No privilege
//! is needed. The address is on no interface, so the kernel cannot have served it.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "what a test needs must be there"
)]

#[path = "support/frame.rs"]
mod frame;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const ADDRESS: &str = "10.77.0.1";

/// A run folder with a config.
struct Ground {
    folder: PathBuf,
    conf: PathBuf,
}

impl Ground {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("knet-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let conf = folder.join("conf");
        let text = format!(
            r#"{{"interface": {{"vdevs": ["knet_unix,path={}/wire"], "ip": "{ADDRESS}", "netmask": "255.255.255.0"}},
            "common": {{"linger_s": 0, "linger_max_s": 1, "idle": "adaptive"}}, "proto_stack": {{"msl_time": 1}}}}"#,
            folder.display()
        );
        std::fs::write(&conf, text).unwrap();
        Self { folder, conf }
    }

    fn command(&self, program: &Path, case: &str) -> Command {
        let mut command = Command::new(program);
        frame::preloaded(command.args([ADDRESS, case]), &self.folder, &self.conf);
        command
    }

    /// Process ids of the hosts that serve this folder.
    fn hosts(&self) -> Vec<i32> {
        let mine = format!("KNET_RUN_DIR={}", self.folder.display());
        let mut hosts = Vec::new();
        for entry in std::fs::read_dir("/proc").unwrap().flatten() {
            let Ok(pid) = entry.file_name().to_string_lossy().parse() else {
                continue;
            };
            let read = |name: &str| std::fs::read(entry.path().join(name)).unwrap_or_default();
            let environment = read("environ");
            let ours = environment
                .split(|byte| *byte == 0)
                .any(|text| text == mine.as_bytes());
            if ours && frame::text(&read("cmdline")).contains("knetd") {
                hosts.push(pid);
            }
        }
        hosts
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        for pid in self.hosts() {
            let pid = rustix::process::Pid::from_raw(pid).unwrap();
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// One case answers on the stack what it answers on the kernel.
#[track_caller]
fn assert_parity(case: &str) {
    let ground = Ground::new(case);
    let program = frame::program("parity");
    let kernel = frame::output(Command::new(&program).args(["127.0.0.1", case]));
    let stack = frame::output(&mut ground.command(&program, case));
    let error = frame::text(&stack.stderr);
    assert_eq!(
        frame::text(&stack.stdout),
        frame::text(&kernel.stdout),
        "{error}"
    );
    assert_eq!(error, "");
    assert!(frame::text(&kernel.stdout).ends_with("end\n"));
}

#[track_caller]
fn assert_case(case: &str) {
    let ground = Ground::new(case);
    let output = frame::output(&mut ground.command(&frame::program("stack"), case));
    assert_eq!(frame::text(&output.stderr), "");
    assert!(output.status.success(), "{:?}", output.status);
}

macro_rules! tests {
    ($($check:ident: $($name:ident $case:literal)+;)+) => {
        $($(
            #[test]
            fn $name() {
                $check($case);
            }
        )+)+
    };
}

tests! {
    assert_parity:
        names_and_states_are_those_of_the_kernel "names"
        bad_arguments_fail_as_on_the_kernel "arguments"
        epoll_reports_what_the_kernel_reports "epolls"
        poll_and_select_report_what_the_kernel_reports "polls"
        options_are_those_of_the_kernel "options"
        every_transfer_call_works "transfers"
        signals_and_time_outs_end_calls_as_on_the_kernel "signals"
        many_threads_accept_and_echo "many"
        children_keep_their_sockets "forks"
        descriptors_behave_as_on_the_kernel "numbers";
    assert_case:
        a_wildcard_listener_serves_both_sides "merged"
        a_listener_outlives_the_parent_that_made_it "orphan"
        a_wait_begun_before_attaching_is_woken "early"
        a_cancelled_thread_leaves_everything_working "cancelled"
        a_handler_writes_to_the_socket_that_main_writes_to "nested"
        a_raw_clone_holds_nothing "raw"
        a_socket_is_handed_over_as_on_the_kernel "handed_over";
}

#[test]
fn a_dead_host_resets_at_once_and_another_serves() {
    let ground = Ground::new("lost");
    let mut child = ground
        .command(&frame::program("stack"), "lost")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    assert_eq!(line, "ready\n");
    let hosts = ground.hosts();
    assert_eq!(hosts.len(), 1, "{hosts:?}");
    let pid = rustix::process::Pid::from_raw(hosts[0]).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    assert!(child.wait().unwrap().success());
}
