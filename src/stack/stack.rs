//! The stack of one lcore: what it owns and what the lcore may ask of it.
//!
//! Frames come in by [`ingress`](Stack::ingress) (`input.rs`) and leave by [`transmit`](Stack::transmit)
//! (`output.rs`); flows begin in `active_open.rs` and `passive_open.rs` and end in `ending.rs`.

use core::net::{Ipv4Addr, SocketAddrV4};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::api::{
    Change, Facts, FlowMemory, FlowOptions, ListenRequest, Opening, SaveSyn, StackConfig,
};
use super::changes::{Changes, forget};
use super::counters::StackCounters;
use super::demux::{Class, FlowKey, Rules};
use super::flow_parts::{Flags, Phase};
use super::flow_table::FlowTable;
use super::interface::{Interfaces, Outlet, Station};
use super::later::Later;
use super::listener::{Listener, ListenerTable, Waiting};
use super::loopback::Loopback;
use super::neighbor::NeighborTable;
use super::port_alloc::PortAllocator;
use super::rate_limit::RateLimit;
use super::route::RouteTable;
use super::sequence::unsent;
use super::stall::Stall;
use super::steering::{Place, Steering};
use super::sweep::Sweep;
use super::time_wait::TimeWaitTable;
use super::timer_wheel::TimerWheel;
use super::urgent::UrgentTable;
use crate::device::frame::LINK_HEADER_BYTES;
use crate::device::{BURST_MAX, TxQueue};
use crate::errno::Errno;
use crate::id::{FlowId, ListenerId};
use crate::time::Instant;

/// How a program lets go of a flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Close {
    /// close(2): a FIN after everything sent, or an RST when received bytes were not read (RFC 1122 4.2.2.13).
    Graceful,
    /// close(2) with SO_LINGER and a time of 0: an RST.
    Abort,
}

/// The protocol of one lcore.
#[derive(Debug)]
pub struct Stack {
    pub(crate) config: StackConfig,
    pub(crate) counters: StackCounters,
    pub(crate) rules: Rules,
    pub(crate) station: Station,
    pub(crate) table: FlowTable,
    pub(crate) listeners: ListenerTable,
    pub(crate) interfaces: Interfaces,
    /// MTU class of the port itself.
    pub(crate) port_class: u8,
    pub(crate) wheel: TimerWheel,
    pub(crate) neighbors: NeighborTable,
    pub(crate) routes: RouteTable,
    pub(crate) time_wait: TimeWaitTable,
    pub(crate) ports: PortAllocator,
    /// Where it stands among the stacks of several lcores.
    pub(crate) place: Option<Place>,
    pub(crate) changes: Changes,
    pub(crate) looped: Loopback,
    /// Flows that want to be asked for segments.
    pub(crate) dirty: VecDeque<u32>,
    /// Flows whose acknowledgement waits for the program.
    pub(crate) later: Later,
    /// Set while the port takes nothing.
    pub(crate) stall: Stall,
    /// Flows that wait for the MAC address of a next hop.
    pub(crate) unresolved: HashMap<Ipv4Addr, Vec<FlowId>>,
    /// Flows with urgent data.
    pub(crate) urgent: UrgentTable,
    /// The burst being processed: classes and the flows that were found.
    pub(crate) burst: Vec<(Class, Option<u32>)>,
    /// Segments of the burst that were joined.
    pub(crate) joined: Vec<u8>,
    /// See [`Stack::prefetch_from`].
    pub(crate) prefetch_from: usize,
    /// Timers due in this call.
    pub(crate) due: Vec<u32>,
    /// Memory of idle flows.
    pub(crate) sweep: Sweep,
    /// The largest room the transmit queue ever had.
    pub(crate) tx_slots: usize,
    pub(crate) resets: RateLimit,
    pub(crate) challenges: RateLimit,
    pub(crate) unreachables: RateLimit,
    /// Losses that time shows; those beyond are spread.
    pub(crate) mends: RateLimit,
    /// The next segment fed to a flow makes smoltcp panic.
    #[cfg(test)]
    pub(crate) poison: bool,
}

