//! A listener or a flow: its cell, and the values of its words.

use super::epoll::Item;
use crate::channel::layout::LCORES_MAX;
use crate::channel::mask::Mask;
use crate::channel::owner::OwnerWord;
use crate::channel::sync::{AtomicU32, AtomicU64};

/// Interest items inside an object cell; more go to [`super::Header::spill`].
pub const INLINE_ITEMS: usize = 4;

/// What an object is, in [`HostLine::kind`].
pub mod kind {
    /// Nobody uses the index.
    pub const FREE: u32 = 0;
    /// Listening.
    pub const LISTENER: u32 = 1;
    /// `connect` was asked for and has not ended.
    pub const CONNECTING: u32 = 2;
    /// Connected now or once; see the flags.
    pub const STREAM: u32 = 3;
    /// `listen` or `connect` failed, or the listener was shut; see `error`.
    pub const FAILED: u32 = 4;
}

/// Bits of [`HostLine::flags`].
pub mod flag {
    /// The peer's FIN follows the byte before `rx_tail`.
    pub const RX_FINISHED: u32 = 1;
    /// Nothing can be sent any more (reset, timed out, aborted): EPIPE, or the pending error first.
    pub const TX_BROKEN: u32 = 2;
    /// The flow is over both ways: HUP.
    pub const OVER: u32 = 4;
    /// Our FIN was acknowledged.
    pub const TX_FINISHED: u32 = 8;
    /// The peer has sent urgent data at some time; see [`super::FactLine::urgent`].
    pub const URGENT: u32 = 16;
    /// The program has limited what it may queue to less than the ring holds: SO_SNDBUF, TCP_NOTSENT_LOWAT.
    pub const LIMITED: u32 = 32;
    /// The headers of its SYN are kept, see `AnswerCell::syn`.
    pub const SYN_SAVED: u32 = 64;
}

/// What the program asks for in [`WishLine::operation`].
pub mod operation {
    /// Nothing.
    pub const NONE: u32 = 0;
    /// Listen on `local` with `backlog`. A second one changes the backlog.
    pub const LISTEN: u32 = 1;
    /// Connect to `remote`, from `local` where it is not zero.
    pub const CONNECT: u32 = 2;
}

/// Bits of [`WriteLine::shut`].
pub mod shut {
    /// `shutdown(SHUT_RD)`.
    pub const READ: u32 = 1;
    /// `shutdown(SHUT_WR)`: FIN after what is in the ring.
    pub const WRITE: u32 = 2;
    /// Reading was shut while there was no connection any more: the program's own note, without meaning for the host.
    pub const ENDED: u32 = 4;
}

/// Written by the lcore, read by the program: the hot line of an object.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct HostLine {
    /// Stream bytes received in order.
    pub rx_tail: AtomicU64,
    /// Stream bytes that the lcore has taken out of the transmit ring.
    pub tx_head: AtomicU64,
    /// Stream bytes that the peer has acknowledged.
    pub tx_acked: AtomicU64,
    /// Raised at each event that Linux would wake a waiter for; edge-triggered epoll compares it.
    pub edge: AtomicU32,
    /// See [`kind`].
    pub kind: AtomicU32,
    /// See [`flag`].
    pub flags: AtomicU32,
    /// Pending SO_ERROR as an errno; the program swaps it to 0.
    pub error: AtomicU32,
    /// The last `wish` that was carried out or refused (then with `answer`).
    pub answered: AtomicU32,
    /// 0, or the errno of the refusal.
    pub answer: AtomicU32,
    /// Bytes of the transmit ring that have memory behind them, from its start.
    pub tx_backed: AtomicU32,
    /// Raised when the index is freed; entries made before are stale.
    pub generation: AtomicU32,
    /// How many of the edges came from bytes or flows that arrived, and concern nobody who does not ask for IN.
    pub edges_in: AtomicU32,
    /// How many of the edges came from room to write, and concern nobody who does not ask for OUT.
    pub edges_out: AtomicU32,
}

