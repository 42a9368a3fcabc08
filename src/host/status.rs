//! What a host says of itself, as JSON: who is served, and every counter that is not zero.

use core::time::Duration;
use std::sync::mpsc;

use serde_json::{Map, Value, json};

use super::lcores::Lcores;
use crate::channel::message::TEXT_BYTES;
use crate::device::PortStats;
use crate::lcore::{self, Mail, Report};

/// An lcore that has not answered within this has other troubles, which the text then shows.
const REPORT_WAIT: Duration = Duration::from_millis(500);

/// What the text is made of.
#[derive(Debug)]
pub(super) struct Facts<'a> {
    pub(super) private: bool,
    pub(super) config: Option<&'a str>,
    pub(super) port: Option<String>,
    /// Of the lcores, the first one first.
    pub(super) cpus: Vec<u32>,
    /// The program's threads drive.
    pub(super) inline: bool,
    pub(super) clients: usize,
    pub(super) families: usize,
    pub(super) port_stats: Option<PortStats>,
    pub(super) counters: Option<Report>,
}

/// Asks the lcores for their counters, summed; None when one does not answer.
pub(super) fn ask(lcores: &Lcores) -> Option<Report> {
    let mut sum = Report::new();
    for seat in lcores.iter() {
        let (to, from) = mpsc::sync_channel(1);
        seat.mailbox.post(Mail::Report { to });
        lcore::add_to(&mut sum, &from.recv_timeout(REPORT_WAIT).ok()?);
    }
    Some(sum)
}

/// The text: one JSON object. Counters that would not fit are left out and their number told.
pub(super) fn text(facts: &Facts<'_>) -> String {
    let mut object = json!({
        "version": crate::BUILD_VERSION,
        "process": std::process::id(),
        "private": facts.private,
        "config": facts.config,
        "port": facts.port,
        "cpu": facts.cpus.first(),
        "cpus": facts.cpus,
        "progress": if facts.inline { "inline" } else { "dedicated" },
        "clients": facts.clients,
        "families": facts.families,
    });
    if let (Some(stats), Some(object)) = (facts.port_stats, object.as_object_mut()) {
        let port = json!({
            "rx_frames": stats.rx_frames,
            "tx_frames": stats.tx_frames,
            "rx_missed": stats.rx_missed,
            "tx_dropped": stats.tx_dropped,
        });
        object.insert("port_stats".to_owned(), port);
    }
    let mut used = object.to_string().len();
    let mut counters = Map::new();
    let mut left_out = 0_u64;
    for (name, value) in facts.counters.iter().flatten() {
        if *value == 0 {
            continue;
        }
        used += name.len() + COUNTER_BYTES;
        if used > TEXT_BYTES - RESERVE_BYTES {
            left_out += 1;
        } else {
            counters.insert((*name).to_owned(), Value::from(*value));
        }
    }
    if left_out > 0 {
        counters.insert("left_out".to_owned(), Value::from(left_out));
    }
    if facts.counters.is_some()
        && let Some(object) = object.as_object_mut()
    {
        object.insert("counters".to_owned(), Value::Object(counters));
    }
    object.to_string()
}

/// Quotes, colon, comma and the largest number.
const COUNTER_BYTES: usize = 24;
/// For what frames the counters.
const RESERVE_BYTES: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_is_json_and_fits_its_message() {
        let many = (0..500).map(|_| ("some_counter_with_a_long_name", u64::MAX));
        let facts = Facts {
            private: true,
            config: Some("/etc/knet/knet_comm.conf"),
            port: Some("knet_unix,path=/x".to_owned()),
            inline: false,
            cpus: vec![3, 2],
            clients: 1,
            families: 1,
            port_stats: Some(PortStats::default()),
            counters: Some(many.chain([("zero", 0)]).collect()),
        };
        let text = text(&facts);
        assert!(text.len() <= TEXT_BYTES);
        let object: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(object["cpu"], 3);
        assert_eq!(object["cpus"], json!([3, 2]));
        assert!(object["counters"]["left_out"].as_u64().unwrap() > 300);
        assert!(object["counters"].get("zero").is_none());
    }
}
