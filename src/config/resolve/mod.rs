//! From keys that are right one by one to a config that is right as a whole.
//!
//! One file a part of the config; each adds its faults and goes on, so that all of them are told at once.

mod dpdk;
mod gpu;
mod network;
mod port;

use core::net::{Ipv4Addr, SocketAddrV4};
use core::time::Duration;

use crate::config::error::{Fault, Faults, Remark};
use crate::config::hash::config_hash;
use crate::config::parse::Node;
use crate::config::raw::{self, Raw};
use crate::config::reader::{Field, Reader, quoted};
use crate::config::settings::{
    Accelerate, Buffers, Config, Idle, MetricsAt, Mode, Network, Offload, OnError, OnHostLost,
    Progress, Run, Tcp,
};
use crate::telemetry::Level;

/// Entries of an accelerate list at most: they go to a page of fixed size.
const ACCELERATE_MAX: usize = 64;

/// Builds the config, or reports every fault of the file: those of the parse, of single keys, and across keys.
pub(super) fn resolve(
    file: &str,
    bytes: &[u8],
    root: &Node,
    faults: Vec<Fault>,
) -> Result<Config, Faults> {
    let mut reader = Reader::new(root, faults);
    let raw = Raw::read(&mut reader);
    let mut cross = Cross {
        faults: reader.faults,
        remarks: reader.remarks,
    };

    let port = cross.port(&raw.interface);
    let network = cross.network(&raw.interface, &raw.proto_stack);
    let accelerate = cross.accelerate(&raw.accelerate, &network);
    let (mode, run) = cross.run(&raw.common);
    let offload = cross.offload(&raw.hw_offload);
    let metrics = cross.metrics(&raw.common.metrics);
    let buffers = cross.buffers(&raw.proto_stack);
    let dpdk = cross.dpdk(
        &raw.dpdk,
        &raw.proto_stack,
        raw.common.cothread_enable.value == 1,
    );

    let gpu = cross.gpu(&raw.gpu);

    let Cross {
        mut faults,
        mut remarks,
    } = cross;
    let order = |at: Option<_>| (at.is_none(), at);
    faults.sort_by_key(|fault| order(fault.at));
    remarks.sort_by_key(|remark| order(remark.at));
    let on_error = if raw.common.on_error.value == "fail" {
        OnError::Fail
    } else {
        OnError::Kernel
    };
    let (Some(port), true) = (port, faults.is_empty()) else {
        return Err(Faults {
            file: file.to_owned(),
            faults,
            remarks,
            on_error,
        });
    };
    let seconds = |field: &Field<i64>| Duration::from_secs(u64::from(number::<u32>(field)));
    Ok(Config {
        file: file.to_owned(),
        hash: config_hash(bytes),
        mode,
        log_level: match raw.common.log_level.value.as_str() {
            "ERROR" => Level::Error,
            "INFO" => Level::Info,
            "DEBUG" => Level::Debug,
            _ => Level::Warn,
        },
        on_error,
        on_host_lost: if raw.common.on_host_lost.value == "wait" {
            OnHostLost::Wait
        } else {
            OnHostLost::Kernel
        },
        accelerate,
        run,
        linger: seconds(&raw.common.linger_s),
        linger_max: seconds(&raw.common.linger_max_s),
        port,
        exclusive: raw.interface.exclusive.value,
        network,
        offload,
        tcp: Tcp {
            max_connections: number(&raw.proto_stack.max_tcpcb),
            max_neighbors: number(&raw.proto_stack.max_arp),
            sack: raw.proto_stack.tcp_sack.value == 1,
            delayed_ack: raw.proto_stack.tcp_dack.value == 1,
            cookies: raw.proto_stack.tcp_cookie.value == 1,
            msl: seconds(&raw.proto_stack.msl_time),
            fin_timeout: seconds(&raw.proto_stack.fin_timeout),
            synack_retries: number(&raw.proto_stack.synack_retries),
            ephemeral_ports: (
                number(&raw.proto_stack.min_port),
                number(&raw.proto_stack.max_port),
            ),
        },
        buffers,
        dpdk,
        metrics,
        gpu,
        remarks,
    })
}

/// A number that its key's range keeps inside `T`; a value that does not fit would be a hole in the table,
/// which `tests::numbers_at_their_ends_survive_the_conversion` looks for.
fn number<T: TryFrom<i64> + Default>(field: &Field<i64>) -> T {
    T::try_from(field.value).unwrap_or_default()
}

struct Cross {
    faults: Vec<Fault>,
    remarks: Vec<Remark>,
}

