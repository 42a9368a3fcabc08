use super::*;
use crate::device::RxFrame;
use crate::device::fault::CERTAIN;
use crate::device::frame::{MADE, numbered};

const MTU: usize = 1500;

fn open(mut device: PairDevice) -> (PairDevice, QueuePair) {
    let halves = device.queue_pair(0).expect("the first time");
    (device, halves)
}

fn put(tx: &mut dyn TxQueue, bytes: &[u8]) -> bool {
    match tx.alloc(bytes.len()) {
        Some(buffer) => {
            assert_eq!(buffer.len(), bytes.len());
            buffer.copy_from_slice(bytes);
            tx.commit(bytes.len(), TxMeta::default());
            true
        }
        None => false,
    }
}

fn get(rx: &mut dyn RxQueue, now: Instant, into: &mut Vec<Vec<u8>>) -> usize {
    rx.rx_burst(now, &mut |burst: &mut [RxFrame<'_>]| {
        assert!(!burst.is_empty() && burst.len() <= BURST_MAX);
        into.extend(burst.iter().map(|frame| frame.bytes.to_vec()));
    })
}

#[test]
fn without_faults_every_frame_arrives_once_in_order_and_unchanged() {
    let (a, b) = pair(FaultConfig::none(), FaultConfig::none(), MTU);
    let (a, (mut a_rx, mut a_tx)) = open(a);
    let (b, (mut b_rx, mut b_tx)) = open(b);
    let (mut at_a, mut at_b) = (Vec::new(), Vec::new());
    let mut now = Instant::ZERO;
    for number in 0..10_000 {
        assert!(put(a_tx.as_mut(), &numbered(number)));
        assert!(put(b_tx.as_mut(), &numbered(number + 1_000_000)));
        if number % 40 == 39 {
            assert_eq!(a_tx.flush(now), 40);
            assert_eq!(b_tx.flush(now), 40);
            while get(b_rx.as_mut(), now, &mut at_b) > 0 {}
            while get(a_rx.as_mut(), now, &mut at_a) > 0 {}
            now = now + core::time::Duration::from_micros(3);
        }
    }
    assert!(at_b.iter().cloned().eq((0..10_000).map(numbered)));
    assert!(
        at_a.iter()
            .cloned()
            .eq((1_000_000..1_010_000).map(numbered))
    );
    let expected = PortStats {
        rx_frames: 10_000,
        tx_frames: 10_000,
        rx_missed: 0,
        tx_dropped: 0,
        ..PortStats::default()
    };
    assert_eq!((a.stats(), b.stats()), (expected, expected));
}

/// Sends numbered frames from one end and returns what the other saw, and the counts.
fn run(faults: FaultConfig) -> (Vec<Vec<u8>>, FaultCounts, PortStats) {
    let (a, b) = pair(faults, FaultConfig::none(), MTU);
    let (a, (_a_rx, mut tx)) = open(a);
    let (b, (mut rx, _b_tx)) = open(b);
    let mut seen = Vec::new();
    let mut now = Instant::ZERO;
    for number in 0..10_000 {
        assert!(put(tx.as_mut(), &numbered(number)));
        if number % 8 == 7 {
            tx.flush(now);
            now = now + core::time::Duration::from_micros(20);
            get(rx.as_mut(), now, &mut seen);
        }
    }
    while let Some(due) = rx.next_due() {
        now = now.max(due);
        get(rx.as_mut(), now, &mut seen);
    }
    (seen, a.sent_counts(), b.stats())
}

