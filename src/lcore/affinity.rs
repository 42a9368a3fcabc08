//! Which CPU an lcore takes, and whether it has it for itself.

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::errno::{Errno, Result};
use crate::id::CpuId;

/// With fewer CPUs than this the program needs the lcore's one as well.
const CPUS_FOR_OWN: usize = 3;

/// Where an lcore runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Placement {
    /// Its CPU.
    pub cpu: CpuId,
    /// Others run there too, so that it yields on empty turns.
    pub shared: bool,
}

/// The CPUs that `pid` may run on (None = this thread); empty when the process is gone.
#[must_use]
pub fn cpus_of(pid: Option<u32>) -> Vec<u32> {
    let pid = pid.map(|pid| i32::try_from(pid).ok().and_then(Pid::from_raw));
    if pid == Some(None) {
        return Vec::new();
    }
    sched_getaffinity(pid.flatten()).map_or_else(|_| Vec::new(), |set| members(&set))
}

/// Pins this thread to `wanted`, else to the highest CPU of the cpuset outside `program`, else to the highest one.
///
/// # Errors
/// EINVAL when the cpuset does not hold `wanted`, else what sched_setaffinity says.
pub fn place(wanted: Option<CpuId>, program: &[u32]) -> Result<Placement> {
    // The mask may be the program's own, inherited; asking for all CPUs leaves the cpuset.
    let mut all = CpuSet::new();
    for cpu in 0..CpuSet::MAX_CPU {
        all.set(cpu);
    }
    sched_setaffinity(None, &all)?;
    let cpuset = cpus_of(None);
    let placement = choose(wanted, &cpuset, program).ok_or(Errno::INVAL)?;
    let mut one = CpuSet::new();
    one.set(placement.cpu.index());
    sched_setaffinity(None, &one)?;
    Ok(placement)
}

fn choose(wanted: Option<CpuId>, cpuset: &[u32], program: &[u32]) -> Option<Placement> {
    let cpu = match wanted {
        Some(cpu) => *cpuset.iter().find(|&&there| there == cpu.0)?,
        None => *cpuset
            .iter()
            .rev()
            .find(|cpu| !program.contains(cpu))
            .or_else(|| cpuset.last())?,
    };
    Some(Placement {
        cpu: CpuId(cpu),
        shared: program.contains(&cpu) || cpuset.len() < CPUS_FOR_OWN,
    })
}

fn members(set: &CpuSet) -> Vec<u32> {
    (0..CpuSet::MAX_CPU)
        .filter(|&cpu| set.is_set(cpu))
        .filter_map(|cpu| u32::try_from(cpu).ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(wanted: Option<u32>, cpuset: &[u32], program: &[u32]) -> Option<(u32, bool)> {
        choose(wanted.map(CpuId), cpuset, program).map(|place| (place.cpu.0, place.shared))
    }

    #[test]
    fn the_highest_cpu_that_the_program_does_not_use() {
        assert_eq!(chosen(None, &[0, 1, 2, 3], &[3]), Some((2, false)));
        assert_eq!(chosen(None, &[0, 1, 2], &[0, 1, 2]), Some((2, true)));
        assert_eq!(chosen(None, &[4, 5], &[4]), Some((5, true)));
        assert_eq!(chosen(Some(1), &[0, 1, 2], &[0]), Some((1, false)));
        assert_eq!(chosen(Some(1), &[0, 1, 2], &[1]), Some((1, true)));
        assert_eq!(chosen(Some(7), &[0, 1, 2], &[]), None);
        assert_eq!(chosen(None, &[], &[]), None);
    }

    #[test]
    fn this_thread_may_run_somewhere_and_a_gone_process_nowhere() {
        assert!(!cpus_of(None).is_empty());
        assert!(cpus_of(Some(u32::MAX)).is_empty());
    }
}
