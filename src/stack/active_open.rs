//! Flows that the program begins (RFC 9293's active open): a port, a next hop, a SYN.

use core::net::{Ipv4Addr, SocketAddrV4};

use super::api::{ConnectRequest, FlowMemory, FlowState};
use super::buffers::Buffers;
use super::changes::ChangeMark;
use super::demux::{FlowKey, TcpFrame};
use super::flow::{Due, Engine, Panicked};
use super::flow_parts::{Flags, Phase};
use super::handshake::segment_limit;
use super::interface::interface;
use super::isn::{isn, seed_for};
use super::neighbor::Resolution;
use super::recovery::Recovery;
use super::segment::ControlSegment;
use super::stack::{Io, Stack};
use super::watchdog::Watchdog;
use crate::device::TxQueue;
use crate::errno::Errno;
use crate::id::FlowId;
use crate::time::Instant;

impl Stack {
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
        let is_taken = if is_guest {
            !self.invite(key)
        } else {
            // By a guest of another lcore's.
            !looped && self.place.as_ref().is_some_and(|it| !it.receives(key))
        };
        if is_taken {
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
            cold.mark = ChangeMark::KNOWN;
            cold.watchdog = Watchdog::new(now);
            cold.recovery = Recovery::default();
            cold.places = places;
            cold.meter.reset(backed, capacity, io.now);
            cold.meter.mtu_class = port_class;
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
    pub(crate) fn is_at_home(&self, key: FlowKey) -> bool {
        self.place
            .as_ref()
            .is_none_or(|place| place.is_at_home(key))
    }

    /// Has the replies of a connection sent here by whoever receives them. False when it is taken.
    pub(crate) fn invite(&self, key: FlowKey) -> bool {
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
                || place.is_some_and(|place| !place.receives(key))
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

    /// Resets what the peer takes our SYN for, and sends that again now and not after a second. Once, as Linux
    /// (`tcp_rcv_synsent_state_process`), so that nobody leads us to send more than that. The engine would answer a mere
    /// acknowledgement only, and leave the peer its data or FIN.
    pub(crate) fn end_before(&mut self, io: &mut Io<'_>, frame: &TcpFrame, index: u32) {
        if let Some(reply) = ControlSegment::reset_for(frame) {
            if io.tx.room() == 0 {
                io.tx.flush(io.now);
            }
            let looped = self.is_looped(frame.key.remote);
            self.send_control(io, &reply, frame.source_mac, looped);
        }
        match self.hasten_syn(io, index) {
            Ok(()) => self.settle(io, index),
            Err(Panicked) => self.drop_broken(io, index),
        }
    }

    fn hasten_syn(&mut self, io: &mut Io<'_>, index: u32) -> Result<(), Panicked> {
        let Some((hot, cold)) = self.table.parts(index) else {
            return Ok(());
        };
        let Some(interface) = self.interfaces.of(cold.meter.mtu_class) else {
            return Ok(());
        };
        if cold.meter.syns != 1 {
            return Ok(());
        }
        // The engine has one clock, and no other way to be told.
        let Due::At(now) = hot.engine.poll_at(interface, io.now) else {
            return Ok(());
        };
        self.counters.syns_hastened.raise();
        if !self.has_room(io, index) {
            io.tx.flush(io.now);
        }
        let mut then = Io {
            now,
            memory: &mut *io.memory,
            tx: &mut *io.tx,
        };
        self.feed(&mut then, index, None, None).map(|_| ())
    }
}
