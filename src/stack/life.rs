//! How flows begin and end.

use core::net::{Ipv4Addr, SocketAddrV4};

use super::api::{Change, ConnectRequest, FlowMemory, FlowState};
use super::buffers::Buffers;
use super::demux::{FlowKey, TcpFlags, TcpFrame};
use super::flow::Engine;
use super::flow_table::{Flags, FlowTable, Phase};
use super::input::{clamp_peer_mss, rcv_nxt, segment_limit, shift_of};
use super::interface::interface;
use super::isn::{isn, seed_for};
use super::neighbor::Resolution;
use super::segment::ControlSegment;
use super::stack::{Close, Io, Stack};
use super::time_wait::{TimeWait, Verdict};
use super::tracker::ahead;
use super::watchdog::Watchdog;
use crate::device::TxQueue;
use crate::errno::Errno;
use crate::id::{FlowId, ListenerId};
use crate::time::Instant;

impl Stack {
    /// A segment without a flow: a SYN for a listener, something for the TIME-WAIT table, or a stranger.
    pub(crate) fn receive_stray(&mut self, io: &mut Io<'_>, bytes: &mut [u8], frame: &TcpFrame) {
        let is_syn = frame.flags.contains(TcpFlags::SYN)
            && !frame.flags.contains(TcpFlags::ACK)
            && !frame.flags.contains(TcpFlags::RST);
        let mut old = None;
        match self.time_wait.on_segment(io.now, frame) {
            Verdict::Unknown => {}
            Verdict::Ignore => return,
            Verdict::Acknowledge(reply) => {
                let looped = self.is_looped(frame.key.remote);
                self.counters.time_wait_acks_sent.raise();
                return self.send_control(io, &reply, frame.source_mac, looped);
            }
            Verdict::Replace { old_snd_nxt } => {
                self.counters.time_wait_replaced.raise();
                old = Some(old_snd_nxt);
            }
        }
        if is_syn && let Some(listener) = self.listeners.lookup(frame.key, &self.config.secret) {
            return self.open_passive(io, bytes, frame, listener, old);
        }
        let Some(reply) = ControlSegment::reset_for(frame) else {
            return self.counters.rx_resets_ignored.raise();
        };
        if self.resets.allow(io.now) {
            self.counters.resets_sent_no_flow.raise();
            let looped = self.is_looped(frame.key.remote);
            self.send_control(io, &reply, frame.source_mac, looped);
        } else {
            self.counters.resets_limited.raise();
        }
    }

    /// Ends the oldest handshake of a listener in favour of a new one. False when all of them are young.
    fn give_way(&mut self, io: &mut Io<'_>, id: ListenerId) -> bool {
        let table = &self.table;
        let oldest = self
            .listeners
            .at_mut(id)
            .and_then(|listener| listener.gives_way(io.now, |flow| is_half_open(table, flow)));
        let Some(index) = oldest.and_then(|flow| self.table.resolve(flow)) else {
            return false;
        };
        self.counters.flows_gave_way_half_open.raise();
        self.kill(io, index, Errno::TIMEDOUT, false);
        true
    }

