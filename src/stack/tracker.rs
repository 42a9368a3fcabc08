//! Sequence bookkeeping of one flow from its own segments: smoltcp shows none of it.
//!
//! Read RFC 9293 section 3.4 and RFC 7323 section 2 first. Everything that is sent passes
//! [`Meter::on_sent`], which also holds the advertised window down to the ring memory that exists.

use core::time::Duration;

use super::ceiling::Ceiling;
use super::demux::{TcpFlags, TcpFrame};
use super::frame::{Checksums, double_at, put_double, put_word, word_at};
use super::patch::clamp_mss;
use crate::time::Instant;

/// The part of the bookkeeping that every received segment needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Track {
    /// The peer's initial sequence number.
    pub(crate) irs: u32,
    /// The first sequence number not sent yet (largest ever sent, plus one).
    pub(crate) snd_nxt: u32,
    /// The right edge that was advertised: nothing at or beyond it is accepted. Never moves back.
    pub(crate) edge: u32,
}

/// The rest of the bookkeeping.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    /// Our initial sequence number.
    pub(crate) iss: u32,
    /// Bytes of the ring, from stream offset 0, that have memory behind them.
    pub(crate) backed: u32,
    /// Bytes of the ring.
    pub(crate) capacity: u32,
    /// Window scale of our window field; 0 until both sides agreed.
    pub(crate) shift: u8,
    /// Window field sent last.
    pub(crate) window: u16,
    /// The right edge that smoltcp is sure to take; the clamp may have held it back.
    pub(crate) believed: u32,
    /// The peer's window field of its last segment, and its scale.
    pub(crate) peer_window: u16,
    pub(crate) peer_shift: u8,
    /// The peer tells of bytes behind a hole (RFC 2018).
    pub(crate) peer_sacks: bool,
    /// The congestion window was in the way when there was something to send last.
    pub(crate) is_held_up: bool,
    /// What left last lies before `snd_nxt`: a loss is being mended, and the engine counts what is in flight from there.
    pub(crate) behind: bool,
    /// Window of the first SYN, unscaled.
    pub(crate) syn_window: u16,
    /// SYN or SYN-ACK segments sent.
    pub(crate) syns: u8,
    /// Segments sent.
    pub(crate) segments: u32,
    /// Of those, with bytes.
    pub(crate) data_segments: u32,
    /// Segments received.
    pub(crate) came: u32,
    /// Of those, with bytes.
    pub(crate) data_came: u32,
    /// Bytes sent again.
    pub(crate) again_bytes: u32,
    /// When bytes left last, in milliseconds of the stack's clock.
    pub(crate) data_left_ms: u32,
    /// The smallest round-trip time in microseconds; 0 = none is known.
    pub(crate) min_rtt_us: u32,
    /// Our FIN was acknowledged.
    pub(crate) tx_finished: bool,
    /// The program sends no more, and the engine does not know it yet; see `last_word.rs`.
    pub(crate) finishes: bool,
    /// Class of the path's MTU.
    pub(crate) mtu_class: u8,
    /// The time to live of the segment that opened the connection.
    pub(crate) peer_ttl: u8,
    /// Segments sent again.
    pub(crate) retransmits: u32,
    /// Smoothed round-trip time in microseconds; 0 = not known.
    pub(crate) srtt_us: u32,
    /// Its mean deviation in microseconds.
    pub(crate) rttvar_us: u32,
    /// The slow start threshold that the engine has taken at the last loss, in bytes; 0 = there was none.
    pub(crate) ssthresh: u32,
    /// Retransmission time-outs since the last sample of the round-trip time.
    pub(crate) backoff: u8,
    /// A timer of the engine is due: what it sends again next, it sends because of that.
    pub(crate) timer_is_due: bool,
    /// Segment size towards the peer.
    pub(crate) mss: u16,
    /// IP_TOS byte.
    pub(crate) tos: u8,
    /// Largest MSS option that we send; 0 = as the MTU has it.
    pub(crate) max_segment: u16,
    /// The acknowledgement that ends the segment that is being timed.
    timed_end: u32,
    /// When that segment left; zero = none is being timed.
    timed: Instant,
    /// The SYN-ACK packet as sent, kept while the handshake is not complete.
    pub(crate) syn_ack: Option<Box<KeptSynAck>>,
}

/// A SYN-ACK, an IPv4 packet.
#[derive(Debug)]
pub(crate) struct KeptSynAck {
    length: usize,
    bytes: [u8; SYN_ACK_BYTES],
}

