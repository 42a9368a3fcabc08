//! Several connections at once on a path that loses, doubles, overtakes and is cut, used by programs that write, rest, read in
//! parts and close as they like: every byte arrives once and in its place, everything ends, and nothing is left.

use core::time::Duration;

use super::config;
use super::pair::{Faults, Host, Pair};
use crate::id::FlowId;
use crate::seeded::Seeded;
use crate::stack::{FlowOptions, StackConfig};
use crate::time::Instant;

const CONNECTIONS: usize = 6;
/// Bytes a direction carries at most.
const MOST: usize = 200_000;
/// How long the weather is bad, and how long everything may take: twice the longest pause between two time-outs.
const BAD: Duration = Duration::from_secs(60);
const PATIENCE: Duration = Duration::from_secs(60 + 2 * 120);

/// Byte `offset` of stream `stream`.
fn byte_of(stream: usize, offset: u64) -> u8 {
    let mixed = (offset ^ (stream as u64) << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed.to_be_bytes()[0]
}

/// One end of a connection and what its program has done.
#[derive(Debug)]
struct End {
    flow: FlowId,
    /// The stream that it writes, and the one that it reads.
    writes: usize,
    reads: usize,
    left: usize,
    written: u64,
    read: u64,
    /// It does nothing before.
    rests: Instant,
    finished: bool,
}

impl End {
    fn new(flow: FlowId, writes: usize, reads: usize, random: &mut Seeded) -> Self {
        Self {
            flow,
            writes,
            reads,
            left: random.below(MOST),
            written: 0,
            read: 0,
            rests: Instant::ZERO,
            finished: false,
        }
    }

    /// What the program does now.
    fn act(&mut self, now: Instant, host: &mut Host, random: &mut Seeded) {
        if now < self.rests {
            return;
        }
        self.write(now, host, random);
        self.take(now, host, random);
        if random.below(12) == 0 {
            let most = if random.below(10) == 0 { 3_000 } else { 20 };
            let millis = random.below(most);
            self.rests = now + Duration::from_millis(millis as u64);
        }
    }

    fn write(&mut self, now: Instant, host: &mut Host, random: &mut Seeded) {
        let facts = host.facts(self.flow);
        assert_eq!(facts.error, None, "{self:?}");
        let most = if random.below(3) == 0 { 100 } else { 30_000 };
        let most = 1 + random.below(most);
        let part = facts.tx_room.min(self.left).min(most);
        if part > 0 {
            let bytes: Vec<u8> = (self.written..)
                .take(part)
                .map(|at| byte_of(self.writes, at))
                .collect();
            let sent = host.stack.send(now, self.flow, &bytes);
            self.written += sent as u64;
            self.left -= sent;
        }
        if self.left == 0 && !self.finished {
            host.stack.shutdown_write(now, self.flow);
            self.finished = true;
        }
    }

    fn take(&mut self, now: Instant, host: &mut Host, random: &mut Seeded) {
        let there = host.facts(self.flow).rx_total - self.read;
        let part = (1 + random.below(20_000)).min(usize::try_from(there).unwrap());
        if there == 0 {
            return;
        }
        let mut bytes = vec![0; part];
        host.memory
            .read(host.ring(self.flow), self.read, &mut bytes);
        for (offset, byte) in (self.read..).zip(&bytes) {
            assert_eq!(
                *byte,
                byte_of(self.reads, offset),
                "stream {} at {offset}",
                self.reads
            );
        }
        self.read += part as u64;
        host.stack.consumed(now, self.flow, self.read);
    }

    fn is_done(&self, host: &Host) -> bool {
        let facts = host.facts(self.flow);
        self.finished && facts.rx_finished && self.read == facts.rx_total
    }
}

/// What a storm is made of.
fn weather(random: &mut Seeded) -> (Faults, Duration) {
    let pick = |random: &mut Seeded, of: &[usize]| of[random.below(of.len())];
    let faults = Faults {
        loss: pick(random, &[0, 10, 100, 500, 1_500]),
        duplicate: pick(random, &[0, 100, 1_000]),
        reorder: pick(random, &[0, 100, 1_000, 4_000]),
    };
    (
        faults,
        Duration::from_micros(pick(random, &[5, 100, 2_000, 30_000]) as u64),
    )
}

fn host(number: u8, random: &mut Seeded) -> StackConfig {
    let kib = [16, 64, 256][random.below(3)];
    StackConfig {
        tx_buffer_bytes: kib << 10,
        mtu: [576, 1500, 9000][random.below(3)],
        tso_bytes: [0, 0, 16 << 10, 60_000][random.below(4)],
        ..config(number)
    }
}

fn options(random: &mut Seeded) -> FlowOptions {
    FlowOptions {
        nodelay: random.below(2) == 0,
        rx_bytes: [0, 0, 4_096, 65_536][random.below(4)],
        window_kib: [0, 0, 2, 30][random.below(4)],
        keepalive: random.below(4) == 0,
        keepidle_s: 1,
        keepintvl_s: 1,
        keepcnt: 200,
        ..FlowOptions::default()
    }
}

fn storm(seed: u64) {
    let mut random = Seeded::new(seed);
    let mut pair = Pair::with(host(1, &mut random), host(2, &mut random), seed);
    pair.a.listen_with(80, 16, options(&mut random));
    let joined: Vec<_> = (0..CONNECTIONS).map(|_| pair.join()).collect();
    let mut ends: Vec<[End; 2]> = joined
        .into_iter()
        .enumerate()
        .map(|(number, (a, b))| {
            [
                End::new(a, 2 * number, 2 * number + 1, &mut random),
                End::new(b, 2 * number + 1, 2 * number, &mut random),
            ]
        })
        .collect();
    let begin = pair.now;
    let (mut changes, mut cut_until) = (begin, Instant::ZERO);
    while !ends
        .iter()
        .all(|[a, b]| a.is_done(&pair.a) && b.is_done(&pair.b))
    {
        if pair.now.since(begin) > BAD {
            pair.faults = Faults::default();
        } else if pair.now >= changes {
            (pair.faults, pair.delay) = weather(&mut random);
            changes = pair.now + Duration::from_millis(random.below(500) as u64);
            if random.below(20) == 0 {
                cut_until = pair.now + Duration::from_millis(random.below(3_000) as u64);
            }
        }
        pair.cut = pair.now < cut_until;
        for [a, b] in &mut ends {
            a.act(pair.now, &mut pair.a, &mut random);
            b.act(pair.now, &mut pair.b, &mut random);
        }
        pair.turn();
        let tick = pair.now + Duration::from_millis(1);
        pair.now = pair
            .next()
            .map_or(tick, |at| at.min(tick))
            .max(pair.now + Duration::from_micros(1));
        assert!(
            pair.now.since(begin) < PATIENCE,
            "{:?}",
            stuck(&ends, &pair)
        );
    }
    let took = pair.now.since(begin);
    pair.cut = false;
    for [a, b] in &ends {
        for (end, peer) in [(a, b), (b, a)] {
            assert_eq!(end.read, peer.written);
        }
        pair.close(a.flow, b.flow);
    }
    pair.faults = Faults::default();
    pair.run(Duration::from_secs(200));
    println!("{took:?}");
    for host in [&pair.a, &pair.b] {
        let left: Vec<_> = host.stack.flows().map(|(_, _, facts)| facts).collect();
        assert!(left.is_empty(), "{left:?}");
        host.memory.check_untouched();
        assert!(host.memory.rings.is_empty() && host.memory.lent.is_empty());
    }
}

/// What the ends that are not done wait for.
fn stuck(ends: &[[End; 2]], pair: &Pair) -> Vec<String> {
    let hosts = [&pair.a, &pair.b];
    ends.iter()
        .filter(|both| !both.iter().zip(hosts).all(|(end, host)| end.is_done(host)))
        .flat_map(|both| both.iter().zip(hosts))
        .map(|(end, host)| {
            let facts = host.facts(end.flow);
            format!("{end:?} {facts:?}")
        })
        .collect()
}

#[test]
fn everything_arrives_once_and_ends_in_any_weather() {
    super::seeds("KNET_TEST_STORMS", 12).for_each(storm);
}
