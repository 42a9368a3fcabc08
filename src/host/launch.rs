//! Starts the lcore threads over an open port, and tells when one has ended.

use core::time::Duration;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc;

use rustix::pipe::PipeFlags;
use rustix::rand::GetRandomFlags;

use super::admin::{LcoreFact, PortFact};
use super::clients::source;
use super::lcores::Lcores;
use super::open::{self, Spread};
use super::port_lock::PortLock;
use super::server::{Inside, timespec};
use crate::channel::layout::LCORES_MAX;
use crate::config::{self, Config, Idle};
use crate::device::frame::LINK_HEADER_BYTES;
use crate::device::rss::{KEY_BYTES, TABLE_ENTRIES, spreading_key};
use crate::device::{Device, PortStats, QueuePair, shared_queue};
use crate::ffi::descriptor;
use crate::gpu::{FrameMemory, Pipeline};
use crate::id::CpuId;
use crate::lcore::{self, IdleConfig, IdlePolicy, Lcore, LcoreConfig, Peers, Placement};
use crate::stack::siphash::siphash;
use crate::stack::steering::Steering;
use crate::stack::{PortWalk, Stack};
use crate::time;

const _: () = assert!(config::LCORES_MAX == LCORES_MAX);

/// The running lcores.
pub(super) struct Running {
    /// Keeps the port open.
    device: Box<dyn Device>,
    _lock: PortLock,
    /// Each hangs up when its thread has ended.
    ends: Vec<OwnedFd>,
    placements: Vec<Placement>,
}

impl core::fmt::Debug for Running {
    fn fmt(&self, out: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        out.debug_struct("Running")
            .field("placements", &self.placements)
            .finish_non_exhaustive()
    }
}

impl Running {
    /// Descriptors, each of which hangs up when an lcore has ended.
    pub(super) fn ends(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.ends.iter().map(AsFd::as_fd)
    }

    /// Waits until all have ended, no more than `limit` for each; false = one has not.
    pub(super) fn wait(&self, limit: Duration) -> bool {
        wait(&self.ends, limit)
    }

    /// What the port counts.
    pub(super) fn port_stats(&self) -> PortStats {
        self.device.stats()
    }

    /// What a report says of it.
    pub(super) fn fact(&self) -> PortFact {
        let port = self.device.capabilities();
        let lcores = self.placements.iter().map(|place| LcoreFact {
            cpu: place.cpu.0,
            shared: place.shared,
        });
        PortFact {
            device: port.description.clone(),
            up: self.device.link_up(),
            mtu: port.mtu,
            mac: port.mac,
            stats: self.device.stats(),
            lcores: lcores.collect(),
        }
    }

    /// The CPUs of the lcores.
    pub(super) fn cpus(&self) -> impl Iterator<Item = CpuId> {
        self.placements.iter().map(|place| place.cpu)
    }
}

fn wait(ends: &[OwnedFd], limit: Duration) -> bool {
    ends.iter().all(|end| {
        let mut sources = [source(end.as_fd())];
        rustix::event::poll(&mut sources, Some(&timespec(limit))) != Ok(0)
    })
}

/// What is to be started.
pub(super) struct Wanted<'a> {
    pub(super) config: &'a Config,
    pub(super) private: bool,
    /// The CPUs of the clients.
    pub(super) program: &'a [u32],
    /// Threads of the program drive.
    pub(super) inside: Option<&'a Inside>,
}

