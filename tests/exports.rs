//! The preloaded object exports the reviewed names and nothing else, needs no DPDK, and cannot be unloaded.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "what a test needs must be there"
)]

#[path = "support/frame.rs"]
mod frame;

use std::process::Command;

#[test]
fn the_exported_symbols_are_the_reviewed_list() {
    let list = Command::new("nm")
        .args(["-D", "--defined-only", "--format=posix"])
        .arg(frame::object())
        .output()
        .unwrap();
    let mut exported: Vec<_> = frame::text(&list.stdout)
        .lines()
        .filter_map(|line| line.split(' ').next().map(str::to_owned))
        .collect();
    exported.sort();
    let reviewed: Vec<_> = include_str!("../frame/exports.txt")
        .lines()
        .map(str::to_owned)
        .collect();
    assert_eq!(exported, reviewed);
    let mut originals: Vec<_> = knet::ffi::real::NAMES
        .iter()
        .map(ToString::to_string)
        .collect();
    originals.sort();
    assert_eq!(originals, reviewed, "each exported name has an original");
}

#[test]
fn the_object_is_linked_as_a_preload_must_be() {
    let dynamic = Command::new("readelf")
        .args(["--dynamic", "--wide"])
        .arg(frame::object())
        .output()
        .unwrap();
    let dynamic = frame::text(&dynamic.stdout);
    for wanted in ["[libknet_frame.so]", "[$ORIGIN]", "NODELETE", "STATIC_TLS"] {
        assert!(dynamic.contains(wanted), "{wanted} is missing:\n{dynamic}");
    }
    assert!(!dynamic.contains("librte_"), "{dynamic}");
}
