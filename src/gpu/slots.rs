//! The host's side of a communication ring: slots in registered memory, filled, handed over and read back.

use core::sync::atomic::Ordering;

use super::ring::{
    BATCH_SCRATCH_BYTES, BatchDescriptor, PacketRecord, PacketResult, RING_ABI, RingDescriptor,
    status,
};
use crate::ffi::cuda::{DevicePointer, Driver, Fault, Gate, Registered};

/// The slots of one ring and what the GPU is told of them.
#[derive(Debug)]
pub(super) struct Slots {
    memory: Registered,
    count: usize,
    packets_max: usize,
    seq: u64,
}

const RING_BYTES: usize = size_of::<RingDescriptor>();
const BATCH_BYTES: usize = size_of::<BatchDescriptor>();
const RECORD_BYTES: usize = size_of::<PacketRecord>();
const RESULT_BYTES: usize = size_of::<PacketResult>();

/// What a slot's state word says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    /// Nobody's.
    Free,
    /// The GPU works on it.
    Flying,
    /// Results are there.
    Done,
    /// The kernel gave up, with its number.
    Failed(u32),
    /// No state: somebody wrote where he must not.
    Broken(u32),
}

impl Slots {
    /// A ring of `count` slots of `packets_max` packets each, for a kernel with these parameters.
    pub(super) fn new(
        driver: &Driver,
        count: usize,
        packets_max: usize,
        params: DevicePointer,
    ) -> Result<Self, Fault> {
        let bytes =
            RING_BYTES + count * (BATCH_BYTES + packets_max * (RECORD_BYTES + RESULT_BYTES));
        let scratch =
            driver.alloc(count * BATCH_SCRATCH_BYTES + super::ring::RING_SCRATCH_BYTES)?;
        let mut made = Self {
            memory: Registered::new(driver, bytes)?,
            count,
            packets_max,
            seq: 0,
        };
        let ring_scratch = scratch.plus(count * BATCH_SCRATCH_BYTES);
        for slot in 0..count {
            made.describe(slot, params, scratch.plus(slot * BATCH_SCRATCH_BYTES));
        }
        made.describe_ring(ring_scratch);
        Ok(made)
    }

    /// Slots of the ring.
    pub(super) const fn count(&self) -> usize {
        self.count
    }

    /// Packets of a slot at most.
    pub(super) const fn packets_max(&self) -> usize {
        self.packets_max
    }

    /// The batch of a slot, for a launch.
    pub(super) const fn batch(&self, slot: usize) -> DevicePointer {
        self.memory.device(Self::batch_at(slot))
    }

    /// The state word of a slot, for a wait.
    const fn word(&self, slot: usize) -> DevicePointer {
        self.memory.device(Self::batch_at(slot) + STATUS_AT)
    }

    /// For each slot a wait for its batch, and the batch.
    pub(super) fn gates(&self) -> Vec<Gate> {
        let gate = |slot| Gate {
            word: self.word(slot),
            value: status::READY,
            argument: self.batch(slot),
        };
        (0..self.count).map(gate).collect()
    }

    /// The ring, for a persistent kernel.
    pub(super) const fn ring(&self) -> DevicePointer {
        self.memory.device(0)
    }

    const fn batch_at(slot: usize) -> usize {
        RING_BYTES + slot * BATCH_BYTES
    }

    const fn record_at(&self, slot: usize, packet: usize) -> usize {
        Self::batch_at(self.count) + (slot * self.packets_max + packet) * RECORD_BYTES
    }

    const fn result_at(&self, slot: usize, packet: usize) -> usize {
        self.record_at(self.count, 0) + (slot * self.packets_max + packet) * RESULT_BYTES
    }

    fn describe(&mut self, slot: usize, params: DevicePointer, scratch: DevicePointer) {
        let at = Self::batch_at(slot);
        let (packets, results) = (
            self.memory.device(self.record_at(slot, 0)),
            self.memory.device(self.result_at(slot, 0)),
        );
        self.put(
            at + core::mem::offset_of!(BatchDescriptor, abi),
            &RING_ABI.to_ne_bytes(),
        );
        for (place, value) in [
            (core::mem::offset_of!(BatchDescriptor, params), params),
            (core::mem::offset_of!(BatchDescriptor, scratch), scratch),
            (core::mem::offset_of!(BatchDescriptor, packets), packets),
            (core::mem::offset_of!(BatchDescriptor, results), results),
        ] {
            self.put(at + place, &value.0.to_ne_bytes());
        }
    }

