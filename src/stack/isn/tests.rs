use core::net::{Ipv4Addr, SocketAddrV4};
use core::time::Duration;

use smoltcp::iface::{Config, Interface, SocketSet};
use smoltcp::phy::{
    Checksum, ChecksumCapabilities, Device, DeviceCapabilities, Medium, RxToken, TxToken,
};
use smoltcp::socket::tcp;
use smoltcp::time::Instant as Time;
use smoltcp::wire::{HardwareAddress, IpCidr, Ipv4Packet, TcpPacket};

use super::*;
use crate::seeded::Seeded;
use crate::stack::frame::{Checksums, Ipv4Repr, PROTOCOL_TCP};

const SERVER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);

fn key(client_port: u16) -> FlowKey {
    FlowKey {
        local: SocketAddrV4::new(SERVER, 6379),
        remote: SocketAddrV4::new(CLIENT, client_port),
    }
}

/// One packet in, the packets out.
struct Wire {
    received: Option<Vec<u8>>,
    sent: Vec<Vec<u8>>,
}

struct Received(Vec<u8>);
struct Sent<'a>(&'a mut Vec<Vec<u8>>);

impl RxToken for Received {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(&self.0)
    }
}

impl TxToken for Sent<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let mut packet = vec![0; len];
        let result = f(&mut packet);
        self.0.push(packet);
        result
    }
}

impl Device for Wire {
    type RxToken<'a> = Received;
    type TxToken<'a> = Sent<'a>;

    fn receive(&mut self, _: Time) -> Option<(Received, Sent<'_>)> {
        Some((Received(self.received.take()?), Sent(&mut self.sent)))
    }

    fn transmit(&mut self, _: Time) -> Option<Sent<'_>> {
        Some(Sent(&mut self.sent))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ip;
        capabilities.max_transmission_unit = 1500;
        capabilities.checksum = ChecksumCapabilities::default();
        capabilities.checksum.tcp = Checksum::None;
        capabilities.checksum.ipv4 = Checksum::None;
        capabilities
    }
}

fn syn() -> Vec<u8> {
    let segment = [
        0x9c, 0x40, 0x18, 0xeb, 0, 0, 0, 9, 0, 0, 0, 0, 0x50, 2, 0x20, 0, 0, 0, 0, 0,
    ];
    let repr = Ipv4Repr {
        tos: 0,
        ttl: 64,
        protocol: PROTOCOL_TCP,
        source: CLIENT,
        destination: SERVER,
    };
    let mut packet = vec![0; 20];
    repr.emit(segment.len(), Checksums::Full, &mut packet)
        .unwrap();
    packet.extend_from_slice(&segment);
    packet
}

/// The sequence number of the SYN-ACK that an `Interface` with this seed makes.
fn isn_of_smoltcp(seed: u64) -> u32 {
    let mut wire = Wire {
        received: Some(syn()),
        sent: Vec::new(),
    };
    let mut config = Config::new(HardwareAddress::Ip);
    config.random_seed = seed;
    let mut interface = Interface::new(config, &mut wire, Time::ZERO);
    interface.update_ip_addrs(|addresses| {
        addresses.push(IpCidr::new(SERVER.into(), 24)).unwrap();
    });
    let buffer = || tcp::SocketBuffer::new(vec![0; 256]);
    let mut socket = tcp::Socket::new(buffer(), buffer());
    socket.listen(6379).unwrap();
    let mut set = SocketSet::new(Vec::new());
    set.add(socket);
    interface.poll_ingress_single(Time::ZERO, &mut wire, &mut set);
    interface.poll_egress(Time::ZERO, &mut wire, &mut set);
    let packet = Ipv4Packet::new_checked(&wire.sent[0][..]).unwrap();
    let segment = TcpPacket::new_checked(packet.payload()).unwrap();
    assert!(segment.syn() && segment.ack());
    u32::from_be_bytes(segment.seq_number().0.to_be_bytes())
}

#[test]
fn smoltcp_gives_exactly_the_sequence_number_that_its_seed_was_made_for() {
    let mut random = Seeded::new(8);
    for isn in [0, 1, 0x7fff_ffff, 0x8000_0000, u32::MAX]
        .into_iter()
        .chain((0..500).map(|_| random.double()))
    {
        assert_eq!(isn_of_smoltcp(seed_for(isn)), isn, "isn {isn:#x}");
    }
}

#[test]
fn a_seed_whose_first_identification_would_be_zero_is_not_used() {
    // With the lowest bits zero, some numbers would make smoltcp draw once more.
    let mut random = Seeded::new(9);
    let isn = (0..2_000_000)
        .map(|_| random.double())
        .find(|isn| identification(step_back(u64::from(*isn) << OUTPUT_SHIFT)) == 0)
        .unwrap();
    let plain = step_back(step_back(u64::from(isn) << OUTPUT_SHIFT));
    assert_ne!(isn_of_smoltcp(plain), isn);
    assert_eq!(isn_of_smoltcp(seed_for(isn)), isn);
}

#[test]
fn the_clock_ticks_every_four_microseconds() {
    let secret = [7; 16];
    let start = Instant::from_micros(1_000);
    let first = isn(start, key(1), &secret);
    assert_eq!(
        isn(start + Duration::from_micros(3), key(1), &secret),
        first
    );
    assert_eq!(
        isn(start + Duration::from_micros(4), key(1), &secret),
        first.wrapping_add(1)
    );
    assert_eq!(
        isn(start + Duration::from_secs(1), key(1), &secret),
        first.wrapping_add(250_000)
    );
}

#[test]
fn another_port_address_or_secret_gives_another_number() {
    let now = Instant::ZERO;
    let first = isn(now, key(1), &[7; 16]);
    assert_ne!(isn(now, key(2), &[7; 16]), first);
    assert_ne!(isn(now, key(1), &[8; 16]), first);
    assert_ne!(isn(now, key(1).reversed(), &[7; 16]), first);
    let bound: std::collections::BTreeSet<u32> = (0..10_000)
        .map(|port| isn(now, key(port), &[7; 16]))
        .collect();
    assert!(bound.len() > 9_990, "{} different of 10000", bound.len());
}
