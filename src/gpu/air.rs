//! What a stage needs to let a GPU judge: the GPU, a ring for each rule, buffers, and who waits.

use std::collections::VecDeque;
use std::sync::Arc;

use super::accelerator::Accelerator;
use super::kernel::KernelState;
use super::offload::{Event, Offload, Prepared, Ticket};
use super::pipeline::Rule;
use super::pool::Pool;
use super::room::Room;
use super::stage::Verdict;
use crate::config::payload::{Gpu, Instead, Mode};
use crate::id::FlowId;

/// The way through the GPU of one lcore.
#[derive(Debug)]
pub(super) struct Air {
    pub(super) gpu: Arc<Accelerator>,
    /// For each rule of the stage; None: the CPU runs it.
    pub(super) rules: Vec<Option<Offload>>,
    pub(super) pool: Pool,
    pub(super) on_full: Instead,
    pub(super) on_timeout: Instead,
    /// Flows of which a chunk has come down, with the lcore's token for them.
    pub(super) woken: Vec<(FlowId, u32)>,
    /// Chunks between two kernels, of which the next has no place and no CPU can run it: flow, side, serial.
    pub(super) stalled: VecDeque<(FlowId, usize, u64)>,
    /// Flows with a chunk that found no place.
    pub(super) waiting: VecDeque<(FlowId, u32)>,
    pub(super) serial: u64,
    pub(super) events: Vec<Event>,
    pub(super) scratch: Vec<u8>,
}

/// A chunk on its way.
#[derive(Debug)]
pub(super) struct Flight {
    pub(super) serial: u64,
    /// The lcore's token for its flow.
    pub(super) token: u32,
    /// The rule that it is at.
    pub(super) at: usize,
    /// Stream offset.
    pub(super) offset: u64,
    pub(super) bytes: usize,
    /// None: a late kernel has it.
    pub(super) buffer: Option<u32>,
    /// What each rule keeps behind this chunk.
    pub(super) states: Box<[KernelState]>,
    pub(super) phase: Phase,
}

/// How far a chunk is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    /// Under way.
    Flying,
    /// Between two kernels: the next has no place.
    Stalled,
    /// It was judged.
    Landed(Verdict),
    /// The CPU must do it.
    Failed,
    /// It passes unjudged.
    Bypassed,
}

/// Everything that a stage needs, taken of the GPU; no kernel is at work.
#[derive(Debug)]
pub(super) struct Grounded {
    gpu: Arc<Accelerator>,
    rules: Vec<Option<Prepared>>,
    pool: Pool,
    mode: Mode,
    on_full: Instead,
    on_timeout: Instead,
    crowded: Crowded,
}

/// Rules for which the GPU has no room, by their JSON paths, and why.
#[derive(Debug, Default)]
struct Crowded {
    paths: Vec<String>,
    why: String,
}

impl Grounded {
    /// Takes what every kernel of `rules` that has a GPU version needs, as far as there is room, and so many buffers at most.
    ///
    /// # Errors
    /// One line.
    pub(super) fn new(
        gpu: &Arc<Accelerator>,
        room: &mut Room,
        config: &Gpu,
        rules: &mut [Rule],
        buffers: usize,
    ) -> Result<Self, String> {
        let mut crowded = Crowded::default();
        let batches = &config.batches;
        let wanted = buffers.min(batches.slots * batches.max_packets);
        let pool = Pool::new(gpu.driver, wanted).map_err(|fault| fault.to_string())?;
        let mut prepared = Vec::with_capacity(rules.len());
        for rule in rules {
            let name = rule.kernel.name();
            let module = match rule.kernel.code().map(|code| gpu.link(code)) {
                None => gpu.module,
                Some(Ok(module)) => module,
                Some(Err(why)) if rule.kernel.refuses_the_cpu() => return Err(why),
                Some(Err(why)) => {
                    rule.do_without(&why)?;
                    prepared.push(None);
                    continue;
                }
            };
            prepared.push(match rule.kernel.device_params() {
                Ok(params) => {
                    let fit = match config.mode {
                        Mode::Persistent => gpu.blocks_at_once(module, name)?,
                        Mode::Cpu | Mode::Launch | Mode::Memops | Mode::Graph => 0,
                    };
                    if let Err(why) = room.take(fit) {
                        rule.do_without(&why)?;
                        crowded.paths.push(rule.path.clone());
                        crowded.why = why;
                        prepared.push(None);
                        continue;
                    }
                    let (code, mode) = ((name, module), config.mode);
                    Some(Prepared::new(gpu, code, &params, mode, batches)?)
                }
                Err(why) => {
                    crate::warn!("gpu kernel={name} now=\"the CPU runs it\" reason=\"{why}\"");
                    None
                }
            });
        }
        Ok(Self {
            gpu: Arc::clone(gpu),
            rules: prepared,
            pool,
            mode: config.mode,
            on_full: config.on_full,
            on_timeout: config.on_timeout,
            crowded,
        })
    }

