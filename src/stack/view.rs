//! What the stack shows of its connections, for reports: in slices that a turn can afford.

use core::net::SocketAddrV4;
use core::time::Duration;

use super::api::{Facts, FlowOptions, Owner};
use super::demux::FlowKey;
use super::flow_parts::{Flags, Phase};
use super::sequence::snd_una;
use super::stack::Stack;
use super::tracker::ahead;
use crate::id::FlowId;
use crate::time::Instant;

/// How far a flow has come on its way to a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stage {
    /// The handshake of a passive flow runs.
    HalfOpen,
    /// Established, waits for accept.
    Queued,
    /// The program has it.
    Owned,
    /// The program has let go of it.
    Orphan,
}

/// A flow as a report sees it.
#[derive(Clone, Copy, Debug)]
pub struct FlowView {
    /// Whose it is.
    pub owner: Owner,
    /// How far it has come.
    pub stage: Stage,
    /// Made by connect.
    pub active: bool,
    /// The peer is one of our own addresses.
    pub looped: bool,
    /// What its program may learn of it.
    pub facts: Facts,
    /// Stream offset that its program has read up to, as far as the loop knows.
    pub consumed: u64,
    /// Sequence numbers sent and not acknowledged.
    pub in_flight: u32,
    /// The congestion window in bytes when it was in the way last; None: it never was.
    pub congestion_window: Option<u32>,
    /// Mean deviation of the round-trip time in microseconds.
    pub rttvar_us: u32,
    /// The engine's retransmission time-out.
    pub rto: Duration,
    /// The slow start threshold in bytes; None: nothing was ever lost.
    pub slow_start_threshold: Option<u32>,
    /// Segments sent.
    pub segments: u32,
    /// Of those, with bytes.
    pub data_segments: u32,
    /// Segments received.
    pub came: u32,
    /// Of those, with bytes.
    pub data_came: u32,
    /// Bytes sent again.
    pub again_bytes: u32,
    /// Milliseconds since bytes left last, or since the connection began.
    pub quiet_ms: u32,
    /// The smallest round-trip time in microseconds; 0 = none is known.
    pub min_rtt_us: u32,
    /// Retransmission time-outs since the last sample of the round-trip time.
    pub backoff: u8,
    /// The peer's window in bytes, and its scale.
    pub peer_window: (u32, u8),
    /// Since the peer's last segment.
    pub silent: Duration,
    /// Bytes of the receive ring, and those of them that have memory.
    pub ring: (usize, usize),
    /// The path's MTU in bytes.
    pub mtu: usize,
    /// The window field that we sent last, and its scale.
    pub window: (u16, u8),
    /// First sequence numbers: ours, the peer's.
    pub first: (u32, u32),
    /// Next sequence numbers: ours to send, the right edge of what we accept.
    pub next: (u32, u32),
    /// Its options.
    pub options: FlowOptions,
}

/// A listener as a report sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ListenerView {
    /// Address (unspecified = all of ours) and port.
    pub local: SocketAddrV4,
    /// Whose it is.
    pub owner: Owner,
    /// The lcore's number for it.
    pub token: u32,
    /// Connections that may wait for accept, less one.
    pub backlog: u32,
    /// Connections that wait for accept.
    pub queued: u32,
    /// Handshakes that run.
    pub half_open: u32,
}

/// A connection in TIME-WAIT as a report sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RestView {
    /// Our end.
    pub local: SocketAddrV4,
    /// The peer's end.
    pub remote: SocketAddrV4,
    /// How long it still rests.
    pub left: Duration,
}

/// A part of a table, and where the next one begins (None: that was the last).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Slice<T> {
    /// The entries.
    pub entries: Vec<T>,
    /// The next place to look at.
    pub next: Option<u32>,
}

impl<T> Slice<T> {
    /// Asks `at` for `count` places from `from` on, of `len`.
    fn collect(from: u32, count: u32, len: usize, mut at: impl FnMut(u32) -> Option<T>) -> Self {
        let end = from.saturating_add(count);
        let len = u32::try_from(len).unwrap_or(u32::MAX);
        Self {
            entries: (from..end.min(len)).filter_map(&mut at).collect(),
            next: (end < len).then_some(end),
        }
    }
}

