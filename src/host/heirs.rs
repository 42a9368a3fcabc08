//! Who comes after a process: its children, the program that it executes, and whoever gets one of its sockets in a message.
//!
//! Each has a process cell and a socket before it exists, so that what it will hold is held at every moment. A forked child
//! speaks at once. A program that is executed speaks when it has loaded the preloaded object, with Resume; until then its
//! predecessor's end is no end of the process. One that never speaks (linked statically, or started without the object) has the
//! socket open all its life and cannot use what it holds: after [`HEIR_TIME`] that is let go.

use core::time::Duration;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use super::clients::{Client, Standing};
use super::fault::Fault;
use super::server::{Server, own_path};
use super::socket::Sender;
use crate::BUILD_VERSION;
use crate::channel::cell::{Header, process};
use crate::channel::message::{Kind, Message, heir};
use crate::channel::sync::Ordering;
use crate::errno::Errno;
use crate::lcore::Mail;
use crate::stack::Owner;
use crate::time::{self, Instant};

/// Who will speak for a client's process cell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Heir {
    /// The process itself, or a forked child that does so at once.
    Itself,
    /// The program that process `pid` is about to execute.
    Executed {
        /// The process, as it sees itself.
        pid: u32,
    },
    /// The program that a child of a member is about to execute.
    Spawned,
    /// Whoever gets the socket in a message; there is no hurry.
    Passed,
}

impl Heir {
    fn of(text: &str, pid: u32) -> Self {
        match text {
            heir::EXECUTED => Self::Executed { pid },
            heir::SPAWNED => Self::Spawned,
            heir::PASSED => Self::Passed,
            _ => Self::Itself,
        }
    }
}

impl Server {
    /// A member, process `pid`, has made room for somebody who comes after it, and has `joined` as that one has.
    pub(super) fn fork(
        &mut self,
        (owner, pid): (Owner, u32),
        joined: bool,
        message: &Message<'_>,
        socket: Option<OwnedFd>,
    ) {
        let cell = message.a;
        let taken = self.clients.iter().any(|client| {
            matches!(client.standing, Standing::Attached { owner: o, cell: c, .. } if o == owner && c == cell)
        });
        let Some(family) = self.family(owner) else {
            return;
        };
        let forking = family
            .segments
            .control
            .process(cell)
            .is_some_and(|it| it.state.load(Ordering::SeqCst) == process::FORKING);
        let (true, false) = (forking, taken) else {
            return crate::warn!("message=Fork cell={cell} event=refused");
        };
        let Some(socket) = socket else {
            crate::warn!("message=Fork cell={cell} event=refused reason=\"no descriptor\"");
            // The other end has hung up: nobody will speak for the cell.
            return self.let_go(owner, cell, 0);
        };
        family.clients += 1;
        let heir = Heir::of(message.text, pid);
        let mut client = Client::child(socket, owner, cell, heir, time::monotonic());
        client.joined = joined;
        self.clients.add(client);
        if self.running.is_some() {
            self.lcores.say(|| Mail::Process { owner, cell });
        }
    }

    /// A child says which process it is; it is `process` to us.
    pub(super) fn child(
        &mut self,
        place: usize,
        (owner, cell): (Owner, u32),
        pid: u32,
        process: Option<u32>,
    ) {
        if let Some(client) = self.clients.at_mut(place) {
            client.introduce(pid, process);
        }
        if let Some(family) = self.family(owner)
            && let Some(it) = family.segments.control.process(cell)
        {
            it.pid.store(pid, Ordering::SeqCst);
            it.state.store(process::LIVE, Ordering::SeqCst);
        }
        self.neighbour(process);
    }

