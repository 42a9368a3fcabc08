//! Addresses, networks and routes out of text.

use core::net::{Ipv4Addr, Ipv6Addr};

/// A static route.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Route {
    /// Network address, host bits zero.
    pub destination: Ipv4Addr,
    /// Prefix length, 0 to 32.
    pub prefix_len: u8,
    /// Next hop on one of our networks.
    pub gateway: Ipv4Addr,
}

/// The netmask of a prefix length (at most 32) as bits.
#[must_use]
pub fn mask(prefix_len: u8) -> u32 {
    u32::MAX
        .checked_shl(32 - u32::from(prefix_len.min(32)))
        .unwrap_or(0)
}

/// Whether `address` lies in the network of `ours`.
#[must_use]
pub fn is_inside(address: Ipv4Addr, ours: (Ipv4Addr, u8)) -> bool {
    (address.to_bits() ^ ours.0.to_bits()) & mask(ours.1) == 0
}

/// The prefix length of a netmask, or None when its ones are not contiguous.
pub(super) fn prefix_of(netmask: Ipv4Addr) -> Option<u8> {
    let ones = netmask.to_bits().leading_ones();
    let prefix_len = u8::try_from(ones).ok()?;
    (mask(prefix_len) == netmask.to_bits()).then_some(prefix_len)
}

/// Reads `a.b.c.d/len`.
pub(super) fn prefix4(text: &str) -> Option<(Ipv4Addr, u8)> {
    let (address, len) = text.split_once('/')?;
    Some((address.parse().ok()?, prefix_len(len, 32)?))
}

/// Reads `addr/len` of IPv6.
pub(super) fn prefix6(text: &str) -> Option<(Ipv6Addr, u8)> {
    let (address, len) = text.split_once('/')?;
    Some((address.parse().ok()?, prefix_len(len, 128)?))
}

fn prefix_len(text: &str, max: u8) -> Option<u8> {
    let digits = text.chars().all(|c| c.is_ascii_digit());
    text.parse().ok().filter(|len| digits && *len <= max)
}

/// Reads `net/len via gateway`; the network may carry host bits, which are cleared.
pub(super) fn route(text: &str) -> Option<Route> {
    let mut words = text.split_ascii_whitespace();
    let (net, via, gateway) = (words.next()?, words.next()?, words.next()?);
    let (destination, prefix_len) = prefix4(net)?;
    let gateway = gateway.parse().ok()?;
    let destination = Ipv4Addr::from_bits(destination.to_bits() & mask(prefix_len));
    (via.eq_ignore_ascii_case("via") && words.next().is_none()).then_some(Route {
        destination,
        prefix_len,
        gateway,
    })
}

/// Why an address cannot be a host's own on the wire, or None when it can.
pub(super) fn unfit(address: Ipv4Addr, prefix_len: u8) -> Option<&'static str> {
    let host = address.to_bits() & !mask(prefix_len);
    if address.is_unspecified() || address.octets()[0] == 0 {
        Some("is not a host's address")
    } else if address.is_loopback() {
        Some("is loopback, which stays on the kernel")
    } else if address.is_multicast() || address.octets()[0] >= 240 {
        Some("is not a unicast address")
    } else if prefix_len < 31 && host == 0 {
        Some("is the address of its network, not of a host")
    } else if prefix_len < 31 && host == !mask(prefix_len) {
        Some("is the broadcast address of its network")
    } else {
        None
    }
}

/// Reads `xx:xx:xx:xx:xx:xx`.
pub(super) fn mac(text: &str) -> Option<[u8; 6]> {
    let mut mac = [0; 6];
    let mut parts = text.split(':');
    for byte in &mut mac {
        let part = parts
            .next()
            .filter(|part| part.len() == 2 && part.chars().all(|c| c.is_ascii_hexdigit()))?;
        *byte = u8::from_str_radix(part, 16).ok()?;
    }
    parts.next().is_none().then_some(mac)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn netmasks() {
        assert_eq!(prefix_of(Ipv4Addr::new(255, 255, 252, 0)), Some(22));
        assert_eq!(prefix_of(Ipv4Addr::BROADCAST), Some(32));
        assert_eq!(prefix_of(Ipv4Addr::UNSPECIFIED), Some(0));
        assert_eq!(prefix_of(Ipv4Addr::new(255, 0, 255, 0)), None);
    }

    #[test]
    fn inside_a_network() {
        let ours = (Ipv4Addr::new(10, 20, 30, 40), 22);
        assert!(is_inside(Ipv4Addr::new(10, 20, 28, 1), ours));
        assert!(!is_inside(Ipv4Addr::new(10, 20, 32, 1), ours));
        assert!(is_inside(
            Ipv4Addr::new(1, 2, 3, 4),
            (Ipv4Addr::new(9, 9, 9, 9), 0)
        ));
    }

    #[test]
    fn routes_and_macs() {
        let read = route("10.9.8.7/8  via 192.168.1.1").expect("good");
        assert_eq!(
            (read.destination, read.prefix_len),
            (Ipv4Addr::new(10, 0, 0, 0), 8)
        );
        for bad in [
            "10.0.0.0/8",
            "10.0.0.0/33 via 1.1.1.1",
            "10.0.0.0/8 by 1.1.1.1",
            "10.0.0.0/8 via 1.1.1.1 x",
        ] {
            assert_eq!(route(bad), None, "{bad}");
        }
        assert_eq!(mac("ac:dc:ca:00:00:01"), Some([0xac, 0xdc, 0xca, 0, 0, 1]));
        for bad in [
            "ac:dc:ca:xx:xx:xx",
            "ac:dc:ca:00:00",
            "ac:dc:ca:00:00:01:02",
            "ac-dc-ca-00-00-01",
            "+1:dc:ca:00:00:01",
        ] {
            assert_eq!(mac(bad), None, "{bad}");
        }
    }

    #[test]
    fn addresses_that_no_host_can_have() {
        assert!(unfit(Ipv4Addr::new(192, 168, 1, 0), 24).is_some());
        assert!(unfit(Ipv4Addr::new(192, 168, 1, 255), 24).is_some());
        assert!(unfit(Ipv4Addr::new(224, 0, 0, 1), 24).is_some());
        assert!(unfit(Ipv4Addr::new(127, 0, 0, 1), 8).is_some());
        assert!(unfit(Ipv4Addr::new(192, 168, 1, 0), 31).is_none());
        assert!(unfit(Ipv4Addr::new(192, 168, 1, 58), 24).is_none());
    }
}
