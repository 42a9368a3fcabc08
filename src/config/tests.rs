//! The config as its users see it: files in, settings or every fault out.

use core::net::Ipv4Addr;
use core::time::Duration;

use super::key::Kind;
use super::*;
use crate::config::payload::{self, Instead};
use crate::id::CpuId;

const SMALLEST: &str = r#"{"interface": {"bdf_nums": ["0000:04:00.0"], "ip": "192.168.1.58"}}"#;

fn load(text: &str) -> Result<Config, Faults> {
    load_bytes("test.conf", text.as_bytes())
}

fn good(text: &str) -> Config {
    load(text).unwrap_or_else(|faults| panic!("{faults}"))
}

/// The faults as `path: what (advice)`, without their places.
fn faults(text: &str) -> Vec<String> {
    let faults = load(text)
        .err()
        .unwrap_or_else(|| panic!("accepted: {text}"));
    faults
        .faults
        .iter()
        .map(|fault| {
            Fault {
                at: None,
                ..fault.clone()
            }
            .to_string()
        })
        .collect()
}

/// A file with the smallest interface, and `more` sections.
fn with(more: &str) -> String {
    format!(
        "{{\"interface\": {{\"bdf_nums\": [\"0000:04:00.0\"], \"ip\": \"192.168.1.58\"}}, {more}}}"
    )
}

/// A file with an interface of the smallest keys and `more`.
fn interface(more: &str) -> String {
    format!(
        "{{\"interface\": {{\"bdf_nums\": [\"0000:04:00.0\"], \"ip\": \"192.168.1.58\", {more}}}}}"
    )
}

