use core::time::Duration;

use super::super::tests::{ends, pattern};
use super::*;
use crate::config::payload::{Kernel, Mode, OnMatch, PayloadRule, WithoutGpu};
use crate::gpu::pipeline::Pipeline;
use crate::gpu::pipeline::tests::rule;
use crate::gpu::tests::{MODES, StandIn, load, with_user};

/// A stage on a stand-in, with a clock that only a test moves.
struct Flying {
    stand_in: StandIn,
    pipeline: Pipeline,
    now: Instant,
}

fn flow(index: u32) -> FlowId {
    FlowId {
        index,
        generation: 1,
    }
}

/// Rules as files, built before their files go.
fn start(
    stand_in: StandIn,
    mode: Mode,
    rules: Vec<PayloadRule>,
    set: impl FnOnce(&mut Gpu),
) -> Flying {
    let mut config = stand_in.config(mode, rules);
    set(&mut config);
    let pipeline = load(&config);
    for rule in &config.pipeline {
        if let Kernel::Pattern { file, .. } = &rule.kernel {
            // A test that starts twice has taken it away already.
            let _ = std::fs::remove_file(file);
        }
    }
    Flying {
        pipeline,
        stand_in,
        now: Instant::from_millis(1),
    }
}

impl Flying {
    fn stage(&mut self) -> &mut StreamStage {
        self.pipeline.stream.as_mut().unwrap()
    }

    fn offer(&mut self, id: FlowId, way: Direction, offset: u64, bytes: &mut [u8]) -> Departure {
        let now = self.now;
        let mut chunk = Chunk {
            direction: way,
            ends: ends(),
            offset,
            bytes,
        };
        self.stage().take_off(now, id, &mut chunk, id.index)
    }

    fn step(&mut self) {
        let now = self.now;
        self.stage().step(now);
    }

    /// Steps until what is on its way has come down.
    fn wait(&mut self, id: FlowId, way: Direction) -> Aloft {
        self.wait_until(|stage| stage.aloft(id, way) != Aloft::Flying);
        self.stage().aloft(id, way)
    }

    fn wait_until(&mut self, is_so: impl Fn(&StreamStage) -> bool) {
        let began = crate::time::monotonic();
        while !is_so(self.stage()) {
            let waited = crate::time::monotonic().since(began);
            assert!(waited < Duration::from_secs(60), "nothing came down");
            self.step();
            std::thread::yield_now();
        }
    }

    /// Sends a chunk through and puts it down; its verdict, and the bytes as they are then.
    fn judge(
        &mut self,
        id: FlowId,
        way: Direction,
        offset: u64,
        text: &[u8],
    ) -> (Verdict, Vec<u8>) {
        let mut bytes = text.to_vec();
        match self.offer(id, way, offset, &mut bytes) {
            Departure::Judged(verdict) => return (verdict, bytes),
            Departure::Waiting => panic!("there was no place"),
            Departure::Flying => {}
        }
        let verdict = match self.wait(id, way) {
            Aloft::Landed { verdict, .. } => verdict,
            other => panic!("{other:?}"),
        };
        assert!(self.stage().fetch(id, way, 0, &mut bytes));
        self.stage().put_down(id, way);
        (verdict, bytes)
    }

    fn count(&mut self, wanted: &str) -> u64 {
        count(self.stage(), wanted)
    }
}

fn count(stage: &StreamStage, wanted: &str) -> u64 {
    let mut found = None;
    stage.report(&mut |name, value| {
        if name == wanted {
            found = Some(value);
        }
    });
    found.unwrap()
}

