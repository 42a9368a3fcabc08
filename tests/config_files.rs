//! The files that ship are those that the code makes and accepts.
//!
//! `KNET_BLESS=1 cargo test --test config_files` writes the made ones anew.

#![allow(clippy::expect_used, clippy::panic, reason = "a test's helper")]

use std::fs;
use std::path::{Path, PathBuf};

use knet::config::{self, Idle, PortChoice, Progress, key::Kind};

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn same(name: &str, made: &str) {
    if std::env::var_os("KNET_BLESS").is_some() {
        fs::write(path(name), made).expect(name);
    }
    let committed = fs::read_to_string(path(name)).expect(name);
    let differs = committed
        .lines()
        .zip(made.lines())
        .find(|(committed, made)| committed != made);
    assert!(
        committed == made,
        "{name} is not what the code makes (KNET_BLESS=1 writes it): {differs:?}"
    );
}

fn load(name: &str) -> config::Config {
    let config = config::load_file(&path(name)).unwrap_or_else(|faults| panic!("{faults}"));
    assert!(config.remarks.is_empty(), "{name}: {:?}", config.remarks);
    config
}

#[test]
fn the_schema_is_the_codes() {
    same("conf/schema.json", &config::schema::schema());
}

#[test]
fn the_reference_page_is_the_codes() {
    same("docs/config.md", &config::reference::page());
}

#[test]
fn the_shipped_file_is_the_codes_and_holds_every_key() {
    same("conf/knet_comm.conf", &config::reference::shipped());
    let text = fs::read_to_string(path("conf/knet_comm.conf")).expect("shipped file");
    let json: serde_json::Value = serde_json::from_str(&text).expect("plain JSON for every tool");
    for section in config::sections() {
        let object = section
            .path
            .split('.')
            .fold(&json, |object, name| &object[name]);
        for key in section.keys {
            assert!(
                object.get(key.name).is_some(),
                "{}.{} is missing",
                section.path,
                key.name
            );
        }
    }
}

#[test]
fn the_shipped_file_sets_nothing_but_the_port_and_the_address() {
    let shipped = load("conf/knet_comm.conf");
    let text = br#"{"interface": {"bdf_nums": ["0000:06:00.0"], "ip": "192.168.1.6"}}"#;
    let mut smallest = config::load_bytes("smallest", text).expect("smallest");
    smallest.file.clone_from(&shipped.file);
    smallest.hash = shipped.hash;
    assert_eq!(format!("{shipped:?}"), format!("{smallest:?}"));
}

#[test]
fn the_profiles_load() {
    let redis = load("conf/profiles/redis.json");
    assert!(redis.tcp.max_connections >= 10_000);
    assert!(
        redis
            .accelerate
            .programs
            .iter()
            .any(|program| program == "redis-server")
    );
    let latency = load("conf/profiles/latency.json");
    assert_eq!(
        (latency.run.idle, latency.run.progress),
        (Idle::Spin, Progress::Dedicated)
    );
    for (name, program) in [("nginx", "nginx"), ("memcached", "memcached")] {
        let profile = load(&format!("conf/profiles/{name}.json"));
        assert_eq!(profile.accelerate.programs[0], program);
        assert!(profile.tcp.max_connections >= 8_192);
    }
    let throughput = load("conf/profiles/throughput.json");
    assert_eq!(throughput.network.mtu, 9_000);
    assert_eq!(throughput.buffers.receive_ring(), 4 << 20);
    let no_nic = load("conf/profiles/no-nic.json");
    assert!(matches!(no_nic.port, PortChoice::Vdev(_)));
}

#[test]
fn the_schema_agrees_with_the_table() {
    let schema: serde_json::Value =
        serde_json::from_str(&config::schema::schema()).expect("schema");
    for section in config::sections() {
        let object = section
            .path
            .split('.')
            .fold(&schema, |object, name| &object["properties"][name]);
        assert_eq!(object["additionalProperties"], false, "{}", section.path);
        for key in section.keys {
            let property = &object["properties"][key.name];
            let expected = match key.kind {
                Kind::Whole { .. } => "integer",
                Kind::Switch => "boolean",
                Kind::Choice(_) | Kind::Text(_) => "string",
                Kind::TextList(_) | Kind::WholeList { .. } | Kind::Objects(_) => "array",
            };
            assert_eq!(property["type"], expected, "{}.{}", section.path, key.name);
            assert!(
                !property["default"].is_null(),
                "{}.{}",
                section.path,
                key.name
            );
        }
    }
}
