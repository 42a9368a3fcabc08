//! Batches that are late or fail, and drivers that do.

use super::*;

#[test]
fn a_late_batch_keeps_its_buffers_and_the_cpu_takes_over_until_it_is_back() {
    for mode in MODES {
        let stand_in = StandIn::new("hang=1@1", &[]);
        let mut gpu = start(stand_in, mode, one_pattern("late"), |_| {});
        let way = Direction::Rx;
        for index in 0..3 {
            gpu.offer(flow(index), way, 0, &mut b"harmless".to_vec());
            gpu.step();
        }
        gpu.now = gpu.now + Duration::from_secs(11);
        gpu.step();
        for index in 0..3 {
            assert_eq!(
                gpu.stage().aloft(flow(index), way),
                Aloft::Failed { bytes: 8 }
            );
            gpu.stage().put_down(flow(index), way);
        }
        assert_eq!(gpu.count("payload_chunks_redone"), 3);
        assert_eq!(gpu.count("payload_gpu_batches_late"), 1);
        // One was handed over, the others had only been gathered.
        assert_eq!(gpu.count("payload_gpu_buffers_out"), 1);
        assert!(gpu.stage().next_due(Instant::ZERO).is_some());
        let at_once = gpu.offer(flow(9), way, 0, &mut b"so forbidden".to_vec());
        assert_eq!(at_once, Departure::Judged(Verdict::Reset));
        gpu.stand_in.go();
        gpu.wait_until(|stage| count(stage, "payload_gpu_buffers_out") == 0);
        assert_eq!(gpu.judge(flow(10), way, 0, b"forbidden").0, Verdict::Reset);
        assert_eq!(gpu.count("payload_chunks_offloaded"), 1);
        assert_eq!(gpu.count("payload_gpu_on"), 1);
    }
}

#[test]
fn the_third_strike_is_the_last() {
    for (fault, mode) in [
        ("error=3@1\n", Mode::Launch),
        ("blank=1@1\n", Mode::Persistent),
    ] {
        // Each driver strikes once; what is left of a count of three is made by lateness.
        let stand_in = StandIn::new(&format!("{fault}hang=1@2"), &[]);
        let mut gpu = start(stand_in, mode, one_pattern("three"), |_| {});
        let way = Direction::Rx;
        gpu.offer(flow(0), way, 0, &mut b"harmless".to_vec());
        assert_eq!(gpu.wait(flow(0), way), Aloft::Failed { bytes: 8 });
        assert_eq!(gpu.count("payload_gpu_buffers_out"), 1);
        gpu.stage().put_down(flow(0), way);
        assert_eq!(gpu.count("payload_gpu_buffers_out"), 0);
        gpu.offer(flow(1), way, 0, &mut b"harmless".to_vec());
        gpu.step();
        gpu.now = gpu.now + Duration::from_secs(11);
        gpu.step();
        gpu.stage().put_down(flow(1), way);
        assert_eq!(gpu.count("payload_gpu_on"), 1);
        gpu.stage().air.as_ref().unwrap().gpu.strike("of the test");
        assert_eq!(gpu.count("payload_gpu_on"), 0);
        assert!(!gpu.stage().flies(flow(2), way, ends()));
        gpu.stand_in.go();
        let at_once = gpu.offer(flow(2), way, 0, &mut b"forbidden".to_vec());
        assert_eq!(at_once, Departure::Judged(Verdict::Reset));
        assert_eq!(gpu.count("payload_gpu_batches"), 2);
    }
}

#[test]
fn three_strikes_of_each_kind_are_too_many() {
    for (kind, mode) in [
        ("error=3", Mode::Launch),
        ("blank=1", Mode::Persistent),
        ("hang=1", Mode::Memops),
        ("hang=1", Mode::Graph),
        ("hang=1", Mode::Persistent),
    ] {
        let faults = format!("{kind}@2\n{kind}@4\n{kind}@5\n");
        let mut gpu = start(StandIn::new(&faults, &[]), mode, one_pattern(kind), |_| {});
        let way = Direction::Rx;
        // Those in between are done and forgive nothing.
        for (index, struck) in [(1, 0), (2, 1), (3, 1), (4, 2), (5, 3)] {
            assert_eq!(gpu.count("payload_gpu_on"), 1, "{kind} {index}");
            let id = flow(index);
            let departure = gpu.offer(id, way, 0, &mut b"so forbidden".to_vec());
            assert_eq!(departure, Departure::Flying);
            if kind == "hang=1" && [2, 4, 5].contains(&index) {
                gpu.step();
                gpu.now = gpu.now + Duration::from_secs(11);
                gpu.step();
            }
            let down = gpu.wait(id, way);
            let is_failed = down == Aloft::Failed { bytes: 12 };
            assert_eq!(is_failed, [2, 4, 5].contains(&index), "{kind}: {down:?}");
            gpu.stage().put_down(id, way);
            if kind == "hang=1" && is_failed {
                gpu.stand_in.go();
                gpu.wait_until(|stage| count(stage, "payload_gpu_buffers_out") == 0);
                gpu.stand_in.halt();
            }
            assert_eq!(
                gpu.count("payload_gpu_on"),
                u64::from(struck < 3),
                "{kind} {index}"
            );
        }
        let late = if kind == "hang=1" { 3 } else { 0 };
        assert_eq!(gpu.count("payload_gpu_batches_late"), late);
        assert_eq!(gpu.count("payload_chunks_redone"), 3);
        // The CPU judges from now on, and nothing is handed over.
        let at_once = gpu.offer(flow(9), way, 0, &mut b"so forbidden".to_vec());
        assert_eq!(at_once, Departure::Judged(Verdict::Reset));
        assert_eq!(gpu.count("payload_gpu_batches"), 5);
    }
}