impl KeptSynAck {
    /// None when it is longer than one can be.
    fn of(packet: &[u8]) -> Option<Box<Self>> {
        let mut bytes = [0; SYN_ACK_BYTES];
        bytes.get_mut(..packet.len())?.copy_from_slice(packet);
        let length = packet.len();
        Some(Box::new(Self { length, bytes }))
    }

    /// The packet.
    pub(crate) fn packet(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or(&[])
    }
}

/// An IPv4 header without options and the longest TCP header.
const SYN_ACK_BYTES: usize = 20 + 60;

/// Fields of a TCP segment in an IPv4 packet without IP options, as our engine sends it.
#[derive(Clone, Copy, Debug)]
struct Sent {
    seq: u32,
    ack: u32,
    flags: u8,
    window: u16,
    payload: u32,
}

impl Meter {
    /// Starts over for a new flow whose ring has `backed` of `capacity` bytes.
    pub(crate) fn reset(&mut self, backed: usize, capacity: usize, now: Instant) {
        // A ring has 1 GiB at most.
        let [backed, capacity] =
            [backed, capacity].map(|bytes| u32::try_from(bytes).unwrap_or(u32::MAX));
        *self = Self {
            backed,
            capacity,
            data_left_ms: millis(now),
            ..Self::default()
        };
    }

    /// Whether the window must be held down because part of the ring has no memory.
    pub(crate) fn is_clamped(&self) -> bool {
        self.backed < self.capacity
    }

    /// What of smoltcp's window field may be advertised. smoltcp takes what lies below the edge of its *last* window field, and each of
    /// them is rounded down from another acknowledgement: the edge wobbles by less than one unit of the scale. One unit less is
    /// below all of them, so that what a peer was once offered is always taken. Else a peer that fills a window loses its last bytes.
    const fn steady(&self, window: u16) -> u16 {
        if self.shift == 0 {
            window
        } else {
            window.saturating_sub(1)
        }
    }

    /// The right edge that may not be passed with `ack`: where the memory ends, or where SO_RCVBUF does. None: neither is in the way.
    fn limit(&self, track: &Track, ceiling: Ceiling, ack: u32) -> Option<u32> {
        let open = ceiling.edge(track, ack);
        if !self.is_clamped() {
            return open;
        }
        let memory = track.irs.wrapping_add(1).wrapping_add(self.backed);
        Some(open.map_or(memory, |open| earlier(memory, open)))
    }

    /// The window field that may be advertised with `ack`, at most `wanted`.
    fn window_for(&self, track: &Track, ceiling: Ceiling, ack: u32, wanted: u16) -> u16 {
        let wanted = self.steady(wanted);
        let Some(limit) = self.limit(track, ceiling, ack) else {
            return wanted;
        };
        let room = ahead(ack, limit) >> self.shift;
        wanted.min(u16::try_from(room).unwrap_or(u16::MAX))
    }

