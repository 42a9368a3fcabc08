//! The control thread's loop, and what each message means.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;

use rustix::event::Timespec;

use super::admin::{Asker, Desk, Sessions, Telemetry};
use super::clients::{Client, Clients, Ready, Standing, source};
use super::family::Family;
use super::launch::{self, Running};
use super::life::{Life, Seen, Verdict};
use super::socket::{self, Received};
use super::status;
use super::watch::{News, PortWatch};
use super::way_back::WayBack;
use super::{open, policy};
use crate::BUILD_VERSION;
use crate::channel::ABI;
use crate::channel::layout::{EPOLLS, SLOTS};
use crate::channel::message::{Kind, Message, MessageError};
use crate::channel::sync::Ordering;
use crate::config::{Config, Faults, OnError};
use crate::errno::{Errno, Result};
use crate::ffi::end_signals::{self, EndSignals};
use crate::lcore::{self, Lcore, LcoreStatus, Mail, Mailbox};
use crate::progress;
use crate::readiness;
use crate::stack::Owner;
use crate::stack::rate_limit::RateLimit;
use crate::telemetry;
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

/// A message that a client cannot be served.
pub(super) struct Fault {
    pub(super) text: String,
    pub(super) errno: Errno,
    /// What the config of the fault says, when it is not the one that we run.
    on_error: Option<OnError>,
}

impl Fault {
    pub(super) const fn new(text: String, errno: Errno) -> Self {
        Self {
            text,
            errno,
            on_error: None,
        }
    }

    /// It, as it is.
    pub(super) fn message(&self) -> Message<'_> {
        Message {
            kind: Kind::Fault,
            a: self.errno.raw_os_error().unsigned_abs(),
            b: 0,
            text: &self.text,
        }
    }

    pub(super) fn of_config(faults: &Faults) -> Self {
        Self {
            on_error: Some(faults.on_error),
            ..Self::new(faults.one_line(), Errno::INVAL)
        }
    }
}

/// What came of a Hello.
pub(super) enum Greeted {
    /// The program is attached, or went away.
    Attached,
    /// Its own threads drive.
    Inline,
}

/// The control side of a host.
#[derive(Debug)]
pub struct Server {
    pub(super) private: bool,
    /// Could not serve its client, for a reason that may be the client's own (its limits, its privileges): the next
    /// program starts another host.
    pub(super) unfit: bool,
    pub(super) config: Option<Config>,
    pub(super) listener: Option<(OwnedFd, PathBuf)>,
    /// A system's host of root only.
    pub(super) way_back: Option<WayBack>,
    pub(super) clients: Clients,
    pub(super) families: Vec<Option<Family>>,
    pub(super) mailbox: Arc<Mailbox>,
    pub(super) status: Arc<LcoreStatus>,
    pub(super) running: Option<Running>,
    watch: Option<PortWatch>,
    /// When to look at the lcore next, and the wake-up that it was writing at the last look.
    look: Instant,
    writing: Option<(u64, u32)>,
    /// Where tools ask this thread.
    pub(super) desk: Arc<Desk>,
    pub(super) sessions: Sessions,
    telemetry: Option<Telemetry>,
    /// Log lines that clients can provoke.
    pub(super) warnings: RateLimit,
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
    /// Since when it is.
    ending_since: Option<Instant>,
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
            mailbox: Arc::new(Mailbox::new().map_err(no_descriptor)?),
            status: Arc::new(LcoreStatus::default()),
            running: None,
            watch: None,
            look: Instant::ZERO,
            writing: None,
            desk: Arc::new(Desk::new().map_err(no_descriptor)?),
            sessions: Sessions::default(),
            telemetry: None,
            warnings: RateLimit::new(1, 16),
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
                    ending_since: None,
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

