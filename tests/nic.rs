//! `knetctl nic` on a machine made of files.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "in a test a surprise is a failure"
)]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::{Command, Output};

const BDF: &str = "0000:04:00.0";

struct Tree(PathBuf);

impl Tree {
    /// A port with a driver of the kernel, in an IOMMU group, and a node with hugepages.
    fn new(name: &str) -> Self {
        let root = std::env::temp_dir().join(format!("knet-nic-cli-{name}-{}", std::process::id()));
        let tree = Self(root);
        let device = format!("sys/bus/pci/devices/{BDF}");
        tree.file(&format!("{device}/class"), "0x020000\n");
        tree.file(&format!("{device}/numa_node"), "0\n");
        tree.file(&format!("{device}/net/eth4/ifindex"), "7\n");
        tree.file(&format!("{device}/driver_override"), "(null)\n");
        tree.file("sys/bus/pci/drivers_probe", "");
        tree.file("sys/bus/pci/drivers/ixgbe/unbind", "");
        tree.file("sys/bus/pci/drivers/vfio-pci/bind", "");
        tree.file(&format!("sys/kernel/iommu_groups/3/devices/{BDF}"), "");
        let folder = tree.0.join(&device);
        symlink("../../drivers/ixgbe", folder.join("driver")).unwrap();
        symlink(
            "../../../../kernel/iommu_groups/3",
            folder.join("iommu_group"),
        )
        .unwrap();
        let pages = "sys/devices/system/node/node0/hugepages/hugepages-2048kB";
        tree.file(&format!("{pages}/nr_hugepages"), "4\n");
        tree.file(&format!("{pages}/free_hugepages"), "1\n");
        tree
    }

    fn file(&self, path: &str, text: &str) {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn read(&self, path: &str) -> String {
        fs::read_to_string(self.0.join(path)).unwrap()
    }

    fn nic(&self, words: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_knetctl"));
        command.arg("nic").args(words).arg("--root").arg(&self.0);
        command.output().unwrap()
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn a_dry_run_shows_every_command_and_changes_nothing() {
    let tree = Tree::new("dry");
    let dry = tree.nic(&["bind", "eth4", "--dry-run"]);
    assert_eq!(dry.status.code(), Some(0), "{dry:?}");
    assert_eq!(
        out(&dry).lines().collect::<Vec<_>>(),
        [
            "ip link set dev eth4 down",
            "echo 0000:04:00.0 > /sys/bus/pci/devices/0000:04:00.0/driver/unbind",
            "echo vfio-pci > /sys/bus/pci/devices/0000:04:00.0/driver_override",
            "echo 0000:04:00.0 > /sys/bus/pci/drivers_probe",
        ]
    );
    assert_eq!(tree.read("sys/bus/pci/drivers_probe"), "");
    let json: serde_json::Value =
        serde_json::from_str(&out(&tree.nic(&["bind", BDF, "--dry-run", "--json"]))).unwrap();
    let commands: Vec<&str> = json["commands"]
        .as_array()
        .unwrap()
        .iter()
        .map(|command| command.as_str().unwrap())
        .collect();
    assert_eq!(commands, out(&dry).lines().collect::<Vec<_>>());
    assert_eq!(json["fault"], serde_json::Value::Null);
    let refused = tree.nic(&["bind", "eth9", "--json"]);
    assert_eq!(refused.status.code(), Some(1));
    let done = tree.nic(&["bind", BDF]);
    assert_eq!(out(&done), out(&dry), "what is done is what was shown");
    assert_eq!(
        tree.read("sys/bus/pci/drivers/ixgbe/unbind"),
        "0000:04:00.0\n"
    );
    assert_eq!(
        tree.read("sys/bus/pci/devices/0000:04:00.0/driver_override"),
        "vfio-pci\n"
    );
    assert_eq!(tree.read("sys/bus/pci/drivers_probe"), "0000:04:00.0\n");
}

#[test]
fn hugepages_are_reserved_where_the_config_wants_them() {
    let tree = Tree::new("pages");
    let conf = tree.0.join("conf");
    let text = r#"{"interface": {"bdf_nums": ["0000:04:00.0"], "ip": "10.0.0.1"}, "dpdk": {"socket_mem": "--socket-mem=20"}}"#;
    fs::write(&conf, text).unwrap();
    let done = tree.nic(&["hugepages", "--conf", conf.to_str().unwrap()]);
    assert_eq!(done.status.code(), Some(0), "{done:?}");
    // 10 pages are asked for and one is free.
    let pages = "sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages";
    assert_eq!(tree.read(pages), "13\n");
    let node = tree.nic(&["hugepages", "--pages", "1", "--node", "7"]);
    assert_eq!(node.status.code(), Some(1));
    let size = tree.nic(&["hugepages", "--pages", "1", "--size", "1G", "--port", BDF]);
    assert_eq!(size.status.code(), Some(1), "there is no pool of that size");
}

#[test]
fn the_list_says_what_is_there_and_what_is_missing() {
    let tree = Tree::new("list");
    let list = out(&tree.nic(&[]));
    assert!(
        list.contains("0000:04:00.0") && list.contains("ixgbe") && list.contains("eth4"),
        "{list}"
    );
    assert!(
        list.contains("hugepages of 2 MiB on node 0: 4, 1 free"),
        "{list}"
    );
    assert!(!list.contains("missing:"), "{list}");
    let json: serde_json::Value =
        serde_json::from_str(&out(&tree.nic(&["list", "--json"]))).unwrap();
    assert_eq!(json["ports"][0]["driver"], "ixgbe");
    assert_eq!(json["hugepages"][0]["total"], 4);
    let stranger = tree.nic(&["bind", "eth9"]);
    assert_eq!(stranger.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&stranger.stderr).contains("one of 0000:04:00.0"));
}
