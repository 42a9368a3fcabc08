//! Long transfers over a bad wire: every byte arrives, in its place, and nothing is written where no memory is.

use core::time::Duration;

use super::config;
use super::pair::{Faults, Pair};
use crate::id::FlowId;
use crate::stack::siphash::siphash;
use crate::stack::{FlowState, StackConfig};
use crate::time::Instant;

/// Bytes each way: `KNET_TEST_BULK_MIB` MiB, by default little enough for a debug build.
fn bulk_bytes(default_mib: u64) -> u64 {
    let wanted = std::env::var("KNET_TEST_BULK_MIB")
        .ok()
        .and_then(|text| text.parse().ok());
    wanted.unwrap_or(default_mib) << 20
}

/// A stream whose every 8 KiB block is different, and its running checksum.
#[derive(Debug)]
struct Stream {
    key: [u8; 16],
    at: u64,
    sum: u64,
}

impl Stream {
    fn new(key: u8) -> Self {
        Self {
            key: [key; 16],
            at: 0,
            sum: 0,
        }
    }

    fn fill(&self, into: &mut [u8]) {
        let mut at = self.at;
        let mut rest = into;
        while !rest.is_empty() {
            let word = (at / 8).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
            let start = usize::try_from(at % 8).unwrap();
            let count = rest.len().min(8 - start);
            let (head, tail) = rest.split_at_mut(count);
            head.copy_from_slice(&word[start..start + count]);
            at += count as u64;
            rest = tail;
        }
    }

    /// Adds bytes; the sum depends on their order and on nothing else.
    fn add(&mut self, bytes: &[u8]) {
        for byte in bytes.chunks(4096) {
            // Blocks are cut at offsets that are the same for both ends.
            let mut rest = byte;
            while !rest.is_empty() {
                let room = 64 - usize::try_from(self.at % 64).unwrap();
                let (head, tail) = rest.split_at(rest.len().min(room));
                for value in head {
                    self.sum = self.sum.rotate_left(5) ^ u64::from(*value);
                    self.sum = self.sum.wrapping_mul(0x0100_0000_01b3);
                }
                self.at += head.len() as u64;
                if self.at.is_multiple_of(1 << 16) {
                    self.sum = siphash(&self.key, &self.sum.to_le_bytes());
                }
                rest = tail;
            }
        }
    }
}

/// One direction of a transfer.
#[derive(Debug)]
struct Direction {
    total: u64,
    sent: Stream,
    got: Stream,
}

impl Direction {
    fn new(total: u64, key: u8) -> Self {
        Self {
            total,
            sent: Stream::new(key),
            got: Stream::new(key),
        }
    }

    fn write(&mut self, now: Instant, host: &mut super::pair::Host, flow: FlowId) {
        let mut block = [0; 16 << 10];
        while self.sent.at < self.total {
            let want = usize::try_from(self.total - self.sent.at)
                .unwrap()
                .min(block.len());
            let room = host.facts(flow).tx_room.min(want);
            if room == 0 {
                return;
            }
            self.sent.fill(&mut block[..room]);
            let taken = host.stack.send(now, flow, &block[..room]);
            assert_eq!(taken, room);
            self.sent.add(&block[..taken]);
            if self.sent.at == self.total {
                host.stack.shutdown_write(now, flow);
            }
        }
    }

    fn read(&mut self, now: Instant, host: &mut super::pair::Host, flow: FlowId) {
        let from = self.got.at;
        let bytes = host.read(now, flow, from);
        self.got.add(&bytes);
    }

    fn is_done(&self) -> bool {
        self.got.at == self.total
    }
}

/// Moves one direction's bytes from `b` to `a`, who reads at once, until it is over.
fn carry(
    pair: &mut Pair,
    (a, b): (FlowId, FlowId),
    up: &mut Direction,
    is_over: impl Fn(&Pair, &Direction) -> bool,
) {
    while !is_over(pair, up) {
        up.write(pair.now, &mut pair.b, b);
        up.read(pair.now, &mut pair.a, a);
        pair.turn();
        let next = pair.next_soon().unwrap_or(pair.now);
        pair.now = next.max(pair.now + Duration::from_micros(1));
    }
    assert_eq!(up.sent.sum, up.got.sum);
}

/// Moves `bytes` each way and checks what arrives. Returns the pair for more questions.
fn transfer(bytes: u64, faults: Faults, seed: u64) -> Pair {
    transfer_on(Pair::with(config(1), config(2), seed), bytes, faults)
}

