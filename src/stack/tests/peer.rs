//! A scripted peer: one host of ours against segments made by hand.

use core::net::SocketAddrV4;
use core::time::Duration;

use super::pair::Host;
use super::{address, config, mac};
use crate::device::RxMeta;
use crate::id::FlowId;
use crate::stack::demux::{Class, FlowKey, Rules, TcpFrame, classify};
use crate::stack::frame::{Checksums, ETHERTYPE_IPV4, EthernetHeader, Ipv4Repr, PROTOCOL_TCP};
use crate::stack::interface::seal;
use crate::stack::{FlowOptions, StackConfig};
use crate::time::Instant;

pub(crate) const FIN: u8 = 0x01;
pub(crate) const SYN: u8 = 0x02;
pub(crate) const RST: u8 = 0x04;
pub(crate) const PSH: u8 = 0x08;
pub(crate) const ACK: u8 = 0x10;
/// Where the peer begins to count.
pub(crate) const PEER_ISS: u32 = 5_000;
/// Where the peer's ports begin.
pub(crate) const PEER_PORT: u16 = 40_000;

/// A segment of the peer.
#[derive(Clone, Debug)]
pub(crate) struct Segment {
    pub(crate) port: u16,
    pub(crate) to: u16,
    pub(crate) flags: u8,
    pub(crate) seq: u32,
    pub(crate) ack: u32,
    pub(crate) window: u16,
    pub(crate) options: Vec<u8>,
    pub(crate) payload: Vec<u8>,
}

impl Segment {
    pub(crate) fn new(flags: u8, seq: u32, ack: u32) -> Self {
        Self {
            port: PEER_PORT,
            to: 80,
            flags,
            seq,
            ack,
            window: 60_000,
            options: Vec::new(),
            payload: Vec::new(),
        }
    }

    pub(crate) fn syn() -> Self {
        let options = vec![2, 4, 5, 180, 1, 3, 3, 7];
        Self {
            options,
            ..Self::new(SYN, PEER_ISS, 0)
        }
    }

    pub(crate) fn carrying(self, payload: &[u8]) -> Self {
        Self {
            payload: payload.to_vec(),
            ..self
        }
    }

    /// With a report of what it holds behind a hole (RFC 2018).
    pub(crate) fn holding(self, left: u32, right: u32) -> Self {
        let mut options = vec![1, 1, 5, 10];
        options.extend(left.to_be_bytes());
        options.extend(right.to_be_bytes());
        Self { options, ..self }
    }

    pub(crate) fn at_port(self, port: u16) -> Self {
        Self { port, ..self }
    }

    pub(crate) fn bytes(&self, to: u8, vlan: Option<u16>) -> Vec<u8> {
        let header = EthernetHeader {
            destination: mac(to),
            source: mac(2),
            vlan,
            ether_type: ETHERTYPE_IPV4,
        };
        let mut bytes = vec![0; EthernetHeader::bytes_for(vlan)];
        header.emit(&mut bytes).unwrap();
        let transport = 20 + self.options.len() + self.payload.len();
        let mut packet = vec![0; 20 + transport];
        let repr = Ipv4Repr {
            tos: 0,
            ttl: 64,
            protocol: PROTOCOL_TCP,
            source: address(2),
            destination: address(to),
        };
        repr.emit(transport, Checksums::Full, &mut packet).unwrap();
        let tcp = &mut packet[20..];
        tcp[..2].copy_from_slice(&self.port.to_be_bytes());
        tcp[2..4].copy_from_slice(&self.to.to_be_bytes());
        tcp[4..8].copy_from_slice(&self.seq.to_be_bytes());
        tcp[8..12].copy_from_slice(&self.ack.to_be_bytes());
        tcp[12] = u8::try_from((20 + self.options.len()) / 4 * 16).unwrap();
        tcp[13] = self.flags;
        tcp[14..16].copy_from_slice(&self.window.to_be_bytes());
        tcp[20..20 + self.options.len()].copy_from_slice(&self.options);
        tcp[20 + self.options.len()..].copy_from_slice(&self.payload);
        seal(&mut packet, false).unwrap();
        bytes.extend(packet);
        bytes
    }
}

/// A segment of ours.
#[derive(Clone, Debug)]
pub(crate) struct Heard {
    pub(crate) tcp: TcpFrame,
    pub(crate) payload: Vec<u8>,
    pub(crate) bytes: Vec<u8>,
}

