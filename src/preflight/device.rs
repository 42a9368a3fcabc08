//! Is the port there, free, and fit; is an address of ours elsewhere.

use super::{Link, Machine, Net, Pci, Report};
use crate::config::{Config, PortChoice, Vdev};

/// PCI base class of network controllers (PCI Code and ID Assignment, 02h).
pub(super) const NETWORK_CLASS: u32 = 2;
/// Drivers that give a port to user space while the kernel keeps it.
pub(super) const SHARED_DRIVERS: [&str; 3] = ["mlx5_core", "mlx4_core", "mana"];
/// Drivers that give a port to user space.
const USER_DRIVERS: [&str; 3] = ["vfio-pci", "igb_uio", "uio_pci_generic"];

pub(super) fn check(config: &Config, machine: &Machine, report: &mut Report) {
    if let Some(Err(errno)) = &machine.net {
        report.warning(
            "rtnetlink",
            format!("the kernel's interfaces could not be asked: {errno}"),
            "",
        );
    }
    match &config.port {
        PortChoice::Bdf(bdf) => {
            if let Some(pci) = &machine.pci {
                check_pci(&bdf.to_string(), pci, config, machine.network(), report);
            }
        }
        PortChoice::Netdev(name) => {
            if let Some(net) = machine.network() {
                check_netdev(name, net, config, report);
            }
        }
        PortChoice::Vdev(Vdev::Eal(text)) => check_eal(text, machine, config, report),
        PortChoice::Vdev(Vdev::KnetUnix(args)) => {
            if !machine.socket_folder_writable {
                let what = format!(
                    "the folder of {} cannot be written to",
                    args.value("path").unwrap_or("")
                );
                report.error("interface.vdevs", what, "another path, or mkdir");
            }
        }
        PortChoice::Vdev(Vdev::KnetPair(_)) => {
            report.warning(
                "interface.vdevs",
                "knet_pair reaches nothing outside its own host",
                "for tests; knet_unix joins two hosts",
            );
        }
    }
}

fn check_pci(bdf: &str, pci: &Pci, config: &Config, net: Option<&Net>, report: &mut Report) {
    let key = "interface.bdf_nums";
    if !pci.present {
        report.error(
            key,
            format!("there is no PCI device {bdf}"),
            "lspci -D lists them",
        );
        return;
    }
    if let Some(class) = pci.class.filter(|class| class >> 16 != NETWORK_CLASS) {
        report.error(
            key,
            format!("{bdf} is no network device (PCI class {class:06x})"),
            "lspci -D | grep -i net",
        );
        return;
    }
    let bind = format!("modprobe vfio-pci; dpdk-devbind.py -b vfio-pci {bdf}");
    match pci.driver.as_deref() {
        None => report.error(key, format!("{bdf} is bound to no driver"), bind),
        Some(driver) if SHARED_DRIVERS.contains(&driver) => {
            report.info(
                key,
                format!("{bdf} stays with its kernel driver {driver}, which DPDK shares"),
                "",
            );
        }
        Some(driver) if USER_DRIVERS.contains(&driver) => {
            if driver == "vfio-pci" && !pci.iommu && !pci.unsafe_noiommu {
                let advice = "boot with intel_iommu=on (or amd_iommu), or modprobe vfio enable_unsafe_noiommu_mode=1";
                report.error(key, format!("{bdf} is in no IOMMU group"), advice);
            } else {
                report.info(key, format!("{bdf} is there and bound to {driver}"), "");
            }
        }
        Some(driver) => {
            let down = pci
                .interfaces
                .iter()
                .map(|name| format!("ip link set dev {name} down; "));
            let what = if pci.interfaces.is_empty() {
                format!("{bdf} is bound to the kernel driver {driver}")
            } else {
                format!(
                    "{bdf} is bound to the kernel driver {driver} as {}",
                    pci.interfaces.join(", ")
                )
            };
            report.error(key, what, format!("{}{bind}", down.collect::<String>()));
        }
    }
    let links = pci.interfaces.iter().filter_map(|name| net?.link(name));
    for link in links {
        check_mac(link, config, report);
    }
}

