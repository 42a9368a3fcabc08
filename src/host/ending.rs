//! How a host ends, and what its programs see of it.

use super::clients::{Client, Standing};
use super::server::Server;
use crate::errno::Result;
use crate::ffi::end_signals::{self, EndSignals};
use crate::lcore::Mail;
use crate::{progress, telemetry};

impl Server {
    /// The program is at its end: what it holds ends as after its death. Its other threads still run, and must not see their
    /// host go: the sockets stay open.
    pub(super) fn say_farewell(&mut self) {
        for place in self.clients.places() {
            let Some(Client {
                socket, standing, ..
            }) = self.clients.remove(place)
            else {
                continue;
            };
            core::mem::forget(socket);
            if let Standing::Attached { owner, cell, pid } = standing {
                self.lcores.say(|| Mail::ProcessGone { owner, cell, pid });
                self.lcores.say(|| Mail::Detach { owner });
            }
        }
    }

    fn next_signal(&self) -> Result<Option<u32>> {
        self.signals.as_ref().map_or(Ok(None), EndSignals::next)
    }

    pub(super) fn signal(&mut self) -> Result<()> {
        while let Some(number) = self.next_signal()? {
            if end_signals::is_hangup(number) && !self.private {
                // What a daemon's SIGHUP means to logrotate.
                telemetry::log::reopen();
                continue;
            }
            let clients = self.clients.count();
            let again = self.life.is_ending();
            let obeyed = self.life.terminate(clients);
            crate::info!("signal={number} clients={clients} obeyed={obeyed}");
            if obeyed {
                self.hide();
                self.desert();
                if again {
                    // Whoever asks twice does not want to wait for peers that do not answer.
                    for family in self.families.iter_mut().flatten() {
                        family.abandon(&self.lcores);
                    }
                }
            }
        }
        Ok(())
    }

    /// Leaves the programs that are still there: their connections are reset, because a FIN would tell the peers that all
    /// was said. What their tables say of listeners stays, so that they can listen anew on the next host.
    fn desert(&mut self) {
        for place in self.clients.places() {
            let served = self.clients.at(place).map(|client| client.standing);
            if let Some(Standing::Attached { owner, .. }) = served
                && let Some(slot) = self.families.get_mut(owner.0 as usize)
                && let Some(family) = slot.take()
            {
                family.die();
                self.lcores.say(|| Mail::Desert { owner });
            }
            self.clients.remove(place);
        }
    }

    /// A private host that serves nobody has failed: no other program shall meet it.
    pub(super) fn resign(&mut self) {
        if self.private && self.running.is_none() {
            self.unfit = true;
            self.hide();
        }
    }

    /// Listens no more.
    pub(super) fn hide(&mut self) {
        self.way_back = None;
        if let Some(listener) = self.listener.take() {
            listener.close();
        }
    }

    /// The end: nobody finds us any more, the lcore stops, the programs that are left learn it.
    pub(super) fn close(&mut self) {
        self.hide();
        // Before its thread is waited for: it may be asking.
        self.desk.close();
        self.telemetry = None;
        if let Some(running) = self.running.take() {
            if self.inside.is_some() {
                // Whoever is at the loop leaves it within a turn.
                if !progress::retire() {
                    crate::error!("inline loop: event=does_not_stop");
                    core::mem::forget(running);
                }
                return;
            }
            self.lcores.say(|| Mail::Stop);
            if !running.wait(STOP_WAIT) {
                crate::error!("event=lcore_does_not_stop");
                // The port must stay mapped under a thread that still uses it.
                core::mem::forget(running);
            }
        }
    }
}

/// How long the lcores may take for its last turn.
const STOP_WAIT: core::time::Duration = core::time::Duration::from_secs(1);
