//! What a doorbell means: the whole cell is looked at, and what differs from the record is carried out.

use core::net::{Ipv4Addr, SocketAddrV4};

use super::family::Work;
use super::object::{Record, Role, Token};
use super::segments::PAGE;
use crate::channel::accept_ring;
use crate::channel::byte_ring::{self, Pending, Range, Span};
use crate::channel::cell::{ObjectCell, flag, kind, operation, option, shut};
use crate::channel::map::Control;
use crate::channel::sync::{AtomicU32, Ordering, fence};
use crate::errno::{Errno, Result};
use crate::id::{FlowId, ListenerId};
use crate::stack::{Close, ConnectRequest, Facts, FlowOptions, FlowState, ListenRequest};

/// Bit of `WishLine::linger` that says that SO_LINGER is on.
const LINGER_ON: u32 = 1 << 31;

impl<'a> Work<'a> {
    /// The doorbell of `object` rang.
    pub(super) fn bell(&mut self, object: u32) {
        let Some(cell) = self.cell(object) else {
            return;
        };
        if !self.is_in_use(object) {
            return;
        }
        self.wish(object, cell);
        self.options(object, cell);
        let Some(record) = self.records.at_mut(object).copied() else {
            return;
        };
        match record.role {
            Role::Flow(flow) => {
                if let Some(queued) = record.queued {
                    self.pops(queued.listener);
                }
                if record.connecting && cell.write.shut.load(Ordering::Relaxed) & shut::READ != 0 {
                    self.disconnect(object, cell, flow);
                } else {
                    self.pull(object, flow);
                }
            }
            Role::Listener(listener) => {
                self.pops(object);
                if cell.write.shut.load(Ordering::Relaxed) & shut::READ != 0 {
                    // It may listen again; nothing is wrong with it (Linux inet_shutdown).
                    self.unlisten(object, listener);
                    cell.wish.told.store(1, Ordering::Relaxed);
                    cell.host.kind.store(kind::FAILED, Ordering::Release);
                    self.alert(object);
                }
            }
            Role::Idle | Role::Over => {}
        }
        self.let_go(object);
    }

    /// Whether the index was handed out: by us, or by the program in its `taken` map.
    fn is_in_use(&self, object: u32) -> bool {
        if object >= self.segments.layout().first_host_object() {
            return self.shared.memory.is_known(self.owner, object);
        }
        self.segments
            .control
            .taken()
            .is_some_and(|taken| taken.has(object))
    }

    fn wish(&mut self, object: u32, cell: &ObjectCell) {
        // Acquire: the fields of the wish are written before its number.
        let wish = cell.wish.wish.load(Ordering::Acquire);
        let Some(record) = self.records.at_mut(object) else {
            return;
        };
        if record.wish == wish {
            return;
        }
        record.wish = wish;
        let done = match cell.wish.operation.load(Ordering::Relaxed) {
            operation::LISTEN => self.listen(object, cell),
            operation::CONNECT => self.connect(object, cell),
            _ => Err(Errno::INVAL),
        };
        let answer = done.err().map_or(0, errno_number);
        if answer != 0 {
            self.shared.counters.wishes_refused.raise();
        }
        cell.host.answer.store(answer, Ordering::Relaxed);
        // Release: the answer and the new kind are there before the number says so.
        cell.host.answered.store(wish, Ordering::Release);
        self.alert(object);
    }

