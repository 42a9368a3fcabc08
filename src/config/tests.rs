//! The config as its users see it: files in, settings or every fault out.

mod file;
mod fuzz;
mod key;
mod network;
mod payload;
mod settings;
mod text;

use core::net::Ipv4Addr;

use super::*;

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
