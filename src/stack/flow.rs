//! The TCP engine of one flow: the only file that names smoltcp's TCP socket.
//!
//! One `SocketSet` holds one socket (design D2). What is seen from here on are six calls: ingress, egress,
//! `poll_at`, read ([`Engine::consume`]), write ([`Engine::send`]) and [`Engine::facts`]. The socket is never used a
//! second time, because its reset keeps state of the connection before. `set_timeout` is never called: it
//! cuts healthy idle connections.

use core::net::SocketAddrV4;
use core::panic::AssertUnwindSafe;
use core::time::Duration;
use std::panic::catch_unwind;

use smoltcp::iface::{Interface, SocketSet, SocketStorage};
use smoltcp::socket::AnySocket;
use smoltcp::socket::tcp;
use smoltcp::wire::{IpAddress, IpEndpoint, IpListenEndpoint};

use super::api::{FlowOptions, FlowState};
use super::buffers::SendMemory;
use super::interface::{Wire, to_engine_time};
use crate::prefetch;
use crate::time::Instant;

/// smoltcp panicked inside a flow; nothing of it can be trusted any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Panicked;

/// When a flow wants to be asked for segments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Due {
    /// At once.
    Now,
    /// At a time.
    At(Instant),
    /// After the next received segment.
    Ingress,
}

/// What the socket says of itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct EngineFacts {
    /// RFC 9293 state; LISTEN is reported as Closed, because a flow is never in it.
    pub(crate) state: FlowState,
    /// Bytes received in order and not consumed.
    pub(crate) rx_queue: usize,
    /// Bytes taken and not acknowledged.
    pub(crate) tx_queue: usize,
    /// Bytes that `send` may take.
    pub(crate) tx_room: usize,
}

/// One socket in its set.
pub(crate) struct Engine {
    set: SocketSet<'static>,
    /// Where the socket lies, to be fetched ahead of its use.
    place: usize,
}

impl core::fmt::Debug for Engine {
    fn fmt(&self, out: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        out.debug_struct("Engine")
            .field("facts", &self.facts())
            .finish()
    }
}

impl Engine {
    /// Memory of a socket in its set.
    pub(crate) const SOCKET_BYTES: usize = size_of::<SocketStorage<'static>>();

    /// Makes an engine without a socket: the place of a free flow.
    pub(crate) fn vacant() -> Self {
        Self {
            set: SocketSet::new(Vec::new()),
            place: 0,
        }
    }

    /// Makes a socket that waits for the SYN of a passive flow.
    pub(crate) fn listen(
        receive: &'static mut [u8],
        send: SendMemory,
        local: SocketAddrV4,
        options: &FlowOptions,
    ) -> Option<Self> {
        let mut socket = new_socket(receive, send, options);
        socket
            .listen(IpListenEndpoint {
                addr: Some(IpAddress::Ipv4(*local.ip())),
                port: local.port(),
            })
            .ok()?;
        Some(Self::hold(socket))
    }

    /// Makes a socket in SYN-SENT; the sequence number comes from `interface`.
    pub(crate) fn connect(
        receive: &'static mut [u8],
        send: SendMemory,
        local: SocketAddrV4,
        remote: SocketAddrV4,
        options: &FlowOptions,
        interface: &mut Interface,
    ) -> Option<Self> {
        let mut socket = new_socket(receive, send, options);
        let remote = IpEndpoint::new(IpAddress::Ipv4(*remote.ip()), remote.port());
        let local = IpEndpoint::new(IpAddress::Ipv4(*local.ip()), local.port());
        socket.connect(interface.context(), remote, local).ok()?;
        Some(Self::hold(socket))
    }

    fn hold(socket: tcp::Socket<'static>) -> Self {
        // SocketStorage is over 1 KiB, and an unsized Vec would round up.
        let mut set = SocketSet::new(Vec::with_capacity(1));
        set.add(socket);
        let place = set
            .iter()
            .next()
            .map_or(0, |(_, socket)| core::ptr::from_ref(socket).addr());
        Self { set, place }
    }