#[test]
fn with_faults_the_counts_add_up_and_a_seed_repeats_its_trace() {
    for seed in [1, 7, 99] {
        let faults = FaultConfig {
            loss: 10_000,
            duplicate: 10_000,
            reorder: 10_000,
            corrupt: 0,
            delay_min_us: 50,
            delay_max_us: 50,
            seed,
        };
        let (seen, counts, stats) = run(faults);
        let arrived = u64::try_from(seen.len()).unwrap();
        assert_eq!(counts.pushed, 10_000, "seed {seed}");
        assert_eq!(
            counts.pushed,
            arrived - counts.duplicated + counts.lost,
            "seed {seed}"
        );
        assert_eq!(
            (stats.rx_frames, stats.rx_missed),
            (arrived, 0),
            "seed {seed}"
        );
        assert!(
            counts.lost > 50 && counts.duplicated > 50 && counts.reordered > 50,
            "seed {seed}"
        );
        for frame in &seen {
            let number = u32::from_be_bytes(frame[..4].try_into().unwrap());
            assert_eq!(*frame, numbered(number), "seed {seed}");
        }
        assert_eq!((seen, counts, stats), run(faults), "seed {seed}");
    }
}

#[test]
fn a_delayed_frame_comes_when_it_is_due() {
    let faults = FaultConfig {
        delay_min_us: 50,
        delay_max_us: 50,
        ..FaultConfig::none()
    };
    let (a, b) = pair(faults, FaultConfig::none(), MTU);
    let (_a, (_a_rx, mut tx)) = open(a);
    let (_b, (mut rx, _b_tx)) = open(b);
    let mut seen = Vec::new();
    assert!(put(tx.as_mut(), &numbered(1)));
    assert_eq!(tx.flush(Instant::from_micros(100)), 1);
    assert_eq!(rx.next_due(), Some(Instant::from_micros(150)));
    assert_eq!(get(rx.as_mut(), Instant::from_micros(149), &mut seen), 0);
    assert_eq!(get(rx.as_mut(), Instant::from_micros(150), &mut seen), 1);
    assert_eq!(rx.next_due(), None);
}

#[test]
fn a_receiver_that_does_not_fetch_misses_what_its_ring_cannot_hold() {
    let (a, b) = pair(FaultConfig::none(), FaultConfig::none(), MTU);
    let (_a, (_a_rx, mut tx)) = open(a);
    let (b, (mut rx, _b_tx)) = open(b);
    for number in 0..1_100 {
        assert!(put(tx.as_mut(), &numbered(number)));
        tx.flush(Instant::ZERO);
    }
    assert_eq!(b.stats().rx_missed, 76);
    assert_eq!(rx.next_due(), Some(Instant::ZERO));
    let mut seen = Vec::new();
    while get(rx.as_mut(), Instant::ZERO, &mut seen) > 0 {}
    assert!(seen.into_iter().eq((0..1_024).map(numbered)));
}

#[test]
fn a_buffer_has_the_length_that_was_asked_for_and_a_burst_has_64() {
    let (a, b) = pair(FaultConfig::none(), FaultConfig::none(), MTU);
    let (_a, (_a_rx, mut tx)) = open(a);
    let (_b, (mut rx, _b_tx)) = open(b);
    assert_eq!(tx.room(), 64);
    assert!(tx.alloc(MTU + LINK_HEADER_BYTES + 1).is_none());
    // Only the last alloc counts, a commit can shorten it, not lengthen it, and nothing is nothing.
    assert_eq!(tx.alloc(100).map(|buffer| buffer.len()), Some(100));
    assert_eq!(tx.alloc(80).map(|buffer| buffer.len()), Some(80));
    tx.commit(0, TxMeta::default());
    assert_eq!(tx.room(), 64);
    tx.commit(90, TxMeta::default());
    tx.commit(90, TxMeta::default());
    assert_eq!(tx.room(), 63);
    for _ in 0..63 {
        assert!(put(tx.as_mut(), &[7; 60]));
    }
    assert_eq!(tx.room(), 0);
    assert!(tx.alloc(60).is_none());
    assert_eq!(tx.flush(Instant::ZERO), 64);
    assert_eq!(tx.room(), 64);
    let mut seen = Vec::new();
    assert_eq!(get(rx.as_mut(), Instant::ZERO, &mut seen), 32);
    assert_eq!(get(rx.as_mut(), Instant::ZERO, &mut seen), 32);
    assert_eq!(seen[0].len(), 80);
}

