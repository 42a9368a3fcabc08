//! How objects end, and how their indices become free.

use super::family::Work;
use super::object::{Record, Role};
use crate::channel::cell::{ObjectCell, flag, kind};
use crate::channel::map::Control;
use crate::channel::sync::Ordering;
use crate::errno::Errno;
use crate::id::FlowId;
use crate::stack::{Close, Facts, FlowState};

/// Bit of `WishLine::linger` that says that SO_LINGER is on.
const LINGER_ON: u32 = 1 << 31;

impl Work<'_> {
    /// Ends `object` when nobody holds it any more.
    pub(super) fn let_go(&mut self, object: u32) {
        let Some(record) = self.records.at_mut(object).copied() else {
            return;
        };
        // A listener of the first lcore's ends there.
        if record.queued.is_some() || !self.is_ours(object) || self.is_held(object) {
            return;
        }
        match record.role {
            Role::Listener(id) => {
                self.unlisten(object, id);
                self.free(object);
            }
            Role::Flow(flow) => self.close(object, flow),
            // Nothing was asked yet: a program has just taken the index and is about to hold it, and this is a bell of
            // the index's last user. Freed now, it would be given to two.
            Role::Idle if record.wish == 0 => {}
            Role::Idle | Role::Over => self.free(object),
        }
    }

    /// The process that held `object` is gone.
    pub(super) fn bell_of_gone(&mut self, object: u32) {
        self.bell(object);
        let unused = self.is_in_use(object)
            && !self.is_held(object)
            && self
                .records
                .at(object)
                .is_none_or(|record| record.role == Role::Idle && record.wish == 0);
        if unused {
            self.free(object);
        }
    }

    /// The last holder of a flow is gone: the rest goes out, then FIN; or RST where Linux would reset (tcp_close: unread
    /// bytes, or SO_LINGER with 0 seconds).
    fn close(&mut self, object: u32, flow: FlowId) {
        let Some(cell) = self.cell(object) else {
            return;
        };
        if let Some(record) = self.records.at_mut(object) {
            // The end takes everything along.
            record.released = u64::MAX;
        }
        self.pull(object, flow);
        let Some(record) = self.records.at_mut(object) else {
            return;
        };
        record.closing = true;
        if record.closed {
            return;
        }
        let unread = record.rx_tail.max(record.rx_seen) > record.rx_head;
        let rest = cell.write.tx_tail.load(Ordering::Acquire) > record.tx_head && !record.finished;
        let linger = cell.wish.linger.load(Ordering::Relaxed);
        let how = if unread || linger == LINGER_ON {
            Close::Abort
        } else if rest
            && self
                .shared
                .stack
                .facts(flow)
                .is_some_and(|facts| can_send(&facts))
        {
            // The stack has no room for the rest yet; `publish` comes back when it has, or when the peer has had its time.
            return self.shared.stack.leave(self.now, flow);
        } else {
            Close::Graceful
        };
        if let Some(record) = self.records.at_mut(object) {
            record.closed = true;
        }
        let shared = &mut self.shared;
        if how == Close::Abort {
            shared
                .stack
                .send_now(self.now, flow, shared.memory, shared.tx);
        }
        shared.stack.close(self.now, flow, how);
    }

    /// A shutdown gives an attempt to connect up (Linux tcp_disconnect in SYN-SENT). The program has told itself the error.
    pub(super) fn disconnect(&mut self, object: u32, cell: &ObjectCell, flow: FlowId) {
        if let Some(record) = self.records.at_mut(object) {
            record.closed = true;
            record.error_told = true;
            record.connecting = false;
            record.flags |= flag::OVER | flag::TX_BROKEN;
            cell.host.flags.store(record.flags, Ordering::Release);
        }
        cell.host.kind.store(kind::FAILED, Ordering::Release);
        self.shared.stack.close(self.now, flow, Close::Abort);
        self.alert(object);
    }

    /// Resets every flow of the family: its program ended long ago.
    pub(super) fn abandon(&mut self) {
        self.abandon_if(|_| true);
    }

    /// As [`Self::abandon`], but for those whose peer has everything and our FIN. It may not have read it yet, and a reset could
    /// keep it from that; what it says later is answered by a reset from whoever has our address then.
    pub(super) fn give_up(&mut self) {
        self.abandon_if(|facts| !facts.is_some_and(|facts| facts.tx_finished));
    }

    fn abandon_if(&mut self, which: impl Fn(Option<Facts>) -> bool) {
        for object in self.records.indices() {
            let Some(record) = self.records.at_mut(object) else {
                continue;
            };
            if let Role::Flow(flow) = record.role
                && which(self.shared.stack.facts(flow))
            {
                record.closing = true;
                record.closed = true;
                record.queued = None;
                self.shared.counters.flows_reset_linger_over.raise();
                self.shared.stack.close(self.now, flow, Close::Abort);
                if self.is_held(object) {
                    self.tell_reset(object);
                }
            }
        }
    }

    /// A program that has the flow still must not take its end for that of the peer's stream, or for a connection that is up.
    fn tell_reset(&mut self, object: u32) {
        let (Some(cell), Some(record)) = (self.cell(object), self.records.at_mut(object)) else {
            return;
        };
        if record.error_told {
            return;
        }
        record.error_told = true;
        record.flags |= flag::OVER | flag::TX_BROKEN;
        let error = Errno::CONNRESET.raw_os_error().unsigned_abs();
        cell.host.error.store(error, Ordering::Release);
        cell.host.flags.store(record.flags, Ordering::Release);
        if core::mem::take(&mut record.connecting) {
            cell.host.kind.store(kind::FAILED, Ordering::Release);
        }
        self.alert(object);
    }

    /// Frees an index that neither the stack nor a process uses.
    fn free(&mut self, object: u32) {
        // Nor while another lcore may still fill its queue.
        let waits = self.records.at(object).map_or(0, |record| record.waits);
        if waits > 0 || self.shared.memory.is_lent(self.owner, object) {
            return;
        }
        let Some(cell) = self.cell(object) else {
            return;
        };
        let Some(record) = self.records.at_mut(object) else {
            return;
        };
        if record.role != Role::Idle {
            *self.busy = self.busy.saturating_sub(1);
        }
        *record = Record::default();
        self.summons.forget(object);
        let grown = cell.write.tx_grown.load(Ordering::Acquire);
        reset(&self.segments.control, object, cell);
        self.shared.memory.release(self.owner, object, grown);
        if object < self.segments.layout().first_host_object()
            && let Some(taken) = self.segments.control.taken()
        {
            taken.clear(object);
        }
    }
}