    /// A SYN for a listener; `old` is where a connection in TIME-WAIT, which it replaces, had come to.
    fn open_passive(
        &mut self,
        io: &mut Io<'_>,
        bytes: &mut [u8],
        frame: &TcpFrame,
        id: ListenerId,
        old: Option<u32>,
    ) {
        let Some(listener) = self.listeners.at(id) else {
            return;
        };
        if frame.ttl < listener.options.min_ttl {
            return self.counters.rx_segments_ignored.raise();
        }
        if listener.accept_queue_full() {
            return self.counters.syn_dropped_accept_queue_full.raise();
        }
        let (owner, options) = (listener.owner, listener.options);
        if listener.syn_backlog_full() && !self.give_way(io, id) {
            return self.counters.syn_dropped_backlog_full.raise();
        }
        // Half-open flows share the table with all others: where they fill it, the oldest give way as well.
        if self.table.is_full() && !self.give_way(io, id) {
            return self.counters.syn_dropped_flow_table_full.raise();
        }
        let mut taken = Buffers::take(io.memory, owner, &options, self.config.tx_buffer_bytes);
        // Nor may they keep the owner's share, or the memory, from those that answer.
        if taken.is_none() && self.give_way(io, id) {
            taken = Buffers::take(io.memory, owner, &options, self.config.tx_buffer_bytes);
        }
        let Some(Buffers {
            receive,
            send,
            held,
            backed,
            places,
        }) = taken
        else {
            return self.counters.syn_dropped_no_memory.raise();
        };
        let capacity = receive.len();
        let made = Engine::listen(receive, send, frame.key.local, &options)
            .and_then(|engine| self.table.insert(frame.key, engine, Phase::HalfOpen));
        let Some(index) = made else {
            held.give_back(io.memory, backed);
            return self.counters.syn_dropped_flow_table_full.raise();
        };
        let looped = self.is_looped(frame.key.remote);
        let peer = *frame.key.remote.ip();
        let next_hop = self
            .routes
            .next_hop(peer)
            .map_or(peer, |(next_hop, _)| next_hop);
        let port_class = self.port_class;
        let limit = segment_limit(self.port_mtu(), options.max_segment);
        let mss = clamp_peer_mss(bytes, frame, limit);
        if let Some((hot, cold)) = self.table.parts(index) {
            cold.mac = frame.source_mac;
            hot.track.irs = frame.seq;
            hot.track.edge = frame.seq.wrapping_add(1);
            if looped {
                hot.flags.set(Flags::LOOPED);
            }
            cold.listener = Some(id);
            cold.options = options;
            cold.held = held;
            cold.next_hop = next_hop;
            cold.watchdog = Watchdog::new(io.now);
            cold.places = places;
            cold.meter.reset(backed, capacity);
            cold.mtu_class = port_class;
            cold.meter.shift = if frame.window_scale.is_some() {
                shift_of(capacity)
            } else {
                0
            };
            cold.meter.note_window(frame);
            cold.meter.mss = mss;
            cold.meter.tos = options.tos;
            cold.meter.max_segment = options.max_segment;
        }
        if let Some(listener) = self.listeners.at_mut(id) {
            let table = &self.table;
            listener.begin(table.id(index), io.now, |flow| is_half_open(table, flow));
        }
        self.counters.syns_received.raise();
        // The interface of this one call decides the sequence number (RFC 6528).
        let mut number = isn(io.now, frame.key, &self.config.secret);
        if let Some(old) = old
            && ahead(old, number) < OLD_GAP
        {
            number = old.wrapping_add(OLD_GAP);
        }
        let mut once = interface(self.port_mtu(), seed_for(number), io.now);
        let Some(packet) = bytes.get(frame.ip.clone()) else {
            return self.free(io, index);
        };
        if self.feed(io, index, Some(packet), Some(&mut once)).is_err() {
            return self.drop_broken(io, index);
        }
        let state = self.table.hot(index).map(|hot| hot.engine.facts().state);
        if state == Some(FlowState::SynReceived) {
            self.settle(io, index);
        } else {
            self.free(io, index);
        }
    }

