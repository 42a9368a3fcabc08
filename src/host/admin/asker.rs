//! Asks the control thread and the lcores, one slice at a time.

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
    /// Of the lcores, the first one first.
    mailboxes: Vec<Arc<Mailbox>>,
    patience: Duration,
}

impl Asker {
    pub(in crate::host) const fn new(desk: Arc<Desk>, mailboxes: Vec<Arc<Mailbox>>) -> Self {
        Self {
            desk,
            mailboxes,
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

    /// How many lcores there are.
    pub(super) fn lcores(&self) -> usize {
        self.mailboxes.len()
    }

    /// Begins a capture, with a recorder for each lcore, or ends it.
    pub(super) fn capture(&self, recorders: Vec<Recorder>) {
        let mut recorders = recorders.into_iter();
        for mailbox in &self.mailboxes {
            let recorder = recorders.next().map(Box::new);
            mailbox.post(Mail::Capture { recorder });
        }
    }

    /// Begins to watch a connection, at each lcore: one of them has it. It ends with the [`Watcher`](crate::lcore::Watcher).
    pub(super) fn watch(&self, watch: &Watch) {
        for mailbox in &self.mailboxes {
            let watch = Box::new(watch.clone());
            mailbox.post(Mail::Watch { watch });
        }
    }

    fn look(&self, mailbox: &Mailbox, at: Look) -> Result<Seen, Silent> {
        let (to, from) = mpsc::sync_channel(1);
        mailbox.post(Mail::Look { at, to });
        from.recv_timeout(self.patience)
            .map_err(|_| Silent("the lcore does not answer"))
    }

    /// What each lcore and its stack count.
    ///
    /// # Errors
    /// An lcore does not answer.
    pub(super) fn counters_each(&self) -> Result<Vec<Counted>, Silent> {
        let mailboxes = self.mailboxes.iter();
        mailboxes
            .map(|mailbox| match self.look(mailbox, Look::Counters)? {
                Seen::Counters(counted) => Ok(counted),
                _ => Err(MIXED_UP),
            })
            .collect()
    }

    /// What all lcores and stacks count.
    ///
    /// # Errors
    /// An lcore does not answer.
    pub(super) fn counters(&self) -> Result<Counted, Silent> {
        let mut sum = Counted::default();
        for counted in self.counters_each()? {
            sum.add(&counted);
        }
        Ok(sum)
    }

    /// How long things take in the lcores; measuring begins with the first question.
    ///
    /// # Errors
    /// An lcore does not answer.
    pub(super) fn latency(&self) -> Result<Latencies, Silent> {
        let mut sum = Latencies::default();
        for mailbox in &self.mailboxes {
            match self.look(mailbox, Look::Latency)? {
                Seen::Latency(measured) => sum.add(&measured),
                _ => return Err(MIXED_UP),
            }
        }
        Ok(sum)
    }

    /// Calls `visit` with each flow, until it says false.
    ///
    /// # Errors
    /// The lcore does not answer.
    pub(super) fn each_flow(&self, visit: &mut dyn FnMut(&FlowView) -> bool) -> Result<(), Silent> {
        for mailbox in &self.mailboxes {
            let mut from = Some(0);
            while let Some(at) = from {
                let Seen::Flows(slice) = self.look(mailbox, Look::Flows { from: at })? else {
                    return Err(MIXED_UP);
                };
                if !slice.entries.iter().all(&mut *visit) {
                    return Ok(());
                }
                from = slice.next;
            }
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
        for mailbox in &self.mailboxes {
            match self.look(mailbox, Look::Flow { local, remote })? {
                Seen::Flow(None) => {}
                Seen::Flow(view) => return Ok(view),
                _ => return Err(MIXED_UP),
            }
        }
        Ok(None)
    }

    /// Calls `visit` with each listener, until it says false. The first lcore has all of them.
    ///
    /// # Errors
    /// The lcore does not answer.
    pub(super) fn each_listener(
        &self,
        visit: &mut dyn FnMut(&ListenerView) -> bool,
    ) -> Result<(), Silent> {
        let mut from = Some(0);
        while let (Some(at), Some(mailbox)) = (from, self.mailboxes.first()) {
            let Seen::Listeners(slice) = self.look(mailbox, Look::Listeners { from: at })? else {
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
        for mailbox in &self.mailboxes {
            let mut from = Some(0);
            while let Some(at) = from {
                let Seen::Resting(slice) = self.look(mailbox, Look::Resting { from: at })? else {
                    return Err(MIXED_UP);
                };
                if !slice.entries.iter().all(&mut *visit) {
                    return Ok(());
                }
                from = slice.next;
            }
        }
        Ok(())
    }
}

/// Each question has a channel of its own, so this cannot be.
const MIXED_UP: Silent = Silent("the lcore answered another question");
