//! Two lcores joined by a wire in memory, one program on each, all in virtual time on one thread.

use core::net::{Ipv4Addr, SocketAddrV4};
use core::time::Duration;
use std::os::fd::AsFd;
use std::sync::Arc;

use super::program::Program;
use crate::channel::layout::Layout;
use crate::device::fault::FaultConfig;
use crate::device::pair::pair;
use crate::device::{Device, QueuePair};
use crate::gpu::Pipeline;
use crate::lcore::{
    IdleConfig, IdlePolicy, Lcore, LcoreConfig, LcoreStatus, Mail, Mailbox, Segments,
};
use crate::stack::{Interface4, Owner, PortWalk, Stack, StackConfig};
use crate::time::Instant;

pub(super) const SERVER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
pub(super) const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
/// On the wire's network, but not there.
pub(super) const NOBODY: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 9);
pub(super) const PORT: u16 = 6_379;
pub(super) const ENDPOINT: SocketAddrV4 = SocketAddrV4::new(SERVER, PORT);
pub(super) const OWNER: Owner = Owner(0);

/// One host: an lcore, its mailbox, a family.
pub(super) struct Host {
    pub(super) lcore: Lcore,
    pub(super) mailbox: Arc<Mailbox>,
    pub(super) status: Arc<LcoreStatus>,
    pub(super) segments: Arc<Segments>,
    pub(super) program: Program,
}

pub(super) struct Lab {
    pub(super) now: Instant,
    pub(super) server: Host,
    pub(super) client: Host,
}

pub(crate) fn stack_config(address: Ipv4Addr, device: &dyn Device) -> StackConfig {
    let port = device.capabilities();
    StackConfig {
        mac: port.mac,
        mtu: port.mtu,
        vlan: None,
        addresses: vec![Interface4 {
            address,
            prefix_len: 24,
        }],
        gateway: None,
        routes: Vec::new(),
        rx_checksum_offload: port.rx_checksum,
        tx_checksum_offload: port.tx_checksum,
        tso_bytes: 0,
        trust_checksum: port.trust_checksum,
        max_flows: 4_096,
        max_neighbors: 64,
        msl: Duration::from_secs(1),
        fin_timeout: Duration::from_secs(60),
        synack_retries: 5,
        syn_retries: 6,
        user_timeout: Duration::from_secs(924),
        orphan_timeout: Duration::from_secs(120),
        ephemeral_ports: (32_768, 60_999),
        tx_buffer_bytes: 64 << 10,
        walk: PortWalk::default(),
        secret: [7; 16],
    }
}

/// The program's view of `segments`, as process cell `cell`.
pub(super) fn attach(segments: &Segments, cell: u32) -> Program {
    Program::attach(
        segments.control_fd().as_fd(),
        segments.receive_fd().as_fd(),
        cell,
    )
}

/// An lcore alone.
pub(super) fn lcore_config(
    stack: Stack,
    (rx, tx): QueuePair,
    mailbox: &Arc<Mailbox>,
    status: &Arc<LcoreStatus>,
) -> LcoreConfig {
    LcoreConfig {
        stack,
        rx,
        tx,
        mailbox: Arc::clone(mailbox),
        status: Arc::clone(status),
        pipeline: Pipeline::default(),
        idle: IdleConfig {
            policy: IdlePolicy::Spin,
            spin: Duration::ZERO,
        },
        shares_cpu: false,
        cpu: None,
        somaxconn: 4_096,
        peers: None,
        now: Instant::from_millis(1),
    }
}

impl Host {
    fn new(address: Ipv4Addr, mut device: impl Device, layout: Layout, pipeline: Pipeline) -> Self {
        let stack = Stack::new(stack_config(address, &device));
        let (rx, tx) = device.queue_pair(0).unwrap();
        let mailbox = Arc::new(Mailbox::new().unwrap());
        let status = Arc::new(LcoreStatus::default());
        let segments = Arc::new(Segments::create(layout).unwrap());
        mailbox.post(Mail::Attach {
            owner: OWNER,
            user: 0,
            segments: Arc::clone(&segments),
        });
        mailbox.post(Mail::Process {
            owner: OWNER,
            cell: 0,
        });
        let lcore = Lcore::new(LcoreConfig {
            pipeline,
            ..lcore_config(stack, (rx, tx), &mailbox, &status)
        });
        Self {
            lcore,
            mailbox,
            status,
            program: attach(&segments, 0),
            segments,
        }
    }
}

impl Lab {
    pub(super) fn new() -> Self {
        Self::with(
            FaultConfig::none(),
            Layout::for_flows(64, 64 << 10, 32 << 10),
        )
    }

