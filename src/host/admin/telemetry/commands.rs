//! The commands: DPDK's own that K-NET's users call, and K-NET's.
//!
//! Parameters are separated by blanks, as K-NET has it, or by commas. A command with wrong ones is answered by null, as
//! DPDK does. A process id may stand first, as K-NET wants it with its daemon: it narrows what a host of many programs
//! shows, and may be left out.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{PollFd, PollFlags};
use serde_json::{Map, Value, json};

use super::names::{self, Name};
use crate::channel::cell::{option, process};
use crate::channel::layout::{EPOLLS, PROCS};
use crate::channel::sync::Ordering;
use crate::host::admin::asker::Silent;
use crate::host::admin::{Asker, Facts, FamilyFact};
use crate::host::server::timespec;
use crate::lcore::Counted;
use crate::stack::{FlowState, FlowView, ListenerView};

/// Bytes of an answer at most, as DPDK has it.
pub(super) const OUTPUT_MAX: usize = 16_384;
/// Rows of an answer at most.
const ROWS_MAX: usize = 256;
/// Bytes that frame the rows.
const FRAME_BYTES: usize = 512;

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
        "/knet/ethdev/usage" => usage(&words, stop, asker),
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
            ("fd_count", _) => fd_count(words, &facts, asker),
            (_, None) => Ok(Value::Null),
            ("net_stat", Some(numbers)) => net_stat(&numbers, &facts, asker),
            ("socket_info", Some(numbers)) => socket_info(&numbers, &facts, asker),
            ("epoll_stat", Some(numbers)) => epoll_stat(&numbers, &facts, asker),
            (_, Some(numbers)) => statistics(name, &numbers, &facts, asker),
        };
    }
    let counters = || asker.counters();
    let is_port = numbers.as_deref() == Some(&[0]);
    Ok(match command {
        "/ethdev/list" => json!(facts.open.iter().map(|_| 0).collect::<Vec<_>>()),
        "/ethdev/stats" if is_port && facts.open.is_some() => ethdev_stats(&facts, &counters()?),
        "/ethdev/xstats" if is_port && facts.open.is_some() => ethdev_xstats(&facts, &counters()?),
        "/ethdev/link_status" if is_port => facts.open.map_or(
            Value::Null,
            |open| json!({ "status": if open.up { "UP" } else { "DOWN" } }),
        ),
        "/knet/flow/list" => json!({}),
        "/knet/ethdev/queue" => facts.open.as_ref().map_or(Value::Null, |open| {
            let queues = open.lcores.iter().enumerate().map(|(queue, lcore)| {
                let (pid, thread) = (std::process::id(), lcore_thread(queue));
                let fact = json!({ "pid": pid, "tid": thread, "lcoreId": lcore.cpu });
                (format!("queue{queue}"), fact)
            });
            Value::Object(queues.collect())
        }),
        _ => Value::Null,
    })
}

/// The counters by the names that the tables give them.
pub(super) fn values(facts: &Facts, counted: &Counted) -> HashMap<String, u64> {
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
    values
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

/// Names without counterpart.
pub(super) fn zeros(names: &'static [&'static str]) -> impl Iterator<Item = (&'static str, u64)> {
    names.iter().map(|name| (*name, 0))
}

fn statistics(name: &str, numbers: &[u64], facts: &Facts, asker: &Asker) -> Result<Value, Silent> {
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
    let values = values(facts, &asker.counters()?);
    let raised = |(_, value): &(&str, u64)| *value != 0;
    Ok(match name {
        "tcp_stat" => object(filled(names::TCP, &values).filter(raised)),
        "pkt_stat" => object(filled(names::PACKETS, &values)),
        "abn_stat" => object(filled(names::ABNORMAL, &values).filter(raised)),
        "mem_stat" => object(zeros(names::MEMORY)),
        "pbuf_stat" => object(zeros(names::BUFFERS)),
        _ => Value::Null,
    })
}

/// Whether the process id is one of the host's: its own, or a program's.
fn is_served(facts: &Facts, pid: u64) -> bool {
    pid == u64::from(std::process::id())
        || facts
            .clients
            .iter()
            .any(|client| u64::from(client.pid) == pid)
}

