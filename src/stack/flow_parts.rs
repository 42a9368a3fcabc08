//! The two parts of a flow: the hot line that every segment touches, and the cold part.

use core::net::Ipv4Addr;
use core::sync::atomic::{AtomicU16, Ordering};

use super::api::{FlowOptions, FlowState};
use super::buffers::{Held, Places};
use super::changes::ChangeMark;
use super::demux::FlowKey;
use super::flow::Engine;
use super::recovery::Recovery;
use super::tracker::{Meter, Track};
use super::watchdog::Watchdog;
use crate::errno::Errno;
use crate::id::ListenerId;
use crate::prefetch;

/// Who has the flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    /// Nobody; the index is free.
    Free,
    /// The handshake of a passive flow runs.
    HalfOpen,
    /// Established, waits for accept.
    Queued,
    /// The program has it (connected by it, or accepted).
    Owned,
    /// The program has let go of it.
    Orphan,
}

/// What every segment of a flow touches: one cache line.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Hot {
    /// The connection.
    pub(crate) key: FlowKey,
    /// Raised each time the index is freed.
    pub(crate) generation: u32,
    /// The TCP engine.
    pub(crate) engine: Engine,
    /// Sequence numbers for the guard.
    pub(crate) track: Track,
    /// Who has the flow.
    pub(crate) phase: Phase,
    /// Small facts.
    pub(crate) flags: FlagWord,
    /// An acknowledgement waits for the program; see `later.rs`.
    pub(crate) waits: bool,
}

const _: () = assert!(size_of::<Hot>() == 64);

/// The [`Flags`] of a flow, loaded and stored whole. Of a plain number the compiler changes one byte in place, and whoever loads
/// the number soon afterwards waits until that store has left the core. Nobody shares it.
#[derive(Debug, Default)]
pub(crate) struct FlagWord(AtomicU16);

impl FlagWord {
    /// All of them.
    pub(crate) fn get(&self) -> Flags {
        Flags(self.0.load(Ordering::Relaxed))
    }

    /// Replaces all of them.
    pub(crate) fn put(&self, flags: Flags) {
        self.0.store(flags.0, Ordering::Relaxed);
    }

    /// [`Flags::has`].
    pub(crate) fn has(&self, flag: Flags) -> bool {
        self.get().has(flag)
    }

    /// [`Flags::set`].
    pub(crate) fn set(&self, flag: Flags) {
        let mut flags = self.get();
        flags.set(flag);
        self.put(flags);
    }

    /// [`Flags::clear`].
    pub(crate) fn clear(&self, flag: Flags) {
        let mut flags = self.get();
        flags.clear(flag);
        self.put(flags);
    }
}

/// Small facts of a flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Flags(u16);

impl Flags {
    /// Stands in the dirty list.
    pub(crate) const DIRTY: Self = Self(1);
    /// The peer is one of our own addresses.
    pub(crate) const LOOPED: Self = Self(2);
    /// The next hop's MAC is not known yet; nothing is sent.
    pub(crate) const UNRESOLVED: Self = Self(4);
    /// Out of the hash: the connection is over, only the program still reads.
    pub(crate) const DETACHED: Self = Self(8);
    /// Ring memory was refused; asked for again later.
    pub(crate) const STARVED: Self = Self(16);
    /// An acknowledgement is owed unless a segment leaves first.
    pub(crate) const ACK_OWED: Self = Self(32);
    /// Made by connect.
    pub(crate) const ACTIVE: Self = Self(64);
    /// The program answers soon after it has received (Linux' ping-pong mode): its answer carries the acknowledgement.
    pub(crate) const INTERACTIVE: Self = Self(128);
    /// Bytes have come since we last sent some.
    pub(crate) const UNANSWERED: Self = Self(256);
    /// The program has let go of it, but bytes of it wait with the lcore until there is room for them.
    pub(crate) const LEFT: Self = Self(512);
    /// Its memory was given back and comes as bytes do; see `sweep.rs`.
    pub(crate) const RESTING: Self = Self(1024);
    /// Bytes behind a gap may lie in its ring.
    pub(crate) const GAP: Self = Self(2048);
    /// Something came or left since its memory was given back, or that never happened.
    pub(crate) const STIRRED: Self = Self(4096);
    /// It was given bytes since it was asked for segments: nobody need look whether it has some.
    pub(crate) const HANDED: Self = Self(8192);
    /// It has or had urgent data.
    pub(crate) const URGENT: Self = Self(16_384);
    /// It lies with this lcore although its hash leads to another one; see `steering.rs`.
    pub(crate) const GUEST: Self = Self(32_768);