/// The one fault of a text contains all of `parts`.
fn one_fault(text: &str, parts: &[&str]) {
    let faults = faults(text);
    assert_eq!(faults.len(), 1, "{text}: {faults:?}");
    for part in parts {
        assert!(
            faults[0].contains(part),
            "{text}: {:?} lacks {part:?}",
            faults[0]
        );
    }
}

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
fn remarks_and_commas_of_the_guides() {
    let text = "\u{feff}{ # a guide\r\n\"common\": {\r\n\"mode\": 0, #1. run mode, 0 is one process\r\n},\r\n\
        /* two\n lines */ \"interface\": {\n\"bdf_nums\": [\n    \"0000:04:00.0\"\n], # 2. the BDF found\n\
        \"mac\": \"ac:dc:ca:00:00:01\", // 3. not \"this\"\n\"ip\": \"192.168.1.58\"\u{ff0c}        # 4. its address\n},\n\
        \"dpdk\": { \"core_list_global\": \"1\", \"socket_mem\": \"--socket-mem=1024\", },\n}\n# end";
    let config = good(text);
    assert_eq!(config.dpdk.cores, Some(vec![CpuId(1)]));
    assert_eq!(config.network.mac, Some([0xac, 0xdc, 0xca, 0, 0, 1]));
    let text = with(r#""common": {"accelerate": {"programs": ["a#b", "c//d/* e"]}}"#)
        .replace("c//d/* e", "/c//d/* e");
    assert_eq!(good(&text).accelerate.programs, ["a#b", "/c//d/* e"]);
}

#[test]
fn keys_in_any_letter_case() {
    let config = good(
        r#"{"INTERFACE": {"Bdf_Nums": ["0000:04:00.0"], "IP": "192.168.1.58", "mtu": 9.0e3}}"#,
    );
    assert_eq!(config.network.mtu, 9000);
}

#[test]
fn every_fault_at_once_with_its_place() {
    let text = "{\n  \"interface\": {\"bdf_nums\": [\"04:00.0\"], \"mtu\": \"1500\", \"gatway\": \"1.2.3.4\"},\n  \"protostack\": {}\n}";
    let faults = load(text).unwrap_err();
    let lines: Vec<String> = faults.to_string().lines().map(str::to_owned).collect();
    assert_eq!(lines.len(), 5, "{faults}");
    assert!(
        lines[0]
            .starts_with("test.conf:2:30: interface.bdf_nums[0]: \"04:00.0\" is no PCI address"),
        "{faults}"
    );
    assert!(lines[1].contains("2:49: interface.mtu: the number \"1500\" is written as text (write 1500 without quotes)"), "{faults}");
    assert!(
        lines[2].contains("interface.gatway: unknown key (nearest known: gateway)"),
        "{faults}"
    );
    assert!(
        lines[3].contains("3:3: protostack: unknown section (nearest known: proto_stack)"),
        "{faults}"
    );
    assert!(
        lines[4].starts_with("test.conf: interface.ip: missing"),
        "{faults}"
    );
    assert!(!faults.one_line().contains('\n'));
}

#[test]
fn files_that_are_none() {
    one_fault("", &["empty"]);
    one_fault(" \n# only a remark", &["empty"]);
    one_fault("[]", &["'[' found", "'{'"]);
    one_fault(
        "\"common\": {}",
        &["'\"' found", "'{' around the whole file"],
    );
    one_fault("{\"common\": {}", &["the file ends"]);
    one_fault("{} x", &["'x' found", "end of the file"]);
    one_fault(
        "{\"common\": {\"mode\": 0 \"log_level\": \"info\"}}",
        &["common: '\"' found", "','"],
    );
    one_fault("{\"common\": {...}}", &["'...' of a guide"]);
    one_fault(
        "{\"common\": {\"mode\": 01}}",
        &["common.mode: '01' is not a number"],
    );
    one_fault(
        "{\"common\": {\"mode\": 65,535}}",
        &["'5' found", "key in double quotes"],
    );
    one_fault("{\"common\": {\"mode\": yes}}", &["'yes' found"]);
    one_fault(
        "{\"common\": {\"log_level\": \"info}}",
        &["no closing quote"],
    );
    one_fault("{ /* open", &["never closed"]);
    one_fault(&"{\"a\":".repeat(40), &["too many brackets"]);
    one_fault("{\"a\u{ff1b}", &["closing quote"]);
    one_fault("{\"version\": 1\u{ff1b}}", &["U+FF1B"]);
    let nul = load_bytes("f", b"{\n \0}").unwrap_err();
    assert_eq!(
        nul.to_string(),
        "f:2:2: NUL byte in the file (is it a text file?)"
    );
    assert!(
        load_bytes("f", b"{\xff}")
            .unwrap_err()
            .to_string()
            .contains("f:1:2: not UTF-8")
    );
    assert!(
        load_bytes("f", &[0xff, 0xfe, b'{', 0])
            .unwrap_err()
            .to_string()
            .contains("UTF-16")
    );
    assert!(
        load_bytes("f", &vec![b' '; 1 << 20])
            .unwrap_err()
            .to_string()
            .contains("64 KiB")
    );
    assert!(
        load_bytes("f", &vec![b' '; FILE_BYTES_MAX])
            .unwrap_err()
            .to_string()
            .contains("empty")
    );
}

#[test]
fn a_key_written_twice_names_both_places() {
    let text = "{\"interface\": {\"ip\": \"192.168.1.58\",\n\"IP\": \"1.1.1.1\", \"bdf_nums\": [\"0000:04:00.0\"]}, \"gpu\": {}, \"gpu\": {}}";
    let faults = load(text).unwrap_err();
    assert_eq!(faults.faults.len(), 2, "{faults}");
    assert_eq!(
        faults.faults[0].to_string(),
        "2:1: interface.IP: written twice, first at 1:16 (keep one)"
    );
    assert!(faults.faults[1].to_string().contains("gpu: written twice"));
}

#[test]
fn wrong_types_say_what_to_write() {
    one_fault(
        &with(r#""common": {"mode": true}"#),
        &["common.mode: true found", "write 1 instead"],
    );
    one_fault(
        &with(r#""common": {"mode": 1.5}"#),
        &["1.5 is not a whole number"],
    );
    one_fault(
        &with(r#""common": {"mode": null}"#),
        &["null found", "0 to 1"],
    );
    one_fault(
        &with(r#""common": {"log_level": "loud"}"#),
        &["\"loud\" is not known", "ERROR, WARNING, INFO, DEBUG"],
    );
    one_fault(
        &with(r#""common": {"log_level": 3}"#),
        &["the number 3 found"],
    );
    one_fault(
        &with(r#""common": []"#),
        &["common: a list found", "an object"],
    );
    one_fault(
        &with(r#""common": {"accelerate": []}"#),
        &["common.accelerate: a list found"],
    );
    one_fault(
        &with(r#""common": {"accelerate": {"ports": [0]}}"#),
        &[
            "common.accelerate.ports[0]: 0 is out of range",
            "1 to 65535",
        ],
    );
    one_fault(
        &with(r#""proto_stack": {"epoll_data": 0}"#),
        &["write it in quotes"],
    );
    one_fault(
        &with(r#""gpu": 1"#),
        &["gpu: the number 1 found", "an object"],
    );
    one_fault(
        &interface(r#""exclusive": 1"#),
        &["the number 1 found", "true or false"],
    );
    one_fault(
        r#"{"interface": {"bdf_nums": "0000:04:00.0", "ip": "192.168.1.58"}}"#,
        &["interface.bdf_nums: the text", "a list"],
    );
}

#[test]
fn unknown_keys_name_the_nearest() {
    one_fault(
        &with(r#""proto_stack": {"zcopy_seg_len": 1}"#),
        &["nearest known: zcopy_sge_len"],
    );
    one_fault(
        &interface(r#""bond_enable": 1"#),
        &["nearest known: user_bond_enable"],
    );
    one_fault(
        &with(r#""common": {"mtu": 1500}"#),
        &["it belongs to interface.mtu"],
    );
    one_fault(
        &with(r#""max_tcpcb": 99"#),
        &["it belongs to proto_stack.max_tcpcb"],
    );
    one_fault(
        &with(r#""common": {"zebra": 1}"#),
        &["common.zebra: unknown key", "docs/config.md"],
    );
    one_fault(
        &with(r#""common": {"acelerate": {}}"#),
        &["nearest known: accelerate"],
    );
}

#[test]
fn every_number_is_held_to_its_range() {
    for section in sections() {
        for key in section.keys {
            let Kind::Whole { min, max } = key.kind else {
                continue;
            };
            for (value, out) in [(min - 1, true), (max + 1, true), (min, false), (max, false)] {
                let (top, nested) = section.path.split_once('.').unwrap_or((section.path, ""));
                assert!(nested.is_empty());
                let text = format!("{{\"{top}\": {{\"{}\": {value}}}}}", key.name);
                let path = format!("{top}.{}", key.name);
                let range =
                    |fault: &&Fault| fault.path == path && fault.what.contains("out of range");
                let faults = load(&text).err().map_or(Vec::new(), |faults| faults.faults);
                assert_eq!(
                    faults.iter().filter(range).count(),
                    usize::from(out),
                    "{text}: {faults:?}"
                );
            }
        }
    }
}

#[test]
fn numbers_at_their_ends_survive_the_conversion() {
    let stack = r#""max_mbuf": 1073741823, "max_tcpcb": 1000000, "max_arp": 8192, "msl_time": 1, "synack_retries": 255,
        "min_port": 1, "max_port": 50000, "max_sendbuf": 2147483647, "def_sendbuf": 2147483647, "max_recvbuf": 2147483647"#;
    let config = good(&with(&format!(
        "\"proto_stack\": {{{stack}}}, \"dpdk\": {{\"rx_cache_size\": 16384, \"base-virtaddr\": \"--base-virtaddr=0xffffffffffffffff\"}}"
    )));
    assert_eq!(config.dpdk.mbufs, 1_073_741_823);
    assert_eq!(config.dpdk.rx_descriptors, 16384);
    assert_eq!(config.dpdk.base_virtaddr, Some(u64::MAX));
    assert_eq!(config.tcp.synack_retries, 255);
    assert_eq!(config.tcp.ephemeral_ports, (1, 50000));
    assert_eq!(config.buffers.send_default, 2_147_483_647);
}

#[test]
fn exactly_one_port() {
    let port = |keys: &str| format!("{{\"interface\": {{\"ip\": \"192.168.1.58\", {keys}}}}}");
    one_fault(
        r#"{"interface": {"ip": "192.168.1.58"}}"#,
        &["interface: no port is named", "bdf_nums, netdev, vdevs"],
    );
    one_fault(
        &port(r#""netdev": "eth0", "bdf_nums": ["0000:04:00.0"]"#),
        &["already named by bdf_nums"],
    );
    one_fault(
        &port(r#""bdf_nums": ["0000:04:00.0", "0000:04:00.1"]"#),
        &["one port too many"],
    );
    one_fault(&port(r#""vdevs": ["knet_unix"]"#), &["path=P"]);
    one_fault(
        &port(r#""vdevs": ["knet_pair", "knet_pair"]"#),
        &["one port too many"],
    );
    one_fault(&port(r#""netdev": "a/b""#), &["no interface name"]);
    assert_eq!(
        good(&port(r#""netdev": "eth0", "bdf_nums": [], "vdevs": []"#)).port,
        PortChoice::Netdev("eth0".to_owned())
    );
    let config = good(&port(
        r#""user_bond_enable": 1, "bdf_nums": ["0000:04:00.0", "0000:04:00.1"]"#,
    ));
    assert_eq!(config.port.to_string(), "0000:04:00.0");
    assert!(
        config.remarks[0]
            .to_string()
            .contains("first port is used alone"),
        "{:?}",
        config.remarks
    );
    let config = good(&port(r#""vdevs": ["knet_unix,path=/tmp/s,seed=3"]"#));
    assert_eq!(config.port.to_string(), "knet_unix,path=/tmp/s,seed=3");
}

#[test]
fn addresses_and_routes() {
    let config = good(&interface(
        r#""netmask": "255.255.255.0", "addresses": ["10.0.0.1/8"], "gateway": "10.9.9.9", "vlan": 7, "routes": ["172.16.0.0/12 via 192.168.1.1"]"#,
    ));
    assert_eq!(config.network.addresses.len(), 2);
    assert_eq!(config.network.vlan, Some(7));
    assert_eq!(config.network.routes.len(), 1);
    one_fault(
        &interface(r#""gateway": "192.168.2.1""#),
        &["interface.gateway: gateway 192.168.2.1 is outside the netmask of 192.168.1.58/24"],
    );
    one_fault(
        &interface(r#""gateway": "192.168.1.58""#),
        &["our own address"],
    );
    one_fault(&interface(r#""gateway": "192.168.1.255""#), &["broadcast"]);
    one_fault(&interface(r#""netmask": "255.0.255.0""#), &["no netmask"]);
    one_fault(
        &interface(r#""addresses": ["192.168.1.58/24"]"#),
        &["given twice"],
    );
    one_fault(
        &interface(r#""addresses": ["192.168.1.59"]"#),
        &["prefix length"],
    );
    one_fault(
        &interface(r#""routes": ["10.0.0.0/8 via 1.2.3.4"]"#),
        &["interface.routes[0]", "outside the netmask"],
    );
    one_fault(
        &interface(r#""mac": "ac:dc:ca:xx:xx:xx""#),
        &["no MAC address", "leave it out"],
    );
    one_fault(
        &interface(r#""mac": "01:00:5e:00:00:01""#),
        &["group address"],
    );
    one_fault(&interface(r#""ip6": ["fd00::1"]"#), &["no IPv6 address"]);
    assert_eq!(
        good(&interface(r#""ip6": ["fd00::1/64"]"#)).remarks.len(),
        1
    );
    one_fault(
        r#"{"interface": {"bdf_nums": ["0000:04:00.0"], "ip": "192.168.1.58/24"}}"#,
        &["no IPv4 address", "netmask"],
    );
    let config =
        good(r#"{"interface": {"bdf_nums": ["0000:04:00.0"], "addresses": ["192.168.1.58/24"]}}"#);
    assert_eq!(config.network.addresses.len(), 1);
    let many: Vec<String> = (1..9).map(|host| format!("\"10.0.0.{host}/8\"")).collect();
    one_fault(
        &interface(&format!("\"addresses\": [{}]", many.join(","))),
        &["9 addresses", "at most 8"],
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
fn a_hostile_file_cannot_spoil_the_log() {
    let text = r#"{"in\nter\u001b[31mface": {}, "b\u0007": 1}"#;
    let line = load(text).unwrap_err().one_line();
    assert!(!line.chars().any(char::is_control), "{line:?}");
    let keys: Vec<String> = (0..5_000).map(|key| format!("\"k{key}\":1")).collect();
    let many = load(&format!("{{{}}}", keys.join(","))).unwrap_err();
    assert_eq!(many.faults.len(), 5_002);
    assert!(many.one_line().len() < 4_096 && many.one_line().contains("and 4986 more"));
    let long = load(&format!(
        "{{\"{}\": {}}}",
        "x".repeat(20_000),
        "9".repeat(20_000)
    ))
    .unwrap_err();
    assert!(long.one_line().len() < 1_024, "{}", long.one_line());
}

#[test]
fn paths_that_are_no_file() {
    let folder = std::env::temp_dir();
    assert!(
        load_file(&folder)
            .unwrap_err()
            .to_string()
            .contains("is a directory")
    );
    assert!(
        load_file(&folder.join("knet-no-such-file"))
            .unwrap_err()
            .to_string()
            .contains("no such file")
    );
    assert!(
        load_file(Path::new("/dev/null"))
            .unwrap_err()
            .to_string()
            .contains("not a regular file")
    );
}

#[test]
fn a_descriptor_is_read_from_its_beginning() {
    use std::io::{Read, Seek, Write};
    use std::os::fd::AsFd;
    let path = std::env::temp_dir().join(format!("knet-config-{}", std::process::id()));
    let mut file = std::fs::File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(&path)
        .expect("file");
    std::fs::remove_file(&path).expect("unlink");
    file.write_all(SMALLEST.as_bytes()).expect("write");
    file.rewind().expect("rewind");
    file.read_exact(&mut [0; 10]).expect("read");
    assert_eq!(
        read_descriptor("f", file.as_fd()).expect("regular"),
        SMALLEST.as_bytes()
    );
    assert_eq!(file.stream_position().expect("position"), 10);
}

/// xorshift64: the same bytes for the same seed on every machine.
fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// A number below `bound`, which is at most 256.
fn below(state: &mut u64, bound: usize) -> usize {
    usize::from(random(state).to_le_bytes()[3]) * bound / 256
}

/// The body of the fuzz target: no input may panic, hang or be accepted without a port.
fn fuzz(bytes: &[u8]) {
    match load_bytes("fuzz", bytes) {
        Ok(config) => assert!(!config.network.addresses.is_empty()),
        Err(faults) => assert!(!faults.faults.is_empty() && !faults.to_string().is_empty()),
    }
}

#[test]
fn random_bytes_never_panic() {
    let seed = 0x6b6e_6574_2d63_6f6e;
    println!("seed={seed:#x}");
    let mut state: u64 = seed;
    let words: &[&str] = &[
        "{",
        "}",
        "[",
        "]",
        ":",
        ",",
        "\"",
        "\\u",
        "d83d",
        "/*",
        "*/",
        "//",
        "#",
        "\n",
        "1",
        "-",
        "e9",
        ".",
        "true",
        "interface",
        "mtu",
        "\u{e9}",
        "\0",
        "...",
    ];
    let sample = interface(
        r#""mtu": 1500, "addresses": ["10.0.0.1/8"], /* x */ "routes": ["10.1.0.0/16 via 10.0.0.2"],"#,
    );
    for round in 0..20_000_u32 {
        let mut bytes = Vec::new();
        if round % 2 == 0 {
            // A good file with a few bytes changed, removed or doubled.
            bytes.extend_from_slice(sample.as_bytes());
            for _ in 0..=random(&mut state) % 4 {
                let index = below(&mut state, bytes.len());
                match random(&mut state) % 3 {
                    0 => bytes[index] = random(&mut state).to_le_bytes()[3],
                    1 => drop(bytes.remove(index)),
                    _ => bytes.insert(index, bytes[index]),
                }
            }
        } else {
            for _ in 0..random(&mut state) % 40 {
                let word = words[below(&mut state, words.len())];
                bytes.extend_from_slice(word.as_bytes());
            }
        }
        fuzz(&bytes);
    }
}

/// A file whose payload stage has this pipeline.
fn staged(pipeline: &str) -> String {
    with(&format!(
        r#""gpu": {{"enabled": true, "pipeline": [{pipeline}]}}"#
    ))
}

#[test]
fn a_pipeline_becomes_rules_in_their_order() {
    use super::payload::{Attach, Kernel, OnMatch};
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
            "the CPU, which cannot run",
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
    use super::payload::{Kernel, OnMatch, User, WithoutGpu};
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
