//! The language of the file: remarks, commas, and what no text of it is.

use super::*;
use crate::id::CpuId;

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
