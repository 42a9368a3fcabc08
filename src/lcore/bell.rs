//! What a doorbell means: the whole cell is looked at, and what differs from the record is carried out.

use core::net::{Ipv4Addr, SocketAddrV4};

use super::family::Work;
use super::object::{Record, Role, Token};
use super::segments::PAGE;
use crate::channel::accept_ring;
use crate::channel::cell::{ObjectCell, flag, kind, operation, option, shut};
use crate::channel::sync::{AtomicU32, Ordering};
use crate::errno::{Errno, Result};
use crate::id::ListenerId;
use crate::stack::{ConnectRequest, FlowOptions, ListenRequest};

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
    pub(super) fn is_in_use(&self, object: u32) -> bool {
        if object >= self.segments.layout().first_host_object() {
            return self.shared.memory.is_known(self.owner, object);
        }
        self.segments
            .control
            .taken()
            .is_some_and(|taken| taken.has(object))
    }

    /// Whether the program asks something of `object` that is not answered.
    pub(super) fn asks(&self, object: u32) -> bool {
        let done = self.records.at(object).map_or(0, |record| record.wish);
        self.cell(object)
            .is_some_and(|cell| cell.wish.wish.load(Ordering::Relaxed) != done)
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
            // The program has seen it fail, or has given it up by a shutdown that we have not seen yet.
            Role::Flow(flow)
                if (record.connecting || record.flags & flag::OVER != 0)
                    && record.rx_tail == 0
                    && record.tx_head == 0 =>
            {
                let shared = &mut self.shared;
                shared
                    .stack
                    .forget(self.now, flow, shared.memory, shared.tx);
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
        record.note_options(cell, layout.tx_bytes(object));
        cell.host.flags.store(record.flags, Ordering::Release);
        self.shared.counters.flows_connected.raise();
        store_endpoint(local, &cell.fact.local_address, &cell.fact.local_port);
        store_endpoint(remote, &cell.fact.remote_address, &cell.fact.remote_port);
        cell.host.kind.store(kind::CONNECTING, Ordering::Release);
        Ok(())
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
        record.note_options(cell, self.segments.layout().tx_bytes(object));
        cell.host.flags.store(record.flags, Ordering::Release);
        match record.role {
            Role::Flow(flow) => self.shared.stack.set_options(flow, &options_of(cell)),
            Role::Listener(id) => self
                .shared
                .stack
                .set_listener_options(id, &options_of(cell)),
            Role::Idle | Role::Over => {}
        }
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
    pub(super) fn entry(&self, listener: u32, position: u64) -> Option<u32> {
        let entries = self.segments.receive.accept_entries(
            listener,
            accept_ring::entries(self.segments.layout().rx_ring_bytes),
        )?;
        let place = usize::try_from(position).ok()? % entries.len().max(1);
        Some(entries.get(place)?.load(Ordering::Relaxed))
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

/// Options as the stack takes them.
pub(super) fn options_of(cell: &ObjectCell) -> FlowOptions {
    let of = |word: &AtomicU32| word.load(Ordering::Relaxed);
    let bits = of(&cell.option.bits);
    let byte = |word: &AtomicU32| u8::try_from(of(word)).unwrap_or(u8::MAX);
    let word = |word: &AtomicU32| u16::try_from(of(word)).unwrap_or(u16::MAX);
    FlowOptions {
        nodelay: bits & option::NODELAY != 0,
        keepalive: bits & option::KEEPALIVE != 0,
        keepidle_s: word(&cell.option.keepidle_s),
        keepintvl_s: word(&cell.option.keepintvl_s),
        keepcnt: byte(&cell.option.keepcnt),
        user_timeout_ms: of(&cell.option.user_timeout_ms),
        rx_bytes: of(&cell.option.rcvbuf),
        max_segment: word(&cell.option.max_segment),
        tos: u8::try_from(of(&cell.option.tos) & 0xff).unwrap_or(0),
        ttl: byte(&cell.option.ttl),
        min_ttl: byte(&cell.option.min_ttl),
        syn_count: byte(&cell.option.syn_count),
        linger2_s: linger2(of(&cell.option.linger2_s)),
        defer_accept_s: word(&cell.option.defer_accept_s),
        receive_errors: bits & option::RECEIVE_ERRORS != 0,
    }
}

/// TCP_LINGER2 as the stack takes it: Linux allows two minutes at most.
fn linger2(word: u32) -> i16 {
    i16::try_from(i32::from_ne_bytes(word.to_ne_bytes())).unwrap_or(0)
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
