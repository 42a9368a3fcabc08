//! Configuration: one JSON file into types that cannot be wrong.
//!
//! Owns the file's language (`parse`), the table of keys (`raw`, `key`), the checked types (`settings`) and
//! the step between them (`resolve`), with the schema and the reference page made from the same table. May
//! use `base` and `telemetry`. Runs in the host at start and in `knetctl`, never on a data path and never in
//! the program. Invariant: a [`Config`] breaks no rule of the file, and nobody checks one again; what depends
//! on the machine is asked by `preflight`.
//!
//! ```
//! let text = br#"{"interface": {"bdf_nums": ["0000:04:00.0"], "ip": "192.168.1.58"}} # all of it"#;
//! let config = knet::config::load_bytes("example", text).expect("the smallest file");
//! assert_eq!(config.network.mtu, 1500);
//! ```

mod address;
pub mod cpu_list;
mod error;
mod file;
mod hash;
pub mod key;
mod lcores;
mod nearest;
pub mod parse;
pub mod payload;
mod policy;
mod port;
mod raw;
mod reader;
pub mod reference;
mod resolve;
pub mod schema;
mod settings;
#[cfg(test)]
mod tests;
mod tree;

use std::path::Path;

pub use address::{Route, is_inside, mask};
pub use error::{Fault, Faults, LINE_FAULTS_MAX, Position, Remark};
pub use file::{DEFAULT_PATH, FILE_BYTES_MAX, read, read_descriptor};
pub use hash::config_hash;
pub use lcores::LCORES_MAX;
pub use policy::Policy;
pub use port::{Bdf, PortChoice, Vdev, VdevArgs};
pub use settings::{
    Accelerate, Buffers, Config, Dpdk, Idle, MetricsAt, Mode, Network, Offload, OnError,
    OnHostLost, Progress, Run, Tcp,
};

/// Every section with its keys, in the order of the file.
#[must_use]
pub fn sections() -> &'static [key::Section] {
    raw::SECTIONS
}

/// Reads and checks the file at `path`.
///
/// # Errors
/// Every fault at once.
pub fn load_file(path: &Path) -> Result<Config, Faults> {
    load_bytes(&path.display().to_string(), &read(path)?)
}

/// Checks a config's bytes; `path` is only shown.
///
/// # Errors
/// Every fault at once.
pub fn load_bytes(path: &str, bytes: &[u8]) -> Result<Config, Faults> {
    if bytes.len() > FILE_BYTES_MAX {
        return Err(file::too_large(path));
    }
    let text = text_of(path, bytes)?;
    let (root, faults) = parse::parse(text).map_err(|faults| Faults {
        file: path.to_owned(),
        faults,
        remarks: Vec::new(),
        on_error: OnError::Kernel,
    })?;
    resolve::resolve(path, bytes, &root, faults)
}

/// The bytes as text: UTF-8 without NUL.
fn text_of<'a>(path: &str, bytes: &'a [u8]) -> Result<&'a str, Faults> {
    let place = |index: usize| {
        let before = bytes.get(..index).unwrap_or(&[]);
        let text = String::from_utf8_lossy(before);
        let line = text.matches('\n').count() + 1;
        let column = text.rsplit('\n').next().unwrap_or("").chars().count() + 1;
        let number = |count| u32::try_from(count).unwrap_or(u32::MAX);
        Position {
            line: number(line),
            column: number(column),
        }
    };
    let fault = |index: Option<usize>, what: &str, advice: &str| {
        let mut faults = Faults::of_file(path, what, advice);
        for fault in &mut faults.faults {
            fault.at = index.map(place);
        }
        faults
    };
    if bytes.starts_with(&[0xff, 0xfe]) || bytes.starts_with(&[0xfe, 0xff]) {
        return Err(fault(None, "is UTF-16", "save it as UTF-8"));
    }
    if let Some(index) = bytes.iter().position(|byte| *byte == 0) {
        return Err(fault(
            Some(index),
            "NUL byte in the file",
            "is it a text file?",
        ));
    }
    core::str::from_utf8(bytes).map_err(|error| {
        fault(
            Some(error.valid_up_to()),
            "not UTF-8 from here on",
            "save it as UTF-8",
        )
    })
}
