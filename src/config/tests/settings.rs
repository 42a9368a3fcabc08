//! What a good file becomes: defaults, rules across keys, remarks.

use core::time::Duration;

use super::*;
use crate::id::CpuId;

#[test]
fn the_smallest_file_has_every_default() {
    let config = good(SMALLEST);
    assert_eq!(config.port.to_string(), "0000:04:00.0");
    assert_eq!(
        config.network.addresses,
        [(Ipv4Addr::new(192, 168, 1, 58), 24)]
    );
    assert_eq!(
        (
            config.network.mac,
            config.network.gateway,
            config.network.vlan
        ),
        (None, None, None)
    );
    assert_eq!(config.network.mtu, 1500);
    assert_eq!(
        (config.mode, config.on_error, config.on_host_lost),
        (Mode::Private, OnError::Kernel, OnHostLost::Kernel)
    );
    assert_eq!(
        (config.run.progress, config.run.idle),
        (Progress::Dedicated, Idle::Adaptive)
    );
    assert_eq!(
        (config.run.budget, config.run.inline_grace),
        (Duration::from_micros(50), Duration::from_micros(200))
    );
    assert_eq!(
        (config.linger, config.linger_max),
        (Duration::from_secs(5), Duration::from_secs(120))
    );
    assert_eq!(config.tcp.max_connections, 4096);
    assert_eq!(
        (config.tcp.msl, config.tcp.fin_timeout),
        (Duration::from_secs(30), Duration::from_secs(600))
    );
    assert_eq!(config.tcp.ephemeral_ports, (49152, 65535));
    assert_eq!(
        (
            config.dpdk.cores,
            config.dpdk.workers,
            config.dpdk.socket_mem_mb
        ),
        (None, 1, None)
    );
    assert!(config.remarks.is_empty(), "{:?}", config.remarks);
    assert_eq!(config.hash, config_hash(SMALLEST.as_bytes()));
}

#[test]
fn a_knet_file_works_as_it_stands() {
    let text = r#"{
      "version": "1.4.0",
      "common": { "mode": 0, "log_level": "info", "ctrl_vcpu_nums": 1, "ctrl_ring_per_vcpu": 1, "ctrl_vcpu_ids": [2],
        "zcopy_enable": 1, "cothread_enable": 0 },
      "interface": { "user_bond_enable": 0, "user_bond_mode": 4, "bdf_nums": ["0000:3d:00.1"], "mac": "02:11:22:33:44:55",
        "ip": "10.20.30.40", "netmask": "255.255.252.0", "gateway": "10.20.28.1", "mtu": 1500 },
      "hw_offload": { "tso": 1, "lro": 1, "tcp_checksum": 1, "bifur_enable": 0 },
      "proto_stack": { "max_mbuf": 131072, "max_worker_num": 2, "max_route": 512, "max_arp": 2048, "max_tcpcb": 20000,
        "max_udpcb": 2000, "max_epollcb": 256, "tcp_sack": 1, "tcp_dack": 1, "msl_time": 10, "fin_timeout": 60, "min_port": 40960,
        "max_port": 61439, "max_sendbuf": 4194304, "def_sendbuf": 65536, "max_recvbuf": 4194304, "def_recvbuf": 65536,
        "tcp_cookie": 1, "reass_max": 500, "reass_timeout": 15, "synack_retries": 5, "zcopy_sge_len": 65535,
        "zcopy_sge_num": 8192, "epoll_data": "18446744073709551615" },
      "dpdk": { "core_list_global": "4-5", "queue_num": 2, "tx_cache_size": 1024, "rx_cache_size": 1024,
        "socket_mem": "--socket-mem=2048", "socket_limit": "--socket-limit=2048",
        "external_driver": "-dlibrte_net_hinic3.so", "telemetry": 1, "huge_dir": "", "base-virtaddr": "" }
    }"#;
    let config = good(text);
    assert_eq!(config.network.gateway, Some(Ipv4Addr::new(10, 20, 28, 1)));
    assert_eq!(
        config.network.addresses,
        [(Ipv4Addr::new(10, 20, 30, 40), 22)]
    );
    assert_eq!(config.network.mac, Some([2, 0x11, 0x22, 0x33, 0x44, 0x55]));
    assert_eq!(config.dpdk.cores, Some(vec![CpuId(4), CpuId(5)]));
    assert_eq!(config.dpdk.socket_mem_mb, Some(vec![2048]));
    assert_eq!(
        config.dpdk.external_driver.as_deref(),
        Some("librte_net_hinic3.so")
    );
    assert_eq!(config.log_level, crate::telemetry::Level::Info);
    let remarked: Vec<&str> = config
        .remarks
        .iter()
        .map(|remark| remark.path.as_str())
        .collect();
    assert!(remarked.contains(&"common.zcopy_enable"), "{remarked:?}");
    assert!(remarked.contains(&"common.ctrl_vcpu_ids"), "{remarked:?}");
    assert!(remarked.contains(&"proto_stack.tcp_cookie"), "{remarked:?}");
    assert!(
        !remarked.contains(&"proto_stack.zcopy_sge_len"),
        "a default needs no remark: {remarked:?}"
    );
}

