//! No name of DPDK is used that 21.11 or 24.11 lacks, unless a compile-time switch guards it.
//!
//! The names are read off the plug-in's sources and compared with `fixtures/dpdk_calls.txt`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// The oldest release that the plug-in is built with.
const OLDEST: Release = Release(21, 11);
/// The newest one that it must build with.
const NEWEST: Release = Release(24, 11);

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Release(u32, u32);

impl Release {
    fn parse(text: &str) -> Self {
        let (year, month) = text.split_once('.').expect("a release is YEAR.MONTH");
        Self(year.parse().unwrap(), month.parse().unwrap())
    }
}

/// The first release with a name, and the last one, if it has gone.
type Table = BTreeMap<String, (Release, Option<Release>)>;

fn parse_table(text: &str) -> Table {
    let rows = text
        .lines()
        .filter(|line| !line.starts_with('#') && !line.trim().is_empty());
    rows.map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(words.len(), 3, "not `name first last`: {line}");
        let last = (words[2] != "-").then(|| Release::parse(words[2]));
        (words[0].to_owned(), (Release::parse(words[1]), last))
    })
    .collect()
}

/// The names of DPDK in a text, and whether every use stands under a switch on RTE_VERSION.
#[derive(Default)]
struct Names(BTreeMap<String, bool>);

impl Names {
    fn add(&mut self, line: &str, switched: bool) {
        let letter = |c: char| c.is_ascii_alphanumeric() || c == '_';
        for word in line.split(|c| !letter(c)) {
            if (word.starts_with("rte_") || word.starts_with("RTE_")) && word.len() > 4 {
                let all = self.0.entry(word.to_owned()).or_insert(true);
                *all &= switched;
            }
        }
    }

    fn add_c(&mut self, text: &str) {
        let text = without_comments(text);
        let mut switches = Vec::new();
        for line in text.lines().map(str::trim) {
            if line.starts_with("#include") {
                continue;
            }
            if line.starts_with("#if") {
                // The switch itself is a use like any other.
                self.add(line, false);
                switches.push(line.contains("RTE_VERSION"));
                continue;
            }
            if line.starts_with("#endif") {
                switches.pop();
            }
            self.add(line, switches.contains(&true));
        }
    }

    fn add_rust(&mut self, text: &str) {
        for part in text.split("sys::").skip(1) {
            let letter = |c: char| c.is_ascii_alphanumeric() || c == '_';
            self.add(part.split(|c| !letter(c)).next().unwrap(), false);
        }
    }
}

fn without_comments(text: &str) -> String {
    let mut left = String::new();
    for (index, part) in text.split("/*").enumerate() {
        left.push_str(if index == 0 {
            part
        } else {
            part.split_once("*/").map_or("", |both| both.1)
        });
    }
    left
}

/// What is wrong with `names`, one line each.
fn faults(names: &Names, table: &Table) -> Vec<String> {
    let mut faults = Vec::new();
    for (name, switched) in &names.0 {
        match table.get(name) {
            None => faults.push(format!("{name} is not in tests/fixtures/dpdk_calls.txt")),
            Some(_) if *switched => {}
            Some((first, _)) if *first > OLDEST => {
                faults.push(format!("{name} came with {first:?}, after {OLDEST:?}"));
            }
            Some((_, Some(last))) if *last < NEWEST => {
                faults.push(format!("{name} went after {last:?}, before {NEWEST:?}"));
            }
            Some(_) => {}
        }
    }
    faults
}

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn every_name_of_dpdk_is_there_from_the_oldest_to_the_newest_release() {
    let mut names = Names::default();
    read("dpdk-sys/calls.txt")
        .lines()
        .for_each(|line| names.add(line, false));
    names.add_c(&read("dpdk-sys/c/shim.c"));
    names.add_c(&read("dpdk-sys/c/peer.c"));
    names.add_c(&read("dpdk-sys/c/process.c"));
    names.add_c(&read("dpdk-sys/c/shim.h"));
    for folder in ["dpdk/src", "dpdk/src/port"] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|end| end == "rs") {
                names.add_rust(&std::fs::read_to_string(path).unwrap());
            }
        }
    }
    assert!(
        names.0.len() > 80,
        "only {} names found: the sources have moved",
        names.0.len()
    );
    let table = parse_table(&read("tests/fixtures/dpdk_calls.txt"));
    let faults = faults(&names, &table);
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    let known: BTreeSet<&String> = table.keys().collect();
    let used: BTreeSet<&String> = names.0.keys().collect();
    let unused: Vec<_> = known.difference(&used).collect();
    assert!(unused.is_empty(), "in the table, but not used: {unused:?}");
}

#[test]
fn a_call_that_is_too_new_gone_or_unknown_is_found_unless_it_is_switched() {
    let table =
        parse_table("rte_new 23.11 -\nrte_gone 16.04 22.11\nrte_old 16.04 -\nRTE_VERSION 1.0 -");
    let found = |text: &str| {
        let mut names = Names::default();
        names.add_c(text);
        faults(&names, &table).len()
    };
    assert_eq!(found("rte_old(); /* rte_new */"), 0);
    assert_eq!(found("rte_new();"), 1);
    assert_eq!(found("rte_gone();"), 1);
    assert_eq!(found("rte_unheard_of();"), 1);
    assert_eq!(
        found("#if RTE_VERSION > 1\nrte_new();\n#else\nrte_gone();\n#endif\nrte_old();"),
        0
    );
    assert_eq!(
        found("#if RTE_VERSION > 1\nrte_new();\n#endif\nrte_new();"),
        1
    );
    assert_eq!(found("#ifdef OTHER\nrte_new();\n#endif"), 1);
}