/// Takes and opens the port, and starts the lcores on it, or hands the only one to those who drive it.
///
/// # Errors
/// One line for the operator.
pub(super) fn start(asked: &Wanted<'_>, lcores: &Lcores) -> Result<Running, String> {
    let config = asked.config;
    let cores = config.dpdk.cores.as_deref().unwrap_or_default();
    let lock = PortLock::take(&config.port, asked.private)?;
    let cpu = match asked.inside {
        // EAL wants one of those that it may use; its number means nothing else here.
        Some(_) => lcore::cpus_of(None).first().copied().unwrap_or(0),
        None => cores.first().map_or(0, |cpu| cpu.0),
    };
    let spread = Spread {
        lcores: lcores.count() as usize,
        key: spreading_key(random)?,
    };
    let plugin = asked.inside.map(|inside| &inside.plugin);
    let mut device = open::device(config, cpu, plugin, &spread)?;
    let made = make(asked, lcores, &spread, device.as_mut())?;
    let mut running = Running {
        device,
        _lock: lock,
        ends: Vec::new(),
        placements: Vec::new(),
    };
    let mut program = asked.program.to_vec();
    for (number, made) in made.into_iter().enumerate() {
        let (end, alive) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)
            .map(|(end, alive)| (descriptor::settle(end), descriptor::settle(alive)))
            .map_err(|errno| format!("no descriptor for the lcore: {errno}"))?;
        let placement = match asked.inside {
            Some(inside) => (inside.hand_over)(Lcore::new(made), alive, config)
                .map(|()| Placement {
                    cpu: CpuId(cpu),
                    shared: true,
                })
                .map_err(|errno| format!("nobody can drive the loop: {errno}")),
            None => own_thread(made, number, alive, cores.get(number).copied(), &program),
        };
        match placement {
            Ok(placement) => {
                running.ends.push(end);
                running.placements.push(placement);
                program.push(placement.cpu.0);
            }
            Err(line) => {
                stop(running, lcores);
                return Err(line);
            }
        }
    }
    let progress = if asked.inside.is_some() {
        "inline"
    } else {
        "dedicated"
    };
    let port = running.device.capabilities();
    for (lcore, place) in running.placements.iter().enumerate() {
        crate::info!(
            "port={} device=\"{}\" progress={progress} lcore={lcore} cpu={} shared={}",
            config.port,
            port.description,
            place.cpu.0,
            place.shared
        );
    }
    Ok(running)
}

/// Some of several lcores run already, and the others cannot.
fn stop(running: Running, lcores: &Lcores) {
    lcores.say(|| lcore::Mail::Stop);
    if !running.wait(STOP_WAIT) {
        // The port must stay mapped under a thread that still uses it.
        core::mem::forget(running);
    }
}

/// How long an lcore may take for its last turn.
const STOP_WAIT: Duration = Duration::from_secs(1);

fn random<const BYTES: usize>() -> Result<[u8; BYTES], String> {
    let mut bytes = [0; BYTES];
    let got = rustix::rand::getrandom(&mut bytes, GetRandomFlags::empty());
    if got == Ok(BYTES) {
        Ok(bytes)
    } else {
        Err("no random numbers for sequence numbers and ports".to_owned())
    }
}

/// Ports that go on where those of the host before were. What is the same for both is only known on this machine, and another
/// one after each boot; without it, `otherwise`.
fn port_walk(otherwise: [u8; 16]) -> PortWalk {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let boot = boot.trim();
    let secret = if boot.is_empty() {
        otherwise
    } else {
        let half = |domain: u8| u128::from(siphash(&[domain; 16], boot.as_bytes()));
        (half(b'p') << 64 | half(b'q')).to_le_bytes()
    };
    let steps = time::monotonic().millis() / PORT_STEP_MS;
    PortWalk {
        secret,
        start: u32::try_from(steps % (1 << 31)).unwrap_or(0),
    }
}

/// How long a host takes for a port, on average, unless it makes more connections than most clients do. A range of 28 232
/// comes round in about the time that TIME-WAIT lasts.
const PORT_STEP_MS: u64 = 2;

/// Everything that the lcores are made of.
fn make(
    asked: &Wanted<'_>,
    lcores: &Lcores,
    spread: &Spread,
    device: &mut dyn Device,
) -> Result<Vec<LcoreConfig>, String> {
    let config = asked.config;
    let secret = random()?;
    let walk = port_walk(secret);
    let mut pairs = queue_pairs(config, device, spread.lcores)?.into_iter();
    let mut peers = Vec::new();
    if spread.lcores > 1 {
        peers = join(lcores, &spread.key, device);
    }
    let mut peers = peers.into_iter();
    let somaxconn = somaxconn();
    let mut pipelines = pipelines(asked, spread.lcores, &*device)?.into_iter();
    let mut made = Vec::new();
    for seat in lcores.iter() {
        let stack = Stack::new(open::stack(config, device, walk, secret));
        let (rx, tx) = pairs
            .next()
            .ok_or_else(|| format!("port {}: no queue pair", config.port))?;
        made.push(LcoreConfig {
            stack,
            rx,
            tx,
            mailbox: Arc::clone(&seat.mailbox),
            status: Arc::clone(&seat.status),
            pipeline: pipelines.next().unwrap_or_default(),
            idle: IdleConfig {
                policy: match config.run.idle {
                    Idle::Spin => IdlePolicy::Spin,
                    Idle::Adaptive => IdlePolicy::Adaptive,
                },
                spin: config.run.spin,
            },
            shares_cpu: asked.inside.is_none(),
            cpu: None,
            somaxconn,
            peers: peers.next(),
            now: time::monotonic(),
        });
    }
    Ok(made)
}

