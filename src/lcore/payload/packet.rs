//! The attach point `packet`: the payload of each segment on the wire, ahead of TCP or behind it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use core::net::SocketAddrV4;
use core::ops::Range;

use crate::device::{RxFrame, TxMeta, TxQueue};
use crate::gpu::{Chunk, Direction, Ends, HeldFrames, Meeting, PacketStage, Segment, Verdict};
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

impl Sent {
    /// Takes the ends of flows that are to be reset.
    pub(in super::super) fn take_resets(&mut self, into: &mut Vec<Ends>) {
        into.append(&mut self.resets);
        self.stage.take_resets(into);
    }
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
    /// A GPU judges: segments are held, in the buffers that they were made in.
    flies: bool,
    now: Instant,
    /// By ticket, what the port is to do to a held segment.
    metas: Vec<TxMeta>,
    tickets: Vec<u32>,
    scratch: Vec<u8>,
}

/// The frames that a transmitting half keeps.
struct Held<'a>(&'a mut dyn TxQueue);

impl HeldFrames for Held<'_> {
    fn frame(&mut self, ticket: u32) -> Option<&mut [u8]> {
        self.0.kept(ticket)
    }
}

impl JudgedTx {
    /// Puts `stage` in front of a transmit queue.
    pub(in super::super) fn new(
        inner: Box<dyn TxQueue>,
        mut stage: PacketStage,
    ) -> (Self, SharedSent) {
        let flies = stage.flies();
        stage.hold_at_most(inner.keeps());
        let sent = Arc::new(Mutex::new(Sent {
            stage,
            resets: Vec::new(),
        }));
        let shared = Arc::clone(&sent);
        let judged = Self {
            metas: vec![TxMeta::default(); if flies { inner.keeps() } else { 0 }],
            inner,
            sent,
            flies,
            now: Instant::ZERO,
            tickets: Vec::new(),
            scratch: Vec::new(),
        };
        (judged, shared)
    }

    /// As `commit`, where a GPU judges.
    fn offer(&mut self, len: usize, meta: TxMeta) {
        let can_be_kept = self.inner.can_keep();
        let Some(frame) = self.inner.alloc(len) else {
            return;
        };
        let Some((ends, payload)) = segment(frame) else {
            return self.inner.commit(len, meta);
        };
        let offered = Segment {
            ends,
            frame,
            payload,
            can_be_kept,
        };
        let meeting = lock(&self.sent).stage.meet(self.now, offered);
        match meeting {
            Meeting::Pass => self.inner.commit(len, meta),
            Meeting::Stop => {}
            Meeting::Keep(ticket) => {
                let kept = self.inner.keep(len, meta, ticket);
                debug_assert!(kept, "tickets are below what can be kept");
                if let Some(place) = self.metas.get_mut(ticket as usize) {
                    *place = meta;
                }
            }
        }
    }

    /// Hands over to the GPU what is sent, and sends what it has judged.
    fn land(&mut self, now: Instant) {
        let mut sent = lock(&self.sent);
        let stage = &mut sent.stage;
        stage.step(now, &mut Held(self.inner.as_mut()));
        self.tickets.clear();
        stage.released(usize::MAX, &mut self.tickets);
        let mut gone = 0;
        for ticket in self.tickets.drain(..) {
            if self.inner.room() == 0 {
                self.inner.flush(now);
            }
            let meta = self.metas.get(ticket as usize).copied().unwrap_or_default();
            let went = if stage.is_late(ticket) {
                copied(self.inner.as_mut(), ticket, meta, &mut self.scratch)
            } else {
                self.inner.commit_kept(ticket)
            };
            // One that is not there holds up nobody.
            if !went && self.inner.kept(ticket).is_some() {
                break;
            }
            gone += 1;
        }
        stage.taken(gone);
        self.tickets.clear();
        stage.take_freed(&mut self.tickets);
        for ticket in self.tickets.drain(..) {
            self.inner.free_kept(ticket);
        }
    }
}

/// Sends a copy of a kept segment at which a late kernel may still look: the port would give its buffer to others. False: there is
/// no room now. Without a buffer it is lost, and TCP sends it again.
fn copied(inner: &mut dyn TxQueue, ticket: u32, meta: TxMeta, scratch: &mut Vec<u8>) -> bool {
    scratch.clear();
    scratch.extend_from_slice(inner.kept(ticket).unwrap_or_default());
    if inner.room() == 0 {
        return false;
    }
    let Some(buffer) = inner.alloc(scratch.len()) else {
        return true;
    };
    buffer.copy_from_slice(scratch);
    inner.commit(scratch.len(), meta);
    true
}

impl TxQueue for JudgedTx {
    fn alloc(&mut self, len: usize) -> Option<&mut [u8]> {
        if self.flies && lock(&self.sent).stage.is_full(1) {
            return None;
        }
        self.inner.alloc(len)
    }

    fn commit(&mut self, len: usize, meta: TxMeta) {
        if self.flies {
            return self.offer(len, meta);
        }
        let verdict = self.inner.alloc(len).map_or(Verdict::Pass, |frame| {
            let found = segment(frame).filter(|(_, payload)| !payload.is_empty());
            let Some((ends, payload)) = found else {
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
        if self.flies {
            self.now = now;
            self.land(now);
        }
        self.inner.flush(now)
    }

    fn room(&self) -> usize {
        let room = self.inner.room();
        if self.flies {
            // What `alloc` would refuse must not be made: TCP would take it for sent.
            return room.min(lock(&self.sent).stage.places());
        }
        room
    }
}

/// The ends and the payload, perhaps empty, of a TCP segment that we send; None for anything else.
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
    Some((ends, payload))
}
