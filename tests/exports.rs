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

/// Each exported call is made by some conformance program, which runs on the kernel and under the preload.
#[test]
fn every_exported_name_has_a_conformance_case() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let mut text = String::new();
    for part in ["conformance", "conformance/script"] {
        for entry in std::fs::read_dir(folder.join(part)).unwrap() {
            let path = entry.unwrap().path();
            if path
                .extension()
                .is_some_and(|kind| kind == "c" || kind == "h")
            {
                text += &std::fs::read_to_string(path).unwrap();
            }
        }
    }
    // What the compiler must have made of a call (the checked twins) the runner looks up in the object.
    let runner = std::fs::read_to_string(folder.join("apps/conformance.py")).unwrap();
    let is_called = |name: &str| {
        text.match_indices(&format!("{name}("))
            .any(|(at, _)| !text[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_'))
            || runner.contains(&format!("\"{name}\""))
    };
    let untried: Vec<_> = include_str!("../frame/exports.txt")
        .lines()
        // preadv64v2 and pwritev64v2 are other names of the same calls.
        .filter(|name| !is_called(&name.replace("64v2", "2")))
        .collect();
    assert_eq!(untried, [""; 0]);
}

/// The least that a preload must see of a server.
#[test]
fn the_calls_that_a_server_makes_are_exported() {
    let wanted = "socket bind listen accept accept4 connect shutdown close getsockname getpeername getsockopt setsockopt \
        send sendto sendmsg recv recvfrom recvmsg read write readv writev epoll_create epoll_create1 epoll_ctl epoll_wait \
        epoll_pwait epoll_pwait2 poll ppoll select pselect fcntl fcntl64 ioctl dup dup2 dup3 close_range closefrom open \
        open64 openat openat64 creat pipe pipe2 socketpair eventfd timerfd_create signalfd inotify_init1 memfd_create \
        fopen fopen64 chroot setuid setgid seteuid setegid setreuid setregid setresuid setresgid setrlimit prlimit \
        __read_chk __recv_chk __recvfrom_chk __poll_chk __ppoll_chk";
    let exported: Vec<_> = include_str!("../frame/exports.txt").lines().collect();
    let missing: Vec<_> = wanted
        .split_whitespace()
        .filter(|name| !exported.contains(name))
        .collect();
    assert_eq!(missing, [""; 0]);
}
