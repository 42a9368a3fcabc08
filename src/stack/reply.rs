//! Segments that we send ourselves, past the engine: acknowledgements, challenges, resets.

use super::flow_parts::Flags;
use super::frame::Checksums;
use super::interface::Outlet;
use super::segment::{ControlSegment, Link};
use super::sequence::rcv_nxt;
use super::stack::{Io, Stack};
use super::tracker::ahead;

impl Stack {
    /// Sends a challenge ACK, if the limit allows.
    pub(crate) fn challenge(&mut self, io: &mut Io<'_>, index: u32) {
        if self.challenges.allow(io.now) {
            self.counters.challenge_acks_sent.raise();
            // A peer that was started again may be another station.
            self.follow_next_hop(io.now, index);
            self.acknowledge(io, index);
        } else {
            self.counters.challenge_acks_limited.raise();
        }
    }

    /// Sends an ACK that advertises nothing new.
    pub(crate) fn acknowledge(&mut self, io: &mut Io<'_>, index: u32) {
        let Some((hot, _)) = self.table.parts(index) else {
            return;
        };
        let (seq, edge) = (hot.track.snd_nxt, hot.track.edge);
        self.send_ack(io, index, seq, edge);
    }

    /// Sends an ACK with sequence number `seq` that advertises everything below `edge`.
    pub(crate) fn send_ack(&mut self, io: &mut Io<'_>, index: u32, seq: u32, edge: u32) {
        let Some((hot, cold)) = self.table.parts(index) else {
            return;
        };
        let next = rcv_nxt(hot, cold);
        let open = ahead(next, edge) >> cold.meter.shift;
        let window = u16::try_from(open).unwrap_or(u16::MAX);
        cold.meter.window = window;
        cold.meter.advertise(
            &mut hot.track,
            next.wrapping_add(u32::from(window) << cold.meter.shift),
        );
        let mut reply = ControlSegment::acknowledge(hot.key, seq, next, window);
        reply.tos = cold.meter.tos;
        if cold.options.ttl != 0 {
            reply.ttl = cold.options.ttl;
        }
        let (mac, looped) = (cold.mac, hot.flags.has(Flags::LOOPED));
        self.send_control(io, &reply, mac, looped);
    }

    /// Sends a segment made here.
    pub(crate) fn send_control(
        &mut self,
        io: &mut Io<'_>,
        reply: &ControlSegment,
        mac: [u8; 6],
        looped: bool,
    ) {
        let offload = self.station.offload && !looped;
        let checksums = if offload {
            Checksums::Port
        } else {
            Checksums::Full
        };
        let length = reply.frame_bytes(self.station.vlan);
        self.send_made(io, mac, looped, offload, length, |link, out| {
            reply.emit(link, checksums, out)
        });
    }

    /// Sends a frame of `length` bytes at most that `fill` makes. Returns whether it left.
    pub(crate) fn send_made(
        &mut self,
        io: &mut Io<'_>,
        mac: [u8; 6],
        looped: bool,
        offload: bool,
        length: usize,
        fill: impl FnOnce(Link, &mut [u8]) -> Option<usize>,
    ) -> bool {
        let link = Link {
            source: self.station.mac,
            destination: mac,
            vlan: self.station.vlan,
        };
        let mut outlet = Outlet {
            tx: &mut *io.tx,
            looped: &mut self.looped,
            station: self.station,
            counters: &self.counters,
            reserve: 0,
        };
        outlet.send(looped, length, offload, |out| fill(link, out))
    }
}
