//! What the lcore sees of the stack: plain types, absolute stream positions, level facts.

use core::net::{Ipv4Addr, SocketAddrV4};
use core::time::Duration;

use super::urgent::UrgentMark;
use crate::errno::Errno;
use crate::id::{FlowId, ListenerId};

/// One of our IPv4 addresses with its network.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Interface4 {
    /// Our address.
    pub address: Ipv4Addr,
    /// Network prefix length, 0 to 32.
    pub prefix_len: u8,
}

/// A static route: `destination/prefix_len via gateway`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Route4 {
    /// Network address.
    pub destination: Ipv4Addr,
    /// Network prefix length, 0 to 32.
    pub prefix_len: u8,
    /// Next hop on one of our networks.
    pub gateway: Ipv4Addr,
}

/// Everything the stack must be told; made by `config` and the open port.
#[derive(Clone, Debug)]
pub struct StackConfig {
    /// Our MAC address.
    pub mac: [u8; 6],
    /// Largest IP packet in bytes.
    pub mtu: usize,
    /// 802.1Q tag of all our frames, 1 to 4094, or None.
    pub vlan: Option<u16>,
    /// Our addresses; at least one.
    pub addresses: Vec<Interface4>,
    /// Default gateway, or None.
    pub gateway: Option<Ipv4Addr>,
    /// Static routes, longest prefix wins.
    pub routes: Vec<Route4>,
    /// The port verifies received checksums (frames then say good or bad); else the stack does.
    pub rx_checksum_offload: bool,
    /// The port fills in sent checksums; else the stack does.
    pub tx_checksum_offload: bool,
    /// The port cuts TCP super-frames of up to this many bytes into segments; 0 = it does not. Needs `tx_checksum_offload`.
    pub tso_bytes: usize,
    /// Accept a partial TCP or UDP checksum (veth with offloads on).
    pub trust_checksum: bool,
    /// Flows at most (`max_tcpcb`).
    pub max_flows: usize,
    /// Neighbour table entries at most (`max_arp`).
    pub max_neighbors: usize,
    /// TIME-WAIT lasts twice this.
    pub msl: Duration,
    /// An orphan in FIN-WAIT-2 lives this long.
    pub fin_timeout: Duration,
    /// SYN-ACKs sent again before a half-open flow is dropped.
    pub synack_retries: u8,
    /// SYNs sent again before connect fails with ETIMEDOUT (Linux: 6).
    pub syn_retries: u8,
    /// Unacknowledged data is given up after this long (Linux `tcp_retries2`: about 924 s).
    pub user_timeout: Duration,
    /// An orphan with unacknowledged data is given up after this long (`common.linger_max_s`).
    pub orphan_timeout: Duration,
    /// Ephemeral ports, first and last.
    pub ephemeral_ports: (u16, u16),
    /// Bytes of smoltcp's send buffer of a flow.
    pub tx_buffer_bytes: usize,
    /// Where ephemeral ports begin.
    pub walk: PortWalk,
    /// Secret of RFC 6528 sequence numbers.
    pub secret: [u8; 16],
}

/// What makes the ephemeral ports of a stack. One that comes after another with the same secret goes on in the range where that
/// one was, and does not meet its connections, which peers may still have.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PortWalk {
    /// Secret of RFC 6056 ports.
    pub secret: [u8; 16],
    /// How far the ports have come already.
    pub start: u32,
}

/// Whom a listener or flow belongs to: the lcore's own number for a program family.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Owner(pub u32);

/// The receive ring of a flow: the memory is in the channel and is smoltcp's receive buffer itself.
///
/// The byte at stream offset `n` lies at `n % bytes.len()`.
#[derive(Debug)]
pub struct RxRing {
    /// The whole ring; a page that is not backed yet must not be touched.
    pub bytes: &'static mut [u8],
    /// Ring bytes from offset 0 that have memory behind them.
    pub backed: usize,
    /// The provider's own number for the ring.
    pub id: u32,
}

/// Memory of a send buffer, for [`FlowMemory::take_send`].
#[derive(Debug)]
pub struct SendBuffer {
    /// The whole buffer.
    pub bytes: &'static mut [u8],
    /// The provider's own number for it.
    pub id: u32,
}

