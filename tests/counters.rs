//! Every counter is raised by some test.
//!
//! Unit tests note what they raise in the file that `KNET_TEST_COUNTERS` names (`scripts/test.sh` sets it; the unit tests run
//! first). What only a whole host can raise is named by an integration test. Without the file, being named by any test
//! counts.

#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "in a test a surprise is a failure, and its output is for people"
)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn files(folder: &Path, endings: &[&str], into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let ending = path.extension().and_then(|ending| ending.to_str());
        if path.is_dir() {
            files(&path, endings, into);
        } else if ending.is_some_and(|ending| endings.contains(&ending)) {
            into.push(path);
        }
    }
}

fn read(folder: &str, endings: &[&str]) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    files(
        &Path::new(env!("CARGO_MANIFEST_DIR")).join(folder),
        endings,
        &mut found,
    );
    let read = |path: PathBuf| {
        let text = fs::read_to_string(&path).unwrap();
        (path, text)
    };
    found.into_iter().map(read).collect()
}

/// Names inside `counters! { ... }`.
fn counters(text: &str, into: &mut BTreeSet<String>) {
    for block in text.split("counters! {").skip(1) {
        let block = block.split("\n}").next().unwrap_or_default();
        let names = block
            .lines()
            .filter_map(|line| line.trim().strip_suffix(','));
        let is_name = |name: &&str| {
            name.chars()
                .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
        };
        into.extend(names.filter(is_name).map(str::to_owned));
    }
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))
}

/// The part of a source file that is built for tests only.
fn test_part<'a>(path: &Path, text: &'a str) -> &'a str {
    let whole = path.components().any(|part| {
        ["tests", "tests.rs"]
            .iter()
            .any(|name| part.as_os_str() == *name)
    });
    if whole {
        return text;
    }
    text.find("#[cfg(test)]\nmod tests {")
        .and_then(|at| text.get(at..))
        .unwrap_or_default()
}

#[test]
fn every_counter_is_raised_by_some_test() {
    let sources = read("src", &["rs"]);
    let mut wanted = BTreeSet::new();
    for (path, text) in &sources {
        // The macro itself shows how it is called.
        if !path.ends_with("telemetry/counters.rs") {
            counters(text, &mut wanted);
        }
    }
    assert!(
        wanted.len() > 100,
        "the walk found the counters: {wanted:?}"
    );
    let mut raised = BTreeSet::new();
    for (path, text) in read("tests", &["rs", "py"]) {
        if !path.ends_with("counters.rs") {
            raised.extend(words(&text).map(str::to_owned));
        }
    }
    let noted =
        std::env::var_os("KNET_TEST_COUNTERS").map(|path| fs::read_to_string(path).unwrap());
    match &noted {
        Some(noted) => raised.extend(noted.lines().map(str::to_owned)),
        None => {
            for (path, text) in &sources {
                raised.extend(words(test_part(path, text)).map(str::to_owned));
            }
            // The demultiplexer's tests name reasons, each of which has its counter.
            let reasons = sources
                .iter()
                .find(|(path, _)| path.ends_with("stack/drop_reason.rs"));
            let pairs = reasons
                .unwrap()
                .1
                .lines()
                .filter_map(|line| line.trim().strip_suffix(',')?.split_once(" => "));
            let named: Vec<String> = pairs
                .filter(|(reason, _)| raised.contains(*reason))
                .map(|(_, counter)| counter.to_owned())
                .collect();
            raised.extend(named);
        }
    }
    let never: Vec<&String> = wanted.difference(&raised).collect();
    if noted.is_some() {
        assert!(never.is_empty(), "no test raises {never:?}");
    } else if !never.is_empty() {
        eprintln!("named by no test (KNET_TEST_COUNTERS decides): {never:?}");
    }
}
