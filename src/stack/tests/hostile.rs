//! A peer that sends whatever it likes near the numbers that count: nothing breaks, nothing is written where no memory is, it gets few
//! frames once it is silent, and everything is given back.

use core::time::Duration;

use super::peer::{ACK, FIN, PEER_ISS, PEER_PORT, PSH, RST, SYN, Script, Segment};
use crate::id::FlowId;
use crate::seeded::Seeded;
use crate::stack::{Close, FlowOptions, FlowState};

const URG: u8 = 0x20;
const BURSTS: usize = 300;
/// Frames within ten seconds of silence: a window of segments, and what is asked for and sent again ever more seldom.
const SILENT_FRAMES: usize = 100;

/// What the peer knows of the numbers.
struct Numbers {
    /// What it would send next.
    next: u32,
    /// What it would acknowledge at least and at most.
    acknowledged: u32,
    seen: u32,
}

/// One of the numbers from `low` to `high`, or one near them, or any.
fn near(random: &mut Seeded, low: u32, high: u32) -> u32 {
    match random.below(12) {
        0 => random.double(),
        1 => low.wrapping_sub(1),
        2 => high.wrapping_add(1),
        3 => high.wrapping_add(u32::from(random.word())),
        4 => low.wrapping_sub(u32::from(random.word())),
        5 => low.wrapping_add(1 << 31),
        6 | 7 => high,
        8 => low.wrapping_add(random.double() % high.wrapping_sub(low).max(1)),
        _ => low,
    }
}

fn segment(random: &mut Seeded, numbers: &Numbers) -> Segment {
    let flags = match random.below(24) {
        0 if random.below(8) == 0 => ACK | FIN,
        1 => ACK | URG,
        2 => SYN,
        3 => ACK | SYN,
        4 if random.below(300) == 0 => RST,
        5 if random.below(300) == 0 => ACK | RST,
        6 => FIN,
        7 => 0,
        8 => random.byte() & !RST,
        9 | 10 => ACK | PSH,
        _ => ACK,
    };
    let far = numbers.next.wrapping_add(5_000);
    let seq = near(random, numbers.next, far);
    let seq = if random.below(2) == 0 {
        numbers.next
    } else {
        seq
    };
    let ack = near(random, numbers.acknowledged, numbers.seen);
    let mut made = Segment::new(flags, seq, ack);
    made.window = [0, 0, 1, 7, 500, 60_000, 65_535][random.below(7)];
    if random.below(4) == 0 {
        let left = near(random, numbers.acknowledged, numbers.seen);
        let right = near(random, numbers.acknowledged, numbers.seen);
        made = made.holding(left, right);
    }
    if random.below(3) == 0 {
        made = made.carrying(&vec![7; random.below(1_460)]);
    }
    made
}

/// Does something that a program may do.
fn program(script: &mut Script, flow: FlowId, random: &mut Seeded) {
    let now = script.now;
    let Some(facts) = script.host.stack.facts(flow) else {
        return;
    };
    match random.below(200) {
        0 => script.host.stack.shutdown_write(now, flow),
        1 if random.below(4) == 0 => script.host.stack.close(now, flow, Close::Graceful),
        2..30 => script.host.stack.consumed(now, flow, facts.rx_total),
        30..80 => {
            let bytes = vec![9; random.below(20_000).min(facts.tx_room)];
            script.host.stack.send(now, flow, &bytes);
        }
        _ => {}
    }
}

fn attack(seed: u64) {
    let mut random = Seeded::new(seed);
    let mut script = Script::listening(FlowOptions {
        nodelay: random.below(2) == 0,
        keepalive: random.below(2) == 0,
        keepidle_s: 1,
        ..FlowOptions::default()
    });
    let (flow, iss) = script.open(PEER_PORT);
    let mut numbers = Numbers {
        next: PEER_ISS + 1,
        acknowledged: iss + 1,
        seen: iss + 1,
    };
    for _ in 0..BURSTS {
        program(&mut script, flow, &mut random);
        let burst: Vec<Segment> = (0..=random.below(5))
            .map(|_| segment(&mut random, &numbers))
            .collect();
        let mut heard = script.burst(&burst);
        if random.below(3) == 0 {
            let rest = Duration::from_micros(random.below(300_000) as u64);
            heard.extend(script.wait(rest).into_iter().map(|(_, heard)| heard));
        }
        for heard in heard {
            let end = heard.tcp.seq.wrapping_add(heard.tcp.sequence_len());
            // It follows what it is told, mostly.
            if heard.is(ACK) && random.below(4) > 0 {
                numbers.next = heard.tcp.ack;
            }
            if random.below(4) > 0 {
                (numbers.acknowledged, numbers.seen) = (numbers.seen, end);
            }
        }
    }
    script.wait(Duration::from_millis(100));
    let silent = script.wait(Duration::from_secs(10));
    assert!(silent.len() <= SILENT_FRAMES, "{} frames", silent.len());
    assert_eq!(script.count("flows_dropped_panic"), 0);
    script.host.memory.check_untouched();
    script.host.stack.close(script.now, flow, Close::Abort);
    script
        .host
        .accept()
        .into_iter()
        .for_each(|other| script.host.stack.close(script.now, other, Close::Abort));
    script.wait(Duration::from_secs(400));
    let left: Vec<FlowState> = script
        .host
        .stack
        .flows()
        .map(|(_, _, facts)| facts.state)
        .collect();
    assert!(left.is_empty(), "{left:?}");
    assert!(script.host.memory.rings.is_empty());
}

#[test]
fn whatever_a_peer_sends_breaks_nothing() {
    super::seeds("KNET_TEST_ATTACKS", 20).for_each(attack);
}
