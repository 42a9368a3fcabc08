//! `knetctl nic`: network ports, given to DPDK and back.

use std::cell::RefCell;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use knet::config::{self, Bdf};
use knet::preflight::Net;
use knet::preflight::nic::{self, Bind, Pages, Pool, Port, Step};
use serde_json::{Value, json};

use crate::{config_file, print};

/// Refused, or a step failed.
const FAILED: u8 = 1;
const MEBIBYTE: u64 = 1 << 20;

/// Lists network ports, gives one to DPDK and back, reserves hugepages.
///
/// Without a command it lists. Exit status: 0 done (or nothing to do), 1 refused or failed, 64 wrong usage.
#[derive(clap::Args, Debug)]
pub(crate) struct Nic {
    #[command(subcommand)]
    command: Option<Action>,
    /// A folder that stands for / (tests): files below it are read and written, commands are shown only.
    #[arg(long, global = true, hide = true, default_value = "/")]
    root: PathBuf,
    /// One JSON object on stdout instead of lines: ports, or the commands, what is to be said of them, and why it failed.
    #[arg(long, global = true)]
    json: bool,
}

#[derive(clap::Subcommand, Debug)]
enum Action {
    /// Lists every network port of the PCI bus, and what the machine lacks.
    List,
    /// Gives a port to DPDK: its interface goes down, its driver leaves it, vfio-pci takes it.
    Bind {
        /// The port: its PCI address, or the name of its interface.
        #[arg(value_name = "BDF|INTERFACE")]
        port: String,
        /// The driver of user space.
        #[arg(long, value_name = "NAME", default_value = "vfio-pci")]
        driver: String,
        /// Also the port that carries the default route.
        #[arg(long)]
        force: bool,
        /// Without an IOMMU: the port can then write to all memory.
        #[arg(long)]
        noiommu: bool,
        /// Shows every command, does nothing.
        #[arg(long)]
        dry_run: bool,
    },
    /// Gives a port back to the kernel.
    Unbind {
        /// The port's PCI address.
        #[arg(value_name = "BDF")]
        port: String,
        /// The kernel driver [default: the one that knows the device]
        #[arg(long, value_name = "NAME")]
        driver: Option<String>,
        /// Shows every command, does nothing.
        #[arg(long)]
        dry_run: bool,
    },
    /// Reserves hugepages: --pages on one node, or what dpdk.socket_mem of a config asks of each.
    Hugepages {
        /// So many pages in all (0 gives them back).
        #[arg(long, value_name = "N", conflicts_with = "conf")]
        pages: Option<u64>,
        /// As many as this config asks for [default: $KNET_CONF, else /etc/knet/knet_comm.conf]
        #[arg(long, value_name = "FILE")]
        conf: Option<PathBuf>,
        /// 2M or 1G.
        #[arg(long, value_name = "SIZE", default_value = "2M", value_parser = ["2M", "1G"])]
        size: String,
        /// The NUMA node [default: that of --port, else 0]
        #[arg(long, value_name = "N")]
        node: Option<usize>,
        /// The port whose node is meant: its PCI address, or the name of its interface.
        #[arg(long, value_name = "BDF|INTERFACE", conflicts_with = "node")]
        port: Option<String>,
        /// Shows every command, does nothing.
        #[arg(long)]
        dry_run: bool,
    },
}

