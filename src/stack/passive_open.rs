//! Flows that a peer begins (RFC 9293's passive open), and segments that belong to no flow.

use super::api::{FlowOptions, FlowState, SaveSyn};
use super::buffers::{Buffers, Held};
use super::demux::{TcpFlags, TcpFrame};
use super::flow::Engine;
use super::flow_parts::{Flags, Phase};
use super::frame::ETHERTYPE_IPV4;
use super::handshake::{clamp_peer_mss, segment_limit, shift_of};
use super::interface::interface;
use super::isn::{isn, seed_for};
use super::recovery::Recovery;
use super::segment::ControlSegment;
use super::stack::{Io, Stack};
use super::time_wait::Verdict;
use super::tracker::ahead;
use super::watchdog::Watchdog;
use crate::errno::Errno;
use crate::id::ListenerId;

impl Stack {
    /// A segment without a flow: a SYN for a listener, something for the TIME-WAIT table, or a stranger.
    pub(crate) fn receive_stray(&mut self, io: &mut Io<'_>, bytes: &mut [u8], frame: &TcpFrame) {
        let is_syn = frame.flags.contains(TcpFlags::SYN)
            && !frame.flags.contains(TcpFlags::ACK)
            && !frame.flags.contains(TcpFlags::RST);
        let mut old = None;
        let verdict = self.time_wait.on_segment(io.now, frame);
        self.dismiss_rested();
        match verdict {
            Verdict::Unknown => {}
            Verdict::Ignore => return,
            Verdict::Over => {
                self.counters.time_wait_reset.raise();
                return self.ports.leave(frame.key);
            }
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
        let oldest = self.listeners.at_mut(id).and_then(|listener| {
            listener.gives_way(io.now, |flow| table.is_in(flow, Phase::HalfOpen))
        });
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
        // One that takes the place of a guest is a guest.
        let is_guest = !looped && !self.is_at_home(frame.key);
        if is_guest && !self.invite(frame.key) {
            self.table.remove(index);
            held.give_back(io.memory, backed);
            // Somebody here connects with the same ends this very moment.
            return self.counters.rx_segments_ignored.raise();
        }
        keep_syn(io, held, &options, bytes, frame);
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
            if is_guest {
                hot.flags.set(Flags::GUEST);
            }
            cold.listener = Some(id);
            cold.options = options;
            cold.held = held;
            cold.next_hop = next_hop;
            cold.watchdog = Watchdog::new(io.now);
            cold.recovery = Recovery::default();
            cold.places = places;
            cold.meter.reset(backed, capacity, io.now);
            cold.meter.mtu_class = port_class;
            cold.meter.shift = if frame.window_scale.is_some() {
                shift_of(capacity)
            } else {
                0
            };
            let _ = cold.meter.note_window(frame, frame.window);
            cold.meter.note_arrival(frame);
            cold.meter.peer_ttl = frame.ttl;
            cold.meter.mss = mss;
            cold.meter.tos = options.tos;
            cold.meter.max_segment = options.max_segment;
        }
        if let Some(listener) = self.listeners.at_mut(id) {
            let table = &self.table;
            listener.begin(table.id(index), io.now, |flow| {
                table.is_in(flow, Phase::HalfOpen)
            });
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
}

/// Keeps what the listener wants of a SYN, as it came.
fn keep_syn(io: &mut Io<'_>, held: Held, options: &FlowOptions, bytes: &[u8], frame: &TcpFrame) {
    let Some(packet) = bytes.get(frame.ip.start..frame.payload) else {
        return;
    };
    let stations = bytes.get(..frame.ip.start.min(ETHERNET_STATIONS));
    let mut link = [0; ETHERNET_STATIONS + 2];
    let link = match (options.save_syn, stations) {
        (SaveSyn::Nothing, _) => return,
        (SaveSyn::Frame, Some(stations)) => {
            // Without a tag, as Linux has taken it off by then.
            for (place, byte) in link.iter_mut().zip(stations) {
                *place = *byte;
            }
            if let Some(place) = link.get_mut(ETHERNET_STATIONS..) {
                place.copy_from_slice(&ETHERTYPE_IPV4.to_be_bytes());
            }
            link.as_slice()
        }
        (SaveSyn::Packet | SaveSyn::Frame, _) => &[],
    };
    io.memory.keep_syn(held.owner, held.ring, link, packet);
}

/// Both addresses of an Ethernet header.
const ETHERNET_STATIONS: usize = 12;

/// How far a new connection begins beyond an old one in TIME-WAIT: more than any window without scaling (RFC 6191
/// section 2 only asks for beyond; Linux takes the same distance).
const OLD_GAP: u32 = 65_537;
