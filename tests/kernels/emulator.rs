//! The kernels as a host program.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// The program `tests/simt/batches.cc` with some version of the kernels.
pub(crate) struct Emulator {
    program: PathBuf,
}

impl Emulator {
    /// With the kernels as they are.
    pub(crate) fn shipped() -> Self {
        static BUILT: OnceLock<PathBuf> = OnceLock::new();
        let program = BUILT.get_or_init(|| build(&kernels(), "shipped")).clone();
        Self { program }
    }

    /// With one file of the kernels changed: the first `from` in it becomes `to`.
    pub(crate) fn changed(name: &str, file: &str, from: &str, to: &str) -> Self {
        Self {
            program: build(&changed_kernels(name, file, from, to), name),
        }
    }

    /// What the program writes for `input`.
    ///
    /// # Errors
    /// Its line about a fault.
    pub(crate) fn run(&self, input: &[u8]) -> Result<Vec<u8>, String> {
        let mut child = Command::new("timeout")
            .arg("120")
            .arg(&self.program)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // It reads everything before it writes anything; when it ends early the status tells.
        let _ = child.stdin.take().unwrap().write_all(input);
        let output = child.wait_with_output().unwrap();
        if output.status.success() {
            return Ok(output.stdout);
        }
        let words = String::from_utf8_lossy(&output.stderr);
        Err(format!("{} {}", output.status, words.trim()))
    }
}

/// A copy of the kernels with one file changed: the first `from` in it becomes `to`.
pub(crate) fn changed_kernels(name: &str, file: &str, from: &str, to: &str) -> PathBuf {
    let folder = scratch().join(format!("kernels-{name}"));
    std::fs::create_dir_all(&folder).unwrap();
    for entry in std::fs::read_dir(kernels()).unwrap() {
        let entry = entry.unwrap();
        let mut text = std::fs::read_to_string(entry.path()).unwrap();
        if entry.file_name() == file {
            assert!(text.contains(from), "{file} no longer has {from:?}");
            text = text.replacen(from, to, 1);
        }
        std::fs::write(folder.join(entry.file_name()), text).unwrap();
    }
    folder
}

/// The stand-in for the driver's library with these kernels.
pub(crate) fn stand_in(kernels: &Path, name: &str) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/gpu/standin.c");
    let object = scratch().join(format!("{name}-driver.o"));
    let compiled = Command::new("cc")
        .args(["-std=gnu11", "-O1", "-fPIC", "-DSTANDIN_EMULATES", "-c"])
        .arg(&source)
        .arg("-o")
        .arg(&object)
        .status();
    assert!(compiled.is_ok_and(|status| status.success()), "{name}");
    let host = scratch().join(format!("{name}-host.o"));
    compile(kernels, "host.cc", &host);
    let [emulator, _] = common();
    let library = scratch().join(format!("{name}.so"));
    let linked = Command::new("g++")
        .args(["-shared", "-o"])
        .arg(&library)
        .args([&object, &host, emulator])
        .args(["-lpthread", "-lm"])
        .status();
    assert!(linked.is_ok_and(|status| status.success()), "{name}");
    library
}

/// The folder of the kernels.
pub(crate) fn kernels() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src/gpu/cuda")
}

/// A folder of this process: two runs of the tests may be at it.
fn scratch() -> PathBuf {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    MADE.get_or_init(|| {
        let all = Path::new(env!("CARGO_TARGET_TMPDIR")).join("simt");
        forget_the_dead(&all);
        let ours = all.join(std::process::id().to_string());
        std::fs::create_dir_all(&ours).unwrap();
        ours
    })
    .clone()
}

/// Removes the folders of runs that are over.
fn forget_the_dead(all: &Path) {
    for entry in std::fs::read_dir(all).into_iter().flatten().flatten() {
        if !Path::new("/proc").join(entry.file_name()).exists() {
            // Another run may remove it as well.
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

/// Compiles one file of tests/simt.
fn compile(kernels: &Path, source: &str, object: &Path) {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/simt");
    let output = Command::new("g++")
        .args(["-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror"])
        .args(["-DKNET_SIMT", "-fPIC", "-pthread", "-c"])
        .arg("-I")
        .arg(&sources)
        .arg("-I")
        .arg(kernels)
        .arg(sources.join(source))
        .arg("-o")
        .arg(object)
        .output()
        .expect("g++ is needed; scripts/deps.sh test installs it");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{source}: {errors}");
}

/// The emulator, and the program around it.
fn common() -> &'static [PathBuf; 2] {
    static COMMON: OnceLock<[PathBuf; 2]> = OnceLock::new();
    COMMON.get_or_init(|| {
        ["simt", "batches"].map(|source| {
            let object = scratch().join(format!("{source}.o"));
            compile(&kernels(), &format!("{source}.cc"), &object);
            object
        })
    })
}

fn build(kernels: &Path, name: &str) -> PathBuf {
    let object = scratch().join(format!("{name}.o"));
    compile(kernels, "host.cc", &object);
    let program = scratch().join(name);
    let linked = Command::new("g++")
        .args(common())
        .arg(&object)
        .args(["-pthread", "-o"])
        .arg(&program)
        .status();
    assert!(linked.is_ok_and(|status| status.success()), "{name}");
    program
}
