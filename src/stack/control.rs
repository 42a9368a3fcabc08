//! What is not TCP: ARP, ICMP, UDP.

use core::net::Ipv4Addr;
use core::ops::Range;

use super::api::{FlowMemory, FlowState};
use super::arp::ArpFrame;
use super::demux::{Class, IcmpFrame, UdpFrame, classify};
use super::flow_parts::Flags;
use super::icmp::{self, IcmpError, IcmpErrorKind, Transport};
use super::segment::Link;
use super::sequence::snd_una;
use super::stack::{Io, Stack};
use super::tracker::distance;
use crate::device::{RxMeta, TxMeta, TxQueue};
use crate::errno::Errno;
use crate::time::Instant;

impl Stack {
    /// Makes our addresses known on the link (gratuitous ARP, RFC 5227 section 2.3). The second announcement leaves
    /// with [`Stack::expire`].
    pub fn announce(&mut self, now: Instant, tx: &mut dyn TxQueue) {
        self.neighbors.announce(now);
        let failed = self.send_arp(now, tx);
        debug_assert!(failed.is_empty(), "an announcement asks nobody");
    }

    /// Learns from a frame that another lcore has received and answers: ARP.
    pub fn overhear(
        &mut self,
        now: Instant,
        bytes: &[u8],
        memory: &mut dyn FlowMemory,
        tx: &mut dyn TxQueue,
    ) {
        if let Class::Arp(place) = classify(bytes, RxMeta::default(), &self.rules) {
            self.receive_arp(&mut Io { now, memory, tx }, bytes, place, false);
        }
    }

    pub(crate) fn receive_arp(
        &mut self,
        io: &mut Io<'_>,
        bytes: &[u8],
        place: Range<usize>,
        answers: bool,
    ) {
        if answers {
            self.counters.rx_arp_packets.raise();
        }
        let Some(packet) = bytes.get(place) else {
            return;
        };
        let outcome = self.neighbors.ingress_arp(io.now, packet);
        if let Some(reply) = outcome.reply.filter(|_| answers) {
            self.send_arp_frame(io.tx, reply);
        }
        if let Some((address, mac)) = outcome.duplicate.filter(|_| answers) {
            self.counters.arp_duplicates.raise();
            let [a, b, c, d, e, f] = mac;
            crate::warn!(
                "event=duplicate_address address={address} other_mac={a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}"
            );
        }
        if let Some(address) = outcome.learned {
            self.next_hop_known(io, address);
        }
        self.poll_neighbors(io);
    }

    /// Flows that waited for this next hop may send.
    fn next_hop_known(&mut self, io: &mut Io<'_>, address: Ipv4Addr) {
        for flow in self.unresolved.remove(&address).unwrap_or_default() {
            let Some(index) = self.table.resolve(flow) else {
                continue;
            };
            if self
                .table
                .hot(index)
                .is_some_and(|hot| hot.flags.has(Flags::UNRESOLVED))
            {
                self.resolve(io, index);
                self.mark_dirty(index);
            }
        }
    }

    /// Sends ARP frames that are due, and ends the connects of next hops that did not answer.
    pub(crate) fn poll_neighbors(&mut self, io: &mut Io<'_>) -> usize {
        if self.neighbors.is_quiet(io.now) {
            return 0;
        }
        let failed = self.send_arp(io.now, io.tx);
        let count = failed.len();
        for address in failed {
            for flow in self.unresolved.remove(&address).unwrap_or_default() {
                if let Some(index) = self.table.resolve(flow)
                    && self
                        .table
                        .hot(index)
                        .is_some_and(|hot| hot.flags.has(Flags::UNRESOLVED))
                {
                    self.counters.flows_ended_no_neighbor.raise();
                    self.kill(io, index, Errno::HOSTUNREACH, false);
                }
            }
        }
        count
    }

    fn send_arp(&mut self, now: Instant, tx: &mut dyn TxQueue) -> Vec<Ipv4Addr> {
        let mut failed = Vec::new();
        let vlan = self.station.vlan;
        let counters = &self.counters;
        let stall = &mut self.stall;
        self.neighbors.poll(
            now,
            &mut |frame| {
                let Some(buffer) = tx.alloc(ArpFrame::frame_bytes(vlan)) else {
                    stall.refused(now);
                    return false;
                };
                if let Some(length) = frame.emit(vlan, buffer) {
                    tx.commit(length, TxMeta::default());
                    counters.tx_frames.raise();
                    counters.tx_bytes.add(length as u64);
                }
                true
            },
            &mut |address| failed.push(address),
        );
        failed
    }

