//! `scripts/rustc.sh`, through which cargo calls the compiler: what it adds, and that it changes nothing else.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "in a test a surprise is a failure"
)]

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");
const OPTIMISED: [&str; 5] = ["--crate-name", "knet", "src/lib.rs", "-C", "opt-level=3"];

/// A compiler that says its version, or its arguments, a line each, and a variable that no shell calls a name.
struct Compiler {
    folder: PathBuf,
}

impl Compiler {
    fn new(name: &str, version: &str) -> Self {
        let folder =
            std::env::temp_dir().join(format!("knet-compiler-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("version"), version).unwrap();
        let text = "#!/bin/bash\nif [ \"$1\" = -vV ]; then exec cat \"$(dirname \"$0\")/version\"; fi\nprintf '%s\\n' \"$@\"\nenv | grep '^A-B='\nexit 0\n";
        let path = folder.join("compiler");
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
        Self { folder }
    }

    /// What it was called with.
    fn called(&self, arguments: &[&str], profile: Option<&str>) -> Vec<String> {
        let mut command = Command::new(Path::new(ROOT).join("scripts/rustc.sh"));
        command.arg(self.folder.join("compiler")).args(arguments);
        command.env("A-B", "kept").env_remove("KNET_PROFILE");
        if let Some(folder) = profile {
            command.env("KNET_PROFILE", folder);
        }
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        assert_eq!(lines.pop().as_deref(), Some("A-B=kept"), "{text}");
        lines
    }
}

impl Drop for Compiler {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn profiled() -> String {
    std::fs::read_to_string(Path::new(ROOT).join("benches/profile/compiler")).unwrap()
}

#[test]
fn optimised_code_of_the_packet_path_gets_the_profile() {
    let compiler = Compiler::new("profile", &profiled());
    for name in ["knet", "smoltcp", "knet_frame", "knetd"] {
        let mut arguments = OPTIMISED;
        arguments[1] = name;
        let called = compiler.called(&arguments, None);
        assert_eq!(called[..5], arguments);
        let profile = called[5].strip_prefix("-Cprofile-use=").unwrap();
        assert!(
            std::fs::metadata(profile).unwrap().len() > 10_000,
            "{profile}"
        );
    }
}

#[test]
fn all_else_is_compiled_as_cargo_says() {
    let compiler = Compiler::new("else", &profiled());
    for arguments in [
        &["--crate-name", "serde", "src/lib.rs", "-C", "opt-level=3"][..],
        &["--crate-name", "knet", "src/lib.rs", "-C", "opt-level=0"],
        &[
            "--crate-name",
            "knet",
            "src/lib.rs",
            "--test",
            "-C",
            "opt-level=3",
        ],
        &[
            "--crate-name",
            "knetctl",
            "src/bin/knetctl.rs",
            "-C",
            "opt-level=3",
        ],
        &[
            "-",
            "--crate-name",
            "___",
            "--print=file-names",
            "an argument with spaces",
        ],
    ] {
        assert_eq!(compiler.called(arguments, None), arguments);
        assert_eq!(compiler.called(arguments, Some("/nowhere")), arguments);
    }
}

#[test]
fn another_compiler_does_without_the_profile() {
    let compiler = Compiler::new("another", "rustc 1.2.3\nhost: x\n");
    assert_eq!(compiler.called(&OPTIMISED, None), OPTIMISED);
}

#[test]
fn a_profile_is_written_where_it_is_asked_for() {
    let compiler = Compiler::new("written", &profiled());
    let called = compiler.called(&OPTIMISED, Some("/a/folder"));
    assert_eq!(called[..5], OPTIMISED);
    assert_eq!(called[5..], ["-Cprofile-generate=/a/folder"]);
}
