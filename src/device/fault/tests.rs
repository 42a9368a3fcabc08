use super::*;

const SEEDS: [u64; 4] = [0, 7, 0x5eed, u64::MAX];
const FRAMES: u32 = 20_000;

fn args(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs
        .iter()
        .map(|(key, value)| ((*key).into(), (*value).into()))
        .collect()
}

fn numbered(line: &mut FaultLine, number: u32) -> Frame {
    let mut frame = line.take();
    assert!(frame.copy_from(&number.to_be_bytes()));
    frame
}

fn number(frame: &Frame) -> u32 {
    u32::from_be_bytes(frame.bytes().try_into().expect("four bytes"))
}

/// What came out when, and the counts.
type Trace = (Vec<(u64, u32)>, FaultCounts);

/// Pushes numbered frames 10 us apart and polls every `poll_every` frames.
fn trace(config: FaultConfig, poll_every: u32) -> Trace {
    spaced(config, poll_every, 10)
}

/// The same, `spacing` microseconds apart.
fn spaced(config: FaultConfig, poll_every: u32, spacing: u64) -> Trace {
    let mut line = FaultLine::new(config, 64);
    let mut seen = Vec::new();
    let mut now = Instant::ZERO;
    let mut drain = |line: &mut FaultLine, now: Instant| {
        loop {
            let due = line.next_due();
            let Some(frame) = line.pop_due(now) else {
                break;
            };
            // A held frame that is released keeps its time, so the next due time is this frame's.
            seen.push((due.expect("a frame was due").micros(), number(&frame)));
            line.recycle(frame);
        }
    };
    for index in 0..FRAMES {
        now = Instant::from_micros(u64::from(index) * spacing);
        let frame = numbered(&mut line, index);
        line.push(now, frame);
        if index % poll_every == 0 {
            drain(&mut line, now);
        }
    }
    while let Some(due) = line.next_due() {
        now = now.max(due);
        drain(&mut line, now);
    }
    assert!(line.is_empty());
    (seen, line.counts())
}

fn balanced(counts: FaultCounts, on_line: usize) -> bool {
    let on_line = u64::try_from(on_line).unwrap();
    counts.pushed + counts.duplicated
        == counts.delivered + counts.lost + counts.overflowed + on_line
}

#[test]
fn keys_are_read_without_rounding() {
    let all = args(&[
        ("loss", "0.01"),
        ("dup", "1"),
        ("reorder", "0.000001"),
        ("corrupt", "0.5"),
        ("delay_us", "20-80"),
        ("seed", "7"),
    ]);
    let expected = FaultConfig {
        loss: 10_000,
        duplicate: CERTAIN,
        reorder: 1,
        corrupt: 500_000,
        delay_min_us: 20,
        delay_max_us: 80,
        seed: 7,
    };
    assert_eq!(FaultConfig::parse(&all), Ok(expected));
    let fixed = FaultConfig::parse(&args(&[("delay_us", "50")])).unwrap();
    assert_eq!((fixed.delay_min_us, fixed.delay_max_us), (50, 50));
    assert!(FaultConfig::parse(&[]).unwrap().is_clear());
}

#[test]
fn wrong_values_are_refused_by_name_and_range() {
    let wrong = [
        ("loss", "1.000001", "from 0 to 1"),
        ("loss", "-0.1", "from 0 to 1"),
        ("dup", "0.0000001", "six decimals"),
        ("dup", "", "from 0 to 1"),
        ("reorder", "1e-2", "from 0 to 1"),
        ("corrupt", "4294967296", "from 0 to 1"),
        ("delay_us", "80-20", "20-80"),
        ("delay_us", "10000001", "10000000"),
        ("seed", "-1", "18446744073709551615"),
        ("speed", "1", "known keys: loss"),
    ];
    for (key, value, range) in wrong {
        let fault = FaultConfig::parse(&args(&[(key, value)])).expect_err(value);
        assert!(fault.message.contains(key), "{fault}");
        assert!(fault.message.contains(range), "{fault}");
    }
}

#[test]
fn a_clear_line_passes_every_frame_once_and_in_order() {
    let (seen, counts) = trace(FaultConfig::none(), 1);
    assert!(seen.iter().map(|(_, number)| *number).eq(0..FRAMES));
    assert_eq!(counts.delivered, u64::from(FRAMES));
    assert_eq!(
        counts.lost + counts.duplicated + counts.reordered + counts.corrupted,
        0
    );
}

#[test]
fn a_delay_that_varies_keeps_the_order_and_the_bounds() {
    for seed in SEEDS {
        let config = FaultConfig {
            delay_min_us: 20,
            delay_max_us: 80,
            seed,
            ..FaultConfig::none()
        };
        let (seen, _) = trace(config, 1);
        assert!(
            seen.iter().map(|(_, number)| *number).eq(0..FRAMES),
            "seed {seed}"
        );
        let late = seen.iter().map(|(at, number)| at - u64::from(*number) * 10);
        let (least, most) = late.fold((u64::MAX, 0), |(low, high), us| (low.min(us), high.max(us)));
        assert!(
            (20..25).contains(&least) && (75..=80).contains(&most),
            "seed {seed} {least} {most}"
        );
    }
}

