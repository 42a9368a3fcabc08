//! The groups of statistics: K-NET's names filled in.

use std::collections::HashMap;

use serde_json::Value;

use super::memory;
use super::names::{self, Name};
use super::whose::{is_of, is_served};
use crate::host::admin::asker::Silent;
use crate::host::admin::{Asker, Facts};
use crate::lcore::Counted;
use crate::stack::FlowState;

/// The counters by the names that the tables give them.
///
/// # Errors
/// The lcore does not answer.
pub(super) fn values(
    facts: &Facts,
    counted: &Counted,
    asker: &Asker,
) -> Result<HashMap<String, u64>, Silent> {
    let mut values: HashMap<String, u64> = counted
        .stack
        .iter()
        .map(|(name, value)| ((*name).to_owned(), *value))
        .collect();
    let lcore = counted.lcore.iter();
    values.extend(lcore.map(|(name, value)| (format!("lcore.{name}"), *value)));
    if let Some(open) = &facts.open {
        values.insert("port.rx_frames".to_owned(), open.stats.rx_frames);
        values.insert("port.tx_frames".to_owned(), open.stats.tx_frames);
    }
    values.extend(memory::of(facts, counted, asker)?);
    Ok(values)
}

/// A table of names filled in.
pub(super) fn filled(
    names: &[Name],
    values: &HashMap<String, u64>,
) -> impl Iterator<Item = (&'static str, u64)> {
    names.iter().map(|(name, counters)| {
        let value = |counter: &&str| values.get(*counter).copied().unwrap_or(0);
        (*name, counters.iter().map(value).sum())
    })
}

fn object(entries: impl Iterator<Item = (&'static str, u64)>) -> Value {
    let entries = entries.map(|(name, value)| (name.to_owned(), Value::from(value)));
    Value::Object(entries.collect())
}

pub(super) fn statistics(
    name: &str,
    numbers: &[u64],
    facts: &Facts,
    asker: &Asker,
) -> Result<Value, Silent> {
    match numbers {
        [] => {}
        [pid] if is_served(facts, *pid) => {}
        _ => return Ok(Value::Null),
    }
    if name == "conn_stat" {
        return Ok(object(
            connections(numbers.first().copied(), facts, asker)?.into_iter(),
        ));
    }
    let values = values(facts, &asker.counters()?, asker)?;
    let raised = |(_, value): &(&str, u64)| *value != 0;
    Ok(match name {
        "tcp_stat" => object(filled(names::TCP, &values).filter(raised)),
        "pkt_stat" => object(filled(names::PACKETS, &values)),
        "abn_stat" => object(filled(names::ABNORMAL, &values).filter(raised)),
        "mem_stat" => object(filled(names::MEMORY, &values)),
        "pbuf_stat" => object(filled(names::BUFFERS, &values)),
        _ => Value::Null,
    })
}

/// `/knet/stack/conn_stat`: PA = made by accept, AC = made by connect.
pub(super) fn connections(
    pid: Option<u64>,
    facts: &Facts,
    asker: &Asker,
) -> Result<Vec<(&'static str, u64)>, Silent> {
    let mut counts: Vec<(&'static str, u64)> =
        names::CONNECTIONS.iter().map(|name| (*name, 0)).collect();
    let mut raise = |name: &str| {
        if let Some((_, count)) = counts.iter_mut().find(|(other, _)| *other == name) {
            *count += 1;
        }
        true
    };
    asker.each_listener(&mut |view| !is_of(facts, view.owner, pid) || raise("Listen"))?;
    asker.each_flow(&mut |view| {
        let name = match (view.facts.state, view.active) {
            (FlowState::SynSent, _) => "SynSent",
            (FlowState::SynReceived, _) => "SynRcvd",
            (FlowState::Established, false) => "PAEstablished",
            (FlowState::Established, true) => "ACEstablished",
            (FlowState::CloseWait, false) => "PACloseWait",
            (FlowState::CloseWait, true) => "ACCloseWait",
            (FlowState::FinWait1, false) => "PAFinWait1",
            (FlowState::FinWait1, true) => "ACFinWait1",
            (FlowState::Closing, false) => "PAClosing",
            (FlowState::Closing, true) => "ACClosing",
            (FlowState::LastAck, false) => "PALastAck",
            (FlowState::LastAck, true) => "ACLastAck",
            (FlowState::FinWait2, false) => "PAFinWait2",
            (FlowState::FinWait2, true) => "ACFinWait2",
            (FlowState::TimeWait, _) => "PATimeWait",
            (FlowState::Closed, _) => "Abort",
        };
        !is_of(facts, view.owner, pid) || raise(name)
    })?;
    // Who made a connection is forgotten when it rests.
    let counted = asker.counters()?;
    let resting = counted
        .gauges
        .iter()
        .find(|(name, _)| *name == "flows_resting");
    if let (Some((_, resting)), Some((_, count))) = (
        resting,
        counts.iter_mut().find(|(name, _)| *name == "PATimeWait"),
    ) {
        *count += resting;
    }
    Ok(counts)
}
