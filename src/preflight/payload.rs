//! Whether the payload stage could be loaded.

use super::{Machine, Report};
use crate::config::payload::Attach;
use crate::config::{Config, PortChoice, Vdev};
use crate::gpu::Placement;

pub(super) fn check(config: &Config, machine: &Machine, report: &mut Report) {
    let Some(gpu) = &config.gpu else {
        return;
    };
    match &machine.payload {
        Some(Err(fault)) => {
            let what = format!("the payload stage cannot be loaded: {fault}");
            report.error("gpu.pipeline", what, "mend the file, or \"enabled\": false");
        }
        Some(Ok(Placement::NoGpu(why))) => {
            let what = format!("{} cannot be had: {why}", gpu.mode.name());
            report.warning("gpu.mode", what, "the CPU runs every kernel");
        }
        Some(Ok(Placement::Crowded(name, why))) => {
            let what = format!("{name} has no room for each rule: {why}");
            report.warning("gpu.pipeline", what, "the CPU runs the rest");
        }
        Some(Ok(Placement::Gpu(name))) => {
            let what = format!(
                "kernels={} run on the GPU: {name}{}",
                gpu.pipeline.len(),
                payload_memory(config)
            );
            report.info("gpu.pipeline", what, "");
        }
        _ => {
            let what = format!("kernels={} run on the CPU", gpu.pipeline.len());
            report.info("gpu.pipeline", what, "");
        }
    }
}

/// What is said of the memory that rules for segments work on.
fn payload_memory(config: &Config) -> &'static str {
    let mut rules = config.gpu.iter().flat_map(|gpu| &gpu.pipeline);
    if rules.all(|rule| rule.attach == Attach::Stream) {
        return "";
    }
    match &config.port {
        PortChoice::Vdev(Vdev::KnetUnix(_) | Vdev::KnetPair(_)) => {
            "; payload_memory=staged: attach packet works on copies, this port's frames cannot be registered"
        }
        _ if config.lcores() > 1 => {
            "; payload_memory=host where the port has a queue for each lcore, else staged: an lcore that shares a queue works on copies"
        }
        PortChoice::Vdev(Vdev::Eal(_)) | PortChoice::Bdf(_) | PortChoice::Netdev(_) => {
            "; payload_memory=host: attach packet reads the port's frames where they lie"
        }
    }
}