#[test]
fn counts_add_up_and_rates_are_as_asked() {
    for seed in SEEDS {
        let config = FaultConfig {
            loss: 100_000,
            duplicate: 50_000,
            reorder: 20_000,
            seed,
            ..FaultConfig::none()
        };
        let (seen, counts) = trace(config, 3);
        assert!(balanced(counts, 0), "seed {seed} {counts:?}");
        assert_eq!(counts.overflowed, 0, "seed {seed}");
        assert_eq!(
            u64::try_from(seen.len()).unwrap(),
            counts.delivered,
            "seed {seed}"
        );
        let mut numbers: Vec<u32> = seen.iter().map(|(_, number)| *number).collect();
        numbers.sort_unstable();
        let repeated = numbers.windows(2).filter(|two| two[0] == two[1]).count();
        assert_eq!(
            u64::try_from(repeated).unwrap(),
            counts.duplicated,
            "seed {seed}"
        );
        numbers.dedup();
        let missing = u64::from(FRAMES) - u64::try_from(numbers.len()).unwrap();
        assert_eq!(missing, counts.lost, "seed {seed}");
        // Five standard deviations around the mean of each, for 20 000 frames.
        assert!(
            (1_788..=2_212).contains(&counts.lost),
            "seed {seed} {counts:?}"
        );
        assert!(
            (740..=1_060).contains(&counts.duplicated),
            "seed {seed} {counts:?}"
        );
        assert!(
            (260..=460).contains(&counts.reordered),
            "seed {seed} {counts:?}"
        );
    }
}

#[test]
fn the_same_seed_gives_the_same_trace_and_another_does_not() {
    for seed in SEEDS {
        let config = FaultConfig {
            loss: 10_000,
            duplicate: 10_000,
            reorder: 10_000,
            corrupt: 0,
            delay_min_us: 5,
            delay_max_us: 50,
            seed,
        };
        let first = trace(config, 1);
        assert_eq!(first, trace(config, 1), "seed {seed}");
        // How often the line is polled changes nothing but when the reader looks.
        assert_eq!(first, trace(config, 17), "seed {seed}");
        // So far apart, most held frames run out of time instead of being overtaken.
        assert_eq!(
            spaced(config, 1, 400),
            spaced(config, 17, 400),
            "seed {seed}"
        );
        let other = FaultConfig {
            seed: seed.wrapping_add(1),
            ..config
        };
        assert_ne!(first.0, trace(other, 1).0, "seed {seed}");
    }
}

#[test]
fn a_raised_probability_leaves_the_other_decisions() {
    let lossy = FaultConfig {
        loss: 50_000,
        seed: 7,
        ..FaultConfig::none()
    };
    let both = FaultConfig {
        duplicate: 300_000,
        ..lossy
    };
    let survivors = |config| {
        let mut numbers: Vec<u32> = trace(config, 1)
            .0
            .iter()
            .map(|(_, number)| *number)
            .collect();
        numbers.dedup();
        numbers
    };
    assert_eq!(survivors(lossy), survivors(both));
}

#[test]
fn a_reordered_frame_is_passed_by_a_few_and_never_stuck() {
    let mut line = FaultLine::new(
        FaultConfig {
            reorder: CERTAIN,
            seed: 1,
            ..FaultConfig::none()
        },
        64,
    );
    let frame = numbered(&mut line, 0);
    line.push(Instant::ZERO, frame);
    assert!(line.pop_due(Instant::from_micros(999)).is_none());
    assert_eq!(line.next_due(), Some(Instant::from_millis(1)));
    assert!(line.pop_due(Instant::from_millis(1)).is_some());

    let (seen, counts) = trace(
        FaultConfig {
            reorder: 10_000,
            seed: 3,
            ..FaultConfig::none()
        },
        1,
    );
    assert!(counts.reordered > 100);
    let mut highest = 0;
    let mut late = 0;
    for (place, (_, number)) in seen.iter().enumerate() {
        if *number < highest {
            late += 1;
            let passed = place - usize::try_from(*number).unwrap();
            // Lower ones may be held at the same time, so the lag can look smaller, never larger.
            assert!(
                passed <= usize::try_from(OVERTAKERS_MAX).unwrap(),
                "{number} passed by {passed}"
            );
        }
        highest = highest.max(*number);
    }
    assert!(
        late > 0 && late <= counts.reordered,
        "{late} of {}",
        counts.reordered
    );
}

#[test]
fn corruption_inverts_exactly_one_bit() {
    let mut line = FaultLine::new(
        FaultConfig {
            corrupt: CERTAIN,
            seed: 9,
            ..FaultConfig::none()
        },
        64,
    );
    let mut places = std::collections::BTreeSet::new();
    for _ in 0..1_000 {
        let mut frame = line.take();
        assert!(frame.copy_from(&[0; 60]));
        line.push(Instant::ZERO, frame);
        let frame = line.pop_due(Instant::ZERO).unwrap();
        let ones: u32 = frame.bytes().iter().map(|byte| byte.count_ones()).sum();
        assert_eq!(ones, 1);
        places.insert(frame.bytes().iter().position(|byte| *byte != 0));
        line.recycle(frame);
    }
    assert_eq!(places.len(), 60);
}

#[test]
fn a_full_line_drops_and_counts() {
    let config = FaultConfig {
        delay_min_us: 10,
        delay_max_us: 10,
        ..FaultConfig::none()
    };
    let mut line = FaultLine::new(config, 64);
    for index in 0..5_000 {
        let frame = numbered(&mut line, index);
        line.push(Instant::ZERO, frame);
    }
    assert_eq!(line.len(), LINE_FRAMES);
    assert_eq!(line.counts().overflowed, 904);
    assert!(balanced(line.counts(), LINE_FRAMES));
    let first = line.pop_due(Instant::from_micros(10)).unwrap();
    assert_eq!(number(&first), 0);
}