    fn listen(&mut self, object: u32, cell: &ObjectCell) -> Result<()> {
        let layout = self.segments.layout();
        let entries = accept_ring::entries(layout.rx_ring_bytes);
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
                return Ok(());
            }
            Role::Idle if object < layout.first_host_object() => {}
            // It listened before a shutdown, and nobody has flows of it: its queue goes on, empty.
            Role::Over if record.was_listener => {
                cell.read.rx_head.store(record.rx_tail, Ordering::Release);
            }
            _ => return Err(Errno::INVAL),
        }
        let local = endpoint(&cell.wish.local_address, &cell.wish.local_port)?;
        if let Err(errno) = self
            .shared
            .memory
            .back_queue(self.owner, object, entries * 4)
        {
            return self.refused(cell, errno);
        }
        let request = ListenRequest {
            local,
            backlog,
            owner: self.owner,
            token: self.token(object),
            options: options_of(cell),
        };
        let listener = match self.shared.stack.listen(&request) {
            Ok(listener) => listener,
            Err(errno) => return self.refused(cell, errno),
        };
        if record.role == Role::Idle {
            *self.busy += 1;
        }
        let record = self.records.at_mut(object).ok_or(Errno::INVAL)?;
        record.role = Role::Listener(listener);
        record.was_listener = true;
        record.rx_head = record.rx_tail;
        self.shared.counters.listeners_made.raise();
        store_endpoint(local, &cell.fact.local_address, &cell.fact.local_port);
        cell.host.kind.store(kind::LISTENER, Ordering::Release);
        Ok(())
    }

    fn connect(&mut self, object: u32, cell: &ObjectCell) -> Result<()> {
        let layout = self.segments.layout();
        let record = *self.records.at_mut(object).ok_or(Errno::INVAL)?;
        match record.role {
            Role::Idle if object < layout.first_host_object() => {}
            // After a refused attempt nothing has passed, and the object may be used again.
            Role::Over if record.rx_tail == 0 && record.tx_head == 0 && !record.closing => {
                cell.host.flags.store(0, Ordering::Release);
            }
            Role::Flow(_) => return Err(Errno::ALREADY),
            _ => return Err(Errno::INVAL),
        }
        let remote = endpoint(&cell.wish.remote_address, &cell.wish.remote_port)?;
        let local_address = Ipv4Addr::from_bits(cell.wish.local_address.load(Ordering::Relaxed));
        let local_port = port(&cell.wish.local_port)?;
        if !self.shared.memory.back_transmit(self.owner, object, PAGE) {
            return self.refused(cell, Errno::NOBUFS);
        }
        let request = ConnectRequest {
            local_address: (!local_address.is_unspecified()).then_some(local_address),
            local_port: (local_port != 0).then_some(local_port),
            remote,
            owner: self.owner,
            token: self.token(object),
            options: options_of(cell),
        };
        let shared = &mut self.shared;
        shared.memory.want(self.owner, Some(object));
        let connected = shared
            .stack
            .connect(self.now, &request, shared.memory, shared.tx);
        shared.memory.want(self.owner, None);
        let (flow, local) = match connected {
            Ok(connected) => connected,
            Err(errno) => return self.refused(cell, errno),
        };
        if record.role == Role::Idle {
            *self.busy += 1;
        }
        let record = self.records.at_mut(object).ok_or(Errno::INVAL)?;
        *record = Record {
            role: Role::Flow(flow),
            wish: record.wish,
            options: cell.option.changed.load(Ordering::Acquire),
            connecting: true,
            ..Record::default()
        };
        self.shared.counters.flows_connected.raise();
        store_endpoint(local, &cell.fact.local_address, &cell.fact.local_port);
        store_endpoint(remote, &cell.fact.remote_address, &cell.fact.remote_port);
        cell.host.kind.store(kind::CONNECTING, Ordering::Release);
        Ok(())
    }

    /// A shutdown gives an attempt to connect up (Linux tcp_disconnect in SYN-SENT).
    fn disconnect(&mut self, object: u32, cell: &ObjectCell, flow: FlowId) {
        if let Some(record) = self.records.at_mut(object) {
            record.closed = true;
            record.error_told = true;
            record.connecting = false;
            record.flags |= flag::OVER | flag::TX_BROKEN;
            cell.host.flags.store(record.flags, Ordering::Release);
        }
        cell.host
            .error
            .store(errno_number(Errno::CONNRESET), Ordering::Release);
        cell.host.kind.store(kind::FAILED, Ordering::Release);
        self.shared.stack.close(self.now, flow, Close::Abort);
        self.alert(object);
    }

    /// Marks a wish that ended the object's hopes.
    fn refused(&self, cell: &ObjectCell, errno: Errno) -> Result<()> {
        cell.host
            .error
            .store(errno_number(errno), Ordering::Release);
        cell.host.kind.store(kind::FAILED, Ordering::Release);
        Err(errno)
    }

    pub(super) const fn token(&self, object: u32) -> u32 {
        Token {
            owner: self.owner,
            object,
        }
        .pack()
    }

    fn options(&mut self, object: u32, cell: &ObjectCell) {
        // Acquire: the options are written before the number is raised.
        let changed = cell.option.changed.load(Ordering::Acquire);
        let Some(record) = self.records.at_mut(object) else {
            return;
        };
        if record.options == changed {
            return;
        }
        record.options = changed;
        if let Role::Flow(flow) = record.role {
            self.shared.stack.set_options(flow, &options_of(cell));
        }
    }

    /// Moves what the program has written into the stack, and tells the stack what it has read.
    pub(super) fn pull(&mut self, object: u32, flow: FlowId) {
        let Some(cell) = self.cell(object) else {
            return;
        };
        let layout = self.segments.layout();
        let capacity = layout.tx_ring_bytes;
        let backed = self.shared.memory.transmit_backed(self.owner, object);
        let Some(record) = self.records.at_mut(object).map(|record| *record) else {
            return;
        };
        if record.closed {
            return;
        }
        if self.consumed(object, flow, cell, &record).is_err() {
            return self.broken(object, flow);
        }
        let mut head = record.tx_head;
        let empty = loop {
            let range = match byte_ring::pending(&cell.write, head, backed.min(capacity), capacity)
            {
                Pending::Bytes(range) => range,
                Pending::Broken => return self.broken(object, flow),
            };
            if range.is_empty() {
                break true;
            }
            let taken = self.send(object, flow, range);
            head += taken as u64;
            if taken < range.len() as usize {
                break false;
            }
        };
        if head != record.tx_head {
            // Release: the bytes before it are copied out.
            cell.host.tx_head.store(head, Ordering::Release);
        }
        let shut = cell.write.shut.load(Ordering::Relaxed);
        let Some(record) = self.records.at_mut(object) else {
            return;
        };
        record.tx_head = head;
        if empty
            && !record.connecting
            && shut & shut::WRITE != 0
            && !record.finished
            && !record.closing
        {
            record.finished = true;
            self.shared.stack.shutdown_write(self.now, flow);
        }
        self.room(object, cell, head, backed);
    }

    fn send(&mut self, object: u32, flow: FlowId, range: Range) -> usize {
        let control = &self.segments.control;
        let mut from = Cursor { range, done: 0 };
        self.shared
            .stack
            .send_with(self.now, flow, range.len() as usize, &mut |to| {
                from.fill(control, object, to);
            })
    }

    /// Gives the transmit ring more memory when it is wanted, and an edge when a third is free.
    fn room(&mut self, object: u32, cell: &ObjectCell, head: u64, backed: u32) {
        // Pairs with the fence of a writer that found no room: it sees the new head, or we see its mark.
        fence(Ordering::SeqCst);
        let capacity = self.segments.layout().tx_ring_bytes;
        let wanted = cell.write.want_room.load(Ordering::SeqCst) != 0;
        let queued = cell
            .write
            .tx_tail
            .load(Ordering::Relaxed)
            .saturating_sub(head);
        if backed < capacity && (wanted || queued.saturating_mul(2) > u64::from(backed)) {
            // Without memory the ring stays small; the writer waits for its page.
            if !self
                .shared
                .memory
                .back_transmit(self.owner, object, capacity)
            {
                self.shared.counters.flows_refused_no_memory.raise();
            }
        }
        if wanted && crate::readiness::is_writable(cell, capacity) {
            cell.write.want_room.store(0, Ordering::SeqCst);
            self.alert(object);
        }
    }

    /// Tells the stack what the program has read.
    fn consumed(
        &mut self,
        object: u32,
        flow: FlowId,
        cell: &ObjectCell,
        record: &Record,
    ) -> core::result::Result<(), Broken> {
        // Acquire: the bytes before it are copied out.
        let head = cell.read.rx_head.load(Ordering::Acquire);
        if head < record.rx_head || head > record.rx_tail {
            return Err(Broken);
        }
        if head > record.rx_head {
            if let Some(record) = self.records.at_mut(object) {
                record.rx_head = head;
            }
            self.shared.stack.consumed(self.now, flow, head);
        }
        Ok(())
    }

    /// The program has broken the channel of a flow: it is reset.
    fn broken(&mut self, object: u32, flow: FlowId) {
        self.shared.counters.objects_broken_by_program.raise();
        if let Some(record) = self.records.at_mut(object) {
            record.closed = true;
            record.flags |= flag::TX_BROKEN;
        }
        self.shared.stack.close(self.now, flow, Close::Abort);
    }

    /// Tells the stack which flows of a listener's queue were taken.
    pub(super) fn pops(&mut self, listener: u32) {
        let Some(cell) = self.cell(listener) else {
            return;
        };
        let Some(record) = self.records.at(listener).copied() else {
            return;
        };
        let Role::Listener(id) = record.role else {
            return;
        };
        let head = cell.read.rx_head.load(Ordering::Acquire);
        if head < record.rx_head || head > record.rx_tail {
            self.shared.counters.objects_broken_by_program.raise();
            self.unlisten(listener, id);
            cell.host
                .error
                .store(errno_number(Errno::INVAL), Ordering::Release);
            cell.host.kind.store(kind::FAILED, Ordering::Release);
            return self.alert(listener);
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

    /// The object at a position of an accept queue. We wrote it, and the program maps it read-only.
    fn entry(&self, listener: u32, position: u64) -> Option<u32> {
        let entries = self.segments.receive.accept_entries(
            listener,
            accept_ring::entries(self.segments.layout().rx_ring_bytes),
        )?;
        let place = usize::try_from(position).ok()? % entries.len().max(1);
        Some(entries.get(place)?.load(Ordering::Relaxed))
    }

    /// A flow has left the accept queue: taken by the program, or with its listener.
    fn popped(&mut self, object: u32, listener: u32, position: u64, id: Option<ListenerId>) {
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

    /// Ends a listener; what was not accepted is reset (tcp(7): as Linux does on close of a listener).
    pub(super) fn unlisten(&mut self, object: u32, id: ListenerId) {
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

    /// Ends `object` when nobody holds it any more.
    pub(super) fn let_go(&mut self, object: u32) {
        let Some(record) = self.records.at_mut(object).copied() else {
            return;
        };
        if record.queued.is_some() || self.is_held(object) {
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
        self.pull(object, flow);
        let Some(record) = self.records.at_mut(object) else {
            return;
        };
        record.closing = true;
        if record.closed {
            return;
        }
        let unread = record.rx_tail > record.rx_head;
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
            // The stack has no room for the rest yet; `publish` comes back when it has.
            return;
        } else {
            Close::Graceful
        };
        if let Some(record) = self.records.at_mut(object) {
            record.closed = true;
        }
        self.shared.stack.close(self.now, flow, how);
    }

    /// Resets every flow of the family: its program ended long ago.
    pub(super) fn abandon(&mut self) {
        for object in self.records.indices() {
            let Some(record) = self.records.at_mut(object) else {
                continue;
            };
            if let Role::Flow(flow) = record.role {
                record.closing = true;
                record.closed = true;
                record.queued = None;
                self.shared.counters.flows_reset_linger_over.raise();
                self.shared.stack.close(self.now, flow, Close::Abort);
            }
        }
    }

    /// Frees an index that neither the stack nor a process uses.
    fn free(&mut self, object: u32) {
        if self.shared.memory.is_lent(self.owner, object) {
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
        reset(&self.segments.control, object, cell);
        self.shared.memory.release(self.owner, object);
        if object < self.segments.layout().first_host_object()
            && let Some(taken) = self.segments.control.taken()
        {
            taken.clear(object);
        }
    }
}

/// The program has written something that cannot be.
struct Broken;

/// Walks through a range of a transmit ring.
struct Cursor {
    range: Range,
    done: u32,
}

impl Cursor {
    /// Copies the next bytes into `to`.
    fn fill(&mut self, control: &Control, object: u32, to: &mut [u8]) {
        let mut rest = to;
        while !rest.is_empty() {
            let span = self.next(rest.len());
            let Some((part, after)) = rest.split_at_mut_checked(span.len as usize) else {
                return;
            };
            if span.len == 0 || !control.tx_copy_out(object, span, part) {
                // More than was offered: never asked for by the stack.
                part.fill(0);
                after.fill(0);
                return;
            }
            self.done += span.len;
            rest = after;
        }
    }

    fn next(&self, want: usize) -> Span {
        let Range { first, second } = self.range;
        let (span, skip) = match self.done.checked_sub(first.len) {
            None => (first, self.done),
            Some(skip) => (second, skip),
        };
        let left = span.len.saturating_sub(skip);
        Span {
            offset: span.offset + skip.min(span.len),
            len: u32::try_from(want).unwrap_or(left).min(left),
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

/// Options as the stack takes them.
pub(super) fn options_of(cell: &ObjectCell) -> FlowOptions {
    let of = |word: &AtomicU32| word.load(Ordering::Relaxed);
    let bits = of(&cell.option.bits);
    FlowOptions {
        nodelay: bits & option::NODELAY != 0,
        keepalive: bits & option::KEEPALIVE != 0,
        keepidle_s: of(&cell.option.keepidle_s),
        keepintvl_s: of(&cell.option.keepintvl_s),
        keepcnt: of(&cell.option.keepcnt),
        user_timeout_ms: of(&cell.option.user_timeout_ms),
        rx_bytes: of(&cell.option.rcvbuf),
        max_segment: u16::try_from(of(&cell.option.max_segment)).unwrap_or(u16::MAX),
        tos: u8::try_from(of(&cell.option.tos) & 0xff).unwrap_or(0),
        ttl: u8::try_from(of(&cell.option.ttl)).unwrap_or(u8::MAX),
    }
}

/// An errno as the cell carries it.
pub(super) fn errno_number(errno: Errno) -> u32 {
    errno.raw_os_error().unsigned_abs()
}

fn port(word: &AtomicU32) -> Result<u16> {
    u16::try_from(word.load(Ordering::Relaxed)).map_err(|_| Errno::INVAL)
}

fn endpoint(address: &AtomicU32, number: &AtomicU32) -> Result<SocketAddrV4> {
    let address = Ipv4Addr::from_bits(address.load(Ordering::Relaxed));
    Ok(SocketAddrV4::new(address, port(number)?))
}

pub(super) fn store_endpoint(endpoint: SocketAddrV4, address: &AtomicU32, port: &AtomicU32) {
    address.store(endpoint.ip().to_bits(), Ordering::Relaxed);
    port.store(u32::from(endpoint.port()), Ordering::Relaxed);
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
    ] {
        word.store(0, Ordering::Relaxed);
    }
    let (fact, wish, options) = (&cell.fact, &cell.wish, &cell.option);
    for word in [
        &host.edge,
        &host.flags,
        &host.error,
        &host.answered,
        &host.answer,
        &host.tx_backed,
        &read.rcvlowat,
        &read.status_flags,
        &read.spilled,
        read.items_owner.word(),
        write.tx_owner.word(),
        &write.want_room,
        &write.shut,
        &fact.local_address,
        &fact.local_port,
        &fact.remote_address,
        &fact.remote_port,
        &fact.tcp_state,
        &fact.srtt_us,
        &fact.retransmits,
        &fact.mss,
        &fact.listener,
        &wish.wish,
        &wish.operation,
        &wish.backlog,
        &wish.local_address,
        &wish.local_port,
        &wish.remote_address,
        &wish.remote_port,
        &wish.linger,
        &wish.told,
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
    ] {
        word.store(0, Ordering::Relaxed);
    }
    host.kind.store(kind::FREE, Ordering::Release);
}
