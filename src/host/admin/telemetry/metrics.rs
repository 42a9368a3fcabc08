//! OpenMetrics text (the OpenMetrics specification 1.0) over HTTP, one answer a connection.

use core::fmt::Write;
use core::time::Duration;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{PollFd, PollFlags};
use rustix::net::{RecvFlags, SendFlags};

use crate::errno::{Errno, Result};
use crate::host::admin::Asker;
use crate::host::admin::asker::Silent;
use crate::host::server::timespec;
use crate::lcore::Counted;

/// A request is shorter than this.
const REQUEST_MAX: usize = 8_192;
/// A client that says or takes nothing for so long is given up.
const PATIENCE: Duration = Duration::from_secs(5);

/// Answers one request.
pub(super) fn serve(socket: &OwnedFd, stop: &OwnedFd, asker: &Asker) {
    if let Err(errno) = answer(socket, stop, asker) {
        crate::debug!("event=metrics_client_gone errno={errno}");
    }
}

fn answer(socket: &OwnedFd, stop: &OwnedFd, asker: &Asker) -> Result<()> {
    let mut request = Vec::new();
    let mut part = [0; 1_024];
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        if request.len() >= REQUEST_MAX {
            return send(socket, "431 Request Header Fields Too Large", "");
        }
        if !ready(socket, PollFlags::IN, Some(stop))? {
            return Ok(());
        }
        let (count, _) = rustix::net::recv(socket, &mut part[..], RecvFlags::DONTWAIT)?;
        if count == 0 {
            return Ok(());
        }
        request.extend_from_slice(part.get(..count).unwrap_or_default());
    }
    let line = String::from_utf8_lossy(&request);
    let mut words = line.split_whitespace();
    match (words.next(), words.next()) {
        (Some("GET"), Some("/metrics" | "/")) => match text(asker) {
            Ok(text) => send(socket, "200 OK", &text),
            Err(Silent(reason)) => send(socket, "503 Service Unavailable", reason),
        },
        (Some("GET"), _) => send(socket, "404 Not Found", ""),
        _ => send(socket, "405 Method Not Allowed", ""),
    }
}

fn ready(socket: &OwnedFd, what: PollFlags, stop: Option<&OwnedFd>) -> Result<bool> {
    let mut sources = vec![PollFd::from_borrowed_fd(socket.as_fd(), what)];
    sources.extend(stop.map(|stop| PollFd::from_borrowed_fd(stop.as_fd(), PollFlags::IN)));
    match rustix::event::poll(&mut sources, Some(&timespec(PATIENCE))) {
        Ok(0) => Err(Errno::TIMEDOUT),
        Ok(_) => Ok(sources.get(1).is_none_or(|stop| stop.revents().is_empty())),
        Err(Errno::INTR) => Ok(true),
        Err(errno) => Err(errno),
    }
}

fn send(socket: &OwnedFd, status: &str, body: &str) -> Result<()> {
    let whole = format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/openmetrics-text; version=1.0.0; charset=utf-8\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    let mut rest = whole.as_bytes();
    while !rest.is_empty() {
        match rustix::net::send(socket, rest, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
            Ok(count) => rest = rest.get(count..).unwrap_or_default(),
            Err(Errno::AGAIN) => {
                ready(socket, PollFlags::OUT, None)?;
            }
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    // Until the client has it all: what it still says would make a close a reset.
    rustix::net::shutdown(socket, rustix::net::Shutdown::Write)?;
    Ok(())
}

/// Everything that is counted: `knet_LAYER_NAME_total`, and gauges `knet_NAME`.
fn text(asker: &Asker) -> core::result::Result<String, Silent> {
    let facts = asker.facts()?;
    let mut out = String::new();
    let mut add = |kind: &str, name: &str, suffix: &str, value: u64| {
        // Writing to a String cannot fail.
        let _ = write!(out, "# TYPE {name} {kind}\n{name}{suffix} {value}\n");
    };
    add("gauge", "knet_up", "", u64::from(facts.open.is_some()));
    add("gauge", "knet_programs", "", facts.families.len() as u64);
    add("gauge", "knet_processes", "", facts.clients.len() as u64);
    if let Some(open) = &facts.open {
        let each = asker.counters_each()?;
        let mut counted = Counted::default();
        for one in &each {
            counted.add(one);
        }
        for (name, value) in &counted.gauges {
            add("gauge", &format!("knet_{name}"), "", *value);
        }
        for (layer, group) in [
            ("lcore", &counted.lcore),
            ("stack", &counted.stack),
            ("gpu", &counted.gpu),
        ] {
            for (name, value) in group {
                add("counter", &format!("knet_{layer}_{name}"), "_total", *value);
            }
        }
        for (name, value) in [
            ("rx_frames", open.stats.rx_frames),
            ("tx_frames", open.stats.tx_frames),
            ("rx_missed", open.stats.rx_missed),
            ("tx_dropped", open.stats.tx_dropped),
        ] {
            add("counter", &format!("knet_port_{name}"), "_total", value);
        }
        for (name, value) in [
            ("channel_bytes", facts.channel_bytes()),
            ("port_buffers", open.stats.buffers),
            ("port_buffers_free", open.stats.buffers_free),
            ("port_buffer_bytes", open.stats.buffer_bytes),
            ("port_buffer_bytes_free", open.stats.buffer_bytes_free),
        ] {
            add("gauge", &format!("knet_{name}"), "", value);
        }
        add("gauge", "knet_link_up", "", u64::from(open.up));
        lcores(&mut out, &each);
    }
    out.push_str("# EOF\n");
    Ok(out)
}

/// What tells whether all lcores carry their part: turns, turns without work, frames passed on, flows accepted.
fn lcores(out: &mut String, each: &[Counted]) {
    for (name, wanted) in [
        ("knet_by_lcore_turns", "turns"),
        ("knet_by_lcore_turns_idle", "turns_idle"),
        ("knet_by_lcore_frames_passed", "frames_passed"),
        ("knet_by_lcore_flows_accepted", "flows_accepted"),
    ] {
        let _ = writeln!(out, "# TYPE {name} counter");
        for (lcore, counted) in each.iter().enumerate() {
            let all = counted.lcore.iter().chain(&counted.stack);
            let value = all
                .filter(|(name, _)| *name == wanted)
                .map(|(_, value)| value)
                .sum::<u64>();
            let _ = writeln!(out, "{name}_total{{lcore=\"{lcore}\"}} {value}");
        }
    }
}
