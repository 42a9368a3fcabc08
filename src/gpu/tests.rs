//! The stand-in for the driver's library (`tests/gpu/standin.c`), built once and copied for each test that wants its own.

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use super::pipeline::{FrameMemory, Pipeline, Placement};
use crate::config::payload::{Gpu, Kernel, Mode, OnMatch, PayloadRule, User, WithoutGpu};
use crate::ffi::cuda::Lasting;

pub(crate) const MODES: [Mode; 4] = [Mode::Launch, Mode::Persistent, Mode::Memops, Mode::Graph];

/// A driver of a test's own.
pub(crate) struct StandIn {
    folder: PathBuf,
}

fn built() -> &'static [u8] {
    static BUILT: OnceLock<Vec<u8>> = OnceLock::new();
    BUILT.get_or_init(|| {
        let library = std::env::temp_dir().join(format!("knet-standin-{}.so", std::process::id()));
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/gpu/standin.c");
        let status = Command::new("cc")
            .args(["-std=gnu11", "-O1", "-shared", "-fPIC", "-o"])
            .arg(&library)
            .args([source, "-lpthread", "-lm"])
            .status()
            .unwrap();
        assert!(status.success());
        let bytes = std::fs::read(&library).unwrap();
        std::fs::remove_file(library).unwrap();
        bytes
    })
}

impl StandIn {
    /// A driver with these faults, one a line, that lacks these calls.
    pub(crate) fn new(faults: &str, missing: &[&str]) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("knet-standin-{}-{number}", std::process::id());
        let made = Self {
            folder: std::env::temp_dir().join(name),
        };
        std::fs::create_dir_all(&made.folder).unwrap();
        let mut library = built().to_vec();
        for name in missing {
            let wanted = [b"\0", name.as_bytes(), b"\0"].concat();
            let mut places = 0;
            while let Some(at) = library
                .windows(wanted.len())
                .position(|bytes| bytes == wanted)
            {
                library[at + 1] = b'x';
                places += 1;
            }
            assert!(places > 0, "{name}");
        }
        std::fs::write(made.library(), library).unwrap();
        std::fs::write(made.beside("faults"), faults).unwrap();
        made
    }

    fn library(&self) -> PathBuf {
        self.folder.join("libcuda.so.1")
    }

    fn beside(&self, ending: &str) -> PathBuf {
        self.folder.join(format!("libcuda.so.1.{ending}"))
    }

    /// Lets go what hangs.
    pub(crate) fn go(&self) {
        std::fs::write(self.beside("go"), "").unwrap();
    }

    /// What hangs from now on hangs again.
    pub(crate) fn halt(&self) {
        std::fs::remove_file(self.beside("go")).unwrap();
    }

    /// A stage of these rules on this driver.
    pub(crate) fn config(&self, mode: Mode, rules: Vec<PayloadRule>) -> Gpu {
        Gpu {
            mode,
            driver_library: self.library().to_str().unwrap().to_owned(),
            ..Gpu::on_cpu(rules)
        }
    }
}

