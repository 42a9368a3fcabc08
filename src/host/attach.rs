//! How programs come: the listening socket, Hello, and the config that it brings.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::net::SocketFlags;

use super::clients::{Client, Standing};
use super::family::Family;
use super::fault::{Fault, Greeted};
use super::group;
use super::listener::{Access, Listener};
use super::server::{Server, own_path, timespec};
use super::socket;
use super::way_back::WayBack;
use crate::channel::cell::Header;
use crate::channel::message::{Kind, Message};
use crate::channel::policy::policy_flag;
use crate::channel::sync::Ordering;
use crate::config::{self, Config, Mode, Policy, Progress};
use crate::errno::Errno;
use crate::ffi::descriptor;
use crate::lcore::{self, Mail};
use crate::preflight::waits;
use crate::rendezvous::{self, ConfigHash};
use crate::stack::Owner;
use crate::time::{self, Instant};
use crate::{BUILD_VERSION, telemetry};

impl Server {
    pub(super) fn hello(
        &mut self,
        place: usize,
        message: &Message<'_>,
        file: Option<OwnedFd>,
    ) -> Result<Greeted, Fault> {
        let mut lines = message.text.split('\n');
        let mut line = || lines.next().unwrap_or("");
        let (version, path, program, frame) = (line(), line(), line(), line());
        let can_drive = line() == "inline";
        if version != BUILD_VERSION || message.a as usize != size_of::<Header>() {
            let text = format!(
                "{frame} is build {version}, the host {} is build {BUILD_VERSION}; restart the program, or install both \
                 from one build",
                own_path()
            );
            return Err(Fault::new(text, Errno::PROTO));
        }
        if let Greeted::Inline = self.configure(path, file, can_drive.then_some(program))? {
            return Ok(Greeted::Inline);
        }
        self.accepts_waits(place, program)?;
        let Some(config) = &self.config else {
            let text = "the host has no config".to_owned();
            return Err(Fault::new(text, Errno::INVAL));
        };
        let no_room = |text: String| Fault::new(text, Errno::NOMEM);
        let free = self.families.iter().position(Option::is_none);
        let number = free.unwrap_or(self.families.len());
        let owner = Owner(u32::try_from(number).unwrap_or(u32::MAX));
        if number >= lcore::FAMILIES_MAX as usize {
            return Err(no_room(format!(
                "{number} program families are attached, which is all that fit"
            )));
        }
        let Some(client) = self.clients.at(place) else {
            return Ok(Greeted::Attached);
        };
        let user = socket::peer(client.socket.as_fd())
            .map_err(|errno| no_room(format!("peer credentials: {errno}")))?
            .uid
            .as_raw();
        let mut family =
            Family::create(owner, user, config, self.lcores.count(), program).map_err(no_room)?;
        let cell = family
            .admit(message.b)
            .map_err(|errno| no_room(format!("no process cell: {errno}")))?;
        family.clients = 1;
        if !self.private {
            let flags = &family.segments.control.header().policy.flags;
            flags.fetch_or(policy_flag::SYSTEM_HOST, Ordering::Relaxed);
        }
        let welcome = Message {
            serial: message.serial,
            ..Message::new(Kind::Welcome, cell, std::process::id())
        };
        let Some(client) = self.clients.at_mut(place) else {
            return Ok(Greeted::Attached);
        };
        client.standing = Standing::Attached {
            owner,
            cell,
            pid: message.b,
        };
        let process = client.process;
        let mut descriptors = vec![family.segments.control_fd().as_fd(), family.receive.as_fd()];
        descriptors.extend(self.lcores.bells());
        if let Err(errno) = socket::send(client.socket.as_fd(), &welcome, &descriptors) {
            client.standing = Standing::New;
            crate::warn!("program={program} event=welcome_failed errno={errno}");
            self.gone(place);
            return Ok(Greeted::Attached);
        }
        crate::info!(
            "program={program} process={} family={number} event=attached",
            message.b
        );
        if self.running.is_some() {
            family.introduce(&self.lcores);
            self.lcores.say(|| Mail::Process { owner, cell });
            self.neighbour(process);
        }
        self.note_user(process);
        if number == self.families.len() {
            self.families.push(None);
        }
        if let Some(slot) = self.families.get_mut(number) {
            *slot = Some(family);
        }
        Ok(Greeted::Attached)
    }

