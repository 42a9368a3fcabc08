//! Addresses, gateway and routes: everything a neighbour of the port will see.

use core::net::Ipv4Addr;

use super::{Cross, number};
use crate::config::address;
use crate::config::raw;
use crate::config::reader::{Field, quoted};
use crate::config::settings::Network;

/// Addresses of ours at most (the stack's own limit).
const ADDRESSES_MAX: usize = 8;

impl Cross {
    pub(super) fn network(&mut self, raw: &raw::Interface, stack: &raw::ProtoStack) -> Network {
        let addresses = self.addresses(raw);
        let mut addresses6 = Vec::new();
        for field in &raw.ip6.value {
            match address::prefix6(&field.value) {
                Some(prefix) => addresses6.push(prefix),
                None => {
                    let what = format!(
                        "{} is no IPv6 address with a prefix length",
                        quoted(&field.value)
                    );
                    self.faults
                        .push(field.fault(what, "for example fd00::1/64"));
                }
            }
        }
        let gateway = self.gateway(&raw.gateway, &addresses);
        let mut routes = Vec::new();
        for field in &raw.routes.value {
            match address::route(&field.value) {
                Some(route) if self.is_next_hop(field, route.gateway, &addresses) => {
                    routes.push(route)
                }
                Some(_) => {}
                None => {
                    let what = format!("{} is no route", quoted(&field.value));
                    self.faults
                        .push(field.fault(what, "for example \"10.0.0.0/8 via 192.168.1.1\""));
                }
            }
        }
        let most: usize = number(&stack.max_route);
        if routes.len() > most {
            self.faults.push(raw.routes.fault(
                format!("{} routes", routes.len()),
                format!("max_route allows {most}"),
            ));
        }
        let mac = self.mac(&raw.mac);
        let vlan = (raw.vlan.value != 0).then(|| number(&raw.vlan));
        Network {
            mac,
            addresses,
            addresses6,
            gateway,
            routes,
            vlan,
            mtu: number(&raw.mtu),
        }
    }

    fn addresses(&mut self, raw: &raw::Interface) -> Vec<(Ipv4Addr, u8)> {
        let mut addresses = Vec::new();
        let mut ours = Vec::new();
        let netmask: Option<Ipv4Addr> = raw.netmask.value.parse().ok();
        let prefix_len = netmask.and_then(address::prefix_of);
        if prefix_len.is_none() {
            let what = format!("{} is no netmask", quoted(&raw.netmask.value));
            self.faults.push(
                raw.netmask
                    .fault(what, "ones, then zeros; for example 255.255.255.0"),
            );
        }
        if raw.ip.value.is_empty() {
            let missing = raw.addresses.value.is_empty()
                && !self.faults.iter().any(|f| f.path == "interface.ip");
            if missing {
                self.faults.push(
                    raw.ip
                        .fault("missing", "our IPv4 address, for example \"192.168.1.58\""),
                );
            }
        } else if let Ok(ip) = raw.ip.value.parse::<Ipv4Addr>() {
            ours.push((&raw.ip, (ip, prefix_len.unwrap_or(24))));
        } else {
            let what = format!("{} is no IPv4 address", quoted(&raw.ip.value));
            self.faults.push(
                raw.ip
                    .fault(what, "a.b.c.d; the prefix length goes to netmask"),
            );
        }
        for field in &raw.addresses.value {
            match address::prefix4(&field.value) {
                Some(prefix) => ours.push((field, prefix)),
                None => {
                    let what = format!(
                        "{} is no IPv4 address with a prefix length",
                        quoted(&field.value)
                    );
                    self.faults
                        .push(field.fault(what, "for example 192.168.1.59/24"));
                }
            }
        }
        for (field, (ip, prefix_len)) in ours {
            if let Some(why) = address::unfit(ip, prefix_len) {
                self.faults.push(field.fault(
                    format!("{ip}/{prefix_len} {why}"),
                    "a unicast address of the port",
                ));
            } else if addresses.iter().any(|(known, _)| *known == ip) {
                self.faults
                    .push(field.fault(format!("{ip} is given twice"), "keep one"));
            } else {
                addresses.push((ip, prefix_len));
            }
        }
        if addresses.len() > ADDRESSES_MAX {
            let what = format!("{} addresses", addresses.len());
            self.faults.push(
                raw.addresses
                    .fault(what, format!("at most {ADDRESSES_MAX} in all")),
            );
        }
        addresses
    }

    fn gateway(&mut self, field: &Field<String>, ours: &[(Ipv4Addr, u8)]) -> Option<Ipv4Addr> {
        if field.value.is_empty() {
            return None;
        }
        let Ok(gateway) = field.value.parse::<Ipv4Addr>() else {
            let what = format!("{} is no IPv4 address", quoted(&field.value));
            self.faults
                .push(field.fault(what, "a.b.c.d, or 0.0.0.0 for none"));
            return None;
        };
        (!gateway.is_unspecified() && self.is_next_hop(field, gateway, ours)).then_some(gateway)
    }

    /// Whether a next hop can be reached without another hop; else a fault (unless the addresses are faulty).
    fn is_next_hop(
        &mut self,
        field: &Field<String>,
        hop: Ipv4Addr,
        ours: &[(Ipv4Addr, u8)],
    ) -> bool {
        if ours.is_empty() {
            return false;
        }
        if ours.iter().any(|(ip, _)| *ip == hop) {
            self.faults.push(field.fault(
                format!("gateway {hop} is our own address"),
                "the router's address",
            ));
            return false;
        }
        let Some((ip, prefix_len)) = ours.iter().find(|ours| address::is_inside(hop, **ours))
        else {
            let nets: Vec<String> = ours.iter().map(|(ip, len)| format!("{ip}/{len}")).collect();
            let what = format!(
                "gateway {hop} is outside the netmask of {}",
                nets.join(", ")
            );
            self.faults.push(field.fault(
                what,
                "a neighbour's address, another netmask, or 0.0.0.0 for no gateway",
            ));
            return false;
        };
        if let Some(why) = address::unfit(hop, *prefix_len) {
            self.faults.push(field.fault(
                format!("gateway {hop} {why}"),
                format!("a neighbour of {ip}"),
            ));
            return false;
        }
        true
    }

    fn mac(&mut self, field: &Field<String>) -> Option<[u8; 6]> {
        if field.value.is_empty() {
            return None;
        }
        let what = match address::mac(&field.value) {
            None => format!("{} is no MAC address", quoted(&field.value)),
            // The lowest bit of the first byte marks a group address (IEEE 802).
            Some(mac) if mac[0] & 1 == 1 => format!("{} is a group address", field.value),
            Some([0, 0, 0, 0, 0, 0]) => "all zeros".to_owned(),
            Some(mac) => return Some(mac),
        };
        self.faults
            .push(field.fault(what, "the port's own, xx:xx:xx:xx:xx:xx, or leave it out"));
        None
    }
}