#[test]
fn an_error_of_the_driver_or_a_broken_word_ends_it_at_once() {
    for (faults, mode) in [
        ("state=99@1", Mode::Launch),
        ("state=99@1", Mode::Persistent),
        ("state=0@1", Mode::Memops),
        ("state=4294967295@1", Mode::Graph),
        ("launch=700", Mode::Launch),
        ("launch=12345@5", Mode::Memops),
        ("wait=700@5", Mode::Memops),
        ("launch=700@3", Mode::Graph),
    ] {
        let stand_in = StandIn::new(faults, &[]);
        let mut gpu = start(stand_in, mode, one_pattern("broken"), |_| {});
        let way = Direction::Tx;
        for index in 0..8 {
            let departure = gpu.offer(flow(index), way, 0, &mut b"so forbidden".to_vec());
            let reset = match departure {
                Departure::Judged(verdict) => verdict == Verdict::Reset,
                Departure::Waiting => panic!("{faults}"),
                Departure::Flying => match gpu.wait(flow(index), way) {
                    Aloft::Failed { bytes: 12 } => true,
                    Aloft::Landed { verdict, .. } => verdict == Verdict::Reset,
                    other => panic!("{faults}: {other:?}"),
                },
            };
            assert!(reset, "{faults}");
            gpu.stage().put_down(flow(index), way);
        }
        // A call may fail behind the batch that led to it.
        gpu.wait_until(|stage| count(stage, "payload_gpu_on") == 0);
    }
}

#[test]
fn a_context_that_dies_is_noticed_when_a_batch_is_late() {
    for mode in MODES {
        let mut gpu = start(
            StandIn::new("crash=700@1", &[]),
            mode,
            one_pattern("dies"),
            |_| {},
        );
        let way = Direction::Rx;
        gpu.offer(flow(0), way, 0, &mut b"harmless".to_vec());
        gpu.step();
        // The kernel is at it, and dies, some time.
        let began = crate::time::monotonic();
        while gpu.count("payload_gpu_on") == 1 {
            assert!(crate::time::monotonic().since(began) < Duration::from_secs(60));
            gpu.now = gpu.now + Duration::from_secs(11);
            gpu.step();
            if gpu.stage().aloft(flow(0), way) == (Aloft::Failed { bytes: 8 }) {
                gpu.stage().put_down(flow(0), way);
                break;
            }
        }
        assert_eq!(gpu.count("payload_chunks_redone"), 1);
    }
}

#[test]
fn late_chunks_do_what_on_timeout_says() {
    for (on_timeout, wanted) in [
        (Instead::Bypass, Aloft::Bypassed { bytes: 12 }),
        (
            Instead::Drop,
            Aloft::Landed {
                bytes: 12,
                verdict: Verdict::Reset,
                wrote: false,
            },
        ),
    ] {
        let mut gpu = start(
            StandIn::new("hang=1@1", &[]),
            Mode::Launch,
            one_pattern(&format!("late-{on_timeout:?}")),
            |config| config.on_timeout = on_timeout,
        );
        let way = Direction::Rx;
        gpu.offer(flow(0), way, 0, &mut b"so forbidden".to_vec());
        gpu.step();
        gpu.now = gpu.now + Duration::from_secs(11);
        gpu.step();
        assert_eq!(gpu.stage().aloft(flow(0), way), wanted);
    }
}

#[test]
fn a_call_of_the_driver_that_never_returns_leaves_the_lcore_turning() {
    for (faults, mode) in [
        ("block=1@2", Mode::Launch),
        ("hang=1@2\nblockquery=1@1", Mode::Persistent),
        ("blockwait=1@5", Mode::Memops),
        ("blockgraph=1@3", Mode::Graph),
    ] {
        let stand_in = StandIn::new(faults, &[]);
        let mut gpu = start(stand_in, mode, one_pattern(mode.name()), |_| {});
        let (way, began) = (Direction::Rx, crate::time::monotonic());
        // As many as a graph's two rounds of four slots, so that each way comes to its call.
        for index in 0..40 {
            if gpu.count("payload_gpu_batches_late") > 0 {
                break;
            }
            if gpu.offer(flow(index), way, 0, &mut b"harmless".to_vec()) == Departure::Flying {
                for _ in 0..2_000 {
                    gpu.step();
                    if gpu.stage().aloft(flow(index), way) != Aloft::Flying {
                        break;
                    }
                    std::thread::park_timeout(Duration::from_micros(100));
                }
            }
            if gpu.stage().aloft(flow(index), way) == Aloft::Flying {
                gpu.now = gpu.now + Duration::from_secs(11);
                gpu.step();
                let failed = Aloft::Failed { bytes: 8 };
                assert_eq!(gpu.stage().aloft(flow(index), way), failed, "{mode:?}");
            }
            gpu.stage().put_down(flow(index), way);
        }
        assert_eq!(gpu.count("payload_gpu_batches_late"), 1, "{mode:?}");
        // The second and third strike are the call's, which is still out.
        for strikes in 1..=3 {
            assert_eq!(gpu.count("payload_gpu_on"), u64::from(strikes < 3));
            gpu.now = gpu.now + Duration::from_secs(11);
            gpu.step();
        }
        let at_once = gpu.offer(flow(99), way, 0, &mut b"so forbidden".to_vec());
        assert_eq!(at_once, Departure::Judged(Verdict::Reset));
        // The end waits a little for the driver, and not for good.
        drop(gpu.pipeline);
        assert!(crate::time::monotonic().since(began) < Duration::from_secs(50));
        gpu.stand_in.go();
    }
}
