//! Received segments that a GPU judges: held in the port's buffers, and given to TCP in the order in which they came.

use crate::device::{BURST_MAX, Keeps, RxFrame, RxQueue};
use crate::gpu::{Ends, HeldFrames, Meeting, PacketStage, Segment};
use crate::lcore::payload::packet::lock;
use crate::lcore::worker::{Entrance, Lcore};
use crate::stack::Stack;
use crate::stack::demux::Class;
use crate::time::Instant;

/// As `packet::passes`, but a segment may be kept.
pub(in super::super) fn goes_on(
    stage: &mut PacketStage,
    stack: &Stack,
    class: &Class,
    frame: &mut RxFrame<'_>,
    (now, keeps): (Instant, Option<&mut Keeps>),
) -> bool {
    let Class::Tcp(segment) = class else {
        return true;
    };
    // What is no flow's is the guard's.
    if stack.find(segment.key).is_none() {
        return true;
    }
    let meeting = stage.meet(
        now,
        Segment {
            ends: Ends {
                local: segment.key.local,
                remote: segment.key.remote,
            },
            payload: segment.payload..segment.payload + segment.payload_len,
            can_be_kept: keeps.is_some(),
            frame: frame.bytes,
        },
    );
    match (meeting, keeps) {
        (Meeting::Pass, _) => true,
        (Meeting::Keep(ticket), Some(keeps)) => {
            keeps.keep(frame, ticket);
            false
        }
        (Meeting::Keep(_) | Meeting::Stop, _) => false,
    }
}

/// The frames that a receiving half keeps.
struct Received<'a>(&'a mut dyn RxQueue);

impl HeldFrames for Received<'_> {
    fn frame(&mut self, ticket: u32) -> Option<&mut [u8]> {
        self.0.kept(ticket)
    }
}

impl Lcore {
    /// Receives, where a GPU judges segments: takes what has come, hands it over, and gives TCP what was judged.
    pub(in super::super) fn receive_aloft(&mut self, now: Instant) -> usize {
        let Self {
            rx,
            tx,
            stack,
            memory,
            packet_rx,
            resets,
            peers,
            status,
            tickets,
            ..
        } = self;
        let mut work = 0;
        let waits = packet_rx
            .as_ref()
            .is_some_and(|stage| stage.is_full(BURST_MAX));
        let mut entrance = Entrance {
            now,
            stack,
            memory,
            tx: tx.as_mut(),
            stage: packet_rx.as_mut(),
            resets,
        };
        if !waits {
            work += rx.rx_burst_keeping(now, &mut |mut frames, keeps| {
                if let Some(peers) = peers {
                    let ours = peers.sort(frames, &status.counters);
                    frames = frames.get_mut(..ours).unwrap_or_default();
                }
                entrance.admit(frames, Some(keeps));
            });
        }
        if let Some(peers) = peers {
            peers.publish();
            work += peers.take(&mut entrance);
        }
        if let Some(stage) = packet_rx {
            work += stage.step(now, &mut Received(rx.as_mut()));
            loop {
                tickets.clear();
                stage.released(BURST_MAX, tickets);
                if tickets.is_empty() {
                    break;
                }
                rx.lend_kept(tickets, &mut |frames| {
                    for frame in frames.iter_mut() {
                        // It was verified before it was held.
                        frame.meta.checksum_good = true;
                    }
                    stack.ingress(now, frames, memory, tx.as_mut());
                });
                work += tickets.len();
                stage.taken(tickets.len());
            }
            tickets.clear();
            stage.take_freed(tickets);
            for ticket in tickets.drain(..) {
                rx.free_kept(ticket);
            }
            stage.take_resets(resets);
        }
        self.reset_denied(now);
        work
    }

    /// A little more than nothing as long as sent segments are with the GPU.
    pub(in super::super) fn packets_out(&self) -> usize {
        let sent = self.packet_tx.as_ref();
        usize::from(sent.is_some_and(|sent| lock(sent).stage.is_busy()))
    }

    /// Whether a segment is held, received or to be sent.
    #[cfg(test)]
    pub(in super::super) fn holds_packets(&self) -> bool {
        let received = self.packet_rx.as_ref();
        received.is_some_and(PacketStage::is_busy) || self.packets_out() > 0
    }

    /// When the stages of segments want to be looked after although nothing happens.
    pub(in super::super) fn packets_due(&self, now: Instant) -> Option<Instant> {
        let received = self
            .packet_rx
            .as_ref()
            .and_then(|stage| stage.next_due(now));
        let sent = self.packet_tx.as_ref();
        let sent = sent.and_then(|sent| lock(sent).stage.next_due(now));
        received.into_iter().chain(sent).min()
    }
}
