//! One rule's kernel on the GPU: chunks gathered into batches, handed over, read back, and given up when they are late.
//!
//! Nothing here waits. A batch that is late, failed or came back unreadable is redone by the CPU from the bytes that the caller
//! still has; the buffers of a late one stay out until the GPU gives them back, because it may still write there.

use core::time::Duration;
use std::collections::VecDeque;
use std::sync::Arc;

use super::accelerator::Accelerator;
use super::drive::{Drive, Ready};
use super::ring::{PacketRecord, PacketResult, verdict};
use super::slots::{Slots, State};
use crate::config::payload::{Batches, Mode};
use crate::ffi::cuda::{Fault, Module};
use crate::id::FlowId;
use crate::time::Instant;

/// A chunk on its way through the GPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Ticket {
    /// Whose.
    pub(super) flow: FlowId,
    /// 0 received, 1 sent.
    pub(super) side: usize,
    /// Tells it from another chunk of the same flow and side.
    pub(super) serial: u64,
    /// The buffer that it lies in.
    pub(super) buffer: u32,
}

/// What becomes of a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Event {
    /// The kernel's result.
    Result(Ticket, PacketResult),
    /// The GPU did not do it and is done with the buffer.
    Failed(Ticket),
    /// The GPU has not done it in time, and may still use the buffer.
    Late(Ticket),
    /// It is done with the buffer of a late chunk now.
    Released(u32),
}

#[derive(Debug)]
struct Batch {
    slot: usize,
    tickets: Vec<Ticket>,
    deadline: Instant,
    /// Its chunks are the CPU's already.
    is_late: bool,
}

/// A kernel on the GPU with its ring.
#[derive(Debug)]
pub(super) struct Offload {
    gpu: Arc<Accelerator>,
    slots: Slots,
    drive: Drive,
    /// Gathered in slot `next`, not handed over yet.
    open: Vec<Ticket>,
    opened: Instant,
    /// Handed over, the oldest first.
    out: VecDeque<Batch>,
    next: usize,
    max_wait: Duration,
    timeout: Duration,
    /// Batches handed over.
    pub(super) batches: u64,
    /// Batches that were late.
    pub(super) late: u64,
}

/// A kernel for which everything lies ready on the GPU.
#[derive(Debug)]
pub(super) struct Prepared {
    gpu: Arc<Accelerator>,
    slots: Slots,
    ready: Ready,
    max_wait: Duration,
    timeout: Duration,
}

impl Prepared {
    /// Takes all of the GPU that the kernel of this name needs in a mode.
    ///
    /// # Errors
    /// One line.
    pub(super) fn new(
        gpu: &Arc<Accelerator>,
        (kernel, module): (&'static str, Module),
        params: &[u8],
        mode: Mode,
        batches: &Batches,
    ) -> Result<Self, String> {
        let text = |fault: Fault| format!("kernel {kernel}: {fault}");
        let params = gpu.upload(params).map_err(text)?;
        let slots = Slots::new(gpu.driver, batches.slots, batches.max_packets, params);
        let slots = slots.map_err(text)?;
        let ready = Ready::new(mode, gpu, (kernel, module), &slots, batches.blocks)?;
        Ok(Self {
            gpu: Arc::clone(gpu),
            slots,
            ready,
            max_wait: batches.max_wait,
            timeout: batches.timeout,
        })
    }

    /// Puts it to work, when everything of the process lies ready: see [`Ready::start`].
    ///
    /// # Errors
    /// One line.
    pub(super) fn start(self) -> Result<Offload, String> {
        let drive = self.ready.start()?;
        Ok(Offload {
            gpu: self.gpu,
            open: Vec::with_capacity(self.slots.packets_max()),
            opened: Instant::ZERO,
            out: VecDeque::with_capacity(self.slots.count()),
            slots: self.slots,
            drive,
            next: 0,
            max_wait: self.max_wait,
            timeout: self.timeout,
            batches: 0,
            late: 0,
        })
    }
}

impl Offload {
    /// Whether the GPU takes chunks at all now: it is on, and no batch is late.
    pub(super) fn is_well(&self) -> bool {
        self.gpu.is_on() && self.out.front().is_none_or(|batch| !batch.is_late)
    }

    /// Whether there is a place for one more chunk.
    pub(super) fn has_room(&self) -> bool {
        self.open.len() < self.slots.packets_max() && self.out.len() < self.slots.count()
    }

    /// Whether anything is gathered or out and may still be waited for.
    pub(super) fn is_busy(&self) -> bool {
        self.is_well() && !(self.open.is_empty() && self.out.is_empty())
    }

    /// Adds a chunk to the batch that is being gathered. There must be room.
    pub(super) fn add(&mut self, now: Instant, ticket: Ticket, record: &PacketRecord) {
        if self.open.is_empty() {
            self.opened = now;
        }
        self.slots.fill(self.next, self.open.len(), record);
        self.open.push(ticket);
    }

    /// Reads what has come back and hands over what is due; returns how many batches moved.
    pub(super) fn step(&mut self, now: Instant, events: &mut Vec<Event>) -> usize {
        if let Some(fault) = self.drive.fault() {
            // It stays with the context.
            self.gpu.turn_off(&fault.to_string());
        }
        let mut moved = self.reap(now, events);
        if !self.gpu.is_on() {
            self.give_up(events);
            return moved;
        }
        let full = self.open.len() == self.slots.packets_max();
        let waited = now.since(self.opened) >= self.max_wait;
        // Nothing is out: waiting for more would cost time and save nothing.
        let due = full || waited || self.out.is_empty();
        if !self.open.is_empty() && due && self.is_well() {
            self.hand_over(now);
            moved += 1;
        }
        moved
    }

