//! Routes: which station is next, and which of our addresses speaks (RFC 1122 section 3.3.1).

use core::net::Ipv4Addr;

use super::network;
use super::{Interface4, Route4};
use crate::config::mask;

/// Where packets to a network go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Route {
    network: u32,
    prefix_len: u8,
    /// None: the destination is on the link.
    gateway: Option<Ipv4Addr>,
    source: Ipv4Addr,
}

/// The routes of one stack, longest prefix first.
#[derive(Clone, Debug)]
pub struct RouteTable {
    routes: Vec<Route>,
    addresses: Vec<Interface4>,
}

impl RouteTable {
    /// Makes the table. A gateway that is on none of our networks cannot be reached, and its route
    /// is left out; [`RouteTable::unreachable_gateway`] finds it beforehand.
    #[must_use]
    pub fn new(addresses: &[Interface4], routes: &[Route4], gateway: Option<Ipv4Addr>) -> Self {
        let mut table = Vec::with_capacity(addresses.len() + routes.len() + 1);
        for interface in addresses {
            table.push(Route {
                network: interface.address.to_bits() & mask(interface.prefix_len),
                prefix_len: interface.prefix_len,
                gateway: None,
                source: interface.address,
            });
        }
        let default = gateway.map(|gateway| Route4 {
            destination: Ipv4Addr::UNSPECIFIED,
            prefix_len: 0,
            gateway,
        });
        for route in routes.iter().copied().chain(default) {
            if let Some(source) = on_link(addresses, route.gateway) {
                table.push(Route {
                    network: route.destination.to_bits() & mask(route.prefix_len),
                    prefix_len: route.prefix_len,
                    gateway: Some(route.gateway),
                    source,
                });
            }
        }
        // Stable, so that of equal prefixes the link goes before a gateway, and what was configured
        // first wins.
        table.sort_by_key(|route| core::cmp::Reverse(route.prefix_len));
        Self {
            routes: table,
            addresses: addresses.to_vec(),
        }
    }

    /// The first gateway that is on none of our networks, which a caller should report.
    #[must_use]
    pub fn unreachable_gateway(
        addresses: &[Interface4],
        routes: &[Route4],
        gateway: Option<Ipv4Addr>,
    ) -> Option<Ipv4Addr> {
        let gateways = routes.iter().map(|route| route.gateway).chain(gateway);
        gateways
            .into_iter()
            .find(|gateway| on_link(addresses, *gateway).is_none())
    }

    /// (Next hop, source address) towards `destination`; None when there is no route (ENETUNREACH)
    /// or when a packet must not go there: broadcast, multicast, loopback and reserved addresses.
    /// Our own address is its own next hop and source.
    #[must_use]
    pub fn next_hop(&self, destination: Ipv4Addr) -> Option<(Ipv4Addr, Ipv4Addr)> {
        if self
            .addresses
            .iter()
            .any(|interface| interface.address == destination)
        {
            return Some((destination, destination));
        }
        let [first, ..] = destination.octets();
        if first == 0 || first == 127 || first >= 224 || self.is_broadcast(destination) {
            return None;
        }
        let bits = destination.to_bits();
        let route = self
            .routes
            .iter()
            .find(|route| bits & mask(route.prefix_len) == route.network)?;
        Some((route.gateway.unwrap_or(destination), route.source))
    }

    /// Whether `address` is the limited broadcast address or that of one of our networks.
    #[must_use]
    pub fn is_broadcast(&self, address: Ipv4Addr) -> bool {
        network::is_broadcast(&self.addresses, address)
    }
}

