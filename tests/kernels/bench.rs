//! gpu-bench without a GPU, and on a stand-in for the driver's library that runs the real kernels under the emulator.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use super::emulator::{changed_kernels, kernels, stand_in};

fn bench(library: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_gpu-bench"))
        .args(["--milliseconds", "5", "--repeats", "1", "--rounds", "5"])
        .args(["--rules", "50", "--memory-mib", "16", "--blocks", "1"])
        .arg("--driver-library")
        .arg(library)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The JSON behind the table.
fn json(output: &Output) -> serde_json::Value {
    let all = text(&output.stdout);
    let begin = all.find("\n{\n").expect("JSON on stdout") + 1;
    serde_json::from_str(&all[begin..]).unwrap()
}

/// No figure that no device made is given in bits.
fn assert_no_bits(report: &serde_json::Value) {
    assert_eq!(report["is_device"], false);
    let figures = report["figures"].as_array().unwrap();
    assert!(!figures.is_empty());
    for figure in figures {
        assert!(figure["gbit_s"].is_null(), "{figure}");
        assert!(figure["mpps"].as_f64().unwrap() > 0.0, "{figure}");
        assert!(!figure["where"].as_str().unwrap().is_empty(), "{figure}");
    }
}

#[test]
fn without_a_driver_the_bench_says_so_in_one_line() {
    let nowhere = PathBuf::from("/nonexistent/libcuda.so.1");
    let refused = bench(&nowhere, &["--on", "gpu"]);
    assert_eq!(refused.status.code(), Some(69));
    let words = text(&refused.stderr);
    assert_eq!(words.lines().count(), 1, "{words}");
    assert!(words.contains("/nonexistent/libcuda.so.1"), "{words}");

    let instead = bench(
        &nowhere,
        &[
            "--payloads",
            "256",
            "--kernels",
            "macswap,crc32c",
            "--json",
            "-",
        ],
    );
    assert_eq!(instead.status.code(), Some(0), "{}", text(&instead.stderr));
    let words = text(&instead.stderr);
    assert!(
        words.contains("measured on this machine's CPU instead"),
        "{words}"
    );
    let report = json(&instead);
    assert!(report["where"].as_str().unwrap().starts_with("CPU "));
    assert_no_bits(&report);
}

#[test]
fn every_mode_drives_the_real_kernels_under_the_emulator() {
    let library = stand_in(&kernels(), "standin");
    let output = bench(
        &library,
        &[
            "--parts",
            "correctness,costs",
            "--kernels",
            "pattern,stats",
            "--json",
            "-",
        ],
    );
    let words = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{words}");
    assert_eq!(words.matches("PASS correctness: ").count(), 12, "{words}");
    let report = json(&output);
    assert_eq!(report["where"], "stand-in for a GPU");
    assert_no_bits(&report);
    let told = text(&output.stdout);
    assert!(told.contains("No GPU did this"), "{told}");
}

#[test]
fn registration_is_timed_for_each_kind_of_page() {
    let library = stand_in(&kernels(), "standin-registration");
    let output = bench(&library, &["--parts", "registration", "--json", "-"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let report = json(&output);
    let [small, huge] = &report["registration"].as_array().unwrap()[..] else {
        panic!("{report}");
    };
    assert_eq!(
        (&small["pages"], &huge["pages"]),
        (&"4 KiB".into(), &"2 MiB".into())
    );
    assert_eq!(small["bytes"], 16 << 20);
    assert!(small["seconds_per_gib"].as_f64().unwrap() > 0.0);
    // The emulator knows host addresses only.
    assert_eq!(small["same_pointer"], true);
    // Few machines have hugepages to spare: then it says so.
    let words = huge["words"].as_str().unwrap();
    assert!(
        huge["same_pointer"] == true || words.contains("mmap says 2"),
        "{words}"
    );
    assert!(text(&output.stdout).contains(words));
}

/// The figures with this part and place of payload.
fn figures<'a>(
    report: &'a serde_json::Value,
    part: &str,
    memory: &str,
) -> Vec<&'a serde_json::Value> {
    let all = report["figures"].as_array().unwrap();
    let wanted = |figure: &&serde_json::Value| figure["part"] == part && figure["memory"] == memory;
    all.iter().filter(wanted).collect()
}

#[test]
fn payload_may_lie_in_the_gpu_s_own_memory() {
    let library = stand_in(&kernels(), "standin-resident");
    let small = [
        "--payloads",
        "64",
        "--batches",
        "16,32",
        "--modes",
        "launch,persistent",
    ];
    let output = bench(
        &library,
        &[
            &["--parts", "sweep", "--kernels", "macswap", "--json", "-"],
            &small[..],
        ]
        .concat(),
    );
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let report = json(&output);
    assert_no_bits(&report);
    // Every result and byte was compared. With batches of 16 in host memory alone.
    assert_eq!(figures(&report, "sweep", "host").len(), 2 * 2);
    assert_eq!(figures(&report, "sweep", "gpu").len(), 2);
    // The comparison sees what lies there.
    let wrong = changed_kernels(
        "wrong-resident",
        "bench.cuh",
        "lane < 6 ? lane + 6",
        "lane < 6 ? lane + 5",
    );
    let library = stand_in(&wrong, "standin-wrong-resident");
    let only = [
        "--parts",
        "sweep",
        "--kernels",
        "macswap",
        "--memory",
        "gpu",
    ];
    let one = ["--modes", "launch", "--payloads", "64", "--batches", "32"];
    let output = bench(&library, &[only, one].concat());
    let told = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(told.contains("other bytes than the CPU's"), "{told}");
}

#[test]
fn other_cuda_work_runs_beside_every_mode() {
    let library = stand_in(&kernels(), "standin-beside");
    let small = ["--payloads", "64", "--batches", "8", "--kernels", "crc32c"];
    let output = bench(
        &library,
        &[&["--parts", "beside", "--json", "-"], &small[..]].concat(),
    );
    let words = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{words}");
    assert_eq!(words.matches("PASS beside: ").count(), 8, "{words}");
    let report = json(&output);
    assert_no_bits(&report);
    let beside = report["beside"].as_array().unwrap();
    assert_eq!(beside.len(), 8);
    for row in beside {
        assert!(row["launches_s_alone"].as_f64().unwrap() > 0.0, "{row}");
        assert_eq!(row["where"], "stand-in for a GPU");
    }
}

#[test]
fn the_cpu_versions_run_on_as_many_threads_as_are_asked_for() {
    let nowhere = PathBuf::from("/nonexistent/libcuda.so.1");
    let only = ["--payloads", "256", "--kernels", "stats", "--json", "-"];
    let output = bench(&nowhere, &[&["--cpu-threads", "1,3"], &only[..]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let report = json(&output);
    let threads: Vec<_> = figures(&report, "sweep", "-")
        .iter()
        .map(|figure| figure["threads"].as_u64().unwrap())
        .collect();
    assert_eq!(threads, [1, 3]);
    assert!(text(&output.stdout).contains("cpu x3"));
}

#[test]
fn a_kernel_that_is_wrong_is_told_by_the_bench() {
    let wrong = changed_kernels("wrong", "crc32c.cuh", "x82f63b78u", "xedb88320u");
    let library = stand_in(&wrong, "standin-wrong");
    let only = [
        "--parts",
        "correctness",
        "--kernels",
        "crc32c",
        "--modes",
        "launch",
    ];
    let output = bench(&library, &only);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stdout).contains("FAIL correctness: crc32c in mode launch: "));
}

#[test]
fn faults_that_a_stand_in_can_have_end_as_they_should() {
    let library = stand_in(&kernels(), "standin-faults");
    for (fault, said) in [
        ("new", "too new"),
        ("memory", "cuMemAlloc"),
        ("spawn", "the kernel works on"),
        // As a driver that does not carry it out beside a kernel that stays.
        ("load", "cuMemHostRegister says 9001"),
    ] {
        let output = bench(&library, &["--fault", fault]);
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert_eq!(output.status.code(), Some(0), "{fault}: {err}");
        assert!(out.contains(said), "{fault}: {out}");
    }
}

#[test]
fn an_interrupted_bench_tells_what_it_has() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_gpu-bench"))
        .args(["--on", "cpu", "--milliseconds", "50", "--repeats", "1"])
        .args([
            "--rules",
            "50",
            "--memory-mib",
            "16",
            "--payloads",
            "64,128",
        ])
        .args([
            "--kernels",
            "macswap,peek,poke,crc32c,stats,chacha20,pattern",
        ])
        .args(std::iter::repeat_n(["--kernels", "stats,chacha20,pattern"], 200).flatten())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut words = BufReader::new(child.stderr.take().unwrap()).lines();
    let first = words
        .by_ref()
        .map(Result::unwrap)
        .find(|line| line.starts_with("sweep"));
    assert!(first.is_some());
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    for line in words {
        line.unwrap();
    }
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    let told = text(&output.stdout);
    assert!(
        told.contains("Interrupted: ") && told.contains("sweep     macswap"),
        "{told}"
    );
}

#[test]
fn wrong_use_is_told() {
    let output = bench(Path::new("x"), &["--batches", "2000"]);
    assert_eq!(output.status.code(), Some(64));
    assert!(text(&output.stderr).contains("--batches"));
}