impl Heard {
    pub(crate) fn is(&self, flags: u8) -> bool {
        self.tcp.flags.0 == flags
    }
}

/// One host of ours and the script's clock.
#[derive(Debug)]
pub(crate) struct Script {
    pub(crate) host: Host,
    pub(crate) now: Instant,
    pub(crate) vlan: Option<u16>,
    /// Frames that are no TCP for the peer.
    pub(crate) others: Vec<Vec<u8>>,
}

impl Script {
    pub(crate) fn new() -> Self {
        Self::with(config(1))
    }

    pub(crate) fn with(config: StackConfig) -> Self {
        let vlan = config.vlan;
        Self {
            host: Host::new(config),
            now: Instant::from_millis(500),
            vlan,
            others: Vec::new(),
        }
    }

    fn hear(&mut self, frames: Vec<Vec<u8>>) -> Vec<Heard> {
        let rules = Rules {
            mac: mac(2),
            vlan: self.vlan,
            addresses: config(2).addresses,
            trust_checksum: false,
        };
        let mut heard = Vec::new();
        for bytes in frames {
            match classify(&bytes, RxMeta::default(), &rules) {
                Class::Tcp(tcp) => {
                    let payload = bytes[tcp.payload..tcp.payload + tcp.payload_len].to_vec();
                    heard.push(Heard {
                        tcp,
                        payload,
                        bytes,
                    });
                }
                _ => self.others.push(bytes),
            }
        }
        heard
    }

    /// Sends segments in one burst and returns the answers of that turn.
    pub(crate) fn burst(&mut self, segments: &[Segment]) -> Vec<Heard> {
        let mut frames: Vec<Vec<u8>> = segments
            .iter()
            .map(|segment| segment.bytes(1, self.vlan))
            .collect();
        self.raw(&mut frames)
    }

    pub(crate) fn raw(&mut self, frames: &mut [Vec<u8>]) -> Vec<Heard> {
        let sent = self.host.turn(self.now, frames);
        self.hear(sent)
    }

    /// Sends one segment, which must have exactly one answer.
    pub(crate) fn ask(&mut self, segment: &Segment) -> Heard {
        let mut heard = self.burst(core::slice::from_ref(segment));
        assert_eq!(heard.len(), 1, "{heard:?}");
        heard.remove(0)
    }

    /// Sends one segment, which must have no answer.
    pub(crate) fn tell(&mut self, segment: &Segment) {
        let heard = self.burst(core::slice::from_ref(segment));
        assert!(heard.is_empty(), "{heard:?}");
    }

    /// Lets time run, from timer to timer, and returns what was sent and when.
    pub(crate) fn wait(&mut self, span: Duration) -> Vec<(Instant, Heard)> {
        let end = self.now + span;
        let mut all = Vec::new();
        loop {
            let sent = self.host.turn(self.now, &mut []);
            let now = self.now;
            all.extend(self.hear(sent).into_iter().map(|heard| (now, heard)));
            match self.host.stack.next_timer() {
                Some(at) if at <= end => self.now = at.max(self.now + Duration::from_micros(1)),
                _ => break,
            }
        }
        self.now = end;
        all
    }

    /// Completes a handshake from `port` and returns the flow and our ISS.
    pub(crate) fn open(&mut self, port: u16) -> (FlowId, u32) {
        let answer = self.ask(&Segment::syn().at_port(port));
        assert!(answer.is(SYN | ACK));
        assert_eq!(answer.tcp.ack, PEER_ISS + 1);
        self.tell(&Segment::new(ACK, PEER_ISS + 1, answer.tcp.seq + 1).at_port(port));
        let accepted = self.host.accept();
        assert_eq!(accepted.len(), 1);
        (accepted[0], answer.tcp.seq)
    }

    pub(crate) fn key(&self, port: u16) -> FlowKey {
        FlowKey {
            local: SocketAddrV4::new(address(1), 80),
            remote: SocketAddrV4::new(address(2), port),
        }
    }

    pub(crate) fn count(&self, name: &str) -> u64 {
        let mut found = None;
        self.host.stack.counters().for_each(|each, value| {
            if each == name {
                found = Some(value);
            }
        });
        found.unwrap()
    }

    pub(crate) fn listening(options: FlowOptions) -> Self {
        let mut script = Self::new();
        script.host.listen_with(80, 8, options);
        script
    }
}
