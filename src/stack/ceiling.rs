//! SO_RCVBUF below the ring: how far the window may open.
//!
//! The engine believes to have the whole ring and advertises that; what leaves is held down here (tcp_select_window of Linux). What
//! was advertised stands: the right edge never moves back.

use super::flow_parts::{Cold, Flags, Hot};
use super::sequence::{low, rcv_nxt};
use super::tracker::{Track, ahead};

/// The limit of one flow's window at a moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Ceiling {
    /// Bytes of the window at most; 0 = as the ring has it.
    pub(crate) bytes: u32,
    /// Bytes that the program has read, in sequence space.
    taken: u32,
    /// Bytes of a window that are worth telling of (RFC 9293 section 3.8.6.2.2).
    worth: u32,
}

impl Ceiling {
    /// That of a flow.
    pub(crate) fn of(cold: &Cold) -> Self {
        let bytes = u32::from(cold.options.window_kib) * 1_024;
        Self {
            bytes,
            taken: low(cold.consumed),
            worth: (bytes / 2).min(u32::from(cold.meter.mss)),
        }
    }

    /// The right edge that the program's unread bytes leave.
    fn free_edge(&self, track: &Track) -> u32 {
        let first = track.irs.wrapping_add(1);
        first.wrapping_add(self.taken).wrapping_add(self.bytes)
    }

    /// The right edge that may be advertised with `ack`, unless the ring alone says so.
    pub(crate) fn edge(&self, track: &Track, ack: u32) -> Option<u32> {
        if self.bytes == 0 {
            return None;
        }
        let edge = self.free_edge(track);
        let is_news = ahead(ack, edge) >= self.worth && ahead(track.edge, edge) > 0;
        Some(if is_news { edge } else { track.edge })
    }

    /// Whether the peer, which has sent all up to `next`, must be told that the window is open again: the engine does not know that it
    /// was not (tcp_cleanup_rbuf of Linux: twice as much as it knows of).
    fn opens(&self, track: &Track, next: u32) -> bool {
        if self.bytes == 0 {
            return false;
        }
        let room = ahead(next, self.free_edge(track));
        let known = ahead(next, track.edge);
        room > known && room >= known.saturating_mul(2) && room >= self.worth
    }
}

/// Tells the peer of a larger window, where SO_RCVBUF has held it down.
pub(crate) fn owe_window(hot: &Hot, cold: &Cold) {
    if Ceiling::of(cold).opens(&hot.track, rcv_nxt(hot, cold)) {
        hot.flags.set(Flags::ACK_OWED);
    }
}
