//! One connection under observation: what becomes different of it in each turn, told as it happens.
//!
//! A turn looks twice at a connection that somebody watches, and not at all when nobody does: then it asks whether a list
//! is empty. Whoever watches is never waited for; what it does not take in time is lost to it, and counted.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};

use crate::stack::demux::FlowKey;
use crate::stack::{FlowView, Stack};
use crate::time::Instant;

/// Sights that wait for whoever watches.
const SIGHTS: usize = 1_024;

/// What was seen.
#[derive(Clone, Copy, Debug)]
pub struct Sight {
    /// When, on the clock of captured frames.
    pub at: Instant,
    /// Behind what the turn has sent, else behind what it has received and its programs have done.
    pub sent: bool,
    /// The connection; None: it is over, and this is the last sight.
    pub view: Option<FlowView>,
}

/// Who watches.
#[derive(Debug)]
pub struct Watcher {
    /// What was seen.
    pub sights: Receiver<Sight>,
    lost: Arc<AtomicU64>,
    over: Arc<AtomicBool>,
}

impl Watcher {
    /// Sights that were lost because they were not taken in time.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
}

/// The lcore's end. One an lcore; that which does not have the connection says nothing.
#[derive(Clone, Debug)]
pub struct Watch {
    key: FlowKey,
    /// What was told last.
    last: Option<FlowView>,
    to: SyncSender<Sight>,
    lost: Arc<AtomicU64>,
    over: Arc<AtomicBool>,
}

impl Watch {
    /// Both ends of a watch over the connection with this key.
    #[must_use]
    pub fn new(key: FlowKey) -> (Self, Watcher) {
        let (to, sights) = sync_channel(SIGHTS);
        let (lost, over) = (Arc::default(), Arc::default());
        let watcher = Watcher {
            sights,
            lost: Arc::clone(&lost),
            over: Arc::clone(&over),
        };
        let watch = Self {
            key,
            last: None,
            to,
            lost,
            over,
        };
        (watch, watcher)
    }

    /// Tells what is different; false: the watch is over.
    pub(super) fn look(&mut self, now: Instant, at: Instant, sent: bool, stack: &Stack) -> bool {
        if self.over.load(Ordering::Relaxed) {
            return false;
        }
        let view = stack.view_one(now, self.key.local, self.key.remote);
        match (&self.last, &view) {
            // Another lcore has it, or it is still to come.
            (None, None) => return true,
            (Some(last), Some(view)) if !is_news(last, view) => return true,
            _ => {}
        }
        self.last = view;
        let sight = Sight { at, sent, view };
        match self.to.try_send(sight) {
            Ok(()) => view.is_some(),
            Err(TrySendError::Full(_)) => {
                self.lost.fetch_add(1, Ordering::Relaxed);
                view.is_some()
            }
            Err(TrySendError::Disconnected(_)) => false,
        }
    }
}

/// Whether somebody who watches wants to know.
fn is_news(last: &FlowView, view: &FlowView) -> bool {
    let key = |view: &FlowView| {
        let facts = &view.facts;
        let states = (facts.state, view.stage, facts.error);
        let bytes = (
            facts.rx_total,
            view.consumed,
            facts.tx_total,
            facts.tx_acked,
        );
        (states, bytes, facts.retransmits, view.congestion_window)
    };
    key(last) != key(view)
}
