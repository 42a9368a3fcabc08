//! Which ports there are, and what the machine lacks to give one to DPDK.

use core::net::Ipv4Addr;
use std::fs;
use std::path::Path;

use super::super::device::{NETWORK_CLASS, SHARED_DRIVERS};
use super::super::machine::{Pci, names};
use super::super::netlink::Net;
use super::hugepages::Pool;
use crate::config::Bdf;

/// A network port.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Port {
    /// Its PCI address.
    pub bdf: Bdf,
    /// Vendor and device number, as lspci -n shows them.
    pub id: String,
    /// What /sys says of the function.
    pub pci: Pci,
    /// Other functions of its IOMMU group that are bound to a driver of the kernel: they hinder vfio.
    pub group_mates: Vec<String>,
    /// Its kernel interfaces, where the kernel has it.
    pub interfaces: Vec<Interface>,
}

/// A kernel interface of a port.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Its MAC address, as /sys shows it.
    pub mac: String,
    /// Whether there is a link; None when the interface is down or does not tell.
    pub link: Option<bool>,
    /// Megabits a second, where it tells.
    pub speed: Option<u32>,
    /// Its IPv4 addresses.
    pub addresses: Vec<(Ipv4Addr, u8)>,
    /// It carries the default route.
    pub default_route: bool,
}

impl Port {
    /// The driver, in a word.
    #[must_use]
    pub fn driver(&self) -> &str {
        self.pci.driver.as_deref().unwrap_or("none")
    }

    /// The interface that carries the default route.
    #[must_use]
    pub fn carries_default_route(&self) -> Option<&Interface> {
        self.interfaces.iter().find(|it| it.default_route)
    }

    /// DPDK shares it with its kernel driver: it is not bound.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        SHARED_DRIVERS.contains(&self.driver())
    }
}

/// All network ports below `root`, in the order of their addresses.
#[must_use]
pub fn ports(root: &Path, net: &Net) -> Vec<Port> {
    names(&root.join("sys/bus/pci/devices"))
        .iter()
        .filter_map(|name| Bdf::parse(name))
        .map(|bdf| port(root, bdf, net))
        .filter(|port| port.pci.class.map(|class| class >> 16) == Some(NETWORK_CLASS))
        .collect()
}

fn port(root: &Path, bdf: Bdf, net: &Net) -> Port {
    let folder = root.join("sys/bus/pci/devices").join(bdf.to_string());
    let id = |name: &str| {
        let text = fs::read_to_string(folder.join(name)).unwrap_or_default();
        text.trim().trim_start_matches("0x").to_owned()
    };
    let pci = Pci::read(root, bdf);
    let interfaces = pci
        .interfaces
        .iter()
        .map(|name| interface(root, name, net))
        .collect();
    let mates = names(&folder.join("iommu_group/devices"));
    Port {
        bdf,
        id: format!("{}:{}", id("vendor"), id("device")),
        group_mates: mates
            .iter()
            .filter_map(|name| Bdf::parse(name))
            .filter(|other| *other != bdf)
            .filter_map(|other| {
                let mate = Pci::read(root, other);
                let driver = mate.driver?;
                // A bridge of PCI Express takes no part (vfio_pci_is_intel_display and pcieport are let be by vfio).
                let counts = driver != "vfio-pci" && driver != "pcieport";
                counts.then(|| format!("{other} ({driver})"))
            })
            .collect(),
        pci,
        interfaces,
    }
}

fn interface(root: &Path, name: &str, net: &Net) -> Interface {
    let folder = root.join("sys/class/net").join(name);
    let read = |file: &str| fs::read_to_string(folder.join(file)).ok();
    let index = net.link(name).map(|link| link.index);
    Interface {
        name: name.to_owned(),
        mac: read("address").unwrap_or_default().trim().to_owned(),
        // Reading it of an interface that is down is an error.
        link: read("carrier").and_then(|text| match text.trim() {
            "1" => Some(true),
            "0" => Some(false),
            _ => None,
        }),
        speed: read("speed").and_then(|text| text.trim().parse().ok()),
        addresses: net
            .addresses
            .iter()
            .filter(|(at, ..)| Some(*at) == index)
            .map(|(_, address, len)| (*address, *len))
            .collect(),
        default_route: index.is_some_and(|index| net.default_routes.contains(&index)),
    }
}

/// What is missing to give a port to DPDK, each in a sentence.
#[must_use]
pub fn lacking(root: &Path, ports: &[Port]) -> Vec<String> {
    let mut lacking = Vec::new();
    if ports.is_empty() {
        lacking.push(
            "there is no network device on the PCI bus: try interface.netdev or interface.vdevs (docs/config.md)".to_owned(),
        );
    }
    let groups = !names(&root.join("sys/kernel/iommu_groups")).is_empty();
    let noiommu = ports.iter().any(|port| port.pci.unsafe_noiommu);
    if !groups && !noiommu && !ports.is_empty() {
        lacking.push(
            "the IOMMU is off or not there: boot with intel_iommu=on (Intel; AMD's is on by itself) and switch it on in the \
             firmware; in a virtual machine without one: knetctl nic bind --noiommu"
                .to_owned(),
        );
    }
    if !root.join("sys/bus/pci/drivers/vfio-pci").is_dir() && !ports.is_empty() {
        lacking.push("vfio-pci is not loaded: modprobe vfio-pci (nic bind does it)".to_owned());
    }
    if Pool::all(root).iter().all(|pool| pool.total == 0) {
        lacking.push(
            "no hugepages are reserved: knetctl nic hugepages (without them packet buffers lie in ordinary pages)".to_owned(),
        );
    }
    lacking
}
