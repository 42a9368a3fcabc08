//! The open port and the lcores behind it, as the control thread looks after them.

use std::sync::Arc;

use super::admin::{Asker, Telemetry};
use super::clients::Standing;
use super::fault::Fault;
use super::launch;
use super::server::Server;
use super::watch::{News, PortWatch};
use super::{open, policy};
use crate::errno::Errno;
use crate::lcore::{self, Mail};
use crate::time::{self, Instant};

impl Server {
    /// Opens the port and starts the lcore, unless that is done.
    pub(super) fn open(&mut self) -> Result<(), Fault> {
        if self.running.is_some() {
            return Ok(());
        }
        let Some(config) = &self.config else {
            let text = "the host has no config".to_owned();
            return Err(Fault::new(text, Errno::INVAL));
        };
        let mut program: Vec<u32> = self
            .clients
            .iter()
            .filter_map(|client| client.process)
            .flat_map(|process| lcore::cpus_of(Some(process)))
            .collect();
        program.sort_unstable();
        program.dedup();
        let wanted = launch::Wanted {
            config,
            private: self.private,
            program: &program,
            inside: self.inside.as_ref(),
        };
        let running =
            launch::start(&wanted, &self.lcores).map_err(|text| Fault::new(text, Errno::NODEV))?;
        self.running = Some(running);
        if !self.private {
            let share = policy::share(config, open::memory_available(config));
            let share = share.part(self.lcores.count());
            self.lcores.say(|| Mail::Share { share });
        }
        self.watch = config
            .port
            .interface()
            .and_then(|name| PortWatch::new(name, time::monotonic()));
        let asker = Asker::new(Arc::clone(&self.desk), self.lcores.mailboxes());
        self.telemetry = Telemetry::start(config, &asker);
        for family in self.families.iter_mut().flatten() {
            family.introduce(&self.lcores);
        }
        for client in self.clients.iter() {
            if let Standing::Attached { owner, cell, .. } = client.standing {
                self.lcores.say(|| Mail::Process { owner, cell });
            }
        }
        Ok(())
    }

    /// An lcore that shares its CPU with a client yields.
    pub(super) fn neighbour(&self, process: Option<u32>) {
        let Some(running) = self.running.as_ref().filter(|_| self.inside.is_none()) else {
            return;
        };
        let cpus = process.map(|process| lcore::cpus_of(Some(process)));
        let cpus = cpus.unwrap_or_default();
        for (seat, cpu) in self.lcores.iter().zip(running.cpus()) {
            if cpus.contains(&cpu.0) {
                seat.mailbox.post(Mail::Neighbour);
            }
        }
    }

    /// Looks after the interface under the port. True when it is gone: no connection can go on, so all of them are reset
    /// now and not by their time-outs, and a new socket finds a host that opens what is there then.
    pub(super) fn port_is_lost(&mut self, now: Instant) -> bool {
        let Some(watch) = &mut self.watch else {
            return false;
        };
        let before = watch.name().to_owned();
        for news in watch.look(now) {
            match news {
                News::Gone => {
                    crate::error!(
                        "port={before} event=gone action=\"every connection is reset, the host ends\""
                    );
                    for family in self.families.iter().flatten() {
                        family.die();
                    }
                    return true;
                }
                News::Mtu(mtu) => {
                    crate::warn!("port={before} event=mtu mtu={mtu}");
                    self.lcores.say(|| Mail::Mtu { mtu });
                }
                News::Renamed(name) => crate::warn!("port={before} event=renamed name={name}"),
                News::Up(up) => crate::warn!("port={before} event=link up={up}"),
            }
        }
        false
    }

    /// A program of another user may make the eventfd of its sleeper blocking and hold the lcore up in its wake-up: the
    /// write is ended, and the family is not woken again. Returns when to look next.
    pub(super) fn look_after_lcore(&mut self, now: Instant) -> Option<Instant> {
        if self.private || self.running.is_none() || self.clients.count() == 0 {
            return None;
        }
        if now >= self.look {
            self.lcores.free_held_up();
            self.look = now + LCORE_LOOK;
        }
        Some(self.look)
    }
}

/// Between two looks at the lcore of a host that serves other users.
const LCORE_LOOK: core::time::Duration = core::time::Duration::from_secs(1);
