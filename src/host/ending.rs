//! How a host ends, and what its programs see of it.

use core::time::Duration;

use super::clients::{Client, Standing};
use super::life::Verdict;
use super::server::Server;
use crate::errno::Result;
use crate::ffi::end_signals::{self, EndSignals};
use crate::lcore::Mail;
use crate::stack::Owner;
use crate::time::Instant;
use crate::{progress, telemetry};

/// The end of a program with its host inside: pure decisions over what the control thread sees.
#[derive(Debug, Default)]
pub(super) struct Ending {
    since: Option<Instant>,
    /// Flows that have not ended by themselves were given up.
    gave_up: bool,
    /// Since when there is nothing left to say.
    silent_since: Option<Instant>,
}

/// What to do at the end of a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Farewell {
    /// Look again then.
    Wait(Instant),
    /// Give up what has not ended, and look again then.
    GiveUp(Instant),
    /// Close the port.
    Close,
}

impl Ending {
    pub(super) const fn has_begun(&self) -> bool {
        self.since.is_some()
    }

    /// What to do at `now`, with so many flows that have not ended, and so many in TIME-WAIT: the peers of those wait for our
    /// last acknowledgement.
    fn decide(&mut self, now: Instant, flows: usize, resting: usize) -> Farewell {
        let since = *self.since.get_or_insert(now);
        let next = now + LAST_LOOK;
        if flows == 0 || self.gave_up {
            let silent_since = *self.silent_since.get_or_insert(now);
            let nothing_left = resting == 0 && !self.gave_up;
            return if nothing_left || now.since(silent_since) >= LAST_FRAMES {
                Farewell::Close
            } else {
                Farewell::Wait(next)
            };
        }
        if now.since(since) < LAST_WAIT {
            return Farewell::Wait(next);
        }
        self.gave_up = true;
        Farewell::GiveUp(next)
    }
}

impl Server {
    /// What it has sent goes out and is acknowledged, both ways; nobody is there to wait long for the peers.
    pub(super) fn see_off(&mut self, now: Instant) -> Verdict {
        let flows = self.lcores.live_flows();
        let resting = self.lcores.flows().saturating_sub(flows);
        let Some(inside) = &mut self.inside else {
            return Verdict::End;
        };
        match inside.ending.decide(now, flows, resting) {
            Farewell::Wait(until) => Verdict::Stay(Some(until)),
            Farewell::GiveUp(until) => {
                crate::info!("event=gave_up flows={flows}");
                for family in self.families.iter().flatten() {
                    let owner = family.owner;
                    self.lcores.say(|| Mail::GiveUp { owner });
                }
                Verdict::Stay(Some(until))
            }
            Farewell::Close => Verdict::End,
        }
    }

    /// The program is at its end: what it holds ends as after its death. Its other threads still run, and must not see their
    /// host go: the sockets stay open. What its children hold, and whoever it was to become, ends with it. A program that has got its
    /// sockets in a message, or has come by itself, keeps what it holds until the host is gone, and then finds its listeners as it had
    /// them.
    pub(super) fn say_farewell(&mut self, now: Instant) {
        // Who is gone already keeps nothing. What ends the host, or fails, the next wait finds as well.
        let _ = self.wait(now, Some(now));
        let me = std::process::id();
        let families = self
            .clients
            .iter()
            .filter_map(|client| match client.standing {
                Standing::Attached { owner, pid, .. } if pid == me => Some(owner),
                _ => None,
            });
        let families: Vec<Owner> = families.collect();
        let mut kept = Vec::new();
        for place in self.clients.places() {
            let Some(Client {
                socket,
                standing,
                joined,
                ..
            }) = self.clients.remove(place)
            else {
                continue;
            };
            core::mem::forget(socket);
            if let Standing::Attached { owner, cell, pid } = standing {
                if joined || !families.contains(&owner) {
                    kept.push(owner);
                    continue;
                }
                self.lcores.say(|| Mail::ProcessGone { owner, cell, pid });
            }
        }
        for owner in families {
            if !kept.contains(&owner) {
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
const STOP_WAIT: Duration = Duration::from_secs(1);
/// How long a program's end waits for its last bytes and for the FINs of both ends; 100 ms with what follows.
const LAST_WAIT: Duration = Duration::from_millis(78);
/// How long the last frames may lie in the port: a peer on this machine (vhost) has to get a CPU to take them, and what it has
/// not taken goes with the port.
const LAST_FRAMES: Duration = Duration::from_millis(20);
/// Between two looks at them.
const LAST_LOOK: Duration = Duration::from_millis(2);

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Instant = Instant::from_millis;

    #[test]
    fn the_port_is_open_a_moment_longer_than_the_last_flow() {
        let mut ending = Ending::default();
        assert!(!ending.has_begun());
        assert_eq!(ending.decide(MS(0), 3, 0), Farewell::Wait(MS(2)));
        assert!(ending.has_begun());
        assert_eq!(ending.decide(MS(50), 1, 2), Farewell::Wait(MS(52)));
        assert_eq!(ending.decide(MS(60), 0, 3), Farewell::Wait(MS(62)));
        assert_eq!(ending.decide(MS(78), 0, 3), Farewell::Wait(MS(80)));
        assert_eq!(ending.decide(MS(80), 0, 3), Farewell::Close);
    }

    #[test]
    fn a_port_that_owes_nobody_an_acknowledgement_closes_at_once() {
        let mut ending = Ending::default();
        assert_eq!(ending.decide(MS(0), 1, 0), Farewell::Wait(MS(2)));
        assert_eq!(ending.decide(MS(2), 0, 0), Farewell::Close);
    }

    #[test]
    fn peers_that_do_not_close_are_given_up_within_a_tenth_of_a_second() {
        let mut ending = Ending::default();
        assert_eq!(ending.decide(MS(0), 3, 0), Farewell::Wait(MS(2)));
        assert_eq!(ending.decide(MS(76), 3, 0), Farewell::Wait(MS(78)));
        assert_eq!(ending.decide(MS(78), 3, 0), Farewell::GiveUp(MS(80)));
        assert_eq!(ending.decide(MS(80), 2, 0), Farewell::Wait(MS(82)));
        assert_eq!(ending.decide(MS(98), 2, 0), Farewell::Wait(MS(100)));
        assert_eq!(ending.decide(MS(100), 2, 0), Farewell::Close);
    }
}
