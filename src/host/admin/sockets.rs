//! The sockets of a host as ss(8) shows the kernel's.

use core::net::SocketAddrV4;
use std::collections::HashMap;

use serde_json::{Value, json};

use super::answer::Answer;
use super::asker::{Asker, Silent};
use super::desk::Facts;
use super::session;
use crate::channel::cell::process;
use crate::channel::layout::PROCS;
use crate::channel::sync::Ordering;
use crate::lcore::{Segments, Token};
use crate::stack::{FlowState, FlowView, ListenerView, Owner, RestView, Stage};

/// One line a socket, behind the host's own.
pub(super) fn run(answer: &mut Answer, asker: &Asker) -> Result<(), Silent> {
    let facts = asker.facts()?;
    let holders = Holders::of(&facts);
    if !answer.line(&session::host(&facts).to_string()) || facts.open.is_none() {
        return Ok(());
    }
    asker.each_listener(&mut |view| answer.line(&listener(view, &holders).to_string()))?;
    asker.each_flow(&mut |view| answer.line(&flow(view, &holders).to_string()))?;
    asker.each_resting(&mut |view| answer.line(&resting(view).to_string()))
}

/// The line of the connection between `local` and `peer`; none when there is no such one.
pub(super) fn one(answer: &mut Answer, query: &Value, asker: &Asker) -> Result<(), Silent> {
    let endpoint = |name: &str| -> Option<SocketAddrV4> { query.get(name)?.as_str()?.parse().ok() };
    let (Some(local), Some(peer)) = (endpoint("local"), endpoint("peer")) else {
        return Err(Silent("local and peer are wanted, as ADDRESS:PORT"));
    };
    let facts = asker.facts()?;
    if facts.open.is_some()
        && let Some(view) = asker.flow(local, peer)?
    {
        answer.line(&flow(&view, &Holders::of(&facts)).to_string());
    }
    Ok(())
}

/// Who has an object.
pub(super) struct Holders<'a> {
    families: HashMap<Owner, Family<'a>>,
}

struct Family<'a> {
    program: &'a str,
    segments: &'a Segments,
    /// Process cells in use, and whose they are.
    processes: Vec<(u32, u32)>,
}

impl<'a> Holders<'a> {
    pub(super) fn of(facts: &'a Facts) -> Self {
        let families = facts.families.iter().map(|family| {
            let control = &family.segments.control;
            let told = |cell: u32| {
                let it = control.process(cell)?;
                (it.state.load(Ordering::Relaxed) == process::LIVE)
                    .then(|| it.pid.load(Ordering::Relaxed))
            };
            let seen = |cell: u32| {
                let is = |client: &&super::ClientFact| {
                    client.owner == family.owner && client.cell == cell
                };
                facts.clients.iter().find(is).map(|client| client.pid)
            };
            let processes = (0..PROCS)
                .filter_map(|cell| Some((cell, seen(cell).or_else(|| told(cell))?)))
                .collect();
            let one = Family {
                program: &family.program,
                segments: &family.segments,
                processes,
            };
            (family.owner, one)
        });
        Self {
            families: families.collect(),
        }
    }

    /// Adds program, processes and descriptor of an object to its line.
    fn add(&self, owner: Owner, object: u32, line: &mut Value) {
        let Some(family) = self.families.get(&owner) else {
            return;
        };
        let control = &family.segments.control;
        let holders: Vec<u32> = family
            .processes
            .iter()
            .filter(|(cell, _)| control.held(*cell).is_some_and(|held| held.has(object)))
            .map(|(_, pid)| *pid)
            .collect();
        let fd = control
            .object(object)
            .and_then(|cell| cell.read.fd.load(Ordering::Relaxed).checked_sub(1));
        if let Some(line) = line.as_object_mut() {
            line.insert("family".to_owned(), json!(owner.0));
            line.insert("program".to_owned(), json!(family.program));
            // Nobody holds it any more: then the number is nobody's either.
            line.insert("fd".to_owned(), json!(fd.filter(|_| !holders.is_empty())));
            line.insert("processes".to_owned(), json!(holders));
        }
    }