/// Where receive rings come from (the host implements it over the channel, tests over `Vec::leak`).
pub trait FlowMemory {
    /// Gives a ring of at least `capacity` bytes (a power of two) to `owner`, or None when there is no memory: the
    /// SYN is then dropped and counted.
    fn take(&mut self, owner: Owner, capacity: usize) -> Option<RxRing>;

    /// Puts memory behind the first `bytes` of ring `id`; false = none to be had, and the window stays.
    fn back(&mut self, owner: Owner, id: u32, bytes: usize) -> bool;

    /// Takes the memory behind a ring whose bytes were all read, and behind whatever else the provider has of the connection,
    /// away; false when it stays, because the program is about to use it or the provider cannot. The ring stays lent.
    fn rest(&mut self, owner: Owner, id: u32) -> bool {
        let _ = (owner, id);
        false
    }

    /// Puts memory behind `bytes` bytes of ring `id` from offset `from` on, round its end; false = none to be had.
    fn back_part(&mut self, owner: Owner, id: u32, from: usize, bytes: usize) -> bool {
        let _ = (owner, id, from, bytes);
        true
    }

    /// Takes the ring back; the stack has let go of it. `ring.bytes` is empty, because the slice itself went into
    /// smoltcp's socket and died with it: `ring.id` says which memory is free again.
    fn give_back(&mut self, owner: Owner, ring: RxRing);

    /// Keeps the headers of the SYN that began the flow whose ring is `id`: of Ethernet (or nothing), and of IP and TCP.
    fn keep_syn(&mut self, owner: Owner, id: u32, link: &[u8], packet: &[u8]) {
        let _ = (owner, id, link, packet);
    }

    /// Lends memory for smoltcp's send buffer of a flow, or None: the stack then takes it from the heap. Only the
    /// provider can use such memory again, because smoltcp does not hand a buffer back.
    fn take_send(&mut self, owner: Owner, bytes: usize) -> Option<SendBuffer> {
        let _ = (owner, bytes);
        None
    }

    /// Takes the memory of a send buffer back; the stack has let go of it.
    fn give_back_send(&mut self, owner: Owner, id: u32) {
        let _ = (owner, id);
    }
}

/// What `listen` asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ListenRequest {
    /// Address (one of ours or 0.0.0.0 for all of ours) and port.
    pub local: SocketAddrV4,
    /// Completed connections that may wait for accept: `min(backlog, somaxconn)`; Linux queues one more than this.
    pub backlog: u32,
    /// Whose it is.
    pub owner: Owner,
    /// The lcore's own number for it, given back in [`Change::Accepted`].
    pub token: u32,
    /// Options that accepted flows start with.
    pub options: FlowOptions,
    /// It shares the endpoint with all others of this user that say so (SO_REUSEPORT); None = with nobody.
    pub shares: Option<u32>,
}

/// What `connect` asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConnectRequest {
    /// Local address, or None: chosen by route.
    pub local_address: Option<Ipv4Addr>,
    /// Local port, or None: chosen from the ephemeral range by RFC 6056.
    pub local_port: Option<u16>,
    /// The peer.
    pub remote: SocketAddrV4,
    /// Whose it is.
    pub owner: Owner,
    /// The lcore's own number for it.
    pub token: u32,
    /// Options it starts with.
    pub options: FlowOptions,
}

/// Per-flow options, settable at any time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FlowOptions {
    /// TCP_NODELAY.
    pub nodelay: bool,
    /// SO_KEEPALIVE.
    pub keepalive: bool,
    /// TCP_KEEPIDLE in seconds; 0 = 7200.
    pub keepidle_s: u16,
    /// TCP_KEEPINTVL in seconds; 0 = 75.
    pub keepintvl_s: u16,
    /// TCP_KEEPCNT; 0 = 9.
    pub keepcnt: u8,
    /// TCP_USER_TIMEOUT in milliseconds; 0 = the stack's.
    pub user_timeout_ms: u32,
    /// Receive ring capacity in bytes wanted (from SO_RCVBUF); 0 = the stack's.
    pub rx_bytes: u32,
    /// KiB of the receive window at most (from SO_RCVBUF); 0 = as the ring has it.
    pub window_kib: u16,
    /// TCP_MAXSEG; 0 = from the MTU.
    pub max_segment: u16,
    /// IP_TOS.
    pub tos: u8,
    /// IP_TTL; 0 = 64.
    pub ttl: u8,
    /// IP_MINTTL: packets with a lower time to live are dropped (RFC 5082).
    pub min_ttl: u8,
    /// TCP_SYNCNT: SYNs, or SYN-ACKs, that are sent again; 0 = the stack's.
    pub syn_count: u8,
    /// TCP_LINGER2: seconds in FIN-WAIT-2 once the program has let go, negative = none; 0 = the stack's.
    pub linger2_s: i16,
    /// TCP_DEFER_ACCEPT: seconds that a new connection waits for its first bytes.
    pub defer_accept_s: u16,
    /// IP_RECVERR: what ICMP says is told at once.
    pub receive_errors: bool,
    /// TCP_SAVE_SYN of a listener: what is kept of a SYN.
    pub save_syn: SaveSyn,
}

