//! What an lcore tells of itself when it is asked.

use super::look::{Counted, LOOK_PLACES, Look, Seen};
use super::mailbox::Report;
use super::payload::packet::lock;
use super::worker::Lcore;
use crate::time::{self, Instant};

impl Lcore {
    pub(super) fn look(&mut self, now: Instant, at: Look) -> Seen {
        match at {
            Look::Counters => Seen::Counters(self.count()),
            Look::Flows { from } => Seen::Flows(self.stack.view_flows(now, from, LOOK_PLACES)),
            Look::Flow { local, remote } => Seen::Flow(self.stack.view_one(now, local, remote)),
            Look::Listeners { from } => {
                Seen::Listeners(self.stack.view_listeners(from, LOOK_PLACES))
            }
            Look::Latency => Seen::Latency(self.latency.ask(time::monotonic())),
            Look::Resting { from } => {
                Seen::Resting(self.stack.view_resting(now, from, LOOK_PLACES))
            }
        }
    }

    pub(super) fn count(&self) -> Counted {
        let mut counted = Counted {
            gauges: vec![
                ("flows", self.stack.live_flows() as u64),
                ("flows_resting", self.stack.resting_flows() as u64),
                ("flows_max", self.stack.config().max_flows as u64),
                ("neighbors", self.stack.neighbor_count() as u64),
                ("families", self.families.iter().flatten().count() as u64),
                ("ring_bytes", self.memory.ring_bytes()),
                ("ring_bytes_kept", self.memory.kept_bytes()),
                ("send_buffer_bytes", self.memory.send_bytes().0),
                ("send_buffer_bytes_free", self.memory.send_bytes().1),
            ],
            ..Counted::default()
        };
        let lcore = &mut counted.lcore;
        self.status
            .counters
            .for_each(|name, value| lcore.push((name, value)));
        let stack = &mut counted.stack;
        self.stack
            .counters()
            .for_each(|name, value| stack.push((name, value)));
        let gpu = &mut counted.gpu;
        self.report_stages(&mut |name, value| gpu.push((name, value)));
        counted
    }

    pub(super) fn report(&self) -> Report {
        let mut report = vec![
            ("flows", self.stack.live_flows() as u64),
            ("flows_resting", self.stack.resting_flows() as u64),
        ];
        let mut add = |name, value| report.push((name, value));
        self.status.counters.for_each(&mut add);
        self.stack.counters().for_each(&mut add);
        self.report_stages(&mut add);
        report
    }

    /// What the payload stages count. A kernel may be in several of them: each name stands once, with the sum.
    fn report_stages(&self, add: &mut impl FnMut(&'static str, u64)) {
        let mut sums: Vec<(&'static str, u64)> = Vec::new();
        let mut note = |name, value: u64| match sums.iter_mut().find(|(known, _)| *known == name) {
            // Said by each stage of the one GPU.
            Some(("payload_gpu_on", on)) => *on = value.max(*on),
            Some((_, sum)) => *sum += value,
            None => sums.push((name, value)),
        };
        if let Some(stage) = &self.stage {
            stage.report(&mut note);
        }
        if let Some(stage) = &self.packet_rx {
            stage.report(&mut note);
        }
        if let Some(sent) = &self.packet_tx {
            lock(sent).stage.report(&mut note);
        }
        for (name, value) in sums {
            add(name, value);
        }
    }
}