fn check_netdev(name: &str, net: &Net, config: &Config, report: &mut Report) {
    let key = "interface.netdev";
    let Some(link) = net.link(name) else {
        let names: Vec<&str> = net.links.iter().map(|link| link.name.as_str()).collect();
        report.error(
            key,
            format!("there is no interface {name} in this network namespace"),
            format!("one of {}", names.join(", ")),
        );
        return;
    };
    if link.loopback {
        report.error(
            key,
            format!("{name} is loopback, which stays on the kernel"),
            "a port to other hosts",
        );
        return;
    }
    // D4: the interface must be ours alone.
    let foreign = net
        .addresses
        .iter()
        .filter(|(index, address, _)| *index == link.index && !is_ours(config, *address));
    let mut reasons: Vec<String> = foreign
        .map(|(_, address, len)| format!("carries {address}/{len}"))
        .collect();
    if net.default_routes.contains(&link.index) {
        reasons.insert(0, "carries the default route".to_owned());
    }
    if reasons.is_empty() {
        report.info(key, format!("{name} is there and free"), "");
    } else if config.exclusive {
        report.warning(
            key,
            format!(
                "{name} {}: that stops working, as exclusive is true",
                reasons.join(", ")
            ),
            "",
        );
    } else {
        let drop = net
            .addresses
            .iter()
            .filter(|(index, ..)| *index == link.index);
        let drop: Vec<String> = drop
            .map(|(_, address, len)| format!("ip addr del {address}/{len} dev {name}"))
            .collect();
        let drop = if drop.is_empty() {
            format!("ip route del default dev {name}")
        } else {
            drop.join("; ")
        };
        let advice = format!("another interface; or {drop}; or \"exclusive\": true");
        report.error(key, format!("{name} {}", reasons.join(", ")), advice);
    }
    check_link(link, config, report);
}

/// A kernel interface behind one of DPDK's virtual devices.
fn check_eal(text: &str, machine: &Machine, config: &Config, report: &mut Report) {
    let behind = text
        .split(',')
        .skip(1)
        .find_map(|part| part.strip_prefix("iface="));
    let kernel = text.starts_with("net_af_packet") || text.starts_with("net_af_xdp");
    let Some(net) = machine.network().filter(|_| kernel) else {
        return;
    };
    let Some(name) = behind else {
        report.error(
            "interface.vdevs",
            format!("{text} names no interface"),
            "iface=NAME",
        );
        return;
    };
    let Some(link) = net.link(name) else {
        let names: Vec<&str> = net.links.iter().map(|link| link.name.as_str()).collect();
        let what = format!("there is no interface {name} in this network namespace");
        report.error(
            "interface.vdevs",
            what,
            format!("one of {}", names.join(", ")),
        );
        return;
    };
    if net.default_routes.contains(&link.index) {
        let what = format!("{name} carries the default route: the kernel answers on it as well");
        report.warning("interface.vdevs", what, "an interface of its own");
    }
    check_link(link, config, report);
}

fn check_link(link: &Link, config: &Config, report: &mut Report) {
    if !link.up {
        report.error(
            "interface",
            format!("{} is down", link.name),
            format!("ip link set dev {} up", link.name),
        );
    }
    if u32::from(config.network.mtu) > link.mtu {
        let what = format!(
            "{} is above the {} of {}",
            config.network.mtu, link.mtu, link.name
        );
        report.warning(
            "interface.mtu",
            what,
            format!("ip link set dev {} mtu {}", link.name, config.network.mtu),
        );
    }
    check_mac(link, config, report);
}

fn check_mac(link: &Link, config: &Config, report: &mut Report) {
    let (Some(wanted), Some(real)) = (config.network.mac, link.mac) else {
        return;
    };
    if wanted != real {
        let text: Vec<String> = real.iter().map(|byte| format!("{byte:02x}")).collect();
        let what = format!("not the MAC of {}", link.name);
        report.warning(
            "interface.mac",
            what,
            format!("{}, or leave it out", text.join(":")),
        );
    }
}

/// An address of ours on a kernel interface would be answered twice (design D4).
pub(super) fn check_addresses(config: &Config, machine: &Machine, report: &mut Report) {
    let Some(net) = machine.network() else { return };
    for (index, address, prefix_len) in &net.addresses {
        if is_ours(config, *address) {
            let name = net.name(*index).unwrap_or("?");
            let what = format!("{address} is on the kernel's interface {name}");
            report.error(
                "interface.ip",
                what,
                format!("ip addr del {address}/{prefix_len} dev {name}"),
            );
        }
    }
}

fn is_ours(config: &Config, address: core::net::Ipv4Addr) -> bool {
    config
        .network
        .addresses
        .iter()
        .any(|(ours, _)| *ours == address)
}
