//! When a flow is to mend a loss: the engine sends again after three duplicates of an acknowledgement, once, and else after a
//! second at the least.
//!
//! RFC 6582 (a partial acknowledgement), RFC 6675 section 4 (what a peer reports above a hole), RFC 8985 sections 6.2 and 7 (a hole
//! may be a segment that was overtaken; the end of a flight), RFC 6298 with Linux' smallest time-out. What is done then is in
//! `mend.rs`. The end of a flight is asked for by a byte that the peer has long had, not by sending it again: whoever is
//! merely slow then loses nothing, and the congestion window stays.

use core::time::Duration;

use super::demux::TcpFrame;
use super::header_option::HeaderOption;
use super::tracker::{Meter, ahead, distance};
use crate::time::Instant;

/// What a flow with unacknowledged bytes waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Wait {
    /// The acknowledgement, and then the peer is asked.
    #[default]
    Answer,
    /// The peer holds bytes behind a hole, which may have been overtaken only.
    Overtaken,
    /// What the peer says that was asked, and then the time-out.
    Asked,
    /// The acknowledgement of what the time-out sent again, and then the next time-out.
    TimedOut,
}

/// What a flow knows of a loss.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Recovery {
    /// Since when it waits.
    since: Stamp,
    /// While a loss is mended: what had left when it was seen ends here.
    recover: u32,
    wait: Wait,
    mending: bool,
    /// The peer was asked, and the first segment sent again because it said that it has not got it. If that is not enough, only the
    /// time-out is left, which comes ever more seldom: what always gets lost (a segment too long for the path) is not sent for ever.
    retried: bool,
    /// What is due was put off by this part of half a time-out, in 256ths: too many flows had the same idea at once.
    put_off: u8,
}

/// A time of the last 19 hours in four bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Stamp(u32);

impl Stamp {
    #[allow(clippy::cast_possible_truncation)] // the wrap is the point
    const fn of(now: Instant) -> Self {
        Self((now.micros() / STAMP_MICROS) as u32)
    }

    /// The last time before `now` that it stands for.
    fn before(self, now: Instant) -> Instant {
        let ago = Self::of(now).0.wrapping_sub(self.0);
        Instant::from_micros(
            (now.micros() / STAMP_MICROS).saturating_sub(ago.into()) * STAMP_MICROS,
        )
    }
}

/// What is to be done because of an acknowledgement or of time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mend {
    Nothing,
    /// Send the first segment again.
    First,
    /// Send everything again: the peer was asked and has nothing of it.
    All,
    /// Ask the peer what it has.
    Ask,
    /// The retransmission time-out: everything is taken for lost.
    TimeOut,
}

/// What of a flow's own is under way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct UnderWay {
    /// The first number that is not acknowledged.
    pub(crate) una: u32,
    /// The first number that has not left.
    pub(crate) next: u32,
}

impl UnderWay {
    /// Their count.
    pub(crate) fn bytes(self) -> u32 {
        ahead(self.una, self.next)
    }
}

impl Recovery {
    /// Bytes left that had not left before; `first`: nothing else is under way.
    pub(crate) fn left(&mut self, now: Instant, first: bool) {
        if first {
            *self = Self {
                since: Stamp::of(now),
                ..Self::default()
            };
        } else if self.wait == Wait::Answer && !self.mending {
            self.since = Stamp::of(now);
        }
    }

    /// The first segment left again because of duplicates, when everything below `next` had left.
    pub(crate) fn begin(&mut self, now: Instant, next: u32) {
        self.put_off = 0;
        if !self.mending {
            self.recover = next;
        }
        self.mending = true;
        self.wait = Wait::Answer;
        self.since = Stamp::of(now);
    }

    /// The time-out: the engine sends everything again, and every hole with it.
    pub(crate) fn timed_out(&mut self, now: Instant) {
        *self = Self {
            since: Stamp::of(now),
            wait: Wait::TimedOut,
            ..Self::default()
        };
    }

