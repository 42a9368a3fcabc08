//! knetctl as an operator meets it: exit codes, lines, JSON, and what `run` hands to the program.

#![allow(clippy::expect_used, clippy::panic, reason = "a test's helper")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const GOOD: &str = r#"{"interface": {"vdevs": ["knet_unix,path=/tmp/knet-ctl-test.sock"], "ip": "10.77.0.1"}} # fine"#;

/// A folder with knetctl in it, and empty files in place of the parts of knet that it looks for.
struct Installed(PathBuf);

impl Installed {
    fn new(name: &str) -> Self {
        // A link and no copy: a child of another test may hold a copy open for writing when it is run (ETXTBSY).
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("knet-ctl-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("folder");
        fs::hard_link(env!("CARGO_BIN_EXE_knetctl"), folder.join("knetctl")).expect("link");
        for part in ["libknet_frame.so", "knetd"] {
            fs::write(folder.join(part), "").expect("part");
        }
        Self(folder)
    }

    fn file(&self, name: &str, text: &[u8]) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, text).expect("file");
        path
    }

    fn command(&self) -> Command {
        let mut command = Command::new(self.0.join("knetctl"));
        command
            .env_remove("LD_PRELOAD")
            .env_remove("KNET_CONF")
            .env_remove("KNET_HOST");
        command
    }

    fn check(&self, file: &Path) -> Output {
        self.command()
            .arg("check")
            .arg(file)
            .output()
            .expect("knetctl")
    }
}

