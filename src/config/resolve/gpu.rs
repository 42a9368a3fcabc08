//! The payload stage: rules that fit together.

use core::net::Ipv4Addr;

use super::{Cross, number};
use crate::config::address;
use crate::config::error::{Fault, Position};
use crate::config::payload::{Attach, Gpu, Kernel, OnMatch, PayloadRule};
use crate::config::raw;
use crate::config::reader::{Field, quoted};

/// Rules at most: a flow keeps one bit for each.
const RULES_MAX: usize = 16;

impl Cross {
    pub(super) fn gpu(&mut self, raw: &raw::Gpu) -> Option<Gpu> {
        let pipeline: Vec<PayloadRule> = raw
            .pipeline
            .value
            .iter()
            .filter_map(|field| self.rule(field))
            .collect();
        let count = raw.pipeline.value.len();
        if count > RULES_MAX {
            let what = format!("{count} entries");
            self.faults
                .push(raw.pipeline.fault(what, format!("at most {RULES_MAX}")));
        }
        let told = |fault: &Fault| fault.path.starts_with(&raw.pipeline.path);
        if raw.enabled.value && count == 0 && !self.faults.iter().any(told) {
            self.faults.push(
                raw.enabled
                    .fault("there is nothing to run", "name a kernel in gpu.pipeline"),
            );
        }
        if raw.enabled.value && raw.required.value && raw.mode.value != "cpu" {
            let what = format!(
                "{} cannot be had: no GPU is served",
                quoted(&raw.mode.value)
            );
            self.faults
                .push(raw.mode.fault(what, "\"cpu\", or \"required\": false"));
        }
        raw.enabled.value.then(|| Gpu {
            required: raw.required.value,
            mode: raw.mode.value.clone(),
            pipeline,
        })
    }

    fn rule(&mut self, field: &Field<raw::PayloadRule>) -> Option<PayloadRule> {
        let raw = &field.value;
        let before = self.faults.len();
        let kernel = self.kernel(field);
        let attach = if raw.attach.value == "packet" {
            Attach::Packet
        } else {
            Attach::Stream
        };
        if attach == Attach::Packet && raw.kernel.value == "chacha20" {
            self.faults.push(raw.attach.fault(
                "\"packet\" is for kernels that only read",
                "\"stream\" for chacha20",
            ));
        }
        if attach == Attach::Stream && raw.min_payload.value > 0 {
            self.faults.push(raw.min_payload.fault(
                "a stream has no segments",
                "leave it out, or \"attach\": \"packet\"",
            ));
        }
        if attach == Attach::Stream && raw.on_match.value == "drop" {
            self.faults.push(raw.on_match.fault(
                "a stream cannot lose bytes",
                "\"reset\", or \"attach\": \"packet\"",
            ));
        }
        let networks = self.networks(&raw.addresses);
        let kernel = kernel?;
        (self.faults.len() == before).then(|| PayloadRule {
            path: field.path.clone(),
            kernel,
            rx: raw.direction.value != "tx",
            tx: raw.direction.value != "rx",
            attach,
            ports: raw.ports.value.iter().map(number).collect(),
            networks,
            min_payload: number(&raw.min_payload),
        })
    }

    fn kernel(&mut self, field: &Field<raw::PayloadRule>) -> Option<Kernel> {
        let raw = &field.value;
        let name = raw.kernel.value.as_str();
        let mut only_for = |owner: &str, key: &Field<String>| {
            if name != owner && key.at.is_some() {
                self.faults.push(key.fault(
                    format!("has no meaning for kernel {}", quoted(name)),
                    format!("leave it out, or kernel {}", quoted(owner)),
                ));
            }
        };
        only_for("pattern", &raw.patterns_file);
        only_for("pattern", &raw.on_match);
        only_for("pattern", &raw.mirror_file);
        only_for("chacha20", &raw.key_file);
        match name {
            "pattern" => {
                let file = self.file(&raw.patterns_file, field.at)?;
                let on_match = match raw.on_match.value.as_str() {
                    "pass" => OnMatch::Pass,
                    "drop" => OnMatch::Drop,
                    "mark" => OnMatch::Mark(number(&raw.mark)),
                    "mirror" => OnMatch::Mirror(self.file(&raw.mirror_file, field.at)?),
                    _ => OnMatch::Reset,
                };
                Some(Kernel::Pattern { file, on_match })
            }
            "stats" => Some(Kernel::Stats),
            "chacha20" => Some(Kernel::Chacha20 {
                key_file: self.file(&raw.key_file, field.at)?,
            }),
            "crc32c" => Some(Kernel::Crc32c),
            _ => {
                let mut fault = raw.kernel.fault(
                    "the kernel is not named",
                    "one of pattern, stats, chacha20, crc32c",
                );
                fault.at = fault.at.or(field.at);
                self.faults.push(fault);
                None
            }
        }
    }

    /// A file that must be named: absolute, because a host has no working folder of its own.
    fn file(&mut self, key: &Field<String>, rule: Option<Position>) -> Option<String> {
        if key.value.starts_with('/') && !key.value.contains('\0') {
            return Some(key.value.clone());
        }
        let what = if key.value.is_empty() {
            "no file is named".to_owned()
        } else {
            format!("{} is no absolute path", quoted(&key.value))
        };
        let mut fault = key.fault(what, "an absolute path, /...");
        fault.at = fault.at.or(rule);
        self.faults.push(fault);
        None
    }

    fn networks(&mut self, keys: &Field<Vec<Field<String>>>) -> Vec<(Ipv4Addr, u8)> {
        let mut networks = Vec::new();
        for key in &keys.value {
            match address::prefix4(&key.value) {
                Some(network) => networks.push(network),
                None => self.faults.push(key.fault(
                    format!("{} is no network", quoted(&key.value)),
                    "a.b.c.d/len",
                )),
            }
        }
        networks
    }
}
