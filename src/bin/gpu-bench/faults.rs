//! What goes wrong on purpose, each in a process of its own; the GPU must be of use afterwards.

use core::time::Duration;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::thread;

use knet::config::payload::Mode;
use knet::gpu::KernelState;
use knet::gpu::rig::{Outcome, Rig, Run, Way};
use knet::time::monotonic;

use crate::arguments::{Arguments, Kernel};
use crate::correctness;
use crate::place::{KERNELS, Place};
use crate::report::Report;
use crate::workload::{Subject, example, record};
use crate::{Stop, Watch};

/// A fault, and what is to come of it.
const FAULTS: [(&str, &str); 7] = [
    (
        "stall",
        "a kernel that takes 3 s is late after 5 ms, and the process ends",
    ),
    (
        "crash",
        "a kernel that writes to nowhere ends the use of the GPU, not the process",
    ),
    ("killed", "kill -9 of a process with a persistent kernel"),
    (
        "spawn",
        "a process is started while a persistent kernel runs",
    ),
    (
        "load",
        "code and memory are asked for while a persistent kernel runs",
    ),
    ("new", "PTX of a version that no driver knows is refused"),
    ("memory", "more device memory than there is is refused"),
];
/// Host memory of a fault.
const BYTES: usize = 4 << 20;
/// How long a kernel works on while the driver is asked for something.
const LOAD_LIMIT: Duration = Duration::from_secs(3);
/// Whatever takes longer has failed.
const PATIENCE: Duration = Duration::from_secs(20);
/// Random batches after each fault.
const ROUNDS: u32 = 5;
/// Milliseconds of the kernel that is late.
const STALL_MS: u32 = 3_000;
/// What a child says when it may be killed.
const READY: &str = "ready to be killed";

pub(crate) fn run(
    place: &mut Place,
    arguments: &Arguments,
    watch: &Watch,
    report: &mut Report,
) -> Result<(), Stop> {
    for (name, words) in FAULTS {
        watch.look()?;
        let begin = monotonic();
        let said = start(name, arguments).and_then(|child| end(name, child));
        let seconds = monotonic().since(begin).as_secs_f64();
        match said {
            Ok(said) => report.passed("faults", &format!("{words}: {said} ({seconds:.1} s)")),
            Err(said) => report.failed("faults", &format!("{words}: {said} ({seconds:.1} s)")),
        }
        let Place::Gpu(rig) = place else {
            return Ok(());
        };
        let mut subject = Subject::new(Kernel::Crc32c, arguments)?;
        let way = way(Mode::Launch, PATIENCE);
        match correctness::compare(rig, &mut subject, &way, (arguments.seed, ROUNDS), watch) {
            Ok(_) => report.passed(
                "faults",
                &format!("after {name} another process still uses the GPU"),
            ),
            Err(Stop::Asked) => return Err(Stop::Asked),
            Err(Stop::Fault(said)) => report.failed(
                "faults",
                &format!("after {name} another process cannot use the GPU: {said}"),
            ),
        }
    }
    Ok(())
}

const fn way(mode: Mode, timeout: Duration) -> Way {
    Way {
        mode,
        packets: 64,
        slots: 4,
        blocks: 4,
        timeout,
    }
}

fn start(name: &str, arguments: &Arguments) -> Result<Child, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    Command::new(program)
        .args(["--fault", name, "--device", &arguments.device])
        .args(["--driver-library", &arguments.driver_library])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| error.to_string())
}

/// Waits for a child and tells what it said.
fn end(name: &str, mut child: Child) -> Result<String, String> {
    if name == "killed" {
        let mut line = String::new();
        let said = child.stdout.take().map(BufReader::new);
        let read = said.map(|mut said| said.read_line(&mut line));
        let ready = matches!(read, Some(Ok(_))) && line.trim() == READY;
        child.kill().map_err(|error| error.to_string())?;
        let status = child.wait().map_err(|error| error.to_string())?;
        return if ready {
            Ok(format!("{status}"))
        } else {
            Err("it did not get as far".to_owned())
        };
    }
    let output = child
        .wait_with_output()
        .map_err(|error| error.to_string())?;
    let last = |bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes);
        text.trim().lines().last().unwrap_or_default().to_owned()
    };
    if output.status.success() {
        Ok(last(&output.stdout))
    } else {
        Err(format!("{} {}", output.status, last(&output.stderr)))
    }
}

