//! Ports of a made-up machine: a tree of files stands for /sys and /proc.

use core::net::Ipv4Addr;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use super::*;
use crate::preflight::{Link, Net};

struct Tree(PathBuf);

static NUMBER: AtomicU32 = AtomicU32::new(0);

impl Tree {
    fn new() -> Self {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let root = std::env::temp_dir().join(format!("knet-nic-{}-{number}", std::process::id()));
        fs::create_dir_all(root.join("sys/bus/pci/devices")).unwrap();
        Self(root)
    }

    fn file(&self, path: &str, text: &str) {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// A port; `group` is its IOMMU group.
    fn port(&self, bdf: &str, driver: &str, interface: Option<&str>, group: Option<u32>) {
        let device = format!("sys/bus/pci/devices/{bdf}");
        self.file(&format!("{device}/class"), "0x020000\n");
        self.file(&format!("{device}/vendor"), "0x8086\n");
        self.file(&format!("{device}/device"), "0x1572\n");
        self.file(&format!("{device}/numa_node"), "1\n");
        self.file(&format!("{device}/modalias"), "pci:v00008086d00001572\n");
        let folder = self.0.join(&device);
        if !driver.is_empty() {
            fs::create_dir_all(self.0.join("sys/bus/pci/drivers").join(driver)).unwrap();
            symlink(format!("../../drivers/{driver}"), folder.join("driver")).unwrap();
        }
        if let Some(group) = group {
            let members = self
                .0
                .join(format!("sys/kernel/iommu_groups/{group}/devices"));
            fs::create_dir_all(&members).unwrap();
            fs::write(members.join(bdf), "").unwrap();
            symlink(members.parent().unwrap(), folder.join("iommu_group")).unwrap();
        }
        if let Some(name) = interface {
            self.file(&format!("{device}/net/{name}/ifindex"), "7\n");
            self.file(
                &format!("sys/class/net/{name}/address"),
                "02:00:00:00:00:07\n",
            );
            self.file(&format!("sys/class/net/{name}/carrier"), "1\n");
        }
    }

    fn one(&self, net: &Net) -> Port {
        let mut found = ports(&self.0, net);
        assert_eq!(found.len(), 1);
        found.remove(0)
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn net(name: &str, default_route: bool) -> Net {
    Net {
        links: vec![Link {
            index: 7,
            name: name.to_owned(),
            up: true,
            loopback: false,
            mtu: 1_500,
            mac: None,
        }],
        addresses: vec![(7, Ipv4Addr::new(192, 168, 1, 58), 24)],
        default_routes: if default_route { vec![7] } else { Vec::new() },
    }
}

fn vfio() -> Bind {
    Bind {
        driver: "vfio-pci".to_owned(),
        force: false,
        noiommu: false,
    }
}

fn shown(steps: &[Step]) -> Vec<String> {
    steps.iter().map(ToString::to_string).collect()
}

#[test]
fn a_port_is_taken_from_the_kernel_step_by_step() {
    let tree = Tree::new();
    tree.port("0000:04:00.0", "i40e", Some("eth4"), Some(3));
    let port = tree.one(&net("eth4", false));
    let interface = &port.interfaces[0];
    assert_eq!(
        (port.driver(), port.id.as_str(), port.pci.node),
        ("i40e", "8086:1572", Some(1))
    );
    assert_eq!(
        (interface.mac.as_str(), interface.link),
        ("02:00:00:00:00:07", Some(true))
    );
    assert_eq!(interface.addresses, [(Ipv4Addr::new(192, 168, 1, 58), 24)]);
    assert_eq!(
        shown(&bind(&tree.0, &port, &vfio()).unwrap()),
        [
            "ip link set dev eth4 down",
            "modprobe vfio-pci",
            "echo 0000:04:00.0 > /sys/bus/pci/devices/0000:04:00.0/driver/unbind",
            "echo vfio-pci > /sys/bus/pci/devices/0000:04:00.0/driver_override",
            "echo 0000:04:00.0 > /sys/bus/pci/drivers_probe",
        ]
    );
}

#[test]
fn the_interface_of_the_default_route_is_taken_by_force_only() {
    let tree = Tree::new();
    tree.port("0000:04:00.0", "i40e", Some("eth4"), Some(3));
    let port = tree.one(&net("eth4", true));
    let refusal = bind(&tree.0, &port, &vfio()).unwrap_err();
    assert!(
        refusal.0.contains("eth4, which carries the default route"),
        "{refusal}"
    );
    let force = Bind {
        force: true,
        ..vfio()
    };
    assert_eq!(bind(&tree.0, &port, &force).unwrap().len(), 5);
}

#[test]
fn without_an_iommu_the_operator_must_say_so() {
    let tree = Tree::new();
    tree.port("0000:04:00.0", "virtio-pci", None, None);
    // The interface of virtio hangs at the device on its own bus.
    tree.file(
        "sys/bus/pci/devices/0000:04:00.0/virtio3/net/ens4/ifindex",
        "7\n",
    );
    let port = tree.one(&net("ens4", false));
    assert_eq!(port.interfaces[0].name, "ens4");
    let refusal = bind(&tree.0, &port, &vfio()).unwrap_err();
    assert!(refusal.0.contains("--noiommu"), "{refusal}");
    let noiommu = Bind {
        noiommu: true,
        ..vfio()
    };
    let steps = shown(&bind(&tree.0, &port, &noiommu).unwrap());
    assert_eq!(steps[1], "modprobe vfio enable_unsafe_noiommu_mode=1");
    assert_eq!(
        steps[2],
        "echo 1 > /sys/module/vfio/parameters/enable_unsafe_noiommu_mode"
    );
    let lacking = lacking(&tree.0, &[port]);
    assert_eq!(lacking.len(), 3, "{lacking:?}");
    for (line, word) in lacking
        .iter()
        .zip(["intel_iommu=on", "modprobe vfio-pci", "hugepages"])
    {
        assert!(line.contains(word), "{line}");
    }
}

#[test]
fn a_group_is_given_away_as_a_whole() {
    let tree = Tree::new();
    tree.port("0000:04:00.0", "i40e", None, Some(3));
    tree.port("0000:04:00.1", "i40e", None, Some(3));
    let port = ports(&tree.0, &Net::default()).remove(0);
    let refusal = bind(&tree.0, &port, &vfio()).unwrap_err();
    assert!(refusal.0.contains("0000:04:00.1 (i40e)"), "{refusal}");
}

#[test]
fn a_port_goes_back_to_the_driver_that_knows_it_unless_somebody_uses_it() {
    let tree = Tree::new();
    tree.port("0000:04:00.0", "vfio-pci", None, Some(3));
    let port = tree.one(&Net::default());
    assert!(
        bind(&tree.0, &port, &vfio()).unwrap().is_empty(),
        "it is bound already"
    );
    assert_eq!(
        shown(&unbind(&tree.0, &port, None).unwrap()),
        [
            "modprobe pci:v00008086d00001572",
            "echo 0000:04:00.0 > /sys/bus/pci/devices/0000:04:00.0/driver/unbind",
            "echo > /sys/bus/pci/devices/0000:04:00.0/driver_override",
            "echo 0000:04:00.0 > /sys/bus/pci/drivers_probe",
        ]
    );
    assert_eq!(
        shown(&unbind(&tree.0, &port, Some("i40e")).unwrap())[0],
        "modprobe i40e"
    );
    tree.file("proc/4711/comm", "knetd: redis\n");
    fs::create_dir_all(tree.0.join("proc/4711/fd")).unwrap();
    symlink("/dev/vfio/3", tree.0.join("proc/4711/fd/9")).unwrap();
    let refusal = unbind(&tree.0, &port, None).unwrap_err();
    assert!(
        refusal.0.contains("process 4711 (knetd: redis)"),
        "{refusal}"
    );
}

#[test]
fn a_driver_that_shares_its_port_keeps_it() {
    let tree = Tree::new();
    tree.port("0000:04:00.0", "mlx5_core", Some("eth4"), Some(3));
    let port = tree.one(&Net::default());
    assert!(
        bind(&tree.0, &port, &vfio())
            .unwrap_err()
            .0
            .contains("used as it is")
    );
    assert!(unbind(&tree.0, &port, None).unwrap().is_empty());
}

#[test]
fn what_is_no_network_device_is_not_listed() {
    let tree = Tree::new();
    tree.file("sys/bus/pci/devices/0000:00:02.0/class", "0x030000\n");
    assert!(ports(&tree.0, &Net::default()).is_empty());
    assert!(lacking(&tree.0, &[])[0].contains("no network device"));
}

#[test]
fn hugepages_are_counted_on_each_node() {
    let tree = Tree::new();
    for (node, total, free) in [(0, 10, 2), (1, 0, 0)] {
        let folder = format!("sys/devices/system/node/node{node}/hugepages/hugepages-2048kB");
        tree.file(&format!("{folder}/nr_hugepages"), &format!("{total}\n"));
        tree.file(&format!("{folder}/free_hugepages"), &format!("{free}\n"));
    }
    let pools = Pool::all(&tree.0);
    assert_eq!(
        (pools.len(), pools[0].node, pools[1].node),
        (2, Some(0), Some(1))
    );
    // 64 MiB are 32 pages, of which two are free.
    let wanted = pools[0].wanted(Pages::Free(64 << 20));
    assert_eq!(wanted, 40);
    assert_eq!(
        pools[0].step(wanted).unwrap().to_string(),
        "echo 40 > /sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages"
    );
    assert_eq!(pools[0].step(10), None);
    assert_eq!(pools[1].wanted(Pages::Total(7)), 7);
    assert_eq!(pools[0].wanted(Pages::Free(1 << 20)), 10, "enough is free");
}
