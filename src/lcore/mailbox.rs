//! What the control thread and the other lcores tell an lcore, and how they wake it.

use core::mem;
use core::sync::atomic::{AtomicBool, Ordering};
use std::io::IoSliceMut;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::event::EventfdFlags;
use rustix::io::ReadWriteFlags;

use super::look::{Look, Seen};
use super::segments::Segments;
use super::share::Share;
use super::watch::Watch;
use crate::capture::Recorder;
use crate::errno::{Errno, Result};
use crate::ffi::descriptor;
use crate::stack::{FlowOptions, ListenRequest, Owner, Waiting};

/// What an lcore and its stack count: names and values.
pub type Report = Vec<(&'static str, u64)>;

/// One message to the lcore.
#[derive(Debug)]
pub enum Mail {
    /// A family is attached; `owner` is the control thread's number for it, in use by no other family.
    Attach {
        /// Its number.
        owner: Owner,
        /// User id of its programs.
        user: u32,
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
        eventfd: Arc<OwnedFd>,
    },
    /// Where the signals of a socket go.
    Signals {
        /// The family.
        owner: Owner,
        /// The object index.
        object: u32,
        /// Its generation, as much as a message carries.
        generation: u32,
        /// What has happened to it before counts.
        is_new: bool,
        /// Those of urgent data.
        urgent: bool,
        /// A non-blocking pipe, open for both ways; None = nowhere.
        pipe: Option<Arc<OwnedFd>>,
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
    /// The program is at its end and so is the stack: flows whose peer has not heard all of it are reset now, for nobody will
    /// say it again.
    GiveUp {
        /// The family.
        owner: Owner,
    },
    /// The host ends under the family: its flows are reset, and nothing more is written to its tables, which say what the
    /// program will do anew elsewhere.
    Desert {
        /// The family.
        owner: Owner,
    },
    /// From now on families share this.
    Share {
        /// What there is.
        share: Share,
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
    /// A connection is watched from now on, until whoever watches goes.
    Watch {
        /// Which one, and where it is told.
        watch: Box<Watch>,
    },
    /// The MTU of the port's interface has changed.
    Mtu {
        /// Bytes of the largest IP packet.
        mtu: usize,
    },
    /// A client runs on the lcore's CPU as well, so that it yields from now on.
    Neighbour,
    /// From the first lcore: a program listens.
    Listen {
        /// The family.
        owner: Owner,
        /// The listener's object index.
        object: u32,
        /// As the first lcore has carried it out.
        request: ListenRequest,
        /// What the lcores share of it.
        waiting: Arc<Waiting>,
    },
    /// From the first lcore: new connections of a listener begin with other options.
    Options {
        /// The family.
        owner: Owner,
        /// The listener's object index.
        object: u32,
        /// The options.
        options: FlowOptions,
    },
    /// From the first lcore: a listener has ended.
    Unlisten {
        /// The family.
        owner: Owner,
        /// The listener's object index.
        object: u32,
    },
    /// To the first lcore: this lcore has done its part for a listener.
    Done {
        /// The family.
        owner: Owner,
        /// The listener's object index.
        object: u32,
    },
    /// To the first lcore: the program has broken a queue of a listener.
    Broken {
        /// The family.
        owner: Owner,
        /// The listener's object index.
        object: u32,
    },
    /// From the first lcore: a process has let go of objects by its end.
    Released {
        /// The family.
        owner: Owner,
        /// Objects of the lcore that is told.
        objects: Vec<u32>,
    },
    /// The loop ends after this turn.
    Stop,
}

/// The mailbox of an lcore, with the eventfds that wake it.
///
/// Programs get a copy of `bell`, and with it what they can do to an open file: they may make it blocking. So nobody here
/// writes it, and it is read without waiting whatever its flags say.
#[derive(Debug)]
pub struct Mailbox {
    full: AtomicBool,
    queue: Mutex<Vec<Mail>>,
    /// Written by programs.
    bell: OwnedFd,
    /// Written by the control thread and other lcores.
    flag: OwnedFd,
    /// Written by the lcores of a host, for the control thread.
    news: Arc<OwnedFd>,
}

impl Mailbox {
    /// An empty mailbox.
    ///
    /// # Errors
    /// EMFILE.
    pub fn new() -> Result<Self> {
        Self::telling(Arc::new(eventfd()?))
    }

    /// The mailbox of another lcore of the same host.
    ///
    /// # Errors
    /// EMFILE.
    pub fn beside(&self) -> Result<Self> {
        Self::telling(Arc::clone(&self.news))
    }

    fn telling(news: Arc<OwnedFd>) -> Result<Self> {
        Ok(Self {
            full: AtomicBool::new(false),
            queue: Mutex::new(Vec::new()),
            bell: eventfd()?,
            flag: eventfd()?,
            news,
        })
    }

    /// The eventfd by which programs wake the lcore for their doorbells.
    #[must_use]
    pub const fn bell(&self) -> &OwnedFd {
        &self.bell
    }

    /// What wakes the lcore: the bell and the mail.
    pub(super) fn wakers(&self) -> [BorrowedFd<'_>; 2] {
        [self.bell.as_fd(), self.flag.as_fd()]
    }

    /// An eventfd that is readable when a family has ended or the last flow is over.
    #[must_use]
    pub fn news(&self) -> &OwnedFd {
        &self.news
    }

    /// Tells the control thread that there is news.
    pub(super) fn tell(&self) {
        write(&self.news);
    }

    /// Forgets that there was news.
    pub fn read_news(&self) {
        read(&self.news);
    }

    /// Puts a message in and wakes the lcore.
    pub fn post(&self, mail: Mail) {
        // A panic elsewhere leaves the list whole: each change under the lock is one push or one swap.
        self.queue
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(mail);
        self.full.store(true, Ordering::Release);
        write(&self.flag);
    }

    /// Wakes the lcore, which has frames of another one's.
    pub(super) fn wake(&self) {
        write(&self.flag);
    }

    /// Whether there is something in it.
    pub(super) fn has_mail(&self) -> bool {
        self.full.load(Ordering::Acquire)
    }

    /// Takes everything out into `into`, which is empty.
    pub(crate) fn take(&self, into: &mut Vec<Mail>) {
        if self.full.swap(false, Ordering::Acquire) {
            mem::swap(
                &mut *self.queue.lock().unwrap_or_else(PoisonError::into_inner),
                into,
            );
        }
    }

    /// Forgets the wake-ups so far (the lcore is awake).
    pub(super) fn drain(&self) {
        read(&self.bell);
        read(&self.flag);
    }
}

fn eventfd() -> Result<OwnedFd> {
    let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
    rustix::event::eventfd(0, flags).map(descriptor::settle)
}

fn write(eventfd: &OwnedFd) {
    match rustix::io::write(eventfd, &1_u64.to_ne_bytes()) {
        // EAGAIN: the counter is full, so it is readable.
        Ok(_) | Err(Errno::AGAIN) => {}
        Err(errno) => crate::error!("event=eventfd_not_written errno={errno}"),
    }
}

/// Reads an eventfd, and does not wait even when it is a blocking one.
fn read(eventfd: &OwnedFd) {
    let mut count = [0; 8];
    let mut part = [IoSliceMut::new(&mut count)];
    let flags = ReadWriteFlags::NOWAIT;
    match rustix::io::preadv2(eventfd, &mut part, u64::MAX, flags) {
        Ok(_) | Err(Errno::AGAIN | Errno::INTR) => {}
        // A kernel before 5.8, which cannot do without waiting what the flags of the file say.
        Err(Errno::OPNOTSUPP) => {
            let _ = rustix::io::read(eventfd, &mut count);
        }
        Err(errno) => crate::error!("event=eventfd_not_read errno={errno}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_blocking_bell_holds_nobody_up() {
        let mailbox = Mailbox::new().unwrap();
        let flags = rustix::fs::fcntl_getfl(mailbox.bell()).unwrap();
        rustix::fs::fcntl_setfl(mailbox.bell(), flags - rustix::fs::OFlags::NONBLOCK).unwrap();
        // Empty: a read would wait.
        mailbox.drain();
        rustix::io::write(mailbox.bell(), &(u64::MAX - 1).to_ne_bytes()).unwrap();
        // Full: a write would wait.
        mailbox.post(Mail::Stop);
        mailbox.drain();
        rustix::io::write(mailbox.bell(), &(u64::MAX - 1).to_ne_bytes()).unwrap();
    }
}
