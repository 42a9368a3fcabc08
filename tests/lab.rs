//! scripts/lab.sh without privilege: nothing of a lab outlives it.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "in a test a surprise is a failure"
)]

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

fn lab(folder: &Path) -> Command {
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("scripts/lab.sh");
    let build = PathBuf::from(env!("CARGO_BIN_EXE_knetctl"));
    let build = build.parent().and_then(Path::file_name).expect("profile");
    let mut command = Command::new(script);
    command.env("KNET_LAB_DIR", folder).env("KNET_BUILD", build);
    command
}

#[test]
fn a_lab_that_goes_down_takes_its_programs_with_it() {
    let folder = std::env::temp_dir().join(format!("knet-lab-test-{}", std::process::id()));
    let run = |verb: &[&str]| {
        let done = lab(&folder).args(verb).output().unwrap();
        assert!(done.status.success(), "{verb:?}: {done:?}");
    };
    run(&["up", "--device", "unix"]);
    let mut server = lab(&folder)
        .args(["server", "sleep", "60"])
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    let name = format!("/proc/{}/comm", server.id());
    // It has become the program by two execs.
    while std::fs::read_to_string(&name).unwrap() != "sleep\n" {
        assert!(server.try_wait().unwrap().is_none(), "it ended by itself");
        std::thread::yield_now();
    }
    run(&["down"]);
    let status = server.wait().unwrap();
    assert_eq!(status.signal(), Some(15), "{status:?}");
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0);
    std::fs::remove_dir(&folder).unwrap();
}
