//! The body of the fuzz target, on bytes from a seed.

use super::*;
use crate::seeded::Seeded;

/// The body of the fuzz target: no input may panic, hang or be accepted without a port.
fn fuzz(bytes: &[u8]) {
    match load_bytes("fuzz", bytes) {
        Ok(config) => assert!(!config.network.addresses.is_empty()),
        Err(faults) => assert!(!faults.faults.is_empty() && !faults.to_string().is_empty()),
    }
}

#[test]
fn random_bytes_never_panic() {
    let mut random = Seeded::new(0x6b6e_6574_2d63_6f6e);
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
            for _ in 0..=random.below(4) {
                let index = random.below(bytes.len());
                match random.below(3) {
                    0 => bytes[index] = random.byte(),
                    1 => drop(bytes.remove(index)),
                    _ => bytes.insert(index, bytes[index]),
                }
            }
        } else {
            for _ in 0..random.below(40) {
                let word = words[random.below(words.len())];
                bytes.extend_from_slice(word.as_bytes());
            }
        }
        fuzz(&bytes);
    }
}