#[test]
fn a_queue_is_taken_once_and_the_link_falls_with_the_other_end() {
    let (mut a, b) = pair(FaultConfig::none(), FaultConfig::none(), MTU);
    assert_ne!(a.capabilities().mac, b.capabilities().mac);
    assert!(matches!(a.queue_pair(1), Err(Errno::INVAL)));
    let (_rx, mut tx) = a.queue_pair(0).unwrap();
    assert!(matches!(a.queue_pair(0), Err(Errno::INVAL)));
    let (b, halves) = open(b);
    drop(b);
    assert!(a.link_up());
    drop(halves);
    assert!(!a.link_up());
    assert!(put(tx.as_mut(), &numbered(1)));
    assert_eq!(tx.flush(Instant::ZERO), 0);
    assert_eq!(a.stats().tx_dropped, 1);
}

#[test]
fn two_threads_lose_nothing_that_the_ring_can_hold() {
    let faults = FaultConfig {
        duplicate: CERTAIN,
        ..FaultConfig::none()
    };
    let (a, b) = pair(faults, FaultConfig::none(), MTU);
    let (_a, (_a_rx, mut tx)) = open(a);
    let (b, (mut rx, _b_tx)) = open(b);
    let sent = 500;
    let sender = std::thread::spawn(move || {
        for number in 0..sent {
            assert!(put(tx.as_mut(), &numbered(number)));
            tx.flush(Instant::from_micros(u64::from(number)));
        }
        tx
    });
    let mut seen = Vec::new();
    while seen.len() < 1_000 {
        if get(rx.as_mut(), Instant::from_millis(1_000), &mut seen) == 0 {
            std::thread::yield_now();
        }
    }
    let _tx = sender.join().expect("the sender ends");
    assert!(
        seen.into_iter()
            .eq((0..sent).flat_map(|number| [numbered(number), numbered(number)]))
    );
    assert_eq!(b.stats().rx_missed, 0);
}

#[test]
fn buffers_go_round_and_none_is_made_in_a_steady_state() {
    let faults = FaultConfig {
        loss: 50_000,
        duplicate: 50_000,
        reorder: 50_000,
        delay_min_us: 50,
        delay_max_us: 90,
        seed: 5,
        ..FaultConfig::none()
    };
    for faults in [FaultConfig::none(), faults] {
        let (a, b) = pair(faults, FaultConfig::none(), MTU);
        let (_a, (_a_rx, mut tx)) = open(a);
        let (_b, (mut rx, _b_tx)) = open(b);
        let mut now = Instant::ZERO;
        let mut warm = 0;
        for round in 0..2_000 {
            for _ in 0..16 {
                assert!(put(tx.as_mut(), &[7; 60]));
            }
            tx.flush(now);
            rx.rx_burst(now, &mut |_| {});
            now = now + core::time::Duration::from_micros(10);
            if round == 1_000 {
                warm = MADE.get();
            }
        }
        // The peak in flight can still rise a little, by held frames and copies.
        let made = MADE.get() - warm;
        assert!(made <= 16, "{made} after {warm}");
    }
}

#[test]
fn a_lossy_line_without_delay_fills_the_ring_not_the_line() {
    let faults = FaultConfig {
        duplicate: CERTAIN,
        ..FaultConfig::none()
    };
    let (a, b) = pair(faults, FaultConfig::none(), MTU);
    let (_a, (_a_rx, mut tx)) = open(a);
    let (b, (_rx, _b_tx)) = open(b);
    for number in 0..600 {
        assert!(put(tx.as_mut(), &numbered(number)));
        tx.flush(Instant::ZERO);
    }
    assert_eq!(b.stats().rx_missed, 176);
}