    /// Refuses a program that would hang: it waits past the library. One that the config names is served all the same.
    fn accepts_waits(&self, place: usize, program: &str) -> Result<(), Fault> {
        let named = self
            .config
            .as_ref()
            .is_some_and(|config| !Policy::from(config).accelerate.programs.is_empty());
        let process = self.clients.at(place).and_then(|client| client.process);
        let Some(process) = process.filter(|_| !named) else {
            return Ok(());
        };
        match waits::own_wait(Path::new(&format!("/proc/{process}/exe"))) {
            None => Ok(()),
            Some(wait) => Err(Fault::new(
                format!(
                    "{program} waits for sockets by system calls of its own ({wait}), past the library: kernel sockets \
                     are used (if it does so for files only, name it in common.accelerate.programs)"
                ),
                Errno::OPNOTSUPP,
            )),
        }
    }

    /// Reads the config that rode along; the first one of a private host becomes its own, unless it leaves the loop to
    /// `driver`, the program when its threads can drive.
    pub(super) fn configure(
        &mut self,
        path: &str,
        file: Option<OwnedFd>,
        driver: Option<&str>,
    ) -> Result<Greeted, Fault> {
        let invalid = |text: String| Fault::new(text, Errno::INVAL);
        let Some(file) = file else {
            // The program may not read it: what the system's host has read counts.
            return match &self.config {
                Some(_) if !self.private => Ok(Greeted::Attached),
                _ => Err(invalid(format!("{path}: the program sent no config"))),
            };
        };
        let bytes = config::read_descriptor(path, file.as_fd())
            .map_err(|faults| Fault::of_config(&faults))?;
        let hash = config::config_hash(&bytes);
        if let Some(ours) = &self.config {
            if ours.hash == hash {
                return Ok(Greeted::Attached);
            }
            return Err(invalid(format!(
                "{path} differs from {}, which this host runs; restart the host, or name that file by KNET_CONF",
                ours.file
            )));
        }
        let config =
            config::load_bytes(path, &bytes).map_err(|faults| Fault::of_config(&faults))?;
        if config.mode == Mode::Shared {
            let socket = rendezvous::SYSTEM_SOCKET.to_string_lossy();
            return Err(invalid(format!(
                "{path}: common.mode is 1, but no host of the system with this config listens at {socket}, or it lets \
                 only members of the group {GROUP} in (systemctl start knetd; SupplementaryGroups={GROUP}; or mode 0)"
            )));
        }
        let inline = config.run.progress == Progress::Inline;
        if inline
            && self.inside.is_none()
            && driver.is_some_and(|program| Policy::from(&config).covers_program(program))
        {
            return Ok(Greeted::Inline);
        }
        if inline && self.inside.is_none() {
            crate::info!("progress=dedicated reason=\"the threads of this program cannot drive\"");
        }
        let mut bytes_hash = ConfigHash::default();
        bytes_hash.add(&bytes);
        self.adopt(config);
        self.bind_private(bytes_hash);
        Ok(Greeted::Attached)
    }

    pub(super) fn adopt(&mut self, config: Config) {
        if self.inside.is_none() {
            telemetry::log::set_threshold(config.log_level);
        }
        for remark in &config.remarks {
            crate::info!("config={} remark=\"{remark}\"", config.file);
        }
        self.life.set_times(config.linger, config.linger_max);
        let lcores = if self.inside.is_some() {
            1
        } else {
            config.lcores()
        };
        if let Err(errno) = self.lcores.grow(lcores) {
            crate::error!(
                "lcores={} wanted={lcores} event=not_made errno={errno}",
                self.lcores.count()
            );
        }
        self.config = Some(config);
    }

    /// Binds the socket by which other processes find this host. Without one it serves its first client only.
    pub(super) fn bind_private(&mut self, hash: ConfigHash) {
        let names = rendezvous::run_folder()
            .and_then(|folder| Ok((folder, rendezvous::network_namespace()?)))
            .and_then(|(folder, namespace)| rendezvous::host_names(&folder, namespace, hash));
        let bound = names
            .map_err(|errno| format!("run folder: {errno}"))
            .and_then(|names| self.listen(PathBuf::from(names.socket.to_string())));
        if let Err(line) = bound {
            crate::warn!("event=not_found_by_others reason=\"{line}\"");
        }
    }

