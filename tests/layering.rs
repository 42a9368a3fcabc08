//! Dependencies between modules point down only: reads every `crate::` path in src and compares it with the table.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Module, and what it may use. `telemetry` macros are written `crate::warn!` and so on.
const TABLE: &[(&str, &[&str])] = &[
    ("errno", &[]),
    ("id", &[]),
    ("time", &[]),
    ("telemetry", &["errno", "id", "time"]),
    ("ffi", &["errno", "id", "time"]),
    ("config", &["errno", "id", "time", "telemetry"]),
    ("preflight", &["errno", "id", "time", "telemetry", "config"]),
    ("rendezvous", &["errno", "id", "time", "telemetry", "ffi"]),
    ("channel", &["errno", "id", "time", "telemetry"]),
    (
        "readiness",
        &["errno", "id", "time", "telemetry", "channel"],
    ),
    ("thread", &["errno", "id", "time", "ffi"]),
    (
        "device",
        &["errno", "id", "time", "telemetry", "config", "ffi"],
    ),
    (
        "stack",
        &["errno", "id", "time", "telemetry", "config", "device"],
    ),
    (
        "gpu",
        &["errno", "id", "time", "telemetry", "config", "ffi"],
    ),
    (
        "lcore",
        &[
            "errno",
            "id",
            "time",
            "telemetry",
            "config",
            "stack",
            "device",
            "channel",
            "readiness",
            "gpu",
        ],
    ),
    (
        "host",
        &[
            "errno",
            "id",
            "time",
            "telemetry",
            "config",
            "lcore",
            "stack",
            "channel",
            "readiness",
            "device",
            "rendezvous",
        ],
    ),
    (
        "attach",
        &[
            "errno",
            "id",
            "time",
            "telemetry",
            "channel",
            "readiness",
            "ffi",
            "thread",
            "rendezvous",
        ],
    ),
    (
        "waiter",
        &[
            "errno",
            "id",
            "time",
            "telemetry",
            "channel",
            "readiness",
            "ffi",
            "thread",
            "attach",
        ],
    ),
    (
        "socket",
        &[
            "errno",
            "id",
            "time",
            "telemetry",
            "channel",
            "readiness",
            "ffi",
            "thread",
            "attach",
            "waiter",
        ],
    ),
    (
        "iomux",
        &[
            "errno",
            "id",
            "time",
            "telemetry",
            "channel",
            "readiness",
            "ffi",
            "thread",
            "attach",
            "waiter",
        ],
    ),
    (
        "fd",
        &[
            "errno",
            "id",
            "time",
            "telemetry",
            "channel",
            "readiness",
            "ffi",
            "thread",
            "attach",
            "waiter",
            "socket",
            "iomux",
        ],
    ),
    (
        "shim",
        &[
            "errno",
            "id",
            "time",
            "telemetry",
            "channel",
            "readiness",
            "ffi",
            "thread",
            "attach",
            "waiter",
            "socket",
            "iomux",
            "fd",
        ],
    ),
    (
        "runtime",
        &[
            "errno",
            "id",
            "time",
            "telemetry",
            "config",
            "channel",
            "readiness",
            "device",
            "stack",
            "lcore",
            "host",
            "gpu",
            "rendezvous",
            "ffi",
        ],
    ),
];

/// Macros of `telemetry` and the build's name, reached through the crate root.
const MACROS: &[&str] = &[
    "error",
    "warn",
    "info",
    "debug",
    "counters",
    "BUILD_VERSION",
];

fn sources(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, into);
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            into.push(path);
        }
    }
}

/// The part of a file before its unit tests, without comments (docs may link upwards).
fn code(text: &str) -> String {
    let body = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
    body.lines()
        .filter(|line| !line.trim_start().starts_with("//"))
        .collect::<Vec<_>>()
        .join("\n")
}

/// First names behind `crate::`, also inside `use crate::{a, b}`.
fn used(text: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for rest in text.split("crate::").skip(1) {
        if let Some(list) = rest.strip_prefix('{') {
            let list = list.split('}').next().unwrap_or_default();
            names.extend(list.split(',').map(|part| first_name(part.trim())));
        } else {
            names.insert(first_name(rest));
        }
    }
    names.remove("");
    names
}

fn first_name(text: &str) -> String {
    text.chars()
        .take_while(|c| c.is_alphanumeric() || *c == '_')
        .collect()
}

#[test]
fn modules_use_only_what_lies_below_them() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    sources(&root, &mut files);
    let mut faults = Vec::new();
    let mut seen = BTreeSet::new();
    for file in files {
        let inner = file.strip_prefix(&root).unwrap();
        let first = inner
            .components()
            .next()
            .unwrap()
            .as_os_str()
            .to_string_lossy()
            .into_owned();
        let module = first.trim_end_matches(".rs").to_owned();
        if module == "lib" || module == "bin" {
            continue;
        }
        let Some((_, allowed)) = TABLE.iter().find(|(name, _)| *name == module) else {
            faults.push(format!(
                "{}: module `{module}` is not in the table",
                inner.display()
            ));
            continue;
        };
        seen.insert(module.clone());
        for name in used(&code(&fs::read_to_string(&file).unwrap())) {
            let ours = TABLE.iter().any(|(known, _)| *known == name);
            if ours && name != module && !allowed.contains(&name.as_str()) {
                faults.push(format!(
                    "{}: `{module}` must not use `{name}`",
                    inner.display()
                ));
            } else if !ours && name != module && !MACROS.contains(&name.as_str()) {
                faults.push(format!(
                    "{}: `crate::{name}` is no module of the table",
                    inner.display()
                ));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(
        seen.contains("channel") && seen.contains("stack"),
        "the walk found the tree: {seen:?}"
    );
}

#[test]
fn the_table_itself_points_down() {
    for (place, (module, allowed)) in TABLE.iter().enumerate() {
        for below in *allowed {
            let at = TABLE.iter().position(|(name, _)| name == below);
            assert!(
                at.is_some_and(|at| at < place),
                "`{module}` uses `{below}`, which is not above it in the table"
            );
        }
    }
}

/// `unsafe` is allowed only in the files that the house rules name.
#[test]
fn unsafe_stays_where_it_is_allowed() {
    const ALLOWED: &[&str] = &[
        "shim/",
        "ffi/",
        "channel/map.rs",
        "channel/ring.rs",
        "channel/byte_ring.rs",
        "channel/owner.rs",
        "attach/spawn.rs",
        "fd/table.rs",
        "fd/registry.rs",
        "thread.rs",
        "device/plugin",
        "gpu/cuda.rs",
        "lcore/affinity.rs",
        "time.rs",
    ];
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    sources(&root, &mut files);
    let mut faults = Vec::new();
    for file in files {
        let inner = file
            .strip_prefix(&root)
            .unwrap()
            .to_string_lossy()
            .into_owned();
        let text = code(&fs::read_to_string(&file).unwrap());
        let has = text
            .split(|c: char| !(c.is_alphanumeric() || c == '_'))
            .any(|word| word == "unsafe");
        if has && !ALLOWED.iter().any(|allowed| inner.starts_with(allowed)) {
            faults.push(inner);
        }
    }
    assert!(
        faults.is_empty(),
        "unsafe outside the allowed files: {faults:?}"
    );
}
