//! What memory is in use: pages, rings, buffers.

use crate::channel::sync::Ordering;
use crate::host::admin::asker::Silent;
use crate::host::admin::{Asker, Facts};
use crate::lcore::Counted;
use crate::stack::{FlowView, Stage};

/// Memory in use, by the names that the tables of statistics give it.
pub(super) fn of(
    facts: &Facts,
    counted: &Counted,
    asker: &Asker,
) -> Result<Vec<(String, u64)>, Silent> {
    let mut found: Vec<(String, u64)> = counted
        .gauges
        .iter()
        .map(|(name, value)| (format!("now.{name}"), *value))
        .collect();
    let mut add = |name: &str, value: u64| found.push((name.to_owned(), value));
    if let Some(open) = &facts.open {
        add("port.buffer_bytes", open.stats.buffer_bytes);
        add("port.buffer_bytes_free", open.stats.buffer_bytes_free);
    }
    add("now.channel_bytes", facts.channel_bytes());
    let (mut to_send, mut to_read) = (0, 0);
    asker.each_flow(&mut |view| {
        let (send, read) = segments(facts, view);
        to_send += send;
        to_read += read;
        true
    })?;
    add("flows.segments_to_send", to_send);
    add("flows.segments_to_read", to_read);
    Ok(found)
}

/// How many segments the bytes make that a connection has to send or has not acknowledged, and those that its program has
/// not read.
fn segments(facts: &Facts, view: &FlowView) -> (u64, u64) {
    let segment = u64::from(view.facts.mss).max(1);
    let unread = facts
        .families
        .iter()
        .find(|family| family.owner == view.owner && view.stage != Stage::HalfOpen)
        .and_then(|family| family.segments.control.object(view.facts.ring))
        .map_or(0, |cell| {
            let read = cell.read.rx_head.load(Ordering::Relaxed);
            // What a program wrote there may be anything.
            view.facts.rx_total.saturating_sub(read)
        });
    let unsent = view.facts.tx_total.saturating_sub(view.facts.tx_acked);
    (unsent.div_ceil(segment), unread.div_ceil(segment))
}
