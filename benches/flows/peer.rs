//! The side that is not measured: made of one frame that is written over and over.

use core::net::Ipv4Addr;
use std::array::from_fn;

use knet::device::{Device, RxQueue, TxMeta, TxQueue, pair::PairDevice};
use knet::stack::checksum;
use knet::time::Instant;

use crate::host::Host;
use crate::{BURST, MESSAGE};

/// Where the host listens.
pub(crate) const HOST_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
/// See [`HOST_ADDRESS`].
pub(crate) const HOST_PORT: u16 = 80;
/// The first peer's address; each has eight ports.
const FIRST_ADDRESS: u32 = 10 << 24 | 128 << 16;
const PORTS: u32 = 8;
const FIRST_PORT: u16 = 2000;
const ISS: u32 = 5000;
const HEADERS: usize = 54;
const SYN: u8 = 2;
const ACK: u8 = 16;
const PSH: u8 = 8;

/// Numbers of the next segment of a flow.
#[derive(Clone, Copy, Default)]
struct Next {
    seq: u32,
    ack: u32,
}

/// All clients.
pub(crate) struct Peer {
    rx: Box<dyn RxQueue>,
    tx: Box<dyn TxQueue>,
    mac: [u8; 6],
    host_mac: [u8; 6],
    next: Vec<Next>,
    /// Every flow once, in random order.
    order: Vec<u32>,
    at: usize,
}

impl Peer {
    pub(crate) fn new(flows: usize, mut port: PairDevice) -> Self {
        let mac = port.capabilities().mac;
        let (rx, tx) = port.queue_pair(0).expect("a new port has its queue");
        let mut order: Vec<u32> = (0..u32::try_from(flows).unwrap()).collect();
        shuffle(&mut order);
        Self {
            rx,
            tx,
            mac,
            host_mac: [2, 0, 0, 0, 0, 0x0a],
            next: vec![Next::default(); flows],
            order,
            at: 0,
        }
    }

    /// Makes every connection.
    pub(crate) fn open_all(&mut self, host: &mut Host) {
        let flows: Vec<u32> = (0..u32::try_from(self.next.len()).unwrap()).collect();
        for chunk in flows.chunks(BURST) {
            for flow in chunk {
                self.next[*flow as usize] = Next { seq: ISS, ack: 0 };
                self.send(*flow, SYN, 0);
            }
            self.tx.flush(Instant::ZERO);
            host.turn();
            let mut heard = 0;
            let next = &mut self.next;
            self.rx.rx_burst(Instant::ZERO, &mut |frames| {
                for frame in frames {
                    assert_eq!(frame.bytes[47], SYN | ACK);
                    let flow = flow_of(frame.bytes);
                    let seq = u32::from_be_bytes(from_fn(|at| frame.bytes[38 + at]));
                    next[flow as usize] = Next {
                        seq: ISS + 1,
                        ack: seq.wrapping_add(1),
                    };
                    heard += 1;
                }
            });
            assert_eq!(heard, chunk.len(), "a SYN has no answer");
            for flow in chunk {
                self.send(*flow, ACK, 0);
            }
            self.tx.flush(Instant::ZERO);
            host.turn();
        }
    }

    /// Sends a request on each of the next `count` flows.
    pub(crate) fn ask(&mut self, count: usize) {
        for _ in 0..count {
            let flow = self.order[self.at];
            self.at = (self.at + 1) % self.order.len();
            self.send(flow, PSH | ACK, MESSAGE);
            let next = &mut self.next[flow as usize];
            let bytes = u32::try_from(MESSAGE).unwrap();
            next.seq = next.seq.wrapping_add(bytes);
            next.ack = next.ack.wrapping_add(bytes);
        }
        self.tx.flush(Instant::ZERO);
    }

    /// Takes `count` answers.
    pub(crate) fn hear(&mut self, count: usize) {
        let mut heard = 0;
        while self.rx.rx_burst(Instant::ZERO, &mut |frames| {
            for frame in frames {
                assert_eq!(frame.bytes.len(), HEADERS + MESSAGE, "no answer");
                heard += 1;
            }
        }) > 0
        {}
        assert_eq!(heard, count, "one frame an answer");
    }

    fn send(&mut self, flow: u32, flags: u8, payload: usize) {
        let Next { seq, ack } = self.next[flow as usize];
        let frame = self.tx.alloc(HEADERS + payload).expect("room for a burst");
        let source = Ipv4Addr::from(FIRST_ADDRESS + flow / PORTS);
        frame[..6].copy_from_slice(&self.host_mac);
        frame[6..12].copy_from_slice(&self.mac);
        frame[12..16].copy_from_slice(&[8, 0, 0x45, 0]);
        let total = u16::try_from(40 + payload).unwrap();
        frame[16..18].copy_from_slice(&total.to_be_bytes());
        frame[18..26].copy_from_slice(&[0, 0, 0x40, 0, 64, 6, 0, 0]);
        frame[26..30].copy_from_slice(&source.octets());
        frame[30..34].copy_from_slice(&HOST_ADDRESS.octets());
        let port = FIRST_PORT + u16::try_from(flow % PORTS).unwrap();
        frame[34..36].copy_from_slice(&port.to_be_bytes());
        frame[36..38].copy_from_slice(&HOST_PORT.to_be_bytes());
        frame[38..42].copy_from_slice(&seq.to_be_bytes());
        frame[42..46].copy_from_slice(&ack.to_be_bytes());
        frame[46..54].copy_from_slice(&[0x50, flags, 0xf0, 0, 0, 0, 0, 0]);
        frame[54..].fill(b'q');
        let header = checksum::checksum(&frame[14..34]);
        frame[24..26].copy_from_slice(&header.to_be_bytes());
        let pseudo = checksum::pseudo_header(source, HOST_ADDRESS, 6, total - 20);
        let segment = !checksum::add(pseudo, checksum::sum(&frame[34..]));
        frame[50..52].copy_from_slice(&segment.to_be_bytes());
        self.tx.commit(HEADERS + payload, TxMeta::default());
    }
}

/// Whose answer a frame is.
fn flow_of(frame: &[u8]) -> u32 {
    let address = u32::from_be_bytes(from_fn(|at| frame[30 + at]));
    let port = u16::from_be_bytes(from_fn(|at| frame[36 + at]));
    (address - FIRST_ADDRESS) * PORTS + u32::from(port - FIRST_PORT)
}

/// Fisher and Yates, with a generator that repeats (xorshift64).
fn shuffle(order: &mut [u32]) {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for last in (1..order.len()).rev() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let other = usize::try_from(state % (last as u64 + 1)).unwrap();
        order.swap(last, other);
    }
}
