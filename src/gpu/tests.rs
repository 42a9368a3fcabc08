//! The stand-in for the driver's library (`tests/gpu/standin.c`), built once and copied for each test that wants its own.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use super::pipeline::{Pipeline, Placement};
use crate::config::payload::{Gpu, Mode, PayloadRule};

pub(crate) const MODES: [Mode; 4] = [Mode::Launch, Mode::Persistent, Mode::Memops, Mode::Graph];

/// A driver of a test's own.
pub(crate) struct StandIn {
    folder: PathBuf,
}

fn built() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
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
        library
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
        let mut library = std::fs::read(built()).unwrap();
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
    let (pipeline, place) = Pipeline::load_with(config, &ptx()).unwrap();
    assert!(matches!(place, Placement::Gpu(_)), "{place:?}");
    pipeline
}

/// Where a stage of one rule comes to run.
fn placed(stand_in: &StandIn, mode: Mode) -> Placement {
    let rule = super::pipeline::tests::rule(crate::config::payload::Kernel::Crc32c);
    let config = stand_in.config(mode, vec![rule]);
    let (stage, place) = Pipeline::load_with(&config, &ptx()).unwrap();
    assert!(stage.stream.is_some());
    let mut required = config;
    required.required = true;
    let loaded = Pipeline::load_with(&required, &ptx());
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
    ] {
        for mode in MODES {
            let place = placed(&StandIn::new(faults, &[]), mode);
            assert!(
                matches!(&place, Placement::NoGpu(why) if why.contains(wanted)),
                "{faults}: {place:?}"
            );
        }
    }
    let launched = placed(&StandIn::new("launch=701", &[]), Mode::Persistent);
    assert!(
        matches!(&launched, Placement::NoGpu(why) if why == "cuLaunchCooperativeKernel says 701"),
        "{launched:?}"
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
        let rule = super::pipeline::tests::rule(crate::config::payload::Kernel::Stats);
        let mut config = stand_in.config(Mode::Launch, vec![rule]);
        config.device = device.to_owned();
        Pipeline::load_with(&config, &ptx()).unwrap().1
    };
    let uuid = "GPU-abababab-abab-abab-abab-abababababab";
    for device in ["0", "0000:01:00.0", uuid] {
        assert!(matches!(chosen(device), Placement::Gpu(_)), "{device}");
    }
    for device in ["1", "0000:02:00.0", &uuid.replace('b', "c"), "a\0b"] {
        assert!(matches!(chosen(device), Placement::NoGpu(_)), "{device}");
    }
}
