//! Signals for programs that asked for them (O_ASYNC, F_SETOWN): a byte into a pipe of theirs makes the kernel send one. See
//! `fd/signals.rs`.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::family::Work;
use super::object::Role;
use super::status::LcoreStatus;
use crate::channel::cell::{ObjectCell, kind};
use crate::channel::sync::Ordering;
use crate::errno::Errno;

/// The pipes of one socket.
#[derive(Debug, Default)]
struct Pipes {
    /// SIGIO, or what F_SETSIG says.
    io: Option<Arc<OwnedFd>>,
    /// SIGURG.
    urgent: Option<Arc<OwnedFd>>,
}

/// The pipes of a family, by object, and what is to be written at the end of the turn.
#[derive(Debug, Default)]
pub(super) struct Summons {
    pipes: HashMap<u32, Pipes>,
    due: Vec<(u32, bool)>,
}

impl Summons {
    /// Whether any socket asks for signals.
    pub(super) fn are_wanted(&self) -> bool {
        !self.pipes.is_empty()
    }

    /// Something has happened to `object`, or urgent data was announced.
    pub(super) fn note(&mut self, object: u32, urgent: bool) {
        let Some(pipes) = self.pipes.get(&object) else {
            return;
        };
        let pipe = if urgent { &pipes.urgent } else { &pipes.io };
        if pipe.is_some() && !self.due.contains(&(object, urgent)) {
            self.due.push((object, urgent));
        }
    }

    /// The object is another one from now on.
    pub(super) fn forget(&mut self, object: u32) {
        if self.are_wanted() {
            self.pipes.remove(&object);
        }
    }

    /// Where the signals of `object` go, by whether they are of urgent data.
    pub(super) fn of(&self, object: u32) -> impl Iterator<Item = (bool, &Arc<OwnedFd>)> {
        let pipes = self.pipes.get(&object);
        let both = pipes.map(|pipes| [(false, &pipes.io), (true, &pipes.urgent)]);
        let known = both.into_iter().flatten();
        known.filter_map(|(urgent, pipe)| Some((urgent, pipe.as_ref()?)))
    }

    fn set(&mut self, object: u32, urgent: bool, pipe: Option<Arc<OwnedFd>>) {
        let pipes = self.pipes.entry(object).or_default();
        if urgent {
            pipes.urgent = pipe;
        } else {
            pipes.io = pipe;
        }
        if pipes.io.is_none() && pipes.urgent.is_none() {
            self.pipes.remove(&object);
        }
    }

    /// Sends what is due; returns how many signals. False when a program held us up.
    pub(super) fn send(&mut self, status: &LcoreStatus) -> (usize, bool) {
        let count = self.due.len();
        let mut free = true;
        for (object, urgent) in self.due.drain(..) {
            let pipes = self.pipes.get(&object);
            let pipe =
                pipes.and_then(|pipes| if urgent { &pipes.urgent } else { &pipes.io }.as_ref());
            if let Some(pipe) = pipe.filter(|_| free) {
                free = write(pipe, status);
                status.counters.signals_sent.raise();
            }
        }
        (count, free)
    }
}

/// Writes a byte. Of a full pipe a part is read first: nobody else reads it. All of it could be without end: its program can write
/// it as well.
fn write(pipe: &OwnedFd, status: &LcoreStatus) -> bool {
    status.begin_write();
    let mut written = rustix::io::write(pipe, &[1]);
    if written == Err(Errno::AGAIN) {
        written = match rustix::io::read(pipe, &mut [0; 4_096]) {
            Err(Errno::INTR) => Err(Errno::INTR),
            // Nothing there means that there is room by now.
            Ok(_) | Err(_) => rustix::io::write(pipe, &[1]),
        };
    }
    status.end_write();
    written != Err(Errno::INTR)
}

impl Work<'_> {
    /// A program says where the signals of `object` go; None = it wants none any more.
    pub(super) fn set_signals(
        &mut self,
        (object, generation): (u32, u32),
        urgent: bool,
        pipe: Option<Arc<OwnedFd>>,
    ) {
        // A program may name any object of its own: one that is not in use any more gets none. A flow is of one lcore.
        let is_the_one = |cell: &ObjectCell| {
            cell.host.generation.load(Ordering::Acquire) & GENERATION == generation & GENERATION
        };
        let is_ours = self
            .records
            .at(object)
            .is_some_and(|record| record.role != Role::Idle);
        if is_ours && self.cell(object).is_some_and(is_the_one) {
            self.summons.set(object, urgent, pipe);
        }
    }

    /// Signals for what has happened to a new object before its pipe came.
    pub(super) fn make_up(&mut self, object: u32, urgent: bool) {
        let happened = self
            .cell(object)
            .is_some_and(|cell| cell.host.edges_in.load(Ordering::Relaxed) != 0 || connected(cell));
        if happened && !urgent {
            self.summons.note(object, false);
        }
    }
}

/// Whether an attempt to connect has ended.
fn connected(cell: &ObjectCell) -> bool {
    matches!(
        cell.host.kind.load(Ordering::Relaxed),
        kind::STREAM | kind::FAILED
    )
}

/// As much of a generation as the message carries.
const GENERATION: u32 = u32::MAX >> 2;