/// The child's part: makes the fault and says what came of it.
pub(crate) fn child(name: &str, arguments: &Arguments) -> Result<String, String> {
    let open = |ptx: &str| Rig::open(&arguments.driver_library, &arguments.device, ptx, BYTES);
    if name == "new" {
        let newer = KERNELS.replacen(".version 8.0", ".version 99.0", 1);
        return match open(&newer) {
            Err(words) => Ok(words),
            Ok(_) => Err("it was taken".to_owned()),
        };
    }
    let rig = open(KERNELS)?;
    let crc32c = |mode| rig.run("crc32c", &[], &way(mode, PATIENCE));
    match name {
        "stall" => {
            let params = STALL_MS.to_le_bytes();
            let limit = Duration::from_millis(5);
            let mut run = rig.run("stall", &params, &way(Mode::Launch, limit))?;
            match batch(&rig, &mut run)? {
                Some(Outcome::Late(_)) => Ok("late, and left to itself".to_owned()),
                other => Err(format!("{other:?}")),
            }
        }
        "crash" => {
            let limit = Duration::from_millis(200);
            let mut run = rig.run("crash", &[], &way(Mode::Launch, limit))?;
            let outcome = batch(&rig, &mut run)?;
            // The driver is asked by another thread.
            let begin = monotonic();
            while rig.is_on() && monotonic().since(begin) < limit {
                run.step(monotonic(), &mut Vec::new());
            }
            if rig.is_on() {
                return Err(format!("the GPU is still in use: {outcome:?}"));
            }
            Ok(format!("the GPU was given up: {outcome:?}"))
        }
        "killed" => {
            let mut run = crc32c(Mode::Persistent)?;
            batch(&rig, &mut run)?;
            println!("{READY}");
            loop {
                batch(&rig, &mut run)?;
            }
        }
        "spawn" => {
            let mut run = crc32c(Mode::Persistent)?;
            batch(&rig, &mut run)?;
            let status = Command::new("true").status();
            status.map_err(|error| error.to_string())?;
            match batch(&rig, &mut run)? {
                Some(Outcome::Done(..)) => Ok("the kernel works on".to_owned()),
                other => Err(format!("{other:?}")),
            }
        }
        "load" => load(arguments, &rig, crc32c(Mode::Persistent)?),
        "memory" => {
            let Err(refused) = rig.occupy(1 << 50) else {
                return Err("1 PiB was given".to_owned());
            };
            let mut run = crc32c(Mode::Launch)?;
            match batch(&rig, &mut run)? {
                Some(Outcome::Done(..)) => Ok(refused),
                other => Err(format!("{refused}; then {other:?}")),
            }
        }
        _ => Err(format!("no fault is called {name}")),
    }
}

/// Another thread asks for code and memory; the kernel works on meanwhile, and ends when the driver has not answered for a while.
fn load(arguments: &Arguments, rig: &Rig, mut run: Run) -> Result<String, String> {
    batch(rig, &mut run)?;
    let asked = monotonic();
    let other = arguments.clone();
    let asking = thread::spawn(move || {
        let more = Rig::open(&other.driver_library, &other.device, KERNELS, BYTES)?;
        more.link(&example()?)
    });
    while !asking.is_finished() && monotonic().since(asked) < LOAD_LIMIT {
        match batch(rig, &mut run)? {
            Some(Outcome::Done(..)) => {}
            other => return Err(format!("{other:?}")),
        }
    }
    let is_done = asking.is_finished();
    let seconds = monotonic().since(asked).as_secs_f64();
    drop(run);
    if is_done {
        return match asking.join() {
            Ok(Ok(())) => Ok(format!("the kernel works on, and it took {seconds:.3} s")),
            Ok(Err(words)) => Ok(format!(
                "the kernel works on, and it was refused after {seconds:.3} s: {words}"
            )),
            Err(_) => Err("a panic".to_owned()),
        };
    }
    while !asking.is_finished() && monotonic().since(asked) < PATIENCE {
        thread::park_timeout(Duration::from_millis(1));
    }
    if asking.is_finished() {
        return Ok("the kernel works on, and it took until the kernel had ended".to_owned());
    }
    Err("it has not come back after the kernel's end".to_owned())
}

/// One packet there and back.
fn batch(rig: &Rig, run: &mut Run) -> Result<Option<Outcome>, String> {
    let begin = monotonic();
    let record = record(rig.address(0), 64, 0, &KernelState::default());
    run.add(begin, 0, &record);
    let mut outcomes = Vec::new();
    while outcomes.is_empty() {
        let now = monotonic();
        run.step(now, &mut outcomes);
        if now.since(begin) > PATIENCE {
            return Err("nothing came back".to_owned());
        }
    }
    Ok(outcomes.first().copied())
}