    /// A program that was executed, or got a socket in a message, takes over what its cell holds. `sender` sent the message.
    pub(super) fn resume(
        &mut self,
        place: usize,
        (owner, cell): (Owner, u32),
        message: &Message<'_>,
        sender: Sender,
    ) {
        let pid = message.b;
        if let Err(fault) = self.may_resume(place, owner, message, sender.user) {
            crate::warn!(
                "process={pid} event=not_taken_over reason=\"{}\"",
                fault.text
            );
            self.answer(place, &fault.message(), &[]);
            return self.gone(place);
        }
        self.end_predecessor(owner, pid);
        let joins = self.clients.at_mut(place).is_some_and(|client| {
            let joins = core::mem::replace(&mut client.heir, Heir::Itself) == Heir::Passed;
            client.joined |= joins;
            joins
        });
        self.child(place, (owner, cell), pid, sender.process);
        let mailboxes = self.lcores.mailboxes();
        let Some(family) = self.family(owner) else {
            return;
        };
        let segments = Arc::clone(&family.segments);
        // A program that was executed has inherited the registry.
        let copies = [
            Some(&family.receive),
            family.registry.as_ref().filter(|_| joins),
        ]
        .map(|fd| fd.and_then(|fd| fd.try_clone().ok()));
        let [Some(receive), registry] = copies else {
            crate::warn!("process={pid} event=not_taken_over reason=\"no descriptor\"");
            return self.gone(place);
        };
        let mut descriptors = vec![segments.control_fd().as_fd(), receive.as_fd()];
        descriptors.extend(mailboxes.iter().map(|mailbox| mailbox.bell().as_fd()));
        descriptors.extend(registry.as_ref().map(AsFd::as_fd));
        let welcome = Message::new(Kind::Welcome, cell, std::process::id());
        self.answer(place, &welcome, &descriptors);
        crate::info!("process={pid} family={} event=taken_over", owner.0);
    }

    fn may_resume(
        &mut self,
        place: usize,
        owner: Owner,
        message: &Message<'_>,
        user: Option<u32>,
    ) -> Result<(), Fault> {
        let refuse = |text: String| Err(Fault::new(text, Errno::PERM));
        let heir = self.clients.at(place).map(|client| client.heir);
        if heir == Some(Heir::Itself) {
            return refuse("it is a member already".to_owned());
        }
        if message.text != BUILD_VERSION || message.a as usize != size_of::<Header>() {
            return refuse(format!(
                "it loads build {}, the host {} is build {BUILD_VERSION}",
                message.text,
                own_path()
            ));
        }
        let theirs = self.family(owner).map(|family| family.user());
        // Whoever gets a socket gets the memory of all sockets of the family.
        if heir == Some(Heir::Passed) && user != Some(0) && user != theirs {
            return refuse(format!(
                "a socket was passed from user {} to user {}",
                theirs.unwrap_or(0),
                user.map_or_else(|| "unknown".to_owned(), |user| user.to_string())
            ));
        }
        Ok(())
    }

    /// The program that process `pid` was before it executed another one ends now, and not when its hang-up is seen: from the
    /// next message on, what has this process id is the new one's.
    fn end_predecessor(&mut self, owner: Owner, pid: u32) {
        for place in self.clients.places() {
            let is_one = self.clients.at(place).is_some_and(|client| {
                matches!(client.standing, Standing::Attached { owner: o, pid: p, .. } if o == owner && p == pid)
            });
            if is_one && self.is_succeeded(owner, pid) {
                self.gone(place);
            }
        }
    }

    /// Whether the program of process `pid` was executed away and its heir has not spoken: the process is not gone.
    pub(super) fn is_succeeded(&self, owner: Owner, pid: u32) -> bool {
        self.clients.iter().any(|client| {
            client.heir == Heir::Executed { pid }
                && matches!(client.standing, Standing::Attached { owner: o, .. } if o == owner)
        })
    }

    /// Lets go of what programs hold that were executed and do not speak; returns when the next one's time is over.
    pub(super) fn end_silent_heirs(&mut self, now: Instant) -> Option<Instant> {
        let mut next: Option<Instant> = None;
        for place in self.clients.places() {
            let Some(client) = self.clients.at(place) else {
                continue;
            };
            if !matches!(client.heir, Heir::Executed { .. } | Heir::Spawned) {
                continue;
            }
            let end = client.since + HEIR_TIME;
            if end > now {
                next = Some(next.map_or(end, |other| other.min(end)));
                continue;
            }
            crate::warn!(
                "event=not_taken_over reason=\"a program was executed that does not load the preloaded object\" \
                 action=\"its accelerated sockets are closed\""
            );
            self.gone(place);
        }
        next
    }
}

/// A program that was executed loads the preloaded object within this, unless it was stopped before.
const HEIR_TIME: Duration = Duration::from_secs(30);
