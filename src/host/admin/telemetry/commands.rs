//! The commands: DPDK's own that K-NET's users call, and K-NET's.
//!
//! Parameters are separated by blanks, as K-NET has it, or by commas. A command with wrong ones is answered by null, as
//! DPDK does. A process id may stand first, as K-NET wants it with its daemon: it narrows what a host of many programs
//! shows, and may be left out.

use std::os::fd::OwnedFd;

use serde_json::{Value, json};

use super::rows::OUTPUT_MAX;
use super::{epolls, port, sockets, statistics};
use crate::host::admin::Asker;
use crate::host::admin::asker::Silent;

/// Commands and what their help says.
const COMMANDS: &[(&str, &str)] = &[
    ("/", "Commands."),
    ("/ethdev/link_status", "Link of a port. Parameters: port"),
    ("/ethdev/list", "Ports."),
    (
        "/ethdev/stats",
        "Basic counters of a port. Parameters: port",
    ),
    ("/ethdev/xstats", "All counters of a port. Parameters: port"),
    ("/help", "Help for a command. Parameters: command"),
    ("/info", "This host."),
    ("/knet/ethdev/queue", "Queues and who polls them."),
    (
        "/knet/ethdev/usage",
        "Traffic of a port second by second. Parameters: port seconds (1 to 60)",
    ),
    ("/knet/flow/list", "Flow rules. Parameters: start count"),
    (
        "/knet/stack/abn_stat",
        "Abnormal events that are not zero. Parameters: [pid]",
    ),
    (
        "/knet/stack/conn_stat",
        "Connections by state. Parameters: [pid]",
    ),
    (
        "/knet/stack/epoll_stat",
        "Epolls. Parameters: pid first_epoll count first_socket count",
    ),
    (
        "/knet/stack/fd_count",
        "Number of sockets. Parameters: [pid] tcp|udp|epoll",
    ),
    (
        "/knet/stack/mem_stat",
        "Memory of modules. Parameters: [pid]",
    ),
    (
        "/knet/stack/net_stat",
        "Sockets. Parameters: pid first_fd count",
    ),
    ("/knet/stack/pbuf_stat", "Packet buffers. Parameters: [pid]"),
    (
        "/knet/stack/pkt_stat",
        "Packets by layer. Parameters: [pid]",
    ),
    (
        "/knet/stack/socket_info",
        "One socket. Parameters: [pid] fd",
    ),
    (
        "/knet/stack/tcp_stat",
        "TCP events that are not zero. Parameters: [pid]",
    ),
];

/// What a client is greeted with.
pub(super) fn info() -> Value {
    json!({
        "version": format!("knet {}", crate::BUILD_VERSION),
        "pid": std::process::id(),
        "max_output_len": OUTPUT_MAX,
    })
}

/// Answers a command; null when there is none, or no such one.
pub(super) fn answer(command: &str, parameters: &str, stop: &OwnedFd, asker: &Asker) -> Value {
    let words: Vec<&str> = parameters
        .split([' ', ','])
        .filter(|word| !word.is_empty())
        .collect();
    let answered = match command {
        "/" => {
            let names = COMMANDS.iter().map(|(name, _)| *name);
            return Value::from(names.collect::<Vec<_>>());
        }
        "/info" => return info(),
        "/help" => {
            let wanted = if parameters.is_empty() {
                "/help"
            } else {
                parameters
            };
            let known = COMMANDS.iter().find(|(name, _)| *name == wanted);
            return known.map_or(Value::Null, |(name, text)| json!({ *name: *text }));
        }
        "/knet/ethdev/usage" => port::usage(&words, stop, asker),
        _ => told(command, &words, asker),
    };
    answered.unwrap_or_else(|Silent(reason)| {
        crate::warn!("event=telemetry_not_answered command={command} reason=\"{reason}\"");
        Value::Null
    })
}

fn told(command: &str, words: &[&str], asker: &Asker) -> Result<Value, Silent> {
    let facts = asker.facts()?;
    let numbers: Option<Vec<u64>> = words.iter().map(|word| word.parse().ok()).collect();
    if let Some(name) = command.strip_prefix("/knet/stack/") {
        if facts.open.is_none() {
            return Ok(Value::Null);
        }
        return match (name, numbers) {
            ("fd_count", _) => sockets::fd_count(words, &facts, asker),
            (_, None) => Ok(Value::Null),
            ("net_stat", Some(numbers)) => sockets::net_stat(&numbers, &facts, asker),
            ("socket_info", Some(numbers)) => sockets::socket_info(&numbers, &facts, asker),
            ("epoll_stat", Some(numbers)) => epolls::epoll_stat(&numbers, &facts, asker),
            (_, Some(numbers)) => statistics::statistics(name, &numbers, &facts, asker),
        };
    }
    let counters = || asker.counters();
    let is_port = numbers.as_deref() == Some(&[0]);
    Ok(match command {
        "/ethdev/list" => json!(facts.open.iter().map(|_| 0).collect::<Vec<_>>()),
        "/ethdev/stats" if is_port && facts.open.is_some() => {
            port::ethdev_stats(&facts, &counters()?)
        }
        "/ethdev/xstats" if is_port && facts.open.is_some() => {
            port::ethdev_xstats(&facts, &counters()?)
        }
        "/ethdev/link_status" if is_port => facts.open.map_or(
            Value::Null,
            |open| json!({ "status": if open.up { "UP" } else { "DOWN" } }),
        ),
        "/knet/flow/list" => json!({}),
        "/knet/ethdev/queue" => facts.open.as_ref().map_or(Value::Null, |open| {
            let queues = open.lcores.iter().enumerate().map(|(queue, lcore)| {
                let (pid, thread) = (std::process::id(), port::lcore_thread(queue));
                let fact = json!({ "pid": pid, "tid": thread, "lcoreId": lcore.cpu });
                (format!("queue{queue}"), fact)
            });
            Value::Object(queues.collect())
        }),
        _ => Value::Null,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_stands_once_and_in_order() {
        assert!(COMMANDS.is_sorted_by(|(one, _), (next, _)| one < next));
    }
}