    /// What the lcore counts.
    #[must_use]
    pub fn status(&self) -> &Arc<LcoreStatus> {
        &self.status
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
            let held_up = self.look_after_lcore(now);
            let until = until.into_iter().chain(looks).chain(guest).chain(heir);
            let until = until.chain(held_up).min();
            if let Some(end) = self.wait(now, until)? {
                self.close();
                return Ok(end);
            }
        }
    }

    /// Looks after the interface under the port. True when it is gone: no connection can go on, so all of them are reset
    /// now and not by their time-outs, and a new socket finds a host that opens what is there then.
    fn port_is_lost(&mut self, now: Instant) -> bool {
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
                    self.mailbox.post(Mail::Mtu { mtu });
                }
                News::Renamed(name) => crate::warn!("port={before} event=renamed name={name}"),
                News::Up(up) => crate::warn!("port={before} event=link up={up}"),
            }
        }
        false
    }

    /// A program of another user may make the eventfd of its sleeper blocking and hold the lcore up in its wake-up: the
    /// write is ended, and the family is not woken again. Returns when to look next.
    fn look_after_lcore(&mut self, now: Instant) -> Option<Instant> {
        if self.private || self.running.is_none() || self.clients.count() == 0 {
            return None;
        }
        if now >= self.look {
            let writing = self.status.held_up();
            if let Some((_, thread)) = writing.filter(|_| writing == self.writing) {
                end_signals::interrupt(thread);
            }
            self.writing = writing;
            self.look = now + LCORE_LOOK;
        }
        Some(self.look)
    }

    /// Looks after families and life at `now`.
    fn tick(&mut self, now: Instant) -> Verdict {
        for owner in self.status.take_ended() {
            if let Some(place) = self.families.get_mut(owner.0 as usize) {
                *place = None;
            }
        }
        let mut overdue = None;
        for family in self.families.iter_mut().flatten() {
            let Some(left_at) = family.left_at.filter(|_| !family.abandoned) else {
                continue;
            };
            let end = left_at + self.life.linger_max();
            if now >= end {
                family.abandon(&self.mailbox);
            } else {
                overdue = Some(overdue.map_or(end, |other: Instant| other.min(end)));
            }
        }
        let seen = Seen {
            clients: self.clients.count(),
            families: self.families.iter().flatten().count(),
            flows: self.status.flows.load(Ordering::Relaxed),
        };
        if let Some(inside) = self.inside.as_mut().filter(|_| self.running.is_some()) {
            if !(inside.is_ending)() {
                // As long as the program: it is one of the clients.
                return Verdict::Stay(None);
            }
            // What it has sent goes out; nobody is there to wait for the peers.
            let first = inside.ending_since.is_none();
            let since = *inside.ending_since.get_or_insert(now);
            if first {
                self.say_farewell();
            }
            let flows = self.status.live_flows.load(Ordering::Relaxed);
            if flows == 0 || now.since(since) >= LAST_WAIT {
                return Verdict::End;
            }
            return Verdict::Stay(Some(now + LAST_LOOK));
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
    fn wait(&mut self, now: Instant, until: Option<Instant>) -> Result<Option<End>> {
        let mut sources = Vec::new();
        let mut order = Vec::new();
        self.clients.watch(&mut sources, &mut order);
        let own = [
            self.listener.as_ref().map(|(fd, _)| fd.as_fd()),
            self.way_back.as_ref().map(AsFd::as_fd),
            self.signals.as_ref().map(AsFd::as_fd),
            self.running.as_ref().map(Running::end),
            Some(self.mailbox.news().as_fd()),
            Some(self.desk.bell().as_fd()),
            // Once is enough: the time is looked at from then on.
            self.inside
                .as_ref()
                .filter(|inside| inside.ending_since.is_none())
                .map(|inside| inside.end.as_fd()),
        ];
        let first = sources.len();
        sources.extend(own.iter().flatten().map(|fd| source(*fd)));
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
        let [listener, way_back, signals, end, news, desk, _] =
            own.map(|fd| fd.is_some() && rest.next().unwrap_or(false));
        drop(sources);
        if news {
            // What it is the next tick sees.
            self.mailbox.read_news();
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

    /// The program is at its end: what it holds ends as after its death. Its other threads still run, and must not see their
    /// host go: the sockets stay open.
    fn say_farewell(&mut self) {
        for place in self.clients.places() {
            let Some(Client {
                socket, standing, ..
            }) = self.clients.remove(place)
            else {
                continue;
            };
            core::mem::forget(socket);
            if let Standing::Attached { owner, cell, pid } = standing {
                self.mailbox.post(Mail::ProcessGone { owner, cell, pid });
                self.mailbox.post(Mail::Detach { owner });
            }
        }
    }

    fn next_signal(&self) -> Result<Option<u32>> {
        self.signals.as_ref().map_or(Ok(None), EndSignals::next)
    }

    fn signal(&mut self) -> Result<()> {
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
                        family.abandon(&self.mailbox);
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
                self.mailbox.post(Mail::Desert { owner });
            }
            self.clients.remove(place);
        }
    }

    /// Serves up to `limit` messages that wait at a client; ends it when it is gone.
    fn talk(&mut self, place: usize, limit: usize) {
        for _ in 0..limit {
            let Some(client) = self.clients.at(place) else {
                return;
            };
            match socket::receive(client.socket.as_fd()) {
                Ok(Some(received)) => self.message(place, received),
                Ok(None) => return,
                Err(_) => return self.gone(place),
            }
        }
    }

    fn message(&mut self, place: usize, mut received: Received) {
        let mut descriptors = core::mem::take(&mut received.descriptors).into_iter();
        let message = match Message::parse(received.bytes()) {
            Ok(message) => message,
            Err(error) => {
                if let MessageError::Abi(theirs) = error {
                    let text = format!(
                        "the program speaks channel version {theirs}, the host {} (build {BUILD_VERSION}) \
                         {ABI}; restart the program, or install both from one build",
                        own_path()
                    );
                    self.refuse(place, &Fault::new(text, Errno::PROTO));
                }
                return self.gone(place);
            }
        };
        let Some(client) = self.clients.at(place) else {
            return;
        };
        match (message.kind, client.standing) {
            (Kind::Hello, Standing::New) => match self.hello(place, &message, descriptors.next()) {
                Ok(Greeted::Attached) => {}
                Ok(Greeted::Inline) => {
                    self.answer(place, &Message::new(Kind::Inline, 0, 0), &[]);
                    // It needs no host but its own; another program brings its own config.
                    self.unfit = true;
                }
                Err(fault) => {
                    self.refuse(place, &fault);
                    if self.families.iter().all(Option::is_none) {
                        self.resign();
                    }
                    self.gone(place);
                }
            },
            (Kind::Status, Standing::New) => {
                let text = self.status_text();
                let message = Message {
                    kind: Kind::Status,
                    a: 0,
                    b: 0,
                    text: &text,
                };
                self.answer(place, &message, &[]);
            }
            (Kind::Query, Standing::New) => {
                self.query(place, message.text, descriptors.next());
            }
            (Kind::Open, Standing::Attached { .. }) => match self.open() {
                Ok(()) => self.answer(place, &Message::new(Kind::Opened, 0, 0), &[]),
                Err(fault) => {
                    self.refuse(place, &fault);
                    self.resign();
                    // It stays on the kernel and does not come back to us.
                    self.gone(place);
                }
            },
            (Kind::Waiter, Standing::Attached { owner, .. }) => {
                // A thread sleeps for the first time: the program is what it will be.
                let process = client.process;
                self.note_user(process);
                self.waiter(owner, message.a, descriptors.next());
            }
            (Kind::Herald, Standing::Attached { owner, .. }) => {
                let known = self
                    .family(owner)
                    .and_then(|family| family.herald(message.a));
                let message = Message::new(Kind::Herald, message.a, 0);
                let known = known.as_ref().map(AsFd::as_fd);
                self.answer(place, &message, known.as_slice());
            }
            (Kind::Fork, Standing::Attached { owner, pid, .. }) => {
                let same = client.same_namespace;
                self.fork(owner, pid, &message, descriptors.next(), same);
            }
            (Kind::Registry, Standing::Attached { owner, .. }) => {
                if let Some(family) = self.family(owner)
                    && family.registry.is_none()
                {
                    family.registry = descriptors.next();
                }
            }
            (Kind::Resume, Standing::Attached { owner, cell, .. }) => {
                self.resume(place, owner, cell, &message, received.user);
            }
            (Kind::Child, Standing::Attached { owner, cell, .. }) if message.a == cell => {
                self.child(place, owner, cell, message.b);
            }
            (kind, standing) => {
                if self.warnings.allow(time::monotonic()) {
                    crate::warn!("message={kind:?} standing={standing:?} action=hang_up");
                }
                self.gone(place);
            }
        }
    }

    /// An lcore that shares its CPU with a client yields.
    pub(super) fn neighbour(&self, process: Option<u32>) {
        let Some(running) = self.running.as_ref().filter(|_| self.inside.is_none()) else {
            return;
        };
        let cpus = process.map(|process| lcore::cpus_of(Some(process)));
        if cpus.is_some_and(|cpus| cpus.contains(&running.cpu().0)) {
            self.mailbox.post(Mail::Neighbour);
        }
    }

    /// Opens the port and starts the lcore, unless that is done.
    fn open(&mut self) -> core::result::Result<(), Fault> {
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
        let running = launch::start(&wanted, &self.mailbox, &self.status)
            .map_err(|text| Fault::new(text, Errno::NODEV))?;
        self.running = Some(running);
        if !self.private {
            let share = policy::share(config, open::memory_available(config));
            self.mailbox.post(Mail::Share { share });
        }
        self.watch = config
            .port
            .interface()
            .and_then(|name| PortWatch::new(name, time::monotonic()));
        let asker = Asker::new(Arc::clone(&self.desk), Arc::clone(&self.mailbox));
        self.telemetry = Telemetry::start(config, &asker);
        for family in self.families.iter_mut().flatten() {
            family.introduce(&self.mailbox);
        }
        for client in self.clients.iter() {
            if let Standing::Attached { owner, cell, .. } = client.standing {
                self.mailbox.post(Mail::Process { owner, cell });
            }
        }
        Ok(())
    }

    fn status_text(&self) -> String {
        let families = self.families.iter().flatten().count();
        let config = self.config.as_ref();
        let running = self.running.as_ref();
        status::text(&status::Facts {
            private: self.private,
            config: config.map(|config| config.file.as_str()),
            port: config.map(|config| config.port.to_string()),
            cpu: running
                .filter(|_| self.inside.is_none())
                .map(|running| running.cpu().0),
            inline: self.inside.is_some(),
            clients: self.clients.count(),
            families,
            port_stats: running.map(Running::port_stats),
            counters: running.and_then(|_| status::ask(&self.mailbox)),
        })
    }

    pub(super) fn family(&mut self, owner: Owner) -> Option<&mut Family> {
        self.families.get_mut(owner.0 as usize)?.as_mut()
    }

    fn waiter(&mut self, owner: Owner, slot: u32, eventfd: Option<OwnedFd>) {
        let Some(eventfd) = eventfd else {
            return self.refuse_waiter(slot, "no descriptor");
        };
        if slot >= SLOTS + EPOLLS {
            return self.refuse_waiter(slot, "no such slot");
        }
        let eventfd = socket::checked_eventfd(eventfd);
        if let (Some(epoll), Ok(eventfd)) = (readiness::herald::epoll(slot), &eventfd)
            && let Some(family) = self.family(owner)
        {
            family.keep_herald(epoll, eventfd);
        }
        match eventfd {
            Ok(eventfd) if self.running.is_some() => self.mailbox.post(Mail::Waiter {
                owner,
                slot,
                eventfd,
            }),
            Ok(eventfd) => {
                if let Some(family) = self.family(owner) {
                    family.keep_waiter(slot, eventfd);
                }
            }
            Err(errno) => self.refuse_waiter(slot, &errno.to_string()),
        }
    }

    fn refuse_waiter(&mut self, slot: u32, reason: &str) {
        if self.warnings.allow(time::monotonic()) {
            crate::warn!("message=Waiter slot={slot} reason=\"{reason}\"");
        }
    }

    /// A client is gone: what only its process held ends.
    pub(super) fn gone(&mut self, place: usize) {
        let Some(client) = self.clients.remove(place) else {
            return;
        };
        let Standing::Attached { owner, cell, pid } = client.standing else {
            return;
        };
        // Its slots are those of the program that it has executed.
        let pid = if self.is_succeeded(owner, pid) {
            0
        } else {
            pid
        };
        let running = self.running.is_some();
        let Some(family) = self.family(owner) else {
            return;
        };
        family.clients = family.clients.saturating_sub(1);
        let last = family.clients == 0;
        if running {
            if last {
                family.left_at = Some(time::monotonic());
            }
            self.mailbox.post(Mail::ProcessGone { owner, cell, pid });
            if last {
                self.mailbox.post(Mail::Detach { owner });
            }
        } else if last {
            if let Some(slot) = self.families.get_mut(owner.0 as usize) {
                *slot = None;
            }
        } else {
            lcore::release_process(&family.segments, cell);
        }
    }

    fn refuse(&mut self, place: usize, fault: &Fault) {
        let ours = || self.config.as_ref().map(|config| config.on_error);
        let fails = fault.on_error.or_else(ours) == Some(OnError::Fail);
        let end = if fails {
            "refused, as common.on_error says"
        } else {
            "kernel sockets are used"
        };
        let text = format!("{}; {end}", fault.text);
        crate::error!("event=refused reason=\"{text}\"");
        let message = Message {
            b: u32::from(fails),
            text: &text,
            ..fault.message()
        };
        self.answer(place, &message, &[]);
    }

    pub(super) fn answer(
        &mut self,
        place: usize,
        message: &Message<'_>,
        descriptors: &[BorrowedFd<'_>],
    ) {
        let Some(client) = self.clients.at(place) else {
            return;
        };
        if let Err(errno) = socket::send(client.socket.as_fd(), message, descriptors) {
            crate::warn!("message={:?} event=not_sent errno={errno}", message.kind);
            self.gone(place);
        }
    }

    /// A private host that serves nobody has failed: no other program shall meet it.
    fn resign(&mut self) {
        if self.private && self.running.is_none() {
            self.unfit = true;
            self.hide();
        }
    }

    /// Remembers as which user an attached process runs.
    pub(super) fn note_user(&mut self, process: Option<u32>) {
        if let (Some(way_back), Some(process)) = (&mut self.way_back, process) {
            way_back.note(process);
        }
    }

    /// Listens no more.
    fn hide(&mut self) {
        self.way_back = None;
        if let Some((_, path)) = self.listener.take()
            && let Err(errno) = rustix::fs::unlink(&path)
        {
            crate::warn!("socket={} event=not_removed errno={errno}", path.display());
        }
    }

    /// The end: nobody finds us any more, the lcore stops, the programs that are left learn it.
    fn close(&mut self) {
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
            self.mailbox.post(Mail::Stop);
            let mut sources = [source(running.end())];
            let limit = timespec(STOP_WAIT);
            if rustix::event::poll(&mut sources, Some(&limit)) == Ok(0) {
                crate::error!("lcore=0 event=does_not_stop");
                // The port must stay mapped under a thread that still uses it.
                core::mem::forget(running);
            }
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
/// How long a program's end waits for its last bytes and FINs.
const LAST_WAIT: core::time::Duration = core::time::Duration::from_millis(100);
/// Between two looks at them.
const LAST_LOOK: core::time::Duration = core::time::Duration::from_millis(2);
/// Between two looks at the lcore of a host that serves other users.
const LCORE_LOOK: core::time::Duration = core::time::Duration::from_secs(1);
/// How long the lcore may take for its last turn.
const STOP_WAIT: core::time::Duration = core::time::Duration::from_secs(1);
