//! The port: its counters, its queue and its traffic.

use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{PollFd, PollFlags};
use serde_json::{Map, Value, json};

use crate::host::admin::asker::Silent;
use crate::host::admin::{Asker, Facts};
use crate::host::server::timespec;
use crate::lcore::Counted;

fn stack(counted: &Counted, wanted: &str) -> u64 {
    let found = counted.stack.iter().find(|(name, _)| *name == wanted);
    found.map_or(0, |(_, value)| *value)
}

pub(super) fn ethdev_stats(facts: &Facts, counted: &Counted) -> Value {
    let stats = facts
        .open
        .as_ref()
        .map(|open| open.stats)
        .unwrap_or_default();
    json!({
        "ipackets": stats.rx_frames,
        "opackets": stats.tx_frames,
        "ibytes": stack(counted, "rx_bytes"),
        "obytes": stack(counted, "tx_bytes"),
        "imissed": stats.rx_missed,
        "ierrors": 0,
        "oerrors": stats.tx_dropped,
        "rx_nombuf": stack(counted, "tx_dropped_no_buffer"),
    })
}

/// As the drivers name theirs.
pub(super) fn ethdev_xstats(facts: &Facts, counted: &Counted) -> Value {
    let stats = facts
        .open
        .as_ref()
        .map(|open| open.stats)
        .unwrap_or_default();
    json!({
        "rx_good_packets": stats.rx_frames,
        "tx_good_packets": stats.tx_frames,
        "rx_good_bytes": stack(counted, "rx_bytes"),
        "tx_good_bytes": stack(counted, "tx_bytes"),
        "rx_missed_errors": stats.rx_missed,
        "rx_errors": 0,
        "tx_errors": stats.tx_dropped,
        "rx_mbuf_allocation_errors": stack(counted, "tx_dropped_no_buffer"),
    })
}

/// `/knet/ethdev/usage`: second by second what went through the port; blocks this client that long.
pub(super) fn usage(words: &[&str], stop: &OwnedFd, asker: &Asker) -> Result<Value, Silent> {
    let seconds = match words {
        ["0", seconds] => seconds
            .parse()
            .ok()
            .filter(|seconds| (1..=60).contains(seconds)),
        _ => None,
    };
    let (Some(seconds), true) = (seconds, asker.facts()?.open.is_some()) else {
        return Ok(Value::Null);
    };
    let mut before = asker.counters()?;
    let mut rows = Map::new();
    for second in 0..seconds {
        let mut wait = [PollFd::from_borrowed_fd(stop.as_fd(), PollFlags::IN)];
        let whole = timespec(core::time::Duration::from_secs(1));
        if rustix::event::poll(&mut wait, Some(&whole)) != Ok(0) {
            break;
        }
        let now = asker.counters()?;
        let way = |bytes: &str, frames: &str| {
            let difference = |name: &str| stack(&now, name).saturating_sub(stack(&before, name));
            rate(difference(bytes), difference(frames))
        };
        let row = json!({ "tx": way("tx_bytes", "tx_frames"), "rx": way("rx_bytes", "rx_frames") });
        rows.insert(format!("{second}_{}", second + 1), row);
        before = now;
    }
    Ok(Value::Object(rows))
}

/// "x.xx Mbit/s, N p/s"; decimal units.
fn rate(bytes: u64, frames: u64) -> String {
    let bits = bytes.saturating_mul(8);
    let (unit, name) = match bits {
        0..1_000 => (1, ""),
        1_000..1_000_000 => (1_000, "K"),
        1_000_000..1_000_000_000 => (1_000_000, "M"),
        _ => (1_000_000_000, "G"),
    };
    let hundredths = bits.saturating_mul(100) / unit % 100;
    format!("{}.{hundredths:02} {name}bit/s, {frames} p/s", bits / unit)
}

/// The thread of the lcore; 0 when it cannot be found.
pub(super) fn lcore_thread(lcore: usize) -> u32 {
    let wanted = format!("knet-lcore-{lcore}");
    let Ok(threads) = std::fs::read_dir("/proc/self/task") else {
        return 0;
    };
    threads
        .filter_map(Result::ok)
        .find(|thread| {
            std::fs::read_to_string(thread.path().join("comm"))
                .is_ok_and(|name| name.trim_end() == wanted)
        })
        .and_then(|thread| thread.file_name().to_str()?.parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_decimal() {
        assert_eq!(rate(0, 0), "0.00 bit/s, 0 p/s");
        assert_eq!(rate(125, 1), "1.00 Kbit/s, 1 p/s");
        assert_eq!(rate(1_543_210, 99), "12.34 Mbit/s, 99 p/s");
        assert_eq!(rate(1_250_000_000, 5), "10.00 Gbit/s, 5 p/s");
    }
}
