//! Link arguments of the preloaded object.

#[allow(clippy::print_stdout)] // cargo reads it
fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // Never unloaded: threads and handlers may be inside. The soname and rpath make the object findable and
    // let it find its neighbours where it was loaded from.
    for argument in [
        "-Wl,-z,nodelete",
        "-Wl,-soname,libknet_frame.so",
        "-Wl,-rpath,$ORIGIN",
    ] {
        println!("cargo:rustc-cdylib-link-arg={argument}");
    }
}