/// The payload stage of each lcore; none where the config has none.
fn pipelines(
    asked: &Wanted<'_>,
    lcores: usize,
    device: &dyn Device,
) -> Result<Vec<Pipeline>, String> {
    // A queue that is shared sends from buffers of ours.
    let is_whole = device.capabilities().queues >= lcores;
    let memory = || is_whole.then(|| device.memory()).flatten();
    let frames = FrameMemory::Port(&memory);
    match &asked.config.gpu {
        Some(gpu) if asked.inside.is_some() => {
            Pipeline::load(&gpu.inside_a_program(), lcores, frames)
        }
        Some(gpu) => Pipeline::load(gpu, lcores, frames),
        None => Ok(Vec::new()),
    }
}

/// A queue pair for each lcore: the port's own where it has so many, else parts of its only one.
fn queue_pairs(
    config: &Config,
    device: &mut dyn Device,
    lcores: usize,
) -> Result<Vec<QueuePair>, String> {
    let none = |errno| format!("port {}: no queue pair: {errno}", config.port);
    let has = device.capabilities().queues;
    if has >= lcores {
        return (0..lcores)
            .map(|queue| device.queue_pair(queue).map_err(none))
            .collect();
    }
    crate::info!(
        "port={} queues={has} lcores={lcores} event=shared reason=\"the first lcore receives and passes on\"",
        config.port
    );
    let pair = device.queue_pair(0).map_err(none)?;
    shared_queue::share(pair, lcores, frame_bytes(device)).map_err(none)
}

/// The longest frame that is sent or, unless the port merges, received.
fn frame_bytes(device: &dyn Device) -> usize {
    let port = device.capabilities();
    (port.mtu + LINK_HEADER_BYTES).max(port.tso_bytes)
}

fn join(lcores: &Lcores, key: &[u8; KEY_BYTES], device: &dyn Device) -> Vec<Peers> {
    let port = device.capabilities();
    let entries = match port.rss_entries {
        0 => TABLE_ENTRIES,
        entries => entries,
    };
    let steering = Arc::new(Steering::new(key, entries, lcores.count()));
    let frame_bytes = port.mtu + LINK_HEADER_BYTES;
    Peers::join(&lcores.mailboxes(), &steering, frame_bytes)
}

/// Starts the thread that drives `made` on a CPU of its own.
fn own_thread(
    made: LcoreConfig,
    number: usize,
    alive: OwnedFd,
    wanted: Option<CpuId>,
    program: &[u32],
) -> Result<Placement, String> {
    let (placed, placement) = mpsc::sync_channel(1);
    let program = program.to_vec();
    std::thread::Builder::new()
        .name(format!("knet-lcore-{number}"))
        .spawn(move || {
            let _alive = alive;
            let place = lcore::place(wanted, &program);
            let shares_cpu = place.as_ref().map_or(true, |place| place.shared);
            let cpu = place.as_ref().ok().map(|place| place.cpu);
            // The receiver waits below for exactly this.
            let _ = placed.send(place);
            if cpu.is_some() {
                run(LcoreConfig {
                    shares_cpu,
                    cpu,
                    ..made
                });
            }
        })
        .map_err(|error| format!("the lcore thread does not start: {error}"))?;
    placement
        .recv()
        .map_err(|_| "the lcore thread ended at once".to_owned())?
        .map_err(|errno| match wanted {
            Some(cpu) => format!(
                "dpdk.core_list_global: CPU {} cannot be used: {errno}",
                cpu.0
            ),
            None => format!("the lcore cannot be pinned: {errno}"),
        })
}

/// The body of an lcore thread: one of the three places where a panic is caught.
fn run(config: LcoreConfig) {
    let mut lcore = Lcore::new(config);
    if catch_unwind(AssertUnwindSafe(|| lcore.run())).is_err() {
        crate::error!(
            "lcore={} event=panic action=\"every connection is lost, the host ends\"",
            lcore.number()
        );
    }
    lcore.die();
}

/// `net.core.somaxconn`, by which listen(2) cuts a backlog.
fn somaxconn() -> u32 {
    std::fs::read_to_string("/proc/sys/net/core/somaxconn")
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(SOMAXCONN)
}

/// Linux' default since 5.4.
const SOMAXCONN: u32 = 4_096;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channel::cell::host_state;
    use crate::channel::sync::Ordering;
    use crate::lcore::tests::broken;

    #[test]
    fn a_panic_of_the_lcore_is_told_to_every_program() {
        let (lcore, segments) = broken(IdlePolicy::Spin);
        run(lcore);
        let state = &segments.control.header().host_state;
        assert_eq!(state.load(Ordering::Relaxed), host_state::DEAD);
    }
}