impl Cross {
    fn accelerate(&mut self, raw: &raw::Accelerate, network: &Network) -> Accelerate {
        let mut accelerate = Accelerate::default();
        for field in &raw.programs.value {
            let name = &field.value;
            if name.is_empty() || name.len() > 255 || name.chars().any(char::is_control) {
                self.faults.push(field.fault(
                    format!("{} is no program", quoted(name)),
                    "a name or an absolute path",
                ));
            } else if name.contains('/') && !name.starts_with('/') {
                self.faults.push(field.fault(
                    format!("{} is a relative path", quoted(name)),
                    "a name or an absolute path",
                ));
            } else {
                accelerate.programs.push(name.clone());
            }
        }
        accelerate.ports = raw.ports.value.iter().map(number).collect();
        for field in &raw.addresses.value {
            match field.value.parse::<Ipv4Addr>() {
                Ok(ip)
                    if network.addresses.is_empty()
                        || network.addresses.iter().any(|(ours, _)| *ours == ip) =>
                {
                    accelerate.addresses.push(ip);
                }
                Ok(ip) => self.faults.push(field.fault(
                    format!("{ip} is not ours"),
                    "one of interface.ip and interface.addresses",
                )),
                Err(_) => {
                    let what = format!("{} is no IPv4 address", quoted(&field.value));
                    self.faults
                        .push(field.fault(what, "one of our addresses, a.b.c.d"));
                }
            }
        }
        let counts = [
            (raw.programs.value.len(), "programs"),
            (raw.ports.value.len(), "ports"),
            (raw.addresses.value.len(), "addresses"),
        ];
        for (count, name) in counts
            .into_iter()
            .filter(|(count, _)| *count > ACCELERATE_MAX)
        {
            self.faults.push(Fault {
                path: format!("common.accelerate.{name}"),
                at: None,
                what: format!("{count} entries"),
                advice: format!("at most {ACCELERATE_MAX}"),
            });
        }
        accelerate
    }

    fn run(&mut self, raw: &raw::Common) -> (Mode, Run) {
        let mode = if raw.mode.value == 1 {
            Mode::Shared
        } else {
            Mode::Private
        };
        let cothread = raw.cothread_enable.value == 1;
        let inline = raw.progress.value == "inline";
        if cothread && !inline && raw.progress.at.is_some() {
            let what = "\"dedicated\" contradicts cothread_enable: 1";
            self.faults
                .push(raw.progress.fault(what, "leave one of the two out"));
        }
        let mut progress = if inline || cothread {
            Progress::Inline
        } else {
            Progress::Dedicated
        };
        if mode == Mode::Shared && inline {
            let what = "\"inline\" contradicts mode: 1";
            self.faults.push(raw.progress.fault(
                what,
                "a shared host has its own cores: mode 0, or \"dedicated\"",
            ));
        } else if mode == Mode::Shared && cothread {
            self.remarks.push(
                raw.cothread_enable
                    .remark("has no effect: with mode 1 the host has its own cores"),
            );
            progress = Progress::Dedicated;
        }
        let micros = |field: &Field<i64>| Duration::from_micros(u64::from(number::<u32>(field)));
        let idle = if raw.idle.value == "spin" {
            Idle::Spin
        } else {
            Idle::Adaptive
        };
        if idle == Idle::Spin && raw.spin_us.at.is_some() {
            self.remarks.push(
                raw.spin_us
                    .remark("has no effect: \"idle\": \"spin\" never sleeps"),
            );
        }
        for (field, default) in [(&raw.budget_us, 50), (&raw.inline_grace_us, 200)] {
            let is_asked = field.at.is_some() && field.value != default;
            if progress == Progress::Dedicated && is_asked {
                self.remarks
                    .push(field.remark("has no effect: only \"progress\": \"inline\" asks for it"));
            }
        }
        let run = Run {
            progress,
            idle,
            spin: micros(&raw.spin_us),
            budget: micros(&raw.budget_us),
            inline_grace: micros(&raw.inline_grace_us),
        };
        (mode, run)
    }

    fn metrics(&mut self, field: &Field<String>) -> Option<MetricsAt> {
        if field.value.is_empty() {
            return None;
        }
        if let Some(path) = field.value.strip_prefix("unix:")
            && path.starts_with('/')
        {
            return Some(MetricsAt::Unix(path.into()));
        }
        let endpoint: Option<SocketAddrV4> = field.value.parse().ok();
        let endpoint = endpoint.filter(|it| it.ip().is_loopback() && it.port() != 0);
        if endpoint.is_none() {
            let what = format!("{} is no place for metrics", quoted(&field.value));
            self.faults.push(field.fault(
                what,
                "\"unix:/absolute/path\", or a loopback address with a port: \"127.0.0.1:9464\"",
            ));
        }
        endpoint.map(MetricsAt::Loopback)
    }

    fn offload(&mut self, raw: &raw::HwOffload) -> Offload {
        let tcp_checksum = raw.tcp_checksum.value == 1;
        for field in [&raw.tso, &raw.lro] {
            if field.value == 1 && !tcp_checksum {
                self.faults
                    .push(field.fault("needs tcp_checksum", "set hw_offload.tcp_checksum to 1"));
            }
        }
        Offload {
            tso: raw.tso.value == 1,
            lro: raw.lro.value == 1,
            tcp_checksum,
        }
    }

    fn buffers(&mut self, raw: &raw::ProtoStack) -> Buffers {
        let pairs = [
            (&raw.def_sendbuf, &raw.max_sendbuf, "max_sendbuf"),
            (&raw.def_recvbuf, &raw.max_recvbuf, "max_recvbuf"),
        ];
        for (default, max, name) in pairs {
            if default.value > max.value {
                let what = format!("{} is above {name} ({})", default.value, max.value);
                self.faults
                    .push(default.fault(what, format!("8192 to {}", max.value)));
            }
        }
        Buffers {
            send_default: number(&raw.def_sendbuf),
            send_max: number(&raw.max_sendbuf),
            receive_default: number(&raw.def_recvbuf),
            receive_max: number(&raw.max_recvbuf),
        }
    }
}
