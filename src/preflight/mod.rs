//! What a config would do on this machine, said before it is tried.
//!
//! Owns the questions (`machine` gathers facts, the other files judge them) and their answers, [`Finding`]s. May
//! use `config`, `gpu`, `base` and `telemetry`. Runs in `knetctl` and in the host before it opens a port; it reads /proc,
//! /sys and rtnetlink, changes nothing, and needs no privilege. Invariant: a judgement is a function of a config
//! and a [`Machine`], so every one is tested without the machine it is about.

mod cpus;
mod device;
pub mod install;
mod limits;
mod machine;
mod memory;
mod netlink;
pub mod nic;
mod payload;
mod privilege;
mod procfs;
#[cfg(test)]
mod tests;
pub mod waits;

use core::fmt;

pub use machine::{Limits, Machine, Pci};
pub use netlink::{Link, Net};

use crate::config::{Config, Mode, PortChoice, Vdev};

/// How much a finding matters.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Severity {
    /// The stack would not run.
    Error,
    /// It would run worse than the file says.
    Warning,
    /// Worth knowing.
    Info,
}

impl fmt::Display for Severity {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Error => "error",
            Self::Warning => "warning",
            Self::Info => "info",
        })
    }
}

/// One thing that the machine says about the config, on one line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// How much it matters.
    pub severity: Severity,
    /// The key, the part of the machine or the limit that it is about.
    pub subject: String,
    /// What was found: lower case, no final period.
    pub what: String,
    /// What to do; empty when nothing is to be done.
    pub advice: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}: {}: {}", self.severity, self.subject, self.what)?;
        if !self.advice.is_empty() {
            write!(out, " ({})", self.advice)?;
        }
        Ok(())
    }
}

/// Judges `config` on `machine`: the findings, the worst first.
#[must_use]
pub fn check(config: &Config, machine: &Machine) -> Vec<Finding> {
    let mut report = Report::default();
    device::check(config, machine, &mut report);
    device::check_addresses(config, machine, &mut report);
    cpus::check(config, machine, &mut report);
    memory::check(config, machine, &mut report);
    limits::check(config, machine, &mut report);
    privilege::check(config, machine, &mut report);
    payload::check(config, machine, &mut report);
    check_parts(config, machine, &mut report);
    report.findings.sort_by_key(|finding| finding.severity);
    report.findings
}

/// Whether the config would run: no finding is an error.
#[must_use]
pub fn would_run(findings: &[Finding]) -> bool {
    findings
        .iter()
        .all(|finding| finding.severity != Severity::Error)
}

#[derive(Debug, Default)]
struct Report {
    findings: Vec<Finding>,
}

impl Report {
    fn error(&mut self, subject: &str, what: impl Into<String>, advice: impl Into<String>) {
        self.add(Severity::Error, subject, what.into(), advice.into());
    }

    fn warning(&mut self, subject: &str, what: impl Into<String>, advice: impl Into<String>) {
        self.add(Severity::Warning, subject, what.into(), advice.into());
    }

    fn info(&mut self, subject: &str, what: impl Into<String>, advice: impl Into<String>) {
        self.add(Severity::Info, subject, what.into(), advice.into());
    }

    fn add(&mut self, severity: Severity, subject: &str, what: String, advice: String) {
        self.findings.push(Finding {
            severity,
            subject: subject.to_owned(),
            what,
            advice,
        });
    }
}

/// Whether the port is DPDK's: then the plug-in, packet buffers and EAL's memory are needed.
fn needs_dpdk(config: &Config) -> bool {
    !matches!(
        config.port,
        PortChoice::Vdev(Vdev::KnetPair(_) | Vdev::KnetUnix(_))
    )
}

fn check_parts(config: &Config, machine: &Machine, report: &mut Report) {
    if machine.frame.is_none() {
        let advice = "install the package, or run the tool that was built beside it";
        report.error(install::FRAME, "not found", advice);
    }
    if machine.host.is_none() {
        report.error(
            install::HOST,
            "not found",
            "install the package, or name it by KNET_HOST",
        );
    }
    if needs_dpdk(config) && machine.plugin.is_none() {
        let advice = "install the package with DPDK, or use a knet_unix device";
        report.error(
            install::PLUGIN,
            "not found beside knetd nor in the library path",
            advice,
        );
    }
    if config.mode == Mode::Shared && !machine.system_host {
        report.error(
            "common.mode",
            "1, but no system host listens",
            "systemctl start knetd, or mode 0",
        );
    }
}
