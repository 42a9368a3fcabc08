//! Listeners. The first lcore carries out what the program asks of them and says so once all lcores listen; each lcore fills a
//! queue of its own.

use std::sync::Arc;

use super::bell::{endpoint, errno_number, options_of, store_endpoint};
use super::family::Work;
use super::mailbox::Mail;
use super::object::{Record, Role};
use crate::channel::accept_ring::Queue;
use crate::channel::cell::{ObjectCell, kind, option};
use crate::channel::sync::Ordering;
use crate::errno::{Errno, Result};
use crate::id::ListenerId;
use crate::stack::{FlowOptions, ListenRequest, Waiting};

/// When a wish is answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Answer {
    /// At once.
    Now,
    /// When the other lcores have done their part.
    Later,
}

impl Work<'_> {
    /// A program asks to listen, or changes the backlog.
    pub(super) fn listen(&mut self, object: u32, cell: &ObjectCell) -> Result<Answer> {
        let layout = self.segments.layout();
        let entries = layout.accept_entries();
        let backlog = cell
            .wish
            .backlog
            .load(Ordering::Relaxed)
            .min(self.shared.somaxconn)
            .min(entries - 1);
        let record = *self.records.at_mut(object).ok_or(Errno::INVAL)?;
        match record.role {
            Role::Listener(listener) => {
                self.shared.stack.set_backlog(listener, backlog);
                return Ok(Answer::Now);
            }
            Role::Idle if self.is_program_share(object) => {}
            // It listened before a shutdown, and nobody has flows of it: its queues go on, empty.
            Role::Over if record.was_listener => {}
            _ => return Err(Errno::INVAL),
        }
        let local = endpoint(&cell.wish.local_address, &cell.wish.local_port)?;
        let bytes = entries * 4 * layout.lcores;
        if let Err(errno) = self.shared.memory.back_queue(self.owner, object, bytes) {
            return self.refused(cell, errno);
        }
        let request = ListenRequest {
            local,
            backlog,
            owner: self.owner,
            token: self.token(object),
            options: options_of(cell),
            shares: (cell.option.bits.load(Ordering::Relaxed) & option::REUSEPORT != 0)
                .then_some(self.user),
        };
        let listener = match self.shared.stack.listen(&request) {
            Ok(listener) => listener,
            Err(errno) => return self.refused(cell, errno),
        };
        if record.role == Role::Idle {
            *self.busy += 1;
        }
        self.begin_queue(object, listener);
        self.shared.counters.listeners_made.raise();
        store_endpoint(local, &cell.fact.local_address, &cell.fact.local_port);
        cell.host.kind.store(kind::LISTENER, Ordering::Release);
        let waiting = self.shared.stack.waiting(listener);
        Ok(self.share((object, cell), &request, waiting))
    }

    /// Has the other lcores listen as well.
    fn share(
        &mut self,
        (object, cell): (u32, &ObjectCell),
        request: &ListenRequest,
        waiting: Option<Arc<Waiting>>,
    ) -> Answer {
        let (Some(peers), Some(waiting)) = (self.shared.peers.as_deref(), waiting) else {
            return Answer::Now;
        };
        let generation = cell.host.generation.load(Ordering::Relaxed);
        peers.tell_others(|| Mail::Listen {
            owner: self.owner,
            object,
            request: *request,
            waiting: Arc::clone(&waiting),
        });
        for (urgent, pipe) in self.summons.of(object) {
            // It listened before: the others forgot it with its queue there.
            peers.tell_others(|| Mail::Signals {
                owner: self.owner,
                object,
                generation,
                is_new: false,
                urgent,
                pipe: Some(Arc::clone(pipe)),
            });
        }
        if let Some(record) = self.records.at_mut(object) {
            record.waits += peers.others();
        }
        Answer::Later
    }

    /// At another lcore than the first: the program listens.
    pub(super) fn listen_too(
        &mut self,
        object: u32,
        request: &ListenRequest,
        waiting: Arc<Waiting>,
    ) {
        match self.shared.stack.listen_too(request, waiting) {
            Ok(listener) => {
                *self.busy += 1;
                self.begin_queue(object, listener);
            }
            // The first lcore has found it good, and all hear of listeners in one order.
            Err(errno) => crate::error!(
                "lcore={} listener={} event=not_shared errno={errno}",
                self.shared.me,
                request.local
            ),
        }
        self.done(object);
    }

    /// At another lcore than the first: the listener ends.
    pub(super) fn unlisten_too(&mut self, object: u32) {
        // What the program had taken before stays its own.
        self.pops(object);
        let role = self.records.at(object).map(|record| record.role);
        if let Some(Role::Listener(listener)) = role {
            self.end_queue(object, listener);
            *self.busy = self.busy.saturating_sub(1);
            self.summons.forget(object);
            if let Some(record) = self.records.at_mut(object) {
                *record = Record::default();
            }
        }
        self.done(object);
    }

    fn done(&self, object: u32) {
        if let Some(peers) = self.shared.peers.as_deref() {
            peers.tell_first(Mail::Done {
                owner: self.owner,
                object,
            });
        }
    }

    /// At the first lcore: another one has done its part.
    pub(super) fn one_is_done(&mut self, object: u32) {
        let Some(cell) = self.cell(object) else {
            return;
        };
        let Some(record) = self.records.at_mut(object) else {
            return;
        };
        record.waits = record.waits.saturating_sub(1);
        if record.waits > 0 {
            return;
        }
        let (wish, owes) = (record.wish, core::mem::take(&mut record.owes_answer));
        if owes {
            self.answer(object, cell, wish, Ok(()));
        }
        // What was asked or let go of meanwhile.
        self.bell(object);
    }

    /// The options that new connections of a listener begin with have changed.
    pub(super) fn listener_options(&mut self, object: u32, id: ListenerId, options: &FlowOptions) {
        self.shared.stack.set_listener_options(id, options);
        if let Some(peers) = self.shared.peers.as_deref() {
            peers.tell_others(|| Mail::Options {
                owner: self.owner,
                object,
                options: *options,
            });
        }
    }

    /// As the first lcore says.
    pub(super) fn listener_options_too(&mut self, object: u32, options: &FlowOptions) {
        let role = self.records.at(object).map(|record| record.role);
        if let Some(Role::Listener(id)) = role {
            self.shared.stack.set_listener_options(id, options);
        }
    }

    /// The queue of this lcore begins, empty.
    fn begin_queue(&mut self, object: u32, listener: ListenerId) {
        let Some(record) = self.records.at_mut(object) else {
            return;
        };
        record.role = Role::Listener(listener);
        record.was_listener = true;
        record.rx_head = record.rx_tail;
        let position = low(record.rx_tail);
        if let Some(queue) = self.queue(object) {
            queue.restart(position);
        }
    }

    /// Ends a listener, at all lcores; what was not accepted is reset (tcp(7): as Linux does on close of a listener).
    pub(super) fn unlisten(&mut self, object: u32, id: ListenerId) {
        self.end_queue(object, id);
        let Some(peers) = self.shared.peers.as_deref() else {
            return;
        };
        peers.tell_others(|| Mail::Unlisten {
            owner: self.owner,
            object,
        });
        if let Some(record) = self.records.at_mut(object) {
            record.waits += peers.others();
        }
    }

    fn end_queue(&mut self, object: u32, id: ListenerId) {
        let Some(record) = self.records.at_mut(object) else {
            return;
        };
        record.role = Role::Over;
        let waiting = record.rx_head..record.rx_tail;
        let shared = &mut self.shared;
        shared
            .stack
            .unlisten(self.now, id, shared.memory, shared.tx);
        for position in waiting {
            if let Some(flow) = self.entry(object, position) {
                self.popped(flow, object, position, None);
            }
        }
    }

    /// Tells the stack which flows of this lcore's queue were taken.
    pub(super) fn pops(&mut self, listener: u32) {
        let Some(record) = self.records.at(listener).copied() else {
            return;
        };
        let Role::Listener(id) = record.role else {
            return;
        };
        let Some(queue) = self.queue(listener) else {
            return;
        };
        let taken = u64::from(queue.head().wrapping_sub(low(record.rx_head)));
        let head = record.rx_head + taken;
        if head > record.rx_tail {
            return self.broken_queue(listener);
        }
        if let Some(record) = self.records.at_mut(listener) {
            record.rx_head = head;
        }
        for position in record.rx_head..head {
            if let Some(object) = self.entry(listener, position) {
                self.popped(object, listener, position, Some(id));
            }
        }
    }

    /// The program has broken a queue of a listener, which ends.
    pub(super) fn broken_queue(&mut self, listener: u32) {
        let role = self.records.at(listener).map(|record| record.role);
        let Some(Role::Listener(id)) = role else {
            return;
        };
        if !self.is_ours(listener) {
            if let Some(peers) = self.shared.peers.as_deref() {
                peers.tell_first(Mail::Broken {
                    owner: self.owner,
                    object: listener,
                });
            }
            return;
        }
        let Some(cell) = self.cell(listener) else {
            return;
        };
        self.shared.counters.objects_broken_by_program.raise();
        self.unlisten(listener, id);
        cell.host
            .error
            .store(errno_number(Errno::INVAL), Ordering::Release);
        cell.host.kind.store(kind::FAILED, Ordering::Release);
        self.alert(listener);
    }

    /// The object at a position of this lcore's queue. We wrote it, and the program maps it read-only.
    pub(super) fn entry(&self, listener: u32, position: u64) -> Option<u32> {
        let entry = self.queue(listener)?.entry(low(position))?;
        Some(entry.load(Ordering::Relaxed))
    }

    /// This lcore's queue of a listener.
    pub(super) fn queue(&self, listener: u32) -> Option<Queue<'_>> {
        let me = self.shared.me;
        let entries = self.segments.receive.accept_entries(listener, me)?;
        Queue::new(self.cell(listener)?, me, entries)
    }

    /// A flow has left the accept queue: taken by the program, or with its listener.
    pub(super) fn popped(
        &mut self,
        object: u32,
        listener: u32,
        position: u64,
        id: Option<ListenerId>,
    ) {
        let Some(record) = self.records.at_mut(object) else {
            return;
        };
        let place = record.queued.map(|it| (it.listener, it.position));
        if place != Some((listener, position)) {
            return;
        }
        record.queued = None;
        if let (Role::Flow(flow), Some(id)) = (record.role, id) {
            self.shared.stack.accepted(id, flow);
        }
        self.let_go(object);
    }
}

/// A position as the channel has it: its lower half.
#[allow(clippy::cast_possible_truncation)]
pub(super) const fn low(position: u64) -> u32 {
    position as u32
}
