//! What the control thread tells an lcore, and how it wakes it.

use core::mem;
use core::sync::atomic::{AtomicBool, Ordering};
use std::os::fd::OwnedFd;
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::event::EventfdFlags;

use super::look::{Look, Seen};
use super::segments::Segments;
use crate::capture::Recorder;
use crate::errno::{Errno, Result};
use crate::stack::Owner;

/// What an lcore and its stack count: names and values.
pub type Report = Vec<(&'static str, u64)>;

/// One message to the lcore.
#[derive(Debug)]
pub enum Mail {
    /// A family is attached; `owner` is the control thread's number for it, in use by no other family.
    Attach {
        /// Its number.
        owner: Owner,
        /// Its memory.
        segments: Arc<Segments>,
    },
    /// Process cell `cell` of the family has a living process behind it.
    Process {
        /// The family.
        owner: Owner,
        /// The process cell.
        cell: u32,
    },
    /// Slot `slot` of the family is woken through `eventfd`.
    Waiter {
        /// The family.
        owner: Owner,
        /// The slot.
        slot: u32,
        /// A non-blocking eventfd.
        eventfd: OwnedFd,
    },
    /// The process of a cell is gone: what it held is let go.
    ProcessGone {
        /// The family.
        owner: Owner,
        /// The process cell.
        cell: u32,
        /// Its process id, by which its slots are found.
        pid: u32,
    },
    /// The last process of a family is gone; the family ends when its last flow does.
    Detach {
        /// The family.
        owner: Owner,
    },
    /// The time after the program's end is over: its flows are reset now.
    Abandon {
        /// The family.
        owner: Owner,
    },
    /// What is counted is sent back.
    Report {
        /// To whom; it waits a moment at most.
        to: SyncSender<Report>,
    },
    /// A part of a report is sent back, at most as much as a turn can afford.
    Look {
        /// Which part.
        at: Look,
        /// To whom; there is room for one part.
        to: SyncSender<Seen>,
    },
    /// What passes the port is captured from now on, in place of an older capture; None = no more.
    Capture {
        /// Who copies it.
        recorder: Option<Box<Recorder>>,
    },
    /// The MTU of the port's interface has changed.
    Mtu {
        /// Bytes of the largest IP packet.
        mtu: usize,
    },
    /// A client runs on the lcore's CPU as well, so that it yields from now on.
    Neighbour,
    /// The loop ends after this turn.
    Stop,
}

/// The mailbox of an lcore, with the eventfd that wakes it.
#[derive(Debug)]
pub struct Mailbox {
    full: AtomicBool,
    queue: Mutex<Vec<Mail>>,
    eventfd: OwnedFd,
}

impl Mailbox {
    /// An empty mailbox.
    ///
    /// # Errors
    /// EMFILE.
    pub fn new() -> Result<Self> {
        Ok(Self {
            full: AtomicBool::new(false),
            queue: Mutex::new(Vec::new()),
            eventfd: rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        })
    }

    /// The eventfd that wakes the lcore; programs get a copy for their doorbells.
    #[must_use]
    pub const fn eventfd(&self) -> &OwnedFd {
        &self.eventfd
    }

    /// Puts a message in and wakes the lcore.
    pub fn post(&self, mail: Mail) {
        // A panic elsewhere leaves the list whole: each change under the lock is one push or one swap.
        self.queue
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(mail);
        self.full.store(true, Ordering::Release);
        self.wake();
    }

    /// Wakes the lcore.
    pub fn wake(&self) {
        match rustix::io::write(&self.eventfd, &1u64.to_ne_bytes()) {
            // EAGAIN: the counter is full, so it is awake or will be.
            Ok(_) | Err(Errno::AGAIN) => {}
            Err(errno) => crate::error!("lcore cannot be woken errno={errno}"),
        }
    }

    /// Whether there is something in it.
    pub(super) fn has_mail(&self) -> bool {
        self.full.load(Ordering::Acquire)
    }

    /// Takes everything out into `into`, which is empty.
    pub(super) fn take(&self, into: &mut Vec<Mail>) {
        if self.full.swap(false, Ordering::Acquire) {
            mem::swap(
                &mut *self.queue.lock().unwrap_or_else(PoisonError::into_inner),
                into,
            );
        }
    }

    /// Forgets the wake-ups so far (the lcore is awake).
    pub(super) fn drain(&self) {
        let mut count = [0; 8];
        match rustix::io::read(&self.eventfd, &mut count) {
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => {}
            Err(errno) => crate::error!("lcore eventfd cannot be read errno={errno}"),
        }
    }
}
