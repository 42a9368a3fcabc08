//! What the port's driver asks of the process that opens it.

use super::{Machine, Report};
use crate::config::{Config, Mode, PortChoice, Vdev};

/// linux/capability.h
const NET_ADMIN: (u32, &str) = (12, "CAP_NET_ADMIN");
const NET_RAW: (u32, &str) = (13, "CAP_NET_RAW");
const SYS_ADMIN: (u32, &str) = (21, "CAP_SYS_ADMIN");

pub(super) fn check(config: &Config, machine: &Machine, report: &mut Report) {
    // With mode 1 the port is opened by the system's host.
    if config.mode == Mode::Shared {
        return;
    }
    let needed: &[(u32, &str)] = match &config.port {
        PortChoice::Netdev(_) => &[NET_RAW, NET_ADMIN],
        PortChoice::Vdev(Vdev::Eal(text)) if text.starts_with("net_af_packet") => &[NET_RAW],
        PortChoice::Vdev(Vdev::Eal(text)) if text.starts_with("net_af_xdp") => {
            &[NET_RAW, NET_ADMIN, SYS_ADMIN]
        }
        PortChoice::Vdev(Vdev::Eal(text)) if text.starts_with("net_tap") => &[NET_ADMIN],
        // A vfio group belongs to a user, and no capability is asked for; without an IOMMU it is.
        PortChoice::Bdf(_)
            if machine
                .pci
                .as_ref()
                .is_some_and(|pci| !pci.iommu && pci.present) =>
        {
            &[(17, "CAP_SYS_RAWIO")]
        }
        _ => &[],
    };
    let missing: Vec<&str> = needed
        .iter()
        .filter(|(number, _)| !machine.can(*number))
        .map(|(_, name)| *name)
        .collect();
    if !missing.is_empty() {
        let what = format!("{} missing to open {}", missing.join(", "), config.port);
        report.error(
            "privileges",
            what,
            "start as root, or use the service (common.mode 1)",
        );
    }
}