    /// Looks at a segment that is about to leave, patches its window, MSS option and TOS, and keeps what the
    /// guard needs. None when it is not a TCP segment.
    pub(crate) fn on_sent(
        &mut self,
        track: &mut Track,
        ceiling: Ceiling,
        packet: &mut [u8],
        now: Instant,
    ) -> Option<()> {
        let sent = read(packet)?;
        *packet.get_mut(1)? = self.tos;
        let syn = sent.flags & SYN != 0;
        let window = if syn {
            if self.max_segment != 0 {
                // None says that there is no such option to lower.
                let _ = clamp_mss(packet, self.max_segment, Checksums::Port);
            }
            let limits = [
                (self.is_clamped(), self.backed),
                (ceiling.bytes != 0, ceiling.bytes),
            ];
            limits
                .iter()
                .filter(|(holds, _)| *holds)
                .filter_map(|(_, bytes)| u16::try_from(*bytes).ok())
                .fold(sent.window, u16::min)
        } else {
            self.window_for(track, ceiling, sent.ack, sent.window)
        };
        if window != sent.window {
            put_word(packet, IP + 14, window)?;
        }
        // The port cuts what is larger (Linux counts so as well, tcp_skb_pcount).
        let count = match self.mss {
            0 => 1,
            mss => sent.payload.div_ceil(u32::from(mss)).max(1),
        };
        self.segments = self.segments.wrapping_add(count);
        if sent.payload > 0 {
            self.data_segments = self.data_segments.wrapping_add(count);
            self.data_left_ms = millis(now);
        }
        let length = sent.payload + u32::from(syn) + u32::from(sent.flags & FIN != 0);
        if length == 0 && sent.flags & ACK != 0 && distance(sent.seq, track.snd_nxt) > 0 {
            // After a time-out smoltcp counts from SND.UNA again, also for its ACKs. The peer takes those for old and does
            // not look at them (RFC 9293 section 3.10.7.4 wants SND.NXT); two such ends would wait for ever.
            put_double(packet, IP + 4, track.snd_nxt)?;
        }
        if sent.flags & RST != 0 {
            return Some(());
        }
        self.window = window;
        if sent.flags & ACK != 0 {
            let shift = if syn { 0 } else { self.shift };
            self.advertise(track, sent.ack.wrapping_add(u32::from(window) << shift));
            let offered = if syn {
                sent.window
            } else {
                self.steady(sent.window)
            };
            let believed = sent.ack.wrapping_add(u32::from(offered) << shift);
            // The first segment of all is one with SYN.
            if self.syns == 0 || distance(self.believed, believed) > 0 {
                self.believed = believed;
            }
        }
        let end = sent.seq.wrapping_add(length);
        if syn {
            self.syns = self.syns.saturating_add(1);
            self.iss = sent.seq;
            self.syn_window = window;
            if self.syns == 1 {
                track.snd_nxt = sent.seq;
            }
            if sent.flags & ACK != 0 {
                self.syn_ack = KeptSynAck::of(packet);
            }
        }
        if length == 0 {
            return Some(());
        }
        self.behind = distance(end, track.snd_nxt) > 0;
        let again = ahead(sent.seq, track.snd_nxt).min(sent.payload);
        let is_new = distance(track.snd_nxt, end) > 0;
        if is_new {
            track.snd_nxt = end;
            if self.timed == Instant::ZERO {
                (self.timed_end, self.timed) = (end, now);
            }
        }
        // What is sent again takes with it what waited for that to be acknowledged. A byte that asked a closed window may go before.
        if !is_new || again > 1 || self.timer_is_due && again > 0 {
            self.retransmits = self.retransmits.saturating_add(count);
            self.again_bytes = self.again_bytes.saturating_add(again);
            // Karn's rule: an acknowledgement of a segment sent twice says nothing.
            self.timed = Instant::ZERO;
        }
        Some(())
    }

    /// What left last was sent at a time that has not come; it left now, and is not timed.
    pub(crate) fn left_now(&mut self, now: Instant) {
        self.data_left_ms = millis(now);
        self.forget_timed();
    }

    /// What is acknowledged next may have been there for long, or come twice (Karn's rule).
    pub(crate) fn forget_timed(&mut self) {
        self.timed = Instant::ZERO;
    }

    /// A first segment left once more, of `in_flight` bytes, because of a time-out or else of duplicates of an acknowledgement: the
    /// threshold falls, once for all time-outs of one segment (smoltcp's CUBIC; RFC 9438 section 4.6).
    pub(crate) fn note_loss(&mut self, in_flight: u32, timed_out: bool) {
        if !timed_out || self.backoff == 0 {
            self.ssthresh = (in_flight / 10 * 7).max(2 * u32::from(self.mss));
        }
        self.backoff = self.backoff.saturating_add(u8::from(timed_out));
    }

    /// The retransmission time-out (RFC 6298 sections 2 and 5.5): the engine's own until a round trip is known, then with Linux' limits.
    pub(crate) fn rto(&self) -> Duration {
        let micros = |value: u32| Duration::from_micros(value.into());
        let (first, most) = match self.srtt_us {
            0 => (RTO_MIN, RTO_MAX),
            srtt => (
                micros(srtt) + (4 * micros(self.rttvar_us)).max(DATA_RTO_MIN),
                DATA_RTO_MAX,
            ),
        };
        let factor = 1_u32 << self.backoff.min(16);
        first.saturating_mul(factor).min(most)
    }

    /// The right edge that may be advertised now, where `next` is expected.
    pub(crate) fn open_edge(&self, track: &Track, ceiling: Ceiling, next: u32) -> u32 {
        let limit = self.limit(track, ceiling, next);
        let edge = limit.map_or(self.believed, |limit| earlier(self.believed, limit));
        if distance(track.edge, edge) > 0 {
            edge
        } else {
            track.edge
        }
    }

    /// The congestion window in bytes, when it is what stops the engine now: `in_flight` bytes are on their way, and `unsent` more
    /// could leave but for it. The engine tells it nobody; what it lets out then is as much as fits into it, less than a
    /// segment short. None: nothing is to be sent, the peer's window is in the way, or a loss is being mended.
    pub(crate) fn congestion_window(&self, in_flight: u32, unsent: u64) -> Option<u32> {
        let segment = u32::from(self.mss);
        let room = (u32::from(self.peer_window) << self.peer_shift).saturating_sub(in_flight);
        // Less than a segment may wait for another reason (Nagle's).
        let waits = unsent >= u64::from(segment) && room >= segment && !self.behind;
        (waits && in_flight > 0).then_some(in_flight)
    }

