//! The payload stage: rules that fit together.

use core::net::Ipv4Addr;
use core::time::Duration;

use super::{Cross, number};
use crate::config::address;
use crate::config::error::{Fault, Position};
use crate::config::payload::{
    Attach, Batches, Gpu, Instead, Kernel, Mode, OnMatch, PayloadRule, User, WithoutGpu,
};
use crate::config::raw;
use crate::config::reader::{Field, quoted};

/// Rules at most: a flow keeps one bit for each.
const RULES_MAX: usize = 16;

/// Chunks of a batch where the file says nothing: from where the ways of NVIDIA's article hold line rate.
const PACKETS: usize = 64;
const PACKETS_PERSISTENT: usize = 32;

fn mode(name: &str) -> Mode {
    match name {
        "launch" => Mode::Launch,
        "persistent" => Mode::Persistent,
        "memops" => Mode::Memops,
        "graph" => Mode::Graph,
        _ => Mode::Cpu,
    }
}

fn batches(raw: &raw::Gpu, mode: Mode) -> Batches {
    let micros = |key: &Field<i64>| Duration::from_micros(number(key));
    let max_packets = match number(&raw.batch_packets) {
        0 if mode == Mode::Persistent => PACKETS_PERSISTENT,
        0 => PACKETS,
        count => count,
    };
    Batches {
        max_packets,
        max_wait: micros(&raw.batch_wait_us),
        slots: number(&raw.batch_slots),
        timeout: micros(&raw.timeout_us),
        blocks: number(&raw.persistent_blocks),
    }
}

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
        let mode = mode(&raw.mode.value);
        let writes = pipeline.iter().any(|rule| rule.kernel.writes());
        self.without_gpu(raw, mode, &pipeline);
        let on_timeout = self.instead(&raw.on_timeout, writes);
        let on_full = self.instead(&raw.on_full, writes);
        raw.enabled.value.then(|| Gpu {
            required: raw.required.value,
            mode,
            in_process: raw.in_process.value,
            device: raw.device.value.clone(),
            driver_library: raw.driver_library.value.clone(),
            batches: batches(raw, mode),
            on_timeout,
            on_full,
            pipeline,
        })
    }

    /// What is done with payload that the GPU does not take.
    fn instead(&mut self, key: &Field<String>, writes: bool) -> Instead {
        match key.value.as_str() {
            "wait" => Instead::Wait,
            "bypass" if writes => {
                self.faults.push(key.fault(
                    "a kernel that writes must not be passed over: the bytes would leave as they are",
                    "\"cpu\", or a pipeline of kernels that only read",
                ));
                Instead::Cpu
            }
            "bypass" => Instead::Bypass,
            "drop" => Instead::Drop,
            _ => Instead::Cpu,
        }
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
        if attach == Attach::Packet && kernel.as_ref().is_some_and(Kernel::writes) {
            self.faults.push(raw.attach.fault(
                "\"packet\" is for kernels that only read",
                "\"stream\" for one that writes",
            ));
        }
        if attach == Attach::Packet && matches!(kernel, Some(Kernel::User(_))) {
            self.faults.push(raw.attach.fault(
                "\"packet\" lets a GPU read the port's own memory, where a function of kernel \"user\" might write",
                "\"stream\"",
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
        only_for("chacha20", &raw.key_file);
        only_for("user", &raw.ptx_file);
        only_for("user", &raw.function);
        only_for("user", &raw.without_gpu);
        if name != "user" {
            only_for("pattern", &raw.on_match);
            only_for("pattern", &raw.mirror_file);
        }
        if name != "user" && raw.writes.value {
            self.faults.push(raw.writes.fault(
                format!("has no meaning for kernel {}", quoted(name)),
                "leave it out, or kernel \"user\"",
            ));
        }
        match name {
            "pattern" => {
                let file = self.file(&raw.patterns_file, field.at)?;
                let on_match = self.on_match(field)?;
                Some(Kernel::Pattern { file, on_match })
            }
            "stats" => Some(Kernel::Stats),
            "chacha20" => Some(Kernel::Chacha20 {
                key_file: self.file(&raw.key_file, field.at)?,
            }),
            "crc32c" => Some(Kernel::Crc32c),
            "user" => self.user(field).map(Kernel::User),
            _ => {
                let mut fault = raw.kernel.fault(
                    "the kernel is not named",
                    "one of pattern, stats, chacha20, crc32c, user",
                );
                fault.at = fault.at.or(field.at);
                self.faults.push(fault);
                None
            }
        }
    }

    fn on_match(&mut self, field: &Field<raw::PayloadRule>) -> Option<OnMatch> {
        let raw = &field.value;
        Some(match raw.on_match.value.as_str() {
            "pass" => OnMatch::Pass,
            "drop" => OnMatch::Drop,
            "mark" => OnMatch::Mark(number(&raw.mark)),
            "mirror" => OnMatch::Mirror(self.file(&raw.mirror_file, field.at)?),
            _ => OnMatch::Reset,
        })
    }

    fn user(&mut self, field: &Field<raw::PayloadRule>) -> Option<User> {
        let raw = &field.value;
        let without = match raw.without_gpu.value.as_str() {
            "pass" => WithoutGpu::Pass,
            _ => WithoutGpu::Refuse,
        };
        if raw.writes.value && without == WithoutGpu::Pass {
            self.faults.push(raw.without_gpu.fault(
                "what a function writes must not be left out: the bytes would leave as they are",
                "\"refuse\", or a function that only reads",
            ));
        }
        if raw.function.value.is_empty() {
            let mut fault = raw
                .function
                .fault("no function is named", "its name in ptx_file");
            fault.at = fault.at.or(field.at);
            self.faults.push(fault);
        }
        let mirror_file = if raw.mirror_file.value.is_empty() {
            String::new()
        } else {
            self.file(&raw.mirror_file, field.at)?
        };
        Some(User {
            file: self.file(&raw.ptx_file, field.at)?,
            function: raw.function.value.clone(),
            writes: raw.writes.value,
            on_match: self.on_match(field)?,
            mirror_file,
            without,
        })
    }

    /// What no CPU can run wants a GPU.
    fn without_gpu(&mut self, raw: &raw::Gpu, mode: Mode, pipeline: &[PayloadRule]) {
        let refuses = |rule: &&PayloadRule| matches!(&rule.kernel, Kernel::User(user) if user.without == WithoutGpu::Refuse);
        if raw.enabled.value
            && mode == Mode::Cpu
            && let Some(rule) = pipeline.iter().find(refuses)
        {
            self.faults.push(raw.mode.fault(
                format!("\"cpu\" cannot run kernel \"user\" of {}", rule.path),
                "a mode with a GPU, or \"without_gpu\": \"pass\" in that rule",
            ));
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