    pub(super) fn with(faults: FaultConfig, layout: Layout) -> Self {
        Self::staged(faults, layout, Pipeline::default(), Pipeline::default())
    }

    /// With what looks at the payload of the server and of the client.
    pub(super) fn staged(
        faults: FaultConfig,
        layout: Layout,
        server: Pipeline,
        client: Pipeline,
    ) -> Self {
        let (a, b) = pair(faults, faults, 1_500);
        let mut lab = Self {
            now: Instant::from_millis(1),
            server: Host::new(SERVER, a, layout, server),
            client: Host::new(CLIENT, b, layout, client),
        };
        lab.server.lcore.announce();
        lab.client.lcore.announce();
        lab.turn();
        lab
    }

    /// With a connection of the two programs: the client's object and the server's.
    #[track_caller]
    pub(super) fn connected() -> (Self, u32, u32) {
        let mut lab = Self::new();
        let (out, into) = lab.connection();
        (lab, out, into)
    }

    /// A turn of both lcores; 20 us pass, or a millisecond when there was nothing to do.
    pub(super) fn turn(&mut self) {
        let work = self.server.lcore.turn(self.now, Duration::ZERO)
            + self.client.lcore.turn(self.now, Duration::ZERO);
        let passed = if work == 0 { 1_000 } else { 20 };
        self.now = self.now + Duration::from_micros(passed);
    }

    /// Turns until `done`, at most `seconds` of virtual time.
    #[track_caller]
    pub(super) fn until(&mut self, seconds: u64, mut done: impl FnMut(&Self) -> bool) {
        let end = self.now + Duration::from_secs(seconds);
        while !done(self) {
            assert!(self.now < end, "nothing came of it in {seconds} s");
            self.turn();
        }
    }

    /// Turns until `done`, which other threads bring about in their own time.
    #[track_caller]
    pub(super) fn until_real(&mut self, mut done: impl FnMut(&Self) -> bool) {
        let began = crate::time::monotonic();
        while !done(self) {
            let waited = crate::time::monotonic().since(began);
            assert!(waited < Duration::from_secs(60), "nothing came of it");
            self.turn();
            std::thread::yield_now();
        }
    }

    /// As [`Lab::until_real`], but virtual time stands still while segments are held: however slow the GPU's threads are, no more
    /// comes meanwhile than is under way.
    #[track_caller]
    pub(super) fn until_real_in_step(&mut self, mut done: impl FnMut(&Self) -> bool) {
        let began = crate::time::monotonic();
        while !done(self) {
            let waited = crate::time::monotonic().since(began);
            assert!(waited < Duration::from_secs(60), "nothing came of it");
            self.turn();
            while self.server.lcore.holds_packets() {
                let waited = crate::time::monotonic().since(began);
                assert!(waited < Duration::from_secs(60), "it is held for ever");
                let now = self.now;
                self.turn();
                self.now = now;
                std::thread::yield_now();
            }
        }
    }

    pub(super) fn turns(&mut self, count: usize) {
        for _ in 0..count {
            self.turn();
        }
    }

    /// Turns until the server's program is told one of `events` of its object.
    #[track_caller]
    pub(super) fn server_told(&mut self, object: u32, events: u32) {
        self.until(1, |lab| lab.server.program.bits(object) & events != 0);
    }

    /// As [`Lab::server_told`], of the client's program.
    #[track_caller]
    pub(super) fn client_told(&mut self, object: u32, events: u32) {
        self.until(1, |lab| lab.client.program.bits(object) & events != 0);
    }

    /// Makes a listener on the server.
    #[track_caller]
    pub(super) fn listen(&mut self, backlog: u32) -> u32 {
        let listener = self.server.program.claim();
        self.server.program.listen(listener, ENDPOINT, backlog);
        self.until(1, |lab| lab.server.program.answer(listener).is_some());
        assert_eq!(self.server.program.answer(listener), Some(0));
        listener
    }

    /// Connects the client's program to `listener`: the client's object and the server's.
    #[track_caller]
    pub(super) fn connect(&mut self, listener: u32) -> (u32, u32) {
        let out = self.client.program.claim();
        self.client.program.connect(out, ENDPOINT);
        self.until(5, |lab| {
            lab.client.program.kind(out) == crate::channel::cell::kind::STREAM
                && lab.server.program.bits(listener) != 0
        });
        (out, self.server.program.accept(listener).unwrap())
    }

    /// Makes a listener and one connection to it: the client's object and the server's.
    #[track_caller]
    pub(super) fn connection(&mut self) -> (u32, u32) {
        let listener = self.listen(16);
        self.connect(listener)
    }
}