/// Written by program threads: reading.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct ReadLine {
    /// Stream bytes that the program has read.
    pub rx_head: AtomicU64,
    /// SO_RCVTIMEO in microseconds; 0 = none.
    pub rcvtimeo_us: AtomicU64,
    /// SO_SNDTIMEO in microseconds; 0 = none.
    pub sndtimeo_us: AtomicU64,
    /// SO_RCVLOWAT in bytes; 0 = 1.
    pub rcvlowat: AtomicU32,
    /// O_NONBLOCK and its kin of the open file description (the F_SETFL bits).
    pub status_flags: AtomicU32,
    /// FIFO of the epoll interest items: the owner that changes them.
    pub items_owner: OwnerWord,
    /// Non-zero when some interest of this object is in [`super::Header::spill`].
    pub spilled: AtomicU32,
    /// Non-zero once some interest of this object was EPOLLEXCLUSIVE.
    pub exclusive: AtomicU32,
    /// The descriptor that it was made or accepted as, plus one; 0 = not told. For people only.
    pub fd: AtomicU32,
    /// Stream position behind the urgent byte that was taken out of line; 0 = none was.
    pub urgent_taken: AtomicU64,
    /// SO_PEEK_OFF plus one; 0 = off.
    pub peek_offset: AtomicU32,
    /// Which pipes for signals the host was given; see `fd::signals`.
    pub signals: AtomicU32,
}

/// Written by program threads: writing. See [`crate::channel::byte_ring`].
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct WriteLine {
    /// Stream bytes published to the lcore.
    pub tx_tail: AtomicU64,
    /// Stream bytes reserved by the owner; `tx_tail` follows when they are copied.
    pub tx_reserved: AtomicU64,
    /// Stream position that lies at ring offset 0.
    pub tx_origin: AtomicU64,
    /// Who may reserve.
    pub tx_owner: OwnerWord,
    /// Set when a writer found no room; the lcore clears it and raises an edge when a third is free.
    pub want_room: AtomicU32,
    /// See [`shut`].
    pub shut: AtomicU32,
    /// Bytes of the transmit ring, from its start, that the owner has put memory behind itself. The lcore believes it only after it
    /// has done the same; it sets it back to 0 when it takes the memory away.
    pub tx_grown: AtomicU32,
    /// Sends with MSG_ZEROCOPY so far.
    pub zerocopy_sent: AtomicU32,
    /// How many of them were told by the error queue.
    pub zerocopy_told: AtomicU32,
    /// Stream position behind the byte that was sent as urgent last; 0 = none was.
    pub urgent_end: AtomicU64,
    /// Non-zero: the last send said MSG_MORE.
    pub more: AtomicU32,
    /// Low half of the stream position below which nothing may be held back; see [`option::CORK`].
    pub pushed: AtomicU32,
}

/// Written by the host when the object is made, and facts that change slowly.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct FactLine {
    /// Our IPv4 address, as a number in host order.
    pub local_address: AtomicU32,
    /// Our port.
    pub local_port: AtomicU32,
    /// The peer's IPv4 address.
    pub remote_address: AtomicU32,
    /// The peer's port.
    pub remote_port: AtomicU32,
    /// [`crate::stack::FlowState`] as a number.
    pub tcp_state: AtomicU32,
    /// Smoothed round-trip time in microseconds.
    pub srtt_us: AtomicU32,
    /// Segments sent again.
    pub retransmits: AtomicU32,
    /// Segment size towards the peer in bytes.
    pub mss: AtomicU32,
    /// For a flow made by a listener: that listener's object index.
    pub listener: AtomicU32,
    /// Bytes that the stack has taken and not sent yet.
    pub unsent: AtomicU32,
    /// Stream position behind the urgent byte of the peer; 0 = there was none. Written before the bytes up to it count.
    pub urgent: AtomicU64,
    /// When bytes came last, in nanoseconds since 1970; 0 while nobody asks for it.
    pub arrived_ns: AtomicU64,
    /// The mark that the payload stage gave last (SO_MARK); 0 = none.
    pub payload_mark: AtomicU32,
    /// For a flow made by a listener: the time to live of its SYN.
    pub peer_ttl: AtomicU32,
}

/// Written by the program: what it wants of the host. Rung in by the doorbell.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct WishLine {
    /// Raised with each new wish, after the fields below are written.
    pub wish: AtomicU32,
    /// See [`operation`].
    pub operation: AtomicU32,
    /// Backlog as given to listen().
    pub backlog: AtomicU32,
    /// Local IPv4 address in host order; 0 = any.
    pub local_address: AtomicU32,
    /// Local port; 0 = any.
    pub local_port: AtomicU32,
    /// Peer's IPv4 address.
    pub remote_address: AtomicU32,
    /// Peer's port.
    pub remote_port: AtomicU32,
    /// Linger on (bit 31) and its seconds (bits 0 to 30), read by the host when the last holder closes.
    pub linger: AtomicU32,
    /// 1 once a call has told how the attempt to connect ended (Linux: SS_CONNECTING is over), or the socket was
    /// disconnected by shutdown. The next connect() begins anew or says EISCONN.
    pub told: AtomicU32,
    /// Raised with each question of TCP_INFO, see [`super::AnswerCell`].
    pub info: AtomicU32,
}

