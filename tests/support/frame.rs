//! The preloaded object of this build, C programs, and how one is run under the other.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// Builds libknet_frame.so (the test profile leaves it out) and returns its path.
pub(crate) fn object() -> &'static Path {
    static OBJECT: OnceLock<PathBuf> = OnceLock::new();
    OBJECT.get_or_init(|| {
        let folder = Path::new(env!("CARGO_BIN_EXE_knetd")).parent().unwrap();
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "--quiet", "--offline", "--package", "frame"]);
        if folder.file_name().unwrap() == "release" {
            build.arg("--release");
        }
        build.arg("--target-dir").arg(folder.parent().unwrap());
        build.current_dir(env!("CARGO_MANIFEST_DIR"));
        assert!(
            build.status().unwrap().success(),
            "the frame does not build"
        );
        folder.join("libknet_frame.so")
    })
}

static PROGRAMS: AtomicU32 = AtomicU32::new(0);

/// Compiles tests/c/NAME.c for one test.
#[allow(dead_code, reason = "each test file uses a part")]
pub(crate) fn program(name: &str) -> PathBuf {
    let source = format!("{}/tests/c/{name}.c", env!("CARGO_MANIFEST_DIR"));
    let number = PROGRAMS.fetch_add(1, Ordering::Relaxed);
    let program = Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join(format!("{name}-{}-{number}", std::process::id()));
    let status = Command::new("cc")
        .args(["-O1", "-w", "-pthread", "-o"])
        .arg(&program)
        .arg(source)
        .status()
        .unwrap();
    assert!(status.success());
    program
}

/// A command under the preload, with its run folder, config and host.
#[allow(dead_code, reason = "each test file uses a part")]
pub(crate) fn preloaded(command: &mut Command, folder: &Path, conf: &Path) {
    command
        .env("LD_PRELOAD", object())
        .env("KNET_RUN_DIR", folder)
        .env("KNET_CONF", conf)
        .env("KNET_HOST", env!("CARGO_BIN_EXE_knetd"))
        .env("KNET_LOG", folder.join("log"));
}

/// Runs to the end.
#[allow(dead_code, reason = "each test file uses a part")]
pub(crate) fn output(command: &mut Command) -> Output {
    command.stdin(Stdio::null()).output().unwrap()
}

/// What a program printed.
#[allow(dead_code, reason = "each test file uses a part")]
pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
