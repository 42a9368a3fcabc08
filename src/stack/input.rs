//! Frames in: classify and look up the whole burst, then guard and feed. What comes of it is in `settle.rs`.

use core::ops::Range;
use core::time::Duration;

use super::api::{FlowMemory, FlowState};
use super::ceiling::Ceiling;
use super::demux::{Class, TcpFlags, TcpFrame, classify, classify_looped};
use super::flow::Panicked;
use super::flow_parts::{Cold, Flags, Hot, Phase};
use super::guard::{
    ACK_AGE_MAX, Action, Trim, View, is_expected, is_of_before, judge, refresh_ack, strip_old,
    strip_syn, trim,
};
use super::interface::{Interface, Outlet, Wire};
use super::join::join;
use super::last_word::{hide_closed_window, set_window};
use super::listener::Listener;
use super::recovery::held;
use super::sequence::{rcv_nxt, snd_una, unsent};
use super::stack::{Io, Stack};
use super::tracker::distance;
use crate::device::{BURST_MAX, RxFrame, TxQueue};
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
        let mut joined = core::mem::take(&mut self.joined);
        let (mut at, mut sought) = (0, 0);
        while at < burst.len() {
            // One group ahead of the one that is processed, whose work hides the misses.
            if sought < burst.len().min(at + GROUP + 1) {
                let end = (at + 2 * GROUP).min(burst.len());
                self.find_flows(&mut burst, sought.max(at)..end, &hashes, crowd);
                sought = end;
            }
            let run = at..at + self.run(&burst, at);
            at = run.end;
            if run.len() > 1
                && let flow = burst.get(run.start).and_then(|(_, flow)| *flow)
                && let Some(mut frame) = join(frames, &burst, run.clone(), &mut joined)
            {
                self.counters.rx_segments_joined.add(run.len() as u64);
                self.counters.rx_tcp_segments.add(run.len() as u64 - 1);
                self.receive_tcp(&mut io, &mut joined, &mut frame, flow);
                continue;
            }
            for place in run {
                let (Some(frame), Some(slot)) = (frames.get_mut(place), burst.get_mut(place))
                else {
                    break;
                };
                let (class, flow) = slot;
                self.receive(&mut io, frame.bytes, class, *flow);
            }
        }
        self.joined = joined;
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
            let mut class = classify_looped(&frame, &self.rules);
            self.counters.rx_frames_looped.raise();
            self.receive(io, &mut frame, &mut class, None);
            self.looped.recycle(frame);
            done += 1;
        }
        done
    }

    /// A frame where it was classified: a copy of `class` would be read before it has left the core.
    fn receive(&mut self, io: &mut Io<'_>, bytes: &mut [u8], class: &mut Class, flow: Option<u32>) {
        match class {
            Class::Tcp(frame) => self.receive_tcp(io, bytes, frame, flow),
            Class::Udp(frame) => self.receive_udp(io, bytes, frame),
            Class::Icmp(frame) => self.receive_icmp(io, bytes, frame),
            Class::Arp(place) => self.receive_arp(io, bytes, place.clone(), true),
            Class::NotOurs(reason) | Class::Bad(reason) => reason.counter(&self.counters).raise(),
        }
    }

    fn receive_tcp(
        &mut self,
        io: &mut Io<'_>,
        bytes: &mut [u8],
        frame: &mut TcpFrame,
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
            None => self.receive_stray(io, bytes, frame),
        }
    }

    /// A segment of an existing flow.
    fn receive_segment(
        &mut self,
        io: &mut Io<'_>,
        bytes: &mut [u8],
        frame: &mut TcpFrame,
        index: u32,
    ) {
        let Some(view) = self.view(io.now, index) else {
            return;
        };
        match judge(&view, frame) {
            Action::Pass => {}
            Action::Ignore => return self.counters.rx_segments_ignored.raise(),
            Action::SynAckAgain => return self.resend_syn_ack(io, index),
            Action::Challenge => return self.challenge(io, index),
            Action::QueueFull => return self.counters.ack_dropped_accept_queue_full.raise(),
            Action::Defer => return self.counters.acks_deferred.raise(),
            Action::WithoutSyn => {
                if !strip_syn(bytes, frame) {
                    return;
                }
            }
            Action::Forget => {
                self.counters.flows_reset_half_open.raise();
                return self.free(io, index);
            }
            Action::Reset => return self.reset_by_peer(io, index),
        }
        if is_of_before(&view, frame) {
            return self.end_before(io, frame, index);
        }
        let mut owes_ack = false;
        let begin = frame.seq;
        let plausible;
        if view.state == FlowState::SynSent {
            plausible = self.note_syn_ack(bytes, frame, index);
        } else {
            plausible = is_expected(&view, frame);
            if distance(frame.ack, view.snd_una) > 0 {
                // Overtaken by a later one, whose window counts.
                set_window(bytes, frame, view.peer_window);
            }
            refresh_ack(&view, bytes, frame);
            match trim(&view, bytes, frame) {
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
            owes_ack |= strip_old(&view, bytes, frame);
        }
        let held = held(bytes, frame, view.snd_una);
        let window = frame.window;
        if plausible && view.state == FlowState::LastAck {
            hide_closed_window(bytes, frame);
        }
        let mut is_alert = false;
        if let Some((hot, cold)) = self.table.parts(index) {
            is_alert = cold.recovery.is_alert();
            cold.meter.note_arrival(frame);
            if owes_ack {
                hot.flags.set(Flags::ACK_OWED);
            }
            if view.state != FlowState::SynSent {
                hot.engine
                    .set_ack_delay(ack_delay(hot.flags.get(), frame, cold.meter.mss));
            }
            // Whoever only guesses must not lead our answers elsewhere.
            if plausible {
                cold.mac = frame.source_mac;
                cold.watchdog.heard(io.now);
                if frame.flags.contains(TcpFlags::ACK)
                    && distance(frame.ack, hot.track.snd_nxt) >= 0
                {
                    cold.meter.on_ack(frame.ack, io.now);
                }
            }
        }
        // A mark is one byte less to read later: nobody who guesses may set one (Linux looks at it behind tcp_ack).
        if frame.flags.contains(TcpFlags::URG)
            && view.state != FlowState::SynSent
            && plausible
            && self.acknowledges_what_was_sent(&view, frame, index)
        {
            self.note_urgent(bytes, frame, begin, index);
        }
        if frame.payload_len > 0 && !self.make_place(io, frame, index) {
            return;
        }
        let mut opened = false;
        if plausible && let Some((_, cold)) = self.table.parts(index) {
            opened = cold.meter.note_window(frame, window);
        }
        if plausible && self.feed_pieces(io, frame, index).is_err() {
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
        if opened {
            self.mend_into_opened(io, index);
        }
        if plausible && (held > 0 || is_alert) {
            let pure = frame.sequence_len() == 0;
            self.mend_on_ack(io, index, view.snd_una, pure, held);
        }
    }

    /// Whether the acknowledgement of a segment is one that the peer may have sent (RFC 5961 section 5.2).
    #[cold]
    fn acknowledges_what_was_sent(&self, view: &View, frame: &TcpFrame, index: u32) -> bool {
        let age = distance(frame.ack, view.snd_una);
        self.table.look(index).is_some_and(|(hot, _)| {
            distance(frame.ack, hot.track.snd_nxt) >= 0 && age <= ACK_AGE_MAX
        })
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
            snd_nxt: hot.track.snd_nxt,
            capacity: cold.meter.capacity,
            peer_window: cold.meter.peer_window,
        })
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
            self.interfaces.cutting(cold.meter.mtu_class)
        } else {
            self.interfaces.of(cold.meter.mtu_class)
        };
        let Some(interface) = once.or(own) else {
            return Ok(0);
        };
        let mut wire = Wire {
            packet,
            outlet: &mut outlet,
            track: &mut hot.track,
            ceiling: Ceiling::of(cold),
            meter: &mut cold.meter,
            mac: cold.mac,
            looped: hot.flags.has(Flags::LOOPED),
            now: io.now,
            urgent: self.urgent.sending(hot.flags.get(), index),
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

/// How long the acknowledgement of `frame` may wait. A merged frame of several segments and a FIN do not wait.
fn ack_delay(flags: Flags, frame: &TcpFrame, mss: u16) -> Duration {
    let waits = flags.has(Flags::INTERACTIVE)
        && frame.sequence_len() <= u32::from(mss)
        && !frame.flags.contains(TcpFlags::FIN);
    if waits { ACK_DELAY } else { Duration::ZERO }
}

/// Frames that are looked up together.
const GROUP: usize = 8;
/// Linux' TCP_DELACK_MIN, below the 500 ms of RFC 1122 section 4.2.3.2.
pub(crate) const ACK_DELAY: Duration = Duration::from_millis(40);
