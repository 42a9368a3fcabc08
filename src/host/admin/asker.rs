//! Asks the control thread and the lcore, one slice at a time.

use core::net::SocketAddrV4;
use core::time::Duration;
use std::sync::Arc;
use std::sync::mpsc;

use super::desk::{Desk, Facts};
use crate::capture::Recorder;
use crate::lcore::{Counted, Latencies, Look, Mail, Mailbox, Seen, Watch};
use crate::stack::{FlowView, ListenerView, RestView};

/// Whoever has not answered within this has other troubles.
const PATIENCE: Duration = Duration::from_secs(2);

/// Why there is no answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::host) struct Silent(pub(super) &'static str);

/// Where questions go. One of a thread.
#[derive(Clone, Debug)]
pub(in crate::host) struct Asker {
    desk: Arc<Desk>,
    mailbox: Arc<Mailbox>,
    patience: Duration,
}

impl Asker {
    pub(in crate::host) const fn new(desk: Arc<Desk>, mailbox: Arc<Mailbox>) -> Self {
        Self {
            desk,
            mailbox,
            patience: PATIENCE,
        }
    }

    /// What the control thread knows.
    ///
    /// # Errors
    /// It does not answer.
    pub(super) fn facts(&self) -> Result<Facts, Silent> {
        let (to, from) = mpsc::sync_channel(1);
        self.desk.ask(to);
        from.recv_timeout(self.patience)
            .map_err(|_| Silent("the host's control thread does not answer"))
    }

    /// Begins a capture, or ends it.
    pub(super) fn capture(&self, recorder: Option<Box<Recorder>>) {
        self.mailbox.post(Mail::Capture { recorder });
    }

    /// Begins to watch a connection; it ends with the [`Watcher`](crate::lcore::Watcher).
    pub(super) fn watch(&self, watch: &Watch) {
        let watch = Box::new(watch.clone());
        self.mailbox.post(Mail::Watch { watch });
    }

    fn look(&self, at: Look) -> Result<Seen, Silent> {
        let (to, from) = mpsc::sync_channel(1);
        self.mailbox.post(Mail::Look { at, to });
        from.recv_timeout(self.patience)
            .map_err(|_| Silent("the lcore does not answer"))
    }

    /// What lcore and stack count.
    ///
    /// # Errors
    /// The lcore does not answer.
    pub(super) fn counters(&self) -> Result<Counted, Silent> {
        match self.look(Look::Counters)? {
            Seen::Counters(counted) => Ok(counted),
            _ => Err(MIXED_UP),
        }
    }

    /// How long things take in the lcore; measuring begins with the first question.
    ///
    /// # Errors
    /// The lcore does not answer.
    pub(super) fn latency(&self) -> Result<Latencies, Silent> {
        match self.look(Look::Latency)? {
            Seen::Latency(measured) => Ok(measured),
            _ => Err(MIXED_UP),
        }
    }

    /// Calls `visit` with each flow, until it says false.
    ///
    /// # Errors
    /// The lcore does not answer.
    pub(super) fn each_flow(&self, visit: &mut dyn FnMut(&FlowView) -> bool) -> Result<(), Silent> {
        let mut from = Some(0);
        while let Some(at) = from {
            let Seen::Flows(slice) = self.look(Look::Flows { from: at })? else {
                return Err(MIXED_UP);
            };
            if !slice.entries.iter().all(&mut *visit) {
                return Ok(());
            }
            from = slice.next;
        }
        Ok(())
    }

    /// The flow between two endpoints.
    ///
    /// # Errors
    /// The lcore does not answer.
    pub(super) fn flow(
        &self,
        local: SocketAddrV4,
        remote: SocketAddrV4,
    ) -> Result<Option<FlowView>, Silent> {
        match self.look(Look::Flow { local, remote })? {
            Seen::Flow(view) => Ok(view),
            _ => Err(MIXED_UP),
        }
    }

    /// Calls `visit` with each listener, until it says false.
    ///
    /// # Errors
    /// The lcore does not answer.
    pub(super) fn each_listener(
        &self,
        visit: &mut dyn FnMut(&ListenerView) -> bool,
    ) -> Result<(), Silent> {
        let mut from = Some(0);
        while let Some(at) = from {
            let Seen::Listeners(slice) = self.look(Look::Listeners { from: at })? else {
                return Err(MIXED_UP);
            };
            if !slice.entries.iter().all(&mut *visit) {
                return Ok(());
            }
            from = slice.next;
        }
        Ok(())
    }

    /// Calls `visit` with each connection in TIME-WAIT, until it says false.
    ///
    /// # Errors
    /// The lcore does not answer.
    pub(super) fn each_resting(
        &self,
        visit: &mut dyn FnMut(&RestView) -> bool,
    ) -> Result<(), Silent> {
        let mut from = Some(0);
        while let Some(at) = from {
            let Seen::Resting(slice) = self.look(Look::Resting { from: at })? else {
                return Err(MIXED_UP);
            };
            if !slice.entries.iter().all(&mut *visit) {
                return Ok(());
            }
            from = slice.next;
        }
        Ok(())
    }
}

/// Each question has a channel of its own, so this cannot be.
const MIXED_UP: Silent = Silent("the lcore answered another question");