/// Whether a flow or listener of `owner` belongs to the process.
fn is_of(facts: &Facts, owner: crate::stack::Owner, pid: Option<u64>) -> bool {
    match pid {
        Some(pid) if pid != u64::from(std::process::id()) => facts
            .clients
            .iter()
            .any(|client| client.owner == owner && u64::from(client.pid) == pid),
        _ => true,
    }
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

/// A socket of a program: which family, which object, its number.
struct Numbered<'a> {
    fd: u64,
    object: u32,
    family: &'a FamilyFact,
}

/// Where a program's socket lies, if the process has it.
fn numbered(
    facts: &Facts,
    owner: crate::stack::Owner,
    object: u32,
    pid: Option<u64>,
) -> Option<Numbered<'_>> {
    let family = facts.families.iter().find(|family| family.owner == owner)?;
    let control = &family.segments.control;
    let fd = control
        .object(object)?
        .read
        .fd
        .load(Ordering::Relaxed)
        .checked_sub(1)?;
    let holds = |cell: u32| control.held(cell).is_some_and(|held| held.has(object));
    let mut holders = facts
        .clients
        .iter()
        .filter(|client| client.owner == owner && holds(client.cell));
    let held = match pid {
        Some(pid) if pid != u64::from(std::process::id()) => {
            holders.any(|client| u64::from(client.pid) == pid)
        }
        _ => holders.next().is_some(),
    };
    held.then_some(Numbered {
        fd: u64::from(fd),
        object,
        family,
    })
}

fn fd_count(words: &[&str], facts: &Facts, asker: &Asker) -> Result<Value, Silent> {
    let (pid, kind) = match words {
        [kind] => (None, *kind),
        [pid, kind] => match pid.parse() {
            Ok(pid) if is_served(facts, pid) => (Some(pid), *kind),
            _ => return Ok(Value::Null),
        },
        _ => return Ok(Value::Null),
    };
    let count = match kind {
        "tcp" => {
            let mut count = 0_u64;
            let mut add = |has: bool| {
                count += u64::from(has);
                true
            };
            asker.each_listener(&mut |view| {
                add(numbered(facts, view.owner, object_of(view), pid).is_some())
            })?;
            asker.each_flow(&mut |view| {
                add(numbered(facts, view.owner, view.facts.ring, pid).is_some())
            })?;
            count
        }
        "udp" => 0,
        "epoll" => epolls(facts, pid).len() as u64,
        _ => return Ok(Value::Null),
    };
    // K-NET gives it as text.
    Ok(Value::from(count.to_string()))
}

fn object_of(view: &ListenerView) -> u32 {
    crate::lcore::Token::unpack(view.token).object
}

const fn state(state: FlowState) -> &'static str {
    match state {
        FlowState::SynSent => "SYN_SENT",
        FlowState::SynReceived => "SYN_RECV",
        FlowState::Established => "ESTABLISHED",
        FlowState::FinWait1 => "FIN_WAIT1",
        FlowState::FinWait2 => "FIN_WAIT2",
        FlowState::CloseWait => "CLOSE_WAIT",
        FlowState::Closing => "CLOSING",
        FlowState::LastAck => "LAST_ACK",
        FlowState::TimeWait => "TIME_WAIT",
        FlowState::Closed => "CLOSED",
    }
}

/// K-NET's number of a state, by its position in its list of states.
fn state_number(name: &str) -> u64 {
    const STATES: [&str; 12] = [
        "CLOSED",
        "LISTEN",
        "SYN_SENT",
        "SYN_RECV",
        "ESTABLISHED",
        "CLOSE_WAIT",
        "FIN_WAIT1",
        "CLOSING",
        "LAST_ACK",
        "FIN_WAIT2",
        "TIME_WAIT",
        "INVALID",
    ];
    let place = STATES.iter().position(|state| *state == name);
    place.map_or(11, |place| place as u64)
}

/// Rows by their number, as many as fit.
fn rows(prefix: &str, found: impl IntoIterator<Item = (u64, Value)>, limit: u64) -> Value {
    let mut rows = Map::new();
    let mut used = FRAME_BYTES;
    let limit = match usize::try_from(limit) {
        Ok(limit) if (1..ROWS_MAX).contains(&limit) => limit,
        _ => ROWS_MAX,
    };
    for (number, row) in found.into_iter().take(limit) {
        let name = format!("{prefix}{number}");
        used += name.len() + row.to_string().len() + 4;
        if used > OUTPUT_MAX {
            break;
        }
        rows.insert(name, row);
    }
    Value::Object(rows)
}