    /// Notes that everything below `edge` was advertised.
    pub(crate) fn advertise(&self, track: &mut Track, edge: u32) {
        if distance(track.edge, edge) > 0 {
            track.edge = edge;
        }
    }

    /// Notes the peer's window as it came, and says whether it has opened. That of a SYN is not scaled, and says how the others are.
    pub(crate) fn note_window(&mut self, frame: &TcpFrame, window: u16) -> bool {
        if window == 0 {
            // What is under way may not be taken.
            self.forget_timed();
        }
        let opened = self.peer_window == 0 && window > 0;
        self.peer_window = window;
        if frame.flags.contains(TcpFlags::SYN) {
            // RFC 7323 section 2.3: 14 at most.
            self.peer_shift = frame.window_scale.map_or(0, |shift| shift.min(14));
            self.peer_sacks = frame.sack_permitted;
        }
        opened
    }

    /// Counts a segment of the peer, which may stand for several that were joined.
    pub(crate) fn note_arrival(&mut self, frame: &TcpFrame) {
        let count = u32::from(frame.segments);
        self.came = self.came.wrapping_add(count);
        if frame.payload_len > 0 {
            self.data_came = self.data_came.wrapping_add(count);
        }
    }

    /// Milliseconds since bytes left last, or since the connection began.
    pub(crate) fn quiet_ms(&self, now: Instant) -> u32 {
        millis(now).wrapping_sub(self.data_left_ms)
    }

    /// Looks at an acknowledgement (RFC 6298 section 2, for reports only).
    pub(crate) fn on_ack(&mut self, ack: u32, now: Instant) {
        let left = self.timed;
        if left != Instant::ZERO && distance(self.timed_end, ack) >= 0 {
            self.timed = Instant::ZERO;
            let sample = u32::try_from(now.since(left).as_micros())
                .unwrap_or(u32::MAX)
                .max(1);
            self.backoff = 0;
            if self.min_rtt_us == 0 || sample < self.min_rtt_us {
                self.min_rtt_us = sample;
            }
            (self.srtt_us, self.rttvar_us) = match self.srtt_us {
                0 => (sample, sample / 2),
                old => {
                    let off = old.abs_diff(sample);
                    let spread = self.rttvar_us - self.rttvar_us / 4 + off / 4;
                    (old - old / 8 + sample / 8, spread)
                }
            };
        }
    }
}

/// The stack's clock in milliseconds, wrapped.
#[allow(clippy::cast_possible_truncation)] // the wrap is the point
const fn millis(now: Instant) -> u32 {
    now.millis() as u32
}

/// How far `to` lies after `from` in sequence space; negative = before (RFC 9293 section 3.4).
#[allow(clippy::cast_possible_wrap)] // the wrap is the point
pub(crate) const fn distance(from: u32, to: u32) -> i32 {
    to.wrapping_sub(from) as i32
}

fn earlier(one: u32, other: u32) -> u32 {
    if distance(one, other) > 0 { one } else { other }
}

/// How far `to` lies after `from`; 0 when it lies before.
pub(crate) fn ahead(from: u32, to: u32) -> u32 {
    u32::try_from(distance(from, to)).unwrap_or(0)
}

fn read(packet: &[u8]) -> Option<Sent> {
    let header = u32::from(packet.get(IP + 12)? >> 4) * 4;
    let total = u32::try_from(packet.len()).ok()?;
    Some(Sent {
        seq: double_at(packet, IP + 4)?,
        ack: double_at(packet, IP + 8)?,
        flags: *packet.get(IP + 13)?,
        window: word_at(packet, IP + 14)?,
        payload: total.checked_sub(20 + header)?,
    })
}

/// The engine's limits of its retransmission time-out; held by a guard test.
pub(crate) const RTO_MIN: Duration = Duration::from_secs(1);
pub(crate) const RTO_MAX: Duration = Duration::from_secs(60);
/// Linux TCP_RTO_MIN and TCP_RTO_MAX.
const DATA_RTO_MIN: Duration = Duration::from_millis(200);
const DATA_RTO_MAX: Duration = Duration::from_secs(120);
/// Bytes of the IPv4 header that the engine writes.
const IP: usize = 20;
const FIN: u8 = 0x01;
const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const ACK: u8 = 0x10;