    /// Whether what the last time-out sent again may still be on its way.
    pub(crate) fn has_just_timed_out(&self, now: Instant) -> bool {
        self.wait == Wait::TimedOut && now < self.since.before(now) + SLACK
    }

    /// Everything is sent again, slowly at first, because the peer has nothing of it: that may get lost as well.
    pub(crate) fn sent_all_again(&mut self, now: Instant) {
        *self = Self {
            since: Stamp::of(now),
            retried: true,
            ..Self::default()
        };
    }

    /// The peer acknowledged what it had not before.
    pub(crate) fn advanced(&mut self, now: Instant) {
        self.since = Stamp::of(now);
        self.wait = Wait::Answer;
        self.retried = false;
        self.put_off = 0;
    }

    /// Whether an acknowledgement may make something to be done that says nothing of a hole.
    pub(crate) fn is_alert(&self) -> bool {
        self.mending || self.wait != Wait::Answer
    }

    /// Judges an acknowledgement that was fed; behind it `under_way` is not acknowledged.
    pub(crate) fn on_ack(
        &mut self,
        now: Instant,
        under_way: UnderWay,
        meter: &Meter,
        ack: Ack,
    ) -> Mend {
        if self.mending && distance(self.recover, under_way.una) >= 0 {
            self.mending = false;
        }
        if under_way.bytes() == 0 {
            return Mend::Nothing;
        }
        if self.mending {
            // Without SACK a partial acknowledgement is all that tells (RFC 6582).
            let tells = ack.held > 0 || !meter.peer_sacks;
            // One of less than was sent again tells nothing, however many of them come.
            if ack.advanced >= u32::from(meter.mss) && tells {
                return Mend::First;
            }
        }
        if ack.advanced > 0 {
            return Mend::Nothing;
        }
        match self.wait {
            // The question was behind all that had left: nothing of that is there.
            Wait::Asked if ack.pure && !self.retried => {
                self.retried = true;
                // While a hole is mended a peer may hold something: it need not say so each time.
                let is_all = meter.peer_sacks && ack.held == 0 && !self.mending;
                if is_all && under_way.bytes() > u32::from(meter.mss) {
                    Mend::All
                } else {
                    Mend::First
                }
            }
            Wait::Answer | Wait::Overtaken
                if !self.mending && ack.held >= DUPLICATES * u32::from(meter.mss) =>
            {
                Mend::First
            }
            Wait::Answer if !self.mending && ack.held > 0 => {
                self.wait = Wait::Overtaken;
                self.since = Stamp::of(now);
                Mend::Nothing
            }
            _ => Mend::Nothing,
        }
    }

    /// When time makes something to be done; `now` is at most hours later than what it waits for.
    pub(crate) fn due(&self, now: Instant, bytes: u32, meter: &Meter) -> Instant {
        let due = self.since.before(now) + self.patience(bytes, meter);
        if self.put_off == 0 {
            return due;
        }
        due + meter.rto() / 2 * u32::from(self.put_off) / 256
    }

    /// Puts off what is due, once, by a part of half a time-out that follows from `share`. False where that was done before.
    pub(crate) fn put_off(&mut self, share: u8) -> bool {
        let is_new = self.put_off == 0;
        if is_new {
            self.put_off = share.max(1);
        }
        is_new
    }

    /// The peer was asked.
    pub(crate) fn asked(&mut self, now: Instant) {
        self.put_off = 0;
        self.wait = Wait::Asked;
        self.since = Stamp::of(now);
    }

    /// When to ask a peer whose window closed over what is under way.
    pub(crate) fn due_closed(&self, now: Instant, meter: &Meter) -> Instant {
        self.since.before(now) + meter.rto()
    }