/// What a call was given to work with.
pub(crate) struct Io<'a> {
    pub(crate) now: Instant,
    pub(crate) memory: &'a mut dyn FlowMemory,
    pub(crate) tx: &'a mut dyn TxQueue,
}

impl Stack {
    /// Makes a stack without flows. Reserves address space for `max_flows`, touches little of it.
    #[must_use]
    pub fn new(config: StackConfig) -> Self {
        let addresses: Vec<Ipv4Addr> = config
            .addresses
            .iter()
            .map(|interface| interface.address)
            .collect();
        Self {
            counters: StackCounters::new(),
            rules: Rules {
                mac: config.mac,
                vlan: config.vlan,
                addresses: config.addresses.clone(),
                trust_checksum: config.trust_checksum,
            },
            station: Station {
                mac: config.mac,
                vlan: config.vlan,
                offload: config.tx_checksum_offload,
                super_bytes: super_bytes(&config),
            },
            table: FlowTable::new(config.max_flows, config.secret.map(|byte| byte ^ TABLE_KEY)),
            listeners: ListenerTable::default(),
            interfaces: Interfaces::new(config.mtu, super_bytes(&config)),
            port_class: 0,
            wheel: TimerWheel::new(Instant::ZERO),
            neighbors: NeighborTable::new(config.mac, &addresses, config.max_neighbors),
            routes: RouteTable::new(&config.addresses, &config.routes, config.gateway),
            time_wait: TimeWaitTable::new(
                config.max_flows,
                config.msl + config.msl,
                config.secret.map(|byte| byte ^ REST_KEY),
            ),
            ports: PortAllocator::new(config.ephemeral_ports, config.walk),
            place: None,
            changes: Changes::default(),
            looped: Loopback::default(),
            dirty: VecDeque::new(),
            later: Later::default(),
            stall: Stall::default(),
            unresolved: HashMap::new(),
            urgent: UrgentTable::default(),
            burst: Vec::with_capacity(BURST_MAX),
            joined: Vec::new(),
            prefetch_from: PREFETCH_FROM,
            due: Vec::new(),
            sweep: Sweep::default(),
            tx_slots: 0,
            resets: RateLimit::new(RESETS_PER_SECOND, RESETS_PER_SECOND),
            challenges: RateLimit::new(CHALLENGES_PER_SECOND, CHALLENGES_PER_SECOND),
            unreachables: RateLimit::new(UNREACHABLES_PER_SECOND, UNREACHABLES_PER_SECOND),
            mends: RateLimit::new(MENDS_PER_SECOND, MENDS_AT_ONCE),
            #[cfg(test)]
            poison: false,
            config,
        }
    }

    /// Fetches what a burst needs ahead of its processing once so many flows exist; for measurements.
    pub const fn prefetch_from(&mut self, flows: usize) {
        self.prefetch_from = flows;
    }

    /// The program runs between two turns: some acknowledgements wait for what it sends, see `later.rs`.
    pub fn await_program(&mut self) {
        self.later.begin();
    }

    /// A turn found nothing to do: the program has nothing to send either. Says whether something waited for it.
    pub fn await_no_more(&mut self) -> bool {
        let mut any = false;
        while let Some(index) = self.later.pop_any() {
            any |= self.acknowledge_now(index);
        }
        any
    }

    /// What was to wait for the program leaves, unless something has carried it.
    pub(crate) fn acknowledge_now(&mut self, index: u32) -> bool {
        let waits = self
            .table
            .parts(index)
            .is_some_and(|(hot, _)| core::mem::take(&mut hot.waits));
        if waits {
            self.mark_dirty(index);
        }
        waits
    }

    /// Bytes of tables that a flow takes, rings and buffers not among them.
    #[must_use]
    pub const fn table_bytes_per_flow() -> usize {
        FlowTable::BYTES_PER_FLOW + TimerWheel::BYTES_PER_TIMER
    }

    /// Fetches the tables' lines of a flow that will soon be handed bytes, with many flows; [`Stack::fetch_send`] comes next.
    pub fn fetch(&self, flow: FlowId) {
        if self.table.live() >= self.prefetch_from {
            self.table.prefetch_at(flow.index);
            self.wheel.prefetch(flow.index);
        }
    }