fn net_stat(numbers: &[u64], facts: &Facts, asker: &Asker) -> Result<Value, Silent> {
    let (pid, first, count) = match *numbers {
        [pid, first, count] if is_served(facts, pid) => (Some(pid), first, count),
        [first, count] => (None, first, count),
        _ => return Ok(Value::Null),
    };
    let thread = lcore_thread(0).to_string();
    let mut found = Vec::new();
    let mut add = |it: Option<Numbered<'_>>,
                   local: core::net::SocketAddrV4,
                   remote: core::net::SocketAddrV4,
                   state: &str| {
        if let Some(it) = it.filter(|it| it.fd >= first) {
            let row = json!({
                "pf": "AF_INET", "proto": "TCP",
                "lAddr": local.ip().to_string(), "lPort": local.port(),
                "rAddr": remote.ip().to_string(), "rPort": remote.port(),
                "state": state, "tid": thread, "innerFd": it.object,
            });
            found.push((it.fd, row));
        }
        true
    };
    let nobody = core::net::SocketAddrV4::new(core::net::Ipv4Addr::UNSPECIFIED, 0);
    asker.each_listener(&mut |view| {
        add(
            numbered(facts, view.owner, object_of(view), pid),
            view.local,
            nobody,
            "LISTEN",
        )
    })?;
    asker.each_flow(&mut |view| {
        let facts_of = &view.facts;
        add(
            numbered(facts, view.owner, facts_of.ring, pid),
            facts_of.local,
            facts_of.remote,
            state(facts_of.state),
        )
    })?;
    found.sort_by_key(|(fd, _)| *fd);
    Ok(rows("osFd", found, count))
}

fn socket_info(numbers: &[u64], facts: &Facts, asker: &Asker) -> Result<Value, Silent> {
    let (pid, fd) = match *numbers {
        [pid, fd] if is_served(facts, pid) => (Some(pid), fd),
        [fd] => (None, fd),
        _ => return Ok(Value::Null),
    };
    let mut listener = None;
    asker.each_listener(&mut |view| {
        let is = numbered(facts, view.owner, object_of(view), pid).is_some_and(|it| it.fd == fd);
        if is {
            listener = Some(*view);
        }
        !is
    })?;
    let mut flow = None;
    if listener.is_none() {
        asker.each_flow(&mut |view| {
            let is =
                numbered(facts, view.owner, view.facts.ring, pid).is_some_and(|it| it.fd == fd);
            if is {
                flow = Some(*view);
            }
            !is
        })?;
    }
    Ok(match (listener, flow) {
        (Some(view), _) => {
            let it = numbered(facts, view.owner, object_of(&view), pid);
            it.map_or(Value::Null, |it| socket(&it, None, Some(&view)))
        }
        (None, Some(view)) => {
            let it = numbered(facts, view.owner, view.facts.ring, pid);
            it.map_or(Value::Null, |it| socket(&it, Some(&view), None))
        }
        (None, None) => Value::Null,
    })
}

