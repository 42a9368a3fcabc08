//! What is done about a loss. The engine has no call for it: it is made to by acknowledgements that the peer did not send, or by a
//! look at a clock that is ahead.

use super::api::FlowState;
use super::demux::TcpFlags;
use super::flow::Due;
use super::flow_parts::{Cold, Flags, Hot};
use super::forged::Forged;
use super::recovery::{Ack, Mend, UnderWay};
use super::segment::ControlSegment;
use super::sequence::{rcv_nxt, snd_una, unsent};
use super::stack::{Io, Stack};
use super::tracker::ahead;
use crate::time::Instant;

impl Stack {
    /// Mends what an acknowledgement showed to be lost; it was fed, and settled. `una` was the first number that had not been
    /// acknowledged before.
    pub(crate) fn mend_on_ack(
        &mut self,
        io: &mut Io<'_>,
        index: u32,
        una: u32,
        pure: bool,
        held: u32,
    ) {
        let Some((hot, cold)) = self.table.parts(index) else {
            return;
        };
        if !can_mend(hot, cold) {
            return;
        }
        let under_way = under_way(hot, cold);
        let advanced = ahead(una, under_way.una);
        let ack = Ack {
            advanced,
            pure: pure && advanced == 0,
            held,
        };
        let mend = cold.recovery.on_ack(io.now, under_way, &cold.meter, ack);
        self.mend(io, index, mend);
    }

    /// Mends what is not acknowledged in time.
    pub(crate) fn mend_in_time(&mut self, io: &mut Io<'_>, index: u32) {
        let Some((hot, cold)) = self.table.parts(index) else {
            return;
        };
        if can_mend(hot, cold) {
            let under_way = under_way(hot, cold);
            if io.now < cold.recovery.due(io.now, under_way.bytes(), &cold.meter) {
                return;
            }
            if !self.mends.allow(io.now) && cold.recovery.put_off(share(index)) {
                return self.counters.mends_put_off.raise();
            }
            let mend = cold.recovery.on_time(io.now, under_way, &cold.meter);
            self.mend(io, index, mend);
            return self.finish_later(io.now, index);
        }
        if !is_closed_over(hot, cold) || io.now < cold.recovery.due_closed(io.now, &cold.meter) {
            return;
        }
        let Some(interface) = self.interfaces.of(cold.meter.mtu_class) else {
            return;
        };
        let has_timer = hot.engine.poll_at(interface, io.now) != Due::Ingress;
        if !(has_timer && engine_probes(hot, cold)) {
            cold.recovery.asked(io.now);
            cold.meter.forget_timed();
            cold.meter.backoff = cold.meter.backoff.saturating_add(1);
            self.ask_peer(io, index);
        }
    }

    /// The peer's window has opened: what did not fit into it before is asked for soon, however long that was waited for.
    pub(crate) fn mend_into_opened(&mut self, io: &mut Io<'_>, index: u32) {
        let Some((hot, cold)) = self.table.parts(index) else {
            return;
        };
        if !can_mend(hot, cold) {
            return;
        }
        let is_last = cold.state == FlowState::LastAck;
        // A window that flutters has one time-out pass, not one each time.
        if is_last && cold.recovery.has_just_timed_out(io.now) {
            return;
        }
        cold.recovery.advanced(io.now);
        cold.meter.backoff = 0;
        if is_last {
            self.time_out(io, index);
        }
    }

    /// The path has become narrower: what is under way did not fit, and comes again at once (Linux `tcp_simple_retransmit`).
    pub(crate) fn mend_too_long(&mut self, io: &mut Io<'_>, index: u32) {
        if let Some((hot, cold)) = self.table.parts(index)
            && can_mend(hot, cold)
        {
            self.mend(io, index, Mend::All);
        }
    }

    fn mend(&mut self, io: &mut Io<'_>, index: u32, mend: Mend) {
        let Some((hot, cold)) = self.table.parts(index) else {
            return;
        };
        let is_last = cold.state == FlowState::LastAck;
        let has_bytes = hot.engine.facts().tx_queue > 0;
        match mend {
            Mend::Nothing => {}
            // In LAST-ACK the engine does not count duplicates.
            Mend::First if has_bytes && !is_last => self.send_first_again(io, index),
            Mend::All if has_bytes && !is_last => self.send_all_again(io, index),
            Mend::First | Mend::All | Mend::TimeOut if has_bytes => self.time_out(io, index),
            Mend::First | Mend::All | Mend::TimeOut => self.send_fin_again(io, index),
            Mend::Ask if has_bytes => self.ask_peer(io, index),
            Mend::Ask => self.ask_by_fin(io, index),
        }
    }