    /// Fetches the socket and the send buffer of a flow that was fetched a moment ago.
    pub fn fetch_send(&self, flow: FlowId) {
        if self.table.live() >= self.prefetch_from
            && let Some((hot, cold)) = self.table.look(flow.index)
        {
            hot.engine.prefetch();
            cold.prefetch_send();
        }
    }

    /// What the stack was told.
    #[must_use]
    pub fn config(&self) -> &StackConfig {
        &self.config
    }

    /// What the stack counts.
    #[must_use]
    pub fn counters(&self) -> &StackCounters {
        &self.counters
    }

    /// Flows that exist, TIME-WAIT not among them.
    #[must_use]
    pub fn live_flows(&self) -> usize {
        self.table.live()
    }

    /// Connections that rest in TIME-WAIT.
    #[must_use]
    pub fn resting_flows(&self) -> usize {
        self.time_wait.len()
    }

    /// Begins to listen.
    ///
    /// # Errors
    /// EADDRNOTAVAIL when the address is not ours, EADDRINUSE when the endpoint is taken, EINVAL for port 0.
    pub fn listen(&mut self, request: &ListenRequest) -> Result<ListenerId, Errno> {
        let address = *request.local.ip();
        if request.local.port() == 0 {
            return Err(Errno::INVAL);
        }
        if !address.is_unspecified() && !self.rules.is_ours(address) {
            return Err(Errno::ADDRNOTAVAIL);
        }
        let waiting = Arc::new(Waiting::new(request.backlog));
        self.listeners.add(request, waiting)
    }

    /// Listens as another lcore does, which has found the request good.
    ///
    /// # Errors
    /// As [`Stack::listen`].
    pub fn listen_too(
        &mut self,
        request: &ListenRequest,
        waiting: Arc<Waiting>,
    ) -> Result<ListenerId, Errno> {
        self.listeners.add(request, waiting)
    }

    /// What a listener shares with its kin at other lcores.
    #[must_use]
    pub fn waiting(&self, id: ListenerId) -> Option<Arc<Waiting>> {
        self.listeners.at(id).map(Listener::waiting)
    }

    /// Makes this the stack of `lcore`, one of several that share the port and its addresses.
    pub fn steer(&mut self, steering: Arc<Steering>, lcore: u32) {
        self.listeners.set_lane(lcore, steering.lcores());
        self.place = Some(Place { steering, lcore });
    }

    /// Follows the MTU of a port that was lowered, or raised again up to what it was at first. Flows keep a lower one.
    pub fn set_port_mtu(&mut self, mtu: usize) {
        self.port_class = self.interfaces.class_for(mtu);
        let lower = self.port_mtu();
        let flows: Vec<u32> = self.table.iter().map(|(index, ..)| index).collect();
        for index in flows {
            let Some((_, cold)) = self.table.parts(index) else {
                continue;
            };
            if lower < self.interfaces.mtu(cold.meter.mtu_class) {
                cold.meter.mtu_class = self.port_class;
                let mss = u16::try_from(lower.saturating_sub(40)).unwrap_or(u16::MAX);
                cold.meter.mss = cold.meter.mss.min(mss);
                self.counters.flows_mtu_lowered.raise();
            }
        }
    }

    pub(crate) fn port_mtu(&self) -> usize {
        self.interfaces.mtu(self.port_class)
    }

    /// Changes a listener's backlog, as a second listen(2) does. Waiting connections stay.
    pub fn set_backlog(&mut self, id: ListenerId, backlog: u32) {
        if let Some(listener) = self.listeners.at(id) {
            listener.set_backlog(backlog);
        }
    }

    /// Notes that the program took `flow` from the accept queue of `listener`.
    pub fn accepted(&mut self, listener: ListenerId, flow: FlowId) {
        let Some((hot, cold)) = self
            .table
            .resolve(flow)
            .and_then(|index| self.table.parts(index))
        else {
            return;
        };
        if hot.phase == Phase::Queued && cold.listener == Some(listener) {
            hot.phase = Phase::Owned;
            if let Some(listener) = self.listeners.at_mut(listener) {
                listener.leave_queue();
            }
        }
    }