impl Drop for Installed {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn the_exit_code_tells_the_file_from_the_machine() {
    let installed = Installed::new("codes");
    let good = installed.check(&installed.file("good", GOOD.as_bytes()));
    assert_eq!(good.status.code(), Some(0), "{}", text(&good.stdout));
    let no_device = br#"{"interface": {"bdf_nums": ["ffff:ff:1f.7"], "ip": "10.77.0.1"}}"#;
    let elsewhere = installed.check(&installed.file("elsewhere", no_device));
    assert_eq!(
        elsewhere.status.code(),
        Some(2),
        "{}",
        text(&elsewhere.stdout)
    );
    assert!(
        text(&elsewhere.stdout).contains("no PCI device ffff:ff:1f.7"),
        "{}",
        text(&elsewhere.stdout)
    );
    let faulty =
        installed.check(&installed.file("faulty", b"{\"interface\": {\"ip\": 5, \"mtu\": 1}}"));
    assert_eq!(faulty.status.code(), Some(1));
    let lines = text(&faulty.stdout);
    for part in [
        "1:22: interface.ip: the number 5",
        "1:32: interface.mtu: 1 is out of range",
        "no port is named",
        "3 faults",
    ] {
        assert!(lines.contains(part), "{part:?} is not in {lines}");
    }
    assert_eq!(
        installed
            .command()
            .args(["check", "--no-such-flag"])
            .output()
            .expect("knetctl")
            .status
            .code(),
        Some(64)
    );
    assert_eq!(
        installed
            .command()
            .arg("--version")
            .output()
            .expect("knetctl")
            .stdout,
        format!("knetctl {}\n", knet::BUILD_VERSION).as_bytes()
    );
}

#[test]
fn bad_files_are_one_clear_line_each() {
    let installed = Installed::new("bad");
    let large = vec![b' '; 1 << 20];
    let cases: [(&str, &[u8], &str); 6] = [
        ("empty", b"", "the file is empty"),
        ("large", &large, "larger than 64 KiB"),
        ("nul", b"{\0}", "NUL byte"),
        ("twice", b"{\"version\": 1, \"version\": 2, \"interface\": {\"netdev\": \"lo\", \"ip\": \"10.77.0.1\"}}", "written twice, first at 1:2"),
        ("string", b"{\"interface\": {\"netdev\": \"lo\", \"ip\": \"10.77.0.1\", \"mtu\": \"1500\"}}", "without quotes"),
        ("gateway", b"{\"interface\": {\"netdev\": \"lo\", \"ip\": \"10.77.0.1\", \"gateway\": \"10.78.0.1\"}}", "outside the netmask"),
    ];
    for (name, bytes, part) in cases {
        let output = installed.check(&installed.file(name, bytes));
        let lines = text(&output.stdout);
        assert_eq!(output.status.code(), Some(1), "{name}: {lines}");
        assert_eq!(lines.lines().count(), 2, "{name}: {lines}");
        assert!(lines.contains(part), "{name}: {lines}");
    }
    let output = installed.check(&installed.0);
    assert!(text(&output.stdout).contains("is a directory"));
    let crlf = format!("\u{feff}{}", GOOD.replace(' ', "\r\n"));
    let crlf = crlf.replace("#\r\n", "# ");
    assert_eq!(
        installed
            .check(&installed.file("crlf", crlf.as_bytes()))
            .status
            .code(),
        Some(0)
    );
}

#[test]
fn json_holds_the_same() {
    let installed = Installed::new("json");
    let file = installed.file("conf", b"{\"interface\": {\"ip\": \"10.77.0.1\", \"gatway\": 1, \"netdev\": \"lo\"}, \"common\": {\"zcopy_enable\": 1}}");
    let output = installed
        .command()
        .args(["check", "--json"])
        .env("KNET_CONF", &file)
        .output()
        .expect("knetctl");
    assert_eq!(output.status.code(), Some(1));
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(json["status"], 1);
    assert_eq!(json["faults"][0]["path"], "interface.gatway");
    assert_eq!(json["faults"][0]["advice"], "nearest known: gateway");
    assert_eq!(
        (&json["faults"][0]["line"], &json["faults"][0]["column"]),
        (&1.into(), &35.into())
    );
    assert_eq!(json["remarks"][0]["path"], "common.zcopy_enable");
    assert!(json["findings"].as_array().is_some_and(Vec::is_empty));
}

#[test]
fn run_hands_over_the_library_and_the_config() {
    let installed = Installed::new("run");
    let print = r#"printf '%s|%s|%s' "$LD_PRELOAD" "$KNET_CONF" "$1"; exit 7"#;
    let mut command = installed.command();
    command.current_dir(&installed.0).args([
        "run", "--conf", "c.conf", "--", "sh", "-c", print, "sh", "--flag",
    ]);
    let output = command.output().expect("knetctl");
    assert_eq!(output.status.code(), Some(7), "{}", text(&output.stderr));
    let folder = installed.0.canonicalize().expect("folder");
    let wanted = format!("{0}/libknet_frame.so|{0}/c.conf|--flag", folder.display());
    assert_eq!(text(&output.stdout), wanted);
}

#[test]
fn run_says_why_a_program_does_not_start() {
    let installed = Installed::new("missing");
    let run = |program: &Path| {
        installed
            .command()
            .arg("run")
            .arg("--")
            .arg(program)
            .output()
            .expect("knetctl")
    };
    let missing = run(Path::new("knet-no-such-program"));
    assert_eq!(missing.status.code(), Some(127));
    assert!(text(&missing.stderr).contains("there is no such program"));
    let plain = run(&installed.file("plain", b"text"));
    assert_eq!(plain.status.code(), Some(126));
    assert!(text(&plain.stderr).contains("not an executable file"));
    fs::remove_file(installed.0.join("libknet_frame.so")).expect("remove");
    if !Path::new("/usr/lib64/libknet_frame.so").exists() {
        let bare = run(Path::new("true"));
        let multiarch = format!(
            "/usr/lib/{}-linux-gnu/libknet_frame.so",
            std::env::consts::ARCH
        );
        assert!(
            bare.status.code() == Some(125) || Path::new(&multiarch).exists(),
            "{}",
            text(&bare.stderr)
        );
    }
}

#[test]
fn pages_and_completions_are_made_for_every_command() {
    let installed = Installed::new("generate");
    let folder = installed.0.join("made");
    let output = installed
        .command()
        .arg("generate")
        .arg(&folder)
        .output()
        .expect("knetctl");
    assert!(output.status.success(), "{}", text(&output.stderr));
    let read = |name: &str| fs::read_to_string(folder.join(name)).expect(name);
    let help = text(
        &installed
            .command()
            .arg("--help")
            .output()
            .expect("knetctl")
            .stdout,
    );
    let commands: Vec<&str> = help
        .lines()
        .skip_while(|line| !line.starts_with("Commands:"))
        .skip(1)
        .take_while(|line| line.starts_with("  "))
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| *name != "help")
        .collect();
    assert!(commands.len() > 5, "{help}");
    let bash = read("completions/knetctl.bash");
    for command in commands {
        let page = read(&format!("man1/knetctl-{command}.1"));
        assert!(
            page.contains("Exit status"),
            "{command}: exit codes are documented"
        );
        assert!(
            bash.contains(&format!("knetctl__subcmd__{command}")) || bash.contains(command),
            "{command}"
        );
    }
    assert!(read("man8/knetd.8").contains("knetd"));
    let config = read("man5/knet_comm.conf.5");
    for section in knet::config::sections() {
        for key in section.keys {
            assert!(
                config.contains(&key.name.replace('-', "\\-")),
                "{}",
                key.name
            );
        }
    }
    for name in [
        "completions/_knetctl",
        "completions/knetctl.fish",
        "completions/knetd.bash",
        "man1/knetctl.1",
    ] {
        assert!(!read(name).is_empty(), "{name}");
    }
    let nowhere = installed
        .command()
        .args(["generate", "/proc/nowhere"])
        .output()
        .expect("knetctl");
    assert_eq!(nowhere.status.code(), Some(73));
}