/// Written by the program: socket options. Rung in by the doorbell after `changed` is raised.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct OptionLine {
    /// Raised with each change.
    pub changed: AtomicU32,
    /// See [`option`].
    pub bits: AtomicU32,
    /// TCP_KEEPIDLE in seconds; 0 = default.
    pub keepidle_s: AtomicU32,
    /// TCP_KEEPINTVL in seconds; 0 = default.
    pub keepintvl_s: AtomicU32,
    /// TCP_KEEPCNT; 0 = default.
    pub keepcnt: AtomicU32,
    /// TCP_USER_TIMEOUT in milliseconds; 0 = default.
    pub user_timeout_ms: AtomicU32,
    /// SO_RCVBUF as the kernel reports it; 0 = default.
    pub rcvbuf: AtomicU32,
    /// SO_SNDBUF as the kernel reports it; 0 = default.
    pub sndbuf: AtomicU32,
    /// TCP_MAXSEG; 0 = default.
    pub max_segment: AtomicU32,
    /// IP_TOS.
    pub tos: AtomicU32,
    /// IP_TTL; 0 = default.
    pub ttl: AtomicU32,
    /// IP_MINTTL.
    pub min_ttl: AtomicU32,
    /// TCP_SYNCNT; 0 = default.
    pub syn_count: AtomicU32,
    /// TCP_LINGER2 in seconds, negative = never waits in FIN-WAIT-2; 0 = default.
    pub linger2_s: AtomicU32,
    /// TCP_DEFER_ACCEPT in seconds.
    pub defer_accept_s: AtomicU32,
    /// TCP_NOTSENT_LOWAT in bytes; 0 = none.
    pub notsent_lowat: AtomicU32,
}

/// Bits of [`OptionLine::bits`].
pub mod option {
    /// TCP_NODELAY.
    pub const NODELAY: u32 = 1;
    /// SO_KEEPALIVE.
    pub const KEEPALIVE: u32 = 2;
    /// TCP_CORK.
    pub const CORK: u32 = 4;
    /// SO_REUSEADDR.
    pub const REUSEADDR: u32 = 8;
    /// SO_REUSEPORT.
    pub const REUSEPORT: u32 = 16;
    /// Of a listener: its connections have options from it that only a kernel socket keeps.
    pub const HANDS_DOWN: u32 = 32;
    /// SO_ZEROCOPY.
    pub const ZEROCOPY: u32 = 64;
    /// TCP_INQ.
    pub const INQ: u32 = 128;
    /// SO_OOBINLINE.
    pub const OOB_INLINE: u32 = 256;
    /// SO_TIMESTAMP.
    pub const STAMP: u32 = 512;
    /// SO_TIMESTAMPNS.
    pub const STAMP_NANOS: u32 = 1024;
    /// IP_RECVERR.
    pub const RECEIVE_ERRORS: u32 = 2048;
    /// TCP_SAVE_SYN: the headers of IP and TCP.
    pub const SAVE_SYN: u32 = 4096;
    /// With that of Ethernet before them.
    pub const SAVE_SYN_LINK: u32 = 8192;
}

/// Written by the program, read by the host at each edge: whom to tell.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct WatchLine {
    /// Epolls that hold the object.
    pub epolls: Mask,
    /// Slots that sleep on the object itself (a blocking call, poll, select).
    pub slots: Mask,
}

/// Of a listener: how far its accept queues have come, one an lcore. The one line that both sides write: once a connection.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct QueueLine {
    /// Flows that each lcore has put into its queue. Written by the lcore.
    pub tails: [AtomicU32; LCORES_MAX as usize],
    /// Flows that were taken from it. Written by the program.
    pub heads: [AtomicU32; LCORES_MAX as usize],
}

/// A listener or a flow.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct ObjectCell {
    /// Host writes.
    pub host: HostLine,
    /// Program writes.
    pub read: ReadLine,
    /// Program writes.
    pub write: WriteLine,
    /// Host writes, seldom.
    pub fact: FactLine,
    /// Program writes, seldom.
    pub wish: WishLine,
    /// Program writes, seldom.
    pub option: OptionLine,
    /// Program writes, seldom.
    pub watch: WatchLine,
    /// Both write, once a connection.
    pub queue: QueueLine,
    /// Program writes, seldom.
    pub items: [Item; INLINE_ITEMS],
}