    /// Begins to connect. What comes of it is told by [`Facts`](super::Facts): ECONNREFUSED, ETIMEDOUT, EHOSTUNREACH
    /// after 3 s without an answer to ARP.
    ///
    /// # Errors
    /// EADDRNOTAVAIL when the local address is not ours, no port is free, or the pair of endpoints is taken (as
    /// connect(2) of Linux says); ENETUNREACH when there is no route; ECONNREFUSED for port 0; ENOBUFS without memory or room for a flow.
    pub fn connect(
        &mut self,
        now: Instant,
        request: &ConnectRequest,
        memory: &mut dyn FlowMemory,
        tx: &mut dyn TxQueue,
    ) -> Result<(FlowId, SocketAddrV4), Errno> {
        let mut io = Io { now, memory, tx };
        let remote = request.remote;
        let looped = self.is_looped(remote);
        let group = remote.ip().is_multicast() || self.rules.is_broadcast(*remote.ip());
        if group || remote.ip().is_unspecified() {
            return Err(Errno::NETUNREACH);
        }
        // Nobody listens there, and the engine knows no such port; Linux asks and is refused.
        if remote.port() == 0 {
            return Err(Errno::CONNREFUSED);
        }
        let (next_hop, source) = if looped {
            (*remote.ip(), *remote.ip())
        } else {
            self.routes
                .next_hop(*remote.ip())
                .ok_or(Errno::NETUNREACH)?
        };
        let address = request.local_address.unwrap_or(source);
        if !self.rules.is_ours(address) {
            return Err(Errno::ADDRNOTAVAIL);
        }
        if self.table.is_full() {
            return Err(Errno::NOBUFS);
        }
        let port = match request.local_port {
            Some(port) => port,
            None => self
                .pick_port(now, address, remote)
                .ok_or(Errno::ADDRNOTAVAIL)?,
        };
        let key = FlowKey {
            local: SocketAddrV4::new(address, port),
            remote,
        };
        if port == 0 || !self.is_free(key) {
            return Err(Errno::ADDRNOTAVAIL);
        }
        let taken = Buffers::take(
            io.memory,
            request.owner,
            &request.options,
            self.config.tx_buffer_bytes,
        );
        let Buffers {
            receive,
            send,
            held,
            backed,
            places,
        } = taken.ok_or(Errno::NOBUFS)?;
        let mut once = interface(
            self.port_mtu(),
            seed_for(isn(now, key, &self.config.secret)),
            now,
        );
        let capacity = receive.len();
        let made = Engine::connect(
            receive,
            send,
            key.local,
            key.remote,
            &request.options,
            &mut once,
        )
        .and_then(|engine| self.table.insert(key, engine, Phase::Owned));
        let Some(index) = made else {
            held.give_back(io.memory, backed);
            return Err(Errno::NOBUFS);
        };
        let is_guest = !looped && !self.is_at_home(key);
        if is_guest && !self.invite(key) {
            self.table.remove(index);
            held.give_back(io.memory, backed);
            return Err(Errno::ADDRNOTAVAIL);
        }
        let flow = self.table.id(index);
        let port_class = self.port_class;
        let mss = segment_limit(self.port_mtu(), request.options.max_segment);
        if let Some((hot, cold)) = self.table.parts(index) {
            hot.flags.set(Flags::ACTIVE);
            if is_guest {
                hot.flags.set(Flags::GUEST);
            }
            cold.mac = self.station.mac;
            if looped {
                hot.flags.set(Flags::LOOPED);
            }
            cold.token = request.token;
            cold.options = request.options;
            cold.held = held;
            cold.next_hop = next_hop;
            cold.state = FlowState::SynSent;
            cold.mark = super::changes::ChangeMark::KNOWN;
            cold.watchdog = Watchdog::new(now);
            cold.places = places;
            cold.meter.reset(backed, capacity);
            cold.mtu_class = port_class;
            cold.meter.mss = mss;
            cold.meter.tos = request.options.tos;
            cold.meter.max_segment = request.options.max_segment;
        }
        self.counters.flows_connecting.raise();
        if !looped {
            self.resolve(&mut io, index);
        }
        self.mark_dirty(index);
        Ok((flow, key.local))
    }

    /// Whether the replies of a connection come to this lcore by themselves.
    fn is_at_home(&self, key: FlowKey) -> bool {
        self.place
            .as_ref()
            .is_none_or(|place| place.is_at_home(key))
    }

