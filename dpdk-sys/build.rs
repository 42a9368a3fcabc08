//! Finds DPDK, binds the calls of `calls.txt`, compiles the C files.
//!
//! Without DPDK's pkg-config file, or without libclang, this prints a warning and the crate is empty:
//! the workspace must build on a machine that has neither. `DEP_DPDK_FOUND` tells the dependent.

use std::env;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo::rustc-check-cfg=cfg(has_dpdk)");
    for file in [
        "calls.txt",
        "c/shim.h",
        "c/shim.c",
        "c/process.c",
        "c/peer.c",
        "c/bind.h",
        "../src/device/plugin_abi.rs",
    ] {
        println!("cargo::rerun-if-changed={file}");
    }
    for name in [
        "PKG_CONFIG",
        "PKG_CONFIG_PATH",
        "PKG_CONFIG_LIBDIR",
        "LIBCLANG_PATH",
    ] {
        println!("cargo::rerun-if-env-changed={name}");
    }
    match build() {
        Ok(version) => {
            println!("cargo::rustc-cfg=has_dpdk");
            println!("cargo::metadata=found=1");
            println!("cargo::metadata=version={version}");
        }
        Err(reason) => {
            println!("cargo::warning=the plug-in is built without DPDK: {reason}");
            println!("cargo::metadata=found=0");
            // A file that is never there makes the next build look again: what was missing may be installed by then.
            println!("cargo::rerun-if-changed=c/not-found");
        }
    }
}

/// Does everything, and gives DPDK's version.
fn build() -> Result<String, String> {
    let version = pkg_config(&["--modversion"])?.join(" ");
    // Another DPDK in its place is another build.
    for folder in pkg_config(&["--variable=pcfiledir"])? {
        println!("cargo::rerun-if-changed={folder}/libdpdk.pc");
    }
    let flags = pkg_config(&["--cflags"])?;
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("OUT_DIR is not set")?);
    bind(&flags, &out.join("bindings.rs"))?;
    compile(&flags)?;
    for word in pkg_config(&["--libs"])? {
        if let Some(folder) = word.strip_prefix("-L") {
            println!("cargo::rustc-link-search=native={folder}");
        } else if let Some(library) = word.strip_prefix("-l:") {
            println!("cargo::rustc-link-lib=dylib:+verbatim={library}");
        } else if let Some(library) = word.strip_prefix("-l") {
            println!("cargo::rustc-link-lib=dylib={library}");
        }
    }
    Ok(version)
}

fn pkg_config(arguments: &[&str]) -> Result<Vec<String>, String> {
    let program = env::var("PKG_CONFIG").unwrap_or_else(|_| "pkg-config".to_owned());
    let output = Command::new(&program)
        .args(arguments)
        .arg("libdpdk")
        .output()
        .map_err(|error| format!("{program}: {error} (install pkg-config)"))?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        let first = text
            .lines()
            .next()
            .unwrap_or("it gave no reason")
            .to_owned();
        return Err(format!(
            "{program}: {first} (install libdpdk-dev or dpdk-devel)"
        ));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.split_whitespace().map(str::to_owned).collect())
}

/// Writes the bindings of the calls in `calls.txt` and of the C files' own functions.
fn bind(flags: &[String], to: &Path) -> Result<(), String> {
    let calls = std::fs::read_to_string("calls.txt").map_err(|e| format!("calls.txt: {e}"))?;
    let mut builder = bindgen::Builder::default()
        .header("c/bind.h")
        .clang_args(flags)
        .rust_target(bindgen::RustTarget::stable(82, 0).map_err(|e| e.to_string())?)
        .rust_edition(bindgen::RustEdition::Edition2021)
        .use_core()
        .generate_comments(false)
        .layout_tests(true)
        .derive_debug(false)
        .derive_default(false)
        .default_enum_style(bindgen::EnumVariation::Consts)
        .allowlist_function("knet_.*")
        .allowlist_var("knet_.*|RTE_PKTMBUF_HEADROOM")
        // The frame slot and the queue are defined once, in plugin_abi.rs.
        .blocklist_type("knet_slot|knet_queue|knet_stats|knet_chunk")
        .raw_line(
            "use crate::abi::{Chunk as knet_chunk, Queue as knet_queue, QueueStats as knet_stats, Slot as knet_slot};",
        );
    for call in calls.lines().map(str::trim).filter(|line| !line.is_empty()) {
        builder = builder.allowlist_function(call);
    }
    // bindgen panics when it finds no libclang.
    let bindings = std::panic::catch_unwind(AssertUnwindSafe(move || builder.generate()))
        .map_err(|_| "libclang was not found (install libclang-dev or clang-libs)".to_owned())?
        .map_err(|error| format!("bindgen: {error}"))?;
    bindings
        .write_to_file(to)
        .map_err(|error| format!("{}: {error}", to.display()))
}

fn compile(flags: &[String]) -> Result<(), String> {
    let mut build = cc::Build::new();
    build
        .file("c/shim.c")
        .file("c/process.c")
        .file("c/peer.c")
        .warnings(true)
        .extra_warnings(true)
        .flag("-Wno-unused-parameter");
    // DPDK's own headers use the deprecated and the experimental side of each other.
    build.flag("-std=gnu11").opt_level(2);
    for flag in flags {
        build.flag(flag);
    }
    build
        .try_compile("knet_dpdk_shim")
        .map_err(|error| format!("the C files: {error}"))
}
