//! Numbers out of the text files of proc(5) and /sys.

use crate::config::cpu_list;
use crate::id::CpuId;

/// The value of `key:` in a file such as /proc/self/status, trimmed.
pub(super) fn value<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.lines()
        .find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))
        .map(str::trim)
}

/// `MemAvailable` of /proc/meminfo in bytes.
pub(super) fn memory_available(meminfo: &str) -> Option<u64> {
    let kilobytes: u64 = value(meminfo, "MemAvailable")?
        .strip_suffix("kB")?
        .trim()
        .parse()
        .ok()?;
    kilobytes.checked_mul(1024)
}

/// The effective capabilities of /proc/self/status, one bit each.
pub(super) fn capabilities(status: &str) -> Option<u64> {
    u64::from_str_radix(value(status, "CapEff")?, 16).ok()
}

/// The CPUs that /proc/self/status allows.
pub(super) fn allowed_cpus(status: &str) -> Option<Vec<CpuId>> {
    cpus(value(status, "Cpus_allowed_list")?)
}

/// A CPU list of /sys, such as /sys/devices/system/cpu/online.
pub(super) fn cpus(text: &str) -> Option<Vec<CpuId>> {
    cpu_list::parse(text, 65_536).ok()
}

/// The path of a process in the unified hierarchy, out of /proc/self/cgroup (cgroups(7)).
pub(super) fn cgroup(text: &str) -> Option<&str> {
    text.lines().find_map(|line| line.strip_prefix("0::"))
}

/// The path of a process in the hierarchy of a controller of its own (cgroups version 1), out of /proc/self/cgroup.
pub(super) fn cgroup_of<'a>(text: &'a str, controller: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        controllers
            .split(',')
            .any(|name| name == controller)
            .then_some(path)
    })
}

/// The page size in bytes of a folder name such as `hugepages-2048kB`.
pub(super) fn hugepage_bytes(folder: &str) -> Option<u64> {
    let kilobytes: u64 = folder
        .strip_prefix("hugepages-")?
        .strip_suffix("kB")?
        .parse()
        .ok()?;
    kilobytes.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATUS: &str = "Name:\tknetctl\nCapInh:\t0000000000000000\nCapEff:\t000001ffffffffff\nCpus_allowed:\t3\nCpus_allowed_list:\t0-1,5\n";

    #[test]
    fn status() {
        assert_eq!(capabilities(STATUS), Some(0x1ff_ffff_ffff));
        assert_eq!(
            allowed_cpus(STATUS),
            Some(vec![CpuId(0), CpuId(1), CpuId(5)])
        );
        assert_eq!(capabilities("CapEff:\tzz\n"), None);
        assert_eq!(allowed_cpus(""), None);
    }

    #[test]
    fn memory_and_pages() {
        assert_eq!(
            memory_available("MemTotal: 5 kB\nMemAvailable:   2048 kB\n"),
            Some(2 << 20)
        );
        assert_eq!(memory_available("MemTotal: 5 kB\n"), None);
        assert_eq!(hugepage_bytes("hugepages-2048kB"), Some(2 << 20));
        assert_eq!(hugepage_bytes("hugepages-x"), None);
        assert_eq!(cgroup("12:cpu:/a\n0::/user.slice\n"), Some("/user.slice"));
        let version_1 = "9:name=systemd:/\n4:cpuset,memory:/a:b\n0::/\n";
        assert_eq!(cgroup_of(version_1, "memory"), Some("/a:b"));
        assert_eq!(cgroup_of(version_1, "mem"), None);
    }
}
