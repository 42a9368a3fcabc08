//! Stamps the build: `KNET_BUILD_VERSION` is the package version, and the commit when this tree is a checkout.

use std::env;
use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // What scripts/rustc.sh hands to the compiler, of which cargo knows nothing.
    println!("cargo::rerun-if-changed=benches/profile/knet.profdata");
    let version = env::var("CARGO_PKG_VERSION").unwrap_or_default();
    let root = env::var("CARGO_MANIFEST_DIR").unwrap_or_default();
    let stamp = match commit(Path::new(&root)) {
        Some(commit) => format!("{version}+{commit}"),
        None => version,
    };
    println!("cargo::rustc-env=KNET_BUILD_VERSION={stamp}");
}

/// The short hash of HEAD; None without git, or when the tree only lies inside somebody else's checkout.
fn commit(root: &Path) -> Option<String> {
    let top = git(root, &["rev-parse", "--show-toplevel"])?;
    if Path::new(&top).canonicalize().ok()? != root.canonicalize().ok()? {
        return None;
    }
    // The log of HEAD grows with each commit and checkout, in a linked worktree too.
    for name in ["HEAD", "logs/HEAD"] {
        let path = root.join(git(root, &["rev-parse", "--git-path", name])?);
        if path.exists() {
            println!("cargo::rerun-if-changed={}", path.display());
        }
    }
    git(root, &["rev-parse", "--short=10", "HEAD"])
}

fn git(root: &Path, arguments: &[&str]) -> Option<String> {
    let output = Command::new("git")
        .arg("-C")
        .arg(root)
        .args(arguments)
        .output()
        .ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let text = text.trim();
    (output.status.success() && !text.is_empty()).then(|| text.to_owned())
}
