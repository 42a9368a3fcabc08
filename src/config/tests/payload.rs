//! The section `gpu`: the pipeline and what runs it.

use super::*;
use crate::config::payload::{self, Attach, Instead, Kernel, OnMatch};

/// A file whose payload stage has this pipeline.
fn staged(pipeline: &str) -> String {
    with(&format!(
        r#""gpu": {{"enabled": true, "pipeline": [{pipeline}]}}"#
    ))
}

#[test]
fn a_pipeline_becomes_rules_in_their_order() {
    let text = staged(
        r#"{"kernel": "pattern", "patterns_file": "/r", "direction": "rx", "ports": [80], "addresses": ["10.0.0.0/8"]},
           {"kernel": "PATTERN", "patterns_file": "/r", "attach": "packet", "on_match": "drop", "min_payload": 10},
           {"kernel": "chacha20", "key_file": "/k"}, {"kernel": "stats"}, {"kernel": "crc32c", "attach": "packet"},
           {"kernel": "pattern", "patterns_file": "/r", "on_match": "mark", "mark": 7}"#,
    );
    let gpu = load(&text).unwrap().gpu.unwrap();
    let [first, second, third, fourth, fifth, sixth] = gpu.pipeline.as_slice() else {
        panic!("{gpu:?}")
    };
    assert_eq!(first.path, "gpu.pipeline[0]");
    assert_eq!(
        (first.rx, first.tx, first.attach),
        (true, false, Attach::Stream)
    );
    assert_eq!(first.ports, [80]);
    assert_eq!(first.networks, [(Ipv4Addr::new(10, 0, 0, 0), 8)]);
    let dropping = Kernel::Pattern {
        file: "/r".to_owned(),
        on_match: OnMatch::Drop,
    };
    assert_eq!((&second.kernel, second.min_payload), (&dropping, 10));
    assert_eq!(
        third.kernel,
        Kernel::Chacha20 {
            key_file: "/k".to_owned()
        }
    );
    assert_eq!(fourth.kernel, Kernel::Stats);
    assert_eq!(fifth.attach, Attach::Packet);
    let Kernel::Pattern { on_match, .. } = &sixth.kernel else {
        panic!("{sixth:?}")
    };
    assert_eq!(on_match, &OnMatch::Mark(7));
    // Written down and not enabled: nothing runs.
    assert!(
        load(&with(r#""gpu": {"pipeline": [{"kernel": "stats"}]}"#))
            .unwrap()
            .gpu
            .is_none()
    );
}

#[test]
fn rules_that_make_no_sense_say_why() {
    let faults = [
        (r#"{}"#, "gpu.pipeline[0].kernel: the kernel is not named"),
        (r#"7"#, "gpu.pipeline[0]: the number 7 found"),
        (
            r#"{"kernel": "stats", "prots": [1]}"#,
            "nearest known: ports",
        ),
        (
            r#"{"kernel": "pattern"}"#,
            "patterns_file: no file is named",
        ),
        (
            r#"{"kernel": "chacha20", "key_file": "k"}"#,
            "\"k\" is no absolute path",
        ),
        (
            r#"{"kernel": "stats", "on_match": "mark"}"#,
            "has no meaning for kernel \"stats\"",
        ),
        (
            r#"{"kernel": "chacha20", "key_file": "/k", "attach": "packet"}"#,
            "only read",
        ),
        (
            r#"{"kernel": "stats", "min_payload": 9}"#,
            "a stream has no segments",
        ),
        (
            r#"{"kernel": "stats", "writes": true}"#,
            "has no meaning for kernel \"stats\"",
        ),
        (
            r#"{"kernel": "user", "ptx_file": "/p", "without_gpu": "pass"}"#,
            "function: no function is named",
        ),
        (
            r#"{"kernel": "user", "function": "f", "without_gpu": "pass"}"#,
            "ptx_file: no file is named",
        ),
        (
            r#"{"kernel": "user", "ptx_file": "/p", "function": "f", "without_gpu": "pass", "writes": true}"#,
            "must not be left out",
        ),
        (
            r#"{"kernel": "user", "ptx_file": "/p", "function": "f", "without_gpu": "pass", "attach": "packet"}"#,
            "the port's own memory",
        ),
        (
            r#"{"kernel": "user", "ptx_file": "/p", "function": "f"}"#,
            "cannot run kernel \"user\" of gpu.pipeline[0]",
        ),
        (
            r#"{"kernel": "stats", "addresses": ["10.0.0.1"]}"#,
            "is no network",
        ),
        (
            r#"{"kernel": "pattern", "patterns_file": "/r", "on_match": "drop"}"#,
            "a stream cannot lose bytes",
        ),
        (
            r#"{"kernel": "pattern", "patterns_file": "/r", "on_match": "mirror"}"#,
            "mirror_file: no file is named",
        ),
    ];
    for (rule, wanted) in faults {
        one_fault(&staged(rule), &[wanted]);
    }
    one_fault(&staged(""), &["gpu.enabled: there is nothing to run"]);
    let many = vec![r#"{"kernel": "stats"}"#; 17].join(",");
    one_fault(&staged(&many), &["17 entries", "at most 16"]);
}

#[test]
fn a_gpu_is_described_by_its_keys() {
    let staged = |keys: &str| {
        with(&format!(
            r#""gpu": {{"enabled": true, {keys}, "pipeline": [{{"kernel": "stats"}}]}}"#
        ))
    };
    let gpu = good(&staged(r#""mode": "launch""#)).gpu.unwrap();
    assert_eq!(
        (gpu.mode, gpu.batches.max_packets),
        (payload::Mode::Launch, 64)
    );
    assert_eq!((gpu.on_full, gpu.on_timeout), (Instead::Cpu, Instead::Cpu));
    let config = good(&staged(
        r#""mode": "persistent", "on_full": "wait", "on_timeout": "drop", "timeout_us": 100, "batch_slots": 8"#,
    ));
    assert!(config.remarks.is_empty(), "{:?}", config.remarks);
    let gpu = config.gpu.unwrap();
    assert_eq!(
        (gpu.mode, gpu.batches.max_packets),
        (payload::Mode::Persistent, 32)
    );
    assert_eq!(
        (gpu.on_full, gpu.on_timeout),
        (Instead::Wait, Instead::Drop)
    );
    assert_eq!(
        (gpu.batches.slots, gpu.batches.timeout.as_micros()),
        (8, 100)
    );
    assert_eq!(gpu.inside_a_program().mode, payload::Mode::Cpu);
    let gpu = good(&staged(r#""mode": "graph", "in_process": true"#))
        .gpu
        .unwrap();
    assert_eq!(gpu.inside_a_program().mode, payload::Mode::Graph);
    one_fault(
        &with(
            r#""gpu": {"enabled": true, "on_full": "bypass", "pipeline": [{"kernel": "chacha20", "key_file": "/k"}]}"#,
        ),
        &["gpu.on_full: a kernel that writes must not be passed over"],
    );
}

#[test]
fn a_users_function_is_described_by_its_rule() {
    use crate::config::payload::{Kernel, OnMatch, User, WithoutGpu};
    let rule = r#"{"kernel": "user", "ptx_file": "/p", "function": "f", "writes": true, "on_match": "mark", "mark": 3, "mirror_file": "/m"}"#;
    let text = format!(r#""gpu": {{"enabled": true, "mode": "launch", "pipeline": [{rule}]}}"#);
    let gpu = good(&with(&text)).gpu.unwrap();
    let wanted = Kernel::User(User {
        file: "/p".to_owned(),
        function: "f".to_owned(),
        writes: true,
        on_match: OnMatch::Mark(3),
        mirror_file: "/m".to_owned(),
        without: WithoutGpu::Refuse,
    });
    assert_eq!(gpu.pipeline[0].kernel, wanted);
    assert!(wanted.writes());
}