/// Rules of every kernel. Their files stay until the end of the test.
fn all_rules(name: &str) -> (Vec<PayloadRule>, Vec<std::path::PathBuf>) {
    let marks = pattern(&format!("{name}-mark"), OnMatch::Mark(7));
    let resets = pattern(&format!("{name}-reset"), OnMatch::Reset);
    let file = |rule: &PayloadRule| match &rule.kernel {
        Kernel::Pattern { file, .. } => std::path::PathBuf::from(file),
        _ => unreachable!(),
    };
    let (first, second) = (file(&marks), file(&resets));
    std::fs::write(&first, "abc\ni\"BcD\"\n\"\\x00\\x00\"\ncab\n").unwrap();
    std::fs::write(&second, "never there\n").unwrap();
    let key = std::env::temp_dir().join(format!("knet-aloft-{}-{name}", std::process::id()));
    std::fs::write(&key, "0123456789abcdef".repeat(4)).unwrap();
    let cipher = rule(Kernel::Chacha20 {
        key_file: key.to_str().unwrap().to_owned(),
    });
    let rules = vec![
        marks,
        rule(Kernel::Stats),
        cipher,
        rule(Kernel::Crc32c),
        resets,
    ];
    (rules, vec![first, second, key])
}

fn one_pattern(name: &str) -> Vec<PayloadRule> {
    vec![pattern(name, OnMatch::Reset)]
}

const CHUNKS: u64 = 40;

#[test]
fn every_mode_says_what_the_cpu_says() {
    for mode in MODES {
        let (rules, files) = all_rules(mode.name());
        let mut cpu = Pipeline::load(&Gpu::on_cpu(rules.clone()), 1)
            .unwrap()
            .remove(0);
        let cpu = cpu.stream.as_mut().unwrap();
        let mut gpu = start(StandIn::new("", &[]), mode, rules, |_| {});
        for file in files {
            let _ = std::fs::remove_file(file);
        }
        let seed = 0x5eed_u64;
        let mut word = seed;
        let mut random = move |below: usize| {
            word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            usize::try_from(word >> 33).unwrap() % below
        };
        let mut offsets = [[0_u64; 2]; 5];
        for _ in 0..CHUNKS {
            let (index, side) = (random(5), random(2));
            let way = direction(side);
            let most = if random(8) == 0 { 16_384 } else { 700 };
            let length = 1 + random(most);
            let letters = b"abcdABCD\0 ";
            let text: Vec<u8> = (0..length)
                .map(|_| letters[random(letters.len())])
                .collect();
            let offset = &mut offsets[index][side];
            let id = flow(u32::try_from(index).unwrap());
            let mut wanted = text.clone();
            let verdict = cpu.judge(
                id,
                &mut Chunk {
                    direction: way,
                    ends: ends(),
                    offset: *offset,
                    bytes: &mut wanted,
                },
            );
            assert_eq!(
                gpu.judge(id, way, *offset, &text),
                (verdict, wanted),
                "mode {mode:?} seed {seed:#x}"
            );
            *offset += length as u64;
        }
        for name in [
            "payload_bytes",
            "payload_matched",
            "payload_chunks",
            "payload_chunks_marked",
            "payload_pattern_matches",
            "payload_stats_bytes",
            "payload_stats_bytes_printable",
            "payload_stats_chunks_sampled",
            "payload_stats_chunks_random",
            "payload_crc32c_last",
        ] {
            assert_eq!(gpu.count(name), count(cpu, name), "mode {mode:?} {name}");
        }
        assert_eq!(gpu.count("payload_chunks_offloaded"), 5 * CHUNKS);
        assert_eq!(gpu.stage().mark(flow(0)), 7);
        assert_eq!(gpu.count("payload_gpu_buffers_out"), 0);
    }
}