    /// Makes the engine send its first segment again: three duplicates of the peer's last acknowledgement, behind two that
    /// change the window, at which it begins to count.
    fn send_first_again(&mut self, io: &mut Io<'_>, index: u32) {
        let Some((hot, cold)) = self.table.parts(index) else {
            return;
        };
        let (key, next) = (hot.key, rcv_nxt(hot, cold));
        let (una, window) = (snd_una(cold), cold.meter.peer_window);
        cold.recovery.begin(io.now, hot.track.snd_nxt);
        self.counters.segments_mended.raise();
        for window in [window - 1, window, window, window, window] {
            let packet = Forged::acknowledgement(key, next, una, window);
            if self.feed(io, index, Some(packet.bytes()), None).is_err() {
                return self.drop_broken(io, index);
            }
        }
        self.mark_dirty(index);
    }

    /// Does at once what a time-out would do. Nobody waited for one, so that the next one is not later.
    fn send_all_again(&mut self, io: &mut Io<'_>, index: u32) {
        let backoff = |stack: &Self| stack.table.look(index).map(|(_, cold)| cold.meter.backoff);
        let before = backoff(self);
        self.time_out(io, index);
        if let (Some(before), Some((_, cold))) = (before, self.table.parts(index)) {
            cold.meter.backoff = before;
            cold.recovery.sent_all_again(io.now);
        }
    }

    /// Sends a FIN again of which the bytes before it have arrived. The engine would not: three duplicates of an acknowledgement take
    /// its timer, and then it looks for bytes only.
    fn send_fin_again(&mut self, io: &mut Io<'_>, index: u32) {
        if self.emit_fin(io, index)
            && let Some((_, cold)) = self.table.parts(index)
        {
            cold.meter.note_loss(FIN_NUMBERS, true);
            self.counters.time_outs.raise();
        }
        // Also when it could not leave: the next one comes later.
        if let Some((_, cold)) = self.table.parts(index) {
            cold.recovery.timed_out(io.now);
        }
        self.mark_dirty(index);
    }

    /// Asks a peer that has all bytes whether it has the FIN too: the FIN itself is no longer than a question, and if it was lost
    /// nothing else is needed (RFC 8985 section 7.3).
    fn ask_by_fin(&mut self, io: &mut Io<'_>, index: u32) {
        if self.emit_fin(io, index) {
            self.counters.peers_asked.raise();
        }
    }

    /// False when there is no room for it.
    fn emit_fin(&mut self, io: &mut Io<'_>, index: u32) -> bool {
        self.follow_next_hop(io.now, index);
        if !self.has_room(io, index) {
            return false;
        }
        let Some((hot, cold)) = self.table.parts(index) else {
            return false;
        };
        let mut fin = bare(hot, cold, snd_una(cold));
        fin.flags = TcpFlags::FIN.with(TcpFlags::ACK);
        cold.meter.retransmits = cold.meter.retransmits.saturating_add(1);
        cold.meter.left_now(io.now);
        let (mac, looped) = (cold.mac, hot.flags.has(Flags::LOOPED));
        self.send_control(io, &fin, mac, looped);
        true
    }

    /// Asks the peer what it has: a byte that it has acknowledged is answered at once (RFC 9293 section 3.10.7.4).
    fn ask_peer(&mut self, io: &mut Io<'_>, index: u32) {
        self.follow_next_hop(io.now, index);
        let Some((hot, cold)) = self.table.parts(index) else {
            return;
        };
        let mut question = bare(hot, cold, snd_una(cold).wrapping_sub(1));
        question.has_byte = true;
        let (mac, looped) = (cold.mac, hot.flags.has(Flags::LOOPED));
        self.counters.peers_asked.raise();
        self.send_control(io, &question, mac, looped);
    }

    /// The engine has bytes under way and waits for nothing: a window that closed meanwhile and opened again has taken its timer, and
    /// what it lets out is what has left. Its first segment goes again, and winds the timer up.
    fn wind_up(&mut self, io: &mut Io<'_>, index: u32) {
        if let Some((hot, cold)) = self.table.parts(index) {
            let bytes = under_way(hot, cold).bytes();
            cold.meter.note_loss(bytes, true);
            self.counters.time_outs.raise();
            self.send_first_again(io, index);
        }
    }

