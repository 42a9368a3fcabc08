//! Tens of thousands of connections that end in one instant, at ports whose rings are much smaller than that.

use core::net::SocketAddrV4;
use core::time::Duration;
use std::collections::{HashMap, VecDeque};

use super::pair::Host;
use super::{address, config};
use crate::device::BURST_MAX;
use crate::id::FlowId;
use crate::stack::{Change, Close, FlowOptions, StackConfig};
use crate::time::Instant;

/// Frames that wait at a port; what comes when it is full is lost.
const RING: usize = 1_024;
/// From one burst to the next.
const TURN: Duration = Duration::from_micros(50);
/// So long it may take: less than what three time-outs take that know no round trip.
const PATIENCE: Duration = Duration::from_secs(5);
/// Listeners, so that more connections than one has ports can be made.
const LISTENERS: u16 = 2;

/// Two hosts whose turns take one burst each, with full rings between them.
#[derive(Debug)]
struct Crowd {
    now: Instant,
    a: Host,
    b: Host,
    to_a: VecDeque<Vec<u8>>,
    to_b: VecDeque<Vec<u8>>,
    lost: usize,
    sent: usize,
}

fn crowded(host: u8, flows: usize) -> StackConfig {
    StackConfig {
        max_flows: flows,
        tx_buffer_bytes: 4096,
        ephemeral_ports: (1024, 65_535),
        msl: Duration::from_secs(1),
        ..config(host)
    }
}

fn small() -> FlowOptions {
    FlowOptions {
        rx_bytes: 4096,
        nodelay: true,
        ..FlowOptions::default()
    }
}

impl Crowd {
    fn new(flows: usize) -> Self {
        let mut crowd = Self {
            now: Instant::from_millis(1000),
            a: Host::new(crowded(1, flows)),
            b: Host::new(crowded(2, flows)),
            to_a: VecDeque::new(),
            to_b: VecDeque::new(),
            lost: 0,
            sent: 0,
        };
        for listener in 0..LISTENERS {
            crowd.a.listen_with(80 + listener, 4096, small());
        }
        crowd
    }

    fn turn(&mut self) {
        self.now = self.now + TURN;
        let burst = |ring: &mut VecDeque<Vec<u8>>| -> Vec<Vec<u8>> {
            ring.drain(..ring.len().min(BURST_MAX)).collect()
        };
        let from_a = self.a.turn(self.now, &mut burst(&mut self.to_a));
        let from_b = self.b.turn(self.now, &mut burst(&mut self.to_b));
        for (ring, frames) in [(&mut self.to_b, from_a), (&mut self.to_a, from_b)] {
            self.sent += frames.len();
            for frame in frames {
                if ring.len() < RING {
                    ring.push_back(frame);
                } else {
                    self.lost += 1;
                }
            }
        }
    }

    fn join(&mut self, count: usize) -> Vec<(FlowId, FlowId)> {
        let mut clients: HashMap<_, _> = HashMap::new();
        let mut ends = Vec::new();
        let mut number = 0;
        while ends.len() < count {
            if number < count && number - ends.len() < 256 {
                let port = 80 + u16::try_from(number % usize::from(LISTENERS)).unwrap();
                let remote = SocketAddrV4::new(address(1), port);
                let flow = self.b.connect_with(self.now, remote, small());
                clients.insert((self.b.facts(flow).local, port), flow);
                number += 1;
            } else {
                self.turn();
            }
            for flow in self.a.accept() {
                let facts = self.a.facts(flow);
                ends.push((flow, clients[&(facts.remote, facts.local.port())]));
            }
        }
        self.a.changes.clear();
        self.b.changes.clear();
        ends
    }

    fn left(&self) -> usize {
        self.a.stack.live_flows() + self.b.stack.live_flows()
    }
}

/// As many more as it pleases who looks at it by hand, with more patience.
fn count() -> usize {
    std::env::var("KNET_TEST_CLOSING").map_or(10_000, |text| text.parse().unwrap())
}

/// Lets time run, and programs do what `each` does after a turn, until nothing is left at either end.
fn all_end(mut crowd: Crowd, mut each: impl FnMut(&mut Crowd)) {
    let begin = crowd.now;
    (crowd.lost, crowd.sent) = (0, 0);
    while crowd.left() > 0 {
        crowd.turn();
        each(&mut crowd);
        let took = crowd.now.since(begin);
        assert!(
            took < PATIENCE,
            "{} of {} are left",
            crowd.left(),
            2 * count()
        );
    }
    let took = crowd.now.since(begin);
    println!(
        "all after {took:?}: {} sent, {} lost",
        crowd.sent, crowd.lost
    );
    assert!(crowd.lost > 0, "the rings are large enough");
    assert!(crowd.b.stack.counters.mends_put_off.value() > 0);
}

#[test]
fn both_ends_close_everything_at_once() {
    let count = count();
    let mut crowd = Crowd::new(count);
    for (a, b) in crowd.join(count) {
        crowd.a.stack.close(crowd.now, a, Close::Graceful);
        crowd.b.stack.close(crowd.now, b, Close::Graceful);
    }
    all_end(crowd, |_| {});
}

#[test]
fn one_end_closes_everything_at_once() {
    let count = count();
    let mut crowd = Crowd::new(count);
    for (_, b) in crowd.join(count) {
        crowd.b.stack.close(crowd.now, b, Close::Graceful);
    }
    let answer = |crowd: &mut Crowd| {
        for change in core::mem::take(&mut crowd.a.changes) {
            if let Change::Flow { flow, .. } = change
                && let Some(facts) = crowd.a.stack.facts(flow)
                && facts.rx_finished
            {
                crowd.a.stack.close(crowd.now, flow, Close::Graceful);
            }
        }
    };
    all_end(crowd, answer);
}