/// The four groups of a socket; a key without counterpart is 0.
fn socket(it: &Numbered<'_>, flow: Option<&FlowView>, listener: Option<&ListenerView>) -> Value {
    let mut known: HashMap<&str, Value> = HashMap::new();
    let state = flow.map_or("LISTEN", |view| state(view.facts.state));
    known.insert("protocol", json!("TCP"));
    known.insert("pf", json!("AF_INET"));
    known.insert("associateFd", json!(it.fd));
    let nonblocking = 0o4000;
    let options = flow.map(|view| view.options).unwrap_or_default();
    if let Some(cell) = it.family.segments.control.object(it.object) {
        let of = |word: &crate::channel::sync::AtomicU32| word.load(Ordering::Relaxed);
        let linger = of(&cell.wish.linger);
        let bits = of(&cell.option.bits);
        known.insert(
            "isNonblock",
            json!(u32::from(of(&cell.read.status_flags) & nonblocking != 0)),
        );
        known.insert("isLingerOnoff", json!(linger >> 31));
        known.insert("linger", json!(linger & (u32::MAX >> 1)));
        known.insert(
            "isReuseAddr",
            json!(u32::from(bits & option::REUSEADDR != 0)),
        );
        known.insert(
            "isReusePort",
            json!(u32::from(bits & option::REUSEPORT != 0)),
        );
        known.insert(
            "isKeepAlive",
            json!(u32::from(bits & option::KEEPALIVE != 0)),
        );
        known.insert("nodelay", json!(u32::from(bits & option::NODELAY != 0)));
        known.insert("cork", json!(u32::from(bits & option::CORK != 0)));
        known.insert("error", json!(of(&cell.host.error)));
        known.insert("rcvHiwat", json!(of(&cell.option.rcvbuf)));
        known.insert("sndHiwat", json!(of(&cell.option.sndbuf)));
        known.insert("rcvLowat", json!(of(&cell.read.rcvlowat).max(1)));
        known.insert(
            "rcvTimeout",
            json!(cell.read.rcvtimeo_us.load(Ordering::Relaxed) / 1_000),
        );
        known.insert(
            "sndTimeout",
            json!(cell.read.sndtimeo_us.load(Ordering::Relaxed) / 1_000),
        );
        known.insert("keepIdle", json!(of(&cell.option.keepidle_s)));
        known.insert("keepIntvl", json!(of(&cell.option.keepintvl_s)));
        known.insert("keepProbes", json!(of(&cell.option.keepcnt)));
        known.insert("userTimeout", json!(of(&cell.option.user_timeout_ms)));
    }
    if let Some(view) = flow {
        let facts = &view.facts;
        known.insert("rcvDataLen", json!(facts.rx_total));
        known.insert(
            "sndDataLen",
            json!(facts.tx_total.saturating_sub(facts.tx_acked)),
        );
        known.insert(
            "connType",
            json!(if view.active { "Active" } else { "Passive" }),
        );
        known.insert(
            "ttl",
            json!(if options.ttl == 0 { 64 } else { options.ttl }),
        );
        known.insert("tos", json!(options.tos));
        known.insert("mtu", json!(view.mtu));
        known.insert("srtt", json!(facts.srtt_us));
        known.insert("lport", json!(facts.local.port()));
        known.insert("pport", json!(facts.remote.port()));
        known.insert("mss", json!(facts.mss));
        known.insert("rcvWs", json!(view.window.1));
        known.insert("rcvWnd", json!(u64::from(view.window.0) << view.window.1));
        known.insert("iss", json!(view.first.0));
        known.insert("irs", json!(view.first.1));
        known.insert("sndNxt", json!(view.next.0));
        known.insert("sndMax", json!(view.next.0));
        known.insert("sndUna", json!(view.next.0.wrapping_sub(view.in_flight)));
        known.insert("rcvMax", json!(view.next.1));
        known.insert("rexmitCnt", json!(facts.retransmits));
    } else if let Some(view) = listener {
        known.insert("connType", json!("Passive"));
        known.insert("lport", json!(view.local.port()));
        known.insert("backlog", json!(view.backlog));
        known.insert("childCnt", json!(view.queued + view.half_open));
    }
    let group = |names: &[&str]| {
        let entries = names.iter().map(|name| {
            let value = known.get(name).cloned().unwrap_or_else(|| json!(0));
            ((*name).to_owned(), value)
        });
        entries.collect::<Map<String, Value>>()
    };
    let mut socket = group(names::SOCKET);
    // A number here, a name in the next but one.
    socket.insert("state".to_owned(), json!(state_number(state)));
    let mut base = group(names::TCP_BASE);
    base.insert("state".to_owned(), json!(state));
    json!({
        "SockInfo": socket,
        "InetSkInfo": group(names::INTERNET),
        "TcpBaseInfo": base,
        "TcpTransInfo": group(names::TCP_TRANSMISSION),
    })
}

/// Epolls in use that the process has: family, index, number.
fn epolls(facts: &Facts, pid: Option<u64>) -> Vec<(&FamilyFact, u32, u64)> {
    let mut found = Vec::new();
    for family in &facts.families {
        let control = &family.segments.control;
        let holds = |epoll: u32| {
            (0..PROCS).any(|cell| {
                let is_whose = match pid {
                    Some(pid) if pid != u64::from(std::process::id()) => {
                        facts.clients.iter().any(|client| {
                            client.owner == family.owner
                                && client.cell == cell
                                && u64::from(client.pid) == pid
                        })
                    }
                    _ => true,
                };
                is_whose
                    && control.process(cell).is_some_and(|it| {
                        it.state.load(Ordering::Relaxed) == process::LIVE && it.epolls.has(epoll)
                    })
            })
        };
        for epoll in 0..EPOLLS {
            let Some(cell) = control.epoll(epoll) else {
                continue;
            };
            if cell.used.load(Ordering::Relaxed) == 0 || !holds(epoll) {
                continue;
            }
            let number = cell
                .fd
                .load(Ordering::Relaxed)
                .checked_sub(1)
                .unwrap_or(epoll);
            found.push((family, epoll, u64::from(number)));
        }
    }
    found.sort_by_key(|(.., number)| *number);
    found
}

