//! Sockets by number: `net_stat`, `socket_info` and `fd_count`.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use super::epolls::epolls;
use super::rows::rows;
use super::whose::{Numbered, is_served, numbered, object_of};
use super::{names, port};
use crate::channel::cell::option;
use crate::channel::sync::Ordering;
use crate::host::admin::asker::Silent;
use crate::host::admin::{Asker, Facts};
use crate::stack::{FlowState, FlowView, ListenerView};

pub(super) fn fd_count(words: &[&str], facts: &Facts, asker: &Asker) -> Result<Value, Silent> {
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

pub(super) fn net_stat(numbers: &[u64], facts: &Facts, asker: &Asker) -> Result<Value, Silent> {
    let (pid, first, count) = match *numbers {
        [pid, first, count] if is_served(facts, pid) => (Some(pid), first, count),
        [first, count] => (None, first, count),
        _ => return Ok(Value::Null),
    };
    let thread = port::lcore_thread().to_string();
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

pub(super) fn socket_info(numbers: &[u64], facts: &Facts, asker: &Asker) -> Result<Value, Silent> {
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
        known.insert("cwnd", json!(view.congestion_window.unwrap_or(0)));
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