impl Drop for StandIn {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Code with every entry point.
pub(crate) fn ptx() -> String {
    let mut text = ".version 8.0\n.target sm_80\n.address_size 64\n".to_owned();
    for kernel in ["pattern", "stats", "chacha20", "crc32c"] {
        for mode in ["launch", "persistent"] {
            text.push_str(&format!(
                ".visible .entry knet_{kernel}_{mode}(\n.param .u64 batch\n)\n{{\nret;\n}}\n"
            ));
        }
    }
    text
}

/// A pipeline that runs on a stand-in.
pub(crate) fn load(config: &Gpu) -> Pipeline {
    let (pipeline, place) = load_one(config).unwrap();
    assert!(matches!(place, Placement::Gpu(_)), "{place:?}");
    pipeline
}

/// As [`load`], of a port with this memory for its frames; says where it runs as well.
pub(crate) fn load_on(config: &Gpu, memory: Option<&Lasting>) -> (Pipeline, Placement) {
    let port = || memory.cloned();
    let made = Pipeline::load_with(config, 1, &ptx(), FrameMemory::Port(&port));
    made.unwrap().remove(0)
}

/// As [`load`] for so many lcores.
pub(crate) fn load_all(config: &Gpu, lcores: usize) -> Vec<Pipeline> {
    let all = Pipeline::load_with(config, lcores, &ptx(), FrameMemory::Port(&|| None)).unwrap();
    let is_gpu = |(_, place): &(_, Placement)| matches!(place, Placement::Gpu(_));
    assert!(all.iter().all(is_gpu), "{all:?}");
    all.into_iter().map(|(pipeline, _)| pipeline).collect()
}

/// The pipeline of the only lcore, and where it runs.
fn load_one(config: &Gpu) -> Result<(Pipeline, Placement), String> {
    Pipeline::load_with(config, 1, &ptx(), FrameMemory::Port(&|| None)).map(|mut all| all.remove(0))
}

/// Where a stage of one rule comes to run.
fn placed(stand_in: &StandIn, mode: Mode) -> Placement {
    let rule = super::pipeline::tests::rule(Kernel::Crc32c);
    let config = stand_in.config(mode, vec![rule]);
    let (stage, place) = load_one(&config).unwrap();
    assert!(stage.stream.is_some());
    // A kernel that stays would hold up the next one's start.
    drop(stage);
    let mut required = config;
    required.required = true;
    let loaded = load_one(&required);
    match &place {
        Placement::NoGpu(why) => {
            let refused = loaded.unwrap_err();
            assert!(refused.starts_with("gpu.required: "), "{refused}");
            assert!(!why.contains('\n'), "{why}");
        }
        _ => assert_eq!(loaded.unwrap().1, place),
    }
    place
}

#[test]
fn every_mode_starts() {
    let stand_in = StandIn::new("", &[]);
    for mode in MODES {
        let name = format!("stand-in mode={}", mode.name());
        assert_eq!(placed(&stand_in, mode), Placement::Gpu(name));
    }
}

#[test]
fn whatever_the_driver_lacks_is_one_line_and_the_cpu() {
    for (faults, wanted) in [
        (
            "init=100",
            "no GPU is there: cuInit says 100 (CUDA_ERROR_NO_DEVICE)",
        ),
        ("init=34", "cuInit says 34"),
        ("init=12345", "cuInit says 12345"),
        ("count=0", "no GPU is there"),
        ("version=11040", "the driver is too old: it knows CUDA 11.4"),
        ("major=7", "compute capability 7.4, 8.0 is needed"),
        ("map=0", "stand-in cannot reach host memory"),
        ("context=2", "cuCtxCreate says 2 (CUDA_ERROR_OUT_OF_MEMORY)"),
        (
            "ptx=75",
            "the kernels: too new for the driver: cuModuleLoadDataEx says 222 ptxas",
        ),
        (
            "load=209",
            "the kernels: cannot be loaded: cuModuleLoadDataEx says 209",
        ),
        ("function=500", "no kernel knet_crc32c_"),
        ("alloc=2", "cuMemAlloc says 2 (CUDA_ERROR_OUT_OF_MEMORY)"),
        ("register=2", "cuMemHostRegister says 2"),
        ("register=2@2", "kernel crc32c: cuMemHostRegister says 2"),
        ("fill=700", "cuMemsetD8 says 700"),
        ("upload=700", "cuMemcpyHtoD says 700"),
        ("stream=2", "cuStreamCreate says 2"),
    ] {
        for mode in MODES {
            let place = placed(&StandIn::new(faults, &[]), mode);
            assert!(
                matches!(&place, Placement::NoGpu(why) if why.contains(wanted)),
                "{faults}: {place:?}"
            );
        }
    }
    for (faults, mode, wanted) in [
        (
            "launch=701",
            Mode::Persistent,
            "cuLaunchCooperativeKernel says 701",
        ),
        ("launch=701", Mode::Memops, "cuLaunchKernel says 701"),
        ("launch=701", Mode::Graph, "cuGraphLaunch says 701"),
        ("wait=801", Mode::Memops, "cuStreamWaitValue32 says 801"),
        ("graph=2", Mode::Graph, "cuGraphCreate says 2"),
        ("graph=801@2", Mode::Graph, "cuGraphInstantiate"),
    ] {
        let place = placed(&StandIn::new(faults, &[]), mode);
        assert!(
            matches!(&place, Placement::NoGpu(why) if why.starts_with(wanted)),
            "{faults}: {place:?}"
        );
    }
}

/// Rules of several kernels, one of them linked.
fn several_rules(use_them: impl FnOnce(Vec<PayloadRule>)) {
    let rule = super::pipeline::tests::rule;
    with_user("several", WithoutGpu::Refuse, |user| {
        use_them(vec![rule(Kernel::Crc32c), user, rule(Kernel::Stats)]);
    });
}

#[test]
fn every_lcore_has_what_it_needs_before_any_kernel_begins() {
    for mode in MODES {
        several_rules(|rules| {
            let stand_in = StandIn::new("", &[]);
            let config = stand_in.config(mode, rules);
            let all = Pipeline::load_with(&config, 2, &ptx(), FrameMemory::Port(&|| None)).unwrap();
            let wanted = Placement::Gpu(format!("stand-in mode={}", mode.name()));
            assert!(all.iter().all(|(_, place)| *place == wanted), "{all:?}");
            // One after the other would have hung.
            match (mode, load_one(&config)) {
                (Mode::Launch, Ok((_, place))) => assert_eq!(place, wanted),
                (_, Err(why)) => assert!(why.contains("says 9001"), "{why}"),
                (_, other) => panic!("{other:?}"),
            }
        });
    }
}

/// What becomes of three rules at so many lcores, the last of them with a function of the operator's.
fn crowd(
    faults: &str,
    mode: Mode,
    lcores: usize,
    without: WithoutGpu,
    required: bool,
) -> Result<Placement, String> {
    let stand_in = StandIn::new(faults, &[]);
    let rule = |kernel, at: usize| PayloadRule {
        path: format!("gpu.pipeline[{at}]"),
        ..super::pipeline::tests::rule(kernel)
    };
    let name = format!("crowd-{}-{lcores}-{without:?}-{required}", mode.name());
    with_user(&name, without, |mut user| {
        user.path = "gpu.pipeline[2]".to_owned();
        let rules = vec![rule(Kernel::Crc32c, 0), rule(Kernel::Stats, 1), user];
        let mut config = stand_in.config(mode, rules);
        config.required = required;
        config.batches.blocks = 4;
        let all = Pipeline::load_with(&config, lcores, &ptx(), FrameMemory::Port(&|| None))?;
        assert_eq!(all.len(), lcores);
        let place = all[0].1.clone();
        for (pipeline, other) in &all {
            assert_eq!(*other, place);
            let mut rings = 0;
            let stage = pipeline.stream.as_ref().unwrap();
            stage
                .report(&mut |name, value| rings += u64::from(name == "payload_gpu_rings") * value);
            let left = if let Placement::Crowded(_, why) = &place {
                why.split(": ").next().unwrap().split(", ").count() as u64
            } else {
                0
            };
            assert_eq!(rings, 3 - left, "{place:?}");
        }
        Ok(place)
    })
}

#[test]
fn rules_that_the_gpu_has_no_queue_for_stay_on_the_cpu() {
    let pass = WithoutGpu::Pass;
    for mode in MODES {
        let name = format!("stand-in mode={}", mode.name());
        let whole = Placement::Gpu(name.clone());
        assert_eq!(crowd("", mode, 2, pass, true).unwrap(), whole);
        if mode == Mode::Launch {
            // Nothing of it stays on the GPU.
            assert_eq!(crowd("", mode, 9, pass, true).unwrap(), whole);
            continue;
        }
        for (lcores, which, rings) in [
            (3, "gpu.pipeline[2]", 9),
            (5, "gpu.pipeline[1], gpu.pipeline[2]", 10),
        ] {
            let wanted = format!(
                "{which}: {rings} rings would wait on the GPU, and the driver has 8 hardware queues (CUDA_DEVICE_MAX_CONNECTIONS, 32 at most)"
            );
            assert_eq!(
                crowd("", mode, lcores, pass, false).unwrap(),
                Placement::Crowded(name.clone(), wanted.clone())
            );
            let refused = crowd("", mode, lcores, pass, true).unwrap_err();
            assert_eq!(refused, format!("gpu.required: {wanted}"));
        }
        // Asked beforehand, it is the same.
        let stand_in = StandIn::new("", &[]);
        let rule = || super::pipeline::tests::rule(Kernel::Crc32c);
        let config = stand_in.config(mode, vec![rule(), rule()]);
        assert_eq!(Pipeline::examine(&config, 4).unwrap(), whole);
        let place = Pipeline::examine(&config, 5).unwrap();
        assert!(
            matches!(&place, Placement::Crowded(_, why) if why.contains(": 10 rings would wait")),
            "{place:?}"
        );
        let refused = crowd("", mode, 3, WithoutGpu::Refuse, false).unwrap_err();
        assert!(
            refused.starts_with("gpu.pipeline[2]: only a GPU can run kernel user: ")
                && refused.contains("9 rings would wait"),
            "{refused}"
        );
    }
}

#[test]
fn kernels_that_would_not_fit_together_do_not_begin() {
    let pass = WithoutGpu::Pass;
    let placed = |faults, mode| crowd(faults, mode, 2, pass, false).unwrap();
    // Two rules at two lcores are 16 blocks.
    for faults in ["processors=2", "fit=4", "fit=4@2"] {
        let place = placed(faults, Mode::Persistent);
        let wanted = "gpu.pipeline[2]: 24 blocks would stay on the GPU, and 16 are sure to fit (persistent_blocks)";
        assert!(
            matches!(&place, Placement::Crowded(_, why) if why == wanted),
            "{faults}: {place:?}"
        );
        for mode in [Mode::Launch, Mode::Memops, Mode::Graph] {
            let place = placed(faults, mode);
            assert!(matches!(place, Placement::Gpu(_)), "{faults}: {place:?}");
        }
    }
    let place = placed("fit=0", Mode::Persistent);
    assert!(
        matches!(&place, Placement::Crowded(_, why) if why.starts_with("gpu.pipeline[0], gpu.pipeline[1], gpu.pipeline[2]: ")),
        "{place:?}"
    );
}

#[test]
fn a_call_that_is_missing_costs_what_needs_it_and_no_more() {
    let lacks = |name: &str, mode| placed(&StandIn::new("", &[name]), mode);
    let starts = |name: &str, mode| matches!(lacks(name, mode), Placement::Gpu(_));
    let wanted = "libcuda.so.1 has no cuLaunchKernel";
    for mode in MODES {
        let place = lacks("cuLaunchKernel", mode);
        assert!(
            matches!(&place, Placement::NoGpu(why) if why.ends_with(wanted)),
            "{place:?}"
        );
    }
    for (name, needs) in [
        ("cuStreamWaitValue32_v2", Some(Mode::Memops)),
        ("cuGraphCreate", Some(Mode::Graph)),
        ("cuGraphAddKernelNode", Some(Mode::Graph)),
        ("cuGraphAddBatchMemOpNode", Some(Mode::Graph)),
        ("cuGraphInstantiateWithFlags", Some(Mode::Graph)),
        ("cuGraphLaunch", Some(Mode::Graph)),
        ("cuLaunchCooperativeKernel", None),
        ("cuGetErrorName", None),
        ("cuOccupancyMaxActiveBlocksPerMultiprocessor", None),
        ("cuLinkCreate_v2", None),
        ("cuLinkAddData_v2", None),
        ("cuLinkComplete", None),
        ("cuLinkDestroy", None),
    ] {
        for mode in MODES {
            assert_eq!(starts(name, mode), needs != Some(mode), "{name} {mode:?}");
        }
    }
}

#[test]
fn a_library_that_is_none_is_one_line() {
    let stand_in = StandIn::new("", &[]);
    std::fs::remove_file(stand_in.library()).unwrap();
    let place = placed(&stand_in, Mode::Launch);
    assert!(
        matches!(&place, Placement::NoGpu(why) if why.contains("cannot open shared object file")),
        "{place:?}"
    );
    std::fs::write(stand_in.library(), "no library").unwrap();
    let place = placed(&stand_in, Mode::Launch);
    assert!(matches!(&place, Placement::NoGpu(_)), "{place:?}");
}

#[test]
fn a_gpu_is_chosen_by_index_address_or_uuid() {
    let stand_in = StandIn::new("", &[]);
    let chosen = |device: &str| {
        let rule = super::pipeline::tests::rule(Kernel::Stats);
        let mut config = stand_in.config(Mode::Launch, vec![rule]);
        config.device = device.to_owned();
        load_one(&config).unwrap().1
    };
    let uuid = "GPU-abababab-abab-abab-abab-abababababab";
    for device in ["0", "0000:01:00.0", uuid] {
        assert!(matches!(chosen(device), Placement::Gpu(_)), "{device}");
    }
    for device in ["1", "0000:02:00.0", &uuid.replace('b', "c"), "a\0b"] {
        assert!(matches!(chosen(device), Placement::NoGpu(_)), "{device}");
    }
}

/// The example of a user's function, in a file of the test's own.
struct Example(PathBuf);

impl Example {
    fn new(name: &str, change: impl FnOnce(String) -> String) -> Self {
        let text = include_str!("../../docs/examples/count_zeros.ptx").to_owned();
        let file = format!("knet-user-{}-{name}", std::process::id());
        let made = Self(std::env::temp_dir().join(file));
        std::fs::write(&made.0, change(text)).unwrap();
        made
    }