#[test]
fn rules_across_keys() {
    one_fault(
        &with(r#""hw_offload": {"tso": 1}"#),
        &["hw_offload.tso: needs tcp_checksum"],
    );
    one_fault(
        &with(r#""proto_stack": {"max_sendbuf": 8192, "def_sendbuf": 8193}"#),
        &["above max_sendbuf"],
    );
    one_fault(
        &with(r#""proto_stack": {"max_mbuf": 8192}, "dpdk": {"rx_cache_size": 16384}"#),
        &["at least 18688"],
    );
    one_fault(
        &with(
            r#""dpdk": {"socket_mem": "--socket-mem=0,2048", "socket_limit": "--socket-limit=0,1024"}"#,
        ),
        &["below socket_mem"],
    );
    one_fault(
        &with(r#""dpdk": {"socket_mem": "1024"}"#),
        &["--socket-mem=MB"],
    );
    one_fault(
        &with(r#""dpdk": {"core_list_global": "1-2,2"}"#),
        &["CPU 2 is named twice"],
    );
    one_fault(
        &with(r#""dpdk": {"core_list_global": "1,320"}"#),
        &["CPU 320"],
    );
    one_fault(
        &with(r#""dpdk": {"external_driver": "-d/tmp/x.so"}"#),
        &["-dlibrte_net_NAME.so"],
    );
    one_fault(
        &with(r#""dpdk": {"huge_dir": "--huge-dir=/a.b"}"#),
        &["--huge-dir=/dev/hugepages"],
    );
    one_fault(
        &with(r#""common": {"cothread_enable": 1, "progress": "dedicated"}"#),
        &["contradicts cothread_enable"],
    );
    one_fault(
        &with(r#""common": {"mode": 1, "progress": "inline"}"#),
        &["contradicts mode: 1"],
    );
    one_fault(
        &with(r#""common": {"accelerate": {"addresses": ["1.2.3.4"]}}"#),
        &["1.2.3.4 is not ours"],
    );
    one_fault(
        &with(r#""common": {"accelerate": {"programs": ["bin/redis"]}}"#),
        &["relative path"],
    );
    assert_eq!(
        good(&with(r#""common": {"cothread_enable": 1}"#))
            .run
            .progress,
        Progress::Inline
    );
    let config = good(&with(r#""common": {"cothread_enable": 1, "mode": 1}"#));
    assert_eq!(
        (config.run.progress, config.mode, config.remarks.len()),
        (Progress::Dedicated, Mode::Shared, 1)
    );
    let config = good(&with(
        r#""dpdk": {"core_list_global": "3,1"}, "proto_stack": {"max_worker_num": 1}"#,
    ));
    assert_eq!((config.dpdk.workers, config.remarks.len()), (2, 1));
    assert_eq!(config.lcores(), 2);
}

#[test]
fn each_cpu_that_is_named_has_an_lcore() {
    let lcores = |sections: &str| good(&with(sections)).lcores();
    assert_eq!(lcores(""), 1);
    assert_eq!(lcores(r#""dpdk": {"core_list_global": "2"}"#), 1);
    assert_eq!(lcores(r#""dpdk": {"core_list_global": "1-4"}"#), 4);
    assert_eq!(lcores(r#""dpdk": {"core_list_global": "1-9"}"#), 8);
    assert_eq!(
        lcores(r#""dpdk": {"core_list_global": "1-4"}, "common": {"progress": "inline"}"#),
        1
    );
    let gpu = r#""gpu": {"enabled": true, "pipeline": [{"kernel": "stats"}]}"#;
    assert_eq!(
        lcores(&format!(r#""dpdk": {{"core_list_global": "1-4"}}, {gpu}"#)),
        4
    );
}

#[test]
fn what_is_not_served_is_remarked_on() {
    for (section, key, what) in [
        ("common", r#""budget_us": 60"#, "has no effect"),
        ("common", r#""inline_grace_us": 300"#, "has no effect"),
        (
            "proto_stack",
            r#""max_worker_num": 2"#,
            "has no effect without core_list_global",
        ),
    ] {
        let remarks = good(&with(&format!(r#""{section}": {{{key}}}"#))).remarks;
        assert_eq!(remarks.len(), 1, "{key}: {remarks:?}");
        assert!(remarks[0].to_string().contains(what), "{key}: {remarks:?}");
    }
    for keys in [
        r#""progress": "inline", "budget_us": 60, "inline_grace_us": 300"#,
        r#""cothread_enable": 1"#,
    ] {
        let remarks = good(&with(&format!(r#""common": {{{keys}}}"#))).remarks;
        assert!(remarks.is_empty(), "{keys}: {remarks:?}");
    }
    let config = good(&with(r#""hw_offload": {"tso": 1, "tcp_checksum": 1}"#));
    assert!(config.remarks.is_empty(), "{:?}", config.remarks);
    assert!(config.offload.tso && !config.offload.lro);
}

#[test]
fn a_policy_covers_what_it_lists() {
    let policy = Policy::from(&good(&with(
        r#""common": {"accelerate": {"programs": ["redis-server"], "ports": [6379]}}"#,
    )));
    assert!(
        policy.covers_program("/usr/bin/redis-server")
            && !policy.covers_program("/usr/bin/redis-cli")
    );
    assert!(policy.covers_port(6379) && !policy.covers_port(80));
    assert!(
        policy.covers_address(Ipv4Addr::new(192, 168, 1, 58))
            && !policy.covers_address(Ipv4Addr::LOCALHOST)
    );
}

#[test]
fn a_faulty_file_still_says_what_to_do_about_it() {
    let refuse = |text: &str| load(text).unwrap_err().on_error;
    assert_eq!(refuse(r#"{"common": {"on_error": "Fail"}}"#), OnError::Fail);
    assert_eq!(
        refuse(r#"{"common": {"on_error": "panic"}}"#),
        OnError::Kernel
    );
    assert_eq!(
        refuse(r#"{"common": {"on_error": "fail"}"#),
        OnError::Kernel
    );
}

#[test]
fn metrics_are_served_on_this_machine_only() {
    let load = |value: &str| {
        let text = format!(
            r#"{{"interface": {{"netdev": "v0", "ip": "10.0.0.1"}}, "common": {{"metrics": "{value}"}}}}"#
        );
        load_bytes("test", text.as_bytes())
    };
    assert_eq!(load("").unwrap().metrics, None);
    let unix = load("unix:/run/knet/metrics.sock").unwrap().metrics;
    assert_eq!(unix, Some(MetricsAt::Unix("/run/knet/metrics.sock".into())));
    let loopback = load("127.0.0.1:9464").unwrap().metrics;
    assert_eq!(
        loopback,
        Some(MetricsAt::Loopback("127.0.0.1:9464".parse().unwrap()))
    );
    for bad in [
        "0.0.0.0:9464",
        "10.0.0.1:9464",
        "127.0.0.1",
        "127.0.0.1:0",
        "127.0.0.1:99999",
        "unix:relative",
        "localhost:80",
    ] {
        let faults = load(bad).unwrap_err();
        assert_eq!(
            faults.faults.first().unwrap().path,
            "common.metrics",
            "{bad}"
        );
    }
}
