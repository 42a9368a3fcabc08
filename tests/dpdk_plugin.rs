//! T0: a plug-in that is missing, hidden, of another build or built without DPDK is one clear line.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use std::path::{Path, PathBuf};
use std::process::Command;

use knet::device::plugin::{Plugin, PluginConfig, PluginDevice, PortSelector};
use knet::device::plugin_abi::{ABI, Table};

/// A folder that goes with the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// Compiles `text` into the shared object `name`.
    fn object(&self, name: &str, text: &str, more: &[&str]) -> PathBuf {
        let source = self.0.join(format!("{name}.c"));
        std::fs::write(&source, text).unwrap();
        let object = self.0.join(name);
        let status = Command::new("cc")
            .args(["-shared", "-fPIC", "-o"])
            .arg(&object)
            .arg(&source)
            .args(more)
            .current_dir(&self.0)
            .status()
            .unwrap();
        assert!(status.success());
        object
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Left behind it harms nobody; the next build folder clean-up takes it.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn refusal(path: &Path) -> String {
    let message = Plugin::open(Some(path)).unwrap_err().message;
    assert!(
        !message.contains('\n') && !message.ends_with('.'),
        "{message}"
    );
    assert!(
        message.contains(path.to_str().unwrap()),
        "the line does not say where: {message}"
    );
    message
}

#[test]
fn a_missing_plug_in_says_why_and_what_to_install() {
    let message = refusal(Path::new("/nonexistent/libknet_dpdk.so"));
    assert!(
        message.contains("cannot open shared object file"),
        "{message}"
    );
    assert!(message.contains("apt-get install dpdk"), "{message}");
}

#[test]
fn hidden_dpdk_libraries_are_named() {
    let folder = Folder::new("hidden");
    let hidden = folder.object(
        "librte_hidden.so.23",
        "void f(void) {}",
        &["-Wl,-soname,librte_hidden.so.23"],
    );
    let more = ["-L.", "-l:librte_hidden.so.23", "-Wl,--no-as-needed"];
    let plugin = folder.object("plugin.so", "void f(void); void g(void) { f(); }", &more);
    std::fs::remove_file(hidden).unwrap();
    let message = refusal(&plugin);
    assert!(message.contains("librte_hidden.so.23"), "{message}");
    assert!(message.contains("apt-get install dpdk"), "{message}");
}

#[test]
fn another_library_is_no_plug_in() {
    let folder = Folder::new("other");
    let message = refusal(&folder.object("other.so", "int answer = 42;", &[]));
    assert!(
        message.contains("no DPDK plug-in") && message.contains("knet_dpdk_table"),
        "{message}"
    );
}

#[test]
fn another_version_or_size_of_the_table_names_both() {
    let folder = Folder::new("abi");
    let size = size_of::<Table>();
    for (abi, bytes) in [(ABI + 1, size), (ABI, size + 8), (0, 0)] {
        let text = format!(
            "struct {{ unsigned abi, size; void *call[20]; }} knet_dpdk_table = {{ {abi}, {bytes} }};"
        );
        let message = refusal(&folder.object(&format!("abi-{abi}-{bytes}.so"), &text, &[]));
        assert!(
            message.contains(&format!("version {abi} of {bytes} bytes")),
            "{message}"
        );
        assert!(
            message.contains(&format!("version {ABI} of {size} bytes")),
            "{message}"
        );
    }
}

/// The members without DPDK, compiled as the build scripts do when they find none.
#[test]
fn a_build_without_dpdk_loads_and_says_so_at_start() {
    let folder = Folder::new("without");
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let rustc = |arguments: &[&str]| {
        let program = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
        let mut command = Command::new(program);
        command
            .args(["--edition", "2024", "-Cdebuginfo=0"])
            .args(arguments)
            .current_dir(&folder.0);
        assert!(command.status().unwrap().success());
    };
    let sys = root.join("dpdk-sys/src/lib.rs");
    let plugin = root.join("dpdk/src/lib.rs");
    rustc(&[
        "--crate-type=rlib",
        "--crate-name=dpdk_sys",
        sys.to_str().unwrap(),
    ]);
    rustc(&[
        "--crate-type=cdylib",
        "--crate-name=knet_dpdk",
        "--extern=dpdk_sys=libdpdk_sys.rlib",
        plugin.to_str().unwrap(),
    ]);
    let port = PortSelector::Vdev("net_null0".to_owned());
    let mut config = PluginConfig::new(port, "knet-test".to_owned());
    config.library = Some(folder.0.join("libknet_dpdk.so"));
    let message = PluginDevice::open(&config).unwrap_err().message;
    assert!(
        message.contains("net_null0") && message.contains("built without DPDK"),
        "{message}"
    );
    assert!(message.contains("libdpdk-dev"), "{message}");
}