    /// Has the replies of a connection sent here by whoever receives them. False when it is taken.
    fn invite(&self, key: FlowKey) -> bool {
        let invited = self
            .place
            .as_ref()
            .is_some_and(|place| place.steering.invite(key, place.lcore));
        if invited {
            self.counters.flows_guest.raise();
        }
        invited
    }

    fn pick_port(&mut self, now: Instant, address: Ipv4Addr, remote: SocketAddrV4) -> Option<u16> {
        let (table, listeners, time_wait) = (&self.table, &self.listeners, &self.time_wait);
        let place = self.place.as_ref();
        self.ports.pick(now, address, remote, |port| {
            let key = FlowKey {
                local: SocketAddrV4::new(address, port),
                remote,
            };
            port == 0
                || place.is_some_and(|place| !place.is_at_home(key))
                || listeners.is_port_used(port)
                || table.lookup(key).is_some()
                || time_wait.contains(key)
        })
    }

    /// Asks who the next hop of a flow is; while that is open the flow sends nothing.
    pub(crate) fn resolve(&mut self, io: &mut Io<'_>, index: u32) {
        let flow = self.table.id(index);
        let Some((hot, cold)) = self.table.parts(index) else {
            return;
        };
        let next_hop = cold.next_hop;
        match self.neighbors.resolve(io.now, next_hop) {
            Resolution::Known(mac) => {
                cold.mac = mac;
                hot.flags.clear(Flags::UNRESOLVED);
            }
            Resolution::Pending => {
                hot.flags.set(Flags::UNRESOLVED);
                self.unresolved.entry(next_hop).or_default().push(flow);
                self.poll_neighbors(io);
            }
            Resolution::Failed => self.kill(io, index, Errno::HOSTUNREACH, false),
        }
    }

    /// Ends to listen: half-open and waiting flows are reset, as Linux does. Looks at those alone.
    pub fn unlisten(
        &mut self,
        now: Instant,
        id: ListenerId,
        memory: &mut dyn FlowMemory,
        tx: &mut dyn TxQueue,
    ) {
        let mut io = Io { now, memory, tx };
        let Some(listener) = self.listeners.remove(id) else {
            return;
        };
        for flow in listener.into_waiting() {
            let waits = is_half_open(&self.table, flow) || is_in(&self.table, flow, Phase::Queued);
            if let Some(index) = self.table.resolve(flow).filter(|_| waits) {
                self.let_go(now, index, Close::Abort);
                self.work_on(&mut io, index);
            }
        }
    }

    /// Notes that the program let go of a flow; what it still sends leaves with [`Stack::transmit`].
    pub fn close(&mut self, now: Instant, flow: FlowId, how: Close) {
        if let Some(index) = self.table.resolve(flow) {
            self.let_go(now, index, how);
        }
    }

    /// Notes that the program let go of a flow whose last bytes are still to be handed to [`Stack::send`]: its time as an
    /// orphan begins, so that a peer that never opens its window does not keep it for ever. [`Stack::close`] follows.
    pub fn leave(&mut self, now: Instant, flow: FlowId) {
        let Some(index) = self.table.resolve(flow) else {
            return;
        };
        if let Some((hot, cold)) = self.table.parts(index)
            && !hot.flags.has(Flags::LEFT)
        {
            hot.flags.set(Flags::LEFT);
            cold.watchdog.orphan(now);
            self.mark_dirty(index);
        }
    }

    /// Sends what of the flow's bytes may leave now, before a [`Stack::close`] that throws the rest away: Linux sends them
    /// in send(2) itself.
    pub fn send_now(
        &mut self,
        now: Instant,
        flow: FlowId,
        memory: &mut dyn FlowMemory,
        tx: &mut dyn TxQueue,
    ) {
        if let Some(index) = self.table.resolve(flow) {
            self.work_on(&mut Io { now, memory, tx }, index);
        }
    }

