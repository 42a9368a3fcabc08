use std::collections::BTreeMap;

use super::*;
use crate::seeded::Seeded;

fn at(millis: u64) -> Instant {
    Instant::from_millis(millis)
}

fn fired(wheel: &mut TimerWheel, now: Instant) -> Vec<u32> {
    let mut indices = Vec::new();
    wheel.expire(now, usize::MAX, &mut |index| indices.push(index));
    indices
}

#[test]
fn a_timer_fires_once_never_early() {
    // Distances around every level's edges, from positions in the middle of slots.
    for start in [0, 1, 63, 64, 4_095, 123_456_789] {
        for distance in [
            0,
            1,
            2,
            62,
            63,
            64,
            65,
            127,
            128,
            4_095,
            4_096,
            4_097,
            262_143,
            262_144,
            1 << 30,
            1 << 40,
        ] {
            let mut wheel = TimerWheel::new(at(start));
            wheel.arm(7, at(start + distance));
            if distance > 0 {
                assert_eq!(
                    fired(&mut wheel, at(start + distance - 1)),
                    [0_u32; 0],
                    "{start} + {distance}"
                );
            }
            assert!(wheel.next_due().unwrap() <= at(start + distance));
            assert_eq!(
                fired(&mut wheel, at(start + distance)),
                [7],
                "{start} + {distance}"
            );
            assert_eq!(
                fired(&mut wheel, at(start + distance + 100_000)),
                [0_u32; 0]
            );
            assert_eq!((wheel.armed(), wheel.next_due()), (0, None));
        }
    }
}

#[test]
fn a_fraction_of_a_millisecond_is_rounded_up() {
    let mut wheel = TimerWheel::new(Instant::ZERO);
    wheel.arm(0, Instant::from_micros(1_001));
    assert_eq!(fired(&mut wheel, Instant::from_micros(1_999)), [0_u32; 0]);
    assert_eq!(fired(&mut wheel, at(2)), [0]);
}

#[test]
fn a_time_in_the_past_is_due_at_once() {
    let mut wheel = TimerWheel::new(at(1_000));
    wheel.arm(3, at(5));
    assert_eq!(wheel.next_due(), Some(at(1_000)));
    assert_eq!(fired(&mut wheel, at(1_000)), [3]);
}

#[test]
fn a_timer_can_be_moved_both_ways_and_cancelled() {
    let mut wheel = TimerWheel::new(at(0));
    wheel.arm(1, at(100));
    wheel.arm(1, at(500));
    wheel.arm(2, at(500));
    wheel.arm(2, at(50));
    wheel.arm(3, at(60));
    wheel.cancel(3);
    wheel.cancel(3);
    wheel.cancel(99);
    assert_eq!(wheel.armed(), 2);
    assert_eq!(fired(&mut wheel, at(200)), [2]);
    assert!(wheel.is_armed(1) && !wheel.is_armed(2));
    assert_eq!(fired(&mut wheel, at(499)), [0_u32; 0]);
    assert_eq!(fired(&mut wheel, at(500)), [1]);
}

#[test]
fn pushing_back_and_then_forward_again_keeps_the_nearer_time() {
    let mut wheel = TimerWheel::new(at(0));
    wheel.arm(1, at(100));
    wheel.arm(1, at(10_000));
    wheel.arm(1, at(150));
    assert_eq!(fired(&mut wheel, at(149)), [0_u32; 0]);
    assert_eq!(fired(&mut wheel, at(150)), [1]);
}

#[test]
fn the_budget_bounds_one_call_and_nothing_is_lost() {
    let mut wheel = TimerWheel::new(at(0));
    for index in 0..1_000 {
        wheel.arm(index, at(5_000 + u64::from(index % 3)));
    }
    let mut all = Vec::new();
    let mut calls = 0;
    loop {
        let touched = wheel.expire(at(6_000), 7, &mut |index| all.push(index));
        assert!(touched <= 7);
        calls += 1;
        if touched < 7 {
            break;
        }
        // In the midst of a slot the wheel takes new timers.
        wheel.arm(2_000, at(6_000));
        wheel.cancel(2_000);
    }
    assert!(calls > 140);
    let order: Vec<u32> = all.iter().map(|index| index % 3).collect();
    assert!(order.is_sorted(), "by due time");
    all.sort_unstable();
    assert_eq!(all, (0..1_000).collect::<Vec<_>>());
}

#[test]
fn a_million_timers_all_fire_in_time() {
    let mut wheel = TimerWheel::new(at(0));
    let mut random = Seeded::new(14);
    let mut dues = Vec::new();
    for index in 0..1_000_000 {
        let due = u64::try_from(random.below(200_000)).unwrap();
        wheel.arm(index, at(due));
        dues.push(due);
    }
    assert_eq!(wheel.armed(), 1_000_000);
    let mut count = 0_u32;
    let mut now = 0;
    while wheel.armed() > 0 {
        let before = now;
        now += 997;
        wheel.expire(at(now), usize::MAX, &mut |index| {
            let due = dues[index as usize];
            assert!(
                due <= now && (due > before || before == 0),
                "due {due} fired in ({before}, {now}]"
            );
            count += 1;
        });
    }
    assert_eq!(count, 1_000_000);
}

/// One timer is far away, and yet few wake-ups lead to it.
#[test]
fn a_sleeper_that_follows_next_due_wakes_seldom() {
    let mut wheel = TimerWheel::new(at(12_345));
    wheel.arm(0, at(12_345 + 7_200_000));
    let mut wakes = 0;
    loop {
        let due = wheel.next_due().unwrap();
        wakes += 1;
        if fired(&mut wheel, due) == [0] {
            break;
        }
    }
    assert!(wakes <= 11, "{wakes} wake-ups");
}

#[test]
fn random_use_agrees_with_a_sorted_map() {
    for seed in 15..25 {
        let mut random = Seeded::new(seed);
        let mut now = random.bits() >> 30;
        let mut wheel = TimerWheel::new(at(now));
        let mut model: BTreeMap<u32, u64> = BTreeMap::new();
        for _ in 0..20_000 {
            let index = u32::try_from(random.below(200)).unwrap();
            match random.below(6) {
                0..=2 => {
                    let span = 1 << random.below(22);
                    let due = (now + u64::try_from(random.below(span)).unwrap())
                        .saturating_sub(random.bits() % 50);
                    wheel.arm(index, at(due));
                    model.insert(index, due);
                }
                3 => {
                    wheel.cancel(index);
                    model.remove(&index);
                }
                _ => {
                    let span = 1 << random.below(16);
                    now += u64::try_from(random.below(span)).unwrap();
                    let budget = if random.below(2) == 0 {
                        usize::MAX
                    } else {
                        random.below(5)
                    };
                    // What is already late is due at once, in any order.
                    let floor = wheel.position;
                    let mut last = floor;
                    let touched = wheel.expire(at(now), budget, &mut |index| {
                        let due = model.remove(&index).expect("armed");
                        assert!(due <= now, "seed {seed}: early");
                        assert!(due.max(floor) >= last, "seed {seed}: out of order");
                        last = due.max(floor);
                    });
                    if touched < budget {
                        assert!(model.values().all(|due| *due > now), "seed {seed}: late");
                    }
                }
            }
            assert_eq!(wheel.armed(), model.len());
            assert_eq!(wheel.is_armed(index), model.contains_key(&index));
            match (wheel.next_due(), model.values().min()) {
                (Some(due), Some(first)) => {
                    assert!(due.millis() <= *first.max(&wheel.position), "seed {seed}")
                }
                (None, None) => {}
                other => panic!("seed {seed}: {other:?}"),
            }
        }
    }
}
