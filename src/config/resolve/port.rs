//! Which port the file names: exactly one.

use super::Cross;
use crate::config::error::Fault;
use crate::config::port::{self, Bdf, PortChoice, Vdev};
use crate::config::raw;
use crate::config::reader::{Field, quoted};

impl Cross {
    pub(super) fn port(&mut self, raw: &raw::Interface) -> Option<PortChoice> {
        let given = [
            ("bdf_nums", !raw.bdf_nums.value.is_empty(), raw.bdf_nums.at),
            ("netdev", !raw.netdev.value.is_empty(), raw.netdev.at),
            ("vdevs", !raw.vdevs.value.is_empty(), raw.vdevs.at),
        ];
        let named: Vec<_> = given.iter().filter(|(_, given, _)| *given).collect();
        if named.is_empty() && !self.faults.iter().any(|fault| is_port_path(&fault.path)) {
            self.faults.push(Fault {
                path: "interface".to_owned(),
                at: None,
                what: "no port is named".to_owned(),
                advice:
                    "one of bdf_nums, netdev, vdevs; for example \"bdf_nums\": [\"0000:04:00.0\"]"
                        .to_owned(),
            });
        }
        if let [first, second, ..] = named.as_slice() {
            self.faults.push(Fault {
                path: format!("interface.{}", second.0),
                at: second.2,
                what: format!("the port is already named by {}", first.0),
                advice: "keep one of bdf_nums, netdev, vdevs".to_owned(),
            });
        }
        if raw.exclusive.value && raw.netdev.value.is_empty() {
            self.remarks
                .push(raw.exclusive.remark("has no effect without netdev"));
        }
        let bdf = self.bdf(raw);
        let vdev = self.vdev(&raw.vdevs.value);
        if !raw.netdev.value.is_empty() {
            if port::is_interface_name(&raw.netdev.value) {
                return Some(PortChoice::Netdev(raw.netdev.value.clone()));
            }
            let what = format!("{} is no interface name", quoted(&raw.netdev.value));
            self.faults.push(
                raw.netdev
                    .fault(what, "1 to 15 bytes without '/', ':' and spaces"),
            );
        }
        bdf.map(PortChoice::Bdf)
            .or_else(|| vdev.map(PortChoice::Vdev))
    }

    fn bdf(&mut self, raw: &raw::Interface) -> Option<Bdf> {
        let mut bdfs = Vec::new();
        for field in &raw.bdf_nums.value {
            match Bdf::parse(&field.value) {
                Some(bdf) => bdfs.push(bdf),
                None => {
                    let what = format!("{} is no PCI address", quoted(&field.value));
                    self.faults
                        .push(field.fault(what, "dddd:bb:dd.f, as lspci -D shows it"));
                }
            }
        }
        let allowed = if raw.user_bond_enable.value == 1 {
            2
        } else {
            1
        };
        if let Some(field) = raw.bdf_nums.value.get(allowed) {
            self.faults
                .push(field.fault("one port too many", format!("at most {allowed}")));
        }
        bdfs.first().copied()
    }

    fn vdev(&mut self, fields: &[Field<String>]) -> Option<Vdev> {
        if let Some(field) = fields.get(1) {
            self.faults
                .push(field.fault("one port too many", "one device"));
        }
        let field = fields.first()?;
        match Vdev::parse(&field.value) {
            Ok(vdev) => Some(vdev),
            Err(what) => {
                self.faults.push(field.fault(what, "name[,key=value]..."));
                None
            }
        }
    }
}

/// Whether a path is one of the keys that name the port: then "no port" would only repeat its fault.
fn is_port_path(path: &str) -> bool {
    ["interface.bdf_nums", "interface.netdev", "interface.vdevs"]
        .iter()
        .any(|key| path.starts_with(key))
}
