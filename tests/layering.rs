//! Dependencies between modules point down only: reads every `crate::` path in src and compares it with the table.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "in a test a surprise is a failure"
)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Module, and what it may use besides [`BASE`].
const TABLE: &[(&str, &str)] = &[
    ("errno", ""),
    ("id", ""),
    ("time", ""),
    ("file_limit", ""),
    ("telemetry", ""),
    ("prefetch", ""),
    ("expression", ""),
    // Data for unit tests; nothing else may use it.
    ("seeded", ""),
    ("ffi", ""),
    ("config", ""),
    ("gpu", "config ffi"),
    ("preflight", "config gpu"),
    ("rendezvous", "ffi"),
    ("channel", ""),
    ("readiness", "channel"),
    ("thread", "ffi"),
    ("device", "config ffi"),
    ("stack", "config device"),
    ("progress", "ffi channel readiness thread"),
    ("capture", "device"),
    (
        "lcore",
        "ffi config stack device capture channel readiness gpu",
    ),
    (
        "host",
        "ffi config preflight rendezvous channel readiness progress device stack capture gpu lcore",
    ),
    ("attach", "ffi rendezvous channel readiness thread progress"),
    ("waiter", "ffi channel readiness thread progress attach"),
    (
        "socket",
        "ffi channel readiness thread progress attach waiter",
    ),
    (
        "iomux",
        "ffi channel readiness thread progress attach waiter socket",
    ),
    (
        "fd",
        "ffi channel readiness thread progress attach waiter socket iomux",
    ),
    (
        "shim",
        "ffi channel readiness thread progress attach waiter socket iomux fd",
    ),
    (
        "runtime",
        "ffi config preflight rendezvous channel readiness thread progress device stack gpu lcore host attach",
    ),
];

/// What everybody above may use, each of them only what stands before it.
const BASE: &[&str] = &[
    "errno",
    "id",
    "time",
    "file_limit",
    "telemetry",
    "prefetch",
    "expression",
];

/// Whether the table lets `module` use `other`.
fn may_use(module: &str, other: &str) -> bool {
    let place = |name| BASE.iter().position(|base| *base == name);
    match (place(module), place(other)) {
        (Some(above), Some(below)) => below < above,
        (None, Some(_)) => true,
        _ => TABLE
            .iter()
            .any(|(name, allowed)| *name == module && allowed.split(' ').any(|word| word == other)),
    }
}

/// Macros of `telemetry` and the build's name, reached through the crate root.
const MACROS: &[&str] = &[
    "error",
    "warn",
    "log_line",
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

/// A file without its comments (docs may link upwards) and without what is built for tests only.
fn code(text: &str) -> String {
    let mut kept = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if line.trim_start() == "#[cfg(test)]" {
            skip_item(&mut lines, line.len() - line.trim_start().len());
        } else if !line.trim_start().starts_with("//") {
            kept.push(line);
        }
    }
    kept.join("\n")
}

/// Skips an item whose attribute is indented by `indent`: to its `;` or, as rustfmt writes it, its closing brace.
fn skip_item<'a>(lines: &mut impl Iterator<Item = &'a str>, indent: usize) {
    for line in lines {
        let at = line.len() - line.trim_start().len();
        let first = line.trim_start().chars().next();
        let head = at == indent && !matches!(first, Some('#' | '/'));
        if head && (line.ends_with(';') || line.ends_with('}') || line.ends_with(',')) {
            return;
        }
    }
}

/// Whether a file is built for tests only.
fn is_test(file: &Path) -> bool {
    file.components().any(|part| {
        ["tests", "tests.rs"]
            .iter()
            .any(|name| part.as_os_str() == *name)
    })
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
        if module == "lib" || module == "bin" || is_test(inner) {
            continue;
        }
        if !TABLE.iter().any(|(name, _)| *name == module) {
            faults.push(format!(
                "{}: module `{module}` is not in the table",
                inner.display()
            ));
            continue;
        }
        seen.insert(module.clone());
        for name in used(&code(&fs::read_to_string(&file).unwrap())) {
            let ours = TABLE.iter().any(|(known, _)| *known == name);
            if ours && name != module && !may_use(&module, &name) {
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
        for below in allowed.split_terminator(' ') {
            let at = TABLE.iter().position(|(name, _)| *name == below);
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
        "channel/map",
        "channel/ring.rs",
        "attach/spawn.rs",
        "fd/table.rs",
        "fd/registry.rs",
        "device/plugin",
        "lcore/pool.rs",
        "lcore/send_buffer.rs",
        "prefetch.rs",
    ];
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    sources(&root, &mut files);
    let mut faults = Vec::new();
    let mut needed = BTreeSet::new();
    for file in files {
        let inner = file.strip_prefix(&root).unwrap();
        if is_test(inner) {
            continue;
        }
        let inner = inner.to_string_lossy().into_owned();
        let text = code(&fs::read_to_string(&file).unwrap());
        let has = text
            .split(|c: char| !(c.is_alphanumeric() || c == '_'))
            .any(|word| word == "unsafe");
        match ALLOWED.iter().find(|allowed| inner.starts_with(**allowed)) {
            Some(allowed) if has => {
                needed.insert(*allowed);
            }
            None if has => faults.push(inner),
            _ => {}
        }
    }
    assert!(
        faults.is_empty(),
        "unsafe outside the allowed files: {faults:?}"
    );
    let idle: Vec<_> = ALLOWED
        .iter()
        .filter(|allowed| !needed.contains(*allowed))
        .collect();
    assert!(idle.is_empty(), "allowed without need: {idle:?}");
}

#[test]
fn log_lines_are_held_back_in_one_place_only() {
    // `telemetry::flood` counts what it holds back; a limit of its own around a line would lose it without a word.
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    sources(&root, &mut files);
    let mut faults = Vec::new();
    let mut lines_of_ours = 0;
    for file in files {
        let text = code(&fs::read_to_string(&file).unwrap());
        let lines: Vec<&str> = text.lines().collect();
        for (number, line) in lines.iter().enumerate() {
            let logs = ["error!(", "warn!(", "info!("].iter().any(|name| {
                line.contains(&format!("crate::{name}")) || line.contains(&format!("knet::{name}"))
            });
            if !logs {
                continue;
            }
            lines_of_ours += 1;
            let before = &lines[number.saturating_sub(3)..number];
            if before.iter().any(|line| line.contains(".allow(")) {
                faults.push(format!("{}: {}", file.display(), line.trim()));
            }
        }
    }
    assert!(lines_of_ours > 80, "{lines_of_ours} lines found");
    assert!(faults.is_empty(), "{faults:#?}");
}
