//! Two stacks on one wire in virtual time, with seeded faults.

use core::net::SocketAddrV4;
use core::time::Duration;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet};

use super::connect::unreachable;
use super::{Memory, Port, address, config};
use crate::device::{BURST_MAX, RxFrame, RxMeta, TxQueue};
use crate::id::{FlowId, ListenerId};
use crate::seeded::Seeded;
use crate::stack::sweep::REST_AFTER;
use crate::stack::{
    Change, Close, ConnectRequest, Facts, FlowOptions, FlowState, ListenRequest, Owner, Stack,
    StackConfig,
};
use crate::time::Instant;

/// One end.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) stack: Stack,
    pub(crate) memory: Memory,
    pub(crate) port: Port,
    pub(crate) changes: Vec<Change>,
}

impl Host {
    pub(crate) fn new(config: StackConfig) -> Self {
        Self {
            stack: Stack::new(config),
            memory: Memory::new(),
            port: Port::new(64),
            changes: Vec::new(),
        }
    }

    /// One turn of the loop; returns what was sent.
    pub(crate) fn turn(&mut self, now: Instant, frames: &mut [Vec<u8>]) -> Vec<Vec<u8>> {
        for chunk in frames.chunks_mut(BURST_MAX) {
            let mut burst: Vec<RxFrame<'_>> = chunk
                .iter_mut()
                .map(|bytes| RxFrame {
                    bytes,
                    meta: RxMeta::default(),
                })
                .collect();
            self.stack
                .ingress(now, &mut burst, &mut self.memory, &mut self.port);
        }
        self.stack.expire(now, &mut self.memory, &mut self.port);
        self.stack.transmit(now, &mut self.memory, &mut self.port);
        self.port.flush(now);
        let mut fresh = Vec::new();
        self.stack.take_changes(&mut fresh);
        let mut seen = HashSet::new();
        for change in &fresh {
            let (Change::Accepted { flow, .. }
            | Change::Flow { flow, .. }
            | Change::Gone { flow, .. }) = change;
            assert!(seen.insert(*flow), "{change:?} stands twice");
        }
        self.changes.append(&mut fresh);
        core::mem::take(&mut self.port.sent)
    }

    pub(crate) fn listen(&mut self, port: u16, backlog: u32) -> ListenerId {
        self.listen_with(port, backlog, FlowOptions::default())
    }

    pub(crate) fn listen_with(
        &mut self,
        port: u16,
        backlog: u32,
        options: FlowOptions,
    ) -> ListenerId {
        let local = SocketAddrV4::new(core::net::Ipv4Addr::UNSPECIFIED, port);
        self.stack
            .listen(&ListenRequest {
                local,
                backlog,
                owner: Owner(1),
                token: 77,
                options,
                shares: None,
            })
            .unwrap()
    }

    pub(crate) fn connect(&mut self, now: Instant, remote: SocketAddrV4) -> FlowId {
        self.connect_with(now, remote, FlowOptions::default())
    }

    pub(crate) fn connect_with(
        &mut self,
        now: Instant,
        remote: SocketAddrV4,
        options: FlowOptions,
    ) -> FlowId {
        let request = ConnectRequest {
            local_address: None,
            local_port: None,
            remote,
            owner: Owner(2),
            token: 5,
            options,
        };
        self.stack
            .connect(now, &request, &mut self.memory, &mut self.port)
            .unwrap()
            .0
    }

    /// The flows that were accepted since the last call; other changes stay.
    pub(crate) fn accept(&mut self) -> Vec<FlowId> {
        let mut flows = Vec::new();
        self.changes.retain(|change| match change {
            Change::Accepted { listener, flow, .. } => {
                flows.push((*listener, *flow));
                false
            }
            _ => true,
        });
        flows
            .into_iter()
            .map(|(listener, flow)| {
                self.stack.accepted(listener, flow);
                self.stack.set_token(flow, 9);
                flow
            })
            .collect()
    }

    pub(crate) fn facts(&self, flow: FlowId) -> Facts {
        self.stack.facts(flow).unwrap()
    }

    pub(crate) fn ring(&self, flow: FlowId) -> u32 {
        self.stack.table.look(flow.index).unwrap().1.held.ring
    }

    /// Reads everything that came in since stream offset `from`, as the program does, and says so.
    pub(crate) fn read(&mut self, now: Instant, flow: FlowId, from: u64) -> Vec<u8> {
        let total = self.facts(flow).rx_total;
        let mut bytes = vec![0; usize::try_from(total - from).unwrap()];
        self.memory.read(self.ring(flow), from, &mut bytes);
        self.stack.consumed(now, flow, total);
        bytes
    }
}

/// What the wire does to a frame, in parts of 10 000.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Faults {
    pub(crate) loss: usize,
    pub(crate) duplicate: usize,
    pub(crate) reorder: usize,
}

