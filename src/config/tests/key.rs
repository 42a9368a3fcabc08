//! Keys one by one: names, types and ranges.

use super::*;
use crate::config::key::Kind;

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