    /// Both together; has(it) asks for any of the two.
    pub(crate) const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether `flag` is set.
    pub(crate) fn has(self, flag: Self) -> bool {
        self.0 & flag.0 != 0
    }

    /// Sets `flag`.
    pub(crate) fn set(&mut self, flag: Self) {
        self.0 |= flag.0;
    }

    /// Clears `flag`.
    pub(crate) fn clear(&mut self, flag: Self) {
        self.0 &= !flag.0;
    }
}

/// What is touched less often: five lines.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Cold {
    /// The lcore's number.
    pub(crate) token: u32,
    /// MAC address of the next hop.
    pub(crate) mac: [u8; 6],
    /// Where its buffers lie.
    pub(crate) places: Places,
    /// Its memory, and whose it is.
    pub(crate) held: Held,
    /// The listener it came through.
    pub(crate) listener: Option<ListenerId>,
    /// Options.
    pub(crate) options: FlowOptions,
    /// Stream offset that the program has read up to.
    pub(crate) consumed: u64,
    /// Bytes received in order.
    pub(crate) rx_total: u64,
    /// Bytes taken by `send`.
    pub(crate) tx_total: u64,
    /// Of those, acknowledged.
    pub(crate) tx_acked: u64,
    /// Stream offset at which it began to rest.
    pub(crate) rest_at: u64,
    /// Bytes from that offset's page on that have memory again.
    pub(crate) awake: u32,
    /// The sequence number behind everything that lies behind a gap.
    pub(crate) gap_end: u32,
    /// State seen last.
    pub(crate) state: FlowState,
    /// The peer's FIN came.
    pub(crate) rx_finished: bool,
    /// Why it ended.
    pub(crate) error: Option<Errno>,
    /// The last ICMP error that did not end it (RFC 1122 4.2.3.9).
    pub(crate) soft_error: Option<Errno>,
    /// The congestion window in bytes when it was in the way last; 0 = it never was.
    pub(crate) congestion_window: u32,
    /// Next hop.
    pub(crate) next_hop: Ipv4Addr,
    /// Place in the list of changes.
    pub(crate) mark: ChangeMark,
    /// Times.
    pub(crate) watchdog: Watchdog,
    /// Losses.
    pub(crate) recovery: Recovery,
    /// Bookkeeping.
    pub(crate) meter: Meter,
}

const _: () = assert!(size_of::<Cold>() == 320);

impl Cold {
    /// Fetches the line that the next received byte goes to, and the first one of the send buffer, where bytes lie whenever
    /// it was empty before.
    pub(crate) fn prefetch_buffers(&self, payload: usize) {
        let mask = u64::from(self.meter.capacity.wrapping_sub(1));
        let offset = usize::try_from(self.rx_total & mask).unwrap_or(0);
        prefetch::lines(
            self.places.receive.wrapping_add(offset),
            payload.clamp(1, PAYLOAD_AHEAD),
        );
        prefetch::line(self.places.send);
    }

    /// Fetches the start of the send buffer.
    pub(crate) fn prefetch_send(&self) {
        prefetch::line(self.places.send);
    }

    /// Of an index that nobody uses.
    pub(crate) fn vacant() -> Self {
        Self {
            token: 0,
            mac: [0; 6],
            places: Places::default(),
            held: Held::default(),
            listener: None,
            options: FlowOptions::default(),
            consumed: 0,
            rx_total: 0,
            tx_total: 0,
            tx_acked: 0,
            rest_at: 0,
            awake: 0,
            gap_end: 0,
            state: FlowState::Closed,
            rx_finished: false,
            error: None,
            soft_error: None,
            congestion_window: 0,
            next_hop: Ipv4Addr::UNSPECIFIED,
            mark: ChangeMark::default(),
            watchdog: Watchdog::default(),
            recovery: Recovery::default(),
            meter: Meter::default(),
        }
    }
}

/// Bytes of a payload that are worth fetching their place ahead.
const PAYLOAD_AHEAD: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_flag_has_a_bit_of_its_own() {
        let all = [
            Flags::DIRTY,
            Flags::LOOPED,
            Flags::UNRESOLVED,
            Flags::DETACHED,
            Flags::STARVED,
            Flags::ACK_OWED,
            Flags::ACTIVE,
            Flags::INTERACTIVE,
            Flags::UNANSWERED,
            Flags::LEFT,
            Flags::RESTING,
            Flags::GAP,
            Flags::STIRRED,
            Flags::HANDED,
            Flags::URGENT,
            Flags::GUEST,
        ];
        let mut seen = Flags::default();
        for flag in all {
            assert!(!seen.has(flag), "{flag:?} stands for two facts");
            seen.set(flag);
        }
    }
}
