//! When to give up on a peer: smoltcp waits for ever.
//!
//! User time-out (RFC 9293 3.10.8, RFC 5482), FIN-WAIT-2 and orphans (Linux `tcp_fin_timeout`, linger), keep-alive
//! (RFC 1122 4.2.3.6, tcp(7)). Retries of SYN and SYN-ACK are counted by the stack itself; here is the end of a handshake
//! whose segments never found room to leave.

use core::time::Duration;

use super::api::{FlowOptions, FlowState, StackConfig};
use super::tracker::{RTO_MAX, RTO_MIN};
use crate::time::{Instant, sooner};

/// What the watchdog must know of a flow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Watched {
    /// TCP state.
    pub(crate) state: FlowState,
    /// Data or a FIN of ours is not acknowledged.
    pub(crate) outstanding: bool,
    /// The program has let go of the flow.
    pub(crate) orphan: bool,
}

/// What must happen to a flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    /// Nothing.
    Fine,
    /// Send a keep-alive probe.
    Probe,
    /// The user time-out passed: give up without a word, as Linux does.
    TimedOut,
    /// Keep-alive probes stayed without an answer: reset.
    Dead,
    /// An orphan took too long: reset.
    Orphaned,
}

/// Times of one flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Watchdog {
    /// Last segment from the peer.
    heard: Instant,
    /// The peer has not acknowledged anything new since then, while something was outstanding; zero = nothing is.
    stalled: Instant,
    /// The last keep-alive probe left then.
    probed: Instant,
    /// Keep-alive probes without an answer.
    probes: u32,
    /// The program let go of the flow then, or the peer has acknowledged bytes since; zero = it has it.
    orphaned: Instant,
    /// FIN-WAIT-2 was entered then; zero = it is not in it.
    half_closed: Instant,
}

impl Watchdog {
    /// The watchdog of a flow that begins now.
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            heard: now,
            probed: now,
            ..Self::default()
        }
    }

    /// A valid segment came.
    pub(crate) fn heard(&mut self, now: Instant) {
        self.heard = now;
        self.probes = 0;
    }

    /// How long the peer has been silent.
    pub(crate) fn since_heard(&self, now: Instant) -> Duration {
        now.since(self.heard)
    }

    /// The peer acknowledged something new, or answers with a closed window while nobody set a user time-out.
    pub(crate) fn progressed(&mut self) {
        self.stalled = Instant::ZERO;
    }

    /// The peer acknowledged bytes: an orphan that goes on has its time anew.
    pub(crate) fn delivered(&mut self, now: Instant) {
        self.progressed();
        if self.orphaned != Instant::ZERO {
            self.orphaned = now;
        }
    }

    /// The program let go.
    pub(crate) fn orphan(&mut self, now: Instant) {
        if self.orphaned == Instant::ZERO {
            self.orphaned = now;
        }
        self.half_closed = Instant::ZERO;
    }

    /// Keeps the times that depend on the state. Called after every touch.
    pub(crate) fn note(&mut self, now: Instant, flow: Watched) {
        if !flow.outstanding {
            self.stalled = Instant::ZERO;
        } else if self.stalled == Instant::ZERO {
            self.stalled = now;
        }
        if flow.state != FlowState::FinWait2 {
            self.half_closed = Instant::ZERO;
        } else if self.half_closed == Instant::ZERO {
            self.half_closed = now;
        }
    }

    /// When to look next.
    pub(crate) fn next_due(
        &self,
        flow: Watched,
        options: &FlowOptions,
        config: &StackConfig,
    ) -> Option<Instant> {
        let stalled = self.stall_end(flow, options, config);
        let orphaned = self.orphan_end(flow, options, config);
        sooner(sooner(stalled, orphaned), self.probe_at(flow, options))
    }

    /// Looks at the clock. [`Verdict::Probe`] is counted as sent.
    pub(crate) fn check(
        &mut self,
        now: Instant,
        flow: Watched,
        options: &FlowOptions,
        config: &StackConfig,
    ) -> Verdict {
        let passed = |end: Option<Instant>| end.is_some_and(|end| end <= now);
        if passed(self.stall_end(flow, options, config)) {
            return Verdict::TimedOut;
        }
        if passed(self.orphan_end(flow, options, config)) {
            return Verdict::Orphaned;
        }
        if !passed(self.probe_at(flow, options)) {
            return Verdict::Fine;
        }
        let usual = if options.keepcnt == 0 {
            KEEPALIVE_PROBES
        } else {
            u32::from(options.keepcnt)
        };
        let dead = match options.user_timeout_ms {
            0 => self.probes >= usual,
            // It stands above the number of probes (Linux tcp_keepalive_timer).
            own => self.probes > 0 && self.since_heard(now) >= Duration::from_millis(own.into()),
        };
        if dead {
            return Verdict::Dead;
        }
        self.probes += 1;
        self.probed = now;
        Verdict::Probe
    }

    fn stall_end(
        &self,
        flow: Watched,
        options: &FlowOptions,
        config: &StackConfig,
    ) -> Option<Instant> {
        match flow.state {
            FlowState::SynSent => return Some(self.heard + connect_limit(options, config)),
            FlowState::SynReceived => {
                let retries = own_or(options.syn_count, config.synack_retries);
                return Some(self.heard + retries_span(retries) + LENIENCE);
            }
            _ if !flow.outstanding => return None,
            _ => {}
        }
        let limit = match options.user_timeout_ms {
            0 => config.user_timeout,
            own => Duration::from_millis(u64::from(own)),
        };
        (self.stalled != Instant::ZERO).then(|| self.stalled + limit)
    }

    fn orphan_end(
        &self,
        flow: Watched,
        options: &FlowOptions,
        config: &StackConfig,
    ) -> Option<Instant> {
        if !flow.orphan {
            return None;
        }
        match flow.state {
            FlowState::FinWait2 => {
                let limit = match u64::try_from(options.linger2_s) {
                    Ok(0) => config.fin_timeout,
                    Ok(own) => Duration::from_secs(own),
                    // Negative: it waits for nobody.
                    Err(_) => Duration::ZERO,
                };
                (self.half_closed != Instant::ZERO).then(|| self.half_closed + limit)
            }
            _ => (self.orphaned != Instant::ZERO).then(|| self.orphaned + config.orphan_timeout),
        }
    }

    fn probe_at(&self, flow: Watched, options: &FlowOptions) -> Option<Instant> {
        let open = matches!(
            flow.state,
            FlowState::Established | FlowState::CloseWait | FlowState::FinWait2
        );
        if !options.keepalive || !open || flow.outstanding {
            return None;
        }
        let seconds = |own: u16, usual: u64| {
            Duration::from_secs(if own == 0 { usual } else { u64::from(own) })
        };
        Some(if self.probes == 0 {
            self.heard + seconds(options.keepidle_s, KEEPALIVE_IDLE_S)
        } else {
            self.probed + seconds(options.keepintvl_s, KEEPALIVE_INTERVAL_S)
        })
    }
}

