//! A host with lcores, and a program on it.

use core::net::{Ipv4Addr, SocketAddrV4};
use core::time::Duration;
use std::sync::Arc;

use super::super::lab::{OWNER, attach, lcore_config, stack_config};
use super::super::program::Program;
use crate::channel::layout::Layout;
use crate::channel::sync::Ordering;
use crate::device::pair::PairDevice;
use crate::device::rss::{KEY_BYTES, TABLE_ENTRIES};
use crate::device::{Device, shared_queue};
use crate::gpu::Pipeline;
use crate::lcore::{Lcore, LcoreConfig, LcoreStatus, Mail, Mailbox, Peers, Segments};
use crate::stack::Stack;
use crate::stack::demux::FlowKey;
use crate::stack::steering::Steering;
use crate::time::Instant;

/// The lcores, what is told to them, and the program.
pub(super) struct Crew {
    pub(super) lcores: Vec<Lcore>,
    pub(super) mailboxes: Vec<Arc<Mailbox>>,
    pub(super) statuses: Vec<Arc<LcoreStatus>>,
    pub(super) steering: Arc<Steering>,
    pub(super) program: Program,
    pub(super) segments: Arc<Segments>,
}

impl Crew {
    pub(super) fn new(address: Ipv4Addr, device: PairDevice, lcores: u32) -> Self {
        let pipelines = (0..lcores).map(|_| Pipeline::default()).collect();
        Self::staged(address, device, pipelines)
    }

    /// An lcore for each pipeline.
    pub(super) fn staged(
        address: Ipv4Addr,
        mut device: PairDevice,
        pipelines: Vec<Pipeline>,
    ) -> Self {
        let lcores = u32::try_from(pipelines.len()).unwrap();
        let layout = Layout::for_flows(64, 64 << 10, 32 << 10).with_lcores(lcores);
        let segments = Arc::new(Segments::create(layout).unwrap());
        let program = attach(&segments, 0);
        let count = lcores as usize;
        let mailboxes: Vec<_> = (0..lcores)
            .map(|_| Arc::new(Mailbox::new().unwrap()))
            .collect();
        let statuses: Vec<_> = (0..lcores)
            .map(|_| Arc::new(LcoreStatus::default()))
            .collect();
        let steering = Arc::new(Steering::new(&[0x6d; KEY_BYTES], TABLE_ENTRIES, lcores));
        let pair = device.queue_pair(0).unwrap();
        let mut pairs = shared_queue::share(pair, count, 1_518).unwrap();
        let mut peers = Peers::join(&mailboxes, &steering, 1_518);
        let parts = peers.drain(..).zip(pairs.drain(..));
        let lcores = parts
            .zip(mailboxes.iter().zip(&statuses))
            .zip(pipelines)
            .map(|(((peers, pair), (mailbox, status)), pipeline)| {
                let stack = Stack::new(stack_config(address, &device));
                Lcore::new(LcoreConfig {
                    peers: (count > 1).then_some(peers),
                    pipeline,
                    ..lcore_config(stack, pair, mailbox, status)
                })
            })
            .collect();
        let crew = Self {
            lcores,
            mailboxes,
            statuses,
            steering,
            program,
            segments,
        };
        crew.say(|| Mail::Attach {
            owner: OWNER,
            user: 0,
            segments: Arc::clone(&crew.segments),
        });
        crew.say(|| Mail::Process {
            owner: OWNER,
            cell: 0,
        });
        crew
    }

    /// As the control thread says something to all: the first one hears it last.
    pub(super) fn say(&self, mail: impl Fn() -> Mail) {
        for mailbox in self.mailboxes.iter().rev() {
            mailbox.post(mail());
        }
    }

    pub(super) fn turn(&mut self, now: Instant) -> usize {
        let turn = |lcore: &mut Lcore| lcore.turn(now, Duration::ZERO);
        self.lcores.iter_mut().map(turn).sum()
    }

    pub(super) fn sum(&self, name: &str) -> u64 {
        (0..self.lcores.len())
            .map(|lcore| self.count(lcore, name))
            .sum()
    }

    pub(super) fn count(&self, lcore: usize, name: &str) -> u64 {
        let (_, value) = self.lcores[lcore]
            .report()
            .into_iter()
            .find(|(known, _)| *known == name)
            .unwrap();
        value
    }

    /// The connection of an object.
    pub(super) fn key(&self, object: u32) -> FlowKey {
        let fact = &self.program.cell(object).fact;
        let end = |address: u32, port: u32| {
            SocketAddrV4::new(Ipv4Addr::from_bits(address), u16::try_from(port).unwrap())
        };
        FlowKey {
            local: end(
                fact.local_address.load(Ordering::Relaxed),
                fact.local_port.load(Ordering::Relaxed),
            ),
            remote: end(
                fact.remote_address.load(Ordering::Relaxed),
                fact.remote_port.load(Ordering::Relaxed),
            ),
        }
    }

    pub(super) fn lcore_of(&self, object: u32) -> u32 {
        self.program.control.lcore_of(object)
    }
}