    fn path(&self) -> String {
        self.0.to_str().unwrap().to_owned()
    }
}

impl Drop for Example {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A rule that calls the example's function.
pub(crate) fn user(file: &str, without: WithoutGpu) -> PayloadRule {
    super::pipeline::tests::rule(Kernel::User(User {
        file: file.to_owned(),
        function: "count_zeros".to_owned(),
        writes: false,
        on_match: OnMatch::Pass,
        mirror_file: String::new(),
        without,
    }))
}

/// The rule, with its file for as long as `use_it` runs.
pub(crate) fn with_user<T>(
    name: &str,
    without: WithoutGpu,
    use_it: impl FnOnce(PayloadRule) -> T,
) -> T {
    let example = Example::new(name, |text| text);
    use_it(user(&example.path(), without))
}

fn refusal(config: &Gpu) -> String {
    load_one(config).unwrap_err()
}

#[test]
fn a_users_file_that_is_of_no_use_is_told_with_the_rule() {
    let stand_in = StandIn::new("", &[]);
    let loaded = |file: &str| {
        let rule = user(file, WithoutGpu::Refuse);
        refusal(&stand_in.config(Mode::Launch, vec![rule]))
    };
    let fault = loaded("/nonexistent/mine.ptx");
    assert!(
        fault.starts_with("gpu.pipeline[0]: ptx_file /nonexistent/mine.ptx: "),
        "{fault}"
    );
    let other = Example::new("other", |text| text.replace("count_zeros", "count_ones"));
    assert!(loaded(&other.path()).contains("has no function \"count_zeros\", but count_ones"));
    let wrong = Example::new("wrong", |text| {
        text.replacen(".param .b64 count_zeros_param_0,", "", 1)
    });
    assert!(loaded(&wrong.path()).contains("is to take (.b64 .b64 .b32 .b64)"));
}

/// Faults and missing calls of the driver, what is done to the example, what is said.
type Case = (
    &'static str,
    &'static [&'static str],
    fn(String) -> String,
    &'static str,
);

#[test]
fn what_the_driver_has_against_a_users_function_is_told_with_its_log() {
    let newer = |text: String| text.replace("sm_80", "sm_97");
    let calls =
        |text: String| format!("{text}\n.extern .func (.param .b32 a) elsewhere(.param .b32 b);\n");
    let same = |text: String| text;
    let cases: [Case; 8] = [
        ("", &[], newer, "is for sm_97, and stand-in is sm_94"),
        (
            "",
            &[],
            calls,
            "error   : Undefined reference to 'elsewhere'; fatal   : linking failed",
        ),
        (
            "link=2",
            &[],
            same,
            "cuLinkCreate says 2 (CUDA_ERROR_OUT_OF_MEMORY)",
        ),
        ("linkadd=218", &[], same, "cuLinkAddData says 218"),
        ("linkend=999", &[], same, "cuLinkComplete says 999"),
        ("load=209@2", &[], same, "cuModuleLoadDataEx says 209"),
        (
            "",
            &["cuLinkComplete"],
            same,
            "the driver has no cuLinkComplete",
        ),
        (
            "",
            &["cuLinkDestroy"],
            same,
            "the driver has no cuLinkDestroy",
        ),
    ];
    for (number, (faults, missing, change, wanted)) in cases.into_iter().enumerate() {
        let stand_in = StandIn::new(faults, missing);
        let example = Example::new(&format!("link-{number}"), change);
        let config = |without| stand_in.config(Mode::Launch, vec![user(&example.path(), without)]);
        let refused = refusal(&config(WithoutGpu::Refuse));
        assert!(
            refused.starts_with("gpu.pipeline[0]: only a GPU can run kernel user: ptx_file "),
            "{refused}"
        );
        assert!(
            refused.contains(wanted) && !refused.contains('\n'),
            "{refused}"
        );
        // The other rules have their GPU, and this one's payload passes.
        let stand_in = StandIn::new(faults, missing);
        let config = |without| stand_in.config(Mode::Launch, vec![user(&example.path(), without)]);
        let placed = load_one(&config(WithoutGpu::Pass)).unwrap().1;
        assert!(matches!(placed, Placement::Gpu(_)), "{placed:?}");
    }
    // The example is of the version that the kernels have: with a newer one it is the example that is refused.
    let stand_in = StandIn::new("ptx=80", &[]);
    let newest = Example::new("newest", |text| {
        text.replacen(".version 8.0", ".version 8.7", 1)
    });
    let rule = user(&newest.path(), WithoutGpu::Refuse);
    let refused = refusal(&stand_in.config(Mode::Launch, vec![rule]));
    assert!(
        refused.contains("too new for the driver: cuLinkAddData says 222 ptxas"),
        "{refused}"
    );
}

#[test]
fn without_a_gpu_a_users_payload_is_refused_or_passes_as_the_rule_says() {
    let none = StandIn::new("count=0", &[]);
    for mode in [Mode::Cpu, Mode::Launch] {
        with_user(
            &format!("none-{}", mode.name()),
            WithoutGpu::Refuse,
            |rule| {
                let refused = refusal(&none.config(mode, vec![rule]));
                assert!(
                    refused.contains("only a GPU can run kernel user: "),
                    "{refused}"
                );
            },
        );
        with_user(
            &format!("passes-{}", mode.name()),
            WithoutGpu::Pass,
            |rule| {
                let (pipeline, place) = load_one(&none.config(mode, vec![rule])).unwrap();
                assert!(!matches!(place, Placement::Gpu(_)), "{place:?}");
                assert!(pipeline.stream.is_some());
            },
        );
    }
}

#[test]
fn a_gpu_may_know_memory_by_other_addresses_and_may_refuse_it() {
    let stand_in = StandIn::new("refuse=2@3", &[]);
    let library = stand_in.library().to_str().unwrap().to_owned();
    let rig = super::rig::Rig::open(&library, "0", &ptx(), 4_096).unwrap();
    let seen = rig.register(1, false).unwrap();
    assert_eq!((seen.bytes, seen.same_pointer), (2 << 20, false));
    let refused = rig.register(1, false).unwrap_err();
    assert!(refused.starts_with("cuMemHostRegister says 2"), "{refused}");
}
