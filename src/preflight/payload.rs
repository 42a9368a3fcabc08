//! Whether the payload stage could be loaded.

use super::{Machine, Report};
use crate::config::Config;

pub(super) fn check(config: &Config, machine: &Machine, report: &mut Report) {
    let Some(gpu) = &config.gpu else {
        return;
    };
    match &machine.payload {
        Some(Err(fault)) => {
            let what = format!("the payload stage cannot be loaded: {fault}");
            report.error("gpu.pipeline", what, "mend the file, or \"enabled\": false");
        }
        _ => {
            let what = format!("kernels={} run on the CPU", gpu.pipeline.len());
            report.info("gpu.pipeline", what, "");
        }
    }
}
