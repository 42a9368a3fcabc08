//! Frames in: classify and look up the whole burst, then guard, feed and draw the consequences.

use core::ops::Range;
use core::time::Duration;

use super::api::{Change, FlowMemory, FlowState};
use super::demux::{Class, TcpFlags, TcpFrame, classify, classify_looped};
use super::drop_reason::DropReason;
use super::flow::{Due, Panicked};
use super::flow_table::{Cold, Flags, Hot, Phase};
use super::frame::Checksums;
use super::guard::{
    Action, Trim, View, is_expected, is_of_before, judge, refresh_ack, strip_syn, trim,
};
use super::interface::{Interface, Outlet, Wire, seal};
use super::life::is_in;
use super::listener::Listener;
use super::patch;
use super::segment::{self, ControlSegment};
use super::stack::{Io, Stack};
use super::tracker::{ahead, distance};
use crate::device::{BURST_MAX, RxFrame, TxQueue};
use crate::errno::Errno;
use crate::time::Instant;

/// Says whether a received frame is wanted, from what it is.
pub(super) type Keep<'a> = &'a mut dyn FnMut(&Stack, &Class, &mut RxFrame<'_>) -> bool;

impl Stack {
    /// Takes a burst of received frames. The whole burst is classified, then looked up, then processed in order.
    pub fn ingress(
        &mut self,
        now: Instant,
        frames: &mut [RxFrame<'_>],
        memory: &mut dyn FlowMemory,
        tx: &mut dyn TxQueue,
    ) {
        self.ingress_if(now, frames, memory, tx, None);
    }

    /// As [`Stack::ingress`], but frames that `keep` does not want, by what they are, are as if they had not come.
    pub fn ingress_if(
        &mut self,
        now: Instant,
        frames: &mut [RxFrame<'_>],
        memory: &mut dyn FlowMemory,
        tx: &mut dyn TxQueue,
        keep: Option<Keep<'_>>,
    ) {
        self.tx_slots = self.tx_slots.max(tx.room());
        // A reply made while a segment is processed is lost without a buffer.
        if tx.room() < frames.len() {
            tx.flush(now);
        }
        let mut burst = core::mem::take(&mut self.burst);
        burst.clear();
        burst.extend(
            frames
                .iter()
                .map(|frame| (classify(frame.bytes, frame.meta, &self.rules), None)),
        );
        let mut kept = frames.len();
        if let Some(keep) = keep {
            kept = self.sift(frames, &mut burst, keep);
            burst.truncate(kept);
        }
        let frames = frames.get_mut(..kept).unwrap_or_default();
        let mut hashes = [0; BURST_MAX];
        let crowd = self.fetch_parts(&burst, &mut hashes);
        let bytes: usize = frames.iter().map(|frame| frame.bytes.len()).sum();
        self.counters.rx_frames.add(frames.len() as u64);
        self.counters.rx_bytes.add(bytes as u64);
        let mut io = Io { now, memory, tx };
        let mut sought = 0;
        for (at, frame) in frames.iter_mut().enumerate() {
            // One group ahead of the one that is processed, whose work hides the misses.
            if at % GROUP == 0 {
                let end = (at + 2 * GROUP).min(burst.len());
                self.find_flows(&mut burst, sought..end, &hashes, crowd);
                sought = end;
            }
            let Some(slot) = burst.get_mut(at) else {
                break;
            };
            let (class, flow) = core::mem::replace(slot, TAKEN);
            self.receive(&mut io, frame.bytes, class, flow);
        }
        self.burst = burst;
    }

    /// Moves the frames that are wanted to the front, in their order, and what they are with them; returns how many those are.
    fn sift(
        &self,
        frames: &mut [RxFrame<'_>],
        burst: &mut [(Class, Option<u32>)],
        keep: Keep<'_>,
    ) -> usize {
        let mut kept = 0;
        for at in 0..frames.len().min(burst.len()) {
            let (Some(frame), Some((class, _))) = (frames.get_mut(at), burst.get(at)) else {
                break;
            };
            if keep(self, class, frame) {
                frames.swap(kept, at);
                burst.swap(kept, at);
                kept += 1;
            }
        }
        kept
    }

    /// Hashes the connection of each frame. With many flows nearly every line is a miss, so that each step fetches what the next
    /// one needs for all frames; here hash slots, then both parts of the flows. Returns whether there are many.
    fn fetch_parts(&self, burst: &[(Class, Option<u32>)], hashes: &mut [u32]) -> bool {
        for ((class, _), hash) in burst.iter().zip(&mut *hashes) {
            if let Class::Tcp(frame) = class {
                *hash = self.table.prefetch_slot(frame.key);
            }
        }
        let crowd = self.table.live() >= self.prefetch_from;
        if crowd {
            for ((class, _), hash) in burst.iter().zip(hashes) {
                if let Class::Tcp(_) = class
                    && let Some(index) = self.table.prefetch_parts(*hash)
                {
                    self.wheel.prefetch(index);
                }
            }
        }
        crowd
    }

    /// Finds the flows of some of the frames, and fetches their sockets and buffers.
    fn find_flows(
        &self,
        burst: &mut [(Class, Option<u32>)],
        which: Range<usize>,
        hashes: &[u32],
        crowd: bool,
    ) {
        let hashes = hashes.get(which.clone()).unwrap_or(&[]);
        let frames = burst.get_mut(which).unwrap_or(&mut []);
        for ((class, flow), hash) in frames.iter_mut().zip(hashes) {
            let Class::Tcp(frame) = class else {
                continue;
            };
            *flow = self.table.find(frame.key, *hash);
            if crowd && let Some((hot, cold)) = flow.and_then(|index| self.table.look(index)) {
                hot.engine.prefetch();
                cold.prefetch_buffers(frame.payload_len);
            }
        }
    }

    /// Takes frames that we sent to ourselves, at most `budget`, and returns how many there were.
    pub(crate) fn receive_looped(&mut self, io: &mut Io<'_>, budget: usize) -> usize {
        let mut done = 0;
        while done < budget
            && let Some(mut frame) = self.looped.pop()
        {
            let class = classify_looped(&frame, &self.rules);
            self.counters.rx_frames_looped.raise();
            self.receive(io, &mut frame, class, None);
            self.looped.recycle(frame);
            done += 1;
        }
        done
    }

    fn receive(&mut self, io: &mut Io<'_>, bytes: &mut [u8], class: Class, flow: Option<u32>) {
        match class {
            Class::Tcp(frame) => self.receive_tcp(io, bytes, frame, flow),
            Class::Udp(frame) => self.receive_udp(io, bytes, &frame),
            Class::Icmp(frame) => self.receive_icmp(io, bytes, &frame),
            Class::Arp(place) => self.receive_arp(io, bytes, place, true),
            Class::NotOurs(reason) | Class::Bad(reason) => reason.counter(&self.counters).raise(),
        }
    }

    fn receive_tcp(
        &mut self,
        io: &mut Io<'_>,
        bytes: &mut [u8],
        frame: TcpFrame,
        flow: Option<u32>,
    ) {
        self.counters.rx_tcp_segments.raise();
        // An earlier frame of the burst may have made the flow, or ended it.
        let found = flow.filter(|index| {
            self.table.hot(*index).is_some_and(|hot| {
                hot.key == frame.key && hot.phase != Phase::Free && !hot.flags.has(Flags::DETACHED)
            })
        });
        match found.or_else(|| self.table.lookup(frame.key)) {
            Some(index) => self.receive_segment(io, bytes, frame, index),
            None => self.receive_stray(io, bytes, &frame),
        }
    }

    /// A segment of an existing flow.
    fn receive_segment(
        &mut self,
        io: &mut Io<'_>,
        bytes: &mut [u8],
        mut frame: TcpFrame,
        index: u32,
    ) {
        let Some(view) = self.view(io.now, index) else {
            return;
        };
        match judge(&view, &frame) {
            Action::Pass => {}
            Action::Ignore => return self.counters.rx_segments_ignored.raise(),
            Action::SynAckAgain => return self.resend_syn_ack(io, index),
            Action::Challenge => return self.challenge(io, index),
            Action::QueueFull => return self.counters.ack_dropped_accept_queue_full.raise(),
            Action::Defer => return self.counters.acks_deferred.raise(),
            Action::WithoutSyn => {
                if !strip_syn(bytes, &mut frame) {
                    return;
                }
            }
            Action::Forget => {
                self.counters.flows_reset_half_open.raise();
                return self.free(io, index);
            }
            Action::Reset => return self.reset_by_peer(io, index),
        }
        if is_of_before(&view, &frame) {
            return self.end_before(io, &frame, index);
        }
        let mut owes_ack = false;
        let plausible;
        if view.state == FlowState::SynSent {
            plausible = self.note_syn_ack(bytes, &frame, index);
        } else {
            plausible = is_expected(&view, &frame);
            refresh_ack(&view, bytes, &mut frame);
            match trim(&view, bytes, &mut frame) {
                Trim::Inside => {}
                Trim::Cut => self.counters.rx_segments_trimmed.raise(),
                Trim::Probe => {
                    self.counters.rx_segments_beyond_window.raise();
                    owes_ack = true;
                }
                Trim::Outside => {
                    self.counters.rx_segments_beyond_window.raise();
                    return self.acknowledge(io, index);
                }
            }
        }
        if let Some((hot, cold)) = self.table.parts(index) {
            if owes_ack {
                hot.flags.set(Flags::ACK_OWED);
            }
            if view.state != FlowState::SynSent {
                hot.engine
                    .set_ack_delay(ack_delay(hot.flags, &frame, cold.meter.mss));
            }
            // Whoever only guesses must not lead our answers elsewhere.
            if plausible {
                cold.mac = frame.source_mac;
                cold.watchdog.heard(io.now);
                cold.window_closed = frame.window == 0;
                cold.meter.note_window(&frame);
                if frame.flags.contains(TcpFlags::ACK)
                    && distance(frame.ack, hot.track.snd_nxt) >= 0
                {
                    cold.meter.on_ack(frame.ack, io.now);
                }
            }
        }
        if frame.flags.contains(TcpFlags::URG) {
            self.note_urgent(bytes, &frame, index);
        }
        if frame.payload_len > 0 && !self.make_place(io, &frame, index) {
            return;
        }
        if plausible && self.feed_pieces(io, &frame, index).is_err() {
            return self.drop_broken(io, index);
        }
        let Some(packet) = bytes.get(frame.ip.clone()) else {
            return;
        };
        let fed = self.feed(io, index, Some(packet), None);
        if fed.is_err() {
            return self.drop_broken(io, index);
        }
        self.settle(io, index);
    }

    /// Resets what the peer takes our SYN for, and sends that again now and not after a second. Once, as Linux
    /// (`tcp_rcv_synsent_state_process`), so that nobody leads us to send more than that. The engine would answer a mere
    /// acknowledgement only, and leave the peer its data or FIN.
    fn end_before(&mut self, io: &mut Io<'_>, frame: &TcpFrame, index: u32) {
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
        let Some(interface) = self.interfaces.of(cold.mtu_class) else {
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

    /// Sees to the memory that the payload of `frame` goes to. False when there is none.
    fn make_place(&mut self, io: &mut Io<'_>, frame: &TcpFrame, index: u32) -> bool {
        self.sweep.stir(io.now);
        let Some((hot, cold)) = self.table.parts(index) else {
            return false;
        };
        hot.flags.set(Flags::STIRRED);
        if distance(rcv_nxt(hot, cold), frame.seq) > 0 {
            let end = frame.seq.wrapping_add(frame.sequence_len());
            if !hot.flags.has(Flags::GAP) || distance(cold.gap_end, end) > 0 {
                cold.gap_end = end;
            }
            hot.flags.set(Flags::GAP);
        }
        !hot.flags.has(Flags::RESTING) || self.awake(io, frame, index)
    }

    /// What the guard must know of a flow.
    pub(crate) fn view(&self, now: Instant, index: u32) -> Option<View> {
        let (hot, cold) = self.table.look(index)?;
        let passive = !hot.flags.has(Flags::ACTIVE);
        let half_open = hot.phase == Phase::HalfOpen;
        let queue_full = half_open
            && cold
                .listener
                .and_then(|id| self.listeners.at(id))
                .is_none_or(Listener::accept_queue_full);
        Some(View {
            state: cold.state,
            passive,
            syn_sent: cold.meter.syns > 0,
            queue_full,
            defers: half_open && is_deferred(now, cold),
            min_ttl: cold.options.min_ttl,
            irs: hot.track.irs,
            rcv_nxt: rcv_nxt(hot, cold),
            edge: hot.track.edge,
            snd_una: snd_una(cold),
        })
    }

    /// Learns the peer's numbers from the segment that answers our SYN, before smoltcp sees it. False when it does not
    /// answer it.
    fn note_syn_ack(&mut self, bytes: &mut [u8], frame: &TcpFrame, index: u32) -> bool {
        let Some((hot, cold)) = self.table.parts(index) else {
            return false;
        };
        if !frame.flags.contains(TcpFlags::SYN)
            || (frame.flags.contains(TcpFlags::ACK) && frame.ack != cold.meter.iss.wrapping_add(1))
        {
            return false;
        }
        hot.track.irs = frame.seq;
        hot.track.edge = frame
            .seq
            .wrapping_add(1)
            .wrapping_add(u32::from(cold.meter.syn_window));
        cold.meter.believed = hot.track.edge;
        cold.meter.shift = if frame.window_scale.is_some() {
            shift_of(cold.meter.capacity as usize)
        } else {
            0
        };
        let limit = segment_limit(
            self.interfaces.mtu(cold.mtu_class),
            cold.options.max_segment,
        );
        cold.meter.mss = clamp_peer_mss(bytes, frame, limit);
        true
    }

    /// Feeds `packet`, or asks for one segment when there is none. `once` is an interface for this call only.
    pub(crate) fn feed(
        &mut self,
        io: &mut Io<'_>,
        index: u32,
        packet: Option<&[u8]>,
        once: Option<&mut Interface>,
    ) -> Result<usize, Panicked> {
        let reserve = self.reserve();
        let Some((hot, cold)) = self.table.parts(index) else {
            return Ok(0);
        };
        // A reply may use the reserve, that is what it is for: also the last acknowledgement, which nobody comes back to.
        let is_reply = packet.is_some() || cold.state == FlowState::TimeWait;
        let reserve = if is_reply { 0 } else { reserve };
        let mut outlet = Outlet {
            tx: &mut *io.tx,
            looped: &mut self.looped,
            station: self.station,
            counters: &self.counters,
            reserve,
        };
        let cuts = packet.is_none()
            && self.station.super_bytes > 0
            && wants_to_cut(hot, cold)
            && outlet.has_super_room();
        let own = if cuts {
            self.interfaces.cutting(cold.mtu_class)
        } else {
            self.interfaces.of(cold.mtu_class)
        };
        let Some(interface) = once.or(own) else {
            return Ok(0);
        };
        let mut wire = Wire {
            packet,
            outlet: &mut outlet,
            track: &mut hot.track,
            meter: &mut cold.meter,
            mac: cold.mac,
            looped: hot.flags.has(Flags::LOOPED),
            now: io.now,
            urgent: self.urgent.sending(hot.flags, index),
            sent: 0,
            segment_bytes: 0,
            #[cfg(test)]
            poisoned: self.poison,
        };
        if packet.is_some() {
            hot.engine.ingress(interface, io.now, &mut wire)?;
        } else {
            hot.engine.egress(interface, io.now, &mut wire)?;
        }
        Ok(wire.sent)
    }

    /// Draws the consequences of what the socket became.
    pub(crate) fn settle(&mut self, io: &mut Io<'_>, index: u32) {
        let Some((hot, cold)) = self.table.parts(index) else {
            return;
        };
        if hot.flags.has(Flags::DETACHED) {
            return;
        }
        let facts = hot.engine.facts();
        let was = cold.state;
        let rx_total = cold.consumed + facts.rx_queue as u64;
        let tx_acked = cold.tx_total.saturating_sub(facts.tx_queue as u64);
        let mut changed = facts.state != was || rx_total != cold.rx_total;
        if tx_acked != cold.tx_acked {
            cold.tx_acked = tx_acked;
            cold.soft_error = None;
            cold.watchdog.delivered(io.now);
            changed = true;
            if hot.flags.has(Flags::URGENT) {
                self.urgent.settle(hot, cold, index);
            }
        }
        if cold.window_closed && cold.options.user_timeout_ms == 0 {
            // The peer is alive and lets us wait.
            cold.watchdog.progressed();
        }
        if rx_total != cold.rx_total {
            hot.flags.set(Flags::UNANSWERED);
        }
        cold.rx_total = rx_total;
        if hot.flags.has(Flags::GAP) && distance(cold.gap_end, rcv_nxt(hot, cold)) >= 0 {
            hot.flags.clear(Flags::GAP);
        }
        cold.state = facts.state;
        match facts.state {
            FlowState::CloseWait | FlowState::Closing | FlowState::LastAck => {
                cold.rx_finished = true
            }
            FlowState::FinWait2 => cold.tx_finished = true,
            FlowState::TimeWait => (cold.rx_finished, cold.tx_finished) = (true, true),
            _ => {}
        }
        if facts.state != was {
            hot.flags.set(Flags::STIRRED);
            self.sweep.stir(io.now);
            if matches!(was, FlowState::FinWait1 | FlowState::Closing) {
                cold.watchdog.progressed();
            }
        }
        if hot.phase == Phase::Orphan && facts.rx_queue > 0 && facts.state != FlowState::Closed {
            // Nobody will read it (RFC 1122 4.2.2.13; Linux counts TCPAbortOnData).
            self.counters.flows_reset_data_after_close.raise();
            hot.engine.abort();
            cold.state = FlowState::Closed;
            return self.mark_dirty(index);
        }
        let is_active = hot.flags.has(Flags::ACTIVE);
        self.grow(io, index);
        match facts.state {
            FlowState::Closed => return self.settle_closed(io, index, was),
            FlowState::TimeWait => return self.enter_time_wait(io, index),
            FlowState::Established | FlowState::CloseWait => {
                // Both ends may have sent a SYN; passive flows are counted where they are accepted.
                let met = was == FlowState::SynReceived && is_active;
                if was == FlowState::SynSent || met {
                    self.counters.flows_connected.raise();
                }
                self.settle_open(index);
            }
            _ => {}
        }
        if changed {
            self.note_change(index);
        }
        self.mark_dirty(index);
    }

    /// The handshake of a passive flow may just have ended.
    fn settle_open(&mut self, index: u32) {
        let flow = self.table.id(index);
        let Some((hot, cold)) = self.table.parts(index) else {
            return;
        };
        if hot.phase != Phase::HalfOpen {
            return;
        }
        hot.phase = Phase::Queued;
        cold.meter.syn_ack = Vec::new();
        self.counters.flows_accepted.raise();
        let Some(id) = cold.listener else {
            return;
        };
        let Some(token) = self.listeners.at(id).map(|listener| listener.token) else {
            return;
        };
        let change = Change::Accepted {
            listener: id,
            token,
            flow,
        };
        self.changes.accepted(&mut cold.mark, change);
        let table = &self.table;
        if let Some(listener) = self.listeners.at_mut(id) {
            listener.complete(flow, |flow| is_in(table, flow, Phase::Queued));
        }
    }

    /// The socket is closed: by the last acknowledgement, or because the peer refuses.
    fn settle_closed(&mut self, io: &mut Io<'_>, index: u32, was: FlowState) {
        let Some((hot, cold)) = self.table.parts(index) else {
            return;
        };
        if hot.engine.owes_reset() {
            return self.mark_dirty(index);
        }
        if was == FlowState::SynSent {
            self.counters.flows_refused.raise();
            cold.error.get_or_insert(Errno::CONNREFUSED);
        } else {
            cold.tx_finished = true;
        }
        self.end(io, index);
    }

    /// The peer's reset is believed. smoltcp need not see it.
    fn reset_by_peer(&mut self, io: &mut Io<'_>, index: u32) {
        self.counters.flows_reset_by_peer.raise();
        if let Some((_, cold)) = self.table.parts(index) {
            // As Linux tells it (`tcp_reset`).
            let error = if cold.state == FlowState::CloseWait {
                Errno::PIPE
            } else {
                Errno::CONNRESET
            };
            cold.error.get_or_insert(error);
            cold.state = FlowState::Closed;
        }
        self.end(io, index);
    }

    /// Sends a challenge ACK, if the limit allows.
    pub(crate) fn challenge(&mut self, io: &mut Io<'_>, index: u32) {
        if self.challenges.allow(io.now) {
            self.counters.challenge_acks_sent.raise();
            self.acknowledge(io, index);
        } else {
            self.counters.challenge_acks_limited.raise();
        }
    }

    /// Sends an ACK that advertises nothing new.
    pub(crate) fn acknowledge(&mut self, io: &mut Io<'_>, index: u32) {
        let Some((hot, _)) = self.table.parts(index) else {
            return;
        };
        let (seq, edge) = (hot.track.snd_nxt, hot.track.edge);
        self.send_ack(io, index, seq, edge);
    }

    /// Sends an ACK with sequence number `seq` that advertises everything below `edge`.
    pub(crate) fn send_ack(&mut self, io: &mut Io<'_>, index: u32, seq: u32, edge: u32) {
        let Some((hot, cold)) = self.table.parts(index) else {
            return;
        };
        let next = rcv_nxt(hot, cold);
        let open = ahead(next, edge) >> cold.meter.shift;
        let window = u16::try_from(open).unwrap_or(u16::MAX);
        cold.meter.window = window;
        cold.meter.advertise(
            &mut hot.track,
            next.wrapping_add(u32::from(window) << cold.meter.shift),
        );
        let mut reply = ControlSegment::acknowledge(hot.key, seq, next, window);
        reply.tos = cold.meter.tos;
        if cold.options.ttl != 0 {
            reply.ttl = cold.options.ttl;
        }
        let (mac, looped) = (cold.mac, hot.flags.has(Flags::LOOPED));
        self.send_control(io, &reply, mac, looped);
    }

    /// Sends a segment made here.
    pub(crate) fn send_control(
        &mut self,
        io: &mut Io<'_>,
        reply: &ControlSegment,
        mac: [u8; 6],
        looped: bool,
    ) {
        let link = segment::Link {
            source: self.station.mac,
            destination: mac,
            vlan: self.station.vlan,
        };
        let offload = self.station.offload && !looped;
        let checksums = if offload {
            Checksums::Port
        } else {
            Checksums::Full
        };
        let mut outlet = Outlet {
            tx: &mut *io.tx,
            looped: &mut self.looped,
            station: self.station,
            counters: &self.counters,
            reserve: 0,
        };
        outlet.send(
            looped,
            ControlSegment::frame_bytes(link.vlan),
            offload,
            |out| reply.emit(link, checksums, out),
        );
    }

    /// The client did not hear our SYN-ACK: it gets the same one again at once, not after smoltcp's second.
    fn resend_syn_ack(&mut self, io: &mut Io<'_>, index: u32) {
        let Some((hot, cold)) = self.table.parts(index) else {
            return;
        };
        let packet = &cold.meter.syn_ack;
        if packet.is_empty() {
            // The first one has not left yet.
            return;
        }
        self.counters.syn_acks_sent_again.raise();
        cold.meter.retransmits = cold.meter.retransmits.saturating_add(1);
        let looped = hot.flags.has(Flags::LOOPED);
        let offload = self.station.offload && !looped;
        let header = self.station.header(cold.mac, super::frame::ETHERTYPE_IPV4);
        let start = self.station.header_bytes();
        let mut outlet = Outlet {
            tx: &mut *io.tx,
            looped: &mut self.looped,
            station: self.station,
            counters: &self.counters,
            reserve: 0,
        };
        outlet.send(looped, start + packet.len(), offload, |frame| {
            header.emit(frame)?;
            let place = frame.get_mut(start..start + packet.len())?;
            place.copy_from_slice(packet);
            seal(place, offload)?;
            Some(start + packet.len())
        });
    }
}

/// Whether a handshake still has time to wait for its first bytes. Nothing that is waited for has been heard since the SYN.
fn is_deferred(now: Instant, cold: &Cold) -> bool {
    let patience = Duration::from_secs(u64::from(cold.options.defer_accept_s));
    cold.watchdog.since_heard(now) < patience
}

/// Whether more than two segments wait to be sent.
fn wants_to_cut(hot: &Hot, cold: &Cold) -> bool {
    // The pointer of urgent data would be wrong in all segments but the first.
    let whole = Flags::LOOPED.with(Flags::URGENT);
    unsent(hot, cold) > 2 * u32::from(cold.meter.mss) && !hot.flags.has(whole)
}

/// Bytes that the engine has and that have never left.
pub(crate) fn unsent(hot: &Hot, cold: &Cold) -> u32 {
    let under_way = u64::from(ahead(snd_una(cold), hot.track.snd_nxt));
    let unsent = (cold.tx_total - cold.tx_acked).saturating_sub(under_way);
    u32::try_from(unsent).unwrap_or(u32::MAX)
}

/// How long the acknowledgement of `frame` may wait. A merged frame of several segments and a FIN do not wait.
fn ack_delay(flags: Flags, frame: &TcpFrame, mss: u16) -> Duration {
    let waits = flags.has(Flags::INTERACTIVE)
        && frame.sequence_len() <= u32::from(mss)
        && !frame.flags.contains(TcpFlags::FIN);
    if waits { ACK_DELAY } else { Duration::ZERO }
}

/// The next sequence number expected from the peer.
pub(crate) fn rcv_nxt(hot: &Hot, cold: &Cold) -> u32 {
    let received = low(cold.rx_total).wrapping_add(u32::from(cold.rx_finished));
    hot.track.irs.wrapping_add(1).wrapping_add(received)
}

/// The first sequence number that the peer has not acknowledged.
pub(crate) fn snd_una(cold: &Cold) -> u32 {
    if matches!(cold.state, FlowState::SynSent | FlowState::SynReceived) {
        return cold.meter.iss;
    }
    cold.meter
        .iss
        .wrapping_add(1)
        .wrapping_add(low(cold.tx_acked))
        .wrapping_add(u32::from(cold.tx_finished))
}

/// A stream offset in sequence space, which is its lower half.
#[allow(clippy::cast_possible_truncation)]
fn low(offset: u64) -> u32 {
    offset as u32
}

/// smoltcp's window scale for a receive buffer of `capacity` bytes; held by a guard test.
pub(crate) fn shift_of(capacity: usize) -> u8 {
    let bits = usize::BITS - capacity.leading_zeros();
    u8::try_from(bits.saturating_sub(16)).unwrap_or(0)
}

/// Largest segment that this side sends and announces.
pub(crate) fn segment_limit(mtu: usize, wanted: u16) -> u16 {
    let fits = u16::try_from(mtu.saturating_sub(40)).unwrap_or(u16::MAX);
    if wanted == 0 { fits } else { fits.min(wanted) }
}

/// Lowers the peer's MSS option to `limit` and returns the segment size that results (RFC 9293 3.7.1).
pub(crate) fn clamp_peer_mss(bytes: &mut [u8], frame: &TcpFrame, limit: u16) -> u16 {
    if let Some(packet) = bytes.get_mut(frame.ip.clone()) {
        // None says that there is no such option; the default of RFC 9293 holds then.
        let _ = patch::clamp_mss(packet, limit, Checksums::Port);
    }
    frame
        .mss
        .filter(|mss| *mss != 0)
        .unwrap_or(MSS_DEFAULT)
        .max(MSS_MIN)
        .min(limit)
}

/// Frames that are looked up together.
const GROUP: usize = 8;
/// What is left of a frame that was processed.
const TAKEN: (Class, Option<u32>) = (Class::NotOurs(DropReason::EtherType), None);
/// Linux' TCP_DELACK_MIN, below the 500 ms of RFC 1122 section 4.2.3.2.
pub(crate) const ACK_DELAY: Duration = Duration::from_millis(40);
/// RFC 9293 MUST-15.
const MSS_DEFAULT: u16 = 536;
/// smoltcp's lower limit, the same as Linux' `TCP_MIN_SND_MSS`.
const MSS_MIN: u16 = 48;
