//! What the control thread may see of an lcore without asking.

use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::counters::LcoreCounters;
use crate::stack::Owner;

/// What the control thread may see of an lcore at any time.
#[derive(Debug, Default)]
pub struct LcoreStatus {
    /// Counters.
    pub counters: Arc<LcoreCounters>,
    /// Flows of the stack, those in TIME-WAIT among them.
    pub flows: AtomicUsize,
    /// Of them, those that can still carry bytes or wait for a FIN.
    pub live_flows: AtomicUsize,
    ended: Mutex<Vec<Owner>>,
    /// The lcore's thread; 0 = it does not run.
    pub(super) thread: AtomicU32,
    /// Number of the wake-up that is being written; 0 = none.
    writing: AtomicU64,
}

impl LcoreStatus {
    /// Takes the families that have ended since the last call: their numbers may be used again.
    #[must_use]
    pub fn take_ended(&self) -> Vec<Owner> {
        core::mem::take(&mut *self.ended.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The wake-up that is being written now, and the thread that writes it. The same one after a while: it waits.
    #[must_use]
    pub fn held_up(&self) -> Option<(u64, u32)> {
        match self.writing.load(Ordering::Relaxed) {
            0 => None,
            number => Some((number, self.thread.load(Ordering::Relaxed))),
        }
    }

    /// A sleeper's eventfd is about to be written.
    pub(super) fn begin_write(&self) {
        let number = self.counters.wakeups.value() + 1;
        self.writing.store(number, Ordering::Relaxed);
    }

    /// It was written.
    pub(super) fn end_write(&self) {
        self.writing.store(0, Ordering::Relaxed);
    }

    /// A family has ended.
    pub(super) fn push_ended(&self, owner: Owner) {
        self.ended
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(owner);
    }
}
