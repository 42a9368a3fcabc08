//! Starts the lcore thread over an open port, and tells when it has ended.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc;

use rustix::pipe::PipeFlags;
use rustix::rand::GetRandomFlags;

use super::admin::PortFact;
use super::open;
use super::port_lock::PortLock;
use super::server::Inside;
use crate::config::{Config, Idle};
use crate::device::{Device, PortStats};
use crate::ffi::descriptor;
use crate::gpu::Pipeline;
use crate::id::CpuId;
use crate::lcore::{
    self, IdleConfig, IdlePolicy, Lcore, LcoreConfig, LcoreStatus, Mailbox, Placement,
};
use crate::stack::Stack;
use crate::time;

/// A running lcore.
pub(super) struct Running {
    /// Keeps the port open.
    device: Box<dyn Device>,
    _lock: PortLock,
    /// Hangs up when the thread has ended.
    end: OwnedFd,
    placement: Placement,
}

impl core::fmt::Debug for Running {
    fn fmt(&self, out: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        out.debug_struct("Running")
            .field("placement", &self.placement)
            .finish_non_exhaustive()
    }
}

impl Running {
    /// A descriptor that hangs up when the lcore has ended.
    pub(super) fn end(&self) -> BorrowedFd<'_> {
        self.end.as_fd()
    }

    /// What the port counts.
    pub(super) fn port_stats(&self) -> PortStats {
        self.device.stats()
    }

    /// What a report says of it.
    pub(super) fn fact(&self) -> PortFact {
        let port = self.device.capabilities();
        PortFact {
            device: port.description.clone(),
            up: self.device.link_up(),
            mtu: port.mtu,
            mac: port.mac,
            stats: self.device.stats(),
            cpu: self.placement.cpu.0,
            shared: self.placement.shared,
        }
    }

    /// The CPU of the lcore.
    pub(super) const fn cpu(&self) -> CpuId {
        self.placement.cpu
    }
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

/// Takes and opens the port, and starts an lcore on it, or hands the lcore to those who drive it.
///
/// # Errors
/// One line for the operator.
pub(super) fn start(
    asked: &Wanted<'_>,
    mailbox: &Arc<Mailbox>,
    status: &Arc<LcoreStatus>,
) -> Result<Running, String> {
    let config = asked.config;
    let wanted = config
        .dpdk
        .cores
        .as_ref()
        .and_then(|cores| cores.first())
        .copied();
    if config.dpdk.workers > 1 {
        crate::warn!(
            "dpdk workers={} lcores=1 reason=\"one lcore serves in this version\"",
            config.dpdk.workers
        );
    }
    let lock = PortLock::take(&config.port, asked.private)?;
    let cpu = match asked.inside {
        // EAL wants one of those that it may use; its number means nothing else here.
        Some(_) => lcore::cpus_of(None).first().copied().unwrap_or(0),
        None => wanted.map_or(0, |cpu| cpu.0),
    };
    let mut device = open::device(config, cpu, asked.inside.map(|inside| &inside.plugin))?;
    let mut secret = [0; 16];
    let got = rustix::rand::getrandom(&mut secret, GetRandomFlags::empty());
    if got != Ok(secret.len()) {
        return Err("no random numbers for sequence numbers and ports".to_owned());
    }
    let stack = Stack::new(open::stack(config, device.as_ref(), secret));
    let pipeline = match &config.gpu {
        Some(gpu) if asked.inside.is_some() => Pipeline::load(&gpu.inside_a_program())?,
        Some(gpu) => Pipeline::load(gpu)?,
        None => Pipeline::default(),
    };
    let (rx, tx) = device
        .queue_pair(0)
        .map_err(|errno| format!("port {}: no queue pair: {errno}", config.port))?;
    let (end, alive) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)
        .map(|(end, alive)| (descriptor::settle(end), descriptor::settle(alive)))
        .map_err(|errno| format!("no descriptor for the lcore: {errno}"))?;
    let made = LcoreConfig {
        stack,
        rx,
        tx,
        mailbox: Arc::clone(mailbox),
        status: Arc::clone(status),
        pipeline,
        idle: IdleConfig {
            policy: match config.run.idle {
                Idle::Spin => IdlePolicy::Spin,
                Idle::Adaptive => IdlePolicy::Adaptive,
            },
            spin: config.run.spin,
        },
        shares_cpu: asked.inside.is_none(),
        somaxconn: somaxconn(),
        now: time::monotonic(),
    };
    let placement = match asked.inside {
        Some(inside) => {
            (inside.hand_over)(Lcore::new(made), alive, config)
                .map_err(|errno| format!("nobody can drive the loop: {errno}"))?;
            Placement {
                cpu: CpuId(cpu),
                shared: true,
            }
        }
        None => own_thread(made, alive, wanted, asked.program)?,
    };
    let mode = if asked.inside.is_some() {
        "inline"
    } else {
        "dedicated"
    };
    crate::info!(
        "port={} device=\"{}\" progress={mode} cpu={} shared={}",
        config.port,
        device.capabilities().description,
        placement.cpu.0,
        placement.shared
    );
    Ok(Running {
        device,
        _lock: lock,
        end,
        placement,
    })
}

