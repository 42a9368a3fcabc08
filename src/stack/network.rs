//! What an address and a prefix length say about a network.

use core::net::Ipv4Addr;

use super::Interface4;
use crate::config::mask;

/// The directed broadcast address of a network, None for /31 and /32, which have none (RFC 3021).
#[must_use]
pub fn directed_broadcast(interface: Interface4) -> Option<Ipv4Addr> {
    let mask = mask(interface.prefix_len);
    (interface.prefix_len < 31).then(|| Ipv4Addr::from_bits(interface.address.to_bits() | !mask))
}

/// Whether `address` is the limited broadcast address or that of one of the networks of `interfaces`.
#[must_use]
pub fn is_broadcast(interfaces: &[Interface4], address: Ipv4Addr) -> bool {
    address.is_broadcast()
        || interfaces
            .iter()
            .any(|interface| directed_broadcast(*interface) == Some(address))
}