    /// Lets go of a flow that is over, and frees it at once, so that its ring can be lent again.
    pub fn forget(
        &mut self,
        now: Instant,
        flow: FlowId,
        memory: &mut dyn FlowMemory,
        tx: &mut dyn TxQueue,
    ) {
        if let Some(index) = self.table.resolve(flow) {
            self.let_go(now, index, Close::Abort);
            self.work_on(&mut Io { now, memory, tx }, index);
        }
    }

    fn let_go(&mut self, now: Instant, index: u32, how: Close) {
        let Some((hot, cold)) = self.table.parts(index) else {
            return;
        };
        let was = hot.phase;
        if was == Phase::Orphan {
            // An abort may follow a graceful close: its program's time is over.
            if how == Close::Abort && !hot.flags.has(Flags::DETACHED) {
                self.counters.flows_reset_by_close.raise();
                hot.engine.abort();
                cold.state = FlowState::Closed;
                self.mark_dirty(index);
            }
            return;
        }
        hot.phase = Phase::Orphan;
        cold.watchdog.orphan(now);
        let listener = cold.listener.and_then(|id| self.listeners.at_mut(id));
        match (was, listener) {
            (Phase::HalfOpen, Some(listener)) => listener.give_up(),
            (Phase::Queued, Some(listener)) => listener.leave_queue(),
            _ => {}
        }
        let unread = cold.rx_total > cold.consumed;
        if hot.flags.has(Flags::DETACHED) {
            // Nothing is sent any more; transmit frees it.
        } else if cold.state == FlowState::SynSent {
            // Nobody has heard of us: RFC 9293 section 3.10.4 deletes the connection.
            self.table.detach(index);
        } else if how == Close::Abort || unread {
            self.counters.flows_reset_by_close.raise();
            hot.engine.abort();
            cold.state = FlowState::Closed;
        } else {
            hot.engine.shutdown();
            cold.state = hot.engine.facts().state;
        }
        self.mark_dirty(index);
    }

    /// The connection is over without a word to the peer, or with a reset.
    pub(crate) fn kill(&mut self, io: &mut Io<'_>, index: u32, error: Errno, reset: bool) {
        let Some((hot, cold)) = self.table.parts(index) else {
            return;
        };
        if hot.flags.has(Flags::DETACHED) {
            return;
        }
        // A reset that found no room since the last time is not waited for.
        let owed = cold.state == FlowState::Closed;
        cold.error.get_or_insert(error);
        cold.state = FlowState::Closed;
        hot.engine.abort();
        if reset && !owed && !hot.flags.has(Flags::UNRESOLVED) {
            self.note_change(index);
            return self.mark_dirty(index);
        }
        self.end(io, index);
    }

    /// Nothing is sent or received any more. The flow goes, or waits for the program to let go.
    pub(crate) fn end(&mut self, io: &mut Io<'_>, index: u32) {
        self.table.detach(index);
        if let Some(hot) = self.table.hot(index) {
            self.ports.leave(hot.key);
        }
        self.wheel.cancel(index);
        let Some(hot) = self.table.hot(index) else {
            return;
        };
        match hot.phase {
            Phase::Free => {}
            Phase::HalfOpen | Phase::Orphan => self.free(io, index),
            Phase::Queued | Phase::Owned => self.note_change(index),
        }
    }

    /// smoltcp panicked in this flow: it is reset, and the others live on.
    pub(crate) fn drop_broken(&mut self, io: &mut Io<'_>, index: u32) {
        self.counters.flows_dropped_panic.raise();
        let Some((hot, cold)) = self.table.parts(index) else {
            return;
        };
        let reply = ControlSegment::reset(hot.key, hot.track.snd_nxt, rcv_nxt(hot, cold));
        let (key, mac, looped) = (hot.key, cold.mac, hot.flags.has(Flags::LOOPED));
        hot.engine.clear();
        cold.error.get_or_insert(Errno::CONNRESET);
        cold.state = FlowState::Closed;
        // A peer that knows how to provoke it may do so at line rate; the counter tells them all.
        if self.warnings.allow(io.now) {
            crate::error!(
                "event=flow_dropped_after_panic local={} remote={}",
                key.local,
                key.remote
            );
        }
        self.send_control(io, &reply, mac, looped);
        self.end(io, index);
    }