    /// What time makes to be done; the caller does it.
    pub(crate) fn on_time(&mut self, now: Instant, under_way: UnderWay, meter: &Meter) -> Mend {
        if now < self.due(now, under_way.bytes(), meter) {
            return Mend::Nothing;
        }
        match self.wait {
            Wait::Overtaken => Mend::First,
            Wait::Answer => {
                self.asked(now);
                Mend::Ask
            }
            Wait::Asked | Wait::TimedOut => Mend::TimeOut,
        }
    }

    fn patience(&self, bytes: u32, meter: &Meter) -> Duration {
        let micros = |value: u32| Duration::from_micros(value.into());
        match self.wait {
            Wait::Overtaken => micros(meter.min_rtt_us / 4).max(REORDERING),
            Wait::Asked | Wait::TimedOut => meter.rto(),
            Wait::Answer if meter.srtt_us == 0 => meter.rto(),
            Wait::Answer => {
                let delayed = if bytes <= u32::from(meter.mss) {
                    DELAYED_ACK
                } else {
                    Duration::ZERO
                };
                let trip = 2 * micros(meter.srtt_us) + 4 * micros(meter.rttvar_us);
                (trip + SLACK + delayed).min(meter.rto())
            }
        }
    }
}

/// What an acknowledgement says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Ack {
    /// So many numbers it acknowledged that were not before.
    pub(crate) advanced: u32,
    /// It carries no bytes and acknowledges nothing new.
    pub(crate) pure: bool,
    /// Bytes behind a hole that the peer says it holds.
    pub(crate) held: u32,
}

/// Bytes behind a hole at `una` that the peer says it holds (RFC 2018). Of a header without options that is 0 and costs nothing.
pub(crate) fn held(bytes: &[u8], frame: &TcpFrame, una: u32) -> u32 {
    const SACK: u8 = 5;
    let mut options = bytes.get(frame.tcp + 20..frame.payload).unwrap_or(&[]);
    let mut held = 0_u32;
    // A bad length was found when the frame was classified.
    while let Ok(Some(option)) = HeaderOption::next(options) {
        if option.kind == SACK {
            for block in option.value.chunks_exact(8) {
                let edge = |at: usize| {
                    block
                        .get(at..)?
                        .first_chunk()
                        .map(|b| u32::from_be_bytes(*b))
                };
                if let (Some(left), Some(right)) = (edge(0), edge(4))
                    && distance(una, left) > 0
                {
                    // One below tells of bytes that came twice (RFC 2883).
                    held = held.saturating_add(ahead(left, right));
                }
            }
        }
        options = option.rest;
    }
    held
}

/// Segments behind a hole that make it a loss (RFC 6675: DupThresh).
const DUPLICATES: u32 = 3;
/// How long a segment may be overtaken, at the least (RFC 8985 section 6.2: a quarter of a round trip; Linux has a millisecond).
const REORDERING: Duration = Duration::from_millis(1);
/// What a peer may be late by because its CPU is somebody else's.
const SLACK: Duration = Duration::from_millis(10);
/// What it may wait with the acknowledgement of a single segment (Linux TCP_DELACK_MIN).
const DELAYED_ACK: Duration = Duration::from_millis(40);
/// What a [`Stamp`] counts.
const STAMP_MICROS: u64 = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_put_off_is_put_off_once_and_by_half_a_time_out_at_most() {
        let meter = Meter::default();
        let mut recovery = Recovery::default();
        let now = Instant::from_millis(5_000);
        recovery.left(now, true);
        let due = recovery.due(now, 1, &meter);
        assert!(recovery.put_off(0), "no share is nothing");
        let late = recovery.due(now, 1, &meter);
        assert!(late > due);
        assert!(!recovery.put_off(255));
        assert_eq!(recovery.due(now, 1, &meter), late);
        recovery.asked(now);
        assert!(recovery.put_off(255), "the next one may be");
        let last = recovery.due(now, 1, &meter).since(now);
        assert!(last > meter.rto() && last < meter.rto() * 3 / 2, "{last:?}");
    }
}