    /// Gives a flow the lcore's own number.
    pub fn set_token(&mut self, flow: FlowId, token: u32) {
        if let Some((_, cold)) = self
            .table
            .resolve(flow)
            .and_then(|index| self.table.parts(index))
        {
            cold.token = token;
        }
    }

    /// Changes a flow's options; `rx_bytes` and `max_segment` have no effect after the handshake.
    pub fn set_options(&mut self, flow: FlowId, options: &FlowOptions) {
        let Some(index) = self.table.resolve(flow) else {
            return;
        };
        if let Some((hot, cold)) = self.table.parts(index) {
            cold.options = *options;
            cold.meter.tos = options.tos;
            super::ceiling::owe_window(hot, cold);
            hot.engine.set_options(options);
            if self.urgent.sending(hot.flags.get(), index).is_some() {
                hot.engine.hurry(true, options);
            }
            self.mark_dirty(index);
        }
    }

    /// Changes what a listener's flows start with; those under way keep what they have.
    pub fn set_listener_options(&mut self, id: ListenerId, options: &FlowOptions) {
        if let Some(listener) = self.listeners.at_mut(id) {
            listener.options = *options;
        }
    }

    /// Everything the program side may learn of a flow; None when the id is not good any more.
    #[must_use]
    pub fn facts(&self, flow: FlowId) -> Option<Facts> {
        self.facts_of(self.table.resolve(flow)?)
    }

    /// What the SYN of a passive flow was.
    #[must_use]
    pub fn opening(&self, flow: FlowId) -> Option<Opening> {
        let (_, cold) = self.table.look(self.table.resolve(flow)?)?;
        Some(Opening {
            ttl: cold.meter.peer_ttl,
            syn_saved: cold.options.save_syn != SaveSyn::Nothing,
        })
    }

    /// The flow between two ends, with its token.
    #[must_use]
    pub fn find(&self, key: FlowKey) -> Option<(FlowId, u32)> {
        let index = self.table.lookup(key)?;
        let (_, cold) = self.table.look(index)?;
        Some((self.table.id(index), cold.token))
    }

    pub(crate) fn facts_of(&self, index: u32) -> Option<Facts> {
        let (hot, cold) = self.table.look(index)?;
        let open = !hot.flags.has(Flags::DETACHED) && cold.error.is_none();
        Some(Facts {
            state: cold.state,
            ring: cold.held.ring,
            rx_total: cold.rx_total,
            rx_finished: cold.rx_finished,
            tx_room: if open { hot.engine.facts().tx_room } else { 0 },
            tx_acked: cold.tx_acked,
            tx_total: cold.tx_total,
            tx_finished: cold.meter.tx_finished,
            error: cold.error,
            local: hot.key.local,
            remote: hot.key.remote,
            srtt_us: cold.meter.srtt_us,
            retransmits: cold.meter.retransmits,
            mss: cold.meter.mss,
            urgent: self.urgent.received(hot.flags.get(), index),
            soft_error: cold.soft_error.filter(|_| cold.options.receive_errors),
            unsent: unsent(hot, cold),
        })
    }

