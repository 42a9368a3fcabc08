//! The facts about this machine and this process that decide whether a config can run.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::process::{Resource, getrlimit};

use super::install::Places;
use super::netlink::Net;
use super::procfs;
use crate::config::{Bdf, Config, PortChoice};
use crate::errno::Errno;
use crate::gpu::{Pipeline, Placement};
use crate::id::CpuId;

/// The facts; what could not be learnt is None or empty.
#[derive(Clone, Debug, Default)]
pub struct Machine {
    /// The PCI function that the config names.
    pub pci: Option<Pci>,
    /// The kernel's network, or why it could not be asked.
    pub net: Option<Result<Net, Errno>>,
    /// CPUs that run.
    pub online_cpus: Vec<CpuId>,
    /// CPUs that this process may use now (its mask within its cpuset).
    pub allowed_cpus: Vec<CpuId>,
    /// CPUs of this process's cpuset, when the kernel tells: the mask can be widened to them.
    pub cpuset_cpus: Option<Vec<CpuId>>,
    /// Bytes of memory that can be had.
    pub memory_available: Option<u64>,
    /// Free hugepages in bytes, for each NUMA node.
    pub hugepages_free: Vec<u64>,
    /// Soft resource limits; None: unlimited.
    pub limits: Limits,
    /// Effective capabilities, one bit each.
    pub capabilities: u64,
    /// The library that programs preload.
    pub frame: Option<PathBuf>,
    /// The host binary.
    pub host: Option<PathBuf>,
    /// The DPDK plug-in.
    pub plugin: Option<PathBuf>,
    /// The folder of a `knet_unix` socket can be written to.
    pub socket_folder_writable: bool,
    /// The system's host listens (`mode: 1`).
    pub system_host: bool,
    /// Where the payload stage would run, or why it could not be loaded, when there is one.
    pub payload: Option<Result<Placement, String>>,
}

/// A PCI function as /sys shows it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Pci {
    /// It is there.
    pub present: bool,
    /// Its class code: base class, subclass, interface.
    pub class: Option<u32>,
    /// The kernel driver it is bound to.
    pub driver: Option<String>,
    /// It is in an IOMMU group.
    pub iommu: bool,
    /// vfio may do without an IOMMU.
    pub unsafe_noiommu: bool,
    /// Its kernel interfaces.
    pub interfaces: Vec<String>,
    /// Its NUMA node.
    pub node: Option<usize>,
}

/// Soft resource limits in the units of getrlimit(2); None: unlimited.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Limits {
    /// Descriptors.
    pub nofile: Option<u64>,
    /// Bytes of locked memory.
    pub memlock: Option<u64>,
    /// Bytes of a file, memfds too.
    pub fsize: Option<u64>,
    /// Bytes of address space.
    pub address_space: Option<u64>,
}

impl Machine {
    /// Learns what `config` needs to know.
    #[must_use]
    pub fn gather(config: &Config, places: &Places) -> Self {
        let root = places.root.as_path();
        let read = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
        let status = read("proc/self/status");
        let socket_folder = match &config.port {
            PortChoice::Vdev(crate::config::Vdev::KnetUnix(args)) => {
                args.value("path").map(Path::new)
            }
            _ => None,
        };
        let socket_folder = socket_folder
            .and_then(Path::parent)
            .filter(|folder| !folder.as_os_str().is_empty());
        let writable = rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK;
        Self {
            pci: if let PortChoice::Bdf(bdf) = &config.port {
                Some(Pci::read(root, *bdf))
            } else {
                None
            },
            net: Some(Net::ask()),
            online_cpus: procfs::cpus(&read("sys/devices/system/cpu/online")).unwrap_or_default(),
            allowed_cpus: procfs::allowed_cpus(&status).unwrap_or_default(),
            cpuset_cpus: cpuset(root),
            memory_available: memory_available(root),
            hugepages_free: hugepages(root),
            limits: Limits {
                nofile: getrlimit(Resource::Nofile).current,
                memlock: getrlimit(Resource::Memlock).current,
                fsize: getrlimit(Resource::Fsize).current,
                address_space: getrlimit(Resource::As).current,
            },
            capabilities: procfs::capabilities(&status).unwrap_or_default(),
            frame: places.frame(),
            host: places.host(),
            plugin: places.plugin(),
            socket_folder_writable: socket_folder
                .is_none_or(|folder| rustix::fs::access(folder, writable).is_ok()),
            system_host: root.join("run/knet/knetd.sock").exists(),
            payload: config
                .gpu
                .as_ref()
                .map(|gpu| Pipeline::examine(gpu, config.lcores() as usize)),
        }
    }