/// The same on a pair on which nothing has happened yet.
pub(super) fn transfer_on(mut pair: Pair, bytes: u64, faults: Faults) -> Pair {
    pair.a.listen(80, 8);
    let (a, b) = pair.join();
    pair.faults = faults;
    let mut up = Direction::new(bytes, 1);
    let mut down = Direction::new(bytes, 2);
    let (mut turns, mut idle) = (0_u64, 0);
    while !(up.is_done()
        && down.is_done()
        && pair.a.facts(a).rx_finished
        && pair.b.facts(b).rx_finished)
    {
        up.write(pair.now, &mut pair.b, b);
        down.write(pair.now, &mut pair.a, a);
        up.read(pair.now, &mut pair.a, a);
        down.read(pair.now, &mut pair.b, b);
        pair.turn();
        turns += 1;
        if turns % 4096 == 0 {
            pair.a.memory.check_untouched();
            pair.b.memory.check_untouched();
        }
        pair.now = pair
            .next_soon()
            .unwrap_or(pair.now)
            .max(pair.now + Duration::from_micros(1));
        idle = if pair.next_soon().is_some() {
            0
        } else {
            idle + 1
        };
        assert!(
            idle < 10,
            "nothing is under way: {:?} {:?}",
            pair.a.facts(a),
            pair.b.facts(b)
        );
        for (host, flow) in [(&pair.a, a), (&pair.b, b)] {
            assert_eq!(host.facts(flow).error, None, "{:?}", host.facts(flow));
        }
    }
    assert_eq!((up.sent.sum, down.sent.sum), (up.got.sum, down.got.sum));
    pair.faults = Faults::default();
    pair.close(a, b);
    pair.run(Duration::from_secs(200));
    assert_eq!(
        (pair.a.stack.live_flows(), pair.b.stack.live_flows()),
        (0, 0)
    );
    println!(
        "{} MiB each way in {} ms of virtual time",
        bytes >> 20,
        pair.now.millis()
    );
    pair
}

#[test]
fn a_clean_wire_carries_everything_and_resends_nothing() {
    let mut pair = Pair::new();
    pair.a.listen(80, 8);
    let (a, b) = pair.join();
    let mut up = Direction::new(1 << 20, 3);
    carry(&mut pair, (a, b), &mut up, |_, up| up.is_done());
    assert_eq!(pair.b.facts(b).retransmits, 0);
    assert!(
        pair.now < Instant::from_millis(1_500),
        "it stalled until {:?}",
        pair.now
    );
    assert_eq!(pair.a.facts(a).state, FlowState::CloseWait);
}

/// Round trips that the first `bytes` of a new connection from `b` take; `a` reads at once and acknowledges once a turn.
fn round_trips(mut pair: Pair, bytes: u64) -> u128 {
    pair.delay = Duration::from_millis(10);
    pair.a.listen(80, 8);
    pair.b.connect(
        pair.now,
        core::net::SocketAddrV4::new(super::address(1), 80),
    );
    pair.run(Duration::from_millis(200));
    let a = pair.a.accept()[0];
    let b = pair.b.stack.flows().next().unwrap().0;
    let begin = pair.now;
    let mut up = Direction::new(bytes, 3);
    carry(&mut pair, (a, b), &mut up, |pair, _| {
        pair.b.facts(b).tx_acked >= bytes
    });
    pair.now.since(begin).as_millis() / 20
}

#[test]
fn a_peer_that_acknowledges_once_a_burst_lets_a_connection_start_fast() {
    let large = |host| StackConfig {
        tx_buffer_bytes: 256 << 10,
        ..config(host)
    };
    let rounds = round_trips(Pair::with(large(1), large(2), 4), 256 << 10);
    // 2, 4, 8 ... 128 KiB and the rest; by one segment a round trip it were over a hundred.
    assert!(rounds <= 9, "{rounds} round trips");
    let cuts = |host| StackConfig {
        tx_checksum_offload: true,
        tso_bytes: 64 << 10,
        ..large(host)
    };
    let mut pair = Pair::with(cuts(1), cuts(2), 4);
    (pair.a.port.fills, pair.b.port.fills) = (true, true);
    let rounds = round_trips(pair, 256 << 10);
    assert!(rounds <= 9, "{rounds} round trips with super-frames");
}

#[test]
fn a_bad_wire_carries_everything() {
    let faults = Faults {
        loss: 100,
        duplicate: 100,
        reorder: 100,
    };
    let pair = transfer(bulk_bytes(16), faults, 20);
    assert_eq!(pair.a.stack.counters().flows_dropped_panic.value(), 0);
}

#[test]
fn a_port_that_cuts_super_frames_carries_everything() {
    let cuts = |host| StackConfig {
        tx_checksum_offload: true,
        tso_bytes: 32 << 10,
        ..config(host)
    };
    let mut pair = Pair::with(cuts(1), cuts(2), 9);
    (pair.a.port.fills, pair.b.port.fills) = (true, true);
    pair.faults = Faults {
        loss: 20,
        duplicate: 20,
        reorder: 20,
    };
    pair.a.listen(80, 8);
    let (a, b) = pair.join();
    let mut up = Direction::new(4 << 20, 3);
    carry(&mut pair, (a, b), &mut up, |_, up| up.is_done());
    assert!(
        pair.b.port.super_frames > 20,
        "{} super-frames",
        pair.b.port.super_frames
    );
    assert_eq!(pair.a.stack.counters().flows_dropped_panic.value(), 0);
}

#[test]
fn a_terrible_wire_carries_everything() {
    let faults = Faults {
        loss: 1000,
        duplicate: 1000,
        reorder: 3000,
    };
    transfer(64 << 10, faults, 21);
}
