//! The control thread's loop.

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;

use rustix::event::Timespec;

use super::admin::{Desk, Sessions, Telemetry};
use super::clients::{Client, Clients, Ready, source};
use super::ending::Ending;
use super::family::Family;
use super::launch::Running;
use super::lcores::Lcores;
use super::life::{Life, Seen, Verdict};
use super::listener::Listener;
use super::status;
use super::watch::PortWatch;
use super::way_back::WayBack;
use crate::config::Config;
use crate::errno::{Errno, Result};
use crate::ffi::end_signals::EndSignals;
use crate::lcore::{Lcore, LcoreStatus};
use crate::time::{self, Instant};

/// Takes an lcore that no thread of the host runs, with what hangs up when it is dropped.
pub type HandOver = fn(Lcore, OwnedFd, &Config) -> Result<()>;

/// How a host is started.
#[derive(Debug)]
pub enum ServerConfig {
    /// By a program, whose end of this control socket says Hello with the config.
    Private {
        /// Our end.
        control: OwnedFd,
    },
    /// By a program inside itself, whose threads drive the loop.
    Inline {
        /// Our end of the program's control socket.
        control: OwnedFd,
        /// The plug-in beside the preloaded object.
        plugin: Option<PathBuf>,
        /// Takes the loop.
        hand_over: HandOver,
        /// Whether the program is at its end.
        is_ending: fn() -> bool,
        /// Readable when it is.
        end: OwnedFd,
    },
    /// By the system, with its config.
    System {
        /// The config.
        config: Box<Config>,
        /// Where it listens.
        socket: PathBuf,
    },
}

/// Why a host ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// It served nobody any more, or was asked to end.
    Done,
    /// Its lcore ended by a panic; the programs' connections are lost.
    LcoreLost,
    /// The interface under its port is gone; the programs' connections are lost.
    PortLost,
}

/// The control side of a host.
#[derive(Debug)]
pub struct Server {
    pub(super) private: bool,
    /// Could not serve its client, for a reason that may be the client's own (its limits, its privileges): the next
    /// program starts another host.
    pub(super) unfit: bool,
    pub(super) config: Option<Config>,
    pub(super) listener: Option<Listener>,
    /// A system's host of root only.
    pub(super) way_back: Option<WayBack>,
    pub(super) clients: Clients,
    pub(super) families: Vec<Option<Family>>,
    pub(super) lcores: Lcores,
    pub(super) running: Option<Running>,
    pub(super) watch: Option<PortWatch>,
    /// When to look at the lcores next.
    pub(super) look: Instant,
    /// Where tools ask this thread.
    pub(super) desk: Arc<Desk>,
    pub(super) sessions: Sessions,
    pub(super) telemetry: Option<Telemetry>,
    pub(super) life: Life,
    pub(super) signals: Option<EndSignals>,
    /// It runs inside a program, whose threads drive the loop.
    pub(super) inside: Option<Inside>,
}

/// What a host inside a program has besides.
#[derive(Debug)]
pub(super) struct Inside {
    pub(super) plugin: Option<PathBuf>,
    pub(super) hand_over: HandOver,
    is_ending: fn() -> bool,
    end: OwnedFd,
    pub(super) ending: Ending,
}

impl Server {
    /// A host that serves nobody yet. A private one binds its socket when it knows its config and opens its port when a
    /// program needs it; a system one does both here, so that whoever started it learns what is wrong.
    ///
    /// # Errors
    /// One line for the operator.
    pub fn new(
        config: ServerConfig,
        signals: Option<EndSignals>,
    ) -> core::result::Result<Self, String> {
        let no_descriptor = |errno: Errno| format!("no descriptor for the lcore: {errno}");
        let mut server = Self {
            private: !matches!(config, ServerConfig::System { .. }),
            unfit: false,
            config: None,
            listener: None,
            way_back: None,
            clients: Clients::default(),
            families: Vec::new(),
            lcores: Lcores::new().map_err(no_descriptor)?,
            running: None,
            watch: None,
            look: Instant::ZERO,
            desk: Arc::new(Desk::new().map_err(no_descriptor)?),
            sessions: Sessions::default(),
            telemetry: None,
            life: Life::new(
                matches!(config, ServerConfig::Private { .. }),
                core::time::Duration::ZERO,
                core::time::Duration::ZERO,
            ),
            signals,
            inside: None,
        };
        match config {
            ServerConfig::Private { control } => server.first(control)?,
            ServerConfig::Inline {
                control,
                plugin,
                hand_over,
                is_ending,
                end,
            } => {
                server.inside = Some(Inside {
                    plugin,
                    hand_over,
                    is_ending,
                    end,
                    ending: Ending::default(),
                });
                server.first(control)?;
            }
            ServerConfig::System { config, socket } => {
                server.adopt(*config);
                server.listen(socket)?;
                if let Err(fault) = server.open() {
                    server.hide();
                    return Err(fault.text);
                }
            }
        }
        Ok(server)
    }