    /// The flow is in TIME-WAIT: its last ACK leaves, then a small record stands for it.
    pub(crate) fn enter_time_wait(&mut self, io: &mut Io<'_>, index: u32) {
        if self.feed(io, index, None, None).is_err() {
            return self.drop_broken(io, index);
        }
        if let Some((hot, cold)) = self.table.parts(index) {
            let rest = TimeWait {
                key: hot.key,
                snd_nxt: hot.track.snd_nxt,
                rcv_nxt: rcv_nxt(hot, cold),
                window: cold.meter.window,
                source_mac: cold.mac,
            };
            let dropped = self.time_wait.dropped_full();
            self.time_wait.insert(io.now, rest);
            let dropped = self.time_wait.dropped_full() - dropped;
            self.counters.time_wait_dropped_full.add(dropped);
        }
        self.counters.flows_time_wait.raise();
        self.end(io, index);
    }

    /// Frees a flow: the ring goes back, then the lcore hears its last word about the id.
    pub(crate) fn free(&mut self, io: &mut Io<'_>, index: u32) {
        let flow = self.table.id(index);
        let Some((hot, cold)) = self.table.parts(index) else {
            return;
        };
        if hot.phase == Phase::Free {
            return;
        }
        let listener = cold.listener.and_then(|id| self.listeners.at_mut(id));
        match (hot.phase, listener) {
            (Phase::HalfOpen, Some(listener)) => listener.give_up(),
            (Phase::Queued, Some(listener)) => listener.leave_queue(),
            _ => {}
        }
        let flags = hot.flags;
        let (held, backed) = (cold.held, cold.meter.backed as usize);
        if hot.flags.has(Flags::GUEST)
            && let Some(place) = &self.place
        {
            place.steering.dismiss(hot.key);
        }
        self.changes.gone(
            &mut cold.mark,
            Change::Gone {
                flow,
                token: cold.token,
            },
        );
        self.wheel.cancel(index);
        self.urgent.forget(flags, index);
        // The socket is dropped here, and with it the last use of the ring's memory.
        self.table.remove(index);
        held.give_back(io.memory, backed);
        self.counters.flows_freed.raise();
    }

    /// Puts memory behind more of the ring, before the window needs it.
    pub(crate) fn grow(&mut self, io: &mut Io<'_>, index: u32) {
        let Some((hot, cold)) = self.table.parts(index) else {
            return;
        };
        let meter = &mut cold.meter;
        while meter.is_clamped() && cold.rx_total > u64::from(meter.backed) / 2 {
            let wanted = (meter.backed * 2).min(meter.capacity);
            if !io
                .memory
                .back(cold.held.owner, cold.held.ring, wanted as usize)
            {
                self.counters.ring_growth_refused.raise();
                hot.flags.set(Flags::STARVED);
                return;
            }
            meter.backed = wanted;
            hot.flags.set(Flags::ACK_OWED);
        }
        hot.flags.clear(Flags::STARVED);
    }
}

/// How far a new connection begins beyond an old one in TIME-WAIT: more than any window without scaling (RFC 6191
/// section 2 only asks for beyond; Linux takes the same distance).
const OLD_GAP: u32 = 65_537;

fn is_half_open(table: &FlowTable, flow: FlowId) -> bool {
    is_in(table, flow, Phase::HalfOpen)
}

/// Whether a flow is in a phase.
pub(crate) fn is_in(table: &FlowTable, flow: FlowId, phase: Phase) -> bool {
    table
        .resolve(flow)
        .and_then(|index| table.hot(index))
        .is_some_and(|hot| hot.phase == phase)
}