    /// Binds and listens at `path`, in place of a host that died.
    pub(super) fn listen(&mut self, path: PathBuf) -> Result<(), String> {
        // A host of another user than root serves that user alone.
        let shared = !self.private && rustix::process::geteuid().is_root();
        let mut access = Access::Own;
        if shared {
            let group = group::number(GROUP)
                .map_err(|errno| format!("socket {}: {errno}", path.display()))?;
            if group.is_none() {
                crate::warn!(
                    "socket={} group={GROUP} event=no_such_group action=\"only root may attach\"",
                    path.display()
                );
            }
            access = Access::Group(group);
        }
        let listener = Listener::open(path.clone(), access, time::monotonic())?;
        if shared {
            match WayBack::open(&path, LISTEN_BACKLOG) {
                Ok(way_back) => self.way_back = Some(way_back),
                Err(errno) => crate::warn!(
                    "socket={} event=no_way_back errno={errno} reason=\"programs that have given up their rights do \
                     not find a restarted host\"",
                    path.display()
                ),
            }
        }
        self.listener = Some(listener);
        Ok(())
    }

    /// A client that came by the path.
    pub(super) fn accept(&mut self) {
        if let Some(listener) = &self.listener {
            let taken = take(listener.as_fd());
            self.admit(taken, |server, user| server.may_attach(user));
        }
    }

    /// A client that came by the name.
    pub(super) fn accept_back(&mut self) {
        if let Some(way_back) = &self.way_back {
            let taken = take(way_back.as_fd());
            self.admit(taken, |server, user| {
                let way_back = server.way_back.as_ref();
                way_back.is_some_and(|way_back| way_back.admits(user))
            });
        }
    }

    fn admit(&mut self, taken: Result<OwnedFd, Errno>, admits: impl Fn(&Self, u32) -> bool) {
        let socket = match taken {
            Ok(socket) => socket,
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => return,
            // Out of descriptors: the client waits in the queue until some are free.
            Err(errno) => {
                crate::error!("event=client_not_accepted errno={errno}");
                // Nothing but a pause can be done on this thread; the lcore goes on. EINTR only shortens it.
                let _ = rustix::event::poll(&mut [], Some(&timespec(ACCEPT_PAUSE)));
                return;
            }
        };
        let now = time::monotonic();
        match Client::new(socket, now) {
            Ok((client, user)) if admits(self, user) => {
                if self.clients.guests().count() >= GUESTS_MAX
                    && let Some((oldest, _)) = self.clients.oldest_guest()
                {
                    crate::warn!("user={user} event=guest_ended reason=\"too many without Hello\"");
                    self.gone(oldest);
                }
                self.clients.add(client);
            }
            Ok((_, user)) => {
                crate::warn!("user={user} event=client_refused reason=\"not this user\"");
            }
            Err(errno) => crate::warn!("event=client_refused errno={errno}"),
        }
    }

    /// Ends clients that came and never said what they want; returns when the next one's time is over.
    pub(super) fn end_silent_guests(&mut self, now: Instant) -> Option<Instant> {
        while let Some((place, since)) = self.clients.oldest_guest() {
            let end = since + GUEST_TIME;
            if end > now {
                return Some(end);
            }
            crate::info!("event=guest_ended reason=silent");
            self.gone(place);
        }
        None
    }

    /// Same user, or root; a system's host of root serves whom the socket's mode lets in.
    pub(super) fn may_attach(&self, user: u32) -> bool {
        let own = rustix::process::geteuid().as_raw();
        user == own || user == 0 || (!self.private && own == 0)
    }
}

fn take(listener: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::accept_with(listener, flags).map(descriptor::settle)
}

/// Whose members may attach to the system's host.
const GROUP: &str = "knet";
/// Clients that may wait to be accepted.
pub(super) const LISTEN_BACKLOG: i32 = 128;
/// Clients that may be there without having said Hello; a further one takes the place of the oldest.
const GUESTS_MAX: usize = 64;
/// How long a client may be silent before its first word: a program says Hello at once, unless it was stopped.
const GUEST_TIME: core::time::Duration = core::time::Duration::from_secs(60);
/// Between two tries to accept without a free descriptor.
const ACCEPT_PAUSE: core::time::Duration = core::time::Duration::from_millis(10);

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SocketType};

    use super::*;
    use crate::host::server::ServerConfig;

    #[test]
    fn a_guest_without_a_word_is_sent_away_after_a_minute() {
        let (ours, theirs) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .unwrap();
        let mut server = Server::new(ServerConfig::Private { control: ours }, None).unwrap();
        let (_, since) = server.clients.oldest_guest().unwrap();
        let end = since + GUEST_TIME;
        assert_eq!(server.end_silent_guests(since), Some(end));
        assert_eq!(server.clients.count(), 1);
        assert_eq!(server.end_silent_guests(end), None);
        assert_eq!(server.clients.count(), 0);
        assert_eq!(
            socket::receive(theirs.as_fd()).err(),
            Some(Errno::CONNRESET)
        );
    }
}
