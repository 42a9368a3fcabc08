//! The sequence variables of RFC 9293 section 3.3.1, from what a flow counts.

use super::api::FlowState;
use super::flow_parts::{Cold, Hot};
use super::tracker::ahead;

/// The next sequence number expected from the peer.
pub(crate) fn rcv_nxt(hot: &Hot, cold: &Cold) -> u32 {
    let received = low(cold.rx_total).wrapping_add(u32::from(cold.rx_finished));
    hot.track.irs.wrapping_add(1).wrapping_add(received)
}

/// The first sequence number that the peer has not acknowledged.
pub(crate) fn snd_una(cold: &Cold) -> u32 {
    if matches!(cold.state, FlowState::SynSent | FlowState::SynReceived) {
        return cold.meter.iss;
    }
    cold.meter
        .iss
        .wrapping_add(1)
        .wrapping_add(low(cold.tx_acked))
        .wrapping_add(u32::from(cold.meter.tx_finished))
}

/// Bytes that the engine has and that have never left.
pub(crate) fn unsent(hot: &Hot, cold: &Cold) -> u32 {
    let under_way = u64::from(ahead(snd_una(cold), hot.track.snd_nxt));
    let unsent = (cold.tx_total - cold.tx_acked).saturating_sub(under_way);
    u32::try_from(unsent).unwrap_or(u32::MAX)
}

/// A stream offset in sequence space, which is its lower half.
#[allow(clippy::cast_possible_truncation)]
pub(crate) fn low(offset: u64) -> u32 {
    offset as u32
}