    /// Why some of the rules are not among those that the GPU has room for; None: all of them are.
    pub(super) fn crowded(&self) -> Option<String> {
        let Crowded { paths, why } = &self.crowded;
        (!paths.is_empty()).then(|| format!("{}: {why}", paths.join(", ")))
    }

    /// Puts the kernels to work, when every stage of the process lies ready: a kernel that stays would hold up whoever takes
    /// memory or code. With it what the operator is told.
    ///
    /// # Errors
    /// One line.
    pub(super) fn start(self) -> Result<(Air, String), String> {
        let start = |prepared: Option<Prepared>| prepared.map(Prepared::start).transpose();
        let rules: Result<Vec<_>, String> = self.rules.into_iter().map(start).collect();
        let what = format!("{} mode={}", self.gpu.name, self.mode.name());
        let air = Air {
            rules: rules?,
            gpu: self.gpu,
            pool: self.pool,
            on_full: self.on_full,
            on_timeout: self.on_timeout,
            woken: Vec::new(),
            stalled: VecDeque::new(),
            waiting: VecDeque::new(),
            serial: 0,
            events: Vec::new(),
            scratch: Vec::new(),
        };
        Ok((air, what))
    }
}

impl Air {
    /// The ring of a rule, when it may be used now.
    pub(super) fn well(&self, rule: usize) -> Option<&Offload> {
        let offload = self.rules.get(rule)?.as_ref()?;
        offload.is_well().then_some(offload)
    }

    /// Whether a chunk may go to a rule's kernel now: it would not wait for a place.
    pub(super) fn has_room(&self, rule: usize) -> bool {
        self.pool.free() > 0 && self.well(rule).is_some_and(Offload::has_room)
    }

    /// Wakes waiting flows, as many as may find a place now; all of them when none is waited for any more.
    pub(super) fn call_in(&mut self) {
        let well = self.rules.iter().flatten().all(Offload::is_well);
        let mut places = if well { self.pool.free() } else { usize::MAX };
        while places > 0
            && let Some(next) = self.waiting.pop_front()
        {
            self.woken.push(next);
            places -= 1;
        }
    }

    /// A flight is over; when a kernel still has its buffer, the ticket brings it back.
    pub(super) fn put_down(&mut self, flight: Flight) {
        match flight.phase {
            Phase::Flying => {}
            Phase::Stalled | Phase::Landed(_) | Phase::Failed | Phase::Bypassed => {
                if let Some(buffer) = flight.buffer {
                    self.pool.give_back(buffer);
                }
            }
        }
    }

    /// Calls `visit` with what the rings count.
    pub(super) fn report(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        let sum = |what: fn(&Offload) -> u64| self.rules.iter().flatten().map(what).sum();
        visit("payload_gpu_on", u64::from(self.gpu.is_on()));
        visit(
            "payload_gpu_rings",
            self.rules.iter().flatten().count() as u64,
        );
        visit("payload_gpu_batches", sum(|offload| offload.batches));
        visit("payload_gpu_batches_late", sum(|offload| offload.late));
        visit("payload_gpu_buffers_out", self.pool.out() as u64);
    }

    /// A ticket that nobody waits for any more.
    pub(super) fn discard(&mut self, event: Event) {
        match event {
            Event::Result(Ticket { buffer, .. }, _)
            | Event::Failed(Ticket { buffer, .. })
            | Event::Released(buffer) => self.pool.give_back(buffer),
            Event::Late(_) => {}
        }
    }
}