impl Stack {
    /// Up to `count` places of the flow table from `from` on.
    #[must_use]
    pub fn view_flows(&self, now: Instant, from: u32, count: u32) -> Slice<FlowView> {
        Slice::collect(from, count, self.table.places(), |index| {
            self.view_flow(now, index)
        })
    }

    /// The flow between two endpoints.
    #[must_use]
    pub fn view_one(
        &self,
        now: Instant,
        local: SocketAddrV4,
        remote: SocketAddrV4,
    ) -> Option<FlowView> {
        self.view_flow(now, self.table.lookup(FlowKey { local, remote })?)
    }

    /// One flow.
    #[must_use]
    pub fn view_of(&self, now: Instant, flow: FlowId) -> Option<FlowView> {
        self.view_flow(now, self.table.resolve(flow)?)
    }

    fn view_flow(&self, now: Instant, index: u32) -> Option<FlowView> {
        let (hot, cold) = self.table.look(index)?;
        let stage = match hot.phase {
            Phase::Free => return None,
            Phase::HalfOpen => Stage::HalfOpen,
            Phase::Queued => Stage::Queued,
            Phase::Owned => Stage::Owned,
            Phase::Orphan => Stage::Orphan,
        };
        Some(FlowView {
            owner: cold.held.owner,
            stage,
            active: hot.flags.has(Flags::ACTIVE),
            looped: hot.flags.has(Flags::LOOPED),
            facts: self.facts_of(index)?,
            consumed: cold.consumed,
            in_flight: ahead(snd_una(cold), hot.track.snd_nxt),
            congestion_window: (cold.congestion_window != 0).then_some(cold.congestion_window),
            rttvar_us: cold.meter.rttvar_us,
            rto: cold.meter.rto(),
            slow_start_threshold: (cold.meter.ssthresh != 0).then_some(cold.meter.ssthresh),
            segments: cold.meter.segments,
            data_segments: cold.meter.data_segments,
            came: cold.meter.came,
            data_came: cold.meter.data_came,
            again_bytes: cold.meter.again_bytes,
            quiet_ms: cold.meter.quiet_ms(now),
            min_rtt_us: cold.meter.min_rtt_us,
            backoff: cold.meter.backoff,
            peer_window: (
                u32::from(cold.meter.peer_window) << cold.meter.peer_shift,
                cold.meter.peer_shift,
            ),
            silent: cold.watchdog.since_heard(now),
            ring: (cold.meter.capacity as usize, cold.meter.backed as usize),
            mtu: self.interfaces.mtu(cold.meter.mtu_class),
            window: (cold.meter.window, cold.meter.shift),
            first: (cold.meter.iss, hot.track.irs),
            next: (hot.track.snd_nxt, hot.track.edge),
            options: cold.options,
        })
    }

    /// Up to `count` places of the listener table from `from` on.
    #[must_use]
    pub fn view_listeners(&self, from: u32, count: u32) -> Slice<ListenerView> {
        Slice::collect(from, count, self.listeners.places(), |index| {
            self.listeners.view(index)
        })
    }

    /// Up to `count` places of the TIME-WAIT table from `from` on.
    #[must_use]
    pub fn view_resting(&self, now: Instant, from: u32, count: u32) -> Slice<RestView> {
        Slice::collect(from, count, self.time_wait.places(), |index| {
            let (entry, expiry) = self.time_wait.at(index)?;
            Some(RestView {
                local: entry.key.local,
                remote: entry.key.remote,
                left: expiry.since(now),
            })
        })
    }

    /// Entries of the neighbour table.
    #[must_use]
    pub fn neighbor_count(&self) -> usize {
        self.neighbors.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_cover_a_table_once_and_end() {
        let mut seen = Vec::new();
        let mut from = Some(0);
        while let Some(at) = from {
            let slice = Slice::collect(at, 4, 10, |index| (index % 3 != 0).then_some(index));
            assert!(slice.entries.len() <= 4);
            seen.extend(slice.entries);
            from = slice.next;
        }
        assert_eq!(seen, [1, 2, 4, 5, 7, 8]);
        let empty = Slice::collect(0, 4, 0, Some);
        assert_eq!((empty.entries, empty.next), (vec![], None));
        let beyond = Slice::collect(u32::MAX, 4, 10, Some);
        assert_eq!((beyond.entries, beyond.next), (vec![], None));
    }
}
