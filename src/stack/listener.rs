//! Listeners: who may be connected to, and how many connections may wait.
//!
//! RFC 9293 3.10.7.2; the two limits are Linux' (`sk_max_ack_backlog`, listen(2)).

use core::net::{Ipv4Addr, SocketAddrV4};
use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::api::{FlowOptions, ListenRequest, Owner};
use super::demux::FlowKey;
use super::view::ListenerView;
use crate::errno::Errno;
use crate::id::{FlowId, ListenerId};
use crate::time::Instant;

/// One listening endpoint.
#[derive(Debug)]
pub(crate) struct Listener {
    /// Address (unspecified = all of ours) and port.
    pub(crate) local: SocketAddrV4,
    /// Whose it is.
    pub(crate) owner: Owner,
    /// The lcore's number for it.
    pub(crate) token: u32,
    /// Options that accepted flows start with.
    pub(crate) options: FlowOptions,
    /// See [`ListenRequest::shares`].
    shares: Option<u32>,
    /// How many wait, at all lcores together.
    waiting: Arc<Waiting>,
    /// Flows whose handshake began, the oldest first; some of them are half-open no more.
    begun: VecDeque<(FlowId, Instant)>,
    /// Flows whose handshake was completed, the oldest first; some of them wait no more.
    completed: VecDeque<FlowId>,
}

/// How many wait at a listener, of all lcores that serve it together: its limits are those of one listener, whoever received
/// the connections.
#[derive(Debug)]
pub struct Waiting {
    /// Connections that may wait for accept, less one.
    backlog: AtomicU32,
    /// Flows whose handshake is not complete.
    half_open: AtomicU32,
    /// Established flows that the program has not taken.
    queued: AtomicU32,
}

impl Waiting {
    /// Nobody waits.
    #[must_use]
    pub fn new(backlog: u32) -> Self {
        Self {
            backlog: AtomicU32::new(backlog),
            half_open: AtomicU32::new(0),
            queued: AtomicU32::new(0),
        }
    }
}

/// Relaxed everywhere: nothing else is published by these numbers, and two lcores that look at once may admit one too many.
fn value(count: &AtomicU32) -> u32 {
    count.load(Ordering::Relaxed)
}

fn add(count: &AtomicU32) {
    count.fetch_add(1, Ordering::Relaxed);
}

fn subtract(count: &AtomicU32) {
    let less = |count: u32| count.checked_sub(1);
    // Nothing to take away: then nothing waited.
    let _ = count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
}

/// A handshake that has had this long may give way to a new one: its SYN-ACK was sent twice, and a peer that is there has
/// answered (RFC 6298 section 2: the first time-out).
const GIVES_WAY_AFTER: Duration = Duration::from_secs(1);

impl Listener {
    /// Whether no further completed connection may wait: Linux admits `backlog + 1`.
    pub(crate) fn accept_queue_full(&self) -> bool {
        value(&self.waiting.queued) > value(&self.waiting.backlog)
    }

    /// Whether no further handshake may begin. A backlog of 0 counts as 1, because there are no cookies yet.
    pub(crate) fn syn_backlog_full(&self) -> bool {
        value(&self.waiting.half_open) >= value(&self.waiting.backlog).max(1)
    }

    /// The handshake of `flow` began.
    pub(crate) fn begin(
        &mut self,
        flow: FlowId,
        now: Instant,
        is_half_open: impl Fn(FlowId) -> bool,
    ) {
        add(&self.waiting.half_open);
        // Twice the half-open ones at most, at a constant cost for each.
        if self.begun.len() > 2 * value(&self.waiting.half_open) as usize + BEGUN_SLACK {
            self.begun.retain(|(flow, _)| is_half_open(*flow));
        }
        self.begun.push_back((flow, now));
    }

    /// The oldest handshake, if it has had its time: a flood from addresses that never answer must not shut everybody else
    /// out until the last SYN-ACK (RFC 4987 section 3.4).
    pub(crate) fn gives_way(
        &mut self,
        now: Instant,
        is_half_open: impl Fn(FlowId) -> bool,
    ) -> Option<FlowId> {
        while let Some((flow, began)) = self.begun.front().copied() {
            if is_half_open(flow) {
                return (now.since(began) >= GIVES_WAY_AFTER).then_some(flow);
            }
            self.begun.pop_front();
        }
        None
    }

    /// A handshake was given up.
    pub(crate) fn give_up(&self) {
        subtract(&self.waiting.half_open);
    }

    /// The handshake of `flow` was completed; it waits for accept.
    pub(crate) fn complete(&mut self, flow: FlowId, is_queued: impl Fn(FlowId) -> bool) {
        self.give_up();
        add(&self.waiting.queued);
        // As in `begin`.
        if self.completed.len() > 2 * value(&self.waiting.queued) as usize + BEGUN_SLACK {
            self.completed.retain(|flow| is_queued(*flow));
        }
        self.completed.push_back(flow);
    }

