//! From keys that are right one by one to a config that is right as a whole.

use core::net::Ipv4Addr;
use core::time::Duration;

use super::address;
use super::cpu_list;
use super::error::{Fault, Faults, Remark};
use super::hash::config_hash;
use super::parse::{Node, Value};
use super::port::{self, Bdf, PortChoice, Vdev};
use super::raw::{self, Raw};
use super::reader::{Field, Reader, quoted};
use super::settings::{
    Accelerate, Buffers, Config, Dpdk, Idle, Mode, Network, Offload, OnError, OnHostLost, Progress,
    Run, Tcp,
};
use crate::id::CpuId;
use crate::telemetry::Level;

/// Addresses of ours at most (the stack's own limit).
const ADDRESSES_MAX: usize = 8;
/// Entries of an accelerate list at most: they go to a page of fixed size.
const ACCELERATE_MAX: usize = 64;
/// CPU numbers in `core_list_global` are below this, as in K-NET.
const CPUS_LIMIT: u32 = 320;

/// Builds the config, or reports every fault of the file: those of the parse, of single keys, and across keys.
pub(super) fn resolve(
    file: &str,
    bytes: &[u8],
    root: &Node,
    faults: Vec<Fault>,
) -> Result<Config, Faults> {
    let mut reader = Reader::new(root, faults);
    let raw = Raw::read(&mut reader);
    let gpu = gpu(&mut reader);
    let mut cross = Cross {
        faults: reader.faults,
        remarks: reader.remarks,
    };

    let port = cross.port(&raw.interface);
    let network = cross.network(&raw.interface, &raw.proto_stack);
    let accelerate = cross.accelerate(&raw.accelerate, &network);
    let (mode, run) = cross.run(&raw.common);
    let offload = cross.offload(&raw.hw_offload);
    let buffers = cross.buffers(&raw.proto_stack);
    let dpdk = cross.dpdk(&raw.dpdk, &raw.proto_stack);

    let Cross {
        mut faults,
        mut remarks,
    } = cross;
    let order = |at: Option<_>| (at.is_none(), at);
    faults.sort_by_key(|fault| order(fault.at));
    remarks.sort_by_key(|remark| order(remark.at));
    let (Some(port), true) = (port, faults.is_empty()) else {
        return Err(Faults {
            file: file.to_owned(),
            faults,
            remarks,
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
        on_error: if raw.common.on_error.value == "fail" {
            OnError::Fail
        } else {
            OnError::Kernel
        },
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
        gpu,
        remarks,
    })
}

/// A number that its key's range keeps inside `T`; a value that does not fit would be a hole in the table,
/// which `tests::numbers_at_their_ends_survive_the_conversion` looks for.
fn number<T: TryFrom<i64> + Default>(field: &Field<i64>) -> T {
    T::try_from(field.value).unwrap_or_default()
}

/// `gpu` is kept as it stands; only its shape is checked.
fn gpu(reader: &mut Reader<'_>) -> Option<Node> {
    let member = reader.top("gpu")?;
    let (path, at) = ("gpu".to_owned(), Some(member.node.at));
    if let Value::Object(_) = member.node.value {
        let what = "is not served by this version: payloads go by unchanged".to_owned();
        reader.remarks.push(Remark { path, at, what });
        Some(member.node.clone())
    } else {
        let advice = "an object: { ... }".to_owned();
        reader.faults.push(Fault {
            path,
            at,
            what: "not an object".to_owned(),
            advice,
        });
        None
    }
}

struct Cross {
    faults: Vec<Fault>,
    remarks: Vec<Remark>,
}

impl Cross {
    fn port(&mut self, raw: &raw::Interface) -> Option<PortChoice> {
        let given = [
            ("bdf_nums", !raw.bdf_nums.value.is_empty(), raw.bdf_nums.at),
            ("netdev", !raw.netdev.value.is_empty(), raw.netdev.at),
            ("vdevs", !raw.vdevs.value.is_empty(), raw.vdevs.at),
        ];
        let named: Vec<_> = given.iter().filter(|(_, given, _)| *given).collect();
        if named.is_empty() && !self.faults.iter().any(|fault| is_port_path(&fault.path)) {
            self.faults.push(Fault {
                path: "interface".to_owned(),
                at: None,
                what: "no port is named".to_owned(),
                advice:
                    "one of bdf_nums, netdev, vdevs; for example \"bdf_nums\": [\"0000:04:00.0\"]"
                        .to_owned(),
            });
        }
        if let [first, second, ..] = named.as_slice() {
            self.faults.push(Fault {
                path: format!("interface.{}", second.0),
                at: second.2,
                what: format!("the port is already named by {}", first.0),
                advice: "keep one of bdf_nums, netdev, vdevs".to_owned(),
            });
        }
        let bdf = self.bdf(raw);
        let vdev = self.vdev(&raw.vdevs.value);
        if !raw.netdev.value.is_empty() {
            if port::is_interface_name(&raw.netdev.value) {
                return Some(PortChoice::Netdev(raw.netdev.value.clone()));
            }
            let what = format!("{} is no interface name", quoted(&raw.netdev.value));
            self.faults.push(
                raw.netdev
                    .fault(what, "1 to 15 bytes without '/', ':' and spaces"),
            );
        }
        bdf.map(PortChoice::Bdf)
            .or_else(|| vdev.map(PortChoice::Vdev))
    }

    fn bdf(&mut self, raw: &raw::Interface) -> Option<Bdf> {
        let mut bdfs = Vec::new();
        for field in &raw.bdf_nums.value {
            match Bdf::parse(&field.value) {
                Some(bdf) => bdfs.push(bdf),
                None => {
                    let what = format!("{} is no PCI address", quoted(&field.value));
                    self.faults
                        .push(field.fault(what, "dddd:bb:dd.f, as lspci -D shows it"));
                }
            }
        }
        let allowed = if raw.user_bond_enable.value == 1 {
            2
        } else {
            1
        };
        if let Some(field) = raw.bdf_nums.value.get(allowed) {
            self.faults
                .push(field.fault("one port too many", format!("at most {allowed}")));
        }
        bdfs.first().copied()
    }

    fn vdev(&mut self, fields: &[Field<String>]) -> Option<Vdev> {
        if let Some(field) = fields.get(1) {
            self.faults
                .push(field.fault("one port too many", "one device"));
        }
        let field = fields.first()?;
        match Vdev::parse(&field.value) {
            Ok(vdev) => Some(vdev),
            Err(what) => {
                self.faults.push(field.fault(what, "name[,key=value]..."));
                None
            }
        }
    }

    fn network(&mut self, raw: &raw::Interface, stack: &raw::ProtoStack) -> Network {
        let addresses = self.addresses(raw);
        let mut addresses6 = Vec::new();
        for field in &raw.ip6.value {
            match address::prefix6(&field.value) {
                Some(prefix) => addresses6.push(prefix),
                None => {
                    let what = format!(
                        "{} is no IPv6 address with a prefix length",
                        quoted(&field.value)
                    );
                    self.faults
                        .push(field.fault(what, "for example fd00::1/64"));
                }
            }
        }
        let gateway = self.gateway(&raw.gateway, &addresses);
        let mut routes = Vec::new();
        for field in &raw.routes.value {
            match address::route(&field.value) {
                Some(route) if self.is_next_hop(field, route.gateway, &addresses) => {
                    routes.push(route)
                }
                Some(_) => {}
                None => {
                    let what = format!("{} is no route", quoted(&field.value));
                    self.faults
                        .push(field.fault(what, "for example \"10.0.0.0/8 via 192.168.1.1\""));
                }
            }
        }
        let most: usize = number(&stack.max_route);
        if routes.len() > most {
            self.faults.push(raw.routes.fault(
                format!("{} routes", routes.len()),
                format!("max_route allows {most}"),
            ));
        }
        let mac = self.mac(&raw.mac);
        let vlan = (raw.vlan.value != 0).then(|| number(&raw.vlan));
        Network {
            mac,
            addresses,
            addresses6,
            gateway,
            routes,
            vlan,
            mtu: number(&raw.mtu),
        }
    }

    fn addresses(&mut self, raw: &raw::Interface) -> Vec<(Ipv4Addr, u8)> {
        let mut addresses = Vec::new();
        let mut ours = Vec::new();
        let netmask: Option<Ipv4Addr> = raw.netmask.value.parse().ok();
        let prefix_len = netmask.and_then(address::prefix_of);
        if prefix_len.is_none() {
            let what = format!("{} is no netmask", quoted(&raw.netmask.value));
            self.faults.push(
                raw.netmask
                    .fault(what, "ones, then zeros; for example 255.255.255.0"),
            );
        }
        if raw.ip.value.is_empty() {
            let missing = raw.addresses.value.is_empty()
                && !self.faults.iter().any(|f| f.path == "interface.ip");
            if missing {
                self.faults.push(
                    raw.ip
                        .fault("missing", "our IPv4 address, for example \"192.168.1.58\""),
                );
            }
        } else if let Ok(ip) = raw.ip.value.parse::<Ipv4Addr>() {
            ours.push((&raw.ip, (ip, prefix_len.unwrap_or(24))));
        } else {
            let what = format!("{} is no IPv4 address", quoted(&raw.ip.value));
            self.faults.push(
                raw.ip
                    .fault(what, "a.b.c.d; the prefix length goes to netmask"),
            );
        }
        for field in &raw.addresses.value {
            match address::prefix4(&field.value) {
                Some(prefix) => ours.push((field, prefix)),
                None => {
                    let what = format!(
                        "{} is no IPv4 address with a prefix length",
                        quoted(&field.value)
                    );
                    self.faults
                        .push(field.fault(what, "for example 192.168.1.59/24"));
                }
            }
        }
        for (field, (ip, prefix_len)) in ours {
            if let Some(why) = address::unfit(ip, prefix_len) {
                self.faults.push(field.fault(
                    format!("{ip}/{prefix_len} {why}"),
                    "a unicast address of the port",
                ));
            } else if addresses.iter().any(|(known, _)| *known == ip) {
                self.faults
                    .push(field.fault(format!("{ip} is given twice"), "keep one"));
            } else {
                addresses.push((ip, prefix_len));
            }
        }
        if addresses.len() > ADDRESSES_MAX {
            let what = format!("{} addresses", addresses.len());
            self.faults.push(
                raw.addresses
                    .fault(what, format!("at most {ADDRESSES_MAX} in all")),
            );
        }
        addresses
    }

    fn gateway(&mut self, field: &Field<String>, ours: &[(Ipv4Addr, u8)]) -> Option<Ipv4Addr> {
        if field.value.is_empty() {
            return None;
        }
        let Ok(gateway) = field.value.parse::<Ipv4Addr>() else {
            let what = format!("{} is no IPv4 address", quoted(&field.value));
            self.faults
                .push(field.fault(what, "a.b.c.d, or 0.0.0.0 for none"));
            return None;
        };
        (!gateway.is_unspecified() && self.is_next_hop(field, gateway, ours)).then_some(gateway)
    }

    /// Whether a next hop can be reached without another hop; else a fault (unless the addresses are faulty).
    fn is_next_hop(
        &mut self,
        field: &Field<String>,
        hop: Ipv4Addr,
        ours: &[(Ipv4Addr, u8)],
    ) -> bool {
        if ours.is_empty() {
            return false;
        }
        if ours.iter().any(|(ip, _)| *ip == hop) {
            self.faults.push(field.fault(
                format!("gateway {hop} is our own address"),
                "the router's address",
            ));
            return false;
        }
        let Some((ip, prefix_len)) = ours.iter().find(|ours| address::is_inside(hop, **ours))
        else {
            let nets: Vec<String> = ours.iter().map(|(ip, len)| format!("{ip}/{len}")).collect();
            let what = format!(
                "gateway {hop} is outside the netmask of {}",
                nets.join(", ")
            );
            self.faults.push(field.fault(
                what,
                "a neighbour's address, another netmask, or 0.0.0.0 for no gateway",
            ));
            return false;
        };
        if let Some(why) = address::unfit(hop, *prefix_len) {
            self.faults.push(field.fault(
                format!("gateway {hop} {why}"),
                format!("a neighbour of {ip}"),
            ));
            return false;
        }
        true
    }

    fn mac(&mut self, field: &Field<String>) -> Option<[u8; 6]> {
        if field.value.is_empty() {
            return None;
        }
        let what = match address::mac(&field.value) {
            None => format!("{} is no MAC address", quoted(&field.value)),
            // The lowest bit of the first byte marks a group address (IEEE 802).
            Some(mac) if mac[0] & 1 == 1 => format!("{} is a group address", field.value),
            Some([0, 0, 0, 0, 0, 0]) => "all zeros".to_owned(),
            Some(mac) => return Some(mac),
        };
        self.faults
            .push(field.fault(what, "the port's own, xx:xx:xx:xx:xx:xx, or leave it out"));
        None
    }

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
        let run = Run {
            progress,
            idle,
            spin: micros(&raw.spin_us),
            budget: micros(&raw.budget_us),
            inline_grace: micros(&raw.inline_grace_us),
        };
        (mode, run)
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

    fn dpdk(&mut self, raw: &raw::Dpdk, stack: &raw::ProtoStack) -> Dpdk {
        let cores = self.cores(&raw.core_list_global);
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

/// Whether a path is one of the keys that name the port: then "no port" would only repeat its fault.
fn is_port_path(path: &str) -> bool {
    ["interface.bdf_nums", "interface.netdev", "interface.vdevs"]
        .iter()
        .any(|key| path.starts_with(key))
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
