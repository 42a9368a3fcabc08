//! The data plane's CPUs against those that there are.

use super::{Machine, Report};
use crate::config::{Config, Idle, LCORES_MAX, Mode, Progress, cpu_list};
use crate::id::CpuId;

/// Fewer CPUs than this are shared by program, host and kernel.
const FEW_CPUS: usize = 4;

pub(super) fn check(config: &Config, machine: &Machine, report: &mut Report) {
    if config.run.progress == Progress::Inline {
        return inline(config, machine, report);
    }
    let online = &machine.online_cpus;
    let key = "dpdk.core_list_global";
    for cpu in config.dpdk.cores.iter().flatten() {
        if !online.is_empty() && !online.contains(cpu) {
            let what = format!("CPU {} does not run here", cpu.0);
            report.error(key, what, format!("one of {}", cpu_list::show(online)));
        } else if let Some(cpuset) = machine
            .cpuset_cpus
            .as_ref()
            .filter(|cpuset| !cpuset.contains(cpu))
        {
            let what = format!("CPU {} is outside the cpuset of this process", cpu.0);
            report.error(
                key,
                what,
                format!("one of {}, or widen the cpuset", cpu_list::show(cpuset)),
            );
        }
    }
    let Some(cores) = &config.dpdk.cores else {
        chosen(config, machine, report);
        return;
    };
    lcores(config, cores, report);
    let allowed = &machine.allowed_cpus;
    if !allowed.is_empty() && allowed.iter().all(|cpu| cores.contains(cpu)) {
        let what = format!(
            "CPU {} is all that this process may use, and the data plane polls it",
            cpu_list::show(cores)
        );
        report.warning(
            key,
            what,
            "start the program on other CPUs: taskset -c LIST",
        );
    }
    advise_few(config, machine, report);
}

/// Says how many of the CPUs named serve, and how flows come to them.
fn lcores(config: &Config, cores: &[CpuId], report: &mut Report) {
    let (named, serve) = (cores.len(), config.lcores());
    if named < 2 {
        return;
    }
    let key = "dpdk.core_list_global";
    let first = cores.first().map_or(0, |cpu| cpu.0);
    if named > serve as usize {
        let what = format!("{named} CPUs are named and the first {serve} serve");
        report.warning(key, what, format!("{LCORES_MAX} at most"));
    }
    let what = format!(
        "{serve} lcores: connections are spread by their hash; a port with fewer than {serve} queues is received \
         from by CPU {first}, which passes frames on"
    );
    report.info(key, what, "");
}

/// The program's own threads drive: there is no CPU to be chosen.
fn inline(config: &Config, machine: &Machine, report: &mut Report) {
    report.info(
        "common.progress",
        "\"inline\": the program's own threads drive the stack while they wait, a helper thread while they compute",
        "",
    );
    if config.dpdk.cores.is_some() {
        report.info(
            "dpdk.core_list_global",
            "has no effect with \"inline\": the CPUs are those of the program",
            "",
        );
    }
    let count = machine.online_cpus.len();
    if count >= FEW_CPUS {
        let what = format!("{count} CPUs: one of them could drive the stack alone");
        report.info(
            "machine",
            what,
            "\"dedicated\" for programs that compute long between two waits, that fork workers, or of which several share the port",
        );
    }
}

/// Nothing is named: says what will be chosen (design section 4).
fn chosen(config: &Config, machine: &Machine, report: &mut Report) {
    let cpuset = machine.cpuset_cpus.as_ref().unwrap_or(&machine.online_cpus);
    let free = cpuset
        .iter()
        .filter(|cpu| !machine.allowed_cpus.contains(cpu))
        .max_by_key(|cpu| cpu.0);
    if let Some(CpuId(cpu)) = free {
        report.info(
            "dpdk.core_list_global",
            format!("not given: a program started like this gets CPU {cpu} for its data plane"),
            "",
        );
    } else if let Some(CpuId(cpu)) = cpuset.iter().max_by_key(|cpu| cpu.0) {
        let what = format!("not given: the data plane shares CPU {cpu} with the program, yielding");
        report.info(
            "dpdk.core_list_global",
            what,
            "taskset -c LIST leaves it a CPU of its own",
        );
    }
    advise_few(config, machine, report);
}

fn advise_few(config: &Config, machine: &Machine, report: &mut Report) {
    let count = machine.online_cpus.len();
    if count == 0 || count >= FEW_CPUS {
        return;
    }
    if config.run.idle == Idle::Spin {
        let what = format!(
            "\"spin\" on {count} CPUs takes one from the programs even when nothing happens"
        );
        report.warning("common.idle", what, "\"adaptive\"");
    }
    let what = format!("{count} CPUs: the data plane, the program and the kernel share them");
    let advice = if config.mode == Mode::Private {
        "common.progress \"inline\" needs no CPU for the data plane"
    } else {
        ""
    };
    report.info("machine", what, advice);
}