    /// Every flow that may be half-open or wait for accept; some of them do not any more.
    pub(crate) fn into_waiting(self) -> impl Iterator<Item = FlowId> {
        let begun = self.begun.into_iter().map(|(flow, _)| flow);
        begun.chain(self.completed)
    }

    /// A waiting flow was taken by the program, or died.
    pub(crate) fn leave_queue(&self) {
        subtract(&self.waiting.queued);
    }

    /// Changes the backlog; waiting connections stay.
    pub(crate) fn set_backlog(&self, backlog: u32) {
        self.waiting.backlog.store(backlog, Ordering::Relaxed);
    }

    /// What it shares with the other lcores.
    pub(crate) fn waiting(&self) -> Arc<Waiting> {
        Arc::clone(&self.waiting)
    }
}

/// Entries of [`Listener::begun`] that are never worth a search.
const BEGUN_SLACK: usize = 64;

/// All listeners of a stack.
#[derive(Debug, Default)]
pub(crate) struct ListenerTable {
    slots: Vec<(u32, Option<Listener>)>,
    free: Vec<u32>,
    /// More than one at an endpoint share it (SO_REUSEPORT).
    by_endpoint: HashMap<SocketAddrV4, Vec<u32>>,
    /// Listeners a port, so that the ephemeral search asks in one step.
    ports: HashMap<u16, u32>,
    /// Which of how many lcores has this table.
    lane: Option<(usize, usize)>,
}

impl ListenerTable {
    /// Adds a listener.
    ///
    /// # Errors
    /// EADDRINUSE when the port is taken at this address, or at every address, or this asks for every address
    /// and one is taken; unless all of them share it (socket(7), SO_REUSEPORT).
    pub(crate) fn add(
        &mut self,
        request: &ListenRequest,
        waiting: Arc<Waiting>,
    ) -> Result<ListenerId, Errno> {
        let port = request.local.port();
        let every = request.local.ip().is_unspecified();
        let overlaps = |local: &SocketAddrV4| {
            local.port() == port
                && (every || local.ip().is_unspecified() || local.ip() == request.local.ip())
        };
        let taken = self.is_port_used(port)
            && self
                .slots
                .iter()
                .filter_map(|(_, slot)| slot.as_ref())
                .filter(|other| overlaps(&other.local))
                .any(|other| request.shares.is_none() || other.shares != request.shares);
        if taken {
            return Err(Errno::ADDRINUSE);
        }
        let listener = Listener {
            local: request.local,
            owner: request.owner,
            token: request.token,
            options: request.options,
            shares: request.shares,
            waiting,
            begun: VecDeque::new(),
            completed: VecDeque::new(),
        };
        let index = match self.free.pop() {
            Some(index) => index,
            None => {
                let index = u32::try_from(self.slots.len()).map_err(|_| Errno::NOBUFS)?;
                self.slots.push((0, None));
                index
            }
        };
        let Some((generation, slot)) = self.slots.get_mut(index as usize) else {
            return Err(Errno::NOBUFS);
        };
        *slot = Some(listener);
        let id = ListenerId {
            index,
            generation: *generation,
        };
        self.by_endpoint
            .entry(request.local)
            .or_default()
            .push(index);
        *self.ports.entry(port).or_insert(0) += 1;
        Ok(id)
    }

    /// Takes a listener away.
    pub(crate) fn remove(&mut self, id: ListenerId) -> Option<Listener> {
        let (generation, slot) = self.slots.get_mut(id.index as usize)?;
        if *generation != id.generation {
            return None;
        }
        let listener = slot.take()?;
        *generation = generation.wrapping_add(1);
        self.free.push(id.index);
        if let Some(group) = self.by_endpoint.get_mut(&listener.local) {
            if let Some(place) = group.iter().position(|&index| index == id.index) {
                // The last one takes its place, as in Linux (reuseport_detach_sock): most flows keep their listener.
                group.swap_remove(place);
            }
            if group.is_empty() {
                self.by_endpoint.remove(&listener.local);
            }
        }
        if let Some(count) = self.ports.get_mut(&listener.local.port()) {
            *count -= 1;
            if *count == 0 {
                self.ports.remove(&listener.local.port());
            }
        }
        Some(listener)
    }

    /// This is the table of one of several lcores, all of which have the same listeners in the same order.
    pub(crate) fn set_lane(&mut self, lcore: u32, lcores: u32) {
        self.lane = Some((lcore as usize, lcores.max(1) as usize));
    }