/// Whether bytes can still leave.
fn can_send(facts: &Facts) -> bool {
    facts.error.is_none()
        && matches!(
            facts.state,
            FlowState::SynReceived | FlowState::Established | FlowState::CloseWait
        )
}

/// Makes a cell free again; the raised generation makes every handle to it stale.
fn reset(control: &Control, object: u32, cell: &ObjectCell) {
    cell.host.generation.fetch_add(1, Ordering::SeqCst);
    cell.watch.epolls.drain(|epoll| {
        if let Some(ready) = control.ready(epoll) {
            ready.clear(object);
        }
    });
    cell.watch.slots.clear();
    for item in &cell.items {
        item.epoll.store(0, Ordering::Release);
        item.events.store(0, Ordering::Relaxed);
        item.seen_edge.store(0, Ordering::Relaxed);
        item.fd.store(0, Ordering::Relaxed);
        item.data.store(0, Ordering::Relaxed);
    }
    let (host, read, write) = (&cell.host, &cell.read, &cell.write);
    for word in [
        &host.rx_tail,
        &host.tx_head,
        &host.tx_acked,
        &read.rx_head,
        &read.rcvtimeo_us,
        &read.sndtimeo_us,
        &write.tx_tail,
        &write.tx_reserved,
        &write.tx_origin,
        &read.urgent_taken,
        &write.urgent_end,
        &cell.fact.urgent,
        &cell.fact.arrived_ns,
    ] {
        word.store(0, Ordering::Relaxed);
    }
    let (fact, wish, options) = (&cell.fact, &cell.wish, &cell.option);
    for word in [
        &host.edge,
        &host.edges_in,
        &host.edges_out,
        &host.flags,
        &host.error,
        &host.answered,
        &host.answer,
        &host.tx_backed,
        &read.rcvlowat,
        &read.status_flags,
        &read.spilled,
        &read.exclusive,
        &read.fd,
        &read.peek_offset,
        &read.signals,
        read.items_owner.word(),
        write.tx_owner.word(),
        &write.want_room,
        &write.shut,
        &write.tx_grown,
        &write.zerocopy_sent,
        &write.zerocopy_told,
        &write.more,
        &write.pushed,
        &fact.local_address,
        &fact.local_port,
        &fact.remote_address,
        &fact.remote_port,
        &fact.tcp_state,
        &fact.srtt_us,
        &fact.retransmits,
        &fact.mss,
        &fact.listener,
        &fact.payload_mark,
        &fact.peer_ttl,
        &fact.unsent,
        &wish.wish,
        &wish.operation,
        &wish.backlog,
        &wish.local_address,
        &wish.local_port,
        &wish.remote_address,
        &wish.remote_port,
        &wish.linger,
        &wish.told,
        &wish.info,
        &options.changed,
        &options.bits,
        &options.keepidle_s,
        &options.keepintvl_s,
        &options.keepcnt,
        &options.user_timeout_ms,
        &options.rcvbuf,
        &options.sndbuf,
        &options.max_segment,
        &options.tos,
        &options.ttl,
        &options.min_ttl,
        &options.syn_count,
        &options.linger2_s,
        &options.defer_accept_s,
        &options.notsent_lowat,
    ] {
        word.store(0, Ordering::Relaxed);
    }
    for word in cell.queue.heads.iter().chain(&cell.queue.tails) {
        word.store(0, Ordering::Relaxed);
    }
    host.kind.store(kind::FREE, Ordering::Release);
}