fn epoll_stat(numbers: &[u64], facts: &Facts, asker: &Asker) -> Result<Value, Silent> {
    let (pid, first, count, first_socket, sockets) = match *numbers {
        [pid, first, count, first_socket, sockets] if is_served(facts, pid) => {
            (pid, first, count, first_socket, sockets)
        }
        _ => return Ok(Value::Null),
    };
    let mut objects = Vec::new();
    asker.each_listener(&mut |view| {
        objects.push((view.owner, object_of(view)));
        true
    })?;
    asker.each_flow(&mut |view| {
        objects.push((view.owner, view.facts.ring));
        true
    })?;
    let found = epolls(facts, Some(pid))
        .into_iter()
        .filter(|(.., number)| *number >= first)
        .map(|(family, epoll, number)| {
            let objects = objects
                .iter()
                .filter(|(owner, _)| *owner == family.owner)
                .map(|(_, object)| *object);
            let details = interests(family, epoll, objects)
                .into_iter()
                .filter(|(fd, _)| *fd >= first_socket);
            let row = json!({
                "pid": pid,
                "tid": "-",
                "osFd": number,
                "innerFd": epoll,
                "details": rows("fd_", details, sockets),
            });
            (number, row)
        });
    Ok(rows("epoll_", found, count))
}

/// What an epoll watches among `objects`: number and row.
fn interests(
    family: &FamilyFact,
    epoll: u32,
    objects: impl Iterator<Item = u32>,
) -> Vec<(u64, Value)> {
    let control = &family.segments.control;
    let generation = control
        .epoll(epoll)
        .map_or(0, |cell| cell.generation.load(Ordering::Relaxed));
    let wanted = (epoll + 1) | (generation & 0xffff) << 16;
    let ring = family.segments.layout().tx_ring_bytes;
    let mut found = Vec::new();
    for object in objects {
        let Some(cell) = control.object(object) else {
            continue;
        };
        let ready = crate::readiness::bits(cell, ring);
        let spilled = control.header().spill.iter().filter(|spilled| {
            cell.read.spilled.load(Ordering::Relaxed) != 0
                && spilled.object.load(Ordering::Relaxed) == object
        });
        let items = cell
            .items
            .iter()
            .chain(spilled.map(|spilled| &spilled.item));
        for it in items.filter(|it| it.epoll.load(Ordering::Relaxed) == wanted) {
            let events = it.events.load(Ordering::Relaxed);
            let row = json!({
                "expectEvents": events,
                "readyEvents": ready & events,
                "notifiedEvents": 0,
                "shoted": u32::from(events == 0),
            });
            found.push((u64::from(it.fd.load(Ordering::Relaxed)), row));
        }
    }
    found.sort_by_key(|(fd, _)| *fd);
    found
}

fn stack(counted: &Counted, wanted: &str) -> u64 {
    let found = counted.stack.iter().find(|(name, _)| *name == wanted);
    found.map_or(0, |(_, value)| *value)
}

fn ethdev_stats(facts: &Facts, counted: &Counted) -> Value {
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
fn usage(words: &[&str], stop: &OwnedFd, asker: &Asker) -> Result<Value, Silent> {
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
fn lcore_thread(lcore: usize) -> u32 {
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

    #[test]
    fn rows_stop_where_an_answer_is_full() {
        let wide = json!({"x": "y".repeat(100)});
        let many = (0..1_000).map(|number| (number, wide.clone()));
        let made = rows("fd_", many, 0);
        let count = made.as_object().unwrap().len();
        assert!((100..ROWS_MAX).contains(&count), "{count}");
        assert!(made.to_string().len() < OUTPUT_MAX);
        let few = rows("fd_", (5..9).map(|number| (number, json!(1))), 2);
        assert_eq!(few, json!({"fd_5": 1, "fd_6": 1}));
    }

    #[test]
    fn every_command_stands_once_and_in_order() {
        assert!(COMMANDS.is_sorted_by(|(one, _), (next, _)| one < next));
    }
}
