use super::super::pipeline::Pipeline;
use super::super::pipeline::tests::{pipeline, rule};
use super::packet::DROPS_MAX;
use super::*;
use crate::config::payload::{Attach, Kernel, OnMatch, PayloadRule};

const FLOW: FlowId = FlowId {
    index: 3,
    generation: 1,
};

pub(super) fn ends() -> Ends {
    Ends {
        local: "10.0.0.2:80".parse().unwrap(),
        remote: "10.0.0.1:40000".parse().unwrap(),
    }
}

/// A rule that looks for `forbidden`, in a file without a name that stays open: nothing of it is left behind.
pub(super) fn pattern(name: &str, on_match: OnMatch) -> PayloadRule {
    let made = rustix::fs::memfd_create(name, rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::io::write(&made, b"forbidden\n").unwrap();
    let number = std::os::fd::IntoRawFd::into_raw_fd(made);
    rule(Kernel::Pattern {
        file: format!("/proc/self/fd/{number}"),
        on_match,
    })
}

fn stage(rules: Vec<PayloadRule>) -> Pipeline {
    pipeline(rules).unwrap()
}

fn judge(stage: &mut Pipeline, direction: Direction, offset: u64, text: &str) -> Verdict {
    let mut bytes = text.as_bytes().to_vec();
    let mut chunk = Chunk {
        direction,
        ends: ends(),
        offset,
        bytes: &mut bytes,
    };
    if let Some(stage) = &mut stage.packet_rx {
        stage.judge(&mut chunk)
    } else {
        stage.stream.as_mut().unwrap().judge(FLOW, &mut chunk)
    }
}

fn count(stage: &Pipeline, wanted: &str) -> u64 {
    let mut found = None;
    let mut visit = |name: &str, value| {
        if name == wanted {
            found = Some(value);
        }
    };
    if let Some(stage) = &stage.packet_rx {
        stage.report(&mut visit);
    }
    if let Some(stage) = &stage.stream {
        stage.report(&mut visit);
    }
    found.unwrap()
}

#[test]
fn a_forbidden_stream_is_reset_and_stays_so() {
    let mut stage = stage(vec![pattern("reset", OnMatch::Reset)]);
    assert_eq!(
        judge(&mut stage, Direction::Rx, 0, "GET /forb"),
        Verdict::Pass
    );
    // The other direction has a state of its own.
    assert_eq!(judge(&mut stage, Direction::Tx, 0, "idden"), Verdict::Pass);
    assert_eq!(judge(&mut stage, Direction::Rx, 9, "idden"), Verdict::Reset);
    assert_eq!(
        judge(&mut stage, Direction::Rx, 14, "harmless"),
        Verdict::Reset
    );
    assert_eq!(count(&stage, "payload_flows_reset"), 1);
    assert_eq!(count(&stage, "payload_pattern_matches"), 1);
    stage.stream.as_mut().unwrap().forget(FLOW);
    assert_eq!(judge(&mut stage, Direction::Rx, 0, "idden"), Verdict::Pass);
    assert_eq!(count(&stage, "payload_flows"), 1);
}

#[test]
fn a_rule_for_one_direction_leaves_the_other_alone() {
    let mut only_sent = pattern("tx", OnMatch::Reset);
    only_sent.rx = false;
    let mut stage = stage(vec![only_sent]);
    assert_eq!(
        judge(&mut stage, Direction::Rx, 0, "forbidden"),
        Verdict::Pass
    );
    assert_eq!(
        judge(&mut stage, Direction::Tx, 0, "forbidden"),
        Verdict::Reset
    );
}

#[test]
fn a_segment_that_is_always_dropped_ends_in_a_reset() {
    let mut dropping = pattern("drop", OnMatch::Drop);
    dropping.attach = Attach::Packet;
    let mut stage = stage(vec![dropping]);
    for _ in 0..DROPS_MAX {
        assert_eq!(
            judge(&mut stage, Direction::Rx, 0, "forbidden"),
            Verdict::Drop
        );
    }
    assert_eq!(
        judge(&mut stage, Direction::Rx, 0, "forbidden"),
        Verdict::Reset
    );
    assert_eq!(
        count(&stage, "payload_segments_dropped"),
        u64::from(DROPS_MAX)
    );
    assert_eq!(count(&stage, "payload_flows_reset_drops"), 1);
}

#[test]
fn a_probe_in_between_forgives_nothing() {
    let mut dropping = pattern("probe", OnMatch::Drop);
    dropping.attach = Attach::Packet;
    let mut stage = stage(vec![dropping]);
    for _ in 0..DROPS_MAX {
        assert_eq!(
            judge(&mut stage, Direction::Rx, 0, "forbidden"),
            Verdict::Drop
        );
        assert_eq!(judge(&mut stage, Direction::Rx, 0, "\0"), Verdict::Pass);
    }
    assert_eq!(
        judge(&mut stage, Direction::Rx, 0, "forbidden"),
        Verdict::Reset
    );
}

#[test]
fn other_segments_in_between_forgive_the_dropped_ones() {
    let mut dropping = pattern("forgive", OnMatch::Drop);
    dropping.attach = Attach::Packet;
    dropping.min_payload = 3;
    let mut stage = stage(vec![dropping]);
    for _ in 0..3 * DROPS_MAX {
        assert_eq!(
            judge(&mut stage, Direction::Rx, 0, "forbidden"),
            Verdict::Drop
        );
        assert_eq!(judge(&mut stage, Direction::Rx, 0, "fine"), Verdict::Pass);
    }
    // Too short to be looked at, it forgives nothing either.
    assert_eq!(judge(&mut stage, Direction::Rx, 0, "ok"), Verdict::Pass);
    // Segments know nothing of each other.
    assert_eq!(judge(&mut stage, Direction::Rx, 0, "forb"), Verdict::Pass);
    assert_eq!(judge(&mut stage, Direction::Rx, 4, "idden"), Verdict::Pass);
}

#[test]
fn kernels_run_in_the_order_of_the_pipeline() {
    let key = std::env::temp_dir().join(format!("knet-stage-{}-key", std::process::id()));
    std::fs::write(&key, "00".repeat(32)).unwrap();
    let cipher = || {
        rule(Kernel::Chacha20 {
            key_file: key.to_str().unwrap().to_owned(),
        })
    };
    let mut hidden = stage(vec![cipher(), pattern("hidden", OnMatch::Reset)]);
    let mut twice = stage(vec![cipher(), cipher(), pattern("twice", OnMatch::Reset)]);
    std::fs::remove_file(&key).unwrap();
    assert_eq!(
        judge(&mut hidden, Direction::Rx, 0, "forbidden"),
        Verdict::Pass
    );
    assert_eq!(
        judge(&mut twice, Direction::Rx, 0, "forbidden"),
        Verdict::Reset
    );
}

#[test]
fn marks_and_mirrors_let_the_bytes_pass() {
    let file = std::env::temp_dir().join(format!("knet-stage-{}.pcap", std::process::id()));
    let path = file.to_str().unwrap().to_owned();
    let mut stage = stage(vec![
        pattern("mark", OnMatch::Mark(7)),
        pattern("mirror", OnMatch::Mirror(path)),
        pattern("pass", OnMatch::Pass),
    ]);
    std::fs::remove_file(&file).unwrap();
    assert_eq!(
        judge(&mut stage, Direction::Rx, 0, "forbidden"),
        Verdict::Pass
    );
    assert_eq!(count(&stage, "payload_chunks_marked"), 1);
    assert_eq!(count(&stage, "payload_chunks_mirrored"), 1);
    assert_eq!(count(&stage, "payload_matched"), 3);
    assert_eq!(count(&stage, "payload_bytes"), 27);
}

#[test]
fn a_flow_that_no_rule_covers_costs_nothing_but_its_entry() {
    let mut elsewhere = pattern("elsewhere", OnMatch::Reset);
    elsewhere.ports = vec![443];
    let mut stage = stage(vec![elsewhere]);
    assert_eq!(
        judge(&mut stage, Direction::Rx, 0, "forbidden"),
        Verdict::Pass
    );
    assert_eq!(count(&stage, "payload_chunks"), 0);
    assert!(stage.stream.unwrap().flows[&FLOW].states.is_empty());
}

#[test]
fn what_cannot_be_ciphered_is_reset() {
    let file = std::env::temp_dir().join(format!("knet-stage-{}-key-07", std::process::id()));
    std::fs::write(&file, "07".repeat(32)).unwrap();
    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let mut stage = stage(vec![rule(Kernel::Chacha20 {
        key_file: file.to_str().unwrap().to_owned(),
    })]);
    std::fs::remove_file(&file).unwrap();
    assert_eq!(
        judge(
            &mut stage,
            Direction::Tx,
            (1 << 38) - 4,
            "behind the key stream"
        ),
        Verdict::Reset
    );
    assert_eq!(count(&stage, "payload_failed"), 1);
}

#[test]
fn copies_that_a_slow_mirror_cannot_take_are_counted() {
    let path = std::env::temp_dir().join(format!("knet-stage-{}-fifo", std::process::id()));
    let made = std::process::Command::new("mkfifo")
        .arg(&path)
        .status()
        .unwrap();
    assert!(made.success());
    // Open both ways, so that it opens and nobody reads.
    let held = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(&path)
        .unwrap();
    let name = path.to_str().unwrap().to_owned();
    let mut stage = stage(vec![pattern("slow", OnMatch::Mirror(name))]);
    let text = format!("forbidden{}", "x".repeat(1_000));
    let mut offset = 0;
    while count(&stage, "payload_mirror_dropped") == 0 {
        assert!(offset < 100 << 20, "nothing was dropped");
        judge(&mut stage, Direction::Rx, offset, &text);
        offset += text.len() as u64;
    }
    std::fs::remove_file(&path).unwrap();
    drop(stage);
    drop(held);
}