    fn send_arp_frame(&self, tx: &mut dyn TxQueue, frame: ArpFrame) {
        let vlan = self.station.vlan;
        match tx.alloc(ArpFrame::frame_bytes(vlan)) {
            Some(buffer) => {
                if let Some(length) = frame.emit(vlan, buffer) {
                    tx.commit(length, TxMeta::default());
                    self.counters.tx_frames.raise();
                    self.counters.tx_bytes.add(length as u64);
                }
            }
            None => self.counters.tx_dropped_no_buffer.raise(),
        }
    }

    /// Echo requests are answered, errors are told to the flow they are about.
    pub(crate) fn receive_icmp(&mut self, io: &mut Io<'_>, bytes: &[u8], frame: &IcmpFrame) {
        self.counters.rx_icmp_messages.raise();
        let mtu = self.config.mtu;
        if let Some(length) = icmp::echo_reply_bytes(bytes, frame, mtu, self.station.vlan) {
            let sent = self.send_icmp(io, frame.source, frame.source_mac, length, |link, out| {
                icmp::echo_reply(bytes, frame, mtu, link, out)
            });
            if sent {
                self.counters.icmp_echoes_sent.raise();
            }
        } else if let Some(error) = icmp::parse_error(bytes, frame) {
            self.icmp_error(io, &error);
        }
    }

    /// Nobody listens for UDP yet: port unreachable, at a limited rate.
    pub(crate) fn receive_udp(&mut self, io: &mut Io<'_>, bytes: &[u8], frame: &UdpFrame) {
        self.counters.rx_datagrams.raise();
        let Some(length) = icmp::port_unreachable_bytes(frame, self.station.vlan) else {
            return;
        };
        if !self.unreachables.allow(io.now) {
            return self.counters.icmp_errors_limited.raise();
        }
        let sent = self.send_icmp(
            io,
            *frame.remote.ip(),
            frame.source_mac,
            length,
            |link, out| icmp::port_unreachable(bytes, frame, link, out),
        );
        if sent {
            self.counters.icmp_errors_sent.raise();
        }
    }

    fn send_icmp(
        &mut self,
        io: &mut Io<'_>,
        to: Ipv4Addr,
        mac: [u8; 6],
        length: usize,
        fill: impl FnOnce(Link, &mut [u8]) -> Option<usize>,
    ) -> bool {
        let looped = self.rules.is_ours(to);
        self.send_made(io, mac, looped, false, length, fill)
    }

    /// An error about a segment of ours (RFC 1122 4.2.3.9, RFC 5927): it ends a connect, it lowers the path's MTU, and
    /// everything else is only remembered.
    fn icmp_error(&mut self, io: &mut Io<'_>, error: &IcmpError) {
        let found = (error.transport == Transport::Tcp)
            .then(|| self.table.lookup(error.key))
            .flatten();
        let Some((index, (hot, cold))) =
            found.and_then(|index| Some((index, self.table.parts(index)?)))
        else {
            return self.counters.icmp_errors_ignored.raise();
        };
        // RFC 5927 section 4.1: it must be about something under way.
        let under_way =
            distance(snd_una(cold), error.seq) >= 0 && distance(error.seq, hot.track.snd_nxt) > 0;
        if !under_way {
            return self.counters.icmp_errors_ignored.raise();
        }
        if let IcmpErrorKind::FragmentationNeeded(mtu) = error.kind {
            let class = self.interfaces.class_for(usize::from(mtu));
            if self.interfaces.mtu(class) < self.interfaces.mtu(cold.meter.mtu_class) {
                cold.meter.mtu_class = class;
                let mss = self.interfaces.mtu(class).saturating_sub(40);
                cold.meter.mss = cold.meter.mss.min(u16::try_from(mss).unwrap_or(u16::MAX));
                self.counters.flows_mtu_lowered.raise();
                self.mend_too_long(io, index);
            }
        } else if cold.state == FlowState::SynSent {
            self.counters.flows_ended_icmp.raise();
            self.kill(io, index, error.kind.errno(), false);
        } else {
            cold.soft_error = Some(error.kind.errno());
            if cold.options.receive_errors {
                // Told at once, and the connection goes on (tcp_v4_err of Linux).
                self.note_change(index);
            }
        }
    }
}