    /// The kernel's network, when it could be asked.
    #[must_use]
    pub fn network(&self) -> Option<&Net> {
        self.net.as_ref()?.as_ref().ok()
    }

    /// Whether capability `number` (capabilities(7)) is effective.
    #[must_use]
    pub const fn can(&self, number: u32) -> bool {
        self.capabilities & (1 << number) != 0
    }
}

impl Pci {
    /// Looks at /sys under `root`.
    #[must_use]
    pub fn read(root: &Path, bdf: Bdf) -> Self {
        let folder = root.join("sys/bus/pci/devices").join(bdf.to_string());
        let name =
            |path: PathBuf| Some(fs::read_link(path).ok()?.file_name()?.to_str()?.to_owned());
        let noiommu =
            fs::read_to_string(root.join("sys/module/vfio/parameters/enable_unsafe_noiommu_mode"));
        Self {
            present: folder.is_dir(),
            class: fs::read_to_string(folder.join("class"))
                .ok()
                .and_then(|text| u32::from_str_radix(text.trim().strip_prefix("0x")?, 16).ok()),
            driver: name(folder.join("driver")),
            iommu: name(folder.join("iommu_group")).is_some(),
            unsafe_noiommu: noiommu.is_ok_and(|text| matches!(text.trim(), "Y" | "1")),
            interfaces: interfaces(&folder),
            // -1: the machine does not tell.
            node: fs::read_to_string(folder.join("numa_node"))
                .ok()
                .and_then(|text| text.trim().parse().ok()),
        }
    }
}

/// The kernel interfaces of a PCI function. Those of virtio hang one level deeper, below the device on its bus.
fn interfaces(folder: &Path) -> Vec<String> {
    let mut found = names(&folder.join("net"));
    for inner in names(folder) {
        if inner.starts_with("virtio") {
            found.extend(names(&folder.join(inner).join("net")));
        }
    }
    found
}

/// Bytes of memory that can be had: the machine's, and no more than the control group and those around it have left.
fn memory_available(root: &Path) -> Option<u64> {
    let meminfo = fs::read_to_string(root.join("proc/meminfo")).unwrap_or_default();
    let number = |path: PathBuf| fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    let left = cgroup_folders(root, "memory")
        .into_iter()
        .filter_map(|folder| {
            let of = |names: [&str; 2]| names.iter().find_map(|name| number(folder.join(name)));
            // "max" is no number: no limit. Version 1 says it with one that is larger than any machine.
            let limit = of(["memory.max", "memory.limit_in_bytes"])?;
            Some(limit.saturating_sub(of(["memory.current", "memory.usage_in_bytes"])?))
        });
    let machine = procfs::memory_available(&meminfo)?;
    Some(left.fold(machine, u64::min))
}

/// CPUs of this process's cpuset, when the kernel tells.
fn cpuset(root: &Path) -> Option<Vec<CpuId>> {
    let names = ["cpuset.cpus.effective", "cpuset.effective_cpus"];
    cgroup_folders(root, "cpuset")
        .iter()
        .flat_map(|folder| names.map(|name| folder.join(name)))
        .find_map(|path| procfs::cpus(&fs::read_to_string(path).ok()?))
        .filter(|cpus| !cpus.is_empty())
}

/// The folders of this process's control group and those around it, the innermost first: in the one hierarchy of cgroups
/// version 2, or in the controller's own of version 1.
fn cgroup_folders(root: &Path, controller: &str) -> Vec<PathBuf> {
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let own = root.join("sys/fs/cgroup").join(controller);
    let (mount, group) = match procfs::cgroup_of(&groups, controller) {
        Some(group) => (own, group),
        None => (
            root.join("sys/fs/cgroup"),
            procfs::cgroup(&groups).unwrap_or("/"),
        ),
    };
    // In a container of version 1 the group is the root of what is mounted; folders that are not there say nothing.
    let innermost = mount.join(group.trim_start_matches('/'));
    innermost
        .ancestors()
        .take_while(|folder| folder.starts_with(&mount))
        .map(Path::to_path_buf)
        .collect()
}

