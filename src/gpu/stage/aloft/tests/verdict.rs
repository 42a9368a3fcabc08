//! What is judged, and that it is what the CPU says.

use super::*;

const CHUNKS: u64 = 40;

#[test]
fn every_mode_says_what_the_cpu_says() {
    for mode in MODES {
        let (rules, files) = all_rules(mode.name());
        let mut cpu = Pipeline::load(&Gpu::on_cpu(rules.clone()), 1, FrameMemory::Port(&|| None))
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
