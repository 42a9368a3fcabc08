//! Cores, rings and EAL's arguments.

use super::{Cross, number};
use crate::config::cpu_list;
use crate::config::raw;
use crate::config::reader::{Field, quoted};
use crate::config::settings::Dpdk;
use crate::id::CpuId;

/// CPU numbers in `core_list_global` are below this, as in K-NET.
const CPUS_LIMIT: u32 = 320;

impl Cross {
    pub(super) fn dpdk(
        &mut self,
        raw: &raw::Dpdk,
        stack: &raw::ProtoStack,
        cothread: bool,
    ) -> Dpdk {
        // K-NET does not read the list then, so that anything may stand there.
        let cores = if cothread {
            None
        } else {
            self.cores(&raw.core_list_global)
        };
        let mut workers: u32 = number(&stack.max_worker_num);
        if let Some(cores) = &cores {
            let count = u32::try_from(cores.len()).unwrap_or(u32::MAX);
            if stack.max_worker_num.at.is_some() && count != workers {
                let what = format!(
                    "has no effect: core_list_global names {count}, and there are as many threads"
                );
                self.remarks.push(stack.max_worker_num.remark(what));
            }
            workers = count;
        } else if workers > 1 && !cothread {
            let what =
                "has no effect without core_list_global, which names the CPUs: one thread serves";
            self.remarks
                .push(stack.max_worker_num.remark(what.to_owned()));
        }
        let rings = raw.tx_cache_size.value + raw.rx_cache_size.value;
        let least = i64::from(workers)
            .saturating_mul(rings)
            .saturating_add(2_048);
        if stack.max_mbuf.value < least {
            let what = format!(
                "{} cannot fill the rings of {workers} threads",
                stack.max_mbuf.value
            );
            self.faults
                .push(stack.max_mbuf.fault(what, format!("at least {least}")));
        }
        let socket_mem_mb = self.megabytes(&raw.socket_mem, "--socket-mem=");
        let socket_limit_mb = self.megabytes(&raw.socket_limit, "--socket-limit=");
        if let (Some(mem), Some(limit)) = (&socket_mem_mb, &socket_limit_mb) {
            // EAL: a limit of 0 is none.
            if mem
                .iter()
                .zip(limit)
                .any(|(mem, limit)| *limit != 0 && mem > limit)
            {
                self.faults.push(
                    raw.socket_limit
                        .fault("below socket_mem", "at least socket_mem for each node"),
                );
            }
        }
        Dpdk {
            cores,
            workers,
            mbufs: number(&stack.max_mbuf),
            tx_descriptors: number(&raw.tx_cache_size),
            rx_descriptors: number(&raw.rx_cache_size),
            socket_mem_mb,
            socket_limit_mb,
            external_driver: self.stripped(
                &raw.external_driver,
                "-d",
                is_driver,
                "-dlibrte_net_NAME.so",
            ),
            telemetry: raw.telemetry.value == 1,
            huge_dir: self.stripped(
                &raw.huge_dir,
                "--huge-dir=",
                is_huge_dir,
                "--huge-dir=/dev/hugepages",
            ),
            base_virtaddr: self
                .stripped(
                    &raw.base_virtaddr,
                    "--base-virtaddr=0x",
                    is_hex,
                    "--base-virtaddr=0x100000000",
                )
                .and_then(|hex| u64::from_str_radix(&hex, 16).ok()),
        }
    }

    fn cores(&mut self, field: &Field<String>) -> Option<Vec<CpuId>> {
        if field.value.trim().is_empty() {
            return None;
        }
        match cpu_list::parse(&field.value, CPUS_LIMIT) {
            Ok(cores) if cores.len() <= 32 => return Some(cores),
            Ok(cores) => self
                .faults
                .push(field.fault(format!("{} CPUs", cores.len()), "at most 32")),
            Err(what) => self
                .faults
                .push(field.fault(what, "CPUs and ranges below 320, for example \"1,4-7\"")),
        }
        None
    }

    fn megabytes(&mut self, field: &Field<String>, prefix: &str) -> Option<Vec<u32>> {
        if field.value.is_empty() {
            return None;
        }
        let digits = |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_digit());
        let number = |text: &str| digits(text).then(|| text.parse().ok()).flatten();
        let rest = field.value.strip_prefix(prefix);
        let read = rest.and_then(|rest| rest.split(',').map(number).collect::<Option<Vec<u32>>>());
        if read.is_none() {
            let what = format!("{} is not understood", quoted(&field.value));
            self.faults
                .push(field.fault(what, format!("{prefix}MB[,MB]..., one for each NUMA node")));
        }
        read
    }

    /// The value of an EAL argument that the file holds with its dashes.
    fn stripped(
        &mut self,
        field: &Field<String>,
        prefix: &str,
        good: fn(&str) -> bool,
        example: &str,
    ) -> Option<String> {
        if field.value.is_empty() {
            return None;
        }
        let rest = field.value.strip_prefix(prefix).filter(|rest| good(rest));
        if rest.is_none() {
            let what = format!("{} is not understood", quoted(&field.value));
            self.faults
                .push(field.fault(what, format!("for example {example}, or leave it out")));
        }
        rest.map(str::to_owned)
    }
}

/// K-NET: no slash, ends in `.so` and perhaps numbers.
fn is_driver(name: &str) -> bool {
    let allowed = name
        .chars()
        .all(|c| c.is_ascii_alphanumeric() || "_-.+".contains(c));
    let numbers = |rest: &str| {
        rest.split('.')
            .skip(1)
            .all(|part| !part.is_empty() && part.chars().all(|c| c.is_ascii_digit()))
    };
    let ends = name
        .rfind(".so")
        .and_then(|at| Some((at, name.get(at + 3..)?)));
    allowed
        && ends.is_some_and(|(at, rest)| {
            at > 0 && (rest.is_empty() || rest.starts_with('.') && numbers(rest))
        })
}

/// K-NET: an absolute folder of letters, digits, `_`, `-` and `/`.
fn is_huge_dir(folder: &str) -> bool {
    folder.starts_with('/')
        && folder
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "_-/".contains(c))
}

fn is_hex(text: &str) -> bool {
    (1..=16).contains(&text.len()) && text.chars().all(|c| c.is_ascii_hexdigit())
}