    /// Every flow with its token and facts. Walks the whole table: for reports, not for the loop.
    pub fn flows(&self) -> impl Iterator<Item = (FlowId, u32, Facts)> + '_ {
        self.table.iter().filter_map(|(index, _, cold)| {
            Some((self.table.id(index), cold.token, self.facts_of(index)?))
        })
    }

    /// Whether something became different since [`Stack::take_changes`].
    #[must_use]
    pub fn has_changes(&self) -> bool {
        !self.changes.is_empty()
    }

    /// Hands out what became different since the last call, in order; a flow stands in it at most once.
    pub fn take_changes(&mut self, into: &mut Vec<Change>) {
        let table = &mut self.table;
        self.changes.take(into, |change| {
            let (Change::Accepted { flow, .. } | Change::Flow { flow, .. }) = change else {
                return;
            };
            if let Some((_, cold)) = table.resolve(*flow).and_then(|index| table.parts(index)) {
                forget(&mut cold.mark);
            }
        });
    }

    /// When [`Stack::expire`] or [`Stack::transmit`] must be called next at the latest; None = when a frame comes.
    #[must_use]
    pub fn next_timer(&self) -> Option<Instant> {
        if self.looped.len() > 0 {
            return Some(Instant::ZERO);
        }
        let dirty = (!self.dirty.is_empty()).then_some(Instant::ZERO);
        [
            dirty,
            self.later.next_due(),
            self.wheel.next_due(),
            self.neighbors.next_due(),
            self.time_wait.next_due(),
            self.sweep.next_due(),
        ]
        .into_iter()
        .flatten()
        .min()
        .map(|due| self.stall.delays(due))
    }

    /// Puts a flow into the dirty list, once.
    pub(crate) fn mark_dirty(&mut self, index: u32) {
        if let Some((hot, _)) = self.table.parts(index)
            && !hot.flags.has(Flags::DIRTY)
        {
            hot.flags.set(Flags::DIRTY);
            self.dirty.push_back(index);
        }
    }

    /// Tells of changed facts.
    pub(crate) fn note_change(&mut self, index: u32) {
        let flow = self.table.id(index);
        if let Some((hot, cold)) = self.table.parts(index)
            && matches!(hot.phase, Phase::Queued | Phase::Owned)
        {
            let change = Change::Flow {
                flow,
                token: cold.token,
            };
            self.changes.flow(&mut cold.mark, change);
        }
    }

    /// Whether an endpoint pair is free for a new flow.
    pub(crate) fn is_free(&self, key: FlowKey) -> bool {
        self.table.lookup(key).is_none() && !self.time_wait.contains(key)
    }

    /// Descriptors that segments must leave free for replies to received frames.
    pub(crate) fn reserve(&self) -> usize {
        (self.tx_slots / 2).min(BURST_MAX)
    }

    /// Where frames leave in this call.
    pub(crate) fn outlet<'a>(
        tx: &'a mut dyn TxQueue,
        looped: &'a mut Loopback,
        counters: &'a StackCounters,
        station: Station,
        reserve: usize,
    ) -> Outlet<'a> {
        Outlet {
            tx,
            looped,
            station,
            counters,
            reserve,
        }
    }

    /// Whether the peer of `key` is one of our own addresses.
    pub(crate) fn is_looped(&self, remote: SocketAddrV4) -> bool {
        self.rules.is_ours(*remote.ip())
    }
}

/// Below so many flows everything a burst needs is in the second-level cache.
const PREFETCH_FROM: usize = 64;
/// The largest IP packet that the port cuts itself; 0 = none. A header of Ethernet with a tag goes before it, and the length
/// field of IPv4 has 16 bits.
fn super_bytes(config: &StackConfig) -> usize {
    let packet = config.tso_bytes.saturating_sub(LINK_HEADER_BYTES);
    if config.tx_checksum_offload && packet > config.mtu {
        packet.min(usize::from(u16::MAX))
    } else {
        0
    }
}

/// Makes keys of their own for the two tables, because sequence numbers show something of the secret's hashes.
const TABLE_KEY: u8 = 0x5a;
const REST_KEY: u8 = 0xc3;
/// Resets sent for segments without a connection (RFC 9293 3.10.7.1); enough for a scan to be answered, too few to be a
/// reflector.
const RESETS_PER_SECOND: u32 = 1000;
/// Challenge ACKs of all flows (RFC 5961 section 7; Linux `tcp_challenge_ack_limit` was this).
const CHALLENGES_PER_SECOND: u32 = 1000;
/// ICMP errors that we send (RFC 1812 4.3.2.8).
const UNREACHABLES_PER_SECOND: u32 = 100;
/// Flows that mend in time what is lost, of all flows: a port's ring of 1024 descriptors loses nothing of so many.
const MENDS_PER_SECOND: u32 = 16_000;
const MENDS_AT_ONCE: u32 = 256;

// A stack is made by one thread and driven by another.
const _: fn() = || {
    fn is_send<T: Send>() {}
    is_send::<Stack>();
};