    fn hand_over(&mut self, now: Instant) {
        let slot = self.next;
        if self.slots.state(slot) != State::Free {
            return self.gpu.turn_off(&format!(
                "slot {slot} is {:?} and should be free",
                self.slots.state(slot)
            ));
        }
        let tickets = core::mem::take(&mut self.open);
        let count = tickets.len();
        self.slots.hand_over(slot, count);
        self.batches += 1;
        self.out.push_back(Batch {
            slot,
            tickets,
            deadline: now + self.timeout,
            is_late: false,
        });
        self.next = (slot + 1) % self.slots.count();
        if !self.drive.submit(slot, count) {
            self.gpu.turn_off(ORDERS);
        }
    }

    /// When a look is worth while although nothing else is to be done: a late batch may come back.
    pub(super) fn next_due(&self, now: Instant) -> Option<Instant> {
        let is_late = self.gpu.is_on() && !self.is_well();
        is_late.then(|| now + LOOK_AGAIN)
    }

    fn reap(&mut self, now: Instant, events: &mut Vec<Event>) -> usize {
        let mut moved = 0;
        while let Some(batch) = self.out.front_mut() {
            let slot = batch.slot;
            match self.slots.state(slot) {
                State::Flying if now < batch.deadline => break,
                State::Flying => {
                    batch.deadline = now + self.timeout;
                    let again = batch.is_late;
                    self.is_late(again, events);
                    break;
                }
                State::Done => self.land(events),
                State::Failed(error) => {
                    let gpu = Arc::clone(&self.gpu);
                    self.fail(events);
                    gpu.strike(&format!("the kernel gave up with error {error}"));
                }
                State::Free | State::Broken(_) => {
                    let state = self.slots.state(slot);
                    self.gpu.turn_off(&format!(
                        "the state word of a batch is broken: slot={slot} {state:?}"
                    ));
                    break;
                }
            }
            moved += 1;
        }
        moved
    }

    /// The oldest batch is late, or has been for another `timeout_us`.
    fn is_late(&mut self, again: bool, events: &mut Vec<Event>) {
        let limit = self.timeout.as_micros();
        if again {
            // A late kernel may end yet. A driver that does not come back is counted until it is given up.
            if self.drive.is_stuck() {
                self.gpu.strike(&format!(
                    "a call of the driver's has not returned in timeout_us={limit}"
                ));
            }
            return;
        }
        self.late += 1;
        self.give_up(events);
        self.drive.look();
        self.gpu
            .strike(&format!("a batch was not done in timeout_us={limit}"));
    }

    /// Takes the oldest batch with its results.
    fn land(&mut self, events: &mut Vec<Event>) {
        let Some(batch) = self.out.pop_front() else {
            return;
        };
        let mut unwritten = false;
        for (packet, ticket) in batch.tickets.iter().enumerate() {
            let result = self.slots.result(batch.slot, packet);
            let is_known = (verdict::PASS..=verdict::FAILED).contains(&result.verdict);
            unwritten |= !is_known;
            events.push(match (batch.is_late, is_known) {
                (true, _) => Event::Released(ticket.buffer),
                (false, true) => Event::Result(*ticket, result),
                (false, false) => Event::Failed(*ticket),
            });
        }
        if unwritten {
            self.gpu.strike("the kernel left a result unwritten");
        }
        self.free(batch.slot);
    }

    /// Takes the oldest batch without results.
    fn fail(&mut self, events: &mut Vec<Event>) {
        let Some(batch) = self.out.pop_front() else {
            return;
        };
        events.extend(batch.tickets.iter().map(|ticket| {
            if batch.is_late {
                Event::Released(ticket.buffer)
            } else {
                Event::Failed(*ticket)
            }
        }));
        self.free(batch.slot);
    }

    fn free(&self, slot: usize) {
        self.slots.take_back(slot);
        if !self.gpu.is_on() {
            return;
        }
        if !self.drive.reaped(slot) {
            self.gpu.turn_off(ORDERS);
        }
    }

    /// Waits for the GPU to be done, when it may be expected to be within `limit`: whoever comes next may take memory.
    pub(super) fn leave(&mut self, limit: Duration) {
        if self.is_well() {
            self.drive.leave(&mut self.slots, limit);
        }
    }

    /// What was gathered is the CPU's, and what is out as well, because it is worked on in order. The buffers of that stay out
    /// until the GPU gives them back.
    fn give_up(&mut self, events: &mut Vec<Event>) {
        events.extend(self.open.drain(..).map(Event::Failed));
        for batch in self.out.iter_mut().filter(|batch| !batch.is_late) {
            batch.is_late = true;
            events.extend(batch.tickets.iter().copied().map(Event::Late));
        }
    }
}

/// No ring gives as many.
const ORDERS: &str = "too many orders wait for the driver";
/// Between looks at a batch that is late.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// The end of a host waits for each ring.
const LEAVE: Duration = Duration::from_millis(100);

impl Drop for Offload {
    fn drop(&mut self) {
        self.drive.leave(&mut self.slots, LEAVE);
    }
}
