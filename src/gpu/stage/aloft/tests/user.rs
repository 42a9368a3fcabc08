//! Functions of the operator's.

use super::*;

#[test]
fn a_users_function_judges_in_every_mode() {
    let (way, id) = (Direction::Rx, flow(1));
    for mode in MODES {
        let name = format!("judges-{}", mode.name());
        let mut gpu = with_user(&name, WithoutGpu::Refuse, |rule| {
            start(StandIn::new("", &[]), mode, vec![rule], |_| {})
        });
        assert_eq!(gpu.judge(id, way, 0, b"few \0 zeros").0, Verdict::Pass);
        assert_eq!(gpu.count("payload_matched"), 0);
        assert_eq!(gpu.judge(id, way, 11, b"\0\0\0").0, Verdict::Pass);
        assert_eq!(gpu.count("payload_matched"), 1);
        // Its own count goes on from chunk to chunk.
        let kept = gpu.stage().flows.get(&id).unwrap().states[0][0];
        assert_eq!(kept.0[0], 4, "{mode:?}");
        assert_eq!(gpu.count("payload_user_unjudged"), 0);
    }
}

#[test]
fn a_users_function_may_ask_for_every_verdict() {
    for (asks, verdict, counter) in [
        // A stream cannot lose bytes: dropped is reset.
        (0xf3, Verdict::Reset, "payload_flows_reset"),
        (0xf4, Verdict::Reset, "payload_flows_reset"),
        (0xf5, Verdict::Pass, "payload_chunks_marked"),
        // There is no file for it.
        (0xf6, Verdict::Pass, "payload_mirror_dropped"),
        (0xf7, Verdict::Reset, "payload_failed"),
        (0xff, Verdict::Reset, "payload_failed"),
    ] {
        let mut gpu = with_user(&format!("asks-{asks}"), WithoutGpu::Refuse, |rule| {
            start(StandIn::new("", &[]), Mode::Launch, vec![rule], |_| {})
        });
        let judged = gpu.judge(flow(1), Direction::Tx, 0, &[asks, 0, 0, 0, 0]);
        assert_eq!((judged.0, gpu.count(counter)), (verdict, 1), "{asks:#x}");
        // The number of the mark is the function's value: the zeros.
        let mark = if asks == 0xf5 { 4 } else { 0 };
        assert_eq!(gpu.stage().mark(flow(1)), mark);
    }
}

#[test]
fn a_users_payload_waits_for_a_place_and_is_refused_or_passes_without_a_gpu() {
    for (without, verdict) in [
        (WithoutGpu::Refuse, Verdict::Reset),
        (WithoutGpu::Pass, Verdict::Pass),
    ] {
        let name = format!("waits-{without:?}");
        let mut gpu = with_user(&name, without, |rule| {
            start(
                StandIn::new("hang=1@1", &[]),
                Mode::Launch,
                vec![rule],
                |config| {
                    config.batches.slots = 2;
                    config.batches.max_packets = 1;
                },
            )
        });
        let way = Direction::Rx;
        for index in 0..2 {
            let departure = gpu.offer(flow(index), way, 0, &mut b"harmless".to_vec());
            assert_eq!(departure, Departure::Flying);
            gpu.step();
        }
        // on_full says cpu, which cannot.
        let third = gpu.offer(flow(2), way, 0, &mut b"harmless".to_vec());
        assert_eq!(third, Departure::Waiting);
        gpu.now = gpu.now + Duration::from_secs(11);
        gpu.step();
        let late = gpu.offer(flow(3), way, 0, &mut b"harmless".to_vec());
        assert_eq!(late, Departure::Judged(verdict));
        assert_eq!(gpu.count("payload_user_unjudged"), 1);
    }
}

#[test]
fn a_chunk_between_two_kernels_waits_for_one_that_no_cpu_can_run() {
    let mut rules = one_pattern("between");
    let way = Direction::Rx;
    let mut gpu = with_user("between", WithoutGpu::Refuse, |rule| {
        rules.push(rule);
        let stand_in = StandIn::new("hanguser=1@1", &[]);
        start(stand_in, Mode::Launch, rules, |config| {
            config.batches.slots = 2;
            config.batches.max_packets = 2;
            config.batches.timeout = Duration::from_secs(36_000);
        })
    });
    // The function hangs: two batches of one chunk fill its ring, the third chunk has come through the pattern.
    for index in 0..3 {
        let departure = gpu.offer(flow(index), way, 0, &mut b"harmless".to_vec());
        assert_eq!(departure, Departure::Flying);
        gpu.wait_until(|stage| count(stage, "payload_chunks_offloaded") > u64::from(index));
        // It has waited long enough for others.
        gpu.now = gpu.now + Duration::from_millis(1);
        gpu.step();
    }
    gpu.wait_until(|stage| !stage.air.as_ref().unwrap().stalled.is_empty());
    let whose = gpu.stage().air.as_ref().unwrap().stalled[0].0;
    assert_eq!(gpu.stage().aloft(whose, way), Aloft::Flying);
    gpu.stand_in.go();
    let wanted = Aloft::Landed {
        bytes: 8,
        verdict: Verdict::Pass,
        wrote: false,
    };
    assert_eq!(gpu.wait(whose, way), wanted);
    assert_eq!(gpu.count("payload_user_unjudged"), 0);
}
