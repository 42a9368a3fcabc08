//! The attach point `packet`: the payload of each segment on the wire, ahead of TCP or behind it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use core::net::SocketAddrV4;
use core::ops::Range;

use crate::device::{RxFrame, TxMeta, TxQueue};
use crate::gpu::{Chunk, Direction, Ends, PacketStage, Verdict};
use crate::stack::Stack;
use crate::stack::demux::Class;
use crate::stack::frame::{EthernetHeader, Ipv4Header, PROTOCOL_TCP, word_at};
use crate::time::Instant;

/// Judges a received segment of a flow; false: it is not to go on. The ends of a flow to be reset are added to `resets`.
pub(in super::super) fn passes(
    stage: &mut PacketStage,
    stack: &Stack,
    class: &Class,
    frame: &mut RxFrame<'_>,
    resets: &mut Vec<Ends>,
) -> bool {
    let Class::Tcp(segment) = class else {
        return true;
    };
    // What is no flow's is the guard's.
    if segment.payload_len == 0 || stack.find(segment.key).is_none() {
        return true;
    }
    let payload = segment.payload..segment.payload + segment.payload_len;
    let Some(bytes) = frame.bytes.get_mut(payload) else {
        return true;
    };
    let ends = Ends {
        local: segment.key.local,
        remote: segment.key.remote,
    };
    let verdict = stage.judge(&mut Chunk {
        direction: Direction::Rx,
        ends,
        offset: 0,
        bytes,
    });
    if verdict == Verdict::Reset {
        resets.push(ends);
    }
    verdict == Verdict::Pass
}

/// What judges sent segments, and the ends of flows to be reset by it.
#[derive(Debug)]
pub(in super::super) struct Sent {
    pub(in super::super) stage: PacketStage,
    pub(in super::super) resets: Vec<Ends>,
}

/// The stage of sent segments, which the transmit queue and the lcore share on one thread.
pub(in super::super) type SharedSent = Arc<Mutex<Sent>>;

/// Takes the lock, which nobody ever holds for longer than a call.
pub(in super::super) fn lock(sent: &SharedSent) -> MutexGuard<'_, Sent> {
    sent.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A transmit queue whose segments are judged.
pub(in super::super) struct JudgedTx {
    inner: Box<dyn TxQueue>,
    sent: SharedSent,
}

impl JudgedTx {
    /// Puts `stage` in front of a transmit queue.
    pub(in super::super) fn new(inner: Box<dyn TxQueue>, stage: PacketStage) -> (Self, SharedSent) {
        let sent = Arc::new(Mutex::new(Sent {
            stage,
            resets: Vec::new(),
        }));
        let shared = Arc::clone(&sent);
        (Self { inner, sent }, shared)
    }
}

impl TxQueue for JudgedTx {
    fn alloc(&mut self, len: usize) -> Option<&mut [u8]> {
        self.inner.alloc(len)
    }

    fn commit(&mut self, len: usize, meta: TxMeta) {
        let verdict = self.inner.alloc(len).map_or(Verdict::Pass, |frame| {
            let Some((ends, payload)) = segment(frame) else {
                return Verdict::Pass;
            };
            let Some(bytes) = frame.get_mut(payload) else {
                return Verdict::Pass;
            };
            let mut sent = lock(&self.sent);
            let verdict = sent.stage.judge(&mut Chunk {
                direction: Direction::Tx,
                ends,
                offset: 0,
                bytes,
            });
            if verdict == Verdict::Reset {
                sent.resets.push(ends);
            }
            verdict
        });
        if verdict == Verdict::Pass {
            self.inner.commit(len, meta);
        }
    }

    fn flush(&mut self, now: Instant) -> usize {
        self.inner.flush(now)
    }

    fn room(&self) -> usize {
        self.inner.room()
    }
}

/// The ends and the payload of a TCP segment that we send; None for anything else.
fn segment(frame: &[u8]) -> Option<(Ends, Range<usize>)> {
    let (_, start) = EthernetHeader::parse(frame)?;
    let packet = frame.get(start..)?;
    let header = Ipv4Header::parse(packet).ok()?;
    if header.protocol != PROTOCOL_TCP {
        return None;
    }
    let tcp = packet.get(header.header_bytes..header.total_bytes)?;
    let head = usize::from(*tcp.get(12)? >> 4) * 4;
    let payload = start + header.header_bytes + head..start + header.total_bytes;
    let ends = Ends {
        local: SocketAddrV4::new(header.source, word_at(tcp, 0)?),
        remote: SocketAddrV4::new(header.destination, word_at(tcp, 2)?),
    };
    (!payload.is_empty()).then_some((ends, payload))
}
