//! Rings that are full.

use super::*;

/// A driver that hangs at once, and a ring of two slots of one chunk.
fn full(name: &str, on_full: Instead) -> Flying {
    let mut gpu = start(
        StandIn::new("hang=1@1", &[]),
        Mode::Persistent,
        one_pattern(name),
        |config| {
            config.on_full = on_full;
            config.batches.slots = 2;
            config.batches.max_packets = 1;
        },
    );
    for index in 0..2 {
        let departure = gpu.offer(flow(index), Direction::Rx, 0, &mut b"harmless".to_vec());
        assert_eq!(departure, Departure::Flying);
        gpu.now = gpu.now + Duration::from_millis(1);
        gpu.step();
    }
    gpu
}

#[test]
fn a_full_ring_takes_no_memory_and_does_what_on_full_says() {
    let offer = |gpu: &mut Flying, index| {
        gpu.offer(flow(index), Direction::Rx, 0, &mut b"so forbidden".to_vec())
    };
    for (on_full, wanted) in [
        (Instead::Cpu, Departure::Judged(Verdict::Reset)),
        (Instead::Bypass, Departure::Judged(Verdict::Pass)),
        (Instead::Drop, Departure::Judged(Verdict::Reset)),
        (Instead::Wait, Departure::Waiting),
    ] {
        let mut gpu = full(&format!("{on_full:?}"), on_full);
        for index in 2..50 {
            assert_eq!(offer(&mut gpu, index), wanted, "{on_full:?}");
        }
        assert_eq!(gpu.count("payload_chunks_refused_full"), 48);
        assert_eq!(gpu.count("payload_gpu_buffers_out"), 2);
        let bypassed = if on_full == Instead::Bypass { 48 } else { 0 };
        assert_eq!(gpu.count("payload_chunks_bypassed"), bypassed);
        let reset = if on_full == Instead::Drop { 48 } else { 0 };
        assert_eq!(gpu.count("payload_flows_reset_gpu"), reset);
    }
}

#[test]
fn who_waits_is_called_when_there_is_a_place() {
    let mut gpu = full("waits", Instead::Wait);
    let way = Direction::Rx;
    let mut text = *b"so forbidden";
    for _ in 0..2 {
        assert_eq!(gpu.offer(flow(7), way, 0, &mut text), Departure::Waiting);
    }
    gpu.step();
    let mut woken = Vec::new();
    gpu.stage().take_woken(&mut woken);
    assert_eq!(woken, []);
    gpu.stand_in.go();
    for index in 0..2 {
        gpu.wait(flow(index), way);
        gpu.stage().put_down(flow(index), way);
    }
    gpu.step();
    gpu.stage().take_woken(&mut woken);
    assert!(woken.contains(&(flow(7), 7)), "{woken:?}");
    assert_eq!(gpu.judge(flow(7), way, 0, &text).0, Verdict::Reset);
}