    /// Lets the engine's retransmission time-out pass, which is later than ours: everything is sent again, slowly at first.
    pub(crate) fn time_out(&mut self, io: &mut Io<'_>, index: u32) {
        self.follow_next_hop(io.now, index);
        let mut later = io.now;
        for _ in 0..ENGINE_TIMERS {
            let Some((hot, cold)) = self.table.parts(index) else {
                return;
            };
            let before = (cold.meter.retransmits, cold.meter.behind);
            let Some(interface) = self.interfaces.of(cold.meter.mtu_class) else {
                return;
            };
            match hot.engine.poll_at(interface, later) {
                Due::Ingress => {
                    self.wind_up(io, index);
                    break;
                }
                Due::At(at) => later = at,
                Due::Now => {
                    if !self.has_room(io, index) {
                        break;
                    }
                    if let Some((_, cold)) = self.table.parts(index) {
                        cold.meter.timer_is_due = true;
                    }
                    let mut ahead = Io {
                        now: later,
                        memory: &mut *io.memory,
                        tx: &mut *io.tx,
                    };
                    if self.feed(&mut ahead, index, None, None).is_err() {
                        return self.drop_broken(io, index);
                    }
                    self.note_loss(io.now, index, before);
                    let Some((_, cold)) = self.table.parts(index) else {
                        return;
                    };
                    cold.meter.left_now(io.now);
                    if cold.meter.retransmits != before.0 {
                        self.counters.time_outs.raise();
                        break;
                    }
                }
            }
        }
        // Also when nothing could leave: the next one comes later.
        if let Some((_, cold)) = self.table.parts(index) {
            cold.recovery.timed_out(io.now);
        }
        self.mark_dirty(index);
    }
}

/// An acknowledgement of the flow's, as the engine would send it, with the number `seq`.
fn bare(hot: &Hot, cold: &Cold, seq: u32) -> ControlSegment {
    let next = rcv_nxt(hot, cold);
    let mut segment = ControlSegment::acknowledge(hot.key, seq, next, cold.meter.window);
    segment.tos = cold.meter.tos;
    if cold.options.ttl != 0 {
        segment.ttl = cold.options.ttl;
    }
    segment
}

/// The time at which a loss is to be mended; `engine`: when the engine wants to be asked itself.
pub(crate) fn mend_at(
    now: Instant,
    hot: &Hot,
    cold: &Cold,
    engine: Option<Instant>,
) -> Option<Instant> {
    if can_mend(hot, cold) {
        let bytes = under_way(hot, cold).bytes();
        return Some(cold.recovery.due(now, bytes, &cold.meter));
    }
    let probes = engine.is_some() && engine_probes(hot, cold);
    (!probes && is_closed_over(hot, cold)).then(|| cold.recovery.due_closed(now, &cold.meter))
}

/// Whether something is under way that can be sent again.
fn can_mend(hot: &Hot, cold: &Cold) -> bool {
    cold.meter.peer_window > 0 && is_under_way(hot, cold)
}

/// Whether the peer has closed its window over what is under way. The engine looks behind a closed window, but not when its time-out
/// finds it so: then it waits for ever for a word of the peer's, which may be lost.
fn is_closed_over(hot: &Hot, cold: &Cold) -> bool {
    cold.meter.peer_window == 0 && is_under_way(hot, cold)
}

/// Whether the engine looks behind a closed window by itself, when it has a timer for that: with a byte that has not left, and not in
/// LAST-ACK, where it is not told that the window is closed (`last_word.rs`).
fn engine_probes(hot: &Hot, cold: &Cold) -> bool {
    unsent(hot, cold) > 0 && cold.state != FlowState::LastAck
}

/// Whether bytes or a FIN have left, and the peer of an open connection has not acknowledged them.
fn is_under_way(hot: &Hot, cold: &Cold) -> bool {
    let synchronised = matches!(
        cold.state,
        FlowState::Established
            | FlowState::CloseWait
            | FlowState::FinWait1
            | FlowState::Closing
            | FlowState::LastAck
    );
    synchronised
        && snd_una(cold) != hot.track.snd_nxt
        && !hot.flags.has(Flags::UNRESOLVED.with(Flags::DETACHED))
}

fn under_way(hot: &Hot, cold: &Cold) -> UnderWay {
    UnderWay {
        una: snd_una(cold),
        next: hot.track.snd_nxt,
    }
}

/// Where in a time span a flow has its place: neighbours in the table lie far from each other (the golden ratio).
const fn share(index: u32) -> u8 {
    index.wrapping_mul(0x9e37_79b9).to_be_bytes()[0]
}

/// Sequence numbers that a FIN takes.
const FIN_NUMBERS: u32 = 1;
/// Timers that the engine may have before its time-out: a delayed acknowledgement.
const ENGINE_TIMERS: usize = 4;