impl Nic {
    /// Runs the command.
    pub(crate) fn execute(self) -> ExitCode {
        let json = self.json;
        let machine = Machine::new(self.root, json);
        let done = match self.command.unwrap_or(Action::List) {
            Action::List => {
                machine.list(json);
                return ExitCode::SUCCESS;
            }
            Action::Bind {
                port,
                driver,
                force,
                noiommu,
                dry_run,
            } => machine.bind(
                &port,
                &Bind {
                    driver,
                    force,
                    noiommu,
                },
                dry_run,
            ),
            Action::Unbind {
                port,
                driver,
                dry_run,
            } => machine.unbind(&port, driver.as_deref(), dry_run),
            Action::Hugepages {
                pages: Some(pages),
                size,
                node,
                port,
                dry_run,
                ..
            } => machine.node(node, port.as_deref()).and_then(|node| {
                machine.reserve(node, page_bytes(&size), Pages::Total(pages), dry_run)
            }),
            Action::Hugepages {
                conf,
                size,
                dry_run,
                ..
            } => {
                let conf = conf.unwrap_or_else(config_file);
                machine.reserve_for(&conf, page_bytes(&size), dry_run)
            }
        };
        machine.told.end(done.as_ref().err());
        match done {
            Ok(()) => ExitCode::SUCCESS,
            Err(line) => {
                complain!("knetctl: {line}");
                ExitCode::from(FAILED)
            }
        }
    }
}

fn page_bytes(size: &str) -> u64 {
    if size == "1G" { 1 << 30 } else { 2 << 20 }
}

/// The machine, or the tree that stands for one.
struct Machine {
    root: PathBuf,
    ports: Vec<Port>,
    told: Told,
}

/// What is told of a change: at once as lines, or in the end as one object.
#[derive(Default)]
struct Told {
    json: bool,
    commands: RefCell<Vec<String>>,
    notes: RefCell<Vec<String>>,
}

impl Told {
    fn command(&self, step: &Step) {
        if self.json {
            self.commands.borrow_mut().push(step.to_string());
        } else {
            print::line(&step.to_string());
        }
    }

    fn note(&self, text: &str) {
        if self.json {
            let text = text.trim_start_matches("# ");
            self.notes.borrow_mut().push(text.to_owned());
        } else {
            print::line(text);
        }
    }

    fn end(&self, fault: Option<&String>) {
        if self.json {
            let object = json!({"commands": self.commands.take(), "notes": self.notes.take(), "fault": fault});
            print::json(&object);
        }
    }
}

impl Machine {
    fn new(root: PathBuf, json: bool) -> Self {
        // The kernel's answer is about this machine; a tree has no addresses.
        let net = if root == Path::new("/") {
            Net::ask().unwrap_or_else(|errno| {
                complain!("knetctl: the kernel's interfaces could not be asked: {errno}");
                Net::default()
            })
        } else {
            Net::default()
        };
        let ports = nic::ports(&root, &net);
        let told = Told {
            json,
            ..Told::default()
        };
        Self { root, ports, told }
    }

    fn port(&self, name: &str) -> Result<&Port, String> {
        let bdf = Bdf::parse(name);
        let found = self
            .ports
            .iter()
            .find(|port| Some(port.bdf) == bdf || port.interfaces.iter().any(|it| it.name == name));
        found.ok_or_else(|| {
            let all: Vec<String> = self.ports.iter().map(|port| port.bdf.to_string()).collect();
            match all.as_slice() {
                [] => format!("{name}: there is no network device on the PCI bus"),
                _ => format!(
                    "{name} is no network port on the PCI bus: one of {}",
                    all.join(", ")
                ),
            }
        })
    }

    fn bind(&self, name: &str, how: &Bind, dry_run: bool) -> Result<(), String> {
        let port = self.port(name)?;
        let steps = nic::bind(&self.root, port, how).map_err(|refusal| refusal.to_string())?;
        if steps.is_empty() {
            self.told
                .note(&format!("{} is bound to {} already", port.bdf, how.driver));
            return Ok(());
        }
        for interface in &port.interfaces {
            let addresses: Vec<String> = interface
                .addresses
                .iter()
                .map(|(ip, len)| format!("{ip}/{len}"))
                .collect();
            if !addresses.is_empty() {
                self.told.note(&format!(
                    "# {} loses {}",
                    interface.name,
                    addresses.join(", ")
                ));
            }
        }
        self.take(&steps, dry_run)?;
        self.expect(port.bdf, Some(&how.driver), dry_run)
    }

