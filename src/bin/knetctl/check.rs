//! `knetctl check`: every fault of a file, and what it would do on this machine.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use knet::config::{self, Config, Faults, OnError, Position, Remark};
use knet::preflight::install::Places;
use knet::preflight::{self, Finding, Machine};
use serde_json::{Value, json};

use crate::{config_file, print};

/// The file has faults.
const FAULTY: u8 = 1;
/// The file is right, but would not run here.
const WOULD_NOT_RUN: u8 = 2;

/// Checks a config: prints every fault, every remark, and what it would do on this machine.
///
/// Exit status: 0 all well (perhaps with warnings), 1 faults in the file, 2 the file is right but would not run
/// here, 64 wrong usage.
#[derive(clap::Args, Debug)]
pub(crate) struct Check {
    /// The file [default: $KNET_CONF, else /etc/knet/knet_comm.conf]
    file: Option<PathBuf>,
    /// One JSON object on stdout instead of lines.
    #[arg(long)]
    json: bool,
}

impl Check {
    /// Runs the command.
    pub(crate) fn execute(self) -> ExitCode {
        let file = self.file.unwrap_or_else(config_file);
        let loaded = config::load_file(&file);
        let findings = match &loaded {
            Err(_) => Ok(Vec::new()),
            Ok(config) => Places::of_this_process()
                .map(|places| preflight::check(config, &Machine::gather(config, &places))),
        };
        let findings = match findings {
            Ok(findings) => findings,
            Err(error) => {
                complain!("knetctl: cannot tell where it lies itself: {error}");
                return ExitCode::from(print::IO_ERROR);
            }
        };
        let status = match &loaded {
            Err(_) => FAULTY,
            Ok(_) if !preflight::would_run(&findings) => WOULD_NOT_RUN,
            Ok(_) => 0,
        };
        if self.json {
            print::json(&as_json(&file, &loaded, &findings, status));
        } else {
            print::line(&as_lines(&file, &loaded, &findings, status));
        }
        ExitCode::from(status)
    }
}

fn as_lines(
    file: &Path,
    loaded: &Result<Config, Faults>,
    findings: &[Finding],
    status: u8,
) -> String {
    let mut lines = Vec::new();
    if let Err(faults) = loaded {
        lines.push(faults.to_string());
    }
    for remark in remarks(loaded) {
        lines.push(format!("{}:{remark} [remark]", file.display()));
    }
    lines.extend(findings.iter().map(ToString::to_string));
    let name = file.display();
    lines.push(match (loaded, status) {
        (Err(faults), _) => {
            let count = match faults.faults.len() {
                1 => "1 fault".to_owned(),
                count => format!("{count} faults"),
            };
            match faults.on_error {
                OnError::Kernel => format!("{name}: {count}: programs stay on kernel sockets"),
                OnError::Fail => {
                    format!("{name}: {count}: programs are refused (on_error is fail)")
                }
            }
        }
        (Ok(config), 0) => format!("{name}: good; port {}, {}", config.port, addresses(config)),
        (Ok(_), _) => format!("{name}: no fault in the file, but it would not run here"),
    });
    lines.join("\n")
}

fn as_json(
    file: &Path,
    loaded: &Result<Config, Faults>,
    findings: &[Finding],
    status: u8,
) -> Value {
    let place = |at: Option<Position>| {
        at.map_or((Value::Null, Value::Null), |at| {
            (json!(at.line), json!(at.column))
        })
    };
    let faults = loaded
        .as_ref()
        .err()
        .map_or(&[][..], |faults| faults.faults.as_slice());
    let faults = faults.iter().map(|fault| {
        let (line, column) = place(fault.at);
        json!({ "path": fault.path, "line": line, "column": column, "what": fault.what, "advice": fault.advice })
    });
    let remarks = remarks(loaded).iter().map(|remark| {
        let (line, column) = place(remark.at);
        json!({ "path": remark.path, "line": line, "column": column, "what": remark.what })
    });
    let findings = findings.iter().map(|finding| {
        let severity = finding.severity.to_string();
        json!({ "severity": severity, "subject": finding.subject, "what": finding.what, "advice": finding.advice })
    });
    json!({
        "file": file.display().to_string(),
        "status": status,
        "faults": faults.collect::<Vec<_>>(),
        "remarks": remarks.collect::<Vec<_>>(),
        "findings": findings.collect::<Vec<_>>(),
    })
}

fn remarks(loaded: &Result<Config, Faults>) -> &[Remark] {
    match loaded {
        Ok(config) => &config.remarks,
        Err(faults) => &faults.remarks,
    }
}

fn addresses(config: &Config) -> String {
    let addresses: Vec<String> = config
        .network
        .addresses
        .iter()
        .map(|(ip, len)| format!("{ip}/{len}"))
        .collect();
    addresses.join(", ")
}
