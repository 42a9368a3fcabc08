//! Frames to us, made byte by byte.

use super::*;
use crate::stack::frame::{Checksums, Ipv4Repr};

pub(super) const US: [u8; 6] = [2, 0, 0, 0, 0, 1];
pub(super) const PEER: [u8; 6] = [2, 0, 0, 0, 0, 2];
pub(super) const OUR_IP: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
pub(super) const PEER_IP: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);

pub(super) fn rules() -> Rules {
    Rules {
        mac: US,
        vlan: None,
        addresses: vec![Interface4 {
            address: OUR_IP,
            prefix_len: 24,
        }],
        trust_checksum: false,
    }
}

/// A frame to us, with right checksums.
#[derive(Clone)]
pub(super) struct Made {
    pub(super) destination_mac: [u8; 6],
    pub(super) source_mac: [u8; 6],
    pub(super) vlan: Option<u16>,
    pub(super) source: Ipv4Addr,
    pub(super) destination: Ipv4Addr,
    pub(super) protocol: u8,
    pub(super) transport: Vec<u8>,
    pub(super) padding: usize,
}

impl Made {
    pub(super) fn tcp(flags: u8, options: &[u8], payload: &[u8]) -> Self {
        let offset = u8::try_from((20 + options.len()) / 4).unwrap() << 4;
        let mut transport = vec![
            0x9c, 0x40, 0x18, 0xeb, 1, 2, 3, 4, 5, 6, 7, 8, offset, flags, 0x20, 0, 0, 0, 0, 0,
        ];
        transport.extend_from_slice(options);
        transport.extend_from_slice(payload);
        Self {
            destination_mac: US,
            source_mac: PEER,
            vlan: None,
            source: PEER_IP,
            destination: OUR_IP,
            protocol: PROTOCOL_TCP,
            transport,
            padding: 0,
        }
    }

    pub(super) fn udp(payload: &[u8]) -> Self {
        let len = u16::try_from(8 + payload.len()).unwrap().to_be_bytes();
        let mut transport = vec![0, 53, 0, 54, len[0], len[1], 0, 0];
        transport.extend_from_slice(payload);
        Self {
            protocol: PROTOCOL_UDP,
            transport,
            ..Self::tcp(0, &[], &[])
        }
    }

    pub(super) fn icmp(payload: &[u8]) -> Self {
        let mut transport = vec![8, 0, 0, 0, 0, 1, 0, 2];
        transport.extend_from_slice(payload);
        Self {
            protocol: PROTOCOL_ICMP,
            transport,
            ..Self::tcp(0, &[], &[])
        }
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut transport = self.transport.clone();
        let (at, pseudo) = match self.protocol {
            PROTOCOL_TCP => (Some(16), true),
            PROTOCOL_UDP => (Some(6), true),
            PROTOCOL_ICMP => (Some(2), false),
            _ => (None, false),
        };
        if let Some(at) = at.filter(|at| at + 2 <= transport.len()) {
            let len = u16::try_from(transport.len()).unwrap();
            let mut total = checksum::sum(&transport);
            if pseudo {
                let header =
                    checksum::pseudo_header(self.source, self.destination, self.protocol, len);
                total = checksum::add(total, header);
            }
            put_word(&mut transport, at, !total).unwrap();
        }
        let link = EthernetHeader {
            destination: self.destination_mac,
            source: self.source_mac,
            vlan: self.vlan,
            ether_type: ETHERTYPE_IPV4,
        };
        let offset = EthernetHeader::bytes_for(self.vlan);
        let mut bytes = vec![0; offset + 20];
        link.emit(&mut bytes).unwrap();
        let repr = Ipv4Repr {
            tos: 0x28,
            ttl: 64,
            protocol: self.protocol,
            source: self.source,
            destination: self.destination,
        };
        repr.emit(transport.len(), Checksums::Full, &mut bytes[offset..])
            .unwrap();
        bytes.extend_from_slice(&transport);
        bytes.extend(core::iter::repeat_n(0xaa, self.padding));
        bytes
    }

    /// The frame with something changed, and checksums that are right all the same.
    pub(super) fn but(mut self, change: impl FnOnce(&mut Self)) -> Vec<u8> {
        change(&mut self);
        self.bytes()
    }

    pub(super) fn class(&self) -> Class {
        classify(&self.bytes(), RxMeta::default(), &rules())
    }
}

/// Inserts IPv4 options into an untagged frame and repairs the header.
pub(super) fn with_ip_options(mut bytes: Vec<u8>, options: &[u8]) -> Vec<u8> {
    assert_eq!(options.len() % 4, 0);
    bytes.splice(34..34, options.iter().copied());
    let header_bytes = 20 + options.len();
    bytes[14] = 0x40 | u8::try_from(header_bytes / 4).unwrap();
    let total = u16::try_from(bytes.len() - 14).unwrap();
    put_word(&mut bytes, 16, total).unwrap();
    put_word(&mut bytes, 24, 0).unwrap();
    let sum = checksum::checksum(&bytes[14..14 + header_bytes]);
    put_word(&mut bytes, 24, sum).unwrap();
    bytes
}

/// Changes bytes of the IPv4 header of an untagged frame and repairs its checksum.
pub(super) fn with_ip_byte(mut bytes: Vec<u8>, at: usize, value: u8) -> Vec<u8> {
    bytes[14 + at] = value;
    put_word(&mut bytes, 24, 0).unwrap();
    let sum = checksum::checksum(&bytes[14..34]);
    put_word(&mut bytes, 24, sum).unwrap();
    bytes
}

pub(super) fn wire(bytes: &[u8]) -> Class {
    classify(bytes, RxMeta::default(), &rules())
}