    /// The listener that a SYN of `key` belongs to: the exact address goes before every address, and of those that share an
    /// endpoint the flow's hash under `secret` chooses one (Linux reuseport_select_sock). Among several lcores they are dealt
    /// out, so that each has its own, where that gives equal parts.
    pub(crate) fn lookup(&self, key: FlowKey, secret: &[u8; 16]) -> Option<ListenerId> {
        let local = key.local;
        let group = self.by_endpoint.get(&local).or_else(|| {
            self.by_endpoint
                .get(&SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, local.port()))
        })?;
        let place = match group.len() {
            0 | 1 => 0,
            count => {
                let hash = key.keyed_hash(secret) >> 32;
                // Scaled, not divided: all bits of the hash count (reciprocal_scale).
                let scaled =
                    |count: usize| usize::try_from((hash * count as u64) >> 32).unwrap_or(0);
                match self.lane {
                    Some((lcore, lcores)) if count % lcores == 0 => {
                        lcore + lcores * scaled(count / lcores)
                    }
                    Some((lcore, lcores)) if lcores % count == 0 => lcore % count,
                    _ => scaled(count),
                }
            }
        };
        let index = *group.get(place)?;
        let (generation, _) = self.slots.get(index as usize)?;
        Some(ListenerId {
            index,
            generation: *generation,
        })
    }

    /// The listener with this id.
    pub(crate) fn at(&self, id: ListenerId) -> Option<&Listener> {
        self.slots
            .get(id.index as usize)
            .filter(|(generation, _)| *generation == id.generation)?
            .1
            .as_ref()
    }

    /// The listener with this id, to change it.
    pub(crate) fn at_mut(&mut self, id: ListenerId) -> Option<&mut Listener> {
        self.slots
            .get_mut(id.index as usize)
            .filter(|(generation, _)| *generation == id.generation)?
            .1
            .as_mut()
    }

    /// Places of the table, some of which are free.
    pub(crate) fn places(&self) -> usize {
        self.slots.len()
    }

    /// The listener at a place, as a report sees it.
    pub(crate) fn view(&self, index: u32) -> Option<ListenerView> {
        let listener = self.slots.get(index as usize)?.1.as_ref()?;
        Some(ListenerView {
            local: listener.local,
            owner: listener.owner,
            token: listener.token,
            backlog: value(&listener.waiting.backlog),
            queued: value(&listener.waiting.queued),
            half_open: value(&listener.waiting.half_open),
        })
    }

    /// Whether any listener has this port.
    pub(crate) fn is_port_used(&self, port: u16) -> bool {
        self.ports.contains_key(&port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(address: [u8; 4], port: u16) -> ListenRequest {
        ListenRequest {
            local: SocketAddrV4::new(address.into(), port),
            backlog: 2,
            owner: Owner(1),
            token: 7,
            options: FlowOptions::default(),
            shares: None,
        }
    }

    fn add(table: &mut ListenerTable, request: &ListenRequest) -> Result<ListenerId, Errno> {
        table.add(request, Arc::new(Waiting::new(request.backlog)))
    }

    fn from(address: [u8; 4], remote_port: u16) -> FlowKey {
        FlowKey {
            local: SocketAddrV4::new(address.into(), 80),
            remote: SocketAddrV4::new([10, 0, 0, 200].into(), remote_port),
        }
    }

    fn to(address: [u8; 4]) -> FlowKey {
        from(address, 40_000)
    }

    #[test]
    fn those_that_share_an_endpoint_get_equal_parts_and_keep_most_of_them() {
        let mut table = ListenerTable::default();
        let sharing = |address, user| ListenRequest {
            shares: Some(user),
            ..request(address, 80)
        };
        let members: Vec<_> = (0..4)
            .map(|_| add(&mut table, &sharing([10, 0, 0, 1], 1)).unwrap())
            .collect();
        assert_eq!(
            add(&mut table, &request([10, 0, 0, 1], 80)),
            Err(Errno::ADDRINUSE)
        );
        assert_eq!(
            add(&mut table, &sharing([10, 0, 0, 1], 2)),
            Err(Errno::ADDRINUSE),
            "of another user"
        );
        assert_eq!(
            add(&mut table, &request([0, 0, 0, 0], 80)),
            Err(Errno::ADDRINUSE)
        );
        let all = add(&mut table, &sharing([0, 0, 0, 0], 1)).unwrap();
        let chosen = |table: &ListenerTable| -> Vec<ListenerId> {
            (0..4_000)
                .map(|port| table.lookup(from([10, 0, 0, 1], port), &[7; 16]).unwrap())
                .collect()
        };
        let before = chosen(&table);
        for member in &members {
            let part = before.iter().filter(|id| *id == member).count();
            assert!((850..1_150).contains(&part), "{part} of 4000");
        }
        assert_eq!(table.lookup(to([10, 0, 0, 2]), &[7; 16]), Some(all));
        table.remove(members[3]).unwrap();
        let after = chosen(&table);
        assert!(!after.contains(&members[3]));
        table.remove(members[0]).unwrap();
        table.remove(members[1]).unwrap();
        table.remove(members[2]).unwrap();
        assert_eq!(table.lookup(to([10, 0, 0, 1]), &[7; 16]), Some(all));
        assert!(table.remove(all).is_some());
        assert!(!table.is_port_used(80));
    }

    #[test]
    fn a_wildcard_and_an_address_exclude_each_other() {
        let mut table = ListenerTable::default();
        let exact = add(&mut table, &request([10, 0, 0, 1], 80)).unwrap();
        assert_eq!(
            add(&mut table, &request([0, 0, 0, 0], 80)),
            Err(Errno::ADDRINUSE)
        );
        let other = add(&mut table, &request([10, 0, 0, 2], 80)).unwrap();
        assert_eq!(table.lookup(to([10, 0, 0, 2]), &[0; 16]), Some(other));
        assert!(table.remove(exact).is_some());
        assert!(table.is_port_used(80));
        assert!(table.remove(other).is_some());
        assert!(!table.is_port_used(80));
        let all = add(&mut table, &request([0, 0, 0, 0], 80)).unwrap();
        assert_eq!(table.lookup(to([10, 0, 0, 9]), &[0; 16]), Some(all));
    }

    #[test]
    fn those_that_share_an_endpoint_are_dealt_out_to_the_lcores() {
        for (members, lcores, each) in [(4, 2, 2), (2, 2, 1), (2, 4, 1), (3, 2, 3)] {
            let mut seen = Vec::new();
            for lcore in 0..lcores {
                let mut table = ListenerTable::default();
                table.set_lane(lcore, lcores);
                for _ in 0..members {
                    let request = ListenRequest {
                        shares: Some(1),
                        ..request([10, 0, 0, 1], 80)
                    };
                    add(&mut table, &request).unwrap();
                }
                let mut own: Vec<_> = (0..400)
                    .map(|port| table.lookup(from([10, 0, 0, 1], port), &[7; 16]).unwrap())
                    .map(|id| id.index)
                    .collect();
                own.sort_unstable();
                own.dedup();
                assert_eq!(own.len(), each, "{members} members, {lcores} lcores");
                seen.extend(own);
            }
            seen.sort_unstable();
            seen.dedup();
            assert_eq!(seen.len(), members, "every member has an lcore");
        }
    }

    #[test]
    fn the_limits_are_those_of_all_lcores_together() {
        let (mut one, mut other) = (ListenerTable::default(), ListenerTable::default());
        let first = add(&mut one, &request([10, 0, 0, 1], 80)).unwrap();
        let waiting = one.at(first).unwrap().waiting();
        let second = other.add(&request([10, 0, 0, 1], 80), waiting).unwrap();
        let flow = FlowId {
            index: 0,
            generation: 0,
        };
        for is_one in [true, false, true] {
            let (table, id) = if is_one {
                (&mut one, first)
            } else {
                (&mut other, second)
            };
            let listener = table.at_mut(id).unwrap();
            assert!(!listener.accept_queue_full() && !listener.syn_backlog_full());
            listener.begin(flow, Instant::ZERO, |_| true);
            listener.complete(flow, |_| true);
        }
        assert!(other.at(second).unwrap().accept_queue_full());
        one.at(first).unwrap().set_backlog(3);
        assert!(!other.at(second).unwrap().accept_queue_full());
        other.at_mut(second).unwrap().leave_queue();
        one.at(first).unwrap().set_backlog(2);
        assert!(!one.at(first).unwrap().accept_queue_full());
    }

    #[test]
    fn an_old_id_does_not_reach_the_next_listener() {
        let mut table = ListenerTable::default();
        let old = add(&mut table, &request([10, 0, 0, 1], 80)).unwrap();
        table.remove(old);
        let new = add(&mut table, &request([10, 0, 0, 1], 80)).unwrap();
        assert_eq!(old.index, new.index);
        assert!(table.at(old).is_none());
        assert!(table.remove(old).is_none());
        assert!(table.at(new).is_some());
    }

    #[test]
    fn the_accept_queue_admits_one_more_than_the_backlog() {
        let mut table = ListenerTable::default();
        let id = add(&mut table, &request([10, 0, 0, 1], 80)).unwrap();
        let listener = table.at_mut(id).unwrap();
        for _ in 0..3 {
            assert!(!listener.accept_queue_full());
            let flow = FlowId {
                index: 0,
                generation: 0,
            };
            listener.begin(flow, Instant::ZERO, |_| true);
            listener.complete(flow, |_| true);
        }
        assert!(listener.accept_queue_full());
        listener.leave_queue();
        assert!(!listener.accept_queue_full());
    }
}