/// How long a connect may last whatever becomes of its segments.
fn connect_limit(options: &FlowOptions, config: &StackConfig) -> Duration {
    match options.user_timeout_ms {
        0 => retries_span(own_or(options.syn_count, config.syn_retries)) + LENIENCE,
        // Linux looks when the first SYN would be sent again, not before (tcp_write_timeout).
        own => Duration::from_millis(u64::from(own)).max(RTO_MIN),
    }
}

/// What the program has set, or else what is usual.
const fn own_or(own: u8, usual: u8) -> u8 {
    if own == 0 { usual } else { own }
}

/// How long so many retries take, the wait behind the last one with it (RFC 6298 section 5.5).
fn retries_span(retries: u8) -> Duration {
    (0..=u32::from(retries))
        .map(|number| (RTO_MIN * 2_u32.pow(number.min(16))).min(RTO_MAX))
        .sum()
}

/// The count of retries ends a handshake that could send first.
const LENIENCE: Duration = Duration::from_secs(1);
/// Linux `tcp_keepalive_time`.
const KEEPALIVE_IDLE_S: u64 = 7200;
/// Linux `tcp_keepalive_intvl`.
const KEEPALIVE_INTERVAL_S: u64 = 75;
/// Linux `tcp_keepalive_probes`.
const KEEPALIVE_PROBES: u32 = 9;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stack::tests::config;

    const OPEN: Watched = Watched {
        state: FlowState::Established,
        outstanding: false,
        orphan: false,
    };

    #[test]
    fn an_idle_flow_without_options_lives_for_ever() {
        let dog = Watchdog::new(Instant::ZERO);
        assert_eq!(
            dog.next_due(OPEN, &FlowOptions::default(), &config(1)),
            None
        );
    }

    #[test]
    fn keepalive_counts_idle_interval_and_probes() {
        let options = FlowOptions {
            keepalive: true,
            keepidle_s: 10,
            keepintvl_s: 2,
            keepcnt: 3,
            ..FlowOptions::default()
        };
        let mut dog = Watchdog::new(Instant::ZERO);
        let mut probes = Vec::new();
        loop {
            let at = dog.next_due(OPEN, &options, &config(1)).unwrap();
            match dog.check(at, OPEN, &options, &config(1)) {
                Verdict::Probe => probes.push(at.millis()),
                verdict => {
                    assert_eq!((verdict, at.millis()), (Verdict::Dead, 16_000));
                    break;
                }
            }
        }
        assert_eq!(probes, [10_000, 12_000, 14_000]);
        dog.heard(Instant::from_millis(16_000));
        assert_eq!(
            dog.next_due(OPEN, &options, &config(1)),
            Some(Instant::from_millis(26_000))
        );
    }

    #[test]
    fn a_stall_ends_in_a_time_out_and_progress_starts_it_anew() {
        let config = config(1);
        let options = FlowOptions::default();
        let busy = Watched {
            outstanding: true,
            ..OPEN
        };
        let mut dog = Watchdog::new(Instant::ZERO);
        dog.note(Instant::from_millis(5), busy);
        dog.note(Instant::from_millis(50), busy);
        let end = Instant::from_millis(5) + config.user_timeout;
        assert_eq!(dog.next_due(busy, &options, &config), Some(end));
        dog.progressed();
        dog.note(Instant::from_millis(70), busy);
        assert_eq!(dog.check(end, busy, &options, &config), Verdict::Fine);
        let end = Instant::from_millis(70) + config.user_timeout;
        assert_eq!(dog.check(end, busy, &options, &config), Verdict::TimedOut);
    }

    #[test]
    fn only_an_orphan_leaves_fin_wait_2_by_time() {
        let config = config(1);
        let options = FlowOptions::default();
        let half = Watched {
            state: FlowState::FinWait2,
            ..OPEN
        };
        let mut dog = Watchdog::new(Instant::ZERO);
        dog.note(Instant::ZERO, half);
        assert_eq!(dog.next_due(half, &options, &config), None);
        let half = Watched {
            orphan: true,
            ..half
        };
        let closed = Instant::from_millis(400);
        dog.orphan(closed);
        dog.note(closed, half);
        assert_eq!(
            dog.check(closed + config.fin_timeout, half, &options, &config),
            Verdict::Orphaned
        );
    }
}
