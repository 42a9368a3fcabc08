//! Names the plug-in, and passes on whether `dpdk-sys` found DPDK.

fn main() {
    println!("cargo::rerun-if-env-changed=DEP_DPDK_FOUND");
    println!("cargo::rustc-check-cfg=cfg(has_dpdk)");
    if std::env::var("DEP_DPDK_FOUND").is_ok_and(|found| found == "1") {
        println!("cargo::rustc-cfg=has_dpdk");
    }
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libknet_dpdk.so");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
