//! The side that is measured: a stack with everything that it needs, and a program that answers.

use core::net::{Ipv4Addr, SocketAddrV4};
use core::time::Duration;

use knet::device::fault::FaultConfig;
use knet::device::pair::{PairDevice, pair};
use knet::device::{Device, RxQueue, TxQueue};
use knet::id::ListenerId;
use knet::stack::{
    Change, FlowMemory, FlowOptions, Interface4, ListenRequest, Owner, PortWalk, RxRing,
    SendBuffer, Stack, StackConfig,
};
use knet::time::Instant;

use crate::MESSAGE;
use crate::peer::{HOST_ADDRESS, HOST_PORT};

/// Bytes of a receive ring and of a send buffer: a page each, as an idle connection has.
const RING: usize = 4096;
/// Virtual time that a turn takes.
const TURN: Duration = Duration::from_micros(10);

/// Rings and send buffers, one page each. None is ever used again.
struct Pages {
    rings: core::slice::ChunksExactMut<'static, u8>,
    sends: core::slice::ChunksExactMut<'static, u8>,
    next: u32,
}

impl Pages {
    fn new(flows: usize) -> Self {
        let region = || {
            // The first page is as far into a page as the allocator likes.
            let bytes = vec![0_u8; (flows + 1) * RING].leak();
            let skip = bytes.as_ptr().align_offset(RING);
            bytes[skip..].chunks_exact_mut(RING)
        };
        Self {
            rings: region(),
            sends: region(),
            next: 0,
        }
    }
}

impl FlowMemory for Pages {
    fn take(&mut self, _: Owner, _: usize) -> Option<RxRing> {
        self.next += 1;
        Some(RxRing {
            bytes: self.rings.next()?,
            backed: RING,
            id: self.next,
        })
    }

    fn back(&mut self, _: Owner, _: u32, _: usize) -> bool {
        true
    }

    fn give_back(&mut self, _: Owner, _: RxRing) {}

    fn take_send(&mut self, _: Owner, _: usize) -> Option<SendBuffer> {
        Some(SendBuffer {
            bytes: self.sends.next()?,
            id: self.next,
        })
    }
}

/// The stack under test.
pub(crate) struct Host {
    stack: Stack,
    memory: Pages,
    rx: Box<dyn RxQueue>,
    tx: Box<dyn TxQueue>,
    listener: ListenerId,
    changes: Vec<Change>,
    now: Instant,
    peer: Option<PairDevice>,
}

impl Host {
    /// A stack for `flows` connections that listens.
    pub(crate) fn new(flows: usize) -> Self {
        let (mut port, peer) = pair(FaultConfig::none(), FaultConfig::none(), 1500);
        let mac = port.capabilities().mac;
        let (rx, tx) = port.queue_pair(0).expect("a new port has its queue");
        let mut stack = Stack::new(StackConfig {
            mac,
            mtu: 1500,
            vlan: None,
            addresses: vec![Interface4 {
                address: HOST_ADDRESS,
                prefix_len: 8,
            }],
            gateway: None,
            routes: Vec::new(),
            rx_checksum_offload: false,
            tx_checksum_offload: false,
            tso_bytes: 0,
            trust_checksum: false,
            max_flows: flows + 1,
            max_neighbors: 64,
            msl: Duration::from_secs(1),
            fin_timeout: Duration::from_secs(60),
            synack_retries: 5,
            syn_retries: 6,
            user_timeout: Duration::from_secs(924),
            orphan_timeout: Duration::from_secs(120),
            ephemeral_ports: (49_152, 65_535),
            tx_buffer_bytes: RING,
            walk: PortWalk::default(),
            secret: [9; 16],
        });
        let options = FlowOptions {
            nodelay: true,
            rx_bytes: u32::try_from(RING).unwrap(),
            ..FlowOptions::default()
        };
        let listener = stack
            .listen(&ListenRequest {
                shares: None,
                local: SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, HOST_PORT),
                backlog: 4096,
                owner: Owner(0),
                token: 1,
                options,
            })
            .expect("the port is free");
        Self {
            stack,
            memory: Pages::new(flows),
            rx,
            tx,
            listener,
            changes: Vec::new(),
            now: Instant::from_millis(1000),
            peer: Some(peer),
        }
    }

    /// The other end of the wire, once.
    pub(crate) fn take_peer(&mut self) -> PairDevice {
        self.peer.take().expect("it is taken once")
    }

    /// See [`Stack::prefetch_from`].
    pub(crate) fn prefetch(&mut self, on: bool) {
        self.stack.prefetch_from(if on { 0 } else { usize::MAX });
    }

    /// Bytes of tables a flow.
    pub(crate) fn table_bytes(&self) -> usize {
        Stack::table_bytes_per_flow()
    }

    /// One turn while connections are made.
    pub(crate) fn turn(&mut self) {
        self.now = self.now + TURN;
        receive(self);
        self.stack.take_changes(&mut self.changes);
        for change in self.changes.drain(..) {
            if let Change::Accepted { listener, flow, .. } = change {
                assert_eq!(listener, self.listener);
                self.stack.accepted(listener, flow);
                self.stack.set_token(flow, 2);
            }
        }
        send(self);
    }
}

fn receive(host: &mut Host) {
    let (stack, memory, tx) = (&mut host.stack, &mut host.memory, host.tx.as_mut());
    host.rx.rx_burst(host.now, &mut |frames| {
        stack.ingress(host.now, frames, memory, tx);
    });
    stack.expire(host.now, memory, tx);
}

fn send(host: &mut Host) {
    host.stack
        .transmit(host.now, &mut host.memory, host.tx.as_mut());
    host.tx.flush(host.now);
}

/// What is measured: a burst of requests is received, each is answered, the answers leave. Returns how many there were.
#[inline(never)]
pub(crate) fn serve_burst(host: &mut Host) -> usize {
    host.now = host.now + TURN;
    receive(host);
    host.stack.take_changes(&mut host.changes);
    let served = host.changes.len();
    for change in host.changes.drain(..) {
        let Change::Flow { flow, .. } = change else {
            continue;
        };
        let Some(facts) = host.stack.facts(flow) else {
            continue;
        };
        host.stack.consumed(host.now, flow, facts.rx_total);
        host.stack.send(host.now, flow, &[b'a'; MESSAGE]);
    }
    send(host);
    served
}
