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

impl Counted {
    /// Adds what another lcore counts. Gauges add up as well; what all lcores have in common (`shared`) is not added.
    pub fn add(&mut self, other: &Self) {
        for (sum, more) in [
            (&mut self.lcore, &other.lcore),
            (&mut self.stack, &other.stack),
            (&mut self.gpu, &other.gpu),
        ] {
            add_to(sum, more);
        }
        for (name, value) in &other.gauges {
            match self.gauges.iter_mut().find(|(known, _)| known == name) {
                Some((_, known)) if IN_COMMON.contains(name) => *known = (*known).max(*value),
                Some((_, known)) => *known += value,
                None => self.gauges.push((name, *value)),
            }
        }
    }
}

/// Gauges of what every lcore has: families and neighbours.
const IN_COMMON: [&str; 2] = ["neighbors", "families"];

/// Adds a report to a sum, by name.
pub fn add_to(sum: &mut Report, more: &Report) {
    for (place, (name, value)) in more.iter().enumerate() {
        // Reports of one kind have one order.
        let known = match sum.get_mut(place) {
            Some(entry) if entry.0 == *name => Some(entry),
            _ => sum.iter_mut().find(|(known, _)| known == name),
        };
        match known {
            Some((_, known)) => *known = known.saturating_add(*value),
            None => sum.push((name, *value)),
        }
    }
}

/// Places that one look covers: some 20 us with cold caches.
pub(super) const LOOK_PLACES: u32 = 64;