/// Our address on the network that `station` is on: the one with the longest prefix.
fn on_link(addresses: &[Interface4], station: Ipv4Addr) -> Option<Ipv4Addr> {
    let differing = |interface: &Interface4| interface.address.to_bits() ^ station.to_bits();
    addresses
        .iter()
        .filter(|interface| interface.address != station)
        .filter(|interface| differing(interface) & mask(interface.prefix_len) == 0)
        .max_by_key(|interface| interface.prefix_len)
        .map(|interface| interface.address)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seeded::Seeded;

    fn ip(text: &str) -> Ipv4Addr {
        text.parse().unwrap()
    }

    fn interface(address: &str, prefix_len: u8) -> Interface4 {
        Interface4 {
            address: ip(address),
            prefix_len,
        }
    }

    fn route(destination: &str, prefix_len: u8, gateway: &str) -> Route4 {
        Route4 {
            destination: ip(destination),
            prefix_len,
            gateway: ip(gateway),
        }
    }

    fn table() -> RouteTable {
        RouteTable::new(
            &[interface("10.77.0.1", 24), interface("192.168.1.58", 16)],
            &[
                route("172.16.0.0", 12, "10.77.0.200"),
                route("172.16.5.7", 16, "10.77.0.201"),
                route("9.9.9.9", 32, "192.168.3.3"),
                route("8.0.0.0", 8, "1.2.3.4"),
            ],
            Some(ip("10.77.0.254")),
        )
    }

    #[test]
    fn the_longest_prefix_wins() {
        let cases = [
            ("10.77.0.2", Some(("10.77.0.2", "10.77.0.1"))),
            ("192.168.200.1", Some(("192.168.200.1", "192.168.1.58"))),
            ("172.20.1.1", Some(("10.77.0.200", "10.77.0.1"))),
            ("172.16.1.1", Some(("10.77.0.201", "10.77.0.1"))),
            ("9.9.9.9", Some(("192.168.3.3", "192.168.1.58"))),
            ("9.9.9.8", Some(("10.77.0.254", "10.77.0.1"))),
            // Its gateway is on no network of ours, so the default route serves.
            ("8.8.8.8", Some(("10.77.0.254", "10.77.0.1"))),
            ("10.77.0.1", Some(("10.77.0.1", "10.77.0.1"))),
            ("10.77.0.255", None),
            ("192.168.255.255", None),
            ("255.255.255.255", None),
            ("224.0.0.1", None),
            ("127.0.0.1", None),
            ("0.0.0.0", None),
        ];
        for (destination, expected) in cases {
            let expected = expected.map(|(hop, source)| (ip(hop), ip(source)));
            assert_eq!(table().next_hop(ip(destination)), expected, "{destination}");
        }
    }

    #[test]
    fn without_a_gateway_only_the_link_is_reached() {
        let table = RouteTable::new(&[interface("10.77.0.1", 31)], &[], None);
        assert_eq!(
            table.next_hop(ip("10.77.0.0")),
            Some((ip("10.77.0.0"), ip("10.77.0.1")))
        );
        assert_eq!(table.next_hop(ip("10.77.0.2")), None);
        let host = RouteTable::new(&[interface("10.77.0.1", 32)], &[], Some(ip("10.77.0.2")));
        assert_eq!(host.next_hop(ip("8.8.8.8")), None);
    }

    #[test]
    fn a_gateway_outside_our_networks_is_found() {
        let ours = [interface("10.77.0.1", 24)];
        let find = |routes: &[Route4], gateway: Option<&str>| {
            RouteTable::unreachable_gateway(&ours, routes, gateway.map(ip))
        };
        assert_eq!(find(&[], Some("10.77.0.9")), None);
        assert_eq!(find(&[], Some("10.78.0.9")), Some(ip("10.78.0.9")));
        assert_eq!(find(&[], Some("10.77.0.1")), Some(ip("10.77.0.1")));
        assert_eq!(
            find(&[route("1.0.0.0", 8, "2.2.2.2")], None),
            Some(ip("2.2.2.2"))
        );
    }

    #[test]
    fn broadcast_addresses_are_known() {
        for (address, broadcast) in [
            ("10.77.0.255", true),
            ("255.255.255.255", true),
            ("10.77.1.255", false),
        ] {
            assert_eq!(table().is_broadcast(ip(address)), broadcast, "{address}");
        }
    }

    #[test]
    fn random_tables_agree_with_a_plain_search() {
        let mut random = Seeded::new(10);
        for _ in 0..500 {
            let ours = [interface("10.0.0.1", 8)];
            let gateway = || ip("10.9.9.9");
            let routes: Vec<Route4> = (0..random.below(20))
                .map(|at| Route4 {
                    destination: Ipv4Addr::from_bits(random.double() & 0x3fff_ffff),
                    prefix_len: u8::try_from(random.below(33)).unwrap(),
                    gateway: Ipv4Addr::from_bits(gateway().to_bits() + u32::try_from(at).unwrap()),
                })
                .collect();
            let table = RouteTable::new(&ours, &routes, None);
            for _ in 0..50 {
                let to = Ipv4Addr::from_bits((random.double() & 0x3fff_ffff) | 0x1000_0000);
                let covers = |network: Ipv4Addr, len: u8| {
                    (network.to_bits() ^ to.to_bits()) & mask(len) == 0
                };
                let longest = routes
                    .iter()
                    .filter(|route| covers(route.destination, route.prefix_len))
                    .map(|route| route.prefix_len)
                    .max();
                let found = table.next_hop(to).map(|(hop, _)| hop);
                match longest {
                    Some(len) => assert!(routes.iter().any(|route| {
                        route.prefix_len == len
                            && covers(route.destination, len)
                            && Some(route.gateway) == found
                    })),
                    None => assert_eq!(found, None),
                }
            }
        }
    }
}