/// A frame on the wire: when it arrives, its number, the host it goes to, its bytes.
type UnderWay = (Instant, u64, u8, Vec<u8>);

/// Two hosts: `a` is host 1 and mostly serves, `b` is host 2.
#[derive(Debug)]
pub(crate) struct Pair {
    pub(crate) now: Instant,
    pub(crate) a: Host,
    pub(crate) b: Host,
    pub(crate) faults: Faults,
    pub(crate) delay: Duration,
    /// Nothing arrives at all.
    pub(crate) cut: bool,
    /// What `a` sends and is longer is lost, and a router says so.
    pub(crate) path_mtu: usize,
    random: Seeded,
    under_way: BinaryHeap<Reverse<UnderWay>>,
    number: u64,
}

impl Pair {
    pub(crate) fn new() -> Self {
        Self::with(config(1), config(2), 1)
    }

    pub(crate) fn with(a: StackConfig, b: StackConfig, seed: u64) -> Self {
        Self {
            now: Instant::from_millis(1000),
            a: Host::new(a),
            b: Host::new(b),
            faults: Faults::default(),
            delay: Duration::from_micros(100),
            cut: false,
            path_mtu: usize::MAX,
            random: Seeded::new(seed),
            under_way: BinaryHeap::new(),
            number: 0,
        }
    }

    fn put(&mut self, to: u8, frames: Vec<Vec<u8>>) {
        for frame in frames {
            if to == 2 && frame.len() > self.path_mtu.saturating_add(14) {
                let mtu = u16::try_from(self.path_mtu).unwrap();
                let told = unreachable(4, mtu, &frame[14..]);
                self.number += 1;
                self.under_way
                    .push(Reverse((self.now + self.delay, self.number, 1, told)));
                continue;
            }
            if self.cut || self.random.below(10_000) < self.faults.loss {
                continue;
            }
            let copies = 1 + usize::from(self.random.below(10_000) < self.faults.duplicate);
            for _ in 0..copies {
                let late = if self.random.below(10_000) < self.faults.reorder {
                    self.delay * 3
                } else {
                    Duration::ZERO
                };
                self.number += 1;
                self.under_way.push(Reverse((
                    self.now + self.delay + late,
                    self.number,
                    to,
                    frame.clone(),
                )));
            }
        }
    }

    /// One turn of both ends at the present time.
    pub(crate) fn turn(&mut self) {
        let (mut to_a, mut to_b) = (Vec::new(), Vec::new());
        while let Some(Reverse((at, ..))) = self.under_way.peek()
            && *at <= self.now
            && let Some(Reverse((_, _, to, frame))) = self.under_way.pop()
        {
            if to == 1 {
                to_a.push(frame)
            } else {
                to_b.push(frame)
            }
        }
        let from_a = self.a.turn(self.now, &mut to_a);
        let from_b = self.b.turn(self.now, &mut to_b);
        self.put(2, from_a);
        self.put(1, from_b);
    }

    /// When something happens next.
    pub(crate) fn next(&self) -> Option<Instant> {
        let wire = self.under_way.peek().map(|Reverse((at, ..))| *at);
        [wire, self.a.stack.next_timer(), self.b.stack.next_timer()]
            .into_iter()
            .flatten()
            .min()
    }

    /// As [`Pair::next`], but the sweep of idle memory, far away, is nothing that a transfer waits for.
    pub(crate) fn next_soon(&self) -> Option<Instant> {
        self.next().filter(|at| at.since(self.now) < REST_AFTER / 2)
    }

    /// Lets time run for `span`, from event to event.
    pub(crate) fn run(&mut self, span: Duration) {
        let end = self.now + span;
        loop {
            self.turn();
            match self.next() {
                Some(at) if at <= end => self.now = at.max(self.now + Duration::from_micros(1)),
                _ => break,
            }
            if self.now > end {
                break;
            }
        }
        self.now = end;
        self.turn();
    }

    /// Connects `b` to port 80 of `a`, which must listen, and returns both ends.
    pub(crate) fn join(&mut self) -> (FlowId, FlowId) {
        let b = self.b.connect(self.now, SocketAddrV4::new(address(1), 80));
        self.run(Duration::from_millis(5));
        let accepted = self.a.accept();
        assert_eq!(accepted.len(), 1, "{:?}", self.b.facts(b));
        assert_eq!(self.b.facts(b).state, FlowState::Established);
        (accepted[0], b)
    }

    /// Both ends let go.
    pub(crate) fn close(&mut self, a: FlowId, b: FlowId) {
        self.a.stack.close(self.now, a, Close::Graceful);
        self.b.stack.close(self.now, b, Close::Graceful);
    }
}
