//! What a client says, and what that means.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use super::clients::Standing;
use super::family::Family;
use super::fault::{Fault, Greeted};
use super::server::{Server, own_path};
use super::socket::{self, Received};
use crate::BUILD_VERSION;
use crate::channel::ABI;
use crate::channel::layout::{EPOLLS, SLOTS};
use crate::channel::message::{Kind, Message, MessageError};
use crate::config::OnError;
use crate::errno::Errno;
use crate::ffi::descriptor;
use crate::lcore::{self, Mail};
use crate::readiness;
use crate::stack::Owner;
use crate::time;

impl Server {
    /// Serves up to `limit` messages that wait at a client; ends it when it is gone.
    pub(super) fn talk(&mut self, place: usize, limit: usize) {
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
        let Some(client) = self.clients.at_mut(place) else {
            return;
        };
        client.serial = message.serial;
        if !client.may_say(message.kind) {
            return self.hang_up(place, message.kind);
        }
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
                    text: &text,
                    ..Message::new(Kind::Status, 0, 0)
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
            (Kind::Signals, Standing::Attached { owner, .. }) => {
                self.signals(owner, message.a, message.b, descriptors.next());
                if !message.text.is_empty() {
                    self.answer(
                        place,
                        &Message::new(Kind::Signals, message.a, message.b),
                        &[],
                    );
                }
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
                let joined = client.joined;
                let socket = descriptors.next();
                self.fork((owner, pid), joined, &message, socket);
            }
            (Kind::Registry, Standing::Attached { owner, .. }) => {
                if let Some(family) = self.family(owner)
                    && family.registry.is_none()
                {
                    family.registry = descriptors.next();
                }
            }
            (Kind::Resume, Standing::Attached { owner, cell, .. }) => {
                self.resume(place, (owner, cell), &message, received.sender);
            }
            (Kind::Child, Standing::Attached { owner, cell, .. }) if message.a == cell => {
                self.child(place, (owner, cell), message.b, received.sender.process);
            }
            (kind, _) => self.hang_up(place, kind),
        }
    }

    /// A client has said what it may not say.
    fn hang_up(&mut self, place: usize, kind: Kind) {
        let standing = self.clients.at(place).map(|client| client.standing);
        crate::warn!("message={kind:?} standing={standing:?} action=hang_up");
        self.gone(place);
    }

    pub(super) fn family(&mut self, owner: Owner) -> Option<&mut Family> {
        self.families.get_mut(owner.0 as usize)?.as_mut()
    }

    fn waiter(&mut self, owner: Owner, slot: u32, eventfd: Option<OwnedFd>) {
        let Some(eventfd) = eventfd else {
            return refuse_waiter(slot, "no descriptor");
        };
        if slot >= SLOTS + EPOLLS {
            return refuse_waiter(slot, "no such slot");
        }
        let eventfd = socket::checked_eventfd(eventfd);
        if let (Some(epoll), Ok(eventfd)) = (readiness::herald::epoll(slot), &eventfd)
            && let Some(family) = self.family(owner)
        {
            family.keep_herald(epoll, eventfd);
        }
        match eventfd {
            Ok(eventfd) if self.running.is_some() => {
                let eventfd = Arc::new(eventfd);
                self.lcores.say(|| Mail::Waiter {
                    owner,
                    slot,
                    eventfd: Arc::clone(&eventfd),
                });
            }
            Ok(eventfd) => {
                if let Some(family) = self.family(owner) {
                    family.keep_waiter(slot, eventfd);
                }
            }
            Err(errno) => refuse_waiter(slot, &errno.to_string()),
        }
    }

    /// Where a socket's signals go. Before there is an lcore there is no socket either.
    fn signals(&self, owner: Owner, object: u32, what: u32, pipe: Option<OwnedFd>) {
        let pipe = match pipe.map(socket::checked_pipe).transpose() {
            Ok(pipe) => pipe,
            Err(errno) => {
                return crate::warn!("message=Signals object={object} errno={errno}");
            }
        };
        if self.running.is_some() {
            let pipe = pipe.map(Arc::new);
            self.lcores.say(|| Mail::Signals {
                owner,
                object,
                generation: what >> 2,
                is_new: what & 2 != 0,
                urgent: what & 1 != 0,
                pipe: pipe.clone(),
            });
        }
    }

    /// A client is gone: what only its process held ends.
    pub(super) fn gone(&mut self, place: usize) {
        let Some(client) = self.clients.remove(place) else {
            return;
        };
        let standing = client.standing;
        {
            // As for what is opened: a child that is forked meanwhile has it still, and does not know whose it was.
            let _settling = descriptor::settling();
            drop(client);
        }
        let Standing::Attached { owner, cell, pid } = standing else {
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
        if !running && last {
            if let Some(slot) = self.families.get_mut(owner.0 as usize) {
                *slot = None;
            }
            return;
        }
        if last {
            family.left_at = Some(time::monotonic());
        }
        self.let_go(owner, cell, pid);
        if last {
            self.lcores.say(|| Mail::Detach { owner });
        }
    }

    /// What process cell `cell` holds ends, unless others hold it too. `pid` is the process's number; 0 = it has none.
    pub(super) fn let_go(&mut self, owner: Owner, cell: u32, pid: u32) {
        if self.running.is_some() {
            self.lcores.say(|| Mail::ProcessGone { owner, cell, pid });
        } else if let Some(family) = self.family(owner) {
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
        let message = Message {
            serial: client.serial,
            ..*message
        };
        if let Err(errno) = socket::send(client.socket.as_fd(), &message, descriptors) {
            crate::warn!("message={:?} event=not_sent errno={errno}", message.kind);
            self.gone(place);
        }
    }
}

fn refuse_waiter(slot: u32, reason: &str) {
    crate::warn!("message=Waiter slot={slot} reason=\"{reason}\"");
}