/// Starts the thread that drives `made` on a CPU of its own.
fn own_thread(
    made: LcoreConfig,
    alive: OwnedFd,
    wanted: Option<CpuId>,
    program: &[u32],
) -> Result<Placement, String> {
    let (placed, placement) = mpsc::sync_channel(1);
    let program = program.to_vec();
    std::thread::Builder::new()
        .name("knet-lcore-0".to_owned())
        .spawn(move || {
            let _alive = alive;
            let place = lcore::place(wanted, &program);
            let shares_cpu = place.as_ref().map_or(true, |place| place.shared);
            let go = place.is_ok();
            // The receiver waits below for exactly this.
            let _ = placed.send(place);
            if go {
                run(LcoreConfig { shares_cpu, ..made });
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

/// The body of the lcore thread: one of the three places where a panic is caught.
fn run(config: LcoreConfig) {
    let mut lcore = Lcore::new(config);
    if catch_unwind(AssertUnwindSafe(|| lcore.run())).is_err() {
        crate::error!("lcore=0 event=panic action=\"every connection is lost, the host ends\"");
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
    use crate::channel::layout::Layout;
    use crate::channel::sync::Ordering;
    use crate::device::fault::FaultConfig;
    use crate::device::pair::pair;
    use crate::device::{RxFrame, RxQueue};
    use crate::lcore::tests::stack_config;
    use crate::lcore::{Mail, Segments};
    use crate::stack::Owner;
    use crate::time::Instant;
    use core::time::Duration;

    /// A driver with a bug that shows at its third burst.
    struct Broken(u32);

    impl RxQueue for Broken {
        fn rx_burst(&mut self, _: Instant, _: &mut dyn FnMut(&mut [RxFrame<'_>])) -> usize {
            self.0 += 1;
            assert!(self.0 < 3, "a bug in a driver");
            0
        }
    }

    #[test]
    fn a_panic_of_the_lcore_is_told_to_every_program() {
        let (mut device, _peer) = pair(FaultConfig::none(), FaultConfig::none(), 1_500);
        let stack = Stack::new(stack_config([10, 0, 0, 1].into(), &device));
        let (_, tx) = device.queue_pair(0).unwrap();
        let mailbox = Arc::new(Mailbox::new().unwrap());
        let layout = Layout::for_flows(1, 4_096, 4_096);
        let segments = Arc::new(Segments::create(layout).unwrap());
        mailbox.post(Mail::Attach {
            owner: Owner(0),
            user: 0,
            segments: Arc::clone(&segments),
        });
        run(LcoreConfig {
            stack,
            rx: Box::new(Broken(0)),
            tx,
            mailbox,
            status: Arc::default(),
            pipeline: Pipeline::default(),
            idle: IdleConfig {
                policy: IdlePolicy::Spin,
                spin: Duration::ZERO,
            },
            shares_cpu: true,
            somaxconn: 1,
            now: time::monotonic(),
        });
        let state = &segments.control.header().host_state;
        assert_eq!(state.load(Ordering::Relaxed), host_state::DEAD);
    }
}