    fn unbind(&self, name: &str, driver: Option<&str>, dry_run: bool) -> Result<(), String> {
        let port = self.port(name)?;
        let steps = nic::unbind(&self.root, port, driver).map_err(|refusal| refusal.to_string())?;
        if steps.is_empty() {
            self.told.note(&format!(
                "{} is bound to {} already",
                port.bdf,
                port.driver()
            ));
            return Ok(());
        }
        self.take(&steps, dry_run)?;
        self.expect(port.bdf, driver, dry_run)
    }

    /// Looks whether the port has the driver that it should have (None: any of the kernel's).
    fn expect(&self, bdf: Bdf, driver: Option<&str>, dry_run: bool) -> Result<(), String> {
        if dry_run || self.is_tree() {
            return Ok(());
        }
        let now = nic::ports(&self.root, &Net::default());
        let port = now.iter().find(|port| port.bdf == bdf);
        let has = port.map_or("none", Port::driver);
        if driver.map_or(has != "none", |driver| driver == has) {
            self.told.note(&format!("{bdf} is bound to {has}"));
            Ok(())
        } else {
            Err(format!(
                "{bdf} is bound to {has}: the kernel log says why (dmesg | tail)"
            ))
        }
    }

    fn is_tree(&self) -> bool {
        self.root != Path::new("/")
    }

    /// Takes the steps in order, each shown.
    fn take(&self, steps: &[Step], dry_run: bool) -> Result<(), String> {
        for step in steps {
            self.told.command(step);
            if dry_run {
                continue;
            }
            match step {
                Step::Run(_) if self.is_tree() => {}
                Step::Run(words) => {
                    let (program, arguments) = words.split_first().ok_or("an empty command")?;
                    let status = Command::new(program).args(arguments).status();
                    match status {
                        Ok(status) if status.success() => {}
                        Ok(status) => return Err(format!("{step}: {status}")),
                        Err(error) => return Err(format!("{step}: {error}")),
                    }
                }
                Step::Write { path, text } => {
                    let target = self.root.join(path);
                    let optional = path.ends_with("enable_unsafe_noiommu_mode");
                    match fs::write(&target, format!("{text}\n")) {
                        Err(error) if !optional => return Err(format!("{step}: {error}")),
                        Err(error) => self.told.note(&format!(
                            "# {error}: this kernel knows no vfio without an IOMMU"
                        )),
                        Ok(()) => {}
                    }
                }
            }
        }
        Ok(())
    }

    fn node(&self, node: Option<usize>, port: Option<&str>) -> Result<usize, String> {
        match (node, port) {
            (Some(node), _) => Ok(node),
            (None, Some(port)) => Ok(self.port(port)?.pci.node.unwrap_or(0)),
            (None, None) => Ok(0),
        }
    }

    fn reserve(&self, node: usize, page: u64, wanted: Pages, dry_run: bool) -> Result<(), String> {
        let pools = Pool::all(&self.root);
        let pool = pools
            .iter()
            .find(|pool| pool.page == page && pool.node.unwrap_or(0) == node)
            .ok_or_else(|| {
                format!(
                    "there are no hugepages of {} MiB on NUMA node {node}",
                    page / MEBIBYTE
                )
            })?;
        let pages = pool.wanted(wanted);
        let Some(step) = pool.step(pages) else {
            self.told.note(&format!(
                "NUMA node {node} has {} hugepages of {} MiB",
                pool.total,
                page / MEBIBYTE
            ));
            return Ok(());
        };
        self.take(&[step], dry_run)?;
        let has = pool.again(&self.root).map_or(0, |pool| pool.total);
        if !dry_run && has < pages {
            return Err(format!(
                "NUMA node {node} got {has} of {pages} hugepages: its memory is in use or in pieces; reserve them at boot \
                 (kernel command line: hugepages={pages})"
            ));
        }
        Ok(())
    }