    fn queues(&self, view: &FlowView) -> (u64, u64) {
        let facts = &view.facts;
        let cell = self
            .families
            .get(&view.owner)
            .and_then(|family| family.segments.control.object(facts.ring));
        // Half-open flows have no cell of their own yet. What a program wrote there may be anything.
        let Some(cell) = cell.filter(|_| view.stage != Stage::HalfOpen) else {
            return (0, 0);
        };
        let read = cell.read.rx_head.load(Ordering::Relaxed);
        let written = cell.write.tx_tail.load(Ordering::Relaxed);
        (
            facts.rx_total.saturating_sub(read),
            written.max(facts.tx_total).saturating_sub(facts.tx_acked),
        )
    }
}

/// A state by the name that ss(8) gives it.
pub(super) const fn state_name(state: FlowState) -> &'static str {
    match state {
        FlowState::SynSent => "SYN-SENT",
        FlowState::SynReceived => "SYN-RECV",
        FlowState::Established => "ESTAB",
        FlowState::FinWait1 => "FIN-WAIT-1",
        FlowState::FinWait2 => "FIN-WAIT-2",
        FlowState::CloseWait => "CLOSE-WAIT",
        FlowState::Closing => "CLOSING",
        FlowState::LastAck => "LAST-ACK",
        FlowState::TimeWait => "TIME-WAIT",
        FlowState::Closed => "UNCONN",
    }
}

fn listener(view: &ListenerView, holders: &Holders<'_>) -> Value {
    let mut line = json!({
        "state": "LISTEN",
        "recv_q": view.queued,
        "send_q": view.backlog,
        "local": view.local.ip().to_string(),
        "local_port": view.local.port(),
        "peer": "0.0.0.0",
        "peer_port": 0,
        "half_open": view.half_open,
    });
    holders.add(view.owner, Token::unpack(view.token).object, &mut line);
    line
}

fn flow(view: &FlowView, holders: &Holders<'_>) -> Value {
    let facts = &view.facts;
    let (recv, send) = holders.queues(view);
    let known = |value: u32| (value != 0).then_some(value);
    let mut line = json!({
        "state": state_name(facts.state),
        "recv_q": recv,
        "send_q": send,
        "local": facts.local.ip().to_string(),
        "local_port": facts.local.port(),
        "peer": facts.remote.ip().to_string(),
        "peer_port": facts.remote.port(),
        "stage": match view.stage {
            Stage::HalfOpen => "half_open",
            Stage::Queued => "waits_for_accept",
            Stage::Owned => "owned",
            Stage::Orphan => "orphan",
        },
        "made_by": if view.active { "connect" } else { "accept" },
        "looped": view.looped,
        "rtt_us": known(facts.srtt_us),
        // As Linux counts it: in segments.
        "cwnd": view.congestion_window.map(|bytes| bytes.div_ceil(u32::from(facts.mss).max(1))),
        "cwnd_bytes": view.congestion_window,
        "unacked": view.in_flight,
        "retransmits": facts.retransmits,
        "mss": facts.mss,
        "mtu": view.mtu,
        "segments_out": view.segments,
        "bytes_received": facts.rx_total,
        "bytes_sent": facts.tx_total,
        "bytes_acked": facts.tx_acked,
        "receive_window": u64::from(view.window.0) << view.window.1,
        "receive_ring": view.ring.0,
        "receive_ring_backed": view.ring.1,
        "silent_ms": u64::try_from(view.silent.as_millis()).unwrap_or(u64::MAX),
        "nodelay": view.options.nodelay,
        "keepalive": view.options.keepalive,
        "error": facts.error.map(|errno| errno.to_string()),
    });
    holders.add(view.owner, facts.ring, &mut line);
    line
}

fn resting(view: &RestView) -> Value {
    json!({
        "state": "TIME-WAIT",
        "recv_q": 0,
        "send_q": 0,
        "local": view.local.ip().to_string(),
        "local_port": view.local.port(),
        "peer": view.remote.ip().to_string(),
        "peer_port": view.remote.port(),
        "left_ms": u64::try_from(view.left.as_millis()).unwrap_or(u64::MAX),
        "processes": [],
    })
}