    fn socket(&self) -> Option<&tcp::Socket<'static>> {
        self.set
            .iter()
            .next()
            .and_then(|(_, socket)| tcp::Socket::downcast(socket))
    }

    fn socket_mut(&mut self) -> Option<&mut tcp::Socket<'static>> {
        self.set
            .iter_mut()
            .next()
            .and_then(|(_, socket)| tcp::Socket::downcast_mut(socket))
    }

    /// Lets go of the socket and so of its buffers.
    pub(crate) fn clear(&mut self) {
        self.set = SocketSet::new(Vec::new());
    }

    /// Fetches the lines of the socket that a segment needs. What lies between them is the list of gaps, empty nearly always.
    pub(crate) fn prefetch(&self) {
        prefetch::lines(self.place, SOCKET_HEAD);
        prefetch::lines(self.place + Self::SOCKET_BYTES - SOCKET_TAIL, SOCKET_TAIL);
    }

    /// Feeds the frame in `wire`.
    pub(crate) fn ingress(
        &mut self,
        interface: &mut Interface,
        now: Instant,
        wire: &mut Wire<'_, '_>,
    ) -> Result<(), Panicked> {
        catch_unwind(AssertUnwindSafe(|| {
            #[cfg(test)]
            assert!(!wire.poisoned, "poisoned by a test");
            interface.poll_ingress_single(to_engine_time(now), wire, &mut self.set);
        }))
        .map_err(|_| Panicked)
    }

    /// Sends at most one segment through `wire`.
    pub(crate) fn egress(
        &mut self,
        interface: &mut Interface,
        now: Instant,
        wire: &mut Wire<'_, '_>,
    ) -> Result<(), Panicked> {
        catch_unwind(AssertUnwindSafe(|| {
            interface.poll_egress(to_engine_time(now), wire, &mut self.set);
        }))
        .map_err(|_| Panicked)
    }

    /// When egress is wanted.
    pub(crate) fn poll_at(&self, interface: &mut Interface, now: Instant) -> Due {
        let due = catch_unwind(AssertUnwindSafe(|| {
            interface.poll_at(to_engine_time(now), &self.set)
        }));
        match due {
            Ok(Some(at)) => {
                let at = Instant::from_micros(u64::try_from(at.total_micros()).unwrap_or(0));
                if at <= now { Due::Now } else { Due::At(at) }
            }
            Ok(None) => Due::Ingress,
            // The panic is met again, and handled, by the egress that follows.
            Err(_) => Due::Now,
        }
    }

    /// Copies bytes into the send buffer and returns how many were taken.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> usize {
        let Some(socket) = self.socket_mut() else {
            return 0;
        };
        catch_unwind(AssertUnwindSafe(|| socket.send_slice(bytes).unwrap_or(0))).unwrap_or(0)
    }

    /// Lends up to `want` bytes of free send buffer to `fill`, part by part, and returns how many were taken.
    pub(crate) fn send_with(&mut self, want: usize, fill: &mut dyn FnMut(&mut [u8])) -> usize {
        let Some(socket) = self.socket_mut() else {
            return 0;
        };
        in_rounds(want, |left| {
            socket.send(|bytes| {
                let part = bytes.len().min(left);
                if let Some(bytes) = bytes.get_mut(..part).filter(|bytes| !bytes.is_empty()) {
                    fill(bytes);
                }
                (part, part)
            })
        })
    }

    /// Gives the memory of the send buffer, which is empty, back to the kernel; it comes again when bytes do.
    pub(crate) fn forget_send_buffer(&mut self) {
        if let Some(socket) = self.socket_mut() {
            // Nothing is taken; a socket that cannot send any more keeps its memory until it goes.
            let _ = socket.send(|room| (0, prefetch::forget(room)));
        }
    }

    /// Takes `count` received bytes out of the window's way and returns how many there were.
    pub(crate) fn consume(&mut self, count: usize) -> usize {
        let Some(socket) = self.socket_mut() else {
            return 0;
        };
        in_rounds(count, |left| {
            socket.recv(|bytes| {
                let part = bytes.len().min(left);
                (part, part)
            })
        })
    }

    /// FIN after everything that was sent.
    pub(crate) fn shutdown(&mut self) {
        if let Some(socket) = self.socket_mut() {
            socket.close();
        }
    }

    /// To CLOSED; one RST leaves at the next egress.
    pub(crate) fn abort(&mut self) {
        if let Some(socket) = self.socket_mut() {
            socket.abort();
        }
    }

    /// How long an acknowledgement of what comes next may wait for bytes to ride on. One that waits already is not
    /// moved; more than a segment's worth is acknowledged at once in any case.
    pub(crate) fn set_ack_delay(&mut self, delay: Duration) {
        if let Some(socket) = self.socket_mut() {
            let micros = u64::try_from(delay.as_micros()).unwrap_or(u64::MAX);
            socket.set_ack_delay(Some(smoltcp::time::Duration::from_micros(micros)));
        }
    }

    /// Nagle's rule holds nothing back while there is a hurry; afterwards as `options` say.
    pub(crate) fn hurry(&mut self, on: bool, options: &FlowOptions) {
        if let Some(socket) = self.socket_mut() {
            socket.set_nagle_enabled(!on && !options.nodelay);
        }
    }

    /// Options that smoltcp itself knows.
    pub(crate) fn set_options(&mut self, options: &FlowOptions) {
        if let Some(socket) = self.socket_mut() {
            apply(socket, options);
        }
    }

    /// What the socket says of itself.
    pub(crate) fn facts(&self) -> EngineFacts {
        let Some(socket) = self.socket() else {
            return EngineFacts {
                state: FlowState::Closed,
                rx_queue: 0,
                tx_queue: 0,
                tx_room: 0,
            };
        };
        EngineFacts {
            state: state_of(socket.state()),
            rx_queue: socket.recv_queue(),
            tx_queue: socket.send_queue(),
            tx_room: if socket.may_send() {
                socket.send_capacity() - socket.send_queue()
            } else {
                0
            },
        }
    }

    /// The congestion window in bytes, out of what the socket says for debugging: too dear for anything but a test, because it
    /// writes both buffers out.
    #[cfg(test)]
    pub(crate) fn congestion_window(&self) -> u32 {
        let text = format!("{:?}", self.socket());
        let (_, rest) = text.split_once("cwnd: ").expect("smoltcp's CUBIC has one");
        let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
        digits.parse().expect("a number")
    }

    /// Whether a reset was made and has not left yet.
    pub(crate) fn owes_reset(&self) -> bool {
        self.socket().is_some_and(|socket| {
            socket.state() == tcp::State::Closed && socket.remote_endpoint().is_some()
        })
    }
}

