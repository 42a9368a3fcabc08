//! ARP packets for Ethernet and IPv4 (RFC 826).

use core::net::Ipv4Addr;

use super::frame::{
    ETHERTYPE_ARP, ETHERTYPE_IPV4, EthernetHeader, MAC_BROADCAST, is_station, word_at,
};

/// Bytes of an ARP packet for Ethernet and IPv4.
pub const ARP_BYTES: usize = 28;

const OPERATION_REQUEST: u16 = 1;
const OPERATION_REPLY: u16 = 2;

/// An ARP packet and the station that its frame goes to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ArpFrame {
    /// Destination MAC address of the frame.
    pub destination: [u8; 6],
    /// A reply; else a request.
    pub reply: bool,
    /// Sender hardware address.
    pub sender_mac: [u8; 6],
    /// Sender protocol address.
    pub sender: Ipv4Addr,
    /// Target hardware address.
    pub target_mac: [u8; 6],
    /// Target protocol address.
    pub target: Ipv4Addr,
}

impl ArpFrame {
    /// Bytes of the frame.
    #[must_use]
    pub const fn frame_bytes(vlan: Option<u16>) -> usize {
        EthernetHeader::bytes_for(vlan) + ARP_BYTES
    }

    /// Writes the frame at the start of `out` and returns its length, or None when `out` is short.
    #[must_use = "None means that there is no frame"]
    pub fn emit(&self, vlan: Option<u16>, out: &mut [u8]) -> Option<usize> {
        let out = out.get_mut(..Self::frame_bytes(vlan))?;
        let link = EthernetHeader {
            destination: self.destination,
            source: self.sender_mac,
            vlan,
            ether_type: ETHERTYPE_ARP,
        };
        let offset = link.emit(out)?;
        let packet: &mut [u8; ARP_BYTES] = out.get_mut(offset..)?.first_chunk_mut()?;
        let (head, addresses) = packet.split_first_chunk_mut::<8>()?;
        let operation = if self.reply { 2 } else { 1 };
        *head = [0, 1, 8, 0, 6, 4, 0, operation];
        let (sender_mac, rest) = addresses.split_first_chunk_mut::<6>()?;
        let (sender, rest) = rest.split_first_chunk_mut::<4>()?;
        let (target_mac, target) = rest.split_first_chunk_mut::<6>()?;
        *sender_mac = self.sender_mac;
        *sender = self.sender.octets();
        *target_mac = self.target_mac;
        *target.first_chunk_mut::<4>()? = self.target.octets();
        Some(out.len())
    }

    /// Reads an ARP packet (the frame's payload); None when it is none for Ethernet and IPv4, or
    /// names a sender that is no station.
    #[must_use]
    pub fn parse(packet: &[u8]) -> Option<Self> {
        let packet: &[u8; ARP_BYTES] = packet.first_chunk()?;
        let (head, addresses) = packet.split_first_chunk::<8>()?;
        let [_, _, _, _, mac_len, address_len, ..] = *head;
        if word_at(head, 0)? != 1
            || word_at(head, 2)? != ETHERTYPE_IPV4
            || (mac_len, address_len) != (6, 4)
        {
            return None;
        }
        let reply = match word_at(head, 6)? {
            OPERATION_REQUEST => false,
            OPERATION_REPLY => true,
            _ => return None,
        };
        let (sender_mac, rest) = addresses.split_first_chunk::<6>()?;
        let (sender, rest) = rest.split_first_chunk::<4>()?;
        let (target_mac, target) = rest.split_first_chunk::<6>()?;
        let sender = Ipv4Addr::from(*sender);
        if !is_station(*sender_mac) || sender.is_broadcast() || sender.is_multicast() {
            return None;
        }
        Some(Self {
            destination: MAC_BROADCAST,
            reply,
            sender_mac: *sender_mac,
            sender,
            target_mac: *target_mac,
            target: Ipv4Addr::from(*target.first_chunk::<4>()?),
        })
    }
}

/// A request for `target`, to everybody or to the station that had the address.
#[must_use]
pub const fn request(
    mac: [u8; 6],
    sender: Ipv4Addr,
    target: Ipv4Addr,
    station: Option<[u8; 6]>,
) -> ArpFrame {
    let destination = match station {
        Some(station) => station,
        None => MAC_BROADCAST,
    };
    ArpFrame {
        destination,
        reply: false,
        sender_mac: mac,
        sender,
        target_mac: [0; 6],
        target,
    }
}

/// An announcement of our own address (RFC 5227 section 2.3).
#[must_use]
pub const fn announcement(mac: [u8; 6], address: Ipv4Addr) -> ArpFrame {
    request(mac, address, address, None)
}