/// Free hugepages of all sizes in bytes, for each NUMA node; one entry on a kernel without NUMA.
fn hugepages(root: &Path) -> Vec<u64> {
    let free = |folder: &Path| {
        let sizes = names(folder);
        let bytes = sizes.iter().filter_map(|size| {
            let text = fs::read_to_string(folder.join(size).join("free_hugepages")).ok()?;
            text.trim()
                .parse::<u64>()
                .ok()?
                .checked_mul(procfs::hugepage_bytes(size)?)
        });
        bytes.fold(0_u64, u64::saturating_add)
    };
    let nodes = root.join("sys/devices/system/node");
    let mut numbers: Vec<usize> = names(&nodes)
        .iter()
        .filter_map(|name| name.strip_prefix("node")?.parse().ok())
        .collect();
    numbers.sort_unstable();
    if numbers.is_empty() {
        return vec![free(&root.join("sys/kernel/mm/hugepages"))];
    }
    numbers
        .iter()
        .map(|number| free(&nodes.join(format!("node{number}/hugepages"))))
        .collect()
}

/// The names in a folder, sorted; none when it is not there.
pub(super) fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    names.sort_unstable();
    names
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_tree_of_sys_is_read() {
        let root = std::env::temp_dir().join(format!("knet-machine-{}", std::process::id()));
        let device = root.join("sys/bus/pci/devices/0000:04:00.0");
        let node = root.join("sys/devices/system/node/node0/hugepages/hugepages-2048kB");
        for folder in [
            &device.join("net/eth9"),
            &node,
            &root.join("sys/devices/system/node/node1"),
        ] {
            fs::create_dir_all(folder).expect("folder");
        }
        fs::write(node.join("free_hugepages"), "3\n").expect("file");
        fs::write(device.join("numa_node"), "1\n").expect("file");
        fs::write(device.join("class"), "0x020000\n").expect("file");
        symlink("../../drivers/ixgbe", device.join("driver")).expect("link");
        let bdf = Bdf::parse("0000:04:00.0").expect("bdf");
        let pci = Pci::read(&root, bdf);
        assert_eq!(
            (pci.present, pci.driver.as_deref(), pci.iommu, pci.node),
            (true, Some("ixgbe"), false, Some(1))
        );
        assert_eq!(
            (pci.interfaces, pci.class),
            (vec!["eth9".to_owned()], Some(0x02_0000))
        );
        assert_eq!(hugepages(&root), [6 << 20, 0]);
        assert!(!Pci::read(&root, Bdf { device: 1, ..bdf }).present);
        let group = root.join("sys/fs/cgroup/a");
        for folder in [&group, &root.join("proc/self")] {
            fs::create_dir_all(folder).expect("folder");
        }
        fs::write(root.join("proc/meminfo"), "MemAvailable: 100 kB\n").expect("file");
        fs::write(root.join("proc/self/cgroup"), "0::/a\n").expect("file");
        fs::write(group.join("memory.current"), "1000\n").expect("file");
        fs::write(group.join("memory.max"), "max\n").expect("file");
        assert_eq!(memory_available(&root), Some(102_400));
        fs::write(group.join("memory.max"), "3000\n").expect("file");
        assert_eq!(memory_available(&root), Some(2_000));
        // The one around it has less.
        fs::write(root.join("proc/self/cgroup"), "0::/a/b\n").expect("file");
        assert_eq!(memory_available(&root), Some(2_000));
        fs::create_dir_all(group.join("b")).expect("folder");
        fs::write(group.join("b/cpuset.cpus.effective"), "1-2\n").expect("file");
        assert_eq!(cpuset(&root), Some(vec![CpuId(1), CpuId(2)]));
        // Version 1.
        let memory = root.join("sys/fs/cgroup/memory");
        let sets = root.join("sys/fs/cgroup/cpuset/c");
        for folder in [&memory, &sets] {
            fs::create_dir_all(folder).expect("folder");
        }
        let text = "4:memory:/elsewhere\n3:cpuset,cpu:/c\n0::/\n";
        fs::write(root.join("proc/self/cgroup"), text).expect("file");
        fs::write(memory.join("memory.limit_in_bytes"), "5000\n").expect("file");
        fs::write(memory.join("memory.usage_in_bytes"), "1000\n").expect("file");
        fs::write(sets.join("cpuset.effective_cpus"), "5\n").expect("file");
        assert_eq!(memory_available(&root), Some(4_000));
        assert_eq!(cpuset(&root), Some(vec![CpuId(5)]));
        fs::remove_dir_all(&root).expect("clean");
    }
}