    fn describe_ring(&mut self, scratch: DevicePointer) {
        let slots = u32::try_from(self.count).unwrap_or(0);
        let stride = BATCH_BYTES as u64;
        let batches = self.batch(0).0;
        self.put(
            core::mem::offset_of!(RingDescriptor, abi),
            &RING_ABI.to_ne_bytes(),
        );
        self.put(
            core::mem::offset_of!(RingDescriptor, slots),
            &slots.to_ne_bytes(),
        );
        self.put(
            core::mem::offset_of!(RingDescriptor, batches),
            &batches.to_ne_bytes(),
        );
        self.put(
            core::mem::offset_of!(RingDescriptor, stride),
            &stride.to_ne_bytes(),
        );
        self.put(
            core::mem::offset_of!(RingDescriptor, scratch),
            &scratch.0.to_ne_bytes(),
        );
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        let fits = self.memory.put(at, bytes);
        debug_assert!(fits, "the ring is as long as its layout");
    }

    /// Fills a place of a slot that is free.
    pub(super) fn fill(&mut self, slot: usize, packet: usize, record: &PacketRecord) {
        self.put(self.record_at(slot, packet), &record.to_bytes());
        self.put(self.result_at(slot, packet), &[0; RESULT_BYTES]);
    }

    /// Hands a slot with `count` packets to the GPU.
    pub(super) fn hand_over(&mut self, slot: usize, count: usize) {
        let at = Self::batch_at(slot);
        self.seq += 1;
        let (count, seq) = (u32::try_from(count).unwrap_or(0), self.seq);
        self.put(
            at + core::mem::offset_of!(BatchDescriptor, count),
            &count.to_ne_bytes(),
        );
        self.put(
            at + core::mem::offset_of!(BatchDescriptor, seq),
            &seq.to_ne_bytes(),
        );
        // Release: pairs with the kernel's acquire; everything of the batch is there before.
        self.set(slot, status::READY);
    }

    /// Takes a slot back whose batch was read.
    pub(super) fn take_back(&self, slot: usize) {
        self.set(slot, status::FREE);
    }

    fn set(&self, slot: usize, state: u32) {
        if let Some(word) = self.memory.word(Self::batch_at(slot) + STATUS_AT) {
            word.store(state, Ordering::Release);
        }
    }

    /// What the state word of a slot says.
    pub(super) fn state(&self, slot: usize) -> State {
        let at = Self::batch_at(slot);
        // Acquire: pairs with the kernel's release; results are there when it says so.
        let word = self.memory.word(at + STATUS_AT);
        match word.map_or(u32::MAX, |word| word.load(Ordering::Acquire)) {
            status::FREE => State::Free,
            status::READY => State::Flying,
            status::DONE => State::Done,
            status::ERROR => {
                let mut error = [0; 4];
                let known = self.memory.take(
                    at + core::mem::offset_of!(BatchDescriptor, error),
                    &mut error,
                );
                State::Failed(if known { u32::from_ne_bytes(error) } else { 0 })
            }
            other => State::Broken(other),
        }
    }

    /// What the kernel wrote for a packet.
    pub(super) fn result(&self, slot: usize, packet: usize) -> PacketResult {
        let mut bytes = [0; RESULT_BYTES];
        if self.memory.take(self.result_at(slot, packet), &mut bytes) {
            PacketResult::from_bytes(&bytes)
        } else {
            PacketResult::default()
        }
    }

    /// Tells a persistent kernel to end.
    pub(super) fn quit(&self) {
        if let Some(word) = self
            .memory
            .word(core::mem::offset_of!(RingDescriptor, quit))
        {
            word.store(2, Ordering::Release);
        }
    }

    /// Whether a persistent kernel has ended.
    pub(super) fn has_ended(&self) -> bool {
        let word = self
            .memory
            .word64(core::mem::offset_of!(RingDescriptor, ended));
        word.is_some_and(|word| word.load(Ordering::Acquire) != 0)
    }

    /// Lets every wait for a slot pass: a batch of nothing.
    pub(super) fn release_all(&mut self) {
        for slot in 0..self.count {
            if self.state(slot) != State::Flying {
                self.hand_over(slot, 0);
            }
        }
    }
}

const STATUS_AT: usize = core::mem::offset_of!(BatchDescriptor, status);