    /// What a config asks for: `dpdk.socket_mem` of each node; without it nothing.
    fn reserve_for(&self, conf: &Path, page: u64, dry_run: bool) -> Result<(), String> {
        let config = config::load_file(conf).map_err(|faults| faults.to_string())?;
        let Some(wanted) = &config.dpdk.socket_mem_mb else {
            self.told.note(&format!(
                "{}: dpdk.socket_mem asks for no hugepages",
                conf.display()
            ));
            return Ok(());
        };
        for (node, megabytes) in wanted
            .iter()
            .enumerate()
            .filter(|(_, megabytes)| **megabytes > 0)
        {
            let bytes = u64::from(*megabytes) * MEBIBYTE;
            self.reserve(node, page, Pages::Free(bytes), dry_run)?;
        }
        Ok(())
    }

    fn list(&self, as_json: bool) {
        let lacking = nic::lacking(&self.root, &self.ports);
        let pools = Pool::all(&self.root);
        if as_json {
            print::json(&self.as_json(&lacking, &pools));
            return;
        }
        if !self.ports.is_empty() {
            print::line(&format!(
                "{:<13} {:<10} {:<14} {:>4}  {:<12} {:<6} {:<17} ADDRESSES",
                "BDF", "ID", "DRIVER", "NODE", "INTERFACE", "LINK", "MAC"
            ));
        }
        for port in &self.ports {
            let node = port
                .pci
                .node
                .map_or_else(|| "-".to_owned(), |node| node.to_string());
            let start = format!(
                "{:<13} {:<10} {:<14} {node:>4}  ",
                port.bdf.to_string(),
                port.id,
                port.driver()
            );
            if port.interfaces.is_empty() {
                print::line(&format!("{start}-"));
            }
            for it in &port.interfaces {
                let link = match (it.link, it.speed) {
                    (Some(true), Some(speed)) => format!("{speed}M"),
                    (Some(true), None) => "up".to_owned(),
                    (Some(false), _) => "no".to_owned(),
                    (None, _) => "down".to_owned(),
                };
                let mut addresses: Vec<String> = it
                    .addresses
                    .iter()
                    .map(|(ip, len)| format!("{ip}/{len}"))
                    .collect();
                if it.default_route {
                    addresses.push("(default route)".to_owned());
                }
                print::line(&format!(
                    "{start}{:<12} {link:<6} {:<17} {}",
                    it.name,
                    it.mac,
                    addresses.join(" ")
                ));
            }
        }
        for pool in pools.iter().filter(|pool| pool.total > 0) {
            print::line(&format!(
                "hugepages of {} MiB{}: {}, {} free",
                pool.page / MEBIBYTE,
                pool.node
                    .map_or_else(String::new, |node| format!(" on node {node}")),
                pool.total,
                pool.free
            ));
        }
        for line in &lacking {
            print::line(&format!("missing: {line}"));
        }
    }

    fn as_json(&self, lacking: &[String], pools: &[Pool]) -> Value {
        let ports = self.ports.iter().map(|port| {
            let interfaces = port.interfaces.iter().map(|it| {
                let addresses: Vec<String> =
                    it.addresses.iter().map(|(ip, len)| format!("{ip}/{len}")).collect();
                json!({ "name": it.name, "mac": it.mac, "link": it.link, "speed_mbit": it.speed, "addresses": addresses,
                        "default_route": it.default_route })
            });
            json!({ "bdf": port.bdf.to_string(), "id": port.id, "driver": port.pci.driver, "node": port.pci.node,
                    "iommu": port.pci.iommu, "interfaces": interfaces.collect::<Vec<_>>() })
        });
        let pools = pools.iter().map(|pool| {
            json!({ "node": pool.node, "page_bytes": pool.page, "total": pool.total, "free": pool.free })
        });
        json!({ "ports": ports.collect::<Vec<_>>(), "hugepages": pools.collect::<Vec<_>>(), "missing": lacking })
    }
}