#[test]
fn every_profile_is_right_and_says_what_this_machine_lacks() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("conf/profiles");
    let mut seen = 0;
    for entry in fs::read_dir(folder).expect("profiles") {
        let file = entry.expect("entry").path();
        let done = Command::new(env!("CARGO_BIN_EXE_knetctl"))
            .env_remove("KNET_CONF")
            .args(["check", "--json"])
            .arg(&file)
            .output()
            .expect("knetctl");
        // 0 = it would run here; 2 = the file is right, and a port or hugepages are missing. 1 would be a fault of the file.
        assert!(
            matches!(done.status.code(), Some(0 | 2)),
            "{}: {done:?}",
            file.display()
        );
        seen += 1;
    }
    assert!(seen >= 6, "{seen} profiles");
}

#[test]
fn nobody_who_reads_and_no_room_is_never_a_panic() {
    let installed = Installed::new("pipes");
    let good = installed.file("good", GOOD.as_bytes());
    let good = good.to_str().expect("a path");
    for words in [
        &["check", good][..],
        &["check", good, "--json"],
        &["nic"],
        &["nic", "--json"],
        &["status"],
        &["why", "4000000"],
    ] {
        let quiet = installed.command().args(words).output().expect("knetctl");
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let closed = installed
            .command()
            .args(words)
            .stdout(writer.try_clone().expect("a pipe"))
            .stderr(writer)
            .status()
            .expect("knetctl");
        assert_eq!(closed.code(), quiet.status.code(), "{words:?} | head");
        if quiet.stdout.is_empty() {
            continue;
        }
        let full = fs::File::options().write(true).open("/dev/full");
        let full = installed
            .command()
            .args(words)
            .stdout(full.expect("/dev/full"))
            .output()
            .expect("knetctl");
        assert_eq!(full.status.code(), Some(74), "{words:?} > /dev/full");
        let said = text(&full.stderr);
        assert!(said.contains("knetctl: stdout: "), "{said}");
    }
}
