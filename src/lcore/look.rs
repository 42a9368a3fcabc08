//! What may be asked of an lcore, in parts that a turn can afford.

use core::net::SocketAddrV4;

use super::latency::Latencies;
use super::mailbox::Report;
use crate::stack::{FlowView, ListenerView, RestView, Slice};

/// A part of a report.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Look {
    /// What is counted.
    Counters,
    /// Flows from this place of their table on.
    Flows {
        /// The first place.
        from: u32,
    },
    /// The flow between two endpoints.
    Flow {
        /// Ours.
        local: SocketAddrV4,
        /// The peer's.
        remote: SocketAddrV4,
    },
    /// Listeners from this place of their table on.
    Listeners {
        /// The first place.
        from: u32,
    },
    /// How long things take. Whoever asks begins to have it measured; some seconds after the last one asked it ends.
    Latency,
    /// Connections in TIME-WAIT from this place of their table on.
    Resting {
        /// The first place.
        from: u32,
    },
}

/// Its answer.
#[derive(Debug)]
pub enum Seen {
    /// To [`Look::Counters`].
    Counters(Counted),
    /// To [`Look::Flows`].
    Flows(Slice<FlowView>),
    /// To [`Look::Flow`].
    Flow(Option<FlowView>),
    /// To [`Look::Listeners`].
    Listeners(Slice<ListenerView>),
    /// To [`Look::Latency`].
    Latency(Latencies),
    /// To [`Look::Resting`].
    Resting(Slice<RestView>),
}

/// What is counted, by layer.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Counted {
    /// What is there now.
    pub gauges: Report,
    /// What the lcore counts.
    pub lcore: Report,
    /// What the stack counts.
    pub stack: Report,
    /// What the payload stages count, where there are any.
    pub gpu: Report,
}

/// Places that one look covers: some 20 us with cold caches.
pub(super) const LOOK_PLACES: u32 = 64;