/// What is kept of the SYN of a new connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum SaveSyn {
    /// Nothing.
    #[default]
    Nothing,
    /// The headers of IP and TCP.
    Packet,
    /// With that of Ethernet before them.
    Frame,
}

/// RFC 9293 states as the program side may learn them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum FlowState {
    /// SYN sent.
    SynSent = 1,
    /// SYN received, SYN-ACK sent.
    SynReceived,
    /// Both ways open.
    Established,
    /// Our FIN sent, not acknowledged.
    FinWait1,
    /// Our FIN acknowledged, peer still sends.
    FinWait2,
    /// Peer has closed, we have not.
    CloseWait,
    /// Both FINs sent, ours not acknowledged.
    Closing,
    /// Peer closed first, our FIN not acknowledged.
    LastAck,
    /// Over; the tuple rests in the TIME-WAIT table (the flow itself is released).
    TimeWait,
    /// Over.
    Closed,
}

/// Everything the program side can learn of a flow; positions are absolute stream offsets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Facts {
    /// TCP state.
    pub state: FlowState,
    /// [`RxRing::id`] of its receive ring.
    pub ring: u32,
    /// Bytes received in order since the connection began (readable = this less what was consumed).
    pub rx_total: u64,
    /// The peer's FIN was received after `rx_total` bytes.
    pub rx_finished: bool,
    /// Bytes that `send` may take now.
    pub tx_room: usize,
    /// Bytes taken by `send` and acknowledged by the peer.
    pub tx_acked: u64,
    /// Bytes taken by `send` so far.
    pub tx_total: u64,
    /// Our FIN was acknowledged.
    pub tx_finished: bool,
    /// ECONNREFUSED, ECONNRESET, ETIMEDOUT, EHOSTUNREACH ...; set once.
    pub error: Option<Errno>,
    /// Our end.
    pub local: SocketAddrV4,
    /// The peer's end.
    pub remote: SocketAddrV4,
    /// Smoothed round-trip time in microseconds; 0 = not known yet.
    pub srtt_us: u32,
    /// Segments sent again.
    pub retransmits: u32,
    /// Segment size towards the peer in bytes.
    pub mss: u16,
    /// What the peer has marked as urgent.
    pub urgent: UrgentMark,
    /// An error that did not end it, for a program that wants to know (IP_RECVERR).
    pub soft_error: Option<Errno>,
    /// Bytes taken by `send` that have not left yet.
    pub unsent: u32,
}

/// What is known of the SYN of a passive flow, as long as nobody has set its options.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Opening {
    /// Its time to live.
    pub ttl: u8,
    /// Its headers were kept.
    pub syn_saved: bool,
}

/// What became different, in order. A flow stands at most once between two drains.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// A passive flow is established and waits for accept on the listener with this token.
    Accepted {
        /// The listener.
        listener: ListenerId,
        /// Its token.
        token: u32,
        /// The new flow.
        flow: FlowId,
    },
    /// The facts of a flow that was given to the program (connected or accepted) changed.
    Flow {
        /// The flow.
        flow: FlowId,
        /// Its token (0 until [`set_token`](crate::stack) gave one to an accepted flow).
        token: u32,
    },
    /// A flow is over and its id is free; its ring was given back. Last word about this id.
    Gone {
        /// The flow.
        flow: FlowId,
        /// Its token.
        token: u32,
    },
}