    /// The program that starts a private host.
    fn first(&mut self, control: OwnedFd) -> core::result::Result<(), String> {
        let (client, user) = Client::new(control, time::monotonic())
            .map_err(|errno| format!("control descriptor: {errno}"))?;
        if self.may_attach(user) {
            self.clients.add(client);
        }
        Ok(())
    }

    /// What the first lcore counts.
    #[must_use]
    pub fn status(&self) -> &Arc<LcoreStatus> {
        &self.lcores.first().status
    }

    /// Serves until the host's life is over.
    ///
    /// # Errors
    /// What poll or accept say when they cannot work any more.
    pub fn run(&mut self) -> Result<End> {
        loop {
            let now = time::monotonic();
            let guest = self.end_silent_guests(now);
            let heir = self.end_silent_heirs(now);
            let until = match self.tick(now) {
                Verdict::End => {
                    self.close();
                    return Ok(End::Done);
                }
                Verdict::Stay(until) => until,
            };
            if self.port_is_lost(now) {
                self.close();
                return Ok(End::PortLost);
            }
            let looks = self.watch.as_ref().map(PortWatch::next);
            if let Some(listener) = &mut self.listener {
                listener.look(now);
            }
            let found = self.listener.as_ref().map(Listener::next);
            let held_up = self.look_after_lcore(now);
            let until = until.into_iter().chain(looks).chain(guest).chain(heir);
            let until = until.chain(found).chain(held_up).min();
            if let Some(end) = self.wait(now, until)? {
                self.close();
                return Ok(end);
            }
        }
    }

    /// Looks after families and life at `now`.
    fn tick(&mut self, now: Instant) -> Verdict {
        for owner in self.lcores.take_ended() {
            let Some(place) = self.families.get_mut(owner.0 as usize) else {
                continue;
            };
            // The number is free when no lcore knows the family any more.
            if let Some(family) = place {
                family.ended += 1;
                if family.ended >= self.lcores.count() {
                    *place = None;
                }
            }
        }
        let mut overdue = None;
        for family in self.families.iter_mut().flatten() {
            let Some(left_at) = family.left_at.filter(|_| !family.abandoned) else {
                continue;
            };
            let end = left_at + self.life.linger_max();
            if now >= end {
                family.abandon(&self.lcores);
            } else {
                overdue = Some(overdue.map_or(end, |other: Instant| other.min(end)));
            }
        }
        let seen = Seen {
            clients: self.clients.count(),
            families: self.families.iter().flatten().count(),
            flows: self.lcores.flows(),
        };
        if let Some(inside) = self.inside.as_ref().filter(|_| self.running.is_some()) {
            if !(inside.is_ending)() {
                // As long as the program: it is one of the clients.
                return Verdict::Stay(None);
            }
            if !inside.ending.has_begun() {
                self.say_farewell(now);
            }
            return self.see_off(now);
        }
        if self.private && (self.unfit || self.config.is_none()) && seen.clients == 0 {
            return Verdict::End;
        }
        match self.life.decide(now, seen) {
            Verdict::Stay(until) => Verdict::Stay(until.into_iter().chain(overdue).min()),
            end => end,
        }
    }

