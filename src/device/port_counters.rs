//! What a device without hardware counts about its port.

use super::PortStats;

crate::counters! {
    /// Counters of one port; shared by its halves.
    pub struct PortCounters {
        /// Frames lent to the stack.
        frames_received,
        /// Frames handed to the other side.
        frames_sent,
        /// Frames dropped on the way in: nobody fetched them, or they were longer than the MTU.
        frames_missed,
        /// Frames dropped on the way out: nobody at the other side.
        frames_dropped,
    }
}

impl PortCounters {
    /// The counters as every port reports them.
    #[must_use]
    pub fn stats(&self) -> PortStats {
        PortStats {
            rx_frames: self.frames_received.value(),
            tx_frames: self.frames_sent.value(),
            rx_missed: self.frames_missed.value(),
            tx_dropped: self.frames_dropped.value(),
            ..PortStats::default()
        }
    }
}

/// A frame count as a counter takes it.
pub(super) fn count(frames: usize) -> u64 {
    u64::try_from(frames).unwrap_or(u64::MAX)
}