#[test]
fn chunks_of_many_flows_go_together() {
    for mode in MODES {
        let mut gpu = start(
            StandIn::new("hang=1@1", &[]),
            mode,
            one_pattern("many"),
            |_| {},
        );
        let texts: [&[u8]; 2] = [b"it is forbidden", b"it is not"];
        assert_eq!(
            gpu.offer(flow(0), Direction::Rx, 0, &mut texts[0].to_vec()),
            Departure::Flying
        );
        gpu.step();
        // The first one is out and hangs: the others gather.
        for index in 1..=20 {
            let text = texts[index as usize % 2];
            assert_eq!(
                gpu.offer(flow(index), Direction::Tx, 0, &mut text.to_vec()),
                Departure::Flying
            );
        }
        assert_eq!(gpu.count("payload_gpu_batches"), 1);
        gpu.stand_in.go();
        for index in 1..=20 {
            let wanted = if index % 2 == 0 {
                Verdict::Reset
            } else {
                Verdict::Pass
            };
            let down = gpu.wait(flow(index), Direction::Tx);
            assert!(
                matches!(down, Aloft::Landed { verdict, wrote: false, .. } if verdict == wanted),
                "{down:?}"
            );
        }
        assert_eq!(gpu.count("payload_gpu_batches"), 2);
        let mut woken = Vec::new();
        gpu.stage().take_woken(&mut woken);
        assert_eq!(woken.len(), 21);
    }
}

#[test]
fn a_pattern_is_found_where_the_cpu_takes_over_from_the_gpu() {
    for mode in MODES {
        let stand_in = StandIn::new("hang=1@2", &[]);
        let mut gpu = start(stand_in, mode, one_pattern("over"), |_| {});
        let (id, way) = (flow(1), Direction::Rx);
        assert_eq!(gpu.judge(id, way, 0, b"it is forb").0, Verdict::Pass);
        let mut rest = *b"idden";
        assert_eq!(gpu.offer(id, way, 10, &mut rest), Departure::Flying);
        gpu.step();
        gpu.now = gpu.now + Duration::from_secs(11);
        gpu.step();
        assert_eq!(gpu.stage().aloft(id, way), Aloft::Failed { bytes: 5 });
        gpu.stage().put_down(id, way);
        let mut chunk = Chunk {
            direction: way,
            ends: ends(),
            offset: 10,
            bytes: &mut rest,
        };
        assert_eq!(gpu.stage().judge(id, &mut chunk), Verdict::Reset);
    }
}

#[test]
fn a_pattern_is_found_where_the_gpu_goes_on_from_the_cpu() {
    let mut gpu = start(
        StandIn::new("", &[]),
        Mode::Launch,
        one_pattern("on"),
        |_| {},
    );
    let (id, way) = (flow(1), Direction::Tx);
    for (offset, part) in [(0, "it is forb"), (10, "id")] {
        let mut chunk = Chunk {
            direction: way,
            ends: ends(),
            offset,
            bytes: &mut part.as_bytes().to_vec(),
        };
        assert_eq!(gpu.stage().judge(id, &mut chunk), Verdict::Pass);
    }
    assert_eq!(gpu.judge(id, way, 12, b"den").0, Verdict::Reset);
}

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
        assert_eq!(gpu.count("payload_gpu_on"), 0, "{faults} {mode:?}");
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
fn a_flow_that_ends_aloft_gives_its_buffer_back() {
    let mut gpu = start(
        StandIn::new("", &[]),
        Mode::Launch,
        one_pattern("ends"),
        |_| {},
    );
    for index in 0..200 {
        let way = Direction::Rx;
        gpu.offer(flow(index), way, 0, &mut b"harmless".to_vec());
        if index % 3 == 0 {
            gpu.wait(flow(index), way);
        }
        gpu.stage().forget(flow(index));
        gpu.step();
    }
    gpu.wait_until(|stage| count(stage, "payload_gpu_buffers_out") == 0);
    assert_eq!(gpu.count("payload_flows"), 0);
}

#[test]
fn what_cannot_be_ciphered_is_reset_by_the_gpu_too() {
    let (rules, files) = all_rules("cipher");
    let cipher = rules[2].clone();
    let mut gpu = start(StandIn::new("", &[]), Mode::Launch, vec![cipher], |_| {});
    for file in files {
        let _ = std::fs::remove_file(file);
    }
    let judged = gpu.judge(
        flow(0),
        Direction::Tx,
        (1 << 38) - 4,
        b"behind the key stream",
    );
    assert_eq!(judged.0, Verdict::Reset);
    assert_eq!(gpu.count("payload_failed"), 1);
}

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
