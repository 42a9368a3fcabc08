//! A program family on the control side: its memory, its processes, its end.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{Mode, OFlags};

use crate::channel::cell::{host_state, process};
use crate::channel::layout::Layout;
use crate::channel::sync::Ordering;
use crate::config::Config;
use crate::errno::{Errno, Result};
use crate::ffi::descriptor;
use crate::lcore::{Mail, Segments};
use crate::stack::Owner;
use crate::time::Instant;

use super::lcores::Lcores;
use super::policy;

/// A family.
#[derive(Debug)]
pub(super) struct Family {
    pub(super) owner: Owner,
    /// User id of the program that attached first.
    user: u32,
    pub(super) segments: Arc<Segments>,
    /// Receive memory as the program gets it.
    pub(super) receive: OwnedFd,
    /// The program that began it.
    pub(super) program: String,
    /// Control sockets of its processes.
    pub(super) clients: usize,
    /// When the last process went.
    pub(super) left_at: Option<Instant>,
    /// Its flows were reset.
    pub(super) abandoned: bool,
    /// So many lcores have nothing of it any more.
    pub(super) ended: u32,
    /// Waiters that came before an lcore was there.
    waiters: Vec<(u32, OwnedFd)>,
    /// Heralds of epolls, for the processes that did not inherit them.
    heralds: Vec<(u32, OwnedFd)>,
    /// What the processes agree in, for those that did not inherit it.
    pub(super) registry: Option<OwnedFd>,
}

impl Family {
    /// Makes the memory of a family for the program at `program`.
    ///
    /// # Errors
    /// One line for the operator.
    pub(super) fn create(
        owner: Owner,
        user: u32,
        config: &Config,
        lcores: u32,
        program: &str,
    ) -> core::result::Result<Self, String> {
        let layout = policy::layout(config).with_lcores(lcores);
        let no_memory = |what: &str, errno: Errno| {
            let advice = if matches!(errno, Errno::PERM | Errno::ACCESS | Errno::NOSYS) {
                "a host may not be started in these confines: use the service, common.mode 1"
            } else {
                "lower proto_stack.max_tcpcb, or raise the limits on memory and file size"
            };
            format!(
                "no channel memory for {} connections: {what}: {errno}{} ({advice})",
                config.tcp.max_connections,
                address_space(layout, errno)
            )
        };
        let segments =
            Segments::create(layout).map_err(|errno| no_memory("memfd and mapping", errno))?;
        let receive = read_only(segments.receive_fd())
            .map_err(|errno| no_memory("read-only reopening", errno))?;
        let header = segments.control.header();
        policy::fill(&header.policy, config, program).map_err(|policy::TooMany(line)| line)?;
        header.host_pid.store(std::process::id(), Ordering::Relaxed);
        header.host_state.store(host_state::IDLE, Ordering::Release);
        Ok(Self {
            owner,
            user,
            segments: Arc::new(segments),
            receive,
            program: program.to_owned(),
            clients: 0,
            left_at: None,
            abandoned: false,
            ended: 0,
            waiters: Vec::new(),
            heralds: Vec::new(),
            registry: None,
        })
    }

    /// User id of the program that attached first.
    pub(super) const fn user(&self) -> u32 {
        self.user
    }

    /// Takes a process cell for `pid`.
    ///
    /// # Errors
    /// EAGAIN when all are taken.
    pub(super) fn admit(&self, pid: u32) -> Result<u32> {
        let control = &self.segments.control;
        let cell = control.take_process(process::LIVE).ok_or(Errno::AGAIN)?;
        if let Some(it) = control.process(cell) {
            it.pid.store(pid, Ordering::SeqCst);
        }
        Ok(cell)
    }

    /// Keeps a waiter's eventfd until there is an lcore.
    pub(super) fn keep_waiter(&mut self, slot: u32, eventfd: OwnedFd) {
        self.waiters.retain(|(other, _)| *other != slot);
        self.waiters.push((slot, eventfd));
    }

    /// Keeps a copy of an epoll's herald.
    pub(super) fn keep_herald(&mut self, epoll: u32, eventfd: &OwnedFd) {
        self.heralds.retain(|(other, _)| *other != epoll);
        match eventfd.try_clone() {
            Ok(copy) => self.heralds.push((epoll, copy)),
            Err(error) => crate::warn!("epoll={epoll} event=herald_not_kept reason=\"{error}\""),
        }
    }

    /// The herald of an epoll.
    pub(super) fn herald(&self, epoll: u32) -> Option<OwnedFd> {
        let (_, eventfd) = self.heralds.iter().find(|(other, _)| *other == epoll)?;
        eventfd.try_clone().ok()
    }

    /// Tells the lcores of the family.
    pub(super) fn introduce(&mut self, lcores: &Lcores) {
        let owner = self.owner;
        lcores.say(|| Mail::Attach {
            owner,
            user: self.user,
            segments: Arc::clone(&self.segments),
        });
        for (slot, eventfd) in self.waiters.drain(..) {
            let eventfd = Arc::new(eventfd);
            lcores.say(|| Mail::Waiter {
                owner,
                slot,
                eventfd: Arc::clone(&eventfd),
            });
        }
    }

    /// Its flows have had their time: they are reset, once.
    pub(super) fn abandon(&mut self, lcores: &Lcores) {
        if !core::mem::replace(&mut self.abandoned, true) {
            lcores.say(|| Mail::Abandon { owner: self.owner });
        }
    }

    /// The lcore or the host is gone: every process learns it.
    pub(super) fn die(&self) {
        self.segments
            .control
            .header()
            .host_state
            .store(host_state::DEAD, Ordering::SeqCst);
    }
}

/// What the limit on address space has to do with it, for the line.
fn address_space(layout: Layout, errno: Errno) -> String {
    let limit = rustix::process::getrlimit(rustix::process::Resource::As).current;
    match limit {
        Some(limit) if errno == Errno::NOMEM => format!(
            ", because the host's address space is limited to {} MiB (ulimit -v) and the channel alone takes {} MiB",
            limit >> 20,
            (layout.control_bytes() + layout.receive_bytes()) >> 20
        ),
        _ => String::new(),
    }
}

/// Opens the memory behind `fd` again, for reading only: a mapping of it can never become writable.
fn read_only(fd: &OwnedFd) -> Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).map(descriptor::settle)
}