fn new_socket(
    receive: &'static mut [u8],
    send: SendMemory,
    options: &FlowOptions,
) -> tcp::Socket<'static> {
    let receive = tcp::SocketBuffer::new(receive);
    let send = match send {
        SendMemory::Lent(bytes) => tcp::SocketBuffer::new(bytes),
        SendMemory::Heap(bytes) => tcp::SocketBuffer::new(bytes),
    };
    let mut socket = tcp::Socket::new(receive, send);
    // One egress a flow and burst joins ACKs. Later the delay is chosen for each segment.
    socket.set_ack_delay(None);
    apply(&mut socket, options);
    socket
}

/// Repeats `once`, which is told how many bytes are left, until `want` are done or none can be. A buffer may wrap once, so two
/// rounds reach its end.
fn in_rounds<E>(want: usize, mut once: impl FnMut(usize) -> Result<usize, E>) -> usize {
    catch_unwind(AssertUnwindSafe(|| {
        let mut done = 0;
        while done < want {
            match once(want - done) {
                Ok(part) if part > 0 => done += part,
                _ => break,
            }
        }
        done
    }))
    .unwrap_or(0)
}

fn apply(socket: &mut tcp::Socket<'static>, options: &FlowOptions) {
    socket.set_nagle_enabled(!options.nodelay);
    socket.set_hop_limit(Some(if options.ttl == 0 {
        DEFAULT_TTL
    } else {
        options.ttl
    }));
}

fn state_of(state: tcp::State) -> FlowState {
    match state {
        tcp::State::Closed | tcp::State::Listen => FlowState::Closed,
        tcp::State::SynSent => FlowState::SynSent,
        tcp::State::SynReceived => FlowState::SynReceived,
        tcp::State::Established => FlowState::Established,
        tcp::State::FinWait1 => FlowState::FinWait1,
        tcp::State::FinWait2 => FlowState::FinWait2,
        tcp::State::CloseWait => FlowState::CloseWait,
        tcp::State::Closing => FlowState::Closing,
        tcp::State::LastAck => FlowState::LastAck,
        tcp::State::TimeWait => FlowState::TimeWait,
    }
}

/// The first and the last bytes of a socket in its set, as rustc lays smoltcp 0.14's out: all but the gaps of the assembler behind
/// the first. Another layout costs time and nothing else.
const SOCKET_HEAD: usize = 416;
const SOCKET_TAIL: usize = 128;
/// RFC 1700's recommended time to live.
const DEFAULT_TTL: u8 = 64;