    /// Waits for something to do, and does it. Some = the host ends.
    pub(super) fn wait(&mut self, now: Instant, until: Option<Instant>) -> Result<Option<End>> {
        let mut sources = Vec::new();
        let mut order = Vec::new();
        self.clients.watch(&mut sources, &mut order);
        let own = [
            self.listener.as_ref().map(AsFd::as_fd),
            self.way_back.as_ref().map(AsFd::as_fd),
            self.signals.as_ref().map(AsFd::as_fd),
            Some(self.lcores.first().mailbox.news().as_fd()),
            Some(self.desk.bell().as_fd()),
            // Once is enough: the time is looked at from then on.
            self.inside
                .as_ref()
                .filter(|inside| !inside.ending.has_begun())
                .map(|inside| inside.end.as_fd()),
        ];
        let first = sources.len();
        sources.extend(own.iter().flatten().map(|fd| source(*fd)));
        let ends = self.running.iter().flat_map(Running::ends);
        sources.extend(ends.map(source));
        let limit = until.map(|until| timespec(until.since(now)));
        match rustix::event::poll(&mut sources, limit.as_ref()) {
            Ok(_) => {}
            Err(Errno::INTR) => return Ok(None),
            Err(errno) => return Err(errno),
        }
        let rang: Vec<bool> = sources
            .iter()
            .map(|source| !source.revents().is_empty())
            .collect();
        let ready: Vec<Ready> = order
            .iter()
            .zip(&rang)
            .filter_map(|(ready, rang)| rang.then_some(*ready))
            .collect();
        let mut rest = rang.iter().skip(first).copied();
        let [listener, way_back, signals, news, desk, _] =
            own.map(|fd| fd.is_some() && rest.next().unwrap_or(false));
        // One lcore less is none: its flows are gone, and the others' frames with them.
        let end = rest.any(|ended| ended);
        drop(sources);
        if news {
            // What it is the next tick sees.
            self.lcores.first().mailbox.read_news();
        }
        // Messages before ends: a client's last words were sent before it went.
        for one in &ready {
            if let Ready::Socket(place) = one {
                self.talk(*place, MESSAGES_MAX);
            }
        }
        for one in &ready {
            if let Ready::Process(place) = one {
                // A dead process says no more than what is in its socket; what still comes is another's, who has it too.
                self.talk(*place, LAST_WORDS_MAX);
                self.gone(*place);
            }
        }
        if listener {
            self.accept();
        }
        if way_back {
            self.accept_back();
        }
        if desk {
            self.desk.tell(|| self.facts());
        }
        if signals {
            self.signal()?;
        }
        if end {
            for family in self.families.iter().flatten() {
                family.die();
            }
            return Ok(Some(End::LcoreLost));
        }
        Ok(None)
    }

    pub(super) fn status_text(&self) -> String {
        let families = self.families.iter().flatten().count();
        let config = self.config.as_ref();
        let running = self.running.as_ref();
        status::text(&status::Facts {
            private: self.private,
            config: config.map(|config| config.file.as_str()),
            port: config.map(|config| config.port.to_string()),
            cpus: running
                .filter(|_| self.inside.is_none())
                .map(|running| running.cpus().map(|cpu| cpu.0).collect())
                .unwrap_or_default(),
            inline: self.inside.is_some(),
            clients: self.clients.count(),
            families,
            port_stats: running.map(Running::port_stats),
            counters: running.and_then(|_| status::ask(&self.lcores)),
        })
    }

    /// Remembers as which user an attached process runs.
    pub(super) fn note_user(&mut self, process: Option<u32>) {
        if let (Some(way_back), Some(process)) = (&mut self.way_back, process) {
            way_back.note(process);
        }
    }
}

pub(super) fn own_path() -> String {
    std::env::current_exe().map_or_else(|_| "knetd".to_owned(), |path| path.display().to_string())
}

pub(super) fn timespec(span: core::time::Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(span.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(span.subsec_nanos()),
    }
}

/// Messages of one client that are served before the next client's.
const MESSAGES_MAX: usize = 16;
/// Messages of a dead client that are served: more than a socket holds.
const LAST_WORDS_MAX: usize = 1024;
