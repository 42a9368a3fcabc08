//! The memory of a flow: where it comes from, and that all of it goes back.

use core::num::NonZero;

use super::api::{FlowMemory, FlowOptions, Owner, RxRing};

/// Memory for a new flow, on its way into the socket.
#[derive(Debug)]
pub(crate) struct Buffers {
    /// The receive ring.
    pub(crate) receive: &'static mut [u8],
    /// The send buffer.
    pub(crate) send: SendMemory,
    /// What must go back one day.
    pub(crate) held: Held,
    /// Bytes of the receive ring that have memory.
    pub(crate) backed: usize,
    /// Where both begin, to be fetched ahead of their use.
    pub(crate) places: Places,
}

/// Addresses of a flow's two buffers; never followed, only fetched ahead.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Places {
    /// The receive ring.
    pub(crate) receive: usize,
    /// The send buffer.
    pub(crate) send: usize,
}

/// Memory of a send buffer.
#[derive(Debug)]
pub(crate) enum SendMemory {
    /// Lent by the provider.
    Lent(&'static mut [u8]),
    /// From the heap.
    Heap(Vec<u8>),
}

/// What a flow owes to its provider.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Held {
    /// Whom it was taken for.
    pub(crate) owner: Owner,
    /// Number of the receive ring.
    pub(crate) ring: u32,
    /// Number of the send buffer plus one, when it was lent.
    send: Option<NonZero<u32>>,
}

impl Buffers {
    /// Takes what a flow with these options needs, or nothing at all.
    pub(crate) fn take(
        memory: &mut dyn FlowMemory,
        owner: Owner,
        options: &FlowOptions,
        send_bytes: usize,
    ) -> Option<Self> {
        let wanted = if options.rx_bytes == 0 {
            RX_BYTES_DEFAULT
        } else {
            options.rx_bytes as usize
        };
        let wanted = wanted.clamp(PAGE_BYTES, RX_BYTES_MAX).next_power_of_two();
        let mut ring = memory.take(owner, wanted)?;
        let capacity = ring.bytes.len();
        ring.backed = ring.backed.min(capacity);
        let first = PAGE_BYTES.min(capacity);
        if ring.backed < first && memory.back(owner, ring.id, first) {
            ring.backed = first;
        }
        if ring.backed == 0 || capacity > RX_BYTES_MAX {
            memory.give_back(owner, ring);
            return None;
        }
        let lent = memory.take_send(owner, send_bytes);
        let id = lent.as_ref().map(|buffer| buffer.id);
        let send = match lent {
            Some(buffer) => SendMemory::Lent(buffer.bytes),
            None => SendMemory::Heap(vec![0; send_bytes]),
        };
        let held = Held {
            owner,
            ring: ring.id,
            send: id.and_then(|id| NonZero::new(id.wrapping_add(1))),
        };
        let places = Places {
            receive: ring.bytes.as_ptr().addr(),
            send: match &send {
                SendMemory::Lent(bytes) => bytes.as_ptr().addr(),
                SendMemory::Heap(bytes) => bytes.as_ptr().addr(),
            },
        };
        Some(Self {
            backed: ring.backed,
            receive: ring.bytes,
            send,
            held,
            places,
        })
    }
}

impl Held {
    /// Gives everything back; `backed` bytes of the ring have memory by now. The socket must be gone.
    pub(crate) fn give_back(self, memory: &mut dyn FlowMemory, backed: usize) {
        if let Some(id) = self.send {
            memory.give_back_send(self.owner, id.get() - 1);
        }
        // The slice died with the socket; the number says which ring it is.
        memory.give_back(
            self.owner,
            RxRing {
                bytes: &mut [],
                backed,
                id: self.ring,
            },
        );
    }
}

/// Design D1: at least this much, whatever K-NET's defaults say.
const RX_BYTES_DEFAULT: usize = 256 << 10;
/// smoltcp's limit, and that of the window scale (RFC 7323 section 2.3).
const RX_BYTES_MAX: usize = 1 << 30;
const PAGE_BYTES: usize = 4096;
