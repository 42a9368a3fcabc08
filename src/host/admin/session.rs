//! One query: what it asks, and the lines that answer it.

use serde_json::{Map, Value, json};

use super::answer::Answer;
use super::asker::{Asker, Silent};
use super::desk::Facts;
use super::{Session, capture, sockets, trace};
use crate::device::PortStats;
use crate::lcore::{Counted, Histogram, Latencies};

/// Answers the query in `text`.
pub(super) fn run(answer: &mut Answer, text: &str, session: Session) {
    let asker = &session.asker;
    let query: Value = match serde_json::from_str(text) {
        Ok(query) => query,
        Err(error) => return answer.refuse(&format!("the query is no JSON: {error}")),
    };
    let name = query
        .get("query")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let done = match name {
        "status" => status(answer, asker),
        "stats" => stats(answer, asker),
        "sockets" => sockets::run(answer, asker),
        "trace" => trace::run(answer, &query, asker),
        "latency" => latency(answer, asker),
        "capture" => return capture::run(answer, &query, session),
        other => {
            return answer.refuse(&format!(
                "no such query: {other:?}; this host is build {}",
                crate::BUILD_VERSION
            ));
        }
    };
    match done {
        Ok(()) => answer.end(),
        Err(Silent(reason)) => answer.refuse(reason),
    }
}

/// The host's own line.
pub(super) fn host(facts: &Facts) -> Value {
    let programs = facts.families.iter().map(|family| {
        let processes = facts
            .clients
            .iter()
            .filter(|client| client.owner == family.owner);
        json!({
            "family": family.owner.0,
            "program": family.program,
            "processes": processes.map(|client| client.pid).collect::<Vec<_>>(),
            "left": family.left,
        })
    });
    let open = facts.open.as_ref().map(|open| {
        let [a, b, c, d, e, f] = open.mac;
        json!({
            "device": open.device,
            "link": if open.up { "up" } else { "down" },
            "mtu": open.mtu,
            "mac": format!("{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}"),
            "cpu": open.lcores.first().map(|lcore| lcore.cpu),
            "shares_cpu": open.lcores.first().map(|lcore| lcore.shared),
            "lcores": open.lcores.iter().map(|lcore| json!({
                "cpu": lcore.cpu,
                "shares_cpu": lcore.shared,
            })).collect::<Vec<_>>(),
            "stats": port(open.stats),
        })
    });
    json!({
        "version": crate::BUILD_VERSION,
        "process": std::process::id(),
        "private": facts.private,
        "config": facts.config,
        "port": facts.port,
        "addresses": facts.addresses,
        "progress": facts.progress,
        "idle": facts.idle,
        "spin_us": facts.spin_us,
        "open": open,
        "programs": programs.collect::<Vec<_>>(),
    })
}

fn port(stats: PortStats) -> Value {
    json!({
        "rx_frames": stats.rx_frames,
        "tx_frames": stats.tx_frames,
        "rx_missed": stats.rx_missed,
        "tx_dropped": stats.tx_dropped,
        "buffers": stats.buffers,
        "buffers_free": stats.buffers_free,
        "buffer_bytes": stats.buffer_bytes,
        "buffer_bytes_free": stats.buffer_bytes_free,
    })
}

fn status(answer: &mut Answer, asker: &Asker) -> Result<(), Silent> {
    let facts = asker.facts()?;
    let mut host = host(&facts);
    if facts.open.is_some() {
        let each = asker.counters_each()?;
        let mut counted = Counted::default();
        for one in &each {
            counted.add(one);
        }
        let mut listeners = 0;
        asker.each_listener(&mut |_| {
            listeners += 1;
            true
        })?;
        if let Some(host) = host.as_object_mut() {
            let mut gauges = object(&counted.gauges);
            gauges.insert("listeners".to_owned(), json!(listeners));
            host.insert("now".to_owned(), Value::Object(gauges));
            let lcores = host.get_mut("open").and_then(|open| open.get_mut("lcores"));
            let lcores = lcores.and_then(Value::as_array_mut).into_iter().flatten();
            for (lcore, one) in lcores.zip(&each) {
                if let Some(lcore) = lcore.as_object_mut() {
                    lcore.extend(carried(one));
                }
            }
        }
    }
    answer.line(&host.to_string());
    Ok(())
}

/// What one lcore carries, for who wants to see whether all of them do.
fn carried(counted: &Counted) -> Map<String, Value> {
    let value = |report: &[(&'static str, u64)], wanted: &str| {
        let found = report.iter().find(|(name, _)| *name == wanted);
        (
            wanted.to_owned(),
            json!(found.map_or(0, |(_, value)| *value)),
        )
    };
    Map::from_iter([
        value(&counted.gauges, "flows"),
        value(&counted.stack, "flows_accepted"),
        value(&counted.stack, "flows_connected"),
        value(&counted.stack, "rx_frames"),
        value(&counted.stack, "tx_frames"),
        value(&counted.lcore, "frames_passed"),
        value(&counted.lcore, "frames_dropped_ring_full"),
        value(&counted.lcore, "turns"),
        value(&counted.lcore, "turns_idle"),
    ])
}

fn stats(answer: &mut Answer, asker: &Asker) -> Result<(), Silent> {
    let facts = asker.facts()?;
    let each = match facts.open {
        Some(_) => asker.counters_each()?,
        None => Vec::new(),
    };
    let mut counted = Counted::default();
    for one in &each {
        counted.add(one);
    }
    let mut now = object(&counted.gauges);
    if facts.open.is_some() {
        now.insert("channel_bytes".to_owned(), json!(facts.channel_bytes()));
    }
    let line = json!({
        "version": crate::BUILD_VERSION,
        "process": std::process::id(),
        "now": now,
        "lcore": object(&counted.lcore),
        "stack": object(&counted.stack),
        "gpu": object(&counted.gpu),
        "lcores": each.iter().map(carried).collect::<Vec<_>>(),
        "port": facts.open.map(|open| port(open.stats)),
    });
    answer.line(&line.to_string());
    Ok(())
}

fn latency(answer: &mut Answer, asker: &Asker) -> Result<(), Silent> {
    let facts = asker.facts()?;
    let measured = match facts.open {
        Some(_) => asker.latency()?,
        None => Latencies::default(),
    };
    let buckets = |histogram: &Histogram| {
        histogram
            .buckets()
            .map(|(beyond, count)| json!([beyond, count]))
            .collect::<Vec<_>>()
    };
    let line = json!({
        "process": std::process::id(),
        "turn": buckets(&measured.turn),
        "rx_to_app": buckets(&measured.rx_to_app),
        "app_to_tx": buckets(&measured.app_to_tx),
    });
    answer.line(&line.to_string());
    Ok(())
}

fn object(report: &[(&'static str, u64)]) -> Map<String, Value> {
    report
        .iter()
        .map(|(name, value)| ((*name).to_owned(), Value::from(*value)))
        .collect()
}
