//! An lcore whose driver has a bug, for those who must outlive it.

use core::time::Duration;
use std::sync::Arc;

use super::stack_config;
use crate::channel::layout::Layout;
use crate::device::fault::FaultConfig;
use crate::device::pair::pair;
use crate::device::{Device, RxFrame, RxQueue};
use crate::gpu::Pipeline;
use crate::lcore::{IdleConfig, IdlePolicy, LcoreConfig, Mail, Mailbox, Segments};
use crate::stack::{Owner, Stack};
use crate::time::{Instant, monotonic};

/// The bug shows at its third burst.
struct Broken(u32);

impl RxQueue for Broken {
    fn rx_burst(&mut self, _: Instant, _: &mut dyn FnMut(&mut [RxFrame<'_>])) -> usize {
        self.0 += 1;
        assert!(self.0 < 3, "a bug in a driver");
        0
    }
}

/// The lcore, and the segments of a program that is about to attach to it.
pub(crate) fn broken(policy: IdlePolicy) -> (LcoreConfig, Arc<Segments>) {
    let (mut device, _peer) = pair(FaultConfig::none(), FaultConfig::none(), 1_500);
    let stack = Stack::new(stack_config([10, 0, 0, 1].into(), &device));
    let (_, tx) = device.queue_pair(0).unwrap();
    let mailbox = Arc::new(Mailbox::new().unwrap());
    let segments = Arc::new(Segments::create(Layout::for_flows(1, 4_096, 4_096)).unwrap());
    mailbox.post(Mail::Attach {
        owner: Owner(0),
        user: 0,
        segments: Arc::clone(&segments),
    });
    let lcore = LcoreConfig {
        stack,
        rx: Box::new(Broken(0)),
        tx,
        mailbox,
        status: Arc::default(),
        pipeline: Pipeline::default(),
        idle: IdleConfig {
            policy,
            spin: Duration::ZERO,
        },
        shares_cpu: true,
        cpu: None,
        somaxconn: 1,
        peers: None,
        now: monotonic(),
    };
    (lcore, segments)
}
